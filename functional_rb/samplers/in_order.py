"""Items in the order of their adding, from either end."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from functional_rb.core.sample import Items, MaskedSample
from functional_rb.core.strategy import Selection, need_order
from functional_rb.ops import scalars
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers import draw_limits
from functional_rb.samplers.base import need_one_lane
from functional_rb.samplers.draw_limits import LimitedSampler
from functional_rb.structures import order_statistics, ring, sum_tree

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan


@dataclasses.dataclass(frozen=True)
class InOrder(LimitedSampler):
    """The oldest items, the oldest first, or the newest, the newest first; the key is not used.

    Without a limit every call gives the same ones until they are overwritten. With `max_times_sampled=1` each item
    is given once, with m it comes m times in a row; what is not there is masked. All weights and probabilities are 1.

    Attributes:
        max_times_sampled: how often an item may be drawn, None for no limit.
        newest_first: begin with the newest item (last in, first out), not with the oldest (first in, first out).

    Raises:
        ValueError: if the limit is not positive, for a buffer with lanes, or if the writer does not keep items in
            order.

    Example:
        >>> InOrder(max_times_sampled=1)
        InOrder(max_times_sampled=1, newest_first=False)
    """

    newest_first: bool = False

    if TYPE_CHECKING:

        def _gives(self, items: Items, /) -> MaskedSample[Items]: ...

    def check(self, plan: Plan) -> None:
        # There is one order, and it is read off a ring.
        need_order(plan, type(self).__name__)
        need_one_lane(
            plan, type(self).__name__, "leave the lanes out, or take windows of each with frb.Queue(length=...)"
        )
        if self.max_times_sampled is not None and plan.capacity > order_statistics.MAX_CAPACITY:
            raise ValueError(
                f"{type(self).__name__}: with max_times_sampled the capacity may be at most "
                f"{order_statistics.MAX_CAPACITY}, "
                f"got {plan.capacity}; use several buffers, or no limit"
            )

    def draw_shape(self, plan: Plan, batch: int) -> tuple[int, int]:
        return batch, 0

    def draw(self, ops: Ops, draft: Draft, draws: Array, beta: Array, batch: int) -> tuple[Array, Selection]:
        # The first ones that may still be drawn.
        slots, live = self._first(ops, draft, batch)
        selection = in_turn(ops, draft.handles_of(ops, slots), live)
        return slots, draw_limits.spend(ops, draft, slots, selection, self.max_times_sampled)

    def probabilities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        # The next one comes, and no other.
        first, live = self._first(ops, draft, 1)
        return ops.cast((slots == first) & live, "float32")

    # The slots of the first ones, and whether there are so many.
    def _first(self, ops: Ops, draft: Draft, batch: int) -> tuple[Array, Array]:
        place = ops.arange(batch, like=draft.counters.ends.sizes)
        if self.max_times_sampled is not None:
            return self._left(ops, draft, place, self.max_times_sampled)
        size = draft.size(ops)
        last = ops.maximum(scalars.plus(ops, size, -1), ops.full_like(size, 0))
        position, lane = self._turned(ops.minimum(place, last), last), ops.full_like(place, 0)
        return ring.item_at(ops, draft.plan.ring, draft.counters.ends, lane, position)[0], place < size

    # The slots of the first draws that are left, and whether there are so many: an item gives several in a row.
    def _left(self, ops: Ops, draft: Draft, place: Array, limit: int) -> tuple[Array, Array]:
        tree, capacity = draft.known_tree, draft.plan.capacity
        count = ops.cast(sum_tree.total(tree), "int32")
        start = draft.counters.ends.cursors[:1] % capacity
        # From the oldest on: the slot after the newest, around the ring.
        first = order_statistics.before(ops, tree, capacity, start)[0]
        last = ops.maximum(scalars.plus(ops, count, -1), ops.full_like(count, 0))
        rank = first + self._turned(ops.minimum(place, last), last)
        rank = ops.where(rank >= count, rank - count, rank)
        slots = order_statistics.select(ops, tree, capacity, ops.minimum(rank, last))
        left = limit - ops.take(draft.auxiliary[draw_limits.TIMES], slots)
        reach = ops.cumsum(ops.where(place < count, left, ops.full_like(left, 0)))
        item = ops.minimum(ops.searchsorted(reach, place, "right"), ops.full_like(place, place.shape[0] - 1))
        return ops.take(slots, item), place < reach[-1:]

    # Positions counted from the end that is drawn first, as positions from the oldest.
    def _turned(self, position: Array, last: Array) -> Array:
        return last - position if self.newest_first else position


def in_turn(ops: Ops, handles: Array, live: Array) -> Selection:
    """The selection of items that are drawn in turn: all weights and probabilities are 1."""
    one = ops.cast(live, "float32")
    return Selection(ops.where(live, handles, ops.full_like(handles, -1)), one, one, live)
