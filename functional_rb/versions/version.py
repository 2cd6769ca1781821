"""Values at in-place speed: versioned arrays, for libraries whose arrays can be written to (torch, NumPy).

There is one mutable `Memory`, and it belongs to the newest version. Writing takes it over: what will be overwritten
is saved first, and the older version, if anyone still holds it, can be rebuilt from that (H. G. Baker: Shallow
binding makes functional arrays fast, 1991). In the usual loop the older state dies at once and takes the saved rows
with it.

What depends on the library is in a few methods of `Memory`, which each has a subclass of.
"""

from __future__ import annotations

import abc
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np

from functional_rb.base import forks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays
from functional_rb.ops.protocol import Array
from functional_rb.structures import stored_arrays, sum_tree
from functional_rb.structures.stored_arrays import AUXILIARY, ROWS, auxiliary_name, own_name
from functional_rb.versions.object_table import Table

TREE = -1
"""The place of the tree among `Memory.arrays`, if there is one."""
OVERHEAD = 512
"""Bytes that Python and the library take for each small array that is saved, about."""
LEAST = 2**14
"""So many bytes may always be kept for older versions: of a small buffer a copy costs more than its bytes."""
AT_ONCE = 2**20
"""Bytes that are taken back in one go."""
RETAINED_BYTES = 2**30
"""So much is kept in memory for older states of a buffer in files, before the oldest gets files of its own."""


class UndoLogs(Protocol):
    """Where what checkpoints still need of a buffer's own files is kept before it is overwritten."""

    def before_items(self, slots: np.ndarray[Any, Any], /) -> None:
        """Items in some slots, integers [n], are about to be overwritten."""


class Files(Protocol):
    """The mapped files that some arrays of a memory lie in; see `functional_rb.storage.mapped.MappedFiles`."""

    @property
    def rows(self) -> np.ndarray[Any, Any]:
        """The rows, int32 [capacity, words]."""

    @property
    def wide(self) -> tuple[np.ndarray[Any, Any], ...]:
        """The wide leaves' arrays [capacity, *shape]."""

    @property
    def auxiliary(self) -> dict[str, np.ndarray[Any, Any]]:
        """Those of the auxiliary arrays that lie in files, by name."""

    @property
    def undo(self) -> UndoLogs | None:
        """None if no checkpoint needs these files."""

    @property
    def ready(self) -> bool:
        """Whether everything may be written to without further ado."""

    @property
    def complete(self) -> bool:
        """Whether there is room on the disk for all of it."""

    def check_process(self) -> None:
        """Refuse to go on in a forked process."""

    def copy(self) -> Files:
        """The same content in files without a name."""

    def make_room(self, spec: BufferSpec, numbers: np.ndarray[Any, Any], batch: int) -> None:
        """Have room on the disk for what adding a batch may write, or raise `StorageFullError`."""

    def prepare_slots(self, slots: np.ndarray[Any, Any]) -> None:
        """Have room for items in some slots, integers [n], and keep what checkpoints need of them."""


class Memory(abc.ABC):
    """The arrays that a buffer is written into.

    Attributes:
        ops: the primitives of the library, which write in place.
        rows: int32 [capacity, words].
        wide: arrays [capacity, *shape].
        tree: float32 [rows, FANOUT] or None.
        kept: what else the sampler and the writer keep, by name.
        pinned: whether an array has been exported: then it is never written again.
        shared: whether an older version that needs the saved rows may be alive.
        written: whether anything may have been added: a host's knowledge, where looking would wait for a device.
        history: the older versions by age, each with the bytes saved for it.
        retained: the sum of those bytes.
        table: the Python objects whose tokens are in the arrays, if the buffer has such leaves.
        files: the mapped files that rows, wide arrays and frames lie in, if they do.
        fits: whether the arrays have the shapes that the buffer's spec says. What a user's function over a pytree has
            made may have others (a stack of states, say), and kernels would write beyond them.
        placement: where the memory belongs; None for arrays that are only handed on.
        addressed: the addresses of these arrays, as CPU kernels take them; None until a kernel has looked them up.
    """

    __slots__ = (
        "__weakref__",
        "_nbytes",
        "_ordinary",
        "addressed",
        "auxiliary",
        "files",
        "fits",
        "history",
        "pinned",
        "placement",
        "retained",
        "rows",
        "shared",
        "table",
        "tree",
        "wide",
        "written",
    )

    ops: ClassVar[Any]

    def __init__(
        self,
        rows: Array,
        wide: tuple[Array, ...],
        tree: Array | None,
        auxiliary: dict[str, Array],
        pinned: bool = False,
    ) -> None:
        """Take arrays over; pinned if somebody else may hold them."""
        self.rows, self.wide, self.tree, self.auxiliary, self.pinned = rows, wide, tree, auxiliary, pinned
        self.shared = False
        self.written = True
        self.history: deque[tuple[weakref.ref[Version], int]] | None = None
        self.retained = 0
        self.addressed: object = None
        self.table: Table | None = None
        self.files: Files | None = None
        self.fits = True
        self.placement: Any = None
        self._nbytes: int | None = None
        self._ordinary: bool | None = None

    def copy(self) -> Self:
        """Fresh memory with the same content; of mapped files, in files without a name."""
        files = self.copied_files()
        stored = (self.rows, self.wide, self.auxiliary) if files is None else (files.rows, files.wide, files.auxiliary)
        taken = self.clone if files is None else self.taken
        tree = None if self.tree is None else self.clone(self.tree)
        auxiliary = {
            name: taken(stored[2][name]) if name in stored[2] else self.clone(x) for name, x in self.auxiliary.items()
        }
        copied = type(self)(taken(stored[0]), tuple(map(taken, stored[1])), tree, auxiliary)
        copied.files, copied.fits, copied.placement = files, self.fits, self.placement
        if self.table is not None:
            self.table.watch(copied)
        return copied

    def copied_files(self) -> Files | None:
        """What a copy of the memory lies in: files too for what belongs in files, and came from elsewhere."""
        if self.files is not None:
            return self.files.copy()
        return None if self.placement is None else self.placement.filed(self)

    def exported(self) -> Self:
        """Memory whose arrays will never be written again; of mapped files, which stay in use, a copy."""
        if self.files is not None:
            return self.copy()
        self.pinned = True
        return self

    @staticmethod
    @abc.abstractmethod
    def taken(array: np.ndarray[Any, Any]) -> Array:
        """An array of NumPy's as the library has it, in the same memory."""

    @staticmethod
    @abc.abstractmethod
    def as_numpy(array: Array) -> np.ndarray[Any, Any]:
        """An array as NumPy has it, in the same memory where that can be."""

    @staticmethod
    @abc.abstractmethod
    def clone(array: Array) -> Array:
        """A copy of an array."""

    @staticmethod
    @abc.abstractmethod
    def joined(arrays: Sequence[Array]) -> Array:
        """Arrays one after the other, along their first axis."""

    @abc.abstractmethod
    def has_ordinary_arrays(self) -> bool:
        """Whether the arrays are contiguous ones of the library's own, in the CPU's memory."""

    @property
    def is_ordinary(self) -> bool:
        """Whether compiled kernels can read and write the arrays, and these have the spec's shapes; asked once."""
        if self._ordinary is None:
            self._ordinary = self.fits and self.has_ordinary_arrays()
        return self._ordinary

    def write_back(self, array: Array, saved: Sequence[Entry]) -> None:
        """Write to one of the arrays what was there before some writes, the oldest first; of rows all, or of elements.

        Each place is written once, however often it was overwritten.
        """
        if not self.is_ordinary:
            write = self.ops.set_flat if saved[0].flat else self.ops.set_at
            for entry in reversed(saved):
                write(array, entry.where, entry.old)
            return
        target = self.as_numpy(array)
        where = self.as_numpy(self.joined([entry.where for entry in saved]))
        old = self.as_numpy(self.joined([entry.old for entry in saved]))
        places, first = np.unique(where, return_index=True)
        if len(places) < len(where):
            where, old = places, old[first]
        (target.reshape(-1) if saved[0].flat else target)[where] = old

    @property
    def arrays(self) -> list[Array]:
        """All arrays. The tree comes last: those that versions share, whatever their sampler, have the same places."""
        return [self.rows, *self.wide, *self.auxiliary.values(), *([] if self.tree is None else [self.tree])]

    @property
    def by_name(self) -> dict[str, Array]:
        """The same by their names, see `stored_arrays`."""
        auxiliary = {auxiliary_name(name): array for name, array in self.auxiliary.items()}
        tree = {} if self.tree is None else {"tree": self.tree}
        return {**stored_arrays.named(self.rows, self.wide), **auxiliary, **tree}

    def state_arrays(self, counters: Array) -> Arrays:
        """The arrays of a state with these counters."""
        return Arrays(self.rows, self.wide, self.tree, counters, dict(self.auxiliary))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays; summed once, as every write asks."""
        if self._nbytes is None:
            self._nbytes = sum(array.nbytes for array in self.arrays)
        return self._nbytes

    def saved_rows(self) -> Iterator[tuple[Array, Array]]:
        """The rows that are saved for older versions, and of which array of the memory they are."""
        for reference, _ in self.history or ():
            version = reference()
            if version is not None and version.memory is None and version.saved is not None:
                yield from version.saved.pieces(self)

    def forget(self) -> None:
        """What was noted of the arrays: there are others now."""
        self.addressed = self._nbytes = self._ordinary = None

    @property
    def most_retained(self) -> int:
        """Bytes that may be kept for older versions: not more than a copy takes, and of files what memory can bear."""
        most = max(self.nbytes, LEAST)
        return most if self.files is None else min(most, RETAINED_BYTES)


class Entry(NamedTuple):
    """What one write overwrote.

    Attributes:
        array: which of `Memory.arrays`; also counted from the end, as for `TREE`.
        flat: whether the index counts elements of the array seen as a vector, not rows.
        where: int32 [n]; equal places have equal content.
        old: what was there.
    """

    array: int
    flat: bool
    where: Array
    old: Array


class Saved(Protocol):
    """What the next version has overwritten, saved for this one."""

    @property
    def nbytes(self) -> int:
        """Of all that was saved, and of what it takes to keep it."""

    @property
    def leaves(self) -> list[Array]:
        """The leaves of the tree that were saved, int32 vectors; the nodes above follow from them."""

    def writes(self, memory: Memory) -> Sequence[Entry]:
        """What single writes to arrays of the memory overwrote, in their order."""

    def pieces(self, memory: Memory) -> Iterator[tuple[Array, Array]]:
        """The whole rows that were saved, and of which array of the memory."""


class SavedSlots:
    """What was in some slots before a kernel overwrote them.

    Attributes:
        slots: int32 [n]; equal slots come with equal content.
        copies: of the rows and of each wide array, [n, ...]; empty if only priorities were written.
        values: float32 [n], the tree's leaves; None if none were written.
        count: int64 [1], how many of the n are filled in: a kernel saves and writes in one go, after older versions
            know where to look, so that an interrupt in between finds nothing saved and nothing written.
        nbytes: of all of it, and of what it takes to keep it.
    """

    __slots__ = ("copies", "count", "nbytes", "slots", "values")

    def __init__(self, slots: Array, copies: Sequence[Array], values: Array | None) -> None:
        """Take room over that nothing has been saved in yet."""
        self.slots, self.copies, self.values = slots, copies, values
        self.count = np.zeros(1, np.int64)
        arrays = 1 + (values is not None)
        self.nbytes = arrays * slots.nbytes + sum([x.nbytes for x in copies]) + OVERHEAD * (arrays + len(copies))

    @property
    def leaves(self) -> list[Array]:
        """The slots, if their priorities were saved."""
        return [] if self.values is None else [self._filled(self.slots)]

    def writes(self, memory: Memory) -> Sequence[Entry]:
        """Of rows, of wide arrays, and of the tree's leaves."""
        slots, filled = self._filled(self.slots), self._filled
        found = [Entry(k, False, slots, filled(old)) for k, old in enumerate(self.copies)]
        if self.values is not None:
            found.append(Entry(TREE, True, slots, filled(self.values)))
        return found

    def _filled(self, array: Array) -> Array:
        """The part that something was saved in; most often all of it, and slicing is slow."""
        n = int(self.count[0])
        return array if n == array.shape[0] else array[:n]

    def pieces(self, memory: Memory) -> Iterator[tuple[Array, Array]]:
        """Rows, and those of the wide arrays."""
        n = int(self.count[0])
        if self.copies:
            for array, old in zip((memory.rows, *memory.wide), self.copies, strict=True):
                yield array, old[:n]


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

    @property
    def leaves(self) -> list[Array]:
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
        """The memory, rebuilt for this version alone if a newer one has it. Hold the lock."""
        if self.memory is None:
            self._rebuild()
        assert self.memory is not None
        return self.memory

    def _rebuild(self) -> None:
        later: list[Saved] = []
        version = self
        while version.memory is None:
            assert version.saved is not None and version.next is not None
            later.append(version.saved)
            version = version.next
        memory = version.memory.copy()
        take_back(memory, later, self.capacity)
        _divide_history(version.memory, memory, self)
        self.memory, self.saved, self.next = memory, None, None

    def move(self, memory: Memory) -> None:
        """Have the same content in other memory, of this version alone so far. Hold the lock."""
        left = self.own()
        memory.history, memory.retained, memory.shared = left.history, left.retained, left.shared
        memory.written = left.written
        left.history, left.retained, left.shared = None, 0, False
        self.memory = memory

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
        if memory.retained > min(LEAST, RETAINED_BYTES) and memory.retained > memory.most_retained:
            try:
                _part_with_oldest(memory)
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
        leaves.extend(writes.leaves)
    _write_back(memory, entries)
    if leaves and memory.tree is not None:
        changed = memory.joined(leaves)
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


def _part_with_oldest(memory: Memory) -> None:
    """Give the oldest of the older versions a copy of its own."""
    assert memory.history
    oldest = memory.history[0][0]()
    if oldest is not None and oldest.memory is None:
        oldest._rebuild()
    del oldest
    forget_dead(memory)


def _divide_history(source: Memory, memory: Memory, version: Version) -> None:
    """Versions older than one that was rebuilt are found from its memory now, and no longer from the newest."""
    memory.history = deque()
    while source.history:
        older, nbytes = source.history.popleft()
        source.retained -= nbytes
        if older() is version:
            break
        memory.history.append((older, nbytes))
        memory.retained += nbytes
    source.shared, memory.shared = bool(source.history), bool(memory.history)


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
