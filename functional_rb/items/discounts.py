"""Discounted sums of what comes after each step of a slice."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from functional_rb.base import nest
from functional_rb.base.dtypes import shown
from functional_rb.base.nest import Key
from functional_rb.core.item_function import ItemFunction, Leaves, Specs, chosen, plain
from functional_rb.items.in_slices import InSlices
from functional_rb.items.leafwise import array_spec, name_of, needed_keys, path_of
from functional_rb.items.names import Select
from functional_rb.items.rewards import reward_path
from functional_rb.ops.protocol import Array, ItemOps
from functional_rb.ops.recurrence import discounted


@dataclasses.dataclass(frozen=True)
class Discounted(InSlices):
    """Discounted sums; see `discount_cumsum` and `reward_to_go`."""

    gamma: float
    keys: tuple[Key, ...] | None
    # The name of the sums' leaf, for one leaf of rewards; None to put sums where the numbers were.
    out: Key | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        object.__setattr__(self, "keys", nest.checked_keys(self.keys, "keys", self.who))
        if self.out is not None:
            object.__setattr__(self, "out", name_of(self.out, "out", self.who))
        gamma: object = self.gamma  # users give anything
        if not isinstance(gamma, int | float) or not 0 <= gamma <= 1:
            raise ValueError(f"{self.who}: expected gamma as a number from 0 to 1, got {self.gamma!r}")

    @property
    def who(self) -> str:
        """The function that made it."""
        return "discount_cumsum" if self.out is None else "reward_to_go"

    # Where the sums of which leaves go.
    def _pairs(self, leaves: Specs | Leaves) -> dict[nest.Path, nest.Path]:
        if self.out is not None:
            key = None if self.keys is None else self.keys[0]
            return {reward_path(leaves, key, self.who): path_of(self.out)}
        return {path: path for path in chosen(leaves, self.keys, self.who, ("float",))}

    def spec(self, leaves: Specs, lead: int) -> Specs:
        """Sums, which have no bounds."""
        self.check_slices(leaves, lead)
        pairs = self._pairs(leaves)
        for path in [to for origin, to in pairs.items() if to != origin]:
            if path in leaves:
                raise ValueError(
                    f"{self.who}: there is a leaf {nest.show(path)!r} already; give another name by out=..."
                )
        return leaves | {
            to: plain(leaves[origin].shape, array_spec(leaves[origin]).dtype) for origin, to in pairs.items()
        }

    def apply(
        self, ops: ItemOps, leaves: Leaves, lead: tuple[int, ...], draws: Array | None, mask: Array | None
    ) -> Leaves:
        """Add up from behind."""
        made, ends = {}, self.ends(ops, leaves, lead)
        for origin, to in self._pairs(leaves).items():
            x = leaves[origin].reshape(*lead, -1)
            factors = ops.full_like(x[:, :, :1], self.gamma)
            if ends is not None:
                factors = ops.where(ends[:, :, None], ops.full_like(factors, 0), factors)
            if mask is not None:  # what is not there adds nothing
                x = ops.where(mask[:, :, None], x, ops.full_like(x, 0))
            made[to] = ops.cast(discounted(ops, x, factors), shown(x.dtype)).reshape(leaves[origin].shape)
        return leaves | made

    def inverse(self, item: object) -> ItemFunction:
        """Without the sums, where they have a leaf of their own."""
        return super().inverse(item) if self.out is None else Select((self.out,), left_out=True)


def discount_cumsum(
    gamma: float,
    keys: Key | Sequence[Key],
    *,
    end_keys: Key | Sequence[Key] | None = None,
    trajectory_key: Key | None = None,
) -> Discounted:
    """Discounted sums of what comes after each step of a slice, for `frb.map_items`, in place of the numbers.

    `g_t = x_t + gamma (1 - end_t) g_{t+1}`, and 0 behind the slice's last step: the return of R. S. Sutton and A. G.
    Barto, "Reinforcement learning: an introduction" (2018), equations 3.8 and 3.9, cut where the slice is. Sums never
    go beyond an episode's end, and steps that are not real (`sample.mask`) add nothing.

    Args:
        gamma: the discount, from 0 to 1.
        keys: the leaves of floats, or containers of such.
        end_keys: where episodes end, as for `frb.Slices`.
        trajectory_key: likewise.

    Raises:
        ValueError: for another gamma; where it is used, for single items, or leaves that do not fit, naming them.

    Example:
        >>> from functional_rb import items
        >>> items.discount_cumsum(0.99, "cost").gamma
        0.99
    """
    ends = nest.checked_keys(end_keys, "end_keys", "discount_cumsum")
    return Discounted(gamma, needed_keys(keys, "discount_cumsum"), end_keys=ends, trajectory_key=trajectory_key)


def reward_to_go(
    gamma: float = 1.0,
    reward_key: Key | None = None,
    out: Key = "reward_to_go",
    *,
    end_keys: Key | Sequence[Key] | None = None,
    trajectory_key: Key | None = None,
) -> Discounted:
    """The sum of rewards from each step of a slice on, for `frb.map_items`, in a leaf of its own.

    `g_t = r_t + gamma (1 - end_t) g_{t+1}`, and 0 behind the slice's last step (Sutton and Barto, 2018, equation 3.9;
    the returns-to-go of L. Chen et al., "Decision transformer", 2021, with gamma = 1). See `discount_cumsum`.

    Args:
        gamma: the discount, from 0 to 1.
        reward_key: the leaf of rewards, of floats; by default "next/reward" or "reward".
        out: the new leaf.
        end_keys: where episodes end, as for `frb.Slices`.
        trajectory_key: likewise.

    Raises:
        ValueError: for another gamma; where it is used, for single items, an item without rewards, or a leaf `out` that
            there is already.

    Example:
        >>> from functional_rb import items
        >>> items.reward_to_go(out="return").out
        'return'
    """
    rewards = None if reward_key is None else nest.checked_keys([reward_key], "keys", "reward_to_go")
    ends = nest.checked_keys(end_keys, "end_keys", "reward_to_go")
    return Discounted(gamma, rewards, out, end_keys=ends, trajectory_key=trajectory_key)
