"""An exact hash map from rows of words to numbers: whether two keys are equal is decided by all of their words.

Open addressing (Knuth, The Art of Computer Programming, vol. 3, section 6.4) with triangular steps, which reach every
place of a table whose size is a power of two. The table holds numbers only; keys lie side by side in the order of their
insertion, and a key's number is its place there. Nothing is ever taken out, so what a key passed on the way to its
place stays filled.

A batch is inserted in rounds, with the result of inserting its keys one by one in their order. It is a stable matching
(Gale and Shapley, 1962): every key asks for the next place on its way, and a place prefers what was in it before, then
the key that is earlier in the batch, which may so drive out a later one that came in an earlier round. All places have
the same order of preference, so there is one stable matching only, that of one by one. Equal keys go the same way in
the same rounds, and the later ones stop as soon as they meet the first.

The arrays may be anything: of a map that is none (`problem` tells) the answers mean nothing, but no place outside of an
array is read or written, and every search ends, after as many steps as the table has places.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final, NamedTuple

import numpy as np

from functional_rb.ops import numpy_ops
from functional_rb.ops.fixed_point import MASK
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops
from functional_rb.ops.random_bits import GAMMA, mix
from functional_rb.structures.ring import INT32_MAX, saturating_add

# In the table: nobody is here.
EMPTY: Final = 2**31 - 1
HASH_BITS: Final = 31
# Keys that a map can hold: the table's size, and a key's number plus its place in a batch, stay below 2^31.
MOST: Final = 2**29
SIZE: Final = 0
REFUSED: Final = 1


class Numbers(NamedTuple):
    """Random numbers of a seed, 31 bits each, that a hash is made of."""

    masks: tuple[int, ...]  # for each word of a key
    factors: tuple[int, ...]  # for each word of a key, odd and not small
    signs: tuple[int, ...]  # for each word of a key, what its sign bit adds
    last: tuple[int, int]  # a mask and a factor for all of them together


@dataclasses.dataclass(frozen=True)
class MapPlan:
    """What is static about a map."""

    capacity: int  # how many keys fit, at most `MOST`
    words: int  # of a key, at least 1
    seed: int = 0  # of the hash
    hash_bits: int = HASH_BITS  # of the hash, 31; tests set fewer, so that all keys collide
    # Places in the table: the smallest power of two of which the keys fill two thirds at most.
    table_size: int = dataclasses.field(init=False, compare=False)
    numbers: Numbers = dataclasses.field(init=False, compare=False, repr=False)  # what the hash is made of

    def __post_init__(self) -> None:
        # A power of two, so that a remainder is a mask; and a third of it empty, so that ways are short and searches
        # end.
        object.__setattr__(self, "table_size", 1 << (-(-3 * self.capacity // 2) - 1).bit_length())
        drawn = [mix(self.seed + (k + 1) * GAMMA) >> 33 for k in range(3 * self.words + 2)]
        # Odd, so that no two words have the same lower half of a product; and large, so that the upper half is mixed.
        factors = [x | 1 << 30 | 1 for x in drawn[self.words : 2 * self.words]]
        last = drawn[-2], drawn[-1] | 1 << 30 | 1
        masks, signs = drawn[: self.words], drawn[2 * self.words : 3 * self.words]
        object.__setattr__(self, "numbers", Numbers(tuple(masks), tuple(factors), tuple(signs), last))


class HashTable(NamedTuple):
    """The arrays of a map."""

    table: Array  # int32 [table_size], the number of the key in each place, or `EMPTY`
    keys: Array  # int32 [capacity, words], by number
    counts: Array  # int32 [capacity], how often each key was put in, by number (stays at 2^31 - 1)
    counters: Array  # int32 [2], how many keys there are, and how many were refused as there was no room (likewise)


def shapes(plan: MapPlan) -> tuple[tuple[int, ...], ...]:
    """The shapes of a map's arrays, in their order; all are int32."""
    return (plan.table_size,), (plan.capacity, plan.words), (plan.capacity,), (2,)


def init(ops: Ops, plan: MapPlan, device: object = None) -> HashTable:
    """An empty map."""
    table, *others = (ops.zeros(shape, "int32", device) for shape in shapes(plan))
    return HashTable(ops.full_like(table, EMPTY), *others)


def homes(ops: Ops, plan: MapPlan, rows: Array) -> Array:
    """Where in the table the way of each row int32 [B, words] begins, int32 [B].

    Each word is multiplied by a number of its own, to 62 bits of which the halves are taken together; then all words
    are taken together, and mixed once more. In whole numbers without an overflow, and so the same everywhere.
    """
    masks, factors, signs, last = plan.numbers
    high, low = ops.mul_wide((rows & MASK) ^ ops.integers(masks, rows), ops.integers(factors, rows))
    mixed = high ^ low ^ ((rows >> 31) & ops.integers(signs, rows))
    while mixed.shape[1] > 1:
        half = mixed.shape[1] // 2
        both = mixed[:, :half] ^ mixed[:, half : 2 * half]
        mixed = ops.concat([both, mixed[:, 2 * half :]], 1) if mixed.shape[1] % 2 else both
    high, low = ops.mul_wide(mixed[:, 0] ^ last[0], ops.full_like(mixed[:, 0], last[1]))
    hashes: Array = (high ^ low) & (2**plan.hash_bits - 1) & (plan.table_size - 1)
    return hashes


# Places and steps taken of those that move on, and of the others as they are.
def _next(plan: MapPlan, ops: Ops, moves: Array, slots: Array, steps: Array) -> tuple[Array, Array]:
    steps = steps + ops.cast(moves, "int32")
    return ops.where(moves, (slots + steps) & (plan.table_size - 1), slots), steps


# The number of each key or -1, the place where the search for it ended, and the steps that led there.
def _find(ops: Ops, plan: MapPlan, map: HashTable, rows: Array) -> tuple[Array, Array, Array]:
    def going_on(waiting: Array, *others: Array) -> Array:
        return ops.count(waiting) > 0

    def look(waiting: Array, ids: Array, slots: Array, steps: Array) -> tuple[Array, Array, Array, Array]:
        entry = ops.take(map.table, slots)
        # Entries from the capacity on are tickets of a batch that is being put in, see `_match`.
        taken = (entry >= 0) & (entry < plan.capacity)
        known = ops.where(taken, entry, ops.full_like(entry, 0))
        same = waiting & taken & ops.all_rows(ops.take(map.keys, known) == rows)
        # An empty place ends the way: a key further on would have been put there. The last condition is for arrays that
        # somebody made by hand, without an empty place.
        waiting = waiting & (entry != EMPTY) & ~same & (steps < plan.table_size - 1)
        slots, steps = _next(plan, ops, waiting, slots, steps)
        return waiting, ops.where(same, entry, ids), slots, steps

    slots = homes(ops, plan, rows)
    nothing = ops.full_like(slots, 0)
    _, ids, slots, steps = ops.while_loop(going_on, look, (nothing == 0, nothing - 1, slots, nothing))
    return ids, slots, steps


@replaceable
def lookup(ops: Ops, plan: MapPlan, map: HashTable, rows: Array) -> Array:
    """The number of each key int32 [B, words], -1 where the map does not have it, int32 [B]."""
    ids: Array = _find(ops, plan, map, rows)[0] if rows.shape[0] else rows[:, 0]
    return ids


@replaceable
def insert(ops: Ops, plan: MapPlan, map: HashTable, rows: Array, mask: Array | None) -> tuple[HashTable, Array, Array]:
    """Put keys in, as if one by one in their order.

    Args:
        plan: of the map.
        map: its arrays, which are written to.
        rows: int32 [B, words].
        mask: bool [B], which of them; None for all.

    Returns:
        The map; the number of each key, -1 where it is masked or was refused, int32 [B]; and whether this is the first
        time that the map got it, bool [B].
    """
    if not rows.shape[0]:
        return map, rows[:, 0], rows[:, 0] < 0
    ids, slots, steps = _find(ops, plan, map, rows)
    wanted = ids < 0
    if mask is not None:
        ids = ops.where(mask, ids, ops.full_like(ids, -1))
        wanted = wanted & mask
    size = ops.maximum(map.counters, ops.full_like(map.counters, 0))[SIZE]
    room = plan.capacity - size
    table, slots, placed, equals = _match(ops, plan, map.table, rows, wanted, slots, steps, room)
    # Those that have a place are all different, and new. There is room for the first of them.
    rank = ops.cumsum(ops.cast(placed, "int32")) - 1
    fresh = placed & (rank < room)
    nothing = ops.full_like(ids, -1)
    new_ids = ops.where(fresh, size + rank, nothing)
    wanted_ids = ops.where(equals < 0, new_ids, ops.take(new_ids, ops.maximum(equals, nothing + 1)))
    ids = ops.where(wanted, wanted_ids, ids)
    counters = saturating_add(ops, map.counters, ops.stack([ops.count(fresh), ops.count(wanted & (wanted_ids < 0))]))
    places = ops.maximum(ids, nothing + 1)
    counts = ops.add_at(map.counts, places, ops.cast(ids >= 0, "int32"))
    counted = ops.take(counts, places)  # less than 0 where it was more than an int32 holds
    counts = ops.set_at(counts, places, ops.where(counted < 0, ops.full_like(counted, INT32_MAX), counted))
    table = _name(ops, plan, table, slots, new_ids)
    return HashTable(table, _keep(ops, map.keys, rows, new_ids, fresh), counts, counters), ids, fresh


def taken_in(
    ops: Ops, plan: MapPlan, map: HashTable, rows: Array, counts: Array, mask: Array
) -> tuple[HashTable, Array]:
    """Put keys in as often as they were put into another map, where each came once.

    Args:
        plan: of the map.
        map: its arrays, which are written to.
        rows: int32 [B, words], all different.
        counts: int32 [B], how often each was put in, at least once.
        mask: bool [B], which of them.

    Returns:
        The map; and the number of each key, -1 where it is masked or was refused, int32 [B].
    """
    map, ids, _ = insert(ops, plan, map, rows, mask)
    places, nothing = ops.maximum(ids, ops.full_like(ids, 0)), ops.full_like(ids, 0)
    more = ops.where(ids < 0, nothing, ops.maximum(counts - 1, nothing))
    added = ops.add_at(map.counts, places, more)
    return map._replace(counts=ops.where(added < 0, ops.full_like(added, INT32_MAX), added)), ids


def live(ops: Ops, map: HashTable) -> Array:
    """Which of a map's rows are keys of it, bool [capacity]."""
    return ops.arange(map.counts.shape[0], like=map.counts) < map.counters[SIZE]


def moved(ops: Ops, new: MapPlan, map: HashTable) -> HashTable:
    """The arrays of another plan with the keys of a map, which have the same numbers; as many as there is room for."""
    keys, like = map.keys, map.counts
    table, *others = (ops.arange(math.prod(shape), like=like).reshape(shape) * 0 for shape in shapes(new))
    fresh = HashTable(table + EMPTY, *others)
    filled, _ = taken_in(ops, new, fresh, keys, map.counts, live(ops, map))
    refused = saturating_add(ops, filled.counters[REFUSED], map.counters[REFUSED])
    return filled._replace(counters=ops.stack([filled.counters[SIZE], refused]))


def _match(
    ops: Ops, plan: MapPlan, table: Array, rows: Array, wanted: Array, slots: Array, steps: Array, room: Array
) -> tuple[Array, Array, Array, Array]:
    """Let new keys go on from where the search for them ended, until they have a place or meet an equal one.

    Returns:
        The table, which holds `capacity` plus its place in the batch for each key that has a place now; the place of
        each, whether it has it, and the first equal key in the batch or -1. Keys for which there is no room may still
        be on their way: all that come before such a key in the batch, and have a place, fill the map.
    """
    ticket = ops.arange(rows.shape[0], like=slots) + plan.capacity
    nobody = ops.full_like(slots, EMPTY)

    def on_the_way(steps: Array, placed: Array, equals: Array) -> Array:
        return wanted & ~placed & (equals < 0) & (steps < plan.table_size)

    def going_on(table: Array, slots: Array, steps: Array, placed: Array, equals: Array) -> Array:
        # The first on the way drives out later keys only, so what has a place before it will keep it.
        before = ops.cumsum(ops.cast(placed, "int32"))
        return ops.count(on_the_way(steps, placed, equals) & (before < room)) > 0

    def ask(
        table: Array, slots: Array, steps: Array, placed: Array, equals: Array
    ) -> tuple[Array, Array, Array, Array, Array]:
        # Of several keys of the batch at one place the first gets it, whatever the order in which a device writes: so
        # the result is that of putting them in one by one.
        table = ops.min_at(table, slots, ops.where(on_the_way(steps, placed, equals), ticket, nobody))
        entry = ops.take(table, slots)
        apart = wanted & (equals < 0)
        placed = apart & (entry == ticket)
        meets = apart & ~placed & _is_ticket(plan, rows, entry)
        other = ops.where(meets, entry - plan.capacity, ops.full_like(entry, 0))
        same = meets & ops.all_rows(ops.take(rows, other) == rows)
        # Whoever was driven out goes on too: it comes to the same places as if it had found this one taken from the
        # first.
        slots, steps = _next(plan, ops, apart & ~placed & ~same, slots, steps)
        return table, slots, steps, placed, ops.where(same, other, equals)

    carry = table, slots, steps, slots < 0, ops.full_like(slots, -1)
    table, slots, _, placed, equals = ops.while_loop(going_on, ask, carry)
    return table, slots, placed, equals


# Which entries of the table stand for one of a batch [B, ...].
def _is_ticket(plan: MapPlan, batch: Array, entry: Array) -> Array:
    return (entry >= plan.capacity) & (entry < plan.capacity + batch.shape[0])


# The table with numbers in place of the batch's tickets, and nobody where there is no room.
def _name(ops: Ops, plan: MapPlan, table: Array, slots: Array, new_ids: Array) -> Array:
    entry = ops.take(table, slots)
    ticket = _is_ticket(plan, new_ids, entry)
    number = ops.take(new_ids, ops.where(ticket, entry - plan.capacity, ops.full_like(entry, 0)))
    number = ops.where(number < 0, ops.full_like(number, EMPTY), number)
    return ops.set_at(table, slots, ops.where(ticket, number, entry))  # equal places say the same


# The keys with the new ones; rows that are not new repeat what the last new one says, or change nothing.
def _keep(ops: Ops, keys: Array, rows: Array, new_ids: Array, fresh: Array) -> Array:
    place = ops.arange(new_ids.shape[0], like=new_ids)
    last = ops.cummax(ops.where(fresh, place, ops.full_like(place, -1)))[-1:]
    at = ops.maximum(last, ops.full_like(last, 0))
    number = ops.where(last < 0, ops.full_like(last, 0), ops.take(new_ids, at))
    row = ops.where((last < 0)[:, None], keys[:1], ops.take(rows, at))
    return ops.set_at(keys, ops.where(fresh, new_ids, number), ops.where(fresh[:, None], rows, row))


def problem(plan: MapPlan, map: HashTable) -> str | None:
    """Why arrays of NumPy, of the right shapes and dtypes, cannot be those of a map; or None.

    Every key has to be found: its number stands once in the table, and every place on the way there is filled. All
    keys that begin in one place share a way, which is gone once.
    """
    size = int(map.counters[SIZE])
    if not 0 <= size <= plan.capacity or map.counters[REFUSED] < 0:
        return f"its counters are {map.counters.tolist()}, and its capacity is {plan.capacity}"
    if (map.counts[:size] < 1).any() or map.counts[size:].any():
        return "its counts are not those of its keys"
    entries = map.table[map.table != EMPTY]
    if len(entries) != size or (np.sort(entries) != np.arange(size)).any():
        return f"its table has not the numbers of its {size} keys, each once"
    keys = np.ascontiguousarray(map.keys[:size])
    if len(np.unique(keys.view(np.dtype((np.void, 4 * plan.words))))) < size:
        return "a key is there twice"
    return _problem_of_ways(plan, map.table, homes(numpy_ops.OPS, plan, keys) if size else map.counts[:0])


# Why keys that begin in these places, int32 [size], are not all found; or None.
def _problem_of_ways(plan: MapPlan, table: Array, begin: Array) -> str | None:
    slots, left = np.unique(begin, return_counts=True)
    home, step = slots.copy(), 0
    while len(slots):
        entry = table[slots]
        if (entry == EMPTY).any():
            return f"the way that begins at place {home[entry == EMPTY][0]} of its table ends before all of its keys"
        step += 1
        left = left - (begin[entry] == home)
        going_on = left > 0
        slots, home, left = (slots[going_on] + step) & (plan.table_size - 1), home[going_on], left[going_on]
    return None
