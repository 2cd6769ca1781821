"""Where a pass without replacement is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from functional_rb import deck as decks
from functional_rb import ring, soundness
from functional_rb.deck import Deck
from functional_rb.kept import KeptArray
from functional_rb.ops import Array, Ops

if TYPE_CHECKING:
    from functional_rb.buffer_spec import BufferSpec
    from functional_rb.draft import Draft
    from functional_rb.soundness import Found

ORDER, PLACE = "deck_order", "deck_place"
"""The arrays of a `Deck`."""
REMAINING, PASSES = "remaining", "passes"
"""Counters int32 [1]: how many are still to be drawn in this pass, and how many passes are done."""


def kept_deck(spec: BufferSpec) -> dict[str, KeptArray]:
    """The arrays of a deck of all slots."""
    return {ORDER: KeptArray((spec.capacity,)), PLACE: KeptArray((spec.capacity,))}


class PassKeeper(NamedTuple):
    """A deck and its numbers.

    Attributes:
        deck: of the slots that can be drawn.
        remaining: int32 scalar, how many are still to be drawn in this pass.
        count: int32 scalar, how many there are.
    """

    deck: Deck
    remaining: Array
    count: Array

    @classmethod
    def of(cls, draft: Draft, count: Array) -> PassKeeper:
        """What a draft keeps."""
        return cls(Deck(draft.kept[ORDER], draft.kept[PLACE]), draft.counters.more[REMAINING][0], count)

    def keep(self, ops: Ops, draft: Draft, passes: Array | None = None) -> None:
        """Put it back into a draft. A pass of which all that was left has been overwritten is done too."""
        more = draft.counters.more
        if passes is None:
            emptied = (more[REMAINING][0] > 0) & (self.remaining == 0)
            passes = add_passes(ops, more[PASSES], emptied)
        draft.kept[ORDER], draft.kept[PLACE] = self.deck
        draft.count(remaining=self.remaining.reshape(1), passes=passes)

    def chances(self, ops: Ops, slots: Array) -> Array:
        """With which probability the next draw gives slots int32 [n], float32 [n]: of what is left, else of all."""
        left = ops.where(self.remaining > 0, self.remaining, self.count)
        drawable = decks.contains(ops, self.deck, left, slots)
        share = 1.0 / ops.cast(ops.maximum(left, ops.full_like(left, 1)), "float32")
        return ops.cast(drawable, "float32") * share

    def draw(self, ops: Ops, draft: Draft, draws: Array, batch: int, drop_last: bool) -> tuple[Array, Array, Array]:
        """Draw slots from what is left, or from all if that is not enough for a batch that would be given.

        Returns:
            slots int32 [B], live bool [B], and how many were left before, an int32 scalar.
        """
        whole = batch if drop_last else min(batch, 1)  # nothing asked for begins no pass
        left = ops.where(self.remaining < whole, self.count, self.remaining)
        given = ops.where(left < whole, ops.full_like(left, 0), left)
        slots, live, deck, remaining = decks.draw(ops, self.deck, given, draws)
        done = (given > 0) & (remaining < whole)
        # Nothing given leaves the pass as it was.
        remaining = ops.where(given > 0, ops.where(done, ops.full_like(remaining, 0), remaining), self.remaining)
        dropped = (given > 0) & (self.remaining > 0) & (self.remaining < whole)
        passes = add_passes(ops, draft.counters.more[PASSES], done, dropped)
        PassKeeper(deck, remaining, self.count).keep(ops, draft, passes)
        return slots, live, left


def abandon(ops: Ops, draft: Draft) -> None:
    """Nothing is left of a pass under way: it is done."""
    more = draft.counters.more
    passes = add_passes(ops, more[PASSES], more[REMAINING][0] > 0)
    draft.count(remaining=ops.full_like(more[REMAINING], 0), passes=passes)


def problem_of_deck(found: Found) -> str | None:
    """Why a deck and its numbers cannot be of such a buffer; or None."""
    last, left = found.spec.capacity - 1, found.numbers.more[REMAINING]
    for name in (ORDER, PLACE):
        if problem := soundness.problem_of_range(name, found.kept[name], 0, last):
            return problem
    return soundness.problem_of_range(REMAINING, left, 0, found.spec.capacity)


def add_passes(ops: Ops, passes: Array, *done: Array) -> Array:
    """Count passes that are done, given as bool scalars."""
    for one in done:
        passes = ring.saturating_add(ops, passes, ops.cast(one, "int32"))
    return passes
