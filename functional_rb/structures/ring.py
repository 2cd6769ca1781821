"""The rings of slots, one for each lane: which slots are written next, and which item a handle names.

A lane's items are numbered as they are added: an item's *sequence number* is that number modulo `Ring.limit`, a
multiple of the lane's length, and its slot is `lane * length + sequence_number % length`. The handle is
`turn * capacity + slot`, where the turn `sequence_number // length` says how often the ring had been filled before: so
`slot = handle % capacity`, and how many items were added since is the distance of its sequence number from the lane's
cursor. With one lane an item's handle is its sequence number.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from functional_rb.ops import scalars
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops

INT32_MAX = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Ring:
    """Slots divided among lanes.

    Example:
        >>> ring = Ring(12, 3)
        >>> ring.length, ring.limit % 4
        (4, 0)
    """

    capacity: int  # of all lanes together
    lanes: int = 1  # how many there are

    @property
    def length(self) -> int:
        """How many slots a lane has: capacity / lanes."""
        return self.capacity // self.lanes

    @property
    def limit(self) -> int:
        """The number that sequence numbers stay below: they begin again at 0, floor(INT32_MAX / capacity) * length."""
        return INT32_MAX // self.capacity * self.length


class RingState(NamedTuple):
    """How far the rings of the lanes have come."""

    cursors: Array  # int32 [lanes], the sequence number that each lane's next item will get
    sizes: Array  # int32 [lanes], how many items each lane holds


class Write(NamedTuple):
    """The slots to which a batch is written."""

    slots: Array  # int32 [n]; equal ones come with the same source
    # int32 [n], the row of the batch that goes to each slot; None if the last n rows do, in their order.
    source: Array | None
    live: Array | None  # bool [n], whether the slot is written at all; None if all are
    written: Array  # int32 [lanes], how many items are added, those overwritten within the batch included
    after: RingState  # where the rings are afterwards
    mask: Array | None = None  # bool [batch], the rows that are added; None if all are


class Removal(NamedTuple):
    """Items that go before they are overwritten, the oldest of each lane."""

    slots: Array  # int32 [m], distinct
    gone: Array  # bool [m], whether the item there goes
    after: RingState  # where the rings are afterwards


def modulus(capacity: int) -> int:
    """Handles lie below this number.

    Example:
        >>> modulus(1_000_003) % 1_000_003, modulus(2) == 2**31 - 2
        (0, True)
    """
    return INT32_MAX // capacity * capacity


def advance(ops: Ops, sequence_number: Array, by: Array | int, limit: int) -> Array:
    """`(sequence_number + by) % limit` for 0 <= by < limit, without overflow."""
    # Compared before it is added, as the sum might pass 2^31.
    room = limit - by
    return ops.where(sequence_number >= room, sequence_number - room, sequence_number + by)


def retreat(ops: Ops, sequence_number: Array, by: Array | int, limit: int) -> Array:
    """`(sequence_number - by) % limit` for 0 <= by <= limit."""
    back = sequence_number - by
    return ops.where(back < 0, back + limit, back)


def around(first: int, count: int, length: int) -> list[tuple[int, int]]:
    """`count` places of a ring from the first on, as (start, stop): two runs where they go round its end.

    Example:
        >>> around(1, 2, 5), around(8, 4, 5), around(8, 6, 5)
        ([(1, 3)], [(3, 5), (0, 2)], [(0, 5)])
    """
    if count >= length:
        return [(0, length)]
    first %= length
    end = first + count
    return [(start, stop) for start, stop in ((first, min(end, length)), (0, end - length)) if start < stop]


def saturating_add(ops: Ops, count: Array, more: Array) -> Array:
    """Counters stay at their largest value rather than wrap."""
    return count + ops.minimum(more, scalars.minus(ops, INT32_MAX, count))


def of_lane(ops: Ops, per_lane: Array, lane: Array) -> Array:
    """What int32 [lanes] holds for given lanes; with a single lane the scalar."""
    # One lane is the usual case, and a gather would be one more operation in every function.
    return per_lane[0] if per_lane.shape[0] == 1 else ops.take(per_lane, lane)


def slot_of(ring: Ring, lane: Array, sequence_number: Array) -> Array:
    """The slot of an item: lane * length + sequence_number mod length."""
    return sequence_number % ring.length if ring.lanes == 1 else lane * ring.length + sequence_number % ring.length


def handle_of(ring: Ring, lane: Array, sequence_number: Array) -> Array:
    """The handle of an item: floor(sequence_number / length) * capacity + its slot."""
    if ring.lanes == 1:
        return sequence_number
    return sequence_number // ring.length * ring.capacity + slot_of(ring, lane, sequence_number)


def plan_write(ops: Ops, ring: Ring, ends: RingState, batch: int, mask: Array | None) -> Write:
    """Choose the slots for a batch.

    Args:
        ring: of the buffer.
        ends: where the lanes are.
        batch: rows; row `t * lanes + e` is step t of lane e.
        mask: bool [batch], which rows are written; None for all.

    Returns:
        For each lane the next slots, for its last `length` rows, or its last marked ones. With a mask the marked rows
        are moved together first, so that the slots are consecutive and distinct, and a row that is not needed can
        write back what its slot holds. Entry `k * lanes + e` is the k-th of lane e.
    """
    return Write(*choose_slots(ops, ring, ends, batch, mask), mask)


@replaceable
def choose_slots(
    ops: Ops, ring: Ring, ends: RingState, batch: int, mask: Array | None
) -> tuple[Array, Array | None, Array | None, Array, RingState]:
    """The fields of `Write`, as `plan_write` describes them, but for the mask."""
    steps = batch // ring.lanes
    # What a longer batch would overwrite itself is left out: so the slots are distinct, and it is of no matter in which
    # order a device writes them.
    n = min(steps, ring.length)
    if mask is None:
        written = ops.full_like(ends.sizes, steps)
        slots = _next_slots(ops, ring, ends.cursors, ops.full_like(ends.sizes, steps - n), n)
        return slots, None, None, written, _after(ops, ring, ends, written)
    source, written = compact(ops, ring.lanes, mask)
    # Marked rows that the batch itself would overwrite.
    skipped = ops.maximum(written - n, ops.full_like(written, 0))
    step = ops.arange(n, like=skipped)
    column = skipped[:, None] + step
    lane = ops.arange(ring.lanes, like=skipped)[:, None]
    chosen = ops.take(source.reshape(-1), (lane * steps + column).reshape(-1)).reshape(ring.lanes, n)
    live = column < written[:, None]
    slots = _next_slots(ops, ring, ends.cursors, skipped, n)
    return slots, by_time(chosen), by_time(live), written, _after(ops, ring, ends, written)


def by_time(of_lanes: Array) -> Array:
    """[lanes, n] as a vector that holds a step of every lane, then the next."""
    return of_lanes.reshape(-1) if of_lanes.shape[0] == 1 else of_lanes.T.reshape(-1)


def by_lane(lanes: int, of_rows: Array) -> Array:
    """A vector [n * lanes] as [lanes, n]: the inverse of `by_time`."""
    return of_rows.reshape(1, -1) if lanes == 1 else of_rows.reshape(-1, lanes).T


def for_slots(ops: Ops, write: Write, of_steps: Array) -> Array:
    """What belongs to the slots of a write, [n]: of [lanes, T] in the order of writing, the last that are written."""
    lanes, steps = of_steps.shape
    n = write.slots.shape[0] // lanes
    if write.mask is None:
        return by_time(of_steps[:, steps - n :])
    skipped = ops.maximum(write.written - n, ops.full_like(write.written, 0))
    column = skipped[:, None] + ops.arange(n, like=skipped)
    place = ops.arange(lanes, like=skipped)[:, None] * steps + column
    return by_time(ops.take(of_steps.reshape(-1), place.reshape(-1)).reshape(lanes, n))


def compact(ops: Ops, lanes: int, mask: Array) -> tuple[Array, Array]:
    """Each lane's marked rows moved together.

    Args:
        lanes: how many there are.
        mask: bool [T * lanes].

    Returns:
        int32 [lanes, T], the rows of the batch, the marked ones first and in order, then any; and int32 [lanes], how
        many are marked.
    """
    marked = ops.cast(by_lane(lanes, mask), "int32")
    steps = marked.shape[1]
    ranks = ops.cumsum(marked)
    lane = ops.arange(lanes, like=ranks)[:, None]
    # One ascending vector of all lanes' ranks, a lane's above those of the one before, so that one search serves all.
    offset = lane * (steps + 1)
    wanted = offset + ops.arange(steps, like=ranks) + 1
    places = ops.searchsorted((ranks + offset).reshape(-1), wanted.reshape(-1), "left").reshape(lanes, steps)
    # A rank that the lane does not reach is found in the next lane, or nowhere. Any row will do then: it is not live.
    column = ops.minimum(places - lane * steps, ops.full_like(places, steps - 1))
    return column * lanes + lane, ranks[:, -1]


def _next_slots(ops: Ops, ring: Ring, cursors: Array, skipped: Array, n: int) -> Array:
    first = advance(ops, cursors, skipped, ring.limit)
    sequence_number = advance(ops, first[:, None], ops.arange(n, like=cursors), ring.limit)
    return by_time(slot_of(ring, ops.arange(ring.lanes, like=cursors)[:, None], sequence_number))


def _after(ops: Ops, ring: Ring, ends: RingState, written: Array) -> RingState:
    sizes = ends.sizes + ops.minimum(written, ring.length - ends.sizes)
    return RingState(advance(ops, ends.cursors, written, ring.limit), sizes)


def locate(ops: Ops, ring: Ring, ends: RingState, handles: Array) -> tuple[Array, Array]:
    """The slot of each handle, and whether the item it names is still there.

    Returns:
        slots int32 [B], in bounds whatever the handle is, and live bool [B].
    """
    # A handle may be anything that a user computes: what names no item is looked up as 0, which is in bounds, and is
    # not live.
    known = (handles >= 0) & (handles < modulus(ring.capacity))
    handles = ops.where(known, handles, ops.full_like(handles, 0))
    slots = handles % ring.capacity
    lane = slots // ring.length
    sequence_number = handles
    if ring.lanes > 1:
        sequence_number = handles // ring.capacity * ring.length + slots % ring.length
    # How many items of the lane came after it. One that was overwritten is at least as old as the lane is long.
    age = retreat(ops, scalars.plus(ops, of_lane(ops, ends.cursors, lane), -1), sequence_number, ring.limit)
    return slots, known & (age < of_lane(ops, ends.sizes, lane))


def lane_at(ops: Ops, sizes: Array, position: Array) -> tuple[Array, Array]:
    """Positions in all lanes, one after the other, as lanes and positions within them.

    Args:
        sizes: int32 [lanes].
        position: int32 [B], below the sum of the sizes.
    """
    if sizes.shape[0] == 1:
        return ops.full_like(position, 0), position
    ends = ops.cumsum(sizes)
    lane = ops.minimum(ops.searchsorted(ends, position, "right"), ops.full_like(position, sizes.shape[0] - 1))
    return lane, position - ops.take(ends - sizes, lane)


def item_at(ops: Ops, ring: Ring, ends: RingState, lane: Array, position: Array) -> tuple[Array, Array]:
    """The slots and handles of stored items, by lane and position, 0 being the lane's oldest."""
    first = retreat(ops, ends.cursors, ends.sizes, ring.limit)
    sequence_number = advance(ops, of_lane(ops, first, lane), position, ring.limit)
    return slot_of(ring, lane, sequence_number), handle_of(ring, lane, sequence_number)


def stored(ops: Ops, ring: Ring, ends: RingState) -> Array:
    """In which slots an item lies, bool [capacity]."""
    oldest = retreat(ops, ends.cursors, ends.sizes, ring.limit) % ring.length
    # How far each slot of a lane is from that of its oldest item.
    away = retreat(ops, ops.arange(ring.length, like=oldest), oldest[:, None], ring.length)
    return (away < ends.sizes[:, None]).reshape(ring.capacity)


def handle_of_slot(ops: Ops, ring: Ring, ends: RingState, slots: Array) -> Array:
    """The handles of the items that lie in given slots now."""
    lane = slots // ring.length
    cursor = of_lane(ops, ends.cursors, lane)
    # How many items of the lane came after the one in the slot, so that 1 more leads back from the cursor to it.
    back = cursor % ring.length - 1 - slots % ring.length
    back = ops.where(back < 0, back + ring.length, back) + 1
    return handle_of(ring, lane, retreat(ops, cursor, back, ring.limit))
