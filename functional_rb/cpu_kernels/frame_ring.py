"""The kernels of `frame_ring.places`, `frame_store.plan_frames` and `frame_store.overwritten`, on raw memory."""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

from functional_rb.cpu_kernels.cache import compiled, entry_point
from functional_rb.cpu_kernels.descriptor import Vector
from functional_rb.cpu_kernels.raw_memory import bools, bounded, ints
from functional_rb.structures.frame_ring import Chain

LENGTH: Final = 0
ROOM: Final = 1
LIMIT: Final = 2
DEPTH: Final = 3
STEP: Final = 4
JUMP: Final = 5
"""How far on the newest frame is that is asked for: usually, and after a jump."""


def encode(chain: Chain, depth: int, following: bool) -> Vector:
    """What the kernel knows of a chain and of the stacks that are asked for, read-only."""
    step, jump = (1, chain.depth) if following else (0, 0)
    return _encode(chain.items.length, chain.room, chain.limit, depth, step, jump)


CHAIN_DEPTH: Final = 3
PAIRED: Final = 4
ITEM_LIMIT: Final = 5
"""The vector of a whole chain begins with the same numbers."""


def encode_chain(chain: Chain) -> Vector:
    """What the kernels of writes know, read-only."""
    return _encode(chain.items.length, chain.room, chain.limit, chain.depth, int(chain.paired), chain.items.limit)


@functools.lru_cache(maxsize=1024)
def _encode(*values: int) -> Vector:
    encoded = np.asarray(values, np.int32)
    encoded.flags.writeable = False
    return encoded


@entry_point
def places(at: Any, slots: Any, found: Any, plan: Any, capacity: Any, count: Any) -> None:
    """Do what `frame_ring.places` does, to found int32 [count * depth]."""
    length, room, limit = np.int64(plan[LENGTH]), np.int64(plan[ROOM]), np.int64(plan[LIMIT])
    depth = np.int64(plan[DEPTH])
    at, slots, found = ints(at, capacity), ints(slots, count), ints(found, count * depth)
    for i in range(count):
        slot = bounded(slots[i], capacity)
        first = slot // length * room
        code = np.int64(at[slot])
        newest = (code >> 1) + (np.int64(plan[JUMP]) if code & 1 else np.int64(plan[STEP]))
        for j in range(depth):
            sequence_number = newest - depth + 1 + j
            if sequence_number < 0:
                sequence_number += limit
            elif sequence_number >= limit:
                sequence_number -= limit
            found[i * depth + j] = first + np.int64(np.uint32(sequence_number) % np.uint32(room))


@compiled
def takes(plan: Any, shares: Any, moves: Any, row: Any) -> Any:
    """How many frames S and M of a step take."""
    depth = np.int64(plan[CHAIN_DEPTH])
    if plan[PAIRED] == 0:
        return np.int64(1) if shares[row] else depth, np.int64(0)
    return np.int64(0) if shares[row] else depth, np.int64(1) if moves.size == 0 or moves[row] else depth


@entry_point
def plan_frames(
    cursor: Any,
    written: Any,
    shares: Any,
    moves: Any,
    slots: Any,
    source: Any,
    live: Any,
    after: Any,
    at: Any,
    plan: Any,
    lanes: Any,
    rows: Any,
    count: Any,
) -> None:
    """Do what `frame_store.plan_frames` does, to int32 [count] slots, of [rows] steps; moves are 0 if all do."""
    room, limit, depth = np.int64(plan[ROOM]), np.int64(plan[LIMIT]), np.int64(plan[CHAIN_DEPTH])
    most = 2 * depth if plan[PAIRED] else depth
    cursor, written, after = ints(cursor, lanes), ints(written, lanes), ints(after, lanes)
    shares, moves, at = bools(shares, rows), bools(moves, rows), ints(at, rows)
    slots, source, live = ints(slots, count), ints(source, count), bools(live, count)
    steps, n = rows // lanes, count // lanes
    for lane in range(lanes):
        end = np.int64(0)
        for t in range(steps):
            own, following = takes(plan, shares, moves, t * lanes + lane)
            newest = (np.int64(cursor[lane]) - 1 + end + own + limit) % limit
            at[lane * steps + t] = 2 * newest + (1 if following > 1 else 0)
            end += own + following if t < written[lane] else 0
        after[lane] = (np.int64(cursor[lane]) + end) % limit
        for k in range(n):
            sequence_number = (np.int64(after[lane]) - n + k + limit) % limit
            slots[lane * n + k] = lane * room + sequence_number % room
            source[lane * n + k], live[lane * n + k] = 0, 1 if end - n + k >= 0 else 0
        first = n - end  # the place of the lane's first new frame; those before place 0 are overwritten at once
        for t in range(min(np.int64(written[lane]), steps)):
            own, following = takes(plan, shares, moves, t * lanes + lane)
            for rank in range(own + following):
                which = depth - own + rank if rank < own else 2 * depth - following + rank - own
                if first + rank >= 0:
                    source[lane * n + first + rank] = (t * lanes + lane) * most + which
            first += own + following


@entry_point
def overwritten(
    at: Any,
    cursors: Any,
    sizes: Any,
    after: Any,
    slots: Any,
    gone: Any,
    new_sizes: Any,
    plan: Any,
    capacity: Any,
    lanes: Any,
    count: Any,
) -> None:
    """Do what `frame_store.overwritten` does, to int32 [count] slots."""
    length, room, limit = np.int64(plan[LENGTH]), np.int64(plan[ROOM]), np.int64(plan[LIMIT])
    item_limit = np.int64(plan[ITEM_LIMIT])
    at, slots, gone = ints(at, capacity), ints(slots, count), bools(gone, count)
    cursors, sizes = ints(cursors, lanes), ints(sizes, lanes)
    after, new_sizes = ints(after, lanes), ints(new_sizes, lanes)
    n = count // lanes
    for lane in range(lanes):
        oldest = np.int64(cursors[lane]) - np.int64(sizes[lane]) + item_limit
        new_sizes[lane] = sizes[lane]
        for k in range(n):
            slot = lane * length + (oldest + k) % item_limit % length
            behind = np.int64(after[lane]) - (np.int64(at[slot]) >> 1)
            behind += (limit if behind < 0 else 0) + np.int64(plan[CHAIN_DEPTH]) - 1
            lost = k < sizes[lane] and behind > room
            slots[lane * n + k], gone[lane * n + k] = slot, 1 if lost else 0
            new_sizes[lane] -= 1 if lost else 0
