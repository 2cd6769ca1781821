"""The kernel of `ring.choose_slots`, and what kernels know of rings, on raw memory.

Those that are called from outside take addresses, 0 for an array that is not given. Arguments that recur:
    plan: see `descriptor.encode_ring`.
    cursors, sizes: int32 [lanes], see `ring.RingState`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels.cache import compiled, entry_point
from functional_rb.cpu_kernels.descriptor import RING_LANES, RING_LENGTH, RING_TURNS
from functional_rb.cpu_kernels.raw_memory import bools, ints


@compiled
def modulo(x: Any, n: Any) -> Any:
    """Compute `x % n` of numbers in [0, 2^31): half the time of the 64-bit division."""
    return np.int64(np.uint32(x) % np.uint32(n))


@compiled
def lanes_of(plan: Any, cursors: Any, sizes: Any) -> Any:
    """The ring state at two addresses, int32 [lanes] each."""
    lanes = np.int64(plan[RING_LANES])
    return ints(cursors, lanes), ints(sizes, lanes)


@compiled
def lane_of(plan: Any, slot: Any) -> Any:
    """The lane of a slot: slot // length."""
    return np.int64(np.uint32(slot) // np.uint32(plan[RING_LENGTH]))


@compiled
def back_of(plan: Any, head: Any, place: Any) -> Any:
    """How far behind the head of its ring a place lies, 1 to the ring's length."""
    return head - place if place < head else head - place + np.int64(plan[RING_LENGTH])


@compiled
def place_of(plan: Any, head: Any, back: Any) -> Any:
    """The place that lies so far behind the head of its ring; what is out of bounds counts as the nearest."""
    length = np.int64(plan[RING_LENGTH])
    place = head - min(max(back, np.int64(1)), length)
    return place + length if place < 0 else place


@entry_point
def choose_slots(
    cursors: Any,
    sizes: Any,
    mask: Any,
    slots: Any,
    source: Any,
    live: Any,
    written: Any,
    new_cursors: Any,
    new_sizes: Any,
    plan: Any,
    steps: Any,
    count: Any,
) -> None:
    """Do what `ring.choose_slots` does, to int32 [count] slots. Without a mask there are no source and live either."""
    lanes, length = np.int64(plan[RING_LANES]), np.int64(plan[RING_LENGTH])
    limit = length * plan[RING_TURNS]
    cursors, sizes = lanes_of(plan, cursors, sizes)
    new_cursors, new_sizes = lanes_of(plan, new_cursors, new_sizes)
    mask, slots, written = bools(mask, steps * lanes), ints(slots, count), ints(written, lanes)
    source, live = ints(source, count), bools(live, count)
    n = count // lanes
    for lane in range(lanes):
        marked = steps
        if mask.size:
            marked = np.int64(0)
            for row in range(lane, steps * lanes, lanes):
                marked += np.int64(mask[row] != 0)
        skipped = max(marked - n, np.int64(0))
        cursor = np.int64(cursors[lane])
        place = modulo(cursor + skipped if cursor + skipped < limit else cursor + skipped - limit, length)
        for entry in range(lane, n * lanes, lanes):
            slots[entry] = lane * length + place
            place = place + 1 if place + 1 < length else np.int64(0)
        if mask.size:
            choose_rows(mask, lane, lanes, steps, skipped, source, live)
        written[lane] = marked
        new_cursors[lane] = cursor + marked if cursor + marked < limit else cursor + marked - limit
        new_sizes[lane] = min(np.int64(sizes[lane]) + marked, length)


@compiled
def choose_rows(mask: Any, lane: Any, lanes: Any, steps: Any, skipped: Any, source: Any, live: Any) -> None:
    """The marked rows of a lane but the first `skipped`, then its last row, as if it were marked many times."""
    entry = lane
    for row in range(lane, steps * lanes, lanes):
        if mask[row]:
            skipped -= 1
            if skipped < 0:
                source[entry], live[entry] = row, 1
                entry += lanes
    while entry < source.size:
        source[entry], live[entry] = (steps - 1) * lanes + lane, 0
        entry += lanes
