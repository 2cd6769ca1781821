"""The best items are kept."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import BackendArray
from functional_rb.core import handles
from functional_rb.core.counters import REFUSED
from functional_rb.core.plan import AuxiliaryArray
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import min_tree, ring
from functional_rb.structures.duplicates import Batch
from functional_rb.structures.ring import RingState, Write
from functional_rb.writers.base import ChoosingWriter

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found

# The tree of minima over the stored items' ranks, see `lowest`.
RANK = "rank"
REDUCTIONS = ("sum", "mean", "max", "min", "median")


@dataclasses.dataclass(frozen=True)
class MaxValue(ChoosingWriter):
    """Keeps the `capacity` items of the highest rank ever added, in O(log n) an item.

    A new item replaces the lowest one if its rank is higher; among equal ones the older stays, and of several lowest
    ones that in the first slot goes. An item whose rank is NaN is refused and counted: `rb.counts`. Ranks are
    compared as float32, single integers (other than uint32) exactly. With lanes the best of all lanes are kept
    together.

    Attributes:
        rank_key: path of the leaf to rank items by, a name or the names on the way to it; float32 or narrower, or an
            integer of at most 32 bits.
        reduction: how the leaf becomes one number where it has several, such as the rewards of a whole trajectory:
            "sum", "mean", "max", "min" or "median" (of an even number of values the lower of the two in the middle, as
            torch's).

    Raises:
        ValueError: for another reduction, or a leaf that the item lacks or that is no real number of at most 32 bits.

    Example:
        >>> MaxValue("reward")
        MaxValue(rank_key='reward', reduction='sum')
    """

    rank_key: nest.Key
    reduction: Literal["sum", "mean", "max", "min", "median"] = "sum"

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise ValueError(f"MaxValue: expected reduction as one of {REDUCTIONS}, got {self.reduction!r}")

    @property
    def reads(self) -> tuple[nest.Key, ...]:
        return (self.rank_key,)

    def check(self, plan: Plan) -> None:
        leaf = plan.leaves[self.position(plan)]
        if leaf.dtype in ("bool", "complex64", "object") or leaf.dtype.endswith("64") or 0 in leaf.shape:
            raise ValueError(
                f"MaxValue: leaf {self.rank_key!r}: expected real numbers of at most 32 bits to rank items by, "
                f"got {leaf.dtype} of shape {leaf.shape}; name another leaf"
            )

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        return super().auxiliary(plan) | {RANK: AuxiliaryArray(min_tree.shape(plan.capacity), fill=min_tree.EMPTY)}

    def counters(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        return ((REFUSED, 1),)

    def begin(self, ops: Ops, draft: Draft) -> None:
        draft.auxiliary[RANK] = min_tree.pad(ops, draft.auxiliary[RANK], draft.plan.capacity)

    def cleared(self, ops: Ops, draft: Draft) -> None:
        # All slots are empty.
        super().cleared(ops, draft)
        draft.auxiliary[RANK] = ops.full_like(draft.auxiliary[RANK], min_tree.EMPTY)
        self.begin(ops, draft)

    def problem(self, contents: Found) -> str | None:
        # The minima are those of the ranks, which stored items have and no others.
        ranks, capacity = contents.auxiliary[RANK], contents.plan.capacity
        if problem := super().problem(contents) or min_tree.problem(ranks, capacity):
            return problem
        ranked = ranks.reshape(-1)[:capacity] != min_tree.EMPTY
        wrong = np.flatnonzero(ranked != (contents.auxiliary[handles.CURRENT] >= 0))
        return f"slot {wrong[0]} has a rank and no item, or an item and no rank" if wrong.size else None

    def plan_write(
        self, ops: Ops, draft: Draft, leaves: Sequence[Array], batch: int, mask: Array | None, draws: Array | None
    ) -> Write:
        # The best new item against the lowest stored one, the second best against the second lowest, and so on.
        capacity = draft.plan.capacity
        keys, good = self._keys(ops, draft.plan, leaves)
        wanted = good if mask is None else good & mask
        keys = ops.where(wanted, keys, ops.full_like(keys, min_tree.EMPTY))
        n = min(batch, capacity)
        best = ops.argsort(~keys)[:n]  # the order of ~k is that of -k, and nothing overflows
        slots, old, new = compare(ops, draft, keys, best)
        sizes = draft.counters.ends.sizes
        live = new > old
        draft.auxiliary[RANK] = min_tree.set_keys(
            ops, draft.auxiliary[RANK], capacity, slots, ops.where(live, new, old)
        )
        self.renew(ops, draft, slots, live)
        bad = ~good if mask is None else mask & ~good
        more = draft.counters.more
        draft.count(refused=ring.saturating_add(ops, more[REFUSED], ops.count(bad)))
        filled = ops.count(live & (old == min_tree.EMPTY))
        sizes = sizes + filled
        return Write(
            slots, best, live, ops.count(wanted).reshape(1), RingState(draft.counters.ends.cursors, sizes), mask
        )

    def rewritten(self, ops: Ops, draft: Draft, batch: Batch, leaves: Sequence[Array], replaced: Array) -> None:
        # Rank rewritten items anew; one without a rank keeps its old one.
        keys, good = self._keys(ops, draft.plan, leaves)
        old = min_tree.get_keys(ops, draft.auxiliary[RANK], batch.slots)
        keys = ops.where(replaced & good, keys, old)
        draft.auxiliary[RANK] = min_tree.set_keys(ops, draft.auxiliary[RANK], draft.plan.capacity, batch.slots, keys)

    def _keys(self, ops: Ops, plan: Plan, leaves: Sequence[Array]) -> tuple[Array, Array]:
        position = self.position(plan)
        leaf, kind = leaves[position], plan.leaves[position]
        if math.prod(kind.shape) == 1 and "int" in kind.dtype and kind.dtype != "uint32":
            keys = min_tree.key_of_integers(ops, ops.cast(leaf.reshape(-1), "int32"))
            return keys, keys == keys
        numbers = ops.cast(leaf.reshape(leaf.shape[0], -1), "float32")
        if self.reduction == "median":
            return _median_key(ops, numbers)
        return min_tree.key_of(ops, _reduce(ops, numbers, self.reduction))

    def position(self, plan: Plan) -> int:
        """Which leaf ranks items."""
        return nest.position(plan.names, self.rank_key, "MaxValue")


# The key of the median of each row of float32 [B, n], and whether none of the row is a NaN.
def _median_key(ops: Ops, numbers: Array) -> tuple[Array, Array]:
    rows, n = numbers.shape
    # Sorted by their keys, as backends order NaNs and zeros of either sign each in its own way.
    keys, good = min_tree.key_of(ops, numbers.reshape(rows * n))
    middle = ops.argsort(keys.reshape(rows, n))[:, (n - 1) // 2]
    some_bad = ops.cumsum(ops.cast(~good, "int32").reshape(rows, n))[:, -1]
    return ops.take(keys, ops.arange(rows, like=middle) * n + middle), some_bad == 0


# One number for each row of float32 [B, n], by halves: in the same order on every backend.
def _reduce(ops: Ops, numbers: Array, how: str) -> Array:
    n = numbers.shape[1]
    padding = 2 ** math.ceil(math.log2(n)) - n
    fill = ops.full_like(numbers[:, :padding], 0) if how in ("sum", "mean") else numbers[:, :padding]
    numbers = ops.concat([numbers, fill], 1)
    while numbers.shape[1] > 1:
        half = numbers.shape[1] // 2
        left, right = numbers[:, :half], numbers[:, half:]
        if how == "max":
            numbers = ops.maximum(left, right)
        elif how == "min":
            numbers = ops.minimum(left, right)
        else:
            numbers = left + right
    return numbers[:, 0] * (1.0 / n) if how == "mean" else numbers[:, 0]


@replaceable
def compare(ops: Ops, draft: Draft, keys: Array, best: Array) -> tuple[BackendArray, BackendArray, BackendArray]:
    """The stored items of the lowest ranks beside the best new ones.

    Args:
        ops: the backend.
        draft: of the buffer.
        keys: int32 [B], the ranks of new items.
        best: int32 [n], positions of the highest of these, the best first.

    Returns:
        The slots of the lowest stored ranks in ascending order, these ranks, and the new ones; int32 [n] each.
    """
    slots, old = min_tree.lowest(ops, draft.auxiliary[RANK], draft.plan.capacity, best.shape[0])
    return slots, old, ops.take(keys, best)
