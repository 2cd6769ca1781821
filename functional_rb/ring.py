"""The ring of slots: which slot is written next, and which item a handle names.

Items are numbered as they are added. A handle is that serial number modulo `modulus(capacity)`, the largest multiple of
the capacity below 2^31, so that `slot = handle % capacity`, and an item's age is its distance from the cursor.
"""

from __future__ import annotations

from typing import NamedTuple

from functional_rb.ops import Array, Ops

INT32_MAX = 2**31 - 1


class Counters(NamedTuple):
    """What a state counts: int32 scalars, kept together as one vector int32 [5].

    Attributes:
        cursor: the handle that the next item will get.
        size: how many items are stored.
        rejected: bad priorities refused so far (stays at 2^31 - 1).
        stale: handles of overwritten items given to `update` so far (likewise).
        peak: the bits of the largest float32 priority ever stored, after alpha.
    """

    cursor: Array
    size: Array
    rejected: Array
    stale: Array
    peak: Array


class Write(NamedTuple):
    """Where a batch goes.

    Attributes:
        slots: int32 [n], distinct, consecutive around the ring.
        source: int32 [n], the row of the batch that goes to each slot; None if row k goes to slot k.
        live: bool [n], whether the slot is written at all; None if all are.
        written: int32 scalar, how many items are added, those overwritten within the batch included.
    """

    slots: Array
    source: Array | None
    live: Array | None
    written: Array


def modulus(capacity: int) -> int:
    """Handles lie below this number.

    Example:
        >>> modulus(1_000_003) % 1_000_003, modulus(2) == 2**31 - 2
        (0, True)
    """
    return INT32_MAX // capacity * capacity


def advance(ops: Ops, handle: Array, by: Array | int, capacity: int) -> Array:
    """`(handle + by) % modulus` for 0 <= by < modulus, without overflow."""
    room = modulus(capacity) - by
    return ops.where(handle >= room, handle - room, handle + by)


def read(counters: Array) -> Counters:
    """The counters by name."""
    return Counters(*(counters[..., k] for k in range(len(Counters._fields))))


def saturating_add(ops: Ops, count: Array, more: Array) -> Array:
    """Counters stay at their largest value rather than wrap."""
    return count + ops.minimum(more, INT32_MAX - count)


def plan_write(ops: Ops, counters: Counters, batch: int, capacity: int, mask: Array | None) -> Write:
    """Choose the slots for a batch: the next ones, for its last `capacity` rows, or the last marked ones.

    With a mask the marked rows are moved together first, so that the slots are consecutive and distinct, and a row
    that is not needed can write back what its slot holds.
    """
    n = min(batch, capacity)
    step = ops.arange(n, like=counters.cursor)
    if mask is None:
        first = advance(ops, counters.cursor, batch - n, capacity)
        return Write(advance(ops, first, step, capacity) % capacity, None, None, ops.full_like(counters.size, batch))
    ranks = ops.cumsum(ops.cast(mask, "int32"))
    written = ranks[-1]
    skipped = ops.maximum(written - n, ops.full_like(written, 0))
    source = ops.searchsorted(ranks, skipped + step + 1, "left")
    first = advance(ops, counters.cursor, skipped, capacity)
    slots = advance(ops, first, step, capacity) % capacity
    return Write(slots, ops.minimum(source, ops.full_like(source, batch - 1)), skipped + step < written, written)


def locate(ops: Ops, counters: Counters, handles: Array, capacity: int) -> tuple[Array, Array]:
    """The slot of each handle, and whether the item it names is still there.

    Returns:
        slots int32 [B], in bounds whatever the handle is, and live bool [B].
    """
    limit = modulus(capacity)
    known = (handles >= 0) & (handles < limit)
    handles = ops.where(known, handles, ops.full_like(handles, 0))
    behind = counters.cursor - 1 - handles
    age = ops.where(behind < 0, behind + limit, behind)
    return handles % capacity, known & (age < counters.size)


def handle_at(ops: Ops, counters: Counters, position: Array, capacity: int) -> Array:
    """The handles of stored items by their position, 0 being the oldest."""
    first = counters.cursor - counters.size
    first = ops.where(first < 0, first + modulus(capacity), first)
    return advance(ops, first, position, capacity)


def handle_of_slot(ops: Ops, counters: Counters, slots: Array, capacity: int) -> Array:
    """The handles of the items that lie in given slots now."""
    back = counters.cursor % capacity - 1 - slots
    back = ops.where(back < 0, back + capacity, back) + 1
    handle = counters.cursor - back
    return ops.where(handle < 0, handle + modulus(capacity), handle)
