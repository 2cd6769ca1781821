"""What an update of priorities does to a batch, on raw memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels import buffer, episode_windows, fixed_point, ring
from functional_rb.cpu_kernels.buffer import INT32_MAX, PEAK, REJECTED, STALE
from functional_rb.cpu_kernels.cache import compiled, entry_point
from functional_rb.cpu_kernels.descriptor import (
    RING_CAPACITY,
    RING_LENGTH,
    RING_TURNS,
    SLICES_COUNTERS,
    SLICES_CURSORS,
    SLICES_SIZES,
    WINDOW_LENGTH,
)
from functional_rb.cpu_kernels.raw_memory import bits_of, bools, floats, ints

SPREAD = np.uint32(2654435769)
"""Consecutive numbers times this differ most in their upper bits: 2^32 over the golden ratio (Knuth, volume 3, 6.4)."""
NOBODY = np.int32(-1)


@entry_point
def updated_values(
    slots: Any,
    live: Any,
    priorities: Any,
    values: Any,
    replaced: Any,
    bad: Any,
    peak: Any,
    plan: Any,
    count: Any,
) -> None:
    """Do what `importance.updated_values` does, with priorities as bits int32 [count]; bad and peak are int32 [1]."""
    slots, live, priorities = ints(slots, count), bools(live, count), ints(priorities, count)
    values, replaced, bad, peak = floats(values, count), bools(replaced, count), ints(bad, 1), ints(peak, 1)
    bits = np.int64(1)
    while (1 << bits) < 2 * count:
        bits += 1
    last, winner = np.full(1 << bits, NOBODY), np.full(1 << bits, NOBODY)
    entry, made = np.empty(count, np.int32), np.empty(count, np.float32)
    refused, largest = np.int32(0), np.int32(0)
    for i in range(count):
        value = fixed_point.stored_value(plan, priorities[i])
        made[i] = max(value, np.float32(0))
        entry[i] = place_of_slot(slots, last, slots[i], 32 - bits)
        last[entry[i]] = i
        if live[i] != 0 and value >= 0:
            winner[entry[i]] = i
            largest = max(largest, bits_of(value))
        elif live[i] != 0:
            refused += np.int32(1)
    for i in range(count):
        wins = winner[entry[i]]
        replaced[i] = wins != NOBODY
        values[i] = made[wins if wins != NOBODY else last[entry[i]]]
    bad[0], peak[0] = refused, largest


@compiled
def place_of_slot(slots: Any, last: Any, slot: Any, shift: Any) -> Any:
    """Where a slot has its entry in a table of open addressing, or may get one; entries are positions in slots."""
    place = np.int64(np.uint32(np.uint32(slot) * SPREAD) >> np.uint32(shift))
    while last[place] != NOBODY and slots[last[place]] != slot:
        place = place + 1 if place + 1 < last.size else np.int64(0)
    return place


@entry_point
def update_priorities(
    tree: Any,
    kept: Any,
    counters: Any,
    new_counters: Any,
    handles: Any,
    priorities: Any,
    in_episode: Any,
    saved_slots: Any,
    saved_values: Any,
    saved_kept: Any,
    plan: Any,
    windows: Any,
    tree_size: Any,
    batch: Any,
    room: Any,
    saved_count: Any,
) -> None:
    """Do what `functions.update` does with priorities alone, bits int32 [batch], where items lie in rings.

    For windows see `descriptor.encode_rings`. Where slices are drawn, kept and in_episode are the arrays of all steps'
    priorities and of their steps in episode, and the tree has those of steps where a slice begins; else both are 0. All
    that is overwritten is saved before anything is written, with `room` for so many slots, leaves of the tree, and
    priorities; sets how many slots that were.
    """
    sliced, capacity = windows[WINDOW_LENGTH] != 0, np.int64(windows[RING_CAPACITY])
    tree, in_episode = floats(tree, tree_size), ints(in_episode, capacity)
    kept = floats(kept, capacity) if sliced else tree
    count, first = np.int64(windows[SLICES_COUNTERS]), np.int64(windows[SLICES_CURSORS])
    counters, new_counters = ints(counters, count), ints(new_counters, count)
    new_counters[:] = counters
    cursors, sizes = counters[first:], counters[np.int64(windows[SLICES_SIZES]) :]
    handles, priorities = ints(handles, batch), ints(priorities, batch)
    saved_slots, saved_values, saved_kept = (
        ints(saved_slots, room),
        floats(saved_values, room),
        floats(saved_kept, room),
    )
    slots = np.empty(batch, np.int32)
    live, stale = np.int64(0), np.int64(0)
    for i in range(batch):
        slot = locate(windows, cursors, sizes, np.int64(handles[i]))
        slots[i] = slot
        stale += np.int64(slot < 0 and handles[i] != -1)  # that stands for what could not be drawn
        if slot >= 0 and saved_slots.size != 0:
            saved_slots[live], saved_values[live] = slot, tree[slot]
            if sliced:
                saved_kept[live] = kept[slot]
        live += np.int64(slot >= 0)
    saved_count[0] = live
    changed, rejected, peak = np.int64(0), np.int64(0), counters[PEAK]
    for i in range(batch):
        slot = np.int64(slots[i])
        if slot >= 0:
            value = fixed_point.stored_value(plan, priorities[i])
            if value < 0:
                rejected += 1
                continue
            kept[slot] = value
            peak = max(peak, bits_of(value))
            slots[changed] = slot
            changed += 1
    if sliced:
        for i in range(changed):
            slot = np.int64(slots[i])
            tree[slot] = kept[slot] if begins_slice(windows, cursors, sizes, in_episode, slot) else np.float32(0)
    buffer.refresh(plan, tree, slots[:changed])
    new_counters[REJECTED] = min(np.int64(counters[REJECTED]) + rejected, INT32_MAX)
    new_counters[STALE] = min(np.int64(counters[STALE]) + stale, INT32_MAX)
    new_counters[PEAK] = peak


@compiled
def locate(plan: Any, cursors: Any, sizes: Any, handle: Any) -> Any:
    """The slot of a handle whose item is still stored in its lane's ring, else -1; see `ring.locate`."""
    capacity, length, turns = np.int64(plan[RING_CAPACITY]), np.int64(plan[RING_LENGTH]), np.int64(plan[RING_TURNS])
    if handle < 0 or handle >= turns * capacity:
        return np.int64(-1)
    turn = np.int64(np.uint32(handle) // np.uint32(capacity))
    slot = handle - turn * capacity
    lane = ring.lane_of(plan, slot)
    age = np.int64(cursors[lane]) - 1 - (turn * length + slot - lane * length)
    if age < 0:
        age += turns * length
    return slot if age < sizes[lane] else np.int64(-1)


@compiled
def begins_slice(plan: Any, cursors: Any, sizes: Any, in_episode: Any, slot: Any) -> Any:
    """Whether a window begins at the step in a slot."""
    length, lane = np.int64(plan[RING_LENGTH]), ring.lane_of(plan, slot)
    head = ring.modulo(cursors[lane], length)
    back = ring.back_of(plan, head, slot - lane * length)
    own = in_episode[lane * length : (lane + 1) * length]
    return episode_windows.weight(plan, own, head, np.int64(sizes[lane]), back) > 0
