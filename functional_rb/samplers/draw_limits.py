"""How often an item may be drawn (`max_times_sampled`, after Cassirer et al., Reverb, 2021).

A sampler with a limit has a tree whose leaves are zero where the limit is reached, and counts in an array.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from functional_rb.core import soundness
from functional_rb.core.plan import AuxiliaryArray
from functional_rb.core.strategy import Carried, Selection
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers.base import SamplerBase, check_count, even_chance
from functional_rb.samplers.importance import clear_leaves, shares, write_leaves
from functional_rb.structures import row_layout, sum_tree
from functional_rb.structures.duplicates import Duplicates

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found
    from functional_rb.structures.ring import Removal, Write

# int32 [capacity], how often the item in each slot has been drawn.
TIMES = "times"


def check(sampler: object, limit: Any) -> None:
    """Refuse a limit that is no positive integer."""
    if limit is not None:
        check_count(sampler, "max_times_sampled", "a positive int below 2^30, or None for no limit", 2**30 - 1)


def auxiliary(plan: Plan, limit: int | None) -> dict[str, AuxiliaryArray]:
    """The array that counts how often items were drawn, by its name; none without a limit."""
    return {} if limit is None else {TIMES: AuxiliaryArray((plan.capacity,))}


def renew(ops: Ops, draft: Draft, write: Write, limit: int | None) -> None:
    """Note that new items have not been drawn."""
    if limit is None:
        return
    times = draft.auxiliary[TIMES]
    fresh = ops.full_like(write.slots, 0)
    if write.live is not None:
        fresh = ops.where(write.live, fresh, ops.take(times, write.slots))
    draft.auxiliary[TIMES] = ops.set_at(times, write.slots, fresh)


def known(ops: Ops, draft: Draft, slots: Array, limit: int | None) -> tuple[Array | None, Array | None]:
    """How often items in slots int32 [n] were drawn, and which may be drawn again: of the others the tree has 0."""
    if limit is None:
        return None, None
    times = ops.take(draft.auxiliary[TIMES], slots)
    return times, times < limit


def carry(ops: Ops, draft: Draft, write: Write, times: Array | None, limit: int | None) -> None:
    """Take over how often items were drawn, int32 [rows of the batch]; leaves of those at the limit become zero."""
    if limit is None or times is None:
        return
    counts = row_layout.pick(ops, times, write.source, write.slots.shape[0])
    counts = ops.minimum(counts, ops.full_like(counts, limit))
    if write.live is not None:
        counts = ops.where(write.live, counts, ops.take(draft.auxiliary[TIMES], write.slots))
    draft.auxiliary[TIMES] = ops.set_at(draft.auxiliary[TIMES], write.slots, counts)
    leaves = sum_tree.get_leaves(ops, draft.known_tree, write.slots)
    write_leaves(ops, draft, write.slots, ops.where(counts < limit, leaves, ops.full_like(leaves, 0)), write.live)


def silence(ops: Ops, draft: Draft, slots: Array, values: Array, limit: int | None) -> Array:
    """Values for leaves, which stay zero of items that may not be drawn any more."""
    if limit is None:
        return values
    spent = ops.take(draft.auxiliary[TIMES], slots) >= limit
    return ops.where(spent, ops.full_like(values, 0), values)


def spend(ops: Ops, draft: Draft, slots: Array, selection: Selection, limit: int | None) -> Selection:
    """Count draws, where there is a limit; those beyond it within the batch are masked."""
    if limit is None:
        return selection
    if draft.wanted is not None:
        count = ops.arange(slots.shape[0], like=slots) < draft.wanted
        selection = masked(ops, selection, count if selection.mask is None else count & selection.mask)
    return count_draws(ops, draft, slots, selection, limit)


@replaceable
def count_draws(ops: Ops, draft: Draft, slots: Array, selection: Selection, limit: int) -> Selection:
    """Count draws in the draft, and let leaves of the tree be zero that have reached the limit; see `spend`."""
    times, drawable = draft.auxiliary[TIMES], selection.handles >= 0
    before, order = ops.take(times, slots), Duplicates.of(ops, slots)
    rank, count = _occurrences(ops, order, drawable)
    # Draws beyond the limit are masked, and do not count.
    after = ops.minimum(before + count, ops.full_like(before, limit))
    draft.auxiliary[TIMES] = ops.set_at(times, slots, after)
    leaves = sum_tree.get_leaves(ops, draft.known_tree, slots)
    write_leaves(ops, draft, slots, ops.where(after < limit, leaves, ops.full_like(leaves, 0)), None)
    return masked(ops, selection, drawable & (before + rank < limit))


# How many of those before each position of a batch with the same slot count, and how many of all of them do.
def _occurrences(ops: Ops, order: Duplicates, counts: Array) -> tuple[Array, Array]:
    so_far = ops.cumsum(ops.cast(ops.take(counts, order.order), "int32"))
    earlier = so_far - ops.cast(ops.take(counts, order.order), "int32")
    before_run = ops.take(earlier, order.first)
    place = ops.arange(counts.shape[0], like=so_far)
    sorted_at = ops.set_at(ops.full_like(place, 0), order.order, place)
    return ops.take(earlier, sorted_at) - before_run, ops.take(so_far, order.last) - before_run


def masked(ops: Ops, selection: Selection, mask: Array) -> Selection:
    """A selection of which only the marked draws are real."""
    nothing = ops.full_like(selection.weights, 0)
    return selection._replace(
        handles=ops.where(mask, selection.handles, ops.full_like(selection.handles, -1)),
        weights=ops.where(mask, selection.weights, nothing),
        probabilities=ops.where(mask, selection.probabilities, nothing),
        mask=mask,
    )


@dataclasses.dataclass(frozen=True)
class LimitedSampler(SamplerBase):
    """What samplers share that treat all items alike, with or without a limit to how often each may be drawn.

    With a limit there is a tree, whose leaves are 1 for items that may still be drawn.
    """

    max_times_sampled: int | None = None

    def __post_init__(self) -> None:
        check(self, self.max_times_sampled)

    @property
    def remembers(self) -> bool:
        return self.max_times_sampled is not None

    @property
    def heeds_wanted(self) -> bool:
        # `spend` takes back what does not count.
        return True

    @property
    def why_nothing(self) -> str:
        return f"may be drawn again (max_times_sampled={self.max_times_sampled}); add new ones"

    def tree_rows(self, capacity: int) -> int:
        return 0 if self.max_times_sampled is None else sum_tree.geometry(capacity).rows

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        return auxiliary(plan, self.max_times_sampled)

    def added(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], priorities: Array | None) -> None:
        # New items may be drawn.
        if self.max_times_sampled is not None:
            ones = ops.cast(ops.full_like(write.slots, 1), "float32")
            write_leaves(ops, draft, write.slots, ones, write.live)
            renew(ops, draft, write, self.max_times_sampled)

    def carried(self, ops: Ops, draft: Draft, slots: Array) -> Carried:
        return Carried(times=known(ops, draft, slots, self.max_times_sampled)[0])

    def rebuilt(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], carried: Carried) -> None:
        self.added(ops, draft, write, leaves, None)
        carry(ops, draft, write, carried.times, self.max_times_sampled)

    def removed(self, ops: Ops, draft: Draft, removal: Removal) -> None:
        # What is gone may not be drawn.
        if self.max_times_sampled is not None:
            clear_leaves(ops, draft, removal)

    def probabilities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        # All alike, but for those that may not be drawn any more.
        if self.max_times_sampled is not None:
            return shares(ops, draft, slots)
        return even_chance(ops, ops.full_like(slots, 0) + draft.size(ops))

    def problem(self, contents: Found) -> str | None:
        # What is not stored cannot be drawn.
        return soundness.problem_of_weights(contents)

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        enough = draft.size(ops) >= n
        return enough if self.max_times_sampled is None else enough & (sum_tree.total(draft.known_tree) > 0)
