"""How far an epoch, once through all items without replacement, has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from functional_rb.core import soundness
from functional_rb.core.plan import AuxiliaryArray
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers.base import even_chance
from functional_rb.structures import ring
from functional_rb.structures import sparse_set as sparse_sets
from functional_rb.structures.sparse_set import SparseSet

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found

# The arrays of a `SparseSet`.
ORDER, PLACE = "order", "place"
# Counters int32 [1]: how many are still to be drawn in this epoch, and how many epochs are done.
REMAINING, EPOCHS_DONE = "remaining", "epochs_done"


def sparse_set_arrays(plan: Plan) -> dict[str, AuxiliaryArray]:
    """The arrays of a sparse set of all slots."""
    return {ORDER: AuxiliaryArray((plan.capacity,)), PLACE: AuxiliaryArray((plan.capacity,))}


class EpochKeeper(NamedTuple):
    """A sparse set and its numbers.

    Attributes:
        sparse_set: of the slots that can be drawn.
        remaining: int32 scalar, how many are still to be drawn in this epoch.
        members: int32 scalar, how many slots the set has.
    """

    sparse_set: SparseSet
    remaining: Array
    members: Array

    @classmethod
    def of(cls, draft: Draft, count: Array) -> EpochKeeper:
        """The sparse set that a draft keeps, and its numbers."""
        return cls(SparseSet(draft.auxiliary[ORDER], draft.auxiliary[PLACE]), draft.counters.more[REMAINING][0], count)

    def keep(self, ops: Ops, draft: Draft, epochs_done: Array | None = None) -> None:
        """Put it back into a draft. An epoch of which all that was left has been overwritten is done too."""
        more = draft.counters.more
        if epochs_done is None:
            emptied = (more[REMAINING][0] > 0) & (self.remaining == 0)
            epochs_done = add_epochs(ops, more[EPOCHS_DONE], emptied)
        draft.auxiliary[ORDER], draft.auxiliary[PLACE] = self.sparse_set
        draft.count(remaining=self.remaining.reshape(1), epochs_done=epochs_done)

    def probabilities(self, ops: Ops, slots: Array) -> Array:
        """The probabilities float32 [n] with which the next draw, of what is left or of all, gives slots int32 [n]."""
        left = ops.where(self.remaining > 0, self.remaining, self.members)
        drawable = sparse_sets.contains(ops, self.sparse_set, left, slots)
        return ops.cast(drawable, "float32") * even_chance(ops, left)

    def draw(self, ops: Ops, draft: Draft, draws: Array, batch: int, drop_last: bool) -> tuple[Array, Array, Array]:
        """Draw slots from what is left, or from all if that is not enough for a batch that would be given.

        Returns:
            slots int32 [B], live bool [B], and how many were left before, an int32 scalar.
        """
        whole: int | Array = batch if drop_last else min(batch, 1)  # nothing asked for begins no epoch
        if draft.wanted is not None:
            whole = draft.wanted if drop_last else ops.minimum(draft.wanted, ops.full_like(self.remaining, 1))
        left = ops.where(self.remaining < whole, self.members, self.remaining)
        available = ops.where(left < whole, ops.full_like(left, 0), left)
        slots, live, sparse_set, remaining = sparse_sets.draw(ops, self.sparse_set, available, draws, draft.wanted)
        done = (available > 0) & (remaining < whole)
        # Where no batch is given, the epoch stays as it was.
        remaining = ops.where(available > 0, ops.where(done, ops.full_like(remaining, 0), remaining), self.remaining)
        dropped = (available > 0) & (self.remaining > 0) & (self.remaining < whole)
        epochs_done = add_epochs(ops, draft.counters.more[EPOCHS_DONE], done, dropped)
        EpochKeeper(sparse_set, remaining, self.members).keep(ops, draft, epochs_done)
        return slots, live, left


def abandon(ops: Ops, draft: Draft) -> None:
    """End an epoch under way: nothing is left of it, and it counts as done."""
    more = draft.counters.more
    epochs_done = add_epochs(ops, more[EPOCHS_DONE], more[REMAINING][0] > 0)
    draft.count(remaining=ops.full_like(more[REMAINING], 0), epochs_done=epochs_done)


def problem_of_sparse_set(contents: Found, count: int) -> str | None:
    """Why a sparse set of so many slots, and its numbers, cannot be of such a buffer; or None.

    Each member lies in one position, which its place tells, and stands for a stored item.
    """
    last, left = contents.plan.capacity - 1, contents.numbers.more[REMAINING]
    order, place = contents.auxiliary[ORDER], contents.auxiliary[PLACE]
    for name in (ORDER, PLACE):
        if problem := soundness.problem_of_range(name, contents.auxiliary[name], 0, last):
            return problem
    members = order[:count]
    wrong = np.flatnonzero(place[members] != np.arange(count))
    if wrong.size:
        return f"{ORDER} has slot {members[wrong[0]]} at {wrong[0]}, and {PLACE} {place[members[wrong[0]]]}"
    gone = np.flatnonzero(~soundness.is_stored(contents, members))
    if gone.size:
        return f"{ORDER} has slot {members[gone[0]]}, and no item is stored there"
    return soundness.problem_of_range(REMAINING, left, 0, count)


def add_epochs(ops: Ops, epochs_done: Array, *done: Array) -> Array:
    """The number of epochs done with those counted that have ended now, bool scalars."""
    for one in done:
        epochs_done = ring.saturating_add(ops, epochs_done, ops.cast(one, "int32"))
    return epochs_done
