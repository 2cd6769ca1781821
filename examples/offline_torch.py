"""Learning from a dataset alone, on torch: implicit Q-learning beside behaviour cloning, from files of Minari.

The algorithm, the task and the settings are those of offline_jax.py; here a Python loop draws batches from the mapped
files of the dataset, as datasets larger than memory are drawn from.

    python examples/offline_torch.py [--quick] [--seed 0] [--expectile 0.8] [--out offline_torch.png]
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from offline_task import TORQUE, Config, Row, arguments, evaluate, load, run
from torch import Tensor, nn
from tqdm import tqdm

import torch_backend as rb


def network(inputs: int, hidden: int) -> nn.Sequential:
    """A multilayer perceptron, [..., inputs] to [..., 1]."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
    )


class Learner:
    """The networks, and how they learn. Observations are normalised by `loc` and `scale`, Tensors [3]."""

    def __init__(self, config: Config, loc: Tensor, scale: Tensor) -> None:
        torch.manual_seed(config.seed)  # the first weights
        self.config, self.loc, self.scale = config, loc, scale
        self.critics = nn.ModuleList([network(4, config.hidden) for _ in range(2)])
        self.value, self.actor = network(3, config.hidden), network(3, config.hidden)
        self.cloned = copy.deepcopy(self.actor)
        self.target = copy.deepcopy(self.critics).requires_grad_(requires_grad=False)
        networks = (self.critics, self.value, self.actor, self.cloned)
        parameters = [parameter for each in networks for parameter in each.parameters()]
        self.optimizer = torch.optim.Adam(parameters, config.learning_rate, fused=True)

    def act(self, actor: nn.Module, obs: Tensor) -> Tensor:
        """Torques [..., 1] for observations [..., 3] that are normalised."""
        return TORQUE * torch.tanh(actor(obs))

    def q_values(self, critics: Any, obs: Tensor, action: Tensor) -> Tensor:
        """What both critics say, [2, B]."""
        x = torch.cat([obs, action / TORQUE], -1)
        return torch.stack([critic(x)[..., 0] for critic in critics])

    def losses(self, item: Any) -> dict[str, Tensor]:
        """Of each network; none has gradients for the others' parameters."""
        config, action, after = self.config, item["action"], item["next"]
        obs, later = ((x - self.loc) / self.scale for x in (item["observation"], after["observation"]))

        # The value is an expectile of what the data's actions are worth: with 1 of the best of them.
        advantage = self.q_values(self.target, obs, action).amin(0) - self.value(obs)[..., 0]
        value = (config.expectile - (advantage < 0).float()).abs() * advantage**2

        with torch.no_grad():
            following = self.value(later)[..., 0]
        goal = config.reward_scale * after["reward"] + config.gamma * ~after["terminated"] * following
        critics = (self.q_values(self.critics, obs, action) - goal) ** 2

        weight = (config.temperature * advantage.detach()).exp().clamp(max=config.largest)
        actor, cloned = (((self.act(each, obs) - action) ** 2)[..., 0] for each in (self.actor, self.cloned))
        each = {"actor": weight * actor, "cloned": cloned, "critics": critics, "value": value}
        return {name: loss.mean() for name, loss in each.items()}

    def update(self, item: Any) -> dict[str, Tensor]:
        """A gradient step on a batch; the losses before it."""
        each = self.losses(item)
        self.optimizer.zero_grad()
        sum(each.values(), torch.zeros(())).backward()
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_([*self.target.parameters()], [*self.critics.parameters()], self.config.tau)
        return {name: loss.detach() for name, loss in each.items()}

    def evaluate(self, actor: nn.Module) -> float:
        """Mean return of a policy."""

        @torch.no_grad()
        def policy(obs: np.ndarray) -> np.ndarray:
            return self.act(actor, (torch.from_numpy(obs) - self.loc) / self.scale).numpy()

        return evaluate(self.config, policy)


def train(config: Config, root: Path) -> tuple[float, list[Row]]:
    """The mean return of the dataset's episodes, and the curves."""
    state, told = load(config, rb, root)
    seen = told["leaves"]["observations/observation"]
    learner = Learner(config, *(torch.from_numpy(seen[name]).float() for name in ("mean", "std")))

    def rows() -> Iterator[Row]:
        since: list[dict[str, Tensor]] = []
        for k, key in enumerate(tqdm(rb.split(rb.key(config.seed), config.updates), desc="updates", leave=False), 1):
            _, sample = rb.sample(state, key)
            since.append(learner.update(sample.items))
            if k % config.eval_every == 0:
                means = {name: float(torch.stack([each[name] for each in since]).mean()) for name in since[0]}
                yield Row(k, learner.evaluate(learner.actor), learner.evaluate(learner.cloned), means)
                since.clear()

    return told["returns"]["mean"], list(rows())


def main(config: Config, out: Path) -> tuple[float, list[Row]]:
    return run(train, "torch", config, out)


if __name__ == "__main__":
    torch.set_num_threads(1)  # for matrices this small, handing work to threads costs more than it saves
    main(*arguments("Implicit Q-learning and behaviour cloning on a dataset, on torch.", "offline_torch.png"))
