"""The kernels of `functional_rb.buffer.functions`: add, draw and update on raw memory, and what they are made of.

Arguments that recur:
    plan: see `descriptor.encode`.
    storage: int64 [1 + wide], addresses of the rows and of the wide arrays.
    tree: float32 [rows * FANOUT], empty for a sampler without one.
    counters: int32 [6], see `ring.Counters`; always read from one vector and written to another.
    leaves: int64 [leaves], addresses of contiguous arrays [B, *shape]; 0 for one that is not given.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb import samplers
from functional_rb.cpu_kernels import fixed_point, sum_tree
from functional_rb.cpu_kernels.cache import compiled
from functional_rb.cpu_kernels.descriptor import (
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
from functional_rb.cpu_kernels.raw_memory import (
    bits_of,
    copy_bytes,
    copy_into,
    copy_out,
    float_of,
    get_int8,
    get_int32,
    store_int8,
    store_int32,
)
from functional_rb.structures.sum_tree import FANOUT

INT32_MAX = np.int64(2**31 - 1)
LEAST_CHANCE = np.float32(samplers.LEAST_CHANCE)
CURSOR, SIZE, REJECTED, STALE, PEAK, INVALID = 0, 1, 2, 3, 4, 5
SPARSE = 2
"""A level is swept by marking its nodes if it has at most so many for each that changed below, else node by node."""
SCRATCH_BYTES = 65536
"""How many rows are read together, before they are split into leaves."""


@compiled
def level_field(plan: Any, level: Any, field: Any) -> Any:
    """A number of one level of the tree, by its place in `plan`."""
    return np.int64(plan[FIRST_STORAGE + 1 + plan[WIDE] + LEVEL_FIELDS * level + field])


@compiled
def leaf_field(plan: Any, leaf: Any, field: Any) -> Any:
    """A number of one leaf of the item, as the descriptor has it."""
    first = FIRST_STORAGE + 1 + plan[WIDE] + LEVEL_FIELDS * plan[LEVELS]
    return np.int64(plan[first + LEAF_FIELDS * leaf + field])


@compiled
def refresh_node(plan: Any, tree: Any, bits: Any, level: Any, node: Any) -> None:
    """Compute one node of a level from its children."""
    below = level - 1
    target = level_field(plan, level, LEVEL_SUMS) * FANOUT + node
    tree[target] = sum_tree.add_up(tree, level_field(plan, below, LEVEL_SUMS) + node)
    target = level_field(plan, level, LEVEL_SMALLEST) * FANOUT + node
    bits[target] = sum_tree.smallest(tree, level_field(plan, below, LEVEL_SMALLEST) + node)
    target = level_field(plan, level, LEVEL_LARGEST) * FANOUT + node
    bits[target] = sum_tree.largest(tree, level_field(plan, below, LEVEL_LARGEST) + node)


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
    """Compute all nodes above given leaves, whose vector is written over."""
    bits = tree.view(np.int32)
    nodes = leaves
    for level in range(1, plan[LEVELS]):
        if level_field(plan, level, LEVEL_NODES) > SPARSE * nodes.size:
            kept = refresh_each(plan, tree, bits, level, nodes)
        else:
            kept = refresh_marked(plan, tree, bits, level, nodes)
        nodes = nodes[:kept]


@compiled
def refresh_each(plan: Any, tree: Any, bits: Any, level: Any, nodes: Any) -> Any:
    """Compute the parents of nodes one by one, those of neighbours once. They replace the nodes; returns how many."""
    kept = 0
    for i in range(nodes.size):
        node = nodes[i] // FANOUT
        if kept == 0 or nodes[kept - 1] != node:
            nodes[kept] = node
            kept += 1
            refresh_node(plan, tree, bits, level, node)
    return kept


@compiled
def refresh_marked(plan: Any, tree: Any, bits: Any, level: Any, nodes: Any) -> Any:
    """Do what `refresh_each` does, by one sweep of the whole level."""
    marked = np.zeros(level_field(plan, level, LEVEL_NODES), np.uint8)
    for i in range(nodes.size):
        marked[nodes[i] // FANOUT] = 1
    kept = 0
    for node in range(marked.size):
        if marked[node]:
            nodes[kept] = node
            kept += 1
            refresh_node(plan, tree, bits, level, node)
    return kept


@compiled
def set_leaves(plan: Any, tree: Any, leaves: Any, values: Any) -> None:
    """Do what `sum_tree.set_leaves` does, in place; what is no leaf is left out."""
    capacity, count, changed = level_field(plan, 0, LEVEL_NODES), 0, np.empty(leaves.size, np.int32)
    for i in range(leaves.size):
        if 0 <= leaves[i] < capacity:
            tree[leaves[i]] = values[i]
            changed[count] = leaves[i]
            count += 1
    refresh(plan, tree, changed[:count])


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
    """Read the items in given slots into contiguous arrays.

    Rows are copied whole first, to a place that stays in the cache: the copies of different rows wait for memory
    together, as those of their leaves would not. Measured, 16 us against 60 us for 256 rows that are out of the cache.
    Of a part of the leaves only the bytes among which these lie.
    """
    stride = np.int64(plan[FIRST_STORAGE])
    first, width = piece_of_rows(plan, stride)
    together = max(np.int64(1), SCRATCH_BYTES // max(width, np.int64(1)))
    scratch = np.empty(min(together, slots.size) * width, np.uint8)
    for start in range(0, slots.size, together):
        stop = min(start + together, slots.size)
        load_rows(storage[0] + first, stride, width, slots[start:stop], scratch)
        for leaf in range(plan[LEAVES]):
            size = leaf_field(plan, leaf, LEAF_BYTES)
            if size != 0 and leaf_field(plan, leaf, LEAF_STORAGE) == 0:
                offset = leaf_field(plan, leaf, LEAF_OFFSET) - first
                copy_column(leaves[leaf] + start * size, scratch, offset, stop - start, width, size)
    for leaf in range(plan[LEAVES]):
        array, size = leaf_field(plan, leaf, LEAF_STORAGE), leaf_field(plan, leaf, LEAF_BYTES)
        if array != 0:
            for i in range(slots.size):
                copy_bytes(leaves[leaf] + i * size, storage[array] + np.int64(slots[i]) * size, size)


@compiled
def piece_of_rows(plan: Any, stride: Any) -> Any:
    """Where in a row the leaves begin, and how many bytes on they end; all of it, where that is half of it or more."""
    first, last = stride, np.int64(0)
    for leaf in range(plan[LEAVES]):
        size, offset = leaf_field(plan, leaf, LEAF_BYTES), leaf_field(plan, leaf, LEAF_OFFSET)
        if size != 0 and leaf_field(plan, leaf, LEAF_STORAGE) == 0:
            first, last = min(first, offset), max(last, offset + size)
    width = max(last - first, np.int64(0))
    return (first, width) if 2 * width < stride else (np.int64(0), stride)


@compiled
def load_rows(rows: Any, stride: Any, width: Any, slots: Any, target: Any) -> None:
    """Copy so many bytes of rows to an array; of whole ones those of consecutive slots together."""
    if width < stride:
        for i in range(slots.size):
            copy_into(target, i * width, rows + np.int64(slots[i]) * stride, width)
        return
    start = 0
    for stop in range(1, slots.size + 1):
        if stop == slots.size or slots[stop] != slots[stop - 1] + 1:
            copy_into(target, start * stride, rows + np.int64(slots[start]) * stride, (stop - start) * stride)
            start = stop


@compiled
def copy_column(target: Any, source: Any, offset: Any, count: Any, stride: Any, size: Any) -> None:
    """Copy pieces of one size that lie a stride apart in an array; the sizes of scalars without a call for each."""
    if size == 4:
        for i in range(count):
            store_int32(target + i * 4, get_int32(source, offset + i * stride))
    elif size == 1:
        for i in range(count):
            store_int8(target + i, get_int8(source, offset + i * stride))
    else:
        for i in range(count):
            copy_out(target + i * size, source, offset + i * stride, size)


@compiled
def save_item(plan: Any, storage: Any, slot: Any, saved_rows: Any, place: Any) -> None:
    """Copy the whole item in a slot to row `place` of the arrays at addresses `saved_rows` (none, if that is empty)."""
    for array in range(saved_rows.size):
        size = np.int64(plan[FIRST_STORAGE + array])
        if size != 0:
            copy_bytes(saved_rows[array] + place * size, storage[array] + slot * size, size)


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
def new_value(plan: Any, tree: Any, counters: Any) -> Any:
    """Find a new item's value as `Prioritized.new_value` does: the largest stored, or the largest ever; 1 at first."""
    if plan[LEVELS] == 0:
        return np.float32(0)
    if plan[EVER]:
        value = float_of(counters[PEAK])
    else:
        row = level_field(plan, plan[LEVELS] - 1, LEVEL_LARGEST)
        value = float_of(sum_tree.largest(tree, row))
    return value if value > 0 else np.float32(1)


@compiled
def locate(plan: Any, counters: Any, handle: Any) -> Any:
    """The slot of a handle whose item is still stored, else -1."""
    modulus = np.int64(plan[MODULUS])
    if handle < 0 or handle >= modulus:
        return np.int64(-1)
    age = np.int64(counters[CURSOR]) - 1 - handle
    if age < 0:
        age += modulus
    if age >= counters[SIZE]:
        return np.int64(-1)
    return np.int64(np.uint32(handle) % np.uint32(plan[CAPACITY]))


@compiled
def descend(plan: Any, tree: Any, draws: Any, slots: Any) -> Any:
    """Do what `sum_tree.descend` does, and return the total; level by level, so that cache misses of draws overlap."""
    top = plan[LEVELS] - 1
    total = sum_tree.add_up(tree, level_field(plan, top, LEVEL_SUMS))
    sums = np.empty(slots.size, np.float32)
    sums[:] = total
    slots[:] = 0
    for depth in range(plan[LEVELS]):
        level = top - depth
        first, last = level_field(plan, level, LEVEL_SUMS), level_field(plan, level, LEVEL_NODES) - 1
        for i in range(slots.size):
            # A node equals the sum of its children bit for bit, so the parent's value is at hand.
            unit = float_of(np.int32((254 - (bits_of(sums[i]) >> 23)) << 23))
            row = first + np.int64(slots[i])
            child = min(sum_tree.pick_child(tree, row, unit, draws[i, depth]), FANOUT - 1)
            sums[i] = tree[row * FANOUT + child]
            slots[i] = min(np.int64(slots[i]) * FANOUT + child, last)
    return total


@compiled
def draw_uniform(plan: Any, counters: Any, draws: Any, slots: Any, handles: Any, weights: Any, chances: Any) -> Any:
    """Do what `Uniform.draw` does: each of the `size` items has the probability 1 / size; all weights are 1."""
    size, capacity = np.int64(counters[SIZE]), np.int64(plan[CAPACITY])
    modulus = np.int64(plan[MODULUS])
    oldest = (np.int64(counters[CURSOR]) - size) % modulus
    weight = np.float32(1) if size else np.float32(0)
    chance = weight * (np.float32(1) / np.float32(max(size, np.int64(1))))
    for i in range(slots.size):
        position = (np.int64(draws[i, 0]) * size + ((np.int64(draws[i, 1]) * size) >> 31)) >> 31
        handle = oldest + position
        if handle >= modulus:
            handle -= modulus
        slots[i] = np.uint32(handle) % np.uint32(capacity)
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
    """Do what `Prioritized.draw` does: value / total is a probability, (value / smallest) ** -beta a weight."""
    total = descend(plan, tree, draws, slots)
    row = level_field(plan, plan[LEVELS] - 1, LEVEL_SMALLEST)
    base = fixed_point.log2_biased(bits_of(max(float_of(sum_tree.smallest(tree, row)), fixed_point.SMALLEST)))
    capacity, modulus = np.int64(plan[CAPACITY]), np.int64(plan[MODULUS])
    cursor = np.int64(counters[CURSOR])
    next_slot = cursor % capacity
    scale = np.float32(1) / total if total > 0 else np.float32(0)
    for i in range(slots.size):
        if total > 0:
            value = tree[slots[i]]
            behind = next_slot - slots[i] if slots[i] < next_slot else next_slot - slots[i] + capacity
            handles[i] = cursor - behind if behind <= cursor else cursor - behind + modulus
            weights[i] = fixed_point.importance_weight(max(value, fixed_point.SMALLEST), base, beta)
            chances[i] = max(value * scale, LEAST_CHANCE)
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
    """Fill leaves [B, *shape], handles, weights, probabilities [B] by draws; returns whether anything was drawn."""
    slots = np.empty(handles.size, np.int32)
    if plan[LEVELS]:
        drawable = draw_prioritized(plan, tree, counters, draws, beta, slots, handles, weights, chances)
    else:
        drawable = draw_uniform(plan, counters, draws, slots, handles, weights, chances)
    load_items(plan, storage, slots, leaves)
    return drawable
