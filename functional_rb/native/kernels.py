"""The twins of `functional_rb.buffer`: add, draw and update on raw memory.

Arguments that recur:
    plan: see `plan.encode`.
    storage: int64 [1 + wide], addresses of the rows and of the wide arrays.
    tree: float32 [rows * FANOUT], empty for a sampler without one.
    counters: int32 [5], see `ring.Counters`; always read from one vector and written to another.
    leaves: int64 [leaves], addresses of contiguous arrays [B, *shape]; 0 for one that is not given.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.native import fixed
from functional_rb.native.memory import bits_of, compiled, copy_bytes, float_of, prefetch
from functional_rb.native.plan import (
    CAPACITY,
    EVER,
    FIRST_STORAGE,
    LEAF_BYTES,
    LEAF_FIELDS,
    LEAF_OFFSET,
    LEAF_STORAGE,
    LEAVES,
    LEVEL_FIELDS,
    LEVEL_LARGEST,
    LEVEL_NODES,
    LEVEL_SMALLEST,
    LEVEL_SUMS,
    LEVELS,
    MODULUS,
    WIDE,
)
from functional_rb.native.vector import pick_child
from functional_rb.sum_tree import FANOUT

assert FANOUT == 16, "add_up below is written out for 16 children"
INT32_MAX = np.int64(2**31 - 1)
CURSOR, SIZE, REJECTED, STALE, PEAK = 0, 1, 2, 3, 4
MARKED_NODES = 8192
"""Levels of at most this many nodes are swept by marking them, larger ones node by node, duplicates and all."""
AHEAD = 8
"""Rows asked for before they are read."""


@compiled
def level_field(plan: Any, level: Any, field: Any) -> Any:
    """A number of one level of the tree, by its place in `plan`."""
    return np.int64(plan[FIRST_STORAGE + 1 + plan[WIDE] + LEVEL_FIELDS * level + field])


@compiled
def leaf_field(plan: Any, leaf: Any, field: Any) -> Any:
    """A number of one leaf of the item, likewise."""
    first = FIRST_STORAGE + 1 + plan[WIDE] + LEVEL_FIELDS * plan[LEVELS]
    return np.int64(plan[first + LEAF_FIELDS * leaf + field])


@compiled
def add_up(tree: Any, row: Any) -> Any:
    """`sum_tree.add_up`, in its order."""
    t = tree[row * FANOUT : row * FANOUT + FANOUT]
    even = ((t[0] + t[8]) + (t[4] + t[12])) + ((t[2] + t[10]) + (t[6] + t[14]))
    odd = ((t[1] + t[9]) + (t[5] + t[13])) + ((t[3] + t[11]) + (t[7] + t[15]))
    return even + odd


@compiled
def smallest(bits: Any, row: Any) -> Any:
    """The bits of the smallest positive value of a row, 0 if there is none: less one, zero is the largest unsigned."""
    least = np.uint32(0xFFFFFFFF)
    for j in range(row * FANOUT, row * FANOUT + FANOUT):
        least = min(least, np.uint32(bits[j]) - np.uint32(1))
    return np.int32(least + np.uint32(1))


@compiled
def largest(bits: Any, row: Any) -> Any:
    """The bits of the largest value of a row."""
    most = np.int32(0)
    for j in range(row * FANOUT, row * FANOUT + FANOUT):
        most = max(most, bits[j])
    return most


@compiled
def refresh_node(plan: Any, tree: Any, bits: Any, level: Any, node: Any) -> None:
    """Compute one node of a level from its children."""
    below = level - 1
    target = level_field(plan, level, LEVEL_SUMS) * FANOUT + node
    tree[target] = add_up(tree, level_field(plan, below, LEVEL_SUMS) + node)
    target = level_field(plan, level, LEVEL_SMALLEST) * FANOUT + node
    bits[target] = smallest(bits, level_field(plan, below, LEVEL_SMALLEST) + node)
    target = level_field(plan, level, LEVEL_LARGEST) * FANOUT + node
    bits[target] = largest(bits, level_field(plan, below, LEVEL_LARGEST) + node)


@compiled
def refresh_range(plan: Any, tree: Any, first: Any, count: Any) -> None:
    """Compute all nodes above `count` leaves from `first` on."""
    bits = tree.view(np.int32)
    last = first + count - 1
    for level in range(1, plan[LEVELS]):
        first //= FANOUT
        last //= FANOUT
        for node in range(first, last + 1):
            refresh_node(plan, tree, bits, level, node)


@compiled
def refresh(plan: Any, tree: Any, leaves: Any) -> None:
    """Compute all nodes above given leaves."""
    bits = tree.view(np.int32)
    nodes = leaves.copy()
    for level in range(1, plan[LEVELS]):
        count = level_field(plan, level, LEVEL_NODES)
        if count > MARKED_NODES:
            for i in range(nodes.size):
                nodes[i] //= FANOUT
                refresh_node(plan, tree, bits, level, nodes[i])
            continue
        marks = np.zeros(count, np.uint8)
        for i in range(nodes.size):
            marks[nodes[i] // FANOUT] = 1
        kept = 0
        for node in range(count):
            if marks[node]:
                nodes[kept] = node
                kept += 1
                refresh_node(plan, tree, bits, level, node)
        nodes = nodes[:kept]


@compiled
def store_item(plan: Any, storage: Any, slot: Any, leaves: Any, row: Any) -> None:
    """Write row `row` of the given leaves to a slot."""
    for leaf in range(plan[LEAVES]):
        size = leaf_field(plan, leaf, LEAF_BYTES)
        if leaves[leaf] != 0 and size != 0:
            array = leaf_field(plan, leaf, LEAF_STORAGE)
            target = storage[array] + slot * np.int64(plan[FIRST_STORAGE + array])
            copy_bytes(target + leaf_field(plan, leaf, LEAF_OFFSET), leaves[leaf] + row * size, size)


@compiled
def load_items(plan: Any, storage: Any, slots: Any, leaves: Any) -> None:
    """Read the items in given slots into contiguous arrays."""
    stride = np.int64(plan[FIRST_STORAGE])
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            address = storage[0] + np.int64(slots[i + AHEAD]) * stride
            for line in range(min(stride, np.int64(1024)) // 64 + 1):
                prefetch(address + 64 * line)
        for leaf in range(plan[LEAVES]):
            size = leaf_field(plan, leaf, LEAF_BYTES)
            if size != 0:
                array = leaf_field(plan, leaf, LEAF_STORAGE)
                source = storage[array] + np.int64(slots[i]) * np.int64(plan[FIRST_STORAGE + array])
                copy_bytes(leaves[leaf] + i * size, source + leaf_field(plan, leaf, LEAF_OFFSET), size)


@compiled
def save(plan: Any, storage: Any, tree: Any, slots: Any, rows: Any, values: Any) -> None:
    """Copy what slots hold: whole rows to addresses `rows` (none if empty), leaf values to `values` (likewise)."""
    for array in range(rows.size):
        size = np.int64(plan[FIRST_STORAGE + array])
        if size != 0:
            for i in range(slots.size):
                copy_bytes(rows[array] + i * size, storage[array] + np.int64(slots[i]) * size, size)
    for i in range(values.size):
        values[i] = tree[slots[i]]


@compiled
def count_marked(mask: Any, batch: Any) -> Any:
    """How many rows a batch writes: all, if the mask is empty."""
    if mask.size == 0:
        return np.int64(batch)
    marked = np.int64(0)
    for i in range(batch):
        marked += np.int64(mask[i] != 0)
    return marked


@compiled
def next_slots(plan: Any, counters: Any, batch: Any, mask: Any) -> Any:
    """The slots that `add` will write, int32 [n], in the order of writing."""
    marked = count_marked(mask, batch)
    capacity = np.int64(plan[CAPACITY])
    n = min(marked, capacity)
    slot = (np.int64(counters[CURSOR]) + marked - n) % capacity
    slots = np.empty(n, np.int32)
    for i in range(n):
        slots[i] = slot
        slot = slot + 1 if slot + 1 < capacity else np.int64(0)
    return slots


@compiled
def add(
    plan: Any,
    storage: Any,
    tree: Any,
    counters: Any,
    new_counters: Any,
    leaves: Any,
    batch: Any,
    mask: Any,
    priorities: Any,
) -> None:
    """`buffer.add`. Mask uint8 [B] and priorities float32 [B] are empty if there are none."""
    capacity = np.int64(plan[CAPACITY])
    marked = count_marked(mask, batch)
    skipped = max(marked - capacity, np.int64(0))
    default = new_value(plan, tree, counters)
    peak, rejected = counters[PEAK], np.int64(0)
    first = (np.int64(counters[CURSOR]) + skipped) % capacity
    slot, rank = first, np.int64(0)
    for row in range(batch):
        if mask.size != 0 and mask[row] == 0:
            continue
        rank += 1
        if rank <= skipped:
            continue
        store_item(plan, storage, slot, leaves, row)
        if plan[LEVELS]:
            value = default
            if priorities.size != 0:
                given = fixed.stored_value(plan, priorities[row])
                rejected += np.int64(given < 0)
                value = given if given >= 0 else default
            tree[slot] = value
            peak = max(peak, bits_of(value))
        slot = slot + 1 if slot + 1 < capacity else np.int64(0)
    written = marked - skipped
    if plan[LEVELS] and written:
        head = min(written, capacity - first)
        refresh_range(plan, tree, first, head)
        if written > head:
            refresh_range(plan, tree, np.int64(0), written - head)
    new_counters[CURSOR] = (np.int64(counters[CURSOR]) + marked) % np.int64(plan[MODULUS])
    new_counters[SIZE] = min(np.int64(counters[SIZE]) + marked, capacity)
    new_counters[REJECTED] = min(np.int64(counters[REJECTED]) + rejected, INT32_MAX)
    new_counters[STALE] = counters[STALE]
    new_counters[PEAK] = peak


@compiled
def new_value(plan: Any, tree: Any, counters: Any) -> Any:
    """`Prioritized.new_value`."""
    if plan[LEVELS] == 0:
        return np.float32(0)
    if plan[EVER]:
        value = float_of(counters[PEAK])
    else:
        row = level_field(plan, plan[LEVELS] - 1, LEVEL_LARGEST)
        value = float_of(largest(tree.view(np.int32), row))
    return value if value > 0 else np.float32(1)


@compiled
def locate(plan: Any, counters: Any, handle: Any) -> Any:
    """The slot of a handle whose item is still stored, else -1."""
    modulus = np.int64(plan[MODULUS])
    if handle < 0 or handle >= modulus:
        return np.int64(-1)
    age = (np.int64(counters[CURSOR]) - 1 - handle) % modulus
    return np.int64(handle) % np.int64(plan[CAPACITY]) if age < counters[SIZE] else np.int64(-1)


@compiled
def update(
    plan: Any,
    storage: Any,
    tree: Any,
    counters: Any,
    new_counters: Any,
    handles: Any,
    priorities: Any,
    leaves: Any,
) -> None:
    """`buffer.update`. Priorities and leaves are empty if there are none; written in order, the last duplicate wins."""
    peak, rejected, stale = counters[PEAK], np.int64(0), np.int64(0)
    changed = np.empty(priorities.size, np.int32)
    count = 0
    for i in range(handles.size):
        slot = locate(plan, counters, np.int64(handles[i]))
        if slot < 0:
            stale += 1
            continue
        if leaves.size != 0:
            store_item(plan, storage, slot, leaves, np.int64(i))
        if priorities.size != 0:
            value = fixed.stored_value(plan, priorities[i])
            if value < 0:
                rejected += 1
                continue
            tree[slot] = value
            peak = max(peak, bits_of(value))
            changed[count] = slot
            count += 1
    refresh(plan, tree, changed[:count])
    new_counters[CURSOR] = counters[CURSOR]
    new_counters[SIZE] = counters[SIZE]
    new_counters[REJECTED] = min(np.int64(counters[REJECTED]) + rejected, INT32_MAX)
    new_counters[STALE] = min(np.int64(counters[STALE]) + stale, INT32_MAX)
    new_counters[PEAK] = peak


@compiled
def live_slots(plan: Any, counters: Any, handles: Any) -> Any:
    """The slots of those handles whose items are still stored, int32 [n]."""
    slots = np.empty(handles.size, np.int32)
    count = 0
    for i in range(handles.size):
        slot = locate(plan, counters, np.int64(handles[i]))
        if slot >= 0:
            slots[count] = slot
            count += 1
    return slots[:count]


@compiled
def descend(plan: Any, tree: Any, draws: Any, slots: Any) -> Any:
    """`sum_tree.descend`, level by level, so that the cache misses of different draws overlap; returns the total."""
    top = plan[LEVELS] - 1
    total = add_up(tree, level_field(plan, top, LEVEL_SUMS))
    sums = np.empty(slots.size, np.float32)
    sums[:] = total
    slots[:] = 0
    address = np.int64(tree.ctypes.data)
    for depth in range(plan[LEVELS]):
        level = top - depth
        first, last = level_field(plan, level, LEVEL_SUMS), level_field(plan, level, LEVEL_NODES) - 1
        for i in range(slots.size):
            # A node equals the sum of its children bit for bit, so the parent's value is at hand.
            unit = float_of(np.int32((254 - (bits_of(sums[i]) >> 23)) << 23))
            start = (first + np.int64(slots[i])) * FANOUT
            child = min(pick_child(address + 4 * start, unit, draws[i, depth]), FANOUT - 1)
            sums[i] = tree[start + child]
            slots[i] = min(np.int64(slots[i]) * FANOUT + child, last)
    return total


@compiled
def draw_uniform(plan: Any, counters: Any, draws: Any, slots: Any, handles: Any, weights: Any, chances: Any) -> Any:
    """`Uniform.draw`."""
    size, capacity = np.int64(counters[SIZE]), np.int64(plan[CAPACITY])
    modulus = np.int64(plan[MODULUS])
    oldest = (np.int64(counters[CURSOR]) - size) % modulus
    weight = np.float32(1) if size else np.float32(0)
    chance = weight * (np.float32(1) / np.float32(max(size, np.int64(1))))
    for i in range(slots.size):
        position = (np.int64(draws[i, 0]) * size + ((np.int64(draws[i, 1]) * size) >> 31)) >> 31
        handle = (oldest + position) % modulus
        slots[i] = handle % capacity
        handles[i] = handle if size else -1
        weights[i] = weight
        chances[i] = chance
    return size > 0


@compiled
def draw_prioritized(
    plan: Any,
    tree: Any,
    counters: Any,
    draws: Any,
    beta: Any,
    slots: Any,
    handles: Any,
    weights: Any,
    chances: Any,
) -> Any:
    """`Prioritized.draw`."""
    total = descend(plan, tree, draws, slots)
    row = level_field(plan, plan[LEVELS] - 1, LEVEL_SMALLEST)
    base = fixed.log2_biased(bits_of(max(float_of(smallest(tree.view(np.int32), row)), fixed.SMALLEST)))
    capacity, modulus = np.int64(plan[CAPACITY]), np.int64(plan[MODULUS])
    cursor = np.int64(counters[CURSOR])
    scale = np.float32(1) / total if total > 0 else np.float32(0)
    for i in range(slots.size):
        if total > 0:
            value = tree[slots[i]]
            behind = (cursor % capacity - 1 - slots[i]) % capacity + 1
            handles[i] = (cursor - behind) % modulus
            weights[i] = fixed.importance_weight(max(value, fixed.SMALLEST), base, beta)
            chances[i] = value * scale
        else:
            handles[i], weights[i], chances[i] = -1, 0, 0
    return total > 0


@compiled
def draw(
    plan: Any,
    storage: Any,
    tree: Any,
    counters: Any,
    draws: Any,
    beta: Any,
    leaves: Any,
    handles: Any,
    weights: Any,
    chances: Any,
) -> Any:
    """`buffer.draw`: fills leaves [B, *shape], handles, weights, probabilities [B]; whether anything could be drawn."""
    slots = np.empty(handles.size, np.int32)
    if plan[LEVELS]:
        drawable = draw_prioritized(plan, tree, counters, draws, beta, slots, handles, weights, chances)
    else:
        drawable = draw_uniform(plan, counters, draws, slots, handles, weights, chances)
    load_items(plan, storage, slots, leaves)
    return drawable
