"""Whole draws of epochs as one kernel: `samplers.epochs.EpochKeeper.draw`, and what is read and told of it.

It writes to the sparse set itself, and saves what it overwrites for older versions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels import random_bits, sparse_set
from functional_rb.cpu_kernels.buffer import INT32_MAX, SIZE, load_items
from functional_rb.cpu_kernels.cache import compiled, entry_point
from functional_rb.cpu_kernels.descriptor import (
    CAPACITY,
    EPOCH_COUNTERS,
    EPOCH_CURSORS,
    EPOCH_DROP_LAST,
    EPOCH_EPOCHS_DONE,
    EPOCH_LANES,
    EPOCH_REMAINING,
)
from functional_rb.cpu_kernels.raw_memory import INT32, bools, bounded, floats, ints, table


@entry_point
def draw_epoch(
    order: Any,
    place: Any,
    counters: Any,
    new_counters: Any,
    numbers: Any,
    wanted: Any,
    handles: Any,
    weights: Any,
    probabilities: Any,
    mask: Any,
    storage: Any,
    leaves: Any,
    plan: Any,
    epoch: Any,
    key: Any,
    batch: Any,
    saved_places: Any,
    saved_count: Any,
) -> Any:
    """Draw without replacement, by random bits int32 [batch, 2], or by a key if there are none; whether anything was.

    Wanted is int32 [1], 0 if the whole batch is. What is overwritten in the sparse set is saved before that, in int32
    [6 * batch] as `SavedPlaces` has it; sets how many places these are. For `epoch` see `descriptor.encode_epoch`.
    """
    if numbers == 0:
        words = np.empty((batch, 2), np.int32)
        random_bits.fill(key, words)
    else:
        words = table(numbers, INT32, (batch, 2))
    capacity, size = np.int64(plan[CAPACITY]), np.int64(epoch[EPOCH_COUNTERS])
    order, place = ints(order, capacity), ints(place, capacity)
    counters, new_counters = ints(counters, size), ints(new_counters, size)
    asked = batch if wanted == 0 else min(max(np.int64(ints(wanted, 1)[0]), np.int64(0)), batch)
    whole = asked if epoch[EPOCH_DROP_LAST] else min(asked, np.int64(1))
    remaining = np.int64(counters[epoch[EPOCH_REMAINING]])
    left = min(max(np.int64(counters[SIZE]) if remaining < whole else remaining, np.int64(0)), capacity)
    given = np.int64(0) if left < whole else left
    taken = min(given, asked)
    positions, slots = np.zeros(batch, np.int32), np.empty(batch, np.int32)
    sparse_set.shuffle(words[:taken], given, positions[:taken])
    for i in range(batch):
        slots[i] = bounded(order[positions[i]], capacity)
    told = ints(handles, batch), floats(weights, batch), floats(probabilities, batch), bools(mask, batch)
    tell(epoch, counters, capacity, slots, left, taken, told)
    load_items(plan, storage, slots, leaves)
    move(order, place, given - taken, positions[:taken], saved_places, saved_count)
    for k in range(size):
        new_counters[k] = counters[k]
    count_epoch(epoch, new_counters, whole, given, taken)
    return taken > 0


@compiled
def tell(epoch: Any, counters: Any, capacity: Any, slots: Any, left: Any, taken: Any, told: Any) -> None:
    """Do what `without_replacement.once` does for the first so many slots, of which there were so many left."""
    handles, weights, probabilities, mask = told
    for i in range(slots.size):
        live = i < taken
        mask[i] = live
        weights[i] = np.float32(live)
        probabilities[i] = np.float32(1) / np.float32(max(left - i, np.int64(1))) if live else np.float32(0)
        handles[i] = handle_of(epoch, counters, capacity, np.int64(slots[i])) if live else -1


@compiled
def handle_of(epoch: Any, counters: Any, capacity: Any, slot: Any) -> Any:
    """Do what `ring.handle_of_slot` does."""
    lanes = np.int64(epoch[EPOCH_LANES])
    length = capacity // lanes
    limit = INT32_MAX // capacity * length
    cursor = np.int64(counters[epoch[EPOCH_CURSORS] + slot // length])
    back = cursor % length - 1 - slot % length
    number = cursor - (back if back >= 0 else back + length) - 1
    if number < 0:
        number += limit
    return number if lanes == 1 else number // length * capacity + slot


@compiled
def move(order: Any, place: Any, boundary: Any, positions: Any, saved: Any, saved_count: Any) -> None:
    """Exchange what lies at positions below a boundary for what stays behind it; what is overwritten is saved first."""
    taken, capacity = positions.size, np.int64(order.size)
    at, slots = np.empty(2 * taken, np.int32), np.empty(2 * taken, np.int32)
    count = sparse_set.exchange(order, boundary, positions, at, slots)
    if saved.size != 0:
        room = saved.size // 3
        for i in range(count):
            slot = bounded(order[at[i]], capacity)
            saved[i], saved[room + i], saved[2 * room + i] = at[i], order[at[i]], place[slot]
        saved_count[0] = count
    for i in range(count):
        order[at[i]] = slots[i]
        place[bounded(slots[i], capacity)] = at[i]


@compiled
def count_epoch(epoch: Any, counters: Any, whole: Any, given: Any, taken: Any) -> None:
    """Count what is left of an epoch, and the epochs that are done, in new counters: nothing given changes neither."""
    if given == 0:
        return
    before, after = np.int64(counters[epoch[EPOCH_REMAINING]]), given - taken
    done = np.int64(after < whole) + np.int64(0 < before < whole)
    counters[epoch[EPOCH_REMAINING]] = 0 if after < whole else after
    epochs_done = np.int64(counters[epoch[EPOCH_EPOCHS_DONE]])
    counters[epoch[EPOCH_EPOCHS_DONE]] = min(epochs_done + done, INT32_MAX)
