"""Environments whose observations are of every kind of space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

BOX = spaces.Box(-1, 1, (2,), np.float64)
# More than Gymnasium's samples have with the seeds of these tests.
LIMITS = {"max_length": 40, "max_edges": 100}
ALL = spaces.Dict(
    text=spaces.Text(5, min_length=0),
    sequence=spaces.Sequence(spaces.Tuple((spaces.Discrete(5), BOX))),
    stacked=spaces.Sequence(spaces.Dict(n=spaces.Discrete(5)), stack=True),
    graph=spaces.Graph(BOX, spaces.Discrete(3)),
    bare=spaces.Graph(spaces.Discrete(3), None),
    one_of=spaces.OneOf((spaces.Discrete(3, start=2), BOX, spaces.Text(2))),
    plain=spaces.Tuple((BOX, spaces.Text(3), spaces.MultiBinary(3))),
)
ACTIONS = spaces.Dict(
    say=spaces.Text(4), go=spaces.OneOf((spaces.Discrete(2), BOX)), hands=spaces.Sequence(spaces.Discrete(3))
)


class Made(gym.Env[Any, Any]):
    """Observations are samples of a space; `log` has the steps taken, as they were."""

    def __init__(self, space: Any, actions: Any, seed: int) -> None:
        self.metadata = dict(self.metadata)  # which vector environments write their mode to
        self.observation_space, self.action_space = space, actions
        self.seed, self.log = seed, []
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self.episode < 0:
            self.observation_space.seed(self.seed)
        self.episode, self.t = self.episode + 1, 0
        self.observation = self.observation_space.sample()
        return self.observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        over = self.t > (self.episode + self.seed) % 3
        terminated, truncated = over and self.episode % 2 == 0, over and self.episode % 2 == 1
        before, self.observation = self.observation, self.observation_space.sample()
        reward = float(10 * self.episode + self.t)
        self.log.append((before, action, reward, self.observation, terminated, truncated))
        return self.observation, reward, terminated, truncated, {}
