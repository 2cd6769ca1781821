"""What an update of priorities does to a batch, on raw memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels import fixed_point
from functional_rb.cpu_kernels.cache import compiled, entry_point
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
