"""The kernels of `structures.hash_map`: one key after another, where the core does a batch in rounds."""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

from functional_rb.cpu_kernels.cache import compiled, entry_point
from functional_rb.cpu_kernels.descriptor import Vector
from functional_rb.cpu_kernels.raw_memory import bools, fetch_ahead, ints
from functional_rb.structures import hash_map
from functional_rb.structures.hash_map import MapPlan

CAPACITY: Final = 0
WORDS: Final = 1
TABLE_SIZE: Final = 2
HASH_BITS: Final = 3
LAST: Final = 4
"""From here: a mask and a factor for all words together; then masks, factors and signs, each as many as words."""
PARTS: Final = 6

EMPTY: Final = np.int32(hash_map.EMPTY)
SIZE: Final = hash_map.SIZE
REFUSED: Final = hash_map.REFUSED
MASK: Final = np.int64(2**31 - 1)
AHEAD: Final = 16
"""So many keys before it is its turn, a key's first place is fetched: the memory answers many at a time."""


@functools.lru_cache(maxsize=1024)
def encode(plan: MapPlan) -> Vector:
    """What the kernels know of a map, read-only."""
    masks, factors, signs, last = plan.numbers
    encoded = np.array([plan.capacity, plan.words, plan.table_size, plan.hash_bits, *last, *masks, *factors, *signs])
    encoded = encoded.astype(np.int32)
    encoded.flags.writeable = False
    return encoded


@compiled
def home(plan: Any, rows: Any, first: Any) -> Any:
    """Where the way of the row that begins at `first` begins: `hash_map.homes`."""
    words = np.int64(plan[WORDS])
    mixed = np.int64(0)
    for k in range(words):
        word = rows[first + k]
        product = ((np.int64(word) & MASK) ^ plan[PARTS + k]) * np.int64(plan[PARTS + words + k])
        mixed ^= (product >> 31) ^ (product & MASK)
        if word < 0:
            mixed ^= np.int64(plan[PARTS + 2 * words + k])
    product = (mixed ^ plan[LAST]) * np.int64(plan[LAST + 1])
    bits = (product >> 31) ^ (product & MASK)
    return bits & ((np.int64(1) << np.int64(plan[HASH_BITS])) - 1) & (np.int64(plan[TABLE_SIZE]) - 1)


@compiled
def seek(plan: Any, table: Any, keys: Any, rows: Any, first: Any, place: Any) -> Any:
    """The place that has the key which begins at `first` of the rows, or the free one where it would go.

    -1 if there is neither, in a table that is none of a map: a map's never fills.
    """
    words, last = np.int64(plan[WORDS]), np.int64(plan[TABLE_SIZE]) - 1
    capacity = np.uint32(plan[CAPACITY])
    for step in range(1, last + 2):
        if table[place] == EMPTY:
            return place
        if np.uint32(table[place]) < capacity:
            other = np.int64(table[place]) * words
            k = np.int64(0)
            while k < words and keys[other + k] == rows[first + k]:
                k += 1
            if k == words:
                return place
        place = (place + step) & last
    return np.int64(-1)


@compiled
def next_home(plan: Any, table: Any, rows: Any, batch: Any, waiting: Any, i: Any) -> Any:
    """The home of row i, of those in `waiting` int64 [AHEAD], where that of row `i + AHEAD - 1` is put and fetched."""
    words = np.int64(plan[WORDS])
    for k in range(i if i == 0 else i + AHEAD - 1, min(i + AHEAD, batch)):
        waiting[k % AHEAD] = home(plan, rows, k * words)
        fetch_ahead(table, 4 * waiting[k % AHEAD])
    return waiting[i % AHEAD]


@compiled
def table_and_keys(plan: Any, table: Any, keys: Any) -> Any:
    """A map's table and its keys at two addresses, both as vectors."""
    return ints(table, np.int64(plan[TABLE_SIZE])), ints(keys, np.int64(plan[CAPACITY]) * np.int64(plan[WORDS]))


@entry_point
def lookup(table: Any, keys: Any, rows: Any, ids: Any, plan: Any, batch: Any) -> None:
    """Do what `hash_map.lookup` does, of rows int32 [batch, words]."""
    words = np.int64(plan[WORDS])
    table, keys = table_and_keys(plan, table, keys)
    rows, ids = ints(rows, batch * words), ints(ids, batch)
    waiting = np.empty(AHEAD, np.int64)
    for i in range(batch):
        place = seek(plan, table, keys, rows, i * words, next_home(plan, table, rows, batch, waiting, i))
        ids[i] = table[place] if place >= 0 and table[place] != EMPTY else np.int32(-1)


@entry_point
def insert(
    table: Any,
    keys: Any,
    counts: Any,
    counters: Any,
    rows: Any,
    marked: Any,
    ids: Any,
    fresh: Any,
    plan: Any,
    batch: Any,
) -> None:
    """Do what `hash_map.insert` does, of rows int32 [batch, words]; marked is 0 if all of them are."""
    words, capacity = np.int64(plan[WORDS]), plan[CAPACITY]
    table, keys = table_and_keys(plan, table, keys)
    counts, counters = ints(counts, np.int64(capacity)), ints(counters, 2)
    rows, marked, ids, fresh = ints(rows, batch * words), bools(marked, batch), ints(ids, batch), bools(fresh, batch)
    waiting = np.empty(AHEAD, np.int64)
    for i in range(batch):
        first = next_home(plan, table, rows, batch, waiting, i)
        ids[i], fresh[i] = -1, 0
        if marked.size and marked[i] == 0:
            continue
        place = seek(plan, table, keys, rows, i * words, first)
        if place < 0 or table[place] == EMPTY:
            number = max(counters[SIZE], np.int32(0))
            if place < 0 or number >= capacity:
                counters[REFUSED] += np.int32(counters[REFUSED] < MASK)
                continue
            for k in range(words):
                keys[np.int64(number) * words + k] = rows[i * words + k]
            table[place], fresh[i] = number, 1
            counters[SIZE] = number + 1
        ids[i] = table[place]
        counts[ids[i]] += np.int32(counts[ids[i]] < MASK)
