"""The protocol of shared buffers on raw memory (docs/shared.md): `functional_rb.shared` calls these between its locks.

Arguments that recur, beside those of `cpu_kernels.buffer`:
    control: address of the words that `shared_control` names.
    journal: int64 [3 + wide], addresses of the slots int32, values float32, and items that a write saves.
    counters: int32 [BASE].
    room: int64 [2], how many slots the journal has room for: with their priorities alone, and with their items.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.core.counters import BASE
from functional_rb.cpu_kernels import buffer, sum_tree
from functional_rb.cpu_kernels.atomics import load_acquire, reads_before, store_release, writes_before
from functional_rb.cpu_kernels.buffer import INT32_MAX, level_field
from functional_rb.cpu_kernels.cache import compiled, entry_point
from functional_rb.cpu_kernels.descriptor import CAPACITY, FIRST_STORAGE, LEVEL_SUMS, LEVELS, MODULUS
from functional_rb.cpu_kernels.raw_memory import bools, copy_bytes, copy_into, floats, ints, load_int32, store_int32
from functional_rb.cpu_kernels.shared_control import (
    ADD,
    CLEAR,
    COUNT,
    COUNTERS,
    FIRST,
    HAS_ROWS,
    KIND,
    LOST,
    RESERVED,
    SEQUENCE,
    SLOT,
    SLOT_WORDS,
    UPDATE,
)
from functional_rb.ops.fixed_point import LARGEST

TORN, NOTHING, DRAWN = -1, 0, 1
"""What the functions that read return: there were writes all the time; there is nothing to draw or read; it is done."""
SOUND, BAD_WORDS, BAD_COUNTERS, BAD_INTENT, BAD_JOURNAL = 0, 1, 2, 3, 4
"""What `repair` and `problem_of_control` find."""
INFINITY = 0x7F800000
"""The bits of that float32."""
SPINS = 5000
"""How often a reader looks whether a write is over: some 10 us, longer than a usual write takes."""
TRIES = 8
"""How often it reads anew, because there was a write meanwhile."""


@compiled
def vector_at(control: Any, sequence: Any) -> Any:
    """The address of the counters that are in force at a sequence number, even or odd."""
    return control + 8 * (COUNTERS + SLOT_WORDS * ((sequence >> 1) & 1))


@compiled
def word(control: Any, place: Any) -> Any:
    """One int64 word of the control file."""
    return load_acquire(control + 8 * place)


@compiled
def set_word(control: Any, place: Any, value: Any) -> None:
    """Set one word of the control file."""
    store_release(control + 8 * place, np.int64(value))


@entry_point
def begin(control: Any) -> None:
    """A write begins: its intent is in the journal, and none of it elsewhere yet."""
    set_word(control, SEQUENCE, word(control, SEQUENCE) + 1)
    writes_before()


@entry_point
def commit(control: Any, lost: Any) -> None:
    """End a write: one store puts the new counters in force, of which the first BASE are there already."""
    sequence = word(control, SEQUENCE)
    old, new = vector_at(control, sequence), vector_at(control, sequence + 1)
    copy_bytes(new + 4 * BASE, old + 4 * BASE, 4 * (SLOT - BASE))
    store_int32(new + 4 * LOST, np.int32(min(np.int64(load_int32(old + 4 * LOST)) + lost, INT32_MAX)))
    set_word(control, SEQUENCE, sequence + 1)


@compiled
def sequence_between_writes(control: Any) -> Any:
    """The sequence number once no write is under way; an odd one if that takes long, as where the writer has died."""
    sequence = word(control, SEQUENCE)
    for _ in range(SPINS):
        if sequence & 1 == 0:
            break
        sequence = word(control, SEQUENCE)
    return sequence


@entry_point
def unchanged(control: Any, sequence: Any) -> Any:
    """Whether no write has begun since the sequence number was read: all that was read since is of one moment."""
    reads_before()
    return word(control, SEQUENCE) == sequence


@entry_point
def read_counters(control: Any, counters: Any) -> Any:
    """Copy the counters in force, int32 [SLOT] or less; returns their sequence number, an odd one if it could not."""
    for _ in range(TRIES):
        sequence = sequence_between_writes(control)
        if sequence & 1 == 0:
            copy_into(counters, 0, vector_at(control, sequence), 4 * counters.size)
            if unchanged(control, sequence):
                return sequence
    return np.int64(1)


@entry_point
def note_add(control: Any, plan: Any, marked: Any) -> None:
    """Note in the journal which slots an add will write; it saves nothing, as these slots hold the oldest items."""
    capacity = np.int64(plan[CAPACITY])
    cursor = np.int64(load_int32(vector_at(control, word(control, SEQUENCE))))
    set_word(control, KIND, ADD)
    set_word(control, FIRST, (cursor + max(marked - capacity, 0)) % capacity)
    set_word(control, COUNT, min(marked, capacity))


@entry_point
def note_update(control: Any, plan: Any, storage: Any, tree: Any, journal: Any, handles: Any, has_rows: Any) -> Any:
    """Save in the journal what an update will overwrite, for which it has room; returns of how many slots."""
    counters = ints(vector_at(control, word(control, SEQUENCE)), BASE)
    slots, values = ints(journal[0], handles.size), floats(journal[1], handles.size)
    live = np.int64(0)
    for i in range(handles.size):
        slot = buffer.locate(plan, counters, np.int64(handles[i]))
        if slot >= 0:
            slots[live] = slot
            if plan[LEVELS]:
                values[live] = tree[slot]
            if has_rows:
                buffer.save_item(plan, storage, slot, journal[2:], live)
            live += 1
    set_word(control, KIND, UPDATE)
    set_word(control, COUNT, live)
    set_word(control, HAS_ROWS, has_rows)
    return live


@entry_point
def note_clear(control: Any) -> None:
    """Note in the journal that all items will be taken out."""
    set_word(control, KIND, CLEAR)


@entry_point
def empty(control: Any, tree: Any) -> None:
    """Take all items out of the tree, and of the counters that will be in force after this write."""
    sequence = word(control, SEQUENCE)
    new = vector_at(control, sequence + 1)
    copy_bytes(new, vector_at(control, sequence), 4 * BASE)
    counters = ints(new, BASE)
    counters[buffer.SIZE] = 0
    counters[buffer.PEAK] = 0
    tree[:] = 0


@entry_point
def problem_of_control(control: Any, plan: Any) -> Any:
    """SOUND, or what of the control file no writer leaves so, whoever died: any process may have written anything."""
    capacity = np.int64(plan[CAPACITY])
    sequence, reserved = word(control, SEQUENCE), word(control, RESERVED)
    if sequence < 0 or reserved < 0 or reserved > capacity:
        return BAD_WORDS
    counters = ints(vector_at(control, sequence), SLOT)
    cursor, size = np.int64(counters[buffer.CURSOR]), np.int64(counters[buffer.SIZE])
    if cursor < 0 or cursor >= np.int64(plan[MODULUS]) or size < 0 or size > capacity:
        return BAD_COUNTERS
    for place in range(BASE):
        if counters[place] < 0:
            return BAD_COUNTERS
    # Read after the counters: it only grows, and room is taken before anything is written.
    if max(size, min(cursor, capacity)) > word(control, RESERVED):
        return BAD_WORDS
    return BAD_COUNTERS if counters[buffer.PEAK] >= INFINITY or counters[LOST] < 0 else SOUND


@compiled
def begun(kind: Any, first: Any, count: Any, has_rows: Any, capacity: Any, reserved: Any, room: Any) -> Any:
    """Whether a write can have begun that the control file tells of so; it had room for what it was to write."""
    if kind == ADD:
        last = first + count if first + count <= capacity else capacity
        return 0 <= first < capacity and 0 <= count <= capacity and last <= reserved
    if kind == UPDATE:
        return 0 <= has_rows <= 1 and 0 <= count <= room[has_rows]
    return kind == CLEAR


@entry_point
def repair(control: Any, plan: Any, storage: Any, tree: Any, journal: Any, room: Any) -> Any:
    """Undo the write of a process that has died, if there is one; a process that dies here leaves it to the next.

    An add may have damaged the oldest items, which it was to replace: they are given up. An update is undone from the
    journal. A clear is carried on to its end. Returns SOUND, or what is damaged: then nothing has been changed.
    """
    sequence = word(control, SEQUENCE)
    problem = problem_of_control(control, plan)
    if sequence & 1 == 0 or problem != SOUND:
        return problem
    kind, count, has_rows = word(control, KIND), word(control, COUNT), word(control, HAS_ROWS)
    first, capacity, lost = word(control, FIRST), np.int64(plan[CAPACITY]), np.int64(0)
    reserved = word(control, RESERVED)
    if not begun(kind, first, count, has_rows, capacity, reserved, room):
        return BAD_INTENT
    saved = count if kind == UPDATE else np.int64(0)
    slots, values = ints(journal[0], saved).copy(), floats(journal[1], saved).copy()
    for i in range(saved):
        if slots[i] < 0 or slots[i] >= reserved or (plan[LEVELS] and not 0 <= values[i] <= LARGEST):
            return BAD_JOURNAL
    old, new = vector_at(control, sequence), vector_at(control, sequence + 1)
    copy_bytes(new, old, 4 * BASE)
    if kind == CLEAR:
        empty(control, tree)
    elif kind == ADD:
        counters = ints(new, BASE)
        lost = count
        counters[buffer.SIZE] = min(np.int64(counters[buffer.SIZE]), capacity - count)
        clear(plan, storage, tree, first, count)
    else:
        undo(plan, storage, tree, journal, slots, values, has_rows)
    commit(control, lost)
    return SOUND


@compiled
def clear(plan: Any, storage: Any, tree: Any, first: Any, count: Any) -> None:
    """Make slots around the ring as if they had never been written."""
    capacity = np.int64(plan[CAPACITY])
    head = min(count, capacity - first)
    for start, n in ((first, head), (np.int64(0), count - head)):
        for array in range(storage.size):
            size = np.int64(plan[FIRST_STORAGE + array])
            bools(storage[array] + start * size, n * size)[:] = 0
        if plan[LEVELS] and n:
            tree[start : start + n] = 0
            buffer.refresh_range(plan, tree, start, n)


@compiled
def undo(plan: Any, storage: Any, tree: Any, journal: Any, slots: Any, values: Any, has_rows: Any) -> None:
    """Write back the priorities and items that the journal has saved, of slots int32 [n] that were looked at."""
    if has_rows:
        for place in range(slots.size):
            for array in range(storage.size):
                size = np.int64(plan[FIRST_STORAGE + array])
                copy_bytes(storage[array] + np.int64(slots[place]) * size, journal[2 + array] + place * size, size)
    if plan[LEVELS]:
        buffer.set_leaves(plan, tree, slots, values)


@entry_point
def draw(
    storage: Any,
    leaves: Any,
    control: Any,
    plan: Any,
    tree: Any,
    random_bits: Any,
    beta: Any,
    handles: Any,
    weights: Any,
    probabilities: Any,
) -> Any:
    """Do what `buffer.draw` does at a moment between two writes. Returns TORN, NOTHING or DRAWN.

    The slots are known to be right before their rows are read: beyond those in use, files have no room on the disk.
    """
    slots, counters = np.empty(handles.size, np.int32), np.empty(BASE, np.int32)
    for _ in range(TRIES):
        sequence = read_counters(control, counters)
        if sequence & 1:
            return TORN
        if plan[LEVELS]:
            found = buffer.draw_prioritized(
                plan, tree, counters, random_bits, beta, slots, handles, weights, probabilities
            )
        else:
            found = buffer.draw_uniform(plan, counters, random_bits, slots, handles, weights, probabilities)
        if not unchanged(control, sequence):
            continue
        if not found:
            return NOTHING
        buffer.load_items(plan, storage, slots, leaves)
        if unchanged(control, sequence):
            return DRAWN
    return TORN


@entry_point
def fetch(storage: Any, leaves: Any, control: Any, plan: Any, handles: Any, live: Any) -> Any:
    """Read items by handle, if leaves are given, and which of them are live, uint8 [B]. Returns TORN, NOTHING or DRAWN.

    In place of an item that is gone some other is read; NOTHING is returned if the buffer is empty.
    """
    slots, counters = np.empty(handles.size, np.int32), np.empty(BASE, np.int32)
    for _ in range(TRIES):
        sequence = read_counters(control, counters)
        if sequence & 1:
            return TORN
        for i in range(handles.size):
            slots[i] = buffer.locate(plan, counters, np.int64(handles[i]))
            live[i] = slots[i] >= 0
            if slots[i] < 0:
                slots[i] = (np.int64(counters[buffer.CURSOR]) - 1) % np.int64(plan[CAPACITY])
        if counters[buffer.SIZE] == 0:
            return NOTHING
        if leaves.size:
            buffer.load_items(plan, storage, slots, leaves)
        if unchanged(control, sequence):
            return DRAWN
    return TORN


@entry_point
def can_draw(control: Any, plan: Any, tree: Any, n: Any) -> Any:
    """Whether n items are stored and not all have probability zero. Returns TORN, NOTHING (no) or DRAWN (yes)."""
    counters = np.empty(BASE, np.int32)
    for _ in range(TRIES):
        sequence = read_counters(control, counters)
        if sequence & 1:
            return TORN
        found = counters[buffer.SIZE] >= n
        if plan[LEVELS]:
            found = found and sum_tree.add_up(tree, level_field(plan, plan[LEVELS] - 1, LEVEL_SUMS)) > 0
        if unchanged(control, sequence):
            return DRAWN if found else NOTHING
    return TORN
