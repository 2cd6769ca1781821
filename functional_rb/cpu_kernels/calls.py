"""The kernels as Python calls them: every array by its address, which costs less than a view of it.

The addresses come first, then vectors of addresses, then the rest, as `addresses` has it; 0 stands for an array that is
not given. What type an argument is of follows from its name (`beforehand`).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from functional_rb.cpu_kernels import (
    buffer,
    frame_ring,
    hash_map,
    ring,
    sparse_set,
)
from functional_rb.cpu_kernels import (
    episode_windows as steps,
)
from functional_rb.cpu_kernels import (
    random_bits as draws,
)
from functional_rb.cpu_kernels.cache import compiled
from functional_rb.cpu_kernels.descriptor import LEAVES, RING_CAPACITY, RING_LANES, WINDOW_LENGTH
from functional_rb.cpu_kernels.hash_map import CAPACITY, TABLE_SIZE, WORDS
from functional_rb.cpu_kernels.raw_memory import pointer_to

INT32, UINT8, FLOAT32 = np.int32(0), np.uint8(0), np.float32(0)


@compiled
def ints(address: Any, size: Any) -> Any:
    """int32 [size] at an address."""
    return numba.carray(pointer_to(address, INT32), (size,))


@compiled
def floats(address: Any, size: Any) -> Any:
    """float32 [size] at an address."""
    return numba.carray(pointer_to(address, FLOAT32), (size,))


@compiled
def marks(address: Any, size: Any) -> Any:
    """Truth values as uint8 [size] at an address, empty if that is 0."""
    return numba.carray(pointer_to(address, UINT8), (size if address else 0,))


@compiled
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
    """Do what `buffer.add` does with leaves, then the rows to save in; sets how many slots were saved, of `room`."""
    count = np.int64(plan[LEAVES])
    saved_count[0] = buffer.add(
        plan,
        storage,
        floats(tree, tree_size),
        ints(counters, 6),
        ints(new_counters, 6),
        items[:count],
        batch,
        marks(mask, batch),
        ints(priorities, batch if priorities else 0),
        ints(saved_slots, room),
        items[count:],
        floats(saved_values, room if saved_values else 0),
    )


@compiled
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
    """Do what `buffer.update` does with leaves, then the rows to save in; sets how many slots were saved."""
    saved_count[0] = buffer.update(
        plan,
        storage,
        floats(tree, tree_size),
        ints(counters, 6),
        ints(new_counters, 6),
        ints(handles, batch),
        ints(priorities, batch if priorities else 0),
        items[:given],
        ints(saved_slots, room),
        items[given:],
        floats(saved_values, room if saved_values else 0),
    )


@compiled
def sample(
    tree: Any,
    counters: Any,
    handles: Any,
    weights: Any,
    chances: Any,
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
    draws.fill(key, numbers)
    return buffer.draw(
        plan,
        storage,
        floats(tree, tree_size),
        ints(counters, 6),
        numbers,
        np.float32(beta),
        leaves,
        ints(handles, batch),
        floats(weights, batch),
        floats(chances, batch),
    )


@compiled
def draw(
    tree: Any,
    counters: Any,
    numbers: Any,
    handles: Any,
    weights: Any,
    chances: Any,
    storage: Any,
    leaves: Any,
    plan: Any,
    tree_size: Any,
    words: Any,
    beta: Any,
    batch: Any,
) -> Any:
    """Draw by random bits int32 [batch, words]; whether anything could be drawn."""
    return buffer.draw(
        plan,
        storage,
        floats(tree, tree_size),
        ints(counters, 6),
        numba.carray(pointer_to(numbers, INT32), (batch, words)),
        np.float32(beta),
        leaves,
        ints(handles, batch),
        floats(weights, batch),
        floats(chances, batch),
    )


@compiled
def descend(tree: Any, draws: Any, slots: Any, plan: Any, tree_size: Any, batch: Any, words: Any) -> None:
    """Do what `buffer.descend` does with draws int32 [B, words]."""
    numbers = numba.carray(pointer_to(draws, INT32), (batch, words))
    buffer.descend(plan, floats(tree, tree_size), numbers, ints(slots, batch))


@compiled
def set_leaves(tree: Any, slots: Any, values: Any, plan: Any, tree_size: Any, count: Any) -> None:
    """Do what `buffer.set_leaves` does."""
    buffer.set_leaves(plan, floats(tree, tree_size), ints(slots, count), floats(values, count))


@compiled
def read(slots: Any, storage: Any, leaves: Any, plan: Any, count: Any) -> None:
    """Do what `buffer.load_items` does."""
    buffer.load_items(plan, storage, ints(slots, count), leaves)


@compiled
def store(slots: Any, source: Any, live: Any, storage: Any, leaves: Any, plan: Any, count: Any, batch: Any) -> None:
    """Do what `buffer.store_items` does; source and live are 0 if there are none."""
    buffer.store_items(
        plan,
        storage,
        ints(slots, count),
        ints(source, count if source else 0),
        marks(live, count),
        leaves,
        batch,
    )


@compiled
def fill_draws(numbers: Any, key: Any, count: Any) -> None:
    """Do what `random_bits.fill` does, to int32 [count]."""
    draws.fill(key, ints(numbers, count))


@compiled
def below(numbers: Any, n: Any, chosen: Any, counts: Any, count: Any) -> None:
    """Do what `random_bits.below` does by int32 [count, 2], for n int32 [counts]."""
    draws.below(numba.carray(pointer_to(numbers, INT32), (count, 2)), ints(n, counts), ints(chosen, count))


@compiled
def stored_values(priorities: Any, values: Any, good: Any, plan: Any, count: Any) -> None:
    """Do what `buffer.stored_values` does."""
    buffer.stored_values(plan, ints(priorities, count), floats(values, count), marks(good, count))


@compiled
def importance_weights(values: Any, smallest: Any, exponent: Any, weights: Any, count: Any) -> None:
    """Do what `buffer.importance_weights` does; smallest and exponent (beta) are float32 [1]."""
    buffer.importance_weights(
        floats(values, count), floats(smallest, 1)[0], floats(exponent, 1)[0], floats(weights, count)
    )


@compiled
def plan_write(
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
    """Do what `ring.choose_slots` does, to int32 [count] slots; mask, source and live are 0 for none."""
    lanes = np.int64(plan[RING_LANES])
    ring.plan_write(
        plan,
        ints(cursors, lanes),
        ints(sizes, lanes),
        steps,
        marks(mask, steps * lanes),
        ints(slots, count),
        ints(source, count if source else 0),
        marks(live, count),
        ints(written, lanes),
        ints(new_cursors, lanes),
        ints(new_sizes, lanes),
    )


@compiled
def step_ages(
    next_age: Any, written: Any, begins: Any, ends: Any, ages: Any, new_next: Any, lanes: Any, size: Any
) -> None:
    """Do what `episode_windows.steps_in_episodes` does, to int32 [size] ages; begins or ends is 0 for none."""
    ring.step_ages(
        ints(next_age, lanes),
        ints(written, lanes),
        marks(begins, size),
        marks(ends, size),
        ints(ages, size),
        ints(new_next, lanes),
    )


@compiled
def changed(
    cursors: Any,
    sizes: Any,
    age: Any,
    lane: Any,
    back: Any,
    slots: Any,
    numbers: Any,
    plan: Any,
    ranges: Any,
    count: Any,
) -> None:
    """Do what `episode_windows.changed` does, int32 [count] entries."""
    ring.changed(
        plan,
        ranges,
        ints(cursors, np.int64(plan[RING_LANES])),
        ints(sizes, np.int64(plan[RING_LANES])),
        ints(age, np.int64(plan[RING_CAPACITY])),
        ints(lane, count),
        ints(back, count),
        ints(slots, count),
        ints(numbers, count),
    )


@compiled
def weights_at(cursors: Any, sizes: Any, age: Any, slots: Any, numbers: Any, plan: Any, count: Any) -> None:
    """Do what `episode_windows.weights_at` does."""
    ring.weights_at(
        plan,
        ints(cursors, np.int64(plan[RING_LANES])),
        ints(sizes, np.int64(plan[RING_LANES])),
        ints(age, np.int64(plan[RING_CAPACITY])),
        ints(slots, count),
        ints(numbers, count),
    )


@compiled
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
    n: Any,
) -> None:
    """Do what `frame_store.plan_frames` does; moves are 0 for none."""
    frame_ring.plan_frames(
        plan,
        ints(cursor, lanes),
        ints(written, lanes),
        marks(shares, rows),
        marks(moves, rows),
        ints(slots, n),
        ints(source, n),
        marks(live, n),
        ints(after, lanes),
        ints(at, rows),
    )


@compiled
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
    n: Any,
) -> None:
    """Do what `frame_store.overwritten` does."""
    frame_ring.overwritten(
        plan,
        ints(at, capacity),
        ints(cursors, lanes),
        ints(sizes, lanes),
        ints(after, lanes),
        ints(slots, n),
        marks(gone, n),
        ints(new_sizes, lanes),
    )


@compiled
def places(at: Any, slots: Any, found: Any, plan: Any, capacity: Any, count: Any) -> None:
    """Do what `frame_ring.places` does."""
    depth = np.int64(plan[frame_ring.DEPTH])
    frame_ring.places(plan, ints(at, capacity), ints(slots, count), ints(found, count * depth))


@compiled
def expand(
    cursors: Any,
    sizes: Any,
    age: Any,
    next_age: Any,
    starts: Any,
    numbers: Any,
    live: Any,
    slots: Any,
    handles: Any,
    mask: Any,
    is_first: Any,
    is_last: Any,
    truncated: Any,
    plan: Any,
    count: Any,
) -> None:
    """Do what `episode_windows.expand` does with starts int32 [count], draws int32 [count, 2]; live is 0 for none."""
    lanes, shape = np.int64(plan[RING_LANES]), (count, np.int64(plan[WINDOW_LENGTH]))
    ring.expand(
        plan,
        ints(cursors, lanes),
        ints(sizes, lanes),
        ints(age, np.int64(plan[RING_CAPACITY])),
        ints(next_age, lanes),
        ints(starts, count),
        numba.carray(pointer_to(numbers, INT32), (count, 2)),
        marks(live, count),
        numba.carray(pointer_to(slots, INT32), shape),
        numba.carray(pointer_to(handles, INT32), shape),
        numba.carray(pointer_to(mask, UINT8), shape),
        numba.carray(pointer_to(is_first, UINT8), shape),
        numba.carray(pointer_to(is_last, UINT8), shape),
        numba.carray(pointer_to(truncated, UINT8), shape),
    )


@compiled
def following(cursors: Any, age: Any, slots: Any, found: Any, real: Any, plan: Any, count: Any, n: Any) -> None:
    """Do what `episode_windows.following` does with int32 [count] slots, n for each."""
    ring.following(
        plan,
        ints(cursors, np.int64(plan[RING_LANES])),
        ints(age, np.int64(plan[RING_CAPACITY])),
        ints(slots, count),
        numba.carray(pointer_to(found, INT32), (count, n)),
        numba.carray(pointer_to(real, UINT8), (count, n)),
    )


@compiled
def extent(cursors: Any, sizes: Any, age: Any, slots: Any, before: Any, after: Any, plan: Any, count: Any) -> None:
    """Do what `episode_windows.extent` does with int32 [count] slots."""
    ring.extent(
        plan,
        ints(cursors, np.int64(plan[RING_LANES])),
        ints(sizes, np.int64(plan[RING_LANES])),
        ints(age, np.int64(plan[RING_CAPACITY])),
        ints(slots, count),
        ints(before, count),
        ints(after, count),
    )


@compiled
def fold(rewards: Any, real: Any, total: Any, number: Any, discounts: Any, count: Any, width: Any) -> None:
    """Do what `returns.fold_floats` does with rewards [count, n, width] of the dtype of discounts [n]."""
    n = discounts.size
    steps.fold(
        discounts,
        numba.carray(pointer_to(rewards, discounts[0]), (count, n, width)),
        numba.carray(pointer_to(real, UINT8), (count, n)),
        numba.carray(pointer_to(total, discounts[0]), (count, width)),
        ints(number, count),
    )


@compiled
def plan_line(
    held: Any,
    ended: Any,
    ids: Any,
    mask: Any,
    window: Any,
    real: Any,
    complete: Any,
    waiting: Any,
    pending: Any,
    lanes: Any,
    batch: Any,
    words: Any,
    n: Any,
) -> None:
    """Do what `step_queue.plan_line` does; held int32 [lanes], ids [rows, words]; ids, words, mask are 0 for none."""
    rows = batch + lanes * (n - 1)
    steps.plan_line(
        ints(held, lanes),
        marks(ended, batch),
        numba.carray(pointer_to(ids, INT32), (rows, words)),
        marks(mask, batch),
        numba.carray(pointer_to(window, INT32), (rows, n)),
        numba.carray(pointer_to(real, UINT8), (rows, n)),
        marks(complete, rows),
        ints(waiting, lanes * (n - 1)),
        ints(pending, lanes),
    )


@compiled
def members(order: Any, place: Any, count: Any, slots: Any, marked: Any, found: Any, capacity: Any, batch: Any) -> None:
    """Do what `sparse_set.members` does; count is int32 [1]."""
    sparse_set.members(
        ints(order, capacity),
        ints(place, capacity),
        ints(count, 1)[0],
        ints(slots, batch),
        marks(marked, batch),
        marks(found, batch),
    )


@compiled
def move_back(
    order: Any, boundary: Any, positions: Any, marked: Any, at: Any, slots: Any, new: Any, capacity: Any, batch: Any
) -> Any:
    """Do what `sparse_set.move_back` does from a boundary int32 [1] to the new one; returns how much to write."""
    count, after = sparse_set.move_back(
        ints(order, capacity),
        np.int64(ints(boundary, 1)[0]),
        ints(positions, batch),
        marks(marked, batch),
        ints(at, 2 * batch),
        ints(slots, 2 * batch),
    )
    ints(new, 1)[0] = after
    return count


@compiled
def appended(count: Any, slots: Any, marked: Any, at: Any, new: Any, after: Any, batch: Any) -> Any:
    """Do what `sparse_set.appended` does behind a count int32 [1], and set the new count; returns how much to write."""
    before = np.int64(ints(count, 1)[0])
    found = sparse_set.appended(before, ints(slots, batch), marks(marked, batch), ints(at, batch), ints(new, batch))
    ints(after, 1)[0] = before + found
    return found


@compiled
def distinct(draws: Any, n: Any, chosen: Any, count: Any) -> None:
    """Do what `sparse_set.distinct` does by int32 [count, 2], of n int32 [1]."""
    numbers = numba.carray(pointer_to(draws, INT32), (count, 2))
    sparse_set.distinct(numbers, np.int64(ints(n, 1)[0]), ints(chosen, count))


@compiled
def map_lookup(table: Any, keys: Any, rows: Any, ids: Any, plan: Any, batch: Any) -> None:
    """Do what `hash_map.lookup` does."""
    words = np.int64(plan[WORDS])
    hash_map.lookup(
        plan,
        ints(table, np.int64(plan[TABLE_SIZE])),
        ints(keys, np.int64(plan[CAPACITY]) * words),
        ints(rows, batch * words),
        ints(ids, batch),
    )


@compiled
def map_insert(
    table: Any,
    keys: Any,
    counts: Any,
    counters: Any,
    rows: Any,
    mask: Any,
    ids: Any,
    fresh: Any,
    plan: Any,
    batch: Any,
) -> None:
    """Do what `hash_map.insert` does."""
    words = np.int64(plan[WORDS])
    hash_map.insert(
        plan,
        ints(table, np.int64(plan[TABLE_SIZE])),
        ints(keys, np.int64(plan[CAPACITY]) * words),
        ints(counts, np.int64(plan[CAPACITY])),
        ints(counters, 2),
        ints(rows, batch * words),
        marks(mask, batch),
        ints(ids, batch),
        marks(fresh, batch),
    )
