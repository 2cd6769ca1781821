"""A sparse set of slots: a set that yields each of its members once an epoch, in random order.

A sparse set (Briggs and Torczon: An Efficient Representation for Sparse Sets, 1993): the members lie side by side in
one array, another tells where each one lies. Its first `remaining` positions are still to be drawn in this epoch; those
up to `count` were drawn already, or came since the epoch began, so that `remaining = count` begins the next epoch. Both
numbers, int32 scalars, are the caller's to keep.

Every operation takes O(B log B) for a batch of B, whatever the capacity. Batches come with marks bool [B]: marked slots
are distinct, unmarked entries do nothing and may hold any slot in bounds.
"""

from __future__ import annotations

from typing import NamedTuple

from functional_rb.ops import random_bits, scalars
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops


class SparseSet(NamedTuple):
    """Where the members lie. Both arrays begin as zeros; positions from `count` on mean nothing."""

    order: Array  # int32 [capacity], the slot at each position
    place: Array  # int32 [capacity], the position of each slot, if that slot is a member


def contains(ops: Ops, sparse_set: SparseSet, count: Array, slots: Array) -> Array:
    """Which of slots int32 [B] are members, bool [B]."""
    positions = ops.take(sparse_set.place, slots)
    # Both arrays have to agree: the place of a slot that is no member may hold anything.
    return (positions < count) & (ops.take(sparse_set.order, positions) == slots)


@replaceable
def members(ops: Ops, sparse_set: SparseSet, count: Array, slots: Array, marked: Array) -> Array:
    """Which of the marked slots are members, bool [B]."""
    return marked & contains(ops, sparse_set, count, slots)


def insert(ops: Ops, sparse_set: SparseSet, count: Array, slots: Array, marked: Array) -> tuple[SparseSet, Array]:
    """Add members, to be drawn from the next epoch on.

    Args:
        sparse_set: the members so far.
        count: int32 scalar, how many they are.
        slots: int32 [B], none of the marked ones a member.
        marked: bool [B].

    Returns:
        The sparse set and its count.
    """
    positions, slots, count = appended(ops, sparse_set, count, slots, marked)
    return _put(ops, sparse_set, positions, slots), count


@replaceable
def appended(ops: Ops, sparse_set: SparseSet, count: Array, slots: Array, marked: Array) -> tuple[Array, Array, Array]:
    """Where which slots lie once the marked ones have been added, int32 [B] and [B], and how many there are then."""
    ranks = ops.cumsum(ops.cast(marked, "int32"))
    # The rank of the first marked one is 1, so positions begin at `count`.
    return *_only(ops, sparse_set, scalars.plus(ops, count, -1) + ranks, slots, marked), count + ops.count(marked)


def remove(
    ops: Ops, sparse_set: SparseSet, remaining: Array, count: Array, slots: Array, marked: Array
) -> tuple[SparseSet, Array, Array]:
    """Take members out, drawn or not.

    Args:
        sparse_set: the members so far.
        remaining: int32 scalar, how many are still to be drawn.
        count: int32 scalar, how many there are.
        slots: int32 [B]; those that are no members are ignored.
        marked: bool [B].

    Returns:
        The sparse set, how many remain to be drawn, and its count.
    """
    leaving = members(ops, sparse_set, count, slots, marked)
    # First to the end of what is still to be drawn, so that this stays in front; then to the end of everything.
    positions = ops.take(sparse_set.place, slots)
    sparse_set, remaining = _move_back(ops, sparse_set, remaining, positions, leaving & (positions < remaining))
    sparse_set, count = _move_back(ops, sparse_set, count, ops.take(sparse_set.place, slots), leaving)
    return sparse_set, remaining, count


def rename(ops: Ops, sparse_set: SparseSet, old: Array, new: Array, marked: Array) -> SparseSet:
    """Let new members take the positions of old ones.

    Args:
        sparse_set: the members so far.
        old: int32 [B], those marked are members.
        new: int32 [B], those marked are distinct too, and either no members or themselves among the marked old ones.
        marked: bool [B].

    Returns:
        The sparse set, as large as before.
    """
    return _put(ops, sparse_set, *_only(ops, sparse_set, ops.take(sparse_set.place, old), new, marked))


def draw(
    ops: Ops, sparse_set: SparseSet, remaining: Array, draws: Array, wanted: Array | None = None
) -> tuple[Array, Array, SparseSet, Array]:
    """Draw from what remains, without replacement: every ordered choice is equally likely.

    Args:
        sparse_set: the members.
        remaining: int32 scalar, how many are still to be drawn in this epoch.
        draws: int32 [B, 2], uniform in [0, 2^31).
        wanted: int32 scalar, how many are to be drawn, at most B; None for B.

    Returns:
        slots int32 [B], of which the first min(wanted, remaining) are drawn and the others just in bounds; live bool
        [B], which are drawn; the sparse set, and how many remain.
    """
    live = ops.arange(draws.shape[0], like=draws) < (remaining if wanted is None else ops.minimum(remaining, wanted))
    positions = distinct(ops, draws, remaining)
    # Beyond what is left the numbers mean nothing, and might lie out of bounds.
    positions = ops.where(live, positions, ops.full_like(positions, 0))
    slots = ops.take(sparse_set.order, positions)
    sparse_set, remaining = _move_back(ops, sparse_set, remaining, positions, live)
    return slots, live, sparse_set, remaining


@replaceable
def distinct(ops: Ops, draws: Array, n: Array) -> Array:
    """Distinct numbers below n, int32 [B] for draws int32 [B, 2]; only the first n of them mean anything.

    A Fisher-Yates shuffle from the back, of an array x that holds 0 ... n - 1 but does not exist: step i takes
    x[j] for a random j < n - i, then moves the last of the n - i there, x[n - 1 - i]. So x[p] is p, unless a step
    before took x[p]; then it is what the latest such step k moved there, x[n - 1 - k] as it was then, and so on.
    """
    batch = draws.shape[0]
    steps = ops.arange(batch, like=draws)
    chosen = random_bits.below(ops, draws, ops.maximum(n - steps, ops.full_like(steps, 0)))
    order = ops.argsort(chosen)
    ascending = ops.take(chosen, order)
    # What step i moved had been moved there by step source[i], or it is n - 1 - i if source[i] = i. The last of all
    # steps that took x[n - 1 - i] will do: after step i none can. If it is step i itself, nobody asks what i moved.
    end = scalars.plus(ops, n, -1)
    last = end - steps
    at = ops.searchsorted(ascending, last, "right") - 1
    at = ops.maximum(at, ops.full_like(at, 0))
    source = ops.where(ops.take(ascending, at) == last, ops.take(order, at), steps)
    # Chains of moves are followed by doubling: after k rounds each link spans 2^k of them, and none is longer than the
    # batch.
    for _ in range((batch - 1).bit_length()):
        source = ops.take(source, source)
    moved = end - source
    # Sorting is stable: of the steps that took the same place, the one before in that order is the latest before.
    before = ops.concat([order[:1], order[:-1]], 0)
    again = (ascending == ops.take(chosen, before)) & (steps > 0)
    return ops.set_at(ops.full_like(order, 0), order, ops.where(again, ops.take(moved, before), ascending))


def _move_back(
    ops: Ops, sparse_set: SparseSet, boundary: Array, positions: Array, marked: Array
) -> tuple[SparseSet, Array]:
    """Rearrange positions [0, boundary) so that marked ones among them, int32 [B] and distinct, come last.

    Returns:
        The sparse set, and where the marked slots begin now. No more than B others change their positions.
    """
    positions, slots, boundary = exchanges(ops, sparse_set, boundary, positions, marked)
    return _put(ops, sparse_set, positions, slots), boundary


@replaceable
def exchanges(
    ops: Ops, sparse_set: SparseSet, boundary: Array, positions: Array, marked: Array
) -> tuple[Array, Array, Array]:
    """Where which slots lie once the marked positions come last of [0, boundary): int32 [2 B] and [2 B].

    Returns:
        Positions and slots, and where the marked ones begin.
    """
    boundary = boundary - ops.count(marked)
    # Unmarked slots behind the new boundary fill the holes that marked ones leave before it: as many of each.
    steps = ops.arange(positions.shape[0] + 1, like=positions)
    stays = marked & (positions >= boundary)
    hole = marked & (positions < boundary)
    behind = ops.where(stays, positions - boundary, ops.full_like(positions, positions.shape[0]))
    done = ops.cast(steps >= ops.count(marked), "int32")  # one more than the batch: there the others write
    done = ops.set_at(done, behind, ops.full_like(behind, 1))
    match = ops.searchsorted(ops.cumsum(1 - done), ops.cumsum(ops.cast(hole, "int32")), "left")
    filler = ops.where(hole, boundary + match, ops.full_like(positions, 0))
    slots = ops.concat([ops.take(sparse_set.order, filler), ops.take(sparse_set.order, positions)], 0)
    both = _only(ops, sparse_set, ops.concat([positions, filler], 0), slots, ops.concat([hole, hole], 0))
    return *both, boundary


# Positions and slots int32 [n] that say the same as the marked ones alone.
#
# A position that is not marked repeats what the last marked one says. If none is marked, each says that the slot at
# position 0 lies there, which is so unless the sparse set is empty, and then it means nothing.
def _only(ops: Ops, sparse_set: SparseSet, positions: Array, slots: Array, marked: Array) -> tuple[Array, Array]:
    steps = ops.arange(marked.shape[0], like=positions)
    last = ops.cummax(ops.where(marked, steps, ops.full_like(steps, -1)))[-1:]
    at = ops.maximum(last, ops.full_like(last, 0))
    # XLA copies an array that is written while something else, to its knowledge, might still have to read it. So each
    # write depends on the one before: this zero is read from what that has written.
    zero = ops.minimum(sparse_set.place[:1], ops.full_like(at, 0))
    position = ops.where(last < 0, zero, ops.take(positions, at))
    slot = ops.where(last < 0, sparse_set.order[:1], ops.take(slots, at))
    return ops.where(marked, positions, position), ops.where(marked, slots, slot)


# Let slots int32 [n] lie at positions int32 [n]; equal positions come with equal slots.
def _put(ops: Ops, sparse_set: SparseSet, positions: Array, slots: Array) -> SparseSet:
    order = ops.set_at(sparse_set.order, positions, slots)
    # The slots as that write has left them, for the same reason.
    return SparseSet(order, ops.set_at(sparse_set.place, ops.take(order, positions), positions))
