"""DQN on CartPole-v1 with the replay buffer on torch, collecting from a Gymnasium vector environment.

The algorithm, the settings and the buffer's spec are those of dqn_jax.py; here a Python loop calls each part.

    python examples/dqn_torch.py [--quick] [--n-step 3] [--seed 0] [--out dqn_torch.png]
"""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import gymnasium
import numpy as np
import torch
from cartpole_spec import OBS_SCALE, Config, buffer_spec, schedules
from common import Policy, Progress, Result, Row, arguments, evaluate, finish
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn

import functional_rb as frb
import torch_backend as rb

SELECTION_SEED = 10_000  # the first of the seeds of the episodes by which the best policy is chosen


class QNetwork(nn.Module):
    """Action values [..., 2] of observations [..., 4]."""

    scale: Tensor

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(OBS_SCALE))
        self.layers = nn.Sequential(
            nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2)
        )

    def forward(self, obs: Tensor) -> Tensor:
        return self.layers(obs * self.scale)

    @torch.no_grad()
    def greedy(self, obs: np.ndarray) -> np.ndarray:
        """The best actions, [n]."""
        return self(torch.from_numpy(obs)).argmax(-1).numpy()


class Actors:
    """The vector environment and the episodes under way."""

    def __init__(self, config: Config) -> None:
        self.random = np.random.default_rng(config.seed)
        self.envs = gymnasium.make_vec(
            "CartPole-v1",
            num_envs=config.num_envs,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.NEXT_STEP},
        )
        self.obs, _ = self.envs.reset(seed=config.seed)
        self.ended = np.zeros(config.num_envs, bool)
        self.running = np.zeros(config.num_envs)
        self.returns: list[float] = []  # of the episodes that ended since the last row

    def act(self, policy: Policy, buffer: frb.State, epsilon: float) -> frb.State:
        """Steps every environment once and stores the transitions."""
        explore = self.random.random(len(self.obs)) < epsilon
        action = np.where(explore, self.random.integers(2, size=len(self.obs)), policy(self.obs))
        next_obs, reward, terminated, truncated, _ = self.envs.step(action)
        item = {
            "obs": self.obs,
            "action": action.astype(np.int32),
            "reward": reward.astype(np.float32),
            "next_obs": next_obs,
            "terminated": terminated,
            "truncated": truncated,
        }
        # The step after the end of an episode ignores the action and resets: it leads from the last observation of
        # one episode to the first of another, which is no transition of the task.
        buffer = rb.add(buffer, {name: torch.from_numpy(leaf) for name, leaf in item.items()}, mask=~self.ended)
        self.obs, self.ended = next_obs, terminated | truncated
        self.running += reward
        self.returns += self.running[self.ended].tolist()
        self.running[self.ended] = 0.0
        return buffer


class Learner:
    """The networks and their optimizer."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.network = QNetwork(config.hidden)
        self.online: nn.Module = self.network  # what computes its values: among several processes a wrapper of it
        self.target = deepcopy(self.network).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.network.parameters(), config.learning_rate, fused=True)
        self.decay = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.0, config.iterations)

    def learn(self, buffer: frb.State, key: Tensor, beta: float) -> tuple[frb.State, Tensor]:
        """One gradient step on a prioritized batch; its TD errors are the items' new priorities."""
        buffer, sample = rb.sample(buffer, key, beta=beta)
        priorities, loss = self.step(sample.items, sample.weights, sample.extras)
        return rb.update(buffer, sample.indices, priorities), loss

    def step(self, item: dict[str, Tensor], weights: Tensor, extras: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """One gradient step; the items' new priorities, and the loss."""
        if self.config.n_step == 1:
            discount = self.config.gamma * ~item["terminated"]
        else:
            discount = extras["discount"] * extras["nonterminal"]
        with torch.no_grad():
            # Double Q: the online network chooses the next action, the target network values it.
            choice = self.online(item["next_obs"]).argmax(-1, keepdim=True)
            value = self.target(item["next_obs"]).gather(-1, choice)[:, 0]
            goal = item["reward"] + discount * value
        error = self.online(item["obs"]).gather(-1, item["action"][:, None].long())[:, 0] - goal
        loss = (weights * error**2).mean() / 2
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.decay.step()
        with torch.no_grad():
            for old, new in zip(self.target.parameters(), self.network.parameters(), strict=True):
                old.lerp_(new, self.config.tau)
        priorities = error.detach().abs() + self.config.priority_floor
        return priorities, loss.detach()


def main(config: Config, out: Path) -> Result:
    torch.manual_seed(config.seed)  # the network's first weights
    actors, learner, buffer = Actors(config), Learner(config), rb.init(buffer_spec(config))
    for _ in range(config.warmup):
        buffer = actors.act(learner.network.greedy, buffer, epsilon=1.0)

    rows: list[Row] = []
    losses: list[Tensor] = []
    best, best_score = learner.network, -1.0
    keys = rb.split(rb.key(config.seed), config.iterations)
    with Progress(config.iterations) as progress:
        for i, (key, epsilon, beta) in enumerate(zip(keys, *schedules(config), strict=True), start=1):
            buffer = actors.act(learner.network.greedy, buffer, epsilon)
            buffer, loss = learner.learn(buffer, key, float(beta))
            losses.append(loss)
            if i % config.eval_every:
                continue
            score = evaluate(learner.network.greedy, config.eval_episodes, SELECTION_SEED + i).mean()
            if score >= best_score:  # of equal policies the later one: it has seen more
                best, best_score = deepcopy(learner.network), score
            episode_return = np.mean(actors.returns) if actors.returns else np.nan
            row = Row(i, episode_return, score, torch.stack(losses).mean().item(), epsilon, 0.0)
            rows.append(row._replace(seconds=progress.report(row)))
            actors.returns, losses = [], []
    actors.envs.close()
    return finish(config, rows, best.greedy, int(rb.size(buffer)), out)


if __name__ == "__main__":
    torch.set_num_threads(1)  # for matrices this small, handing work to threads costs more than it saves
    main(*arguments("DQN on CartPole-v1 on torch, from a Gymnasium vector environment.", "dqn_torch.png"))
