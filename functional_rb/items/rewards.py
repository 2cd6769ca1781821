"""Rewards between bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from functional_rb.base import nest
from functional_rb.base.nest import Key, Path
from functional_rb.core.boundaries import USUAL_REWARDS
from functional_rb.core.item_function import ItemFunction, Lead, Leaves, Specs, chosen
from functional_rb.items.leafwise import array_spec, name_of
from functional_rb.ops.protocol import Array, ItemOps
from functional_rb.specs import Bounded


def reward_path(leaves: Iterable[Path], key: Key | None, who: str) -> Path:
    """The leaf of rewards, of floats: the one named, or "next/reward" or "reward"."""
    names = [nest.show(path) for path in leaves]
    usual = [one for one in USUAL_REWARDS if nest.show_key(one) in names]
    if key is None and not usual:
        raise ValueError(
            f"{who}: the item has no leaf 'reward' (nor 'next/reward'); name the leaf of rewards, one of {names}"
        )
    return chosen(leaves, [key if key is not None else usual[0]], who, ("float",))[0]


@dataclasses.dataclass(frozen=True)
class ClipReward(ItemFunction):
    """Rewards between bounds; see `clip_reward`."""

    low: float = -1.0
    high: float = 1.0
    reward_key: Key | None = None

    who: ClassVar[str] = "clip_reward"

    def __post_init__(self) -> None:
        if not all(isinstance(x, int | float) for x in (self.low, self.high)) or not self.low <= self.high:
            raise ValueError(f"{self.who}: expected low <= high, got {self.low!r} and {self.high!r}")
        if self.reward_key is not None:
            object.__setattr__(self, "reward_key", name_of(self.reward_key, "reward_key", self.who))

    def spec(self, leaves: Specs, lead: int) -> Specs:
        path = reward_path(leaves, self.reward_key, self.who)
        spec = array_spec(leaves[path])
        low, high = (np.clip(np.asarray(bound, np.float64), self.low, self.high) for bound in spec.domain[:2])
        return leaves | {path: Bounded(low, high, spec.shape, spec.dtype)}

    def apply(self, ops: ItemOps, leaves: Leaves, lead: Lead, draws: Array | None, mask: Array | None) -> Leaves:
        path = reward_path(leaves, self.reward_key, self.who)
        x = leaves[path]
        return leaves | {path: ops.minimum(ops.maximum(x, ops.full_like(x, self.low)), ops.full_like(x, self.high))}


def clip_reward(low: float = -1.0, high: float = 1.0, reward_key: Key | None = None) -> ClipReward:
    """Rewards between two bounds, for `frb.map_items`.

    Args:
        low, high: the bounds, which may be infinite.
        reward_key: the leaf of rewards, of floats; by default "next/reward" or "reward".

    Raises:
        ValueError: for bounds in another order; where it is used, for an item without rewards.

    Example:
        >>> from functional_rb.core.item_function import item_after
        >>> item_after(frb.items.clip_reward(0, 10), {"reward": frb.Unbounded(())})
        Composite({'reward': Bounded(0.0, 10.0)})
    """
    return ClipReward(low, high, reward_key)
