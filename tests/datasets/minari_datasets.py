"""Datasets that minari itself writes."""

from __future__ import annotations

import warnings
from typing import Any

import minari
import numpy as np
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float64)
SPACES = {
    "box": (BOX, spaces.Discrete(5, start=-2)),
    "parts": (
        spaces.Dict(
            pose=spaces.Dict(at=spaces.Box(-1, 1, (2,)), grip=spaces.MultiBinary(3)),
            task=spaces.Text(6, min_length=0),
            both=spaces.Tuple([spaces.MultiDiscrete([3, 4]), spaces.Discrete(7)]),
        ),
        spaces.Dict(move=spaces.Box(-1, 1, (2,)), say=spaces.Text(4)),
    ),
    "tuple": (
        spaces.Tuple([BOX, spaces.Dict(of=spaces.Tuple([spaces.Discrete(3), spaces.Dict(at=BOX)]))]),
        spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))]),
    ),
    "words": (spaces.Text(5), spaces.Text(4)),
    "images": (spaces.Box(0, 255, (36, 40, 3), np.uint8), spaces.Box(-1, 1, (1,))),
}


def write(name: str, observation: Any, action: Any, layout: str, **more: Any) -> None:
    observation.seed(0)
    action.seed(0)
    buffers = [buffer(observation, action, k, length) for k, length in enumerate((4, 1, 6))]
    more |= {"data_format": layout, "observation_space": observation, "action_space": action, "author": {"A. Uthor"}}
    described = {
        "description": "of these tests",
        "algorithm_name": "random",
        "code_permalink": "here",
        "author_email": {"a@b"},
    }
    with warnings.catch_warnings():  # of things that are recommended
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(name, buffers, **more, **described)


def buffer(observation: Any, action: Any, k: int, n: int) -> EpisodeBuffer:
    """Observation t, reward t + 0.25, where t counts the steps of all episodes, as far as the spaces have such."""
    t = 100 * k + np.arange(n + 1)
    seen = stacked([observation.sample() for _ in t])
    if observation is BOX:
        seen = np.repeat(t[:, None], 3, 1).astype(np.float64)
    infos = {"speed": t + 0.125, "inner": {"grid": np.repeat(t[:, None, None], 2, 1)}}
    ends = np.zeros(n, bool)
    ends[-1] = k != 2
    return EpisodeBuffer(
        id=k,
        seed=7 + k,
        observations=seen,
        actions=stacked([action.sample() for _ in t[1:]]),
        rewards=list(t[:-1] + 0.25),
        terminations=list(ends),
        truncations=[False] * n,
        infos=infos,
    )


def stacked(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {name: stacked([value[name] for value in values]) for name in first}
    if isinstance(first, tuple):
        return tuple(stacked([value[k] for value in values]) for k in range(len(first)))
    return values if isinstance(first, str) else np.stack(values)
