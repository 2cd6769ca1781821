"""Each stored item at most once an epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from functional_rb.core import soundness
from functional_rb.core.plan import AuxiliaryArray
from functional_rb.core.sample import Items, MaskedSample
from functional_rb.core.strategy import Selection, need_order
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers.base import SamplerBase, check_bools
from functional_rb.samplers.epochs import (
    EPOCHS_DONE,
    REMAINING,
    EpochKeeper,
    abandon,
    add_epochs,
    problem_of_sparse_set,
    sparse_set_arrays,
)
from functional_rb.samplers.in_order import in_turn
from functional_rb.structures import ring
from functional_rb.structures import sparse_set as sparse_sets
from functional_rb.structures.duplicates import single
from functional_rb.structures.ring import RingState

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found
    from functional_rb.structures.ring import Removal, Write

# Counters int32 [lanes] without shuffling: where the epoch goes on, and where it ends, as sequence numbers.
NEXT, END = "next", "end"


@dataclasses.dataclass(frozen=True)
class WithoutReplacement(SamplerBase):
    """Each stored item at most once an epoch. Items added during an epoch join the next one, and do not restart it.

    An epoch begins with the first draw after the one before is done, with all that is stored then; what is overwritten
    before its turn drops out. The last batch of an epoch may be short: `sample.mask` marks what is real, and
    `frb.iterate(..., epochs=n)` gives it without padding. `rb.counts` tells how many epochs are done. All weights are
    1; the probability is that of a draw among those left, 1 without shuffling.

    Attributes:
        drop_last: give no short batches: an epoch ends when fewer items than a batch are left.
        shuffle: draw in random order; else lane by lane, each from the oldest on (the key is not used).

    Raises:
        ValueError: without shuffling, if the writer does not keep items in order.

    Example:
        >>> WithoutReplacement(shuffle=False)
        WithoutReplacement(drop_last=False, shuffle=False)
    """

    drop_last: bool = False
    shuffle: bool = True

    if TYPE_CHECKING:

        def _gives(self, items: Items, /) -> MaskedSample[Items]: ...

    def __post_init__(self) -> None:
        check_bools(self, "drop_last", "shuffle")

    @property
    def remembers(self) -> bool:
        return True

    @property
    def heeds_wanted(self) -> bool:
        # What does not count is not drawn.
        return True

    @property
    def why_nothing(self) -> str:
        return "make a full batch, and drop_last drops smaller ones; add more, or draw fewer"

    def check(self, plan: Plan) -> None:
        if not self.shuffle:
            need_order(plan, type(self).__name__)

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        return sparse_set_arrays(plan) if self.shuffle else {}

    def counters(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        if self.shuffle:
            return ((EPOCHS_DONE, 1), (REMAINING, 1))
        return ((EPOCHS_DONE, 1), (NEXT, plan.ring.lanes), (END, plan.ring.lanes))

    def draw_shape(self, plan: Plan, batch: int) -> tuple[int, int]:
        # Two words for each shuffled item.
        return batch, 2 if self.shuffle else 0

    def added(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], priorities: Array | None) -> None:
        # The new items are in the sparse set, but not in this epoch.
        if not self.shuffle:
            self._note_emptied(ops, draft, write.after)
            return
        keeper = EpochKeeper.of(draft, draft.size(ops))
        # All of them; but if XLA knew that, it would drop what keeps the writes in order, and copy the sparse set.
        marked = write.slots >= 0 if write.live is None else write.live
        if not draft.plan.in_order:  # several rows may stand for one slot
            marked = marked & single(ops, write.slots)
        sparse_set, remaining, count = sparse_sets.remove(
            ops, keeper.sparse_set, keeper.remaining, keeper.members, write.slots, marked
        )
        sparse_set, count = sparse_sets.insert(ops, sparse_set, count, write.slots, marked)
        EpochKeeper(sparse_set, remaining, count).keep(ops, draft)

    def removed(self, ops: Ops, draft: Draft, removal: Removal) -> None:
        # What is gone leaves the sparse set, drawn or not.
        if not self.shuffle:
            self._note_emptied(ops, draft, removal.after)
            return
        keeper = EpochKeeper.of(draft, draft.size(ops))
        EpochKeeper(*sparse_sets.remove(ops, *keeper, removal.slots, removal.gone)).keep(ops, draft)

    def cleared(self, ops: Ops, draft: Draft) -> None:
        # An epoch under way is done.
        if self.shuffle:
            abandon(ops, draft)
            return
        ends = draft.counters.ends
        self._note_emptied(ops, draft, RingState(ends.cursors, ops.full_like(ends.sizes, 0)))

    def problem(self, contents: Found) -> str | None:
        # The sparse set is one of slots, and an epoch goes over sequence numbers.
        if self.shuffle:
            return problem_of_sparse_set(contents, int(np.sum(contents.numbers.ends.sizes)))
        places = np.concatenate([contents.numbers.more[NEXT], contents.numbers.more[END]])
        return soundness.problem_of_range("the epoch", places, 0, contents.plan.ring.limit - 1)

    # An epoch of which all that was left goes now is done.
    def _note_emptied(self, ops: Ops, draft: Draft, ends: RingState) -> None:
        more, limit = draft.counters.more, draft.plan.ring.limit
        before = _left(ops, draft.counters.ends, more[NEXT], more[END], limit)[1]
        after = _left(ops, ends, more[NEXT], more[END], limit)[1]
        emptied = (ops.cumsum(before)[-1] > 0) & (ops.cumsum(after)[-1] == 0)
        draft.count(epochs_done=add_epochs(ops, more[EPOCHS_DONE], emptied))

    def draw(self, ops: Ops, draft: Draft, draws: Array, beta: Array, batch: int) -> tuple[Array, Selection]:
        # Draw from what is left, or from all if that is nothing.
        if self.shuffle:
            keeper = EpochKeeper.of(draft, draft.size(ops))
            slots, live, left = keeper.draw(ops, draft, draws, batch, self.drop_last)
            return slots, once(ops, draft.handles_of(ops, slots), live, left)
        slots, handles, live = self._next(ops, draft, batch)
        return slots, in_turn(ops, handles, live)

    # The slots and handles of the next items in order, and whether they are real.
    def _next(self, ops: Ops, draft: Draft, batch: int) -> tuple[Array, Array, Array]:
        ends, limit, more = draft.counters.ends, draft.plan.ring.limit, draft.counters.more
        begin = RingState(ring.retreat(ops, ends.cursors, ends.sizes, limit), ends.cursors)
        first, left = _left(ops, ends, more[NEXT], more[END], limit)
        wanted = batch if draft.wanted is None else draft.wanted
        whole = wanted if self.drop_last else 1
        before = ops.cumsum(left)[-1]
        fresh = before < whole
        first = ops.where(fresh, begin.cursors, first)
        end = ops.where(fresh, ends.cursors, more[END])
        left = ops.where(fresh, ends.sizes, left)
        total = ops.cumsum(left)[-1]
        place = ops.arange(batch, like=left)
        live = (place < total) & (total >= whole) & (place < wanted)
        lane, position = ring.lane_at(ops, left, ops.where(live, place, ops.full_like(place, 0)))
        sequence_number = ring.advance(ops, ring.of_lane(ops, first, lane), position, limit)
        # Each lane goes on behind its last item drawn.
        taken = ops.count(live)
        ahead = ops.minimum(ops.maximum(taken - (ops.cumsum(left) - left), ops.full_like(left, 0)), left)
        any_drawn = taken > 0
        done = any_drawn & (total - taken < whole)
        following = ops.where(done, end, ring.advance(ops, first, ahead, limit))
        draft.count(
            # Where nothing is drawn, the epoch stays as it was.
            next=ops.where(any_drawn, following, more[NEXT]),
            end=ops.where(any_drawn, end, more[END]),
            epochs_done=add_epochs(ops, more[EPOCHS_DONE], done, any_drawn & fresh & (before > 0)),
        )
        slots = ring.slot_of(draft.plan.ring, lane, sequence_number)
        return slots, ring.handle_of(draft.plan.ring, lane, sequence_number), live

    def probabilities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        # What is left of the epoch may come, or what the next one begins with.
        if self.shuffle:
            return EpochKeeper.of(draft, draft.size(ops)).probabilities(ops, slots)
        first, _, live = self._next(ops, dataclasses.replace(draft), 1)
        return ops.cast((slots == first) & live, "float32")

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        return draft.size(ops) >= n


# Each lane's next item of the epoch that is still stored, and how many of them are left.
def _left(ops: Ops, ends: RingState, following: Array, end: Array, limit: int) -> tuple[Array, Array]:
    added = ring.retreat(ops, ends.cursors, end, limit)
    back = ops.minimum(ring.retreat(ops, ends.cursors, following, limit), ends.sizes)
    left = ops.maximum(back - added, ops.full_like(back, 0))
    return ring.retreat(ops, ends.cursors, back, limit), left


def once(ops: Ops, handles: Array, live: Array, left: Array) -> Selection:
    """The selection of draws without replacement: the k-th has the probability 1 / (left - k), from 0 on."""
    one = ops.cast(live, "float32")
    count = left - ops.arange(live.shape[0], like=handles)
    chance = ops.divide(one, ops.cast(ops.maximum(count, ops.full_like(count, 1)), "float32"))
    return Selection(ops.where(live, handles, ops.full_like(handles, -1)), one, chance, live)
