"""Values at in-place speed: versioned arrays.

There is one mutable `Memory`, and it belongs to the newest version. Writing takes it over: what will be overwritten
is saved first, and the older version, if anyone still holds it, can be rebuilt from that (H. G. Baker: Shallow
binding makes functional arrays fast, 1991). In the usual loop the older state dies at once and takes the saved rows
with it.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from functional_rb.base import forks
from functional_rb.core.draft import Arrays
from functional_rb.ops.protocol import Array
from functional_rb.structures import sum_tree
from functional_rb.structures.stored_arrays import AUXILIARY, ROWS, own_name
from functional_rb.versions.memory import Entry, Memory, Saved
from functional_rb.versions.object_table import Table

TREE = -1
"""The place of the tree among `Memory.arrays`, if there is one."""
AT_ONCE = 2**20
"""Bytes that are taken back in one go."""


class Exchanged:
    """The arrays of a version that the next one has not written to, but has others in place of.

    Attributes:
        places: where each array, by name, is among `Memory.arrays`.
        arrays: those that are not the next version's too.
        placement: `Memory.placement`.
        nbytes: of these arrays.
    """

    __slots__ = ("arrays", "nbytes", "placement", "places")

    def __init__(self, memory: Memory, following: Memory) -> None:
        """Of the memories of both versions."""
        others, own = following.by_name, memory.by_name
        self.places = {name: k for k, name in enumerate(own)}
        self.arrays = {name: array for name, array in own.items() if others.get(name) is not array}
        self.placement = memory.placement
        self.nbytes = sum([array.nbytes for array in self.arrays.values()])

    def leaves(self, memory: Memory) -> list[Array]:
        """None: the whole tree is here."""
        return []

    def writes(self, memory: Memory) -> Sequence[Entry]:
        """No writes, as nothing is recorded here."""
        return ()

    def restore(self, memory: Memory) -> None:
        """Put copies of them back, as others may be made of the same ones."""
        there = memory.by_name | {name: memory.clone(array) for name, array in self.arrays.items()}
        memory.rows = there[ROWS]
        memory.auxiliary = {own_name(name): there[name] for name in self.places if name.startswith(AUXILIARY)}
        memory.tree = there["tree"] if "tree" in self.places else None
        memory.placement = self.placement
        memory.forget()

    def pieces(self, memory: Memory) -> Iterator[tuple[Array, Array]]:
        """These arrays, where the memory has such too."""
        there = memory.by_name
        return ((there[name], array) for name, array in self.arrays.items() if name in there)


class Version:
    """One value of a buffer: its memory, or how it differs from the next version.

    Attributes:
        memory: if this is the newest version of it.
        saved: else, what the next version overwrote.
        next: and that version.
        lock: held while any version of this lineage is read or written, so that threads see whole items.
    """

    __slots__ = ("__weakref__", "capacity", "lock", "memory", "next", "saved")

    def __init__(self, memory: Memory, capacity: int, lock: threading.RLock) -> None:
        """The newest version of a memory."""
        self.memory: Memory | None = memory
        self.capacity = capacity
        self.lock = lock
        self.saved: Saved | None = None
        self.next: Version | None = None

    def own(self) -> Memory:
        """The memory, rebuilt for this version alone if a newer one has it, which nobody reads now. Hold the lock."""
        if self.memory is None:
            self._rebuild()
        assert self.memory is not None
        self.memory.wait_for_draws()
        return self.memory

    def _rebuild(self) -> None:
        later: list[Saved] = []
        version = self
        while version.memory is None:
            assert version.saved is not None and version.next is not None
            later.append(version.saved)
            version = version.next
        source, memory = version.memory, version.memory.copy()
        take_back(memory, later, self.capacity)
        older, newer = _divided(source, self)
        memory.history, memory.retained, memory.shared = deque(older), sum([n for _, n in older]), bool(older)
        kept, shared = sum([n for _, n in newer]), bool(newer)
        # In one step: after an interrupt in its midst nobody would know of the versions that need what is saved.
        source.history, source.retained, source.shared, self.memory, self.saved, self.next = (
            *(deque(newer), kept, shared),
            *(memory, None, None),
        )

    def move(self, memory: Memory) -> None:
        """Have the same content in other memory, of this version alone so far. Hold the lock."""
        left = self.own()
        memory.history, memory.retained, memory.shared = left.history, left.retained, left.shared
        memory.written = left.written
        left.history, left.retained, left.shared, self.memory = None, 0, False, memory

    def succeed(self, memory: Memory, saved: Saved | None) -> Version:
        """The next version, which takes the memory over; `saved` is None if the memory is a copy."""
        following = Version(memory, self.capacity, self.lock)
        if saved is not None:
            self.memory, self.saved, self.next = None, saved, following
            self._count(memory, saved.nbytes)
        return following

    def exchange(self, arrays: Arrays, placement: Any) -> Version:
        """The next version, some of whose arrays are others: those of rows may be, the wide ones are not.

        So nothing is copied that both have. Hold the lock.
        """
        memory = self.own()
        following = type(memory)(arrays.rows, memory.wide, arrays.tree, arrays.auxiliary, memory.pinned)
        following.files, following.placement, following.written = memory.files, placement, memory.written
        if memory.table is not None:
            memory.table.watch(following)
        if memory.pinned:  # nobody writes to it any more, so this version keeps it
            return Version(following, self.capacity, self.lock)
        following.history, following.retained, following.shared = memory.history, memory.retained, memory.shared
        return self.succeed(following, Exchanged(memory, following))

    def roll_back(self) -> None:
        """Take the memory back from a next version that nobody has seen, with all that was written for it."""
        if self.next is not None:
            assert self.saved is not None
            memory = self.next.own()
            take_back(memory, [self.saved], self.capacity)
            if memory.history and memory.history[-1][0]() is self:
                memory.retained -= memory.history.pop()[1]
            self.memory, self.saved, self.next = memory, None, None

    def count_saved(self) -> None:
        """Count what the next version has saved for this one since it took the memory over."""
        if self.next is None or self.saved is None or self.next.memory is None:
            return
        memory = self.next.memory
        if memory.history and memory.history[-1][0]() is self:
            memory.retained -= memory.history.pop()[1]
            self._count(memory, self.saved.nbytes)

    def _count(self, memory: Memory, nbytes: int) -> None:
        """Count what is saved for this version; once that is more than the storage, the oldest gets a copy of its own.

        If there is no room for that copy, nothing has happened.
        """
        if memory.history is None:
            memory.history = deque()
        memory.history.append((weakref.ref(self), nbytes))
        memory.retained += nbytes
        memory.shared = True
        forget_dead(memory)
        if memory.retains_too_much:
            try:
                part_with_oldest(memory)
            except OSError:
                self.roll_back()
                raise


def take_back(memory: Memory, saved: Sequence[Saved], capacity: int) -> None:
    """Undo writes, those of several functions in the order in which they were made."""
    entries: list[Entry] = []
    leaves: list[Array] = []
    for writes in reversed(saved):
        if isinstance(writes, Exchanged):
            _write_back(memory, entries)
            writes.restore(memory)
            entries = []
            if "tree" in writes.arrays:
                leaves = []
        entries.extend(reversed(writes.writes(memory)))
        leaves.extend(writes.leaves(memory))
    _write_back(memory, entries)
    if leaves and memory.tree is not None:
        changed = memory.taken(memory.in_numpy(leaves)) if memory.is_ordinary else memory.joined(leaves)
        if len(changed) * sum_tree.FANOUT < capacity:
            sum_tree.refresh(memory.ops, memory.tree, capacity, changed)
        else:
            sum_tree.rebuild(memory.ops, memory.tree, capacity)


def _write_back(memory: Memory, entries: Sequence[Entry]) -> None:
    """Entries of all arrays, the newest first: as many at once as fit into a cache."""
    arrays, waiting = memory.arrays, defaultdict[int, list[Entry]](list)
    sizes = [0] * len(arrays)
    for entry in entries:
        k = entry.array % len(arrays)
        together = waiting[k]
        # Rows and elements of an array may overlap.
        if together and (sizes[k] >= AT_ONCE or together[-1].flat != entry.flat):
            memory.write_back(arrays[k], together[::-1])
            together.clear()
            sizes[k] = 0
        together.append(entry)
        sizes[k] += entry.old.nbytes
    for k, together in waiting.items():
        if together:
            memory.write_back(arrays[k], together[::-1])


def part_with_oldest(memory: Memory) -> None:
    """Give the oldest of the older versions a copy of its own."""
    assert memory.history
    oldest = memory.history[0][0]()
    if oldest is not None and oldest.memory is None:
        oldest._rebuild()
    del oldest
    forget_dead(memory)


def _divided(source: Memory, version: Version) -> tuple[list[Any], list[Any]]:
    """The history up to a version that was rebuilt, whose own memory those before are found from now, and the rest."""
    history = list(source.history or ())
    known = [older() is version for older, _ in history]
    place = known.index(True) if True in known else len(history)
    return history[:place], history[place + 1 :]


def forget_dead(memory: Memory) -> None:
    """Drop the versions at the old end that nobody holds any more, or that have memory of their own."""
    history = memory.history
    while history:
        version = history[0][0]()
        if version is not None and version.memory is None:
            break
        memory.retained -= history.popleft()[1]
    memory.shared = bool(history)


def part_with_older(memory: Memory) -> None:
    """Give the newest of the older versions a copy, from which those before it are found too."""
    while memory.history:
        version = memory.history[-1][0]()
        if version is not None and version.memory is None:
            version._rebuild()  # which empties the history
        else:
            memory.retained -= memory.history.pop()[1]
    memory.shared = False


def separate(arrays: Arrays, others: Arrays, copy: Callable[[Array], Array]) -> Arrays:
    """Arrays of which those that others are too are replaced by copies."""
    theirs = {id(x) for x in (others.rows, *others.wide, others.tree, others.counters, *others.auxiliary.values())}

    return arrays.each(lambda array: copy(array) if id(array) in theirs else array)


def begin(memory: Memory, capacity: int, table: Table | None = None) -> Version:
    """The first version of a lineage, with a table if there are Python objects."""
    if table is None:
        return Version(memory, capacity, forks.lock())
    with table.lock:
        table.watch(memory)
    return Version(memory, capacity, table.lock)
