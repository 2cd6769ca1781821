"""The kernels of `structures.sparse_set`, step by step where the core does all steps of a batch at once.

Each that Python calls reads the sparse set and says what to write; writing is left to the core, so that older versions
learn of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels.cache import compiled, entry_point
from functional_rb.cpu_kernels.raw_memory import INT32, bools, bounded, ints, table

SPREAD = np.int64(0x9E3779B1)
"""An odd number near 2^32 divided by the golden ratio, which spreads keys over a table (Knuth, vol. 3, section 6.4)."""


@entry_point
def members(order: Any, place: Any, count: Any, slots: Any, marked: Any, found: Any, capacity: Any, batch: Any) -> None:
    """Which of the marked slots are members, uint8 [batch]; count is int32 [1]."""
    order, place, size = ints(order, capacity), ints(place, capacity), ints(count, 1)[0]
    slots, marked, found = ints(slots, batch), bools(marked, batch), bools(found, batch)
    for i in range(batch):
        position = place[bounded(slots[i], capacity)]
        found[i] = marked[i] != 0 and position < size and order[bounded(position, capacity)] == slots[i]


@entry_point
def move_back(
    order: Any, boundary: Any, positions: Any, marked: Any, at: Any, slots: Any, new: Any, capacity: Any, batch: Any
) -> Any:
    """Do what `sparse_set.exchanges` does: which slots lie at which positions afterwards, int32 [2 * batch].

    The boundary is int32 [1], and so is the new one. Returns how many slots these are.
    """
    order, positions, marked = ints(order, capacity), ints(positions, batch), bools(marked, batch)
    moving = np.empty(batch, np.int32)
    count = np.int64(0)
    for i in range(batch):
        if marked[i] != 0:
            moving[count] = positions[i]
            count += 1
    after = np.int64(ints(boundary, 1)[0]) - count
    ints(new, 1)[0] = after
    return exchange(order, after, moving[:count], ints(at, 2 * batch), ints(slots, 2 * batch))


@compiled
def exchange(order: Any, boundary: Any, positions: Any, at: Any, slots: Any) -> Any:
    """Which slots lie where once distinct positions have come behind a boundary, as many as there is room for.

    Positions that lie nowhere, or are there twice, as others may have made them, stay where they are. Returns how many
    slots these are.
    """
    stays = np.zeros(positions.size, np.uint8)
    for i in range(positions.size):
        if 0 <= positions[i] - boundary < positions.size:
            stays[positions[i] - boundary] = 1
    count, filler, last = np.int64(0), np.int64(0), min(np.int64(positions.size), order.size - boundary)
    for i in range(positions.size):
        if 0 <= positions[i] < min(boundary, order.size):
            while filler < last and stays[filler] != 0:
                filler += 1
            if filler >= last:
                break
            at[count], slots[count] = positions[i], order[boundary + filler]
            at[count + 1], slots[count + 1] = boundary + filler, order[positions[i]]
            count, filler = count + 2, filler + 1
    return count


@entry_point
def appended(count: Any, slots: Any, marked: Any, at: Any, new: Any, after: Any, batch: Any) -> Any:
    """Where the marked slots come to lie behind a count, int32 [1], and the new count; returns how many they are."""
    slots, marked, at, new = ints(slots, batch), bools(marked, batch), ints(at, batch), ints(new, batch)
    before, found = np.int64(ints(count, 1)[0]), np.int64(0)
    for i in range(batch):
        if marked[i] != 0:
            at[found], new[found] = before + found, slots[i]
            found += 1
    ints(after, 1)[0] = before + found
    return found


@compiled
def seek(keys: Any, key: Any) -> Any:
    """Where a key lies in a table of a power of two, or could: there is a free place, -1."""
    mask = np.int64(keys.size - 1)
    k = (key * SPREAD >> 15) & mask
    while keys[k] != key and keys[k] != -1:
        k = (k + 1) & mask
    return k


@entry_point
def distinct(draws: Any, n: Any, chosen: Any, count: Any) -> None:
    """Do what `sparse_set.distinct` does by draws int32 [count, 2], of n int32 [1]."""
    shuffle(table(draws, INT32, (count, 2)), np.int64(ints(n, 1)[0]), ints(chosen, count))


@compiled
def shuffle(draws: Any, n: Any, chosen: Any) -> None:
    """Choose distinct numbers below n, by a Fisher-Yates shuffle that stores only what moves."""
    count = chosen.size
    size = np.int64(4)
    while size < 4 * count:
        size *= 2
    keys, values = np.full(size, -1, np.int64), np.empty(size, np.int64)
    for i in range(count):
        left = n - i
        if left <= 0:
            chosen[i] = 0
            continue
        j = (np.int64(draws[i, 0]) * left + ((np.int64(draws[i, 1]) * left) >> 31)) >> 31
        last = seek(keys, left - 1)
        moved = values[last] if keys[last] == left - 1 else left - 1
        taken = seek(keys, j)
        chosen[i] = values[taken] if keys[taken] == j else j
        keys[taken], values[taken] = j, moved
