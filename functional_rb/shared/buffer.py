"""A shared buffer on NumPy arrays: writes under the lock, reads without it; docs/shared.md has the protocol."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from functional_rb import _native
from functional_rb.base.arrays import NumpyArray
from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.counters import BASE, CURSOR, SIZE
from functional_rb.core.draft import Arrays
from functional_rb.core.strategy import Selection
from functional_rb.native import descriptor
from functional_rb.native import shared_control as control
from functional_rb.native.chain import known_buffer
from functional_rb.ops import numpy_ops as host_ops
from functional_rb.shared import files
from functional_rb.shared.files import SharedFiles

T = TypeVar("T")
Array = NumpyArray
# The file that each kind of damage is in, and what it is.
DAMAGES = {
    control.BAD_WORDS: ("control.bin", "its count of writes, or of slots that have room on the disk, is out of range"),
    control.BAD_COUNTERS: ("control.bin", "its cursor, size, or another of its counters is out of range"),
    control.BAD_INTENT: ("control.bin", "what it tells of a write that was cut short is none that could have begun"),
    control.BAD_JOURNAL: ("journal.bin", "it names slots, or priorities, that the buffer cannot have"),
}


class Snapshot(NamedTuple):
    """Copies of the arrays of one moment, as in a state of the spec, and the counters, int32 [SLOT]."""

    rows: Array
    wide: tuple[Array, ...]
    tree: Array
    counters: Array


class SharedBuffer(_native.Shared):
    """A handle of a shared buffer. Arrays given and returned are contiguous, of dtypes as stored.

    Any number of threads, and of forked children, may use one handle. Pickled, it is the path.

    Attributes:
        files: the mapped files.
        spec: of the buffer.
    """

    def __init__(self, files: SharedFiles, spec: BufferSpec) -> None:
        self.files, self.spec = files, spec
        self._known, self._plan = known_buffer(spec), descriptor.encode(spec)
        self._lock, self._control, self._storage = files.lock, files.control, (files.rows, *files.wide)
        self._tree, self._journal = files.tree.reshape(-1), files.journal
        self._room = np.array(files.saves, np.int64)
        self.share()
        self._check(_native.shared_problem_of_control(self._control, self._plan))
        files.reserve_again()

    @classmethod
    def open(cls, spec: BufferSpec) -> SharedBuffer:
        """The buffer that a spec names, made by whoever comes first."""
        return cls(files.open_shared(spec), spec)

    @classmethod
    def attach(cls, spec: BufferSpec, directory: str) -> SharedBuffer:
        """The buffer in a directory, which is there."""
        return cls(files.attach(spec, directory), spec)

    def __reduce__(self) -> tuple[object, ...]:
        return SharedBuffer.attach, (self.spec, self.files.directory)

    # Writing.

    def exclusively(self, work: Callable[[], T]) -> T:
        """Work under the lock, on a buffer that is repaired before, if a process has died in a write, and after."""

        def repaired() -> T:
            self._repair()
            return work()

        return self._lock.hold(repaired, self._repair)

    def _repair(self) -> None:
        arrays = self._storage, self._tree, self._journal
        self._check(_native.shared_repair(self._control, self._plan, *arrays, self._room))

    def _check(self, problem: int) -> None:
        """Refuse what no writer leaves in the files, wherever it died."""
        if problem != control.SOUND:
            name, what = DAMAGES[problem]
            path = os.path.join(self.files.directory, name)
            raise ValueError(f"{path}: {what}; the file is damaged: remove the directory")

    def add(self, leaves: Sequence[Array], batch: int, mask: Array | None, priorities: Array | None) -> None:
        """Write a batch: leaves [B, *shape], mask bool [B], priorities float32 [B].

        Raises:
            StorageFullError: if the disk is full; nothing is written.
        """
        self._check(self.write(batch, mask, None, priorities, leaves))

    def fill(self, arrays: Arrays) -> None:
        """Give an empty buffer the content of a state's arrays. A process that dies doing so leaves it empty.

        Raises:
            FileExistsError: if something was added already.
            StorageFullError: if the disk is full; nothing is written.
        """
        self.exclusively(lambda: self._fill(arrays))

    def _fill(self, arrays: Arrays) -> None:
        old, new = self._vectors()
        if old[CURSOR] or old[SIZE]:
            raise FileExistsError(
                errno.EEXIST,
                "the shared buffer there has items already; rb.init(spec) joins it, and frb.load(..., "
                "storage=frb.Memmap(another_path, shared=True)), or frb.Host(), makes another of the checkpoint",
                self.files.directory,
            )
        cursor, size = arrays.counters[CURSOR], arrays.counters[SIZE]
        stored = int(size) if cursor == size else self.spec.capacity
        self.files.reserve(stored)
        # In the journal it is an add: whoever repairs it empties these slots.
        _native.shared_note_add(self._control, self._plan, stored)
        _native.shared_begin(self._control)
        for array, values in zip(self._storage, (arrays.rows, *arrays.wide), strict=True):
            array[:stored] = values[:stored]
        if arrays.tree is not None:
            self.files.tree[...] = arrays.tree
        new[:BASE] = arrays.counters[:BASE]
        _native.shared_commit(self._control, 0)

    def update(self, handles: Array, priorities: Array | None, replacements: Mapping[int, Array]) -> None:
        """Set priorities float32 [B] and rewrite leaves [B, *shape] of what handles int32 [B] name.

        A piece at a time, as large as the journal has room for: a process that dies has written whole pieces.
        """
        handles = np.ascontiguousarray(handles)
        step = self.files.saves[len(replacements) > 0]
        for start in range(0, handles.size, step):
            chunk = slice(start, start + step)
            new = None if priorities is None else priorities[chunk]
            leaves = [replacements[k][chunk] if k in replacements else None for k in range(len(self.spec.plan.leaves))]
            some = handles[chunk], new, leaves if replacements else []
            self._check(self.write(len(some[0]), None, *some))

    def clear(self) -> None:
        """Take all items out; where the process dies meanwhile, either all or none are."""
        self.exclusively(self._clear)

    def _clear(self) -> None:
        _native.shared_note_clear(self._control)
        _native.shared_begin(self._control)
        _native.shared_empty(self._control, self._tree)
        _native.shared_commit(self._control, 0)

    # The counters in force, int32 [SLOT], and those that the next write puts in force; called under the lock.
    def _vectors(self) -> tuple[Array, Array]:
        finished = int(self._control[control.SEQUENCE]) >> 1
        both = self._control[control.COUNTERS :].view(np.int32)[: 2 * control.SLOT].reshape(2, control.SLOT)
        return both[finished & 1], both[~finished & 1]

    # Reading.

    def counters(self) -> Array:
        """The counters that every state has, int32 [BASE]."""
        return self._of_one_moment(np.copy)[:BASE]

    def lost(self) -> Array:
        """How many items were being added by writers who died, int32 [1]."""
        return self._of_one_moment(np.copy)[control.LOST : control.LOST + 1]

    # What is read by the counters, int32 [SLOT], between two writes; if one comes between at each try, under the lock.
    def _of_one_moment(self, work: Callable[[Array], T], tries: int = 1) -> T:
        counters = np.empty(control.SLOT, np.int32)
        for _ in range(tries):
            sequence = int(_native.shared_read_counters(self._control, counters))
            if sequence & 1:  # a write has been under way for longer than usual
                break
            result = work(counters)
            if _native.shared_unchanged(self._control, sequence):
                return result
        return self.exclusively(lambda: work(self._vectors()[0].copy()))

    def sample(self, random_bits: Array, beta: float) -> tuple[list[Array], Selection]:
        """Choose items by random bits int32 [B, words], and read their leaves.

        Raises:
            ValueError: if nothing can be drawn.
        """
        batch, random_bits = random_bits.shape[0], np.ascontiguousarray(random_bits)
        leaves = self._room_for(batch)
        selection = Selection(np.empty(batch, np.int32), np.empty(batch, np.float32), np.empty(batch, np.float32))

        def work() -> int:
            inputs = self._control, self._plan, self._tree, random_bits, np.float32(beta)
            drawn = selection.handles, selection.weights, selection.probabilities
            outcome: int = _native.shared_draw(self._storage, leaves, *inputs, *drawn)
            return outcome

        if batch and self._read(work) == control.NOTHING:
            checks.check_nonempty(self.spec, False, int(self.counters()[SIZE]))
        return leaves, selection

    def get(self, handles: Array) -> list[Array]:
        """The leaves of the items that handles int32 [B] name, zeros for items that are gone."""
        leaves, live = self._room_for(handles.size), np.zeros(handles.size, np.bool_)
        inputs = self._control, self._plan, np.ascontiguousarray(handles), live.view(np.uint8)
        self._read(lambda: _native.shared_fetch(self._storage, leaves, *inputs))
        for leaf in leaves:
            leaf[~live] = 0
        return leaves

    def look(self, function: Callable[..., Array], *arguments: object) -> Array:
        """What a function of `functional_rb.buffer.functions` reads from the counters and the tree of one moment."""
        mapped = self.files
        tree = None if self.spec.plan.tree_shape is None else mapped.tree

        def work(counters: Array) -> Array:
            arrays = Arrays(mapped.rows, tuple(mapped.wide), tree, counters[:BASE], {})
            return np.array(function(host_ops, arrays, self.spec, *arguments))

        return self._of_one_moment(work, control.TRIES)

    # Read between two writes; if there are too many of them, under the lock.
    def _read(self, work: Callable[[], int]) -> int:
        outcome = work()
        return self.exclusively(work) if outcome == control.TORN else outcome

    def _room_for(self, batch: int) -> list[Array]:
        return [np.empty((batch, *leaf.shape), leaf.stored_as) for leaf in self.spec.plan.layout.leaves]

    def snapshot(self) -> Snapshot:
        """Copies of all arrays, of one moment; writers wait if they would come between."""
        return self._of_one_moment(self._copied)

    def _copied(self, counters: Array) -> Snapshot:
        # Behind what has room on the disk nothing was ever written.
        reserved = int(self.files.control[control.RESERVED])
        rows, *wide = copies = [np.zeros_like(array) for array in self._storage]
        for copied, array in zip(copies, self._storage, strict=True):
            copied[:reserved] = array[:reserved]
        return Snapshot(rows, tuple(wide), self.files.tree.copy(), counters)
