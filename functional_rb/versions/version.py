"""Values at in-place speed: versioned arrays.

There is one mutable `Memory`, and it belongs to the newest version. Writing takes it over: what will be overwritten
is saved first, and the older version, if anyone still holds it, can be rebuilt from that (H. G. Baker: Shallow
binding makes functional arrays fast, 1991). In the usual loop the older state dies at once and takes the saved rows
with it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence

from functional_rb.base.arrays import BackendArray
from functional_rb.core.draft import Arrays
from functional_rb.structures import sum_tree
from functional_rb.structures.stored_arrays import TREE
from functional_rb.versions.memory import Entry, Memory, Saved
from functional_rb.versions.recorder import Log


class Version:
    """One value of a buffer: its memory, or how it differs from the next version.

    Attributes:
        memory: the memory, if this is its newest version; else None.
        saved: what the next version overwrote, if that has the memory; else None.
        next: that next version.
        lock: held while any version of this lineage is read or written, so that threads see whole items.
    """

    __slots__ = ("__weakref__", "lock", "memory", "next", "saved")

    def __init__(self, memory: Memory, lock: threading.RLock) -> None:
        self.memory: Memory | None = memory
        self.lock = lock
        self.saved: Saved | None = None
        self.next: Version | None = None

    def newest_memory(self) -> tuple[Memory, list[Saved]]:
        """The memory from which this version can be rebuilt, and what newer ones have overwritten there, in order."""
        later: list[Saved] = []
        version = self
        while version.memory is None:
            assert version.saved is not None and version.next is not None
            later.append(version.saved)
            version = version.next
        return version.memory, later

    def own(self) -> Memory:
        """The memory, rebuilt for this version alone if a newer one has it, which nobody reads now. Hold the lock."""
        memory = self.memory or self._rebuild()
        memory.join_stream()
        memory.wait_for_draws()
        return memory

    def _rebuild(self) -> Memory:
        source, later = self.newest_memory()
        memory = source.copy()
        take_back(memory, later)
        # Versions before this one are rebuilt from its memory now, those behind it as before.
        history = list(source.history)
        known = [older() is self for older, _ in history]
        place = known.index(True) if True in known else len(history)
        older, newer = history[:place], history[place + 1 :]
        memory.history, memory.retained = deque(older), sum([n for _, n in older])
        kept = sum([n for _, n in newer])
        # In one step: after an interrupt in its midst nobody would know of the versions that need what is saved.
        source.history, source.retained, self.memory, self.saved, self.next = deque(newer), kept, memory, None, None
        return memory

    def succeed(self, saved: Saved | None) -> Version:
        """The next version, which takes the memory over; if nothing is to be saved, it gets a copy. Hold the lock."""
        memory = self.own()
        if saved is None:
            return Version(memory.copy(), self.lock)
        following = Version(memory, self.lock)
        self.memory, self.saved, self.next = None, saved, following
        memory.history.append((weakref.ref(self), 0))
        return following

    def exchange(self, arrays: Arrays) -> Version:
        """The next version, some of whose arrays are others, and nothing is copied that both have. Hold the lock."""
        memory = self.own()
        other = memory.like(arrays, memory.pinned)
        if memory.pinned:  # nobody writes to it any more, so this version keeps it
            return Version(other, self.lock)
        ours, theirs = memory.by_name, other.by_name
        changed = [name for name in ours | theirs if ours.get(name) is not theirs.get(name)]
        following = self.succeed(Log(Entry(name, False, None, ours.get(name)) for name in changed))
        memory.take(theirs)
        self.count_saved(following)
        return following

    def roll_back(self, following: Version) -> None:
        """Take the memory back from the next version, with all that was written for it; nobody may have seen that one.

        Not if that has not the memory: it has a copy, or a function of the user's has read this version meanwhile.
        """
        if self.next is following and self.saved is not None:
            memory = following.own()
            take_back(memory, [self.saved])
            if memory.history and memory.history[-1][0]() is self:
                memory.retained -= memory.history.pop()[1]
            self.memory, self.saved, self.next = memory, None, None

    def count_saved(self, following: Version) -> None:
        """Count what the next version has saved for this one, now that it is written; if it has the memory.

        Once more is saved than the storage takes, the oldest version gets a copy of its own. If there is no room for
        that copy, the next version has not been.
        """
        if self.next is following and self.saved is not None:
            memory, nbytes = following.own(), self.saved.nbytes
            memory.history[-1] = (weakref.ref(self), nbytes)
            memory.retained += nbytes
            forget_dead(memory)
            try:
                part_with_oldest(memory)
            except OSError:
                self.roll_back(following)
                raise


def take_back(memory: Memory, saved: Sequence[Saved]) -> None:
    """Undo writes, those of several functions in the order in which they were made."""
    arrays, changed = memory.by_name, set[str]()
    for writes in reversed(saved):
        for name, flat, where, old in reversed(writes.writes(memory)):
            changed.add(name)
            if where is not None:
                write = memory.ops.set_flat if flat else memory.ops.set_at
                write(arrays[name], memory.taken(where), memory.taken(old))
            elif old is not None:
                arrays[name] = memory.clone(memory.taken(old))  # as others may be made of the same ones
            else:
                arrays.pop(name, None)  # not there yet, if an interrupt came before it
    memory.take(arrays)
    # Kernels save the leaves that they overwrite, and not the nodes above these, which follow from all leaves.
    if memory.tree is not None and TREE in changed:
        sum_tree.rebuild(memory.ops, memory.tree, memory.rows.shape[0])


def part_with_oldest(memory: Memory) -> None:
    """Give the oldest of the older versions copies of their own, until no more is saved than the storage takes."""
    while memory.retains_too_much and memory.older:
        memory.older[0].own()
        forget_dead(memory)


def part_with_older(memory: Memory) -> None:
    """Give the newest of the older versions a copy, from which those before it are found too."""
    for version in memory.older[-1:]:
        version.own()
    forget_dead(memory)


def forget_dead(memory: Memory) -> None:
    """Drop the versions at the old end that nobody holds any more, or that have memory of their own."""
    while memory.history:
        version = memory.history[0][0]()
        if version is not None and version.memory is None:
            break
        memory.retained -= memory.history.popleft()[1]


def separate(arrays: Arrays, others: Arrays, copy: Callable[[BackendArray], BackendArray]) -> Arrays:
    """Arrays of which those that others are too are replaced by copies."""
    theirs = {id(x) for x in (others.rows, *others.wide, others.tree, others.counters, *others.auxiliary.values())}
    return arrays.each(lambda array: copy(array) if id(array) in theirs else array)
