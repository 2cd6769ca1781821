"""What samplers with priorities share: their numbers, and what a new item gets."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Literal

from functional_rb.core import soundness
from functional_rb.core.strategy import Carried
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers.base import SamplerBase
from functional_rb.samplers.weights import priority_of, stored_value
from functional_rb.structures import ring, row_layout, sum_tree
from functional_rb.structures.duplicates import Batch, single

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.soundness import Found
    from functional_rb.structures.ring import Removal, Write


@dataclasses.dataclass(frozen=True)
class Priorities(SamplerBase):
    """Items with priorities; see `Prioritized` for the fields."""

    alpha: float = 0.6
    beta: float = 0.4
    new_priority: Literal["live", "ever"] = "live"

    def __post_init__(self) -> None:
        """Check what can be known before any array exists."""
        kind = type(self).__name__
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and math.isfinite(value) and 0 <= value <= 100):
                raise ValueError(f"{kind}: expected {name} as a number in [0, 100], got {value!r}")
            object.__setattr__(self, name, float(value))
        if self.new_priority not in ("live", "ever"):
            raise ValueError(f"{kind}: expected new_priority 'live' or 'ever', got {self.new_priority!r}")

    @property
    def has_priorities(self) -> bool:
        """Items have priorities."""
        return True

    @property
    def why_nothing(self) -> str:
        """All priorities are zero."""
        return "has a positive priority; update some first"

    def tree_rows(self, capacity: int) -> int:
        """The sum tree."""
        return sum_tree.geometry(capacity).rows

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        """Whether so many are stored and some has a positive priority."""
        return (draft.size(ops) >= n) & (sum_tree.total(draft.known_tree) > 0)

    def new_value(self, ops: Ops, draft: Draft) -> Array:
        """What an item without a priority gets, float32 scalar, after alpha."""
        if self.new_priority == "ever":
            value = ops.bitcast(draft.counters.peak.reshape(1), "float32")[0]
        else:
            value = self.largest_live(ops, draft)
        return ops.where(value > 0, value, ops.full_like(value, 1))

    def probabilities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        """By the tree."""
        return shares(ops, draft, slots)

    def priorities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        """The priorities of stored items, before alpha, float32 [n] for slots int32 [n]."""
        return priority_of(ops, self.values(ops, draft, slots), self.alpha)

    def values(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        """The priorities of stored items to the power alpha, as they are kept, float32 [n] for slots int32 [n]."""
        return sum_tree.get_leaves(ops, draft.known_tree, slots)

    def problem(self, found: Found) -> str | None:
        """What is not stored cannot be drawn."""
        return soundness.problem_of_weights(found)

    def largest_live(self, ops: Ops, draft: Draft) -> Array:
        """The largest value among stored items, float32 scalar."""
        return sum_tree.largest(ops, draft.known_tree)

    def initial_values(self, ops: Ops, draft: Draft, write: Write, priorities: Array | None) -> Array:
        """The values of the items that go to `write.slots`, float32 [n]; bad priorities count and get the default."""
        default = self.new_value(ops, draft)
        default = default + ops.cast(ops.full_like(write.slots, 0), "float32")
        if priorities is None:
            return default
        chosen = row_layout.pick(ops, priorities, write.source, write.slots.shape[0])
        values, good = stored_value(ops, chosen, self.alpha)
        bad = ~good if write.live is None else ~good & write.live
        if not draft.plan.in_order:  # several rows may stand for one slot
            bad = bad & single(ops, write.slots)
        reject(ops, draft, bad)
        return ops.where(good, values, default)

    def carried(self, ops: Ops, draft: Draft, slots: Array) -> Carried:
        """Their priorities."""
        return Carried(self.values(ops, draft, slots))

    def carried_values(self, ops: Ops, draft: Draft, write: Write, carried: Carried) -> Array:
        """The values of items that come from another buffer, float32 [n]; those without one get what new items do."""
        if carried.values is None:
            return self.initial_values(ops, draft, write, None)
        n = write.slots.shape[0]
        values = row_layout.pick(ops, carried.values, write.source, n)
        if carried.known is None:
            return values
        known = row_layout.pick(ops, carried.known, write.source, n)
        there = known if write.live is None else known & write.live
        largest = ops.cummax(ops.where(there, values, ops.full_like(values, 0)))[-1]
        if self.new_priority == "ever":
            largest = ops.bitcast(draft.counters.peak.reshape(1), "float32")[0]
        return ops.where(known, values, ops.where(largest > 0, largest, ops.full_like(largest, 1)))

    def new_values(self, ops: Ops, draft: Draft, batch: Batch, priorities: Array) -> tuple[Array, Array]:
        """What an update sets, float32 [B], equal where slots are, and where it sets anything, bool [B]."""
        values, good = stored_value(ops, priorities, self.alpha)
        reject(ops, draft, batch.live & ~good)
        winner, replaced = batch.order.winners(ops, batch.live & good)
        raise_peak(ops, draft, values, batch.live & good)
        return ops.take(values, winner), replaced


def reject(ops: Ops, draft: Draft, bad: Array) -> None:
    """Count bad priorities, marked in bool [n]."""
    count = ring.saturating_add(ops, draft.counters.rejected, ops.count(bad))
    draft.counters = draft.counters.replace(rejected=count)


def raise_peak(ops: Ops, draft: Draft, values: Array, live: Array | None) -> None:
    """Remember the largest value ever stored by its bits: positive floats are ordered as their bits are."""
    bits = ops.bitcast(values[:, None], "int32")[:, 0]
    if live is not None:
        bits = ops.where(live, bits, ops.full_like(bits, 0))
    draft.counters = draft.counters.replace(peak=ops.maximum(draft.counters.peak, ops.cummax(bits)[-1]))


@replaceable
def clear_leaves(ops: Ops, draft: Draft, removal: Removal) -> None:
    """Let leaves of the tree be zero where items go."""
    nothing = ops.cast(ops.full_like(removal.slots, 0), "float32")
    write_leaves(ops, draft, removal.slots, nothing, removal.gone)


def shares(ops: Ops, draft: Draft, slots: Array) -> Array:
    """The share that leaves of the tree have in its sum, float32 [n] for slots int32 [n]."""
    total = sum_tree.total(draft.known_tree)
    scale = 1.0 / ops.where(total > 0, total, ops.full_like(total, 1))
    return sum_tree.get_leaves(ops, draft.known_tree, slots) * scale


def write_leaves(
    ops: Ops, draft: Draft, slots: Array, values: Array, live: Array | None, consecutive: bool = False
) -> None:
    """Set leaves of the tree; where not live, write back what is there."""
    tree = draft.known_tree
    if live is not None:
        values = ops.where(live, values, sum_tree.get_leaves(ops, tree, slots))
    draft.tree = sum_tree.set_leaves(ops, tree, draft.plan.capacity, slots, values, consecutive)
