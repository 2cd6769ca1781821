"""The kernels of whole functions of a buffer, and of what else of `buffer` is called from outside: all by addresses.

An address costs Python less than a view does. The addresses come first, 0 for an array that is not given, then vectors
of addresses, then the rest, as `addresses` has it. What type an argument is of follows from its name (`beforehand`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels import buffer, fixed_point, random_bits
from functional_rb.cpu_kernels.buffer import (
    CURSOR,
    INT32_MAX,
    INVALID,
    PEAK,
    REJECTED,
    SIZE,
    STALE,
)
from functional_rb.cpu_kernels.cache import entry_point
from functional_rb.cpu_kernels.descriptor import CAPACITY, LEAVES, LEVELS, MODULUS
from functional_rb.cpu_kernels.raw_memory import INT32, bits_of, bools, bounded, floats, ints, table


@entry_point
def add(
    tree: Any,
    counters: Any,
    new_counters: Any,
    mask: Any,
    priorities: Any,
    saved_slots: Any,
    saved_values: Any,
    storage: Any,
    items: Any,
    plan: Any,
    tree_size: Any,
    batch: Any,
    room: Any,
    saved_count: Any,
) -> None:
    """Do what `functions.add` does with the leaves of `items`, mask uint8 [batch] and priorities, bits int32 [batch].

    Behind the leaves, `items` has rows to save in what is overwritten, with `room` for so many slots and values; sets
    how many slots were saved.
    """
    tree, counters, new_counters = floats(tree, tree_size), ints(counters, 6), ints(new_counters, 6)
    mask, priorities = bools(mask, batch), ints(priorities, batch)
    saved_slots, saved_values = ints(saved_slots, room), floats(saved_values, room)
    leaves, saved_rows = items[: np.int64(plan[LEAVES])], items[np.int64(plan[LEAVES]) :]
    capacity = np.int64(plan[CAPACITY])
    marked = buffer.count_marked(mask, batch)
    skipped = max(marked - capacity, np.int64(0))
    default = buffer.new_value(plan, tree, counters)
    peak, rejected = counters[PEAK], np.int64(0)
    first = (np.int64(counters[CURSOR]) + skipped) % capacity
    slot, rank = first, np.int64(0)
    for row in range(batch):
        if mask.size != 0 and mask[row] == 0:
            continue
        rank += 1
        if rank <= skipped:
            continue
        if saved_slots.size != 0:
            place = rank - skipped - 1
            saved_slots[place] = slot
            buffer.save_item(plan, storage, slot, saved_rows, place)
            if saved_values.size != 0:
                saved_values[place] = tree[slot]
        buffer.store_item(plan, storage, slot, leaves, row)
        if plan[LEVELS]:
            value = default
            if priorities.size != 0:
                given = fixed_point.stored_value(plan, priorities[row])
                rejected += np.int64(given < 0)
                value = given if given >= 0 else default
            tree[slot] = value
            peak = max(peak, bits_of(value))
        slot = slot + 1 if slot + 1 < capacity else np.int64(0)
    written = marked - skipped
    if plan[LEVELS] and written:
        head = min(written, capacity - first)
        buffer.refresh_range(plan, tree, first, head)
        if written > head:
            buffer.refresh_range(plan, tree, np.int64(0), written - head)
    saved_count[0] = written
    new_counters[CURSOR] = (np.int64(counters[CURSOR]) + marked) % np.int64(plan[MODULUS])
    new_counters[SIZE] = min(np.int64(counters[SIZE]) + marked, capacity)
    new_counters[REJECTED] = min(np.int64(counters[REJECTED]) + rejected, INT32_MAX)
    new_counters[STALE] = counters[STALE]
    new_counters[PEAK] = peak
    new_counters[INVALID] = counters[INVALID]


@entry_point
def update(
    tree: Any,
    counters: Any,
    new_counters: Any,
    handles: Any,
    priorities: Any,
    saved_slots: Any,
    saved_values: Any,
    storage: Any,
    items: Any,
    plan: Any,
    tree_size: Any,
    batch: Any,
    given: Any,
    room: Any,
    saved_count: Any,
) -> None:
    """Do what `functions.update` does: of duplicate handles, int32 [batch], the last wins.

    Priorities, bits int32 [batch], are 0 if there are none; of `items` as many as are `given` are leaves, those behind
    them rows to save in. All that is overwritten is saved before anything is written, with `room` for so many slots and
    values; sets how many slots that were.
    """
    tree, counters, new_counters = floats(tree, tree_size), ints(counters, 6), ints(new_counters, 6)
    handles, priorities = ints(handles, batch), ints(priorities, batch)
    saved_slots, saved_values = ints(saved_slots, room), floats(saved_values, room)
    leaves, saved_rows = items[:given], items[given:]
    peak, rejected, live = counters[PEAK], np.int64(0), np.int64(0)
    slots = np.empty(handles.size, np.int32)
    for i in range(handles.size):
        slot = buffer.locate(plan, counters, np.int64(handles[i]))
        slots[i] = slot
        if slot >= 0:
            if saved_slots.size != 0:
                saved_slots[live] = slot
                buffer.save_item(plan, storage, slot, saved_rows, live)
                if saved_values.size != 0:
                    saved_values[live] = tree[slot]
            live += 1
    changed = np.empty(priorities.size, np.int32)
    count = 0
    for i in range(handles.size):
        slot = np.int64(slots[i])
        if slot >= 0 and leaves.size != 0:
            buffer.store_item(plan, storage, slot, leaves, np.int64(i))
        if slot >= 0 and priorities.size != 0:
            value = fixed_point.stored_value(plan, priorities[i])
            if value < 0:
                rejected += 1
                continue
            tree[slot] = value
            peak = max(peak, bits_of(value))
            changed[count] = slot
            count += 1
    buffer.refresh(plan, tree, changed[:count])
    named = np.int64(0)
    for i in range(handles.size):
        named += np.int64(handles[i] != -1)  # that stands for what could not be drawn
    stale = named - live
    new_counters[CURSOR] = counters[CURSOR]
    new_counters[SIZE] = counters[SIZE]
    new_counters[REJECTED] = min(np.int64(counters[REJECTED]) + rejected, INT32_MAX)
    new_counters[STALE] = min(np.int64(counters[STALE]) + stale, INT32_MAX)
    new_counters[PEAK] = peak
    new_counters[INVALID] = counters[INVALID]
    saved_count[0] = live


@entry_point
def sample(
    tree: Any,
    counters: Any,
    handles: Any,
    weights: Any,
    probabilities: Any,
    storage: Any,
    leaves: Any,
    plan: Any,
    tree_size: Any,
    key: Any,
    words: Any,
    beta: Any,
    batch: Any,
) -> Any:
    """Make draws from a key, and draw; whether anything could be drawn."""
    numbers = np.empty((batch, words), np.int32)
    random_bits.fill(key, numbers)
    tree, counters, handles = floats(tree, tree_size), ints(counters, 6), ints(handles, batch)
    weights, probabilities, beta = floats(weights, batch), floats(probabilities, batch), np.float32(beta)
    return buffer.draw(plan, storage, tree, counters, numbers, beta, leaves, handles, weights, probabilities)


@entry_point
def draw(
    tree: Any,
    counters: Any,
    numbers: Any,
    handles: Any,
    weights: Any,
    probabilities: Any,
    storage: Any,
    leaves: Any,
    plan: Any,
    tree_size: Any,
    words: Any,
    beta: Any,
    batch: Any,
) -> Any:
    """Draw by random bits int32 [batch, words]; whether anything could be drawn."""
    numbers = table(numbers, INT32, (batch, words))
    tree, counters, handles = floats(tree, tree_size), ints(counters, 6), ints(handles, batch)
    weights, probabilities, beta = floats(weights, batch), floats(probabilities, batch), np.float32(beta)
    return buffer.draw(plan, storage, tree, counters, numbers, beta, leaves, handles, weights, probabilities)


@entry_point
def descend(tree: Any, draws: Any, slots: Any, plan: Any, tree_size: Any, batch: Any, words: Any) -> None:
    """Do what `buffer.descend` does with draws int32 [B, words]."""
    buffer.descend(plan, floats(tree, tree_size), table(draws, INT32, (batch, words)), ints(slots, batch))


@entry_point
def set_leaves(tree: Any, slots: Any, values: Any, plan: Any, tree_size: Any, count: Any) -> None:
    """Do what `buffer.set_leaves` does."""
    buffer.set_leaves(plan, floats(tree, tree_size), ints(slots, count), floats(values, count))


@entry_point
def read(slots: Any, storage: Any, leaves: Any, plan: Any, capacity: Any, count: Any) -> None:
    """Do what `buffer.load_items` does, of as many rows as the capacity; in place of a slot that is none the first."""
    given, slots = ints(slots, count), np.empty(count, np.int32)
    for i in range(count):
        slots[i] = bounded(given[i], capacity)
    buffer.load_items(plan, storage, slots, leaves)


@entry_point
def store(
    slots: Any, source: Any, live: Any, storage: Any, leaves: Any, plan: Any, capacity: Any, count: Any, batch: Any
) -> None:
    """Do what `row_layout.store` does, in place, to int32 [count] slots; source and live are 0 if there are none.

    The storage has so many rows as its capacity is; slots, or rows of the batch, that are none are left out.
    """
    slots, source, live = ints(slots, count), ints(source, count), bools(live, count)
    for i in range(count):
        if live.size == 0 or live[i] != 0:
            row = np.int64(source[i]) if source.size != 0 else batch - count + i
            if 0 <= slots[i] < capacity and 0 <= row < batch:
                buffer.store_item(plan, storage, np.int64(slots[i]), leaves, row)


@entry_point
def stored_values(priorities: Any, values: Any, good: Any, plan: Any, count: Any) -> None:
    """Compute `importance.stored_value` of priorities, bits int32 [count]: their powers, and which are good."""
    priorities, values, good = ints(priorities, count), floats(values, count), bools(good, count)
    for i in range(count):
        value = fixed_point.stored_value(plan, priorities[i])
        values[i], good[i] = max(value, np.float32(0)), value >= 0


@entry_point
def importance_weights(values: Any, smallest: Any, exponent: Any, weights: Any, count: Any) -> None:
    """Compute the weights (value / smallest) ** -beta, as `importance.importance_weights` does.

    Values and weights are float32 [count]; smallest and exponent (beta) are float32 [1].
    """
    values, weights, beta = floats(values, count), floats(weights, count), floats(exponent, 1)[0]
    base = fixed_point.log2_biased(bits_of(max(floats(smallest, 1)[0], fixed_point.SMALLEST)))
    for i in range(count):
        weights[i] = fixed_point.importance_weight(max(values[i], fixed_point.SMALLEST), base, beta)


@entry_point
def fill_draws(numbers: Any, key: Any, count: Any) -> None:
    """Do what `random_bits.fill` does, to int32 [count]."""
    random_bits.fill(key, ints(numbers, count))
