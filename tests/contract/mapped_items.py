"""Functions of items, and the steps that they are given, for the tests of `map_items`."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

import functional_rb as frb
from functional_rb.core.item_function import ItemFunction, by_item

STEP = {
    "obs": frb.Unbounded((2,)),
    "reward": frb.Unbounded(()),
    "next_obs": frb.Unbounded((2,)),
    "done": frb.Binary(),
    "desired_goal": frb.Unbounded(()),
    "next_achieved_goal": frb.Unbounded(()),
}


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Record:
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Noise(ItemFunction):
    """Adds the first word of each item to its reward, modulo 8."""

    @property
    def words(self) -> int:
        return 2

    def spec(self, leaves: Any, lead: int) -> Any:
        return leaves

    def apply(self, ops: Any, leaves: Any, lead: Any, draws: Any, mask: Any) -> Any:
        more = by_item(ops.cast(draws[:, 0] % 8, "float32"), leaves["reward",], lead)
        return leaves | {("reward",): leaves["reward",] + more}


def stacked(items: Any) -> Any:
    """Another structure and other shapes, of steps as of slices."""
    both = items["obs"][..., None] + items["next_obs"][..., None, :]
    return {"both": both, "reward": (items["reward"] * 2, items["desired_goal"])}


def scaled(items: Any, factor: float = 1.0) -> Any:
    return items | {"reward": items["reward"] * factor}


def forgetful(items: Any) -> Any:
    return {name: leaf for name, leaf in items.items() if name != "reward"}


@dataclasses.dataclass
class Unhashable:
    def __call__(self, items: Any) -> Any:
        return items


def fails(items: Any) -> Any:
    raise RuntimeError("it cannot")


def batch(n: int, start: int = 0) -> Any:
    steps = np.arange(start, start + n, dtype=np.float32)
    obs = steps[:, None] * np.ones(2, np.float32)
    goals = {"desired_goal": steps + 100, "next_achieved_goal": steps}
    return {"obs": obs, "reward": steps, "next_obs": obs + 1, "done": np.arange(start, start + n) % 5 == 4, **goals}


def as_lists(items: Any) -> Any:
    if isinstance(items, dict):
        return {name: as_lists(part) for name, part in items.items()}
    return tuple(map(as_lists, items)) if isinstance(items, tuple) else np.asarray(items).tolist()


def same(items: Any, mask: Any = None) -> Any:
    return items
