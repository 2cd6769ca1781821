"""DQN on CartPole-v1 with actors, shards of the buffer and the learner in processes of their own, on Ray.

Four actors step environments and add to shards, while the learner draws and sets priorities. In each round all of them
do as many steps as is said; then the actors get the learner's newest network.

    python examples/ray_dqn.py [--quick] [--local] [--seed 0] [--checkpoint DIRECTORY]

With `--local` all of it is in this process, one actor after the other, and Ray need not be installed.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from cartpole_spec import QUICK, Config, buffer_spec, schedules
from common import evaluate
from dqn_torch import Learner, QNetwork

import functional_rb as frb
import torch_backend as rb

ACTORS = 4
SHARDS = 2


class Actor:
    """Environments, a network, and a client of the buffer."""

    def __init__(self, client: frb.ray.Client, config: Config, seed: int) -> None:
        import gymnasium
        from gymnasium.vector import AutoresetMode

        torch.set_num_threads(1)
        self.client, self.random = client, np.random.default_rng(seed)
        self.network = QNetwork(config.hidden)
        number = max(config.num_envs // ACTORS, 1)
        self.envs = gymnasium.make_vec(
            "CartPole-v1",
            num_envs=number,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.NEXT_STEP},
        )
        self.obs, _ = self.envs.reset(seed=seed)
        self.ended = np.zeros(number, bool)

    def follow(self, weights: dict[str, Any]) -> None:
        """Take the learner's newest network."""
        self.network.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})

    def act(self, steps: int, epsilon: float, version: int) -> int:
        """Step all environments so often and add what they gave; how many items these were."""
        stored = 0
        for _ in range(steps):
            explore = self.random.random(len(self.obs)) < epsilon
            action = np.where(explore, self.random.integers(2, size=len(self.obs)), self.network.greedy(self.obs))
            next_obs, reward, terminated, truncated, _ = self.envs.step(action)
            items = {
                "obs": self.obs,
                "action": action.astype(np.int32),
                "reward": reward.astype(np.float32),
                "next_obs": next_obs,
                "terminated": terminated,
                "truncated": truncated,
            }
            # The step after an episode's end leads from that to the first observation of another: no transition.
            self.client.add(items, mask=~self.ended, version=version)
            stored += int((~self.ended).sum())
            self.obs, self.ended = next_obs, terminated | truncated
        self.client.flush()
        return stored


class InTurn:
    """Actors in this process, which act when they are asked to."""

    def __init__(self, client: frb.ray.Client, config: Config) -> None:
        self.actors = [Actor(client.for_backend(None), config, config.seed + k) for k in range(ACTORS)]

    def begin(self, steps: int, epsilon: float, version: int, weights: dict[str, Any]) -> None:
        for actor in self.actors:
            actor.follow(weights)
            actor.act(steps, epsilon, version)

    def wait(self) -> None:
        """All is done already."""


class OnRay:
    """Actors in processes of their own, which act while the learner learns."""

    def __init__(self, client: frb.ray.Client, config: Config) -> None:
        import ray

        self.ray, made = ray, ray.remote(max_restarts=-1)(Actor)
        mine = client.for_backend(None)  # pickled, it comes out as a client of each actor's own
        self.actors = [made.remote(mine, config, config.seed + k) for k in range(ACTORS)]
        self.under_way: list[Any] = []

    def begin(self, steps: int, epsilon: float, version: int, weights: dict[str, Any]) -> None:
        whole = self.ray.put(weights)  # once, for all of them
        for actor in self.actors:
            actor.follow.remote(whole)
            self.under_way.append(actor.act.remote(steps, epsilon, version))

    def wait(self) -> None:
        self.ray.get(self.under_way)
        self.under_way.clear()


def main(config: Config, local: bool, checkpoint: str | None = None) -> tuple[float, Any]:
    """Train; the mean return of the greedy policy, and what the buffer has counted."""
    torch.manual_seed(config.seed)
    spec = replace(buffer_spec(config), capacity=config.capacity)
    options = frb.ray.Options(save_every=10_000 if checkpoint else None)
    client = frb.ray.start(spec, SHARDS, backend=rb, checkpoint=checkpoint, options=options, local=local)
    actors = InTurn(client, config) if local else OnRay(client, config)
    learner = Learner(config)

    def weights() -> dict[str, Any]:
        return {name: tensor.numpy().copy() for name, tensor in learner.network.state_dict().items()}

    actors.begin(config.warmup, 1.0, 0, weights())
    actors.wait()
    epsilons, betas = schedules(config)
    round_length = config.eval_every
    done = 0
    while done < config.iterations:
        actors.begin(round_length, float(epsilons[done]), done, weights())  # they act while the learner draws
        beta_of = betas[done:].tolist().__getitem__  # of a batch, by its number
        batches = client.iterate(config.seed + done, n=round_length, prefetch=4, beta=beta_of)
        for sample in batches:
            priorities, _ = learner.step(sample.items, sample.weights, sample.extras)
            client.update(sample.indices, priorities)
        client.flush()
        actors.wait()
        done += round_length
        score = evaluate(learner.network.greedy, config.eval_episodes, 10_000 + done).mean()
        print(f"{done:6} steps of the learner, greedy return {score:.0f}, {client.size()} items stored")
    return float(score), client.counts()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a run of seconds, in which nothing is learned")
    parser.add_argument("--local", action="store_true", help="all in this process, without Ray")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", help="a directory that all machines see")
    given = parser.parse_args()
    if not given.local:
        import ray

        ray.init(ignore_reinit_error=True)
    chosen = replace(QUICK if given.quick else Config(iterations=10_000), seed=given.seed)
    print(main(chosen, given.local, given.checkpoint)[1])
