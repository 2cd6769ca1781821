"""The kernels of `structures.sparse_set`, step by step where the core does all steps of a batch at once.

Each reads the sparse set and says what to write; writing is left to the core, so that older versions learn of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels.cache import compiled

SPREAD = np.int64(0x9E3779B1)
"""An odd number near 2^32 divided by the golden ratio, which spreads keys over a table (Knuth, vol. 3, section 6.4)."""


@compiled
def members(order: Any, place: Any, count: Any, slots: Any, marked: Any, found: Any) -> None:
    """Which of the marked slots are members, uint8 [B]."""
    for i in range(slots.size):
        position = place[slots[i]]
        found[i] = marked[i] != 0 and position < count and order[position] == slots[i]


@compiled
def move_back(order: Any, boundary: Any, positions: Any, marked: Any, at: Any, slots: Any) -> Any:
    """Do what `sparse_set.exchanges` does: which slots lie at which positions afterwards, int32 [2 B].

    Returns:
        How many these are, and the new boundary.
    """
    moving = np.int64(0)
    for i in range(positions.size):
        moving += np.int64(marked[i] != 0)
    boundary -= moving
    stays = np.zeros(moving, np.uint8)
    for i in range(positions.size):
        if marked[i] != 0 and positions[i] >= boundary:
            stays[positions[i] - boundary] = 1
    count, filler = np.int64(0), np.int64(0)
    for i in range(positions.size):
        if marked[i] != 0 and positions[i] < boundary:
            while stays[filler] != 0:
                filler += 1
            at[count], slots[count] = positions[i], order[boundary + filler]
            at[count + 1], slots[count + 1] = boundary + filler, order[positions[i]]
            count, filler = count + 2, filler + 1
    return count, boundary


@compiled
def appended(count: Any, slots: Any, marked: Any, at: Any, new: Any) -> Any:
    """Where the marked slots come to lie behind `count` others; returns how many they are."""
    found = np.int64(0)
    for i in range(slots.size):
        if marked[i] != 0:
            at[found], new[found] = count + found, slots[i]
            found += 1
    return found


@compiled
def seek(keys: Any, key: Any) -> Any:
    """Where a key lies in a table of a power of two, or could: there is a free place, -1."""
    mask = np.int64(keys.size - 1)
    k = (key * SPREAD >> 15) & mask
    while keys[k] != key and keys[k] != -1:
        k = (k + 1) & mask
    return k


@compiled
def distinct(draws: Any, n: Any, chosen: Any) -> None:
    """Do what `sparse_set.distinct` does by draws int32 [B, 2]: a Fisher-Yates shuffle that stores only what moves."""
    size = np.int64(4)
    while size < 4 * chosen.size:
        size *= 2
    keys, values = np.full(size, -1, np.int64), np.empty(size, np.int64)
    for i in range(chosen.size):
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
