"""Discounted sums of what comes after each step of a slice."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from functional_rb.base import nest
from functional_rb.base.dtypes import shown
from functional_rb.base.nest import Key
from functional_rb.core.item_function import ItemFunction, Lead, Leaves, Specs, chosen, plain
from functional_rb.items.in_slices import InSlices
from functional_rb.items.leafwise import array_spec, check_new, name_of, path_of
from functional_rb.items.names import Select
from functional_rb.items.rewards import reward_path
from functional_rb.ops.protocol import Array, ItemOps
from functional_rb.ops.recurrence import discounted


@dataclasses.dataclass(frozen=True)
class RewardToGo(InSlices):
    """Discounted sums; see `reward_to_go`."""

    who: ClassVar[str] = "reward_to_go"

    gamma: float
    keys: tuple[Key, ...] | None
    out: Key | None = "reward_to_go"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "keys", nest.checked_keys(self.keys, "keys", self.who))
        if self.out is not None:
            object.__setattr__(self, "out", name_of(self.out, "out", self.who))
            if self.keys is not None and len(self.keys) != 1:
                raise ValueError(
                    f"{self.who}: expected one leaf by keys, got {self.keys!r}; give out=None for sums in their place"
                )
        gamma: object = self.gamma  # users give anything
        if not isinstance(gamma, int | float) or not 0 <= gamma <= 1:
            raise ValueError(f"{self.who}: expected gamma as a number from 0 to 1, got {self.gamma!r}")

    # Where the sums of which leaves go.
    def _pairs(self, leaves: Specs | Leaves) -> dict[nest.Path, nest.Path]:
        if self.out is None and self.keys is not None:
            return {path: path for path in chosen(leaves, self.keys, self.who, ("float",))}
        origin = reward_path(leaves, None if self.keys is None else self.keys[0], self.who)
        return {origin: origin if self.out is None else path_of(self.out)}

    def spec(self, leaves: Specs, lead: int) -> Specs:
        # Sums, which have no bounds.
        self.check_slices(leaves, lead)
        sums: Specs = {}
        for origin, to in self._pairs(leaves).items():
            if to != origin:
                check_new(to, leaves, self.who)
            sums[to] = plain(leaves[origin].shape, array_spec(leaves[origin]).dtype)
        return leaves | sums

    def apply(self, ops: ItemOps, leaves: Leaves, lead: Lead, draws: Array | None, mask: Array | None) -> Leaves:
        # Add up from behind.
        sums, ends = {}, self.ends(ops, leaves, lead)
        for origin, to in self._pairs(leaves).items():
            x = leaves[origin].reshape(*lead, -1)
            factors = ops.full_like(x[:, :, :1], self.gamma)
            if ends is not None:
                factors = ops.where(ends[:, :, None], ops.full_like(factors, 0), factors)
            if mask is not None:  # what is not there adds nothing
                x = ops.where(mask[:, :, None], x, ops.full_like(x, 0))
            sums[to] = ops.cast(discounted(ops, x, factors), shown(x.dtype)).reshape(leaves[origin].shape)
        return leaves | sums

    def inverse(self, item: object) -> ItemFunction:
        return super().inverse(item) if self.out is None else Select((self.out,), left_out=True)


def reward_to_go(
    gamma: float = 1.0,
    keys: Key | Sequence[Key] | None = None,
    out: Key | None = "reward_to_go",
    *,
    end_keys: Key | Sequence[Key] | None = None,
    trajectory_key: Key | None = None,
) -> RewardToGo:
    """The discounted sum of rewards from each step of a slice on, for `frb.map_items`, in a leaf of its own.

    `g_t = r_t + gamma (1 - end_t) g_{t+1}`, and 0 behind the slice's last step: the return of R. S. Sutton and A. G.
    Barto, "Reinforcement learning: an introduction" (2018), equations 3.8 and 3.9, cut where the slice is; with
    gamma = 1 the returns-to-go of L. Chen et al., "Decision transformer" (2021). Sums never go beyond an episode's end,
    and steps that are not real (`sample.mask`) add nothing.

    Args:
        gamma: the discount, from 0 to 1.
        keys: the leaf of rewards, of floats; by default "next/reward" or "reward". With out=None these may be several
            leaves of floats, or containers of such.
        out: the new leaf; None to put the sums in place of the numbers.
        end_keys: where episodes end, as for `frb.Slices`.
        trajectory_key: an integer leaf that is another in every episode, as for `frb.Slices`.

    Raises:
        ValueError: for another gamma, or several keys with `out`; where it is used, for single items, an item without
            rewards, leaves that do not fit, naming them, or a leaf `out` that there is already.

    Example:
        >>> frb.items.reward_to_go(out="return").out
        'return'
        >>> frb.items.reward_to_go(0.99, ["cost", "reward"], out=None).keys
        ['cost', 'reward']
    """
    leaves = nest.checked_keys(keys, "keys", "reward_to_go")
    ends = nest.checked_keys(end_keys, "end_keys", "reward_to_go")
    return RewardToGo(gamma, leaves, out, end_keys=ends, trajectory_key=trajectory_key)
