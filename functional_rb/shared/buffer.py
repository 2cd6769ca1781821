"""A shared buffer on NumPy arrays: writes under the lock, reads without it; docs/shared.md has the protocol."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.counters import BASE, CURSOR, SIZE
from functional_rb.core.draft import Arrays
from functional_rb.cpu_kernels import calls, descriptor
from functional_rb.cpu_kernels import shared as native
from functional_rb.cpu_kernels import shared_control as control
from functional_rb.cpu_kernels.addresses import Held, Placed, of_numpy, storage_caller
from functional_rb.ops import numpy_ops as host_ops
from functional_rb.samplers import Selection
from functional_rb.shared import files, places
from functional_rb.shared.files import SharedFiles
from functional_rb.structures.row_layout import STORED_AS

T = TypeVar("T")
Array = np.ndarray[Any, Any]
NONE = Placed(np.empty(0, np.int32))
"""Stands for an array that is not given."""
NO_ROOM = (0, np.empty(1, np.int64))
"""The kernels' own way of saving what they overwrite is not used here."""

call = storage_caller(of_numpy)


class Snapshot(NamedTuple):
    """Copies of the arrays of one moment, as in a state of the spec, and the counters, int32 [SLOT]."""

    rows: Array
    wide: tuple[Array, ...]
    tree: Array
    counters: Array


@dataclasses.dataclass(frozen=True, eq=False)
class SharedBuffer:
    """A handle of a shared buffer. Arrays given and returned are contiguous; dtypes are those of storage (`KEPT_AS`).

    Any number of threads, and of forked children, may use one handle. Pickled, it is the path.

    Attributes:
        files: the mapped files.
        spec: of the buffer.
    """

    files: SharedFiles
    spec: BufferSpec
    _plan: Any = dataclasses.field(init=False, repr=False)
    _storage: Held = dataclasses.field(init=False, repr=False)
    _control: int = dataclasses.field(init=False, repr=False)
    _tree: Array = dataclasses.field(init=False, repr=False)
    _placed_tree: Placed = dataclasses.field(init=False, repr=False)
    _counters: tuple[Placed, Placed] = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Look up where all lies."""
        found, tree = self.files, self.files.tree.reshape(-1)
        for name, value in {
            "_plan": descriptor.encode(self.spec, found.layout),
            "_storage": Held([found.rows, *found.wide]),
            "_control": of_numpy(found.control),  # which the files hold, and this holds the files
            "_tree": tree,
            "_placed_tree": Placed(tree),
            "_counters": (Placed(self._vector(0)), Placed(self._vector(1))),
        }.items():
            object.__setattr__(self, name, value)

    @classmethod
    def open(cls, spec: BufferSpec) -> SharedBuffer:
        """The buffer that a spec names, made by whoever comes first."""
        return cls(files.open_shared(spec), spec)

    @classmethod
    def attach(cls, spec: BufferSpec, directory: str) -> SharedBuffer:
        """The buffer in a directory, which is there."""
        return cls(files.attach(spec, directory), spec)

    def __reduce__(self) -> tuple[Any, ...]:
        """By the path."""
        return SharedBuffer.attach, (self.spec, self.files.directory)

    # Writing.

    def exclusively(self, work: Callable[[], T]) -> T:
        """Do something under the lock, with the buffer whole: before, after those who died; after, if it fails."""

        def whole() -> T:
            self._repair()
            return work()

        return self.files.lock.hold(whole, self._repair)

    def _repair(self) -> None:
        native.repair(self._control, self._plan, self._storage.vector, self._tree, self.files.journal)

    def add(self, leaves: Sequence[Array], batch: int, mask: Array | None, priorities: Array | None) -> None:
        """Write a batch: leaves [B, *shape], mask bool [B], priorities float32 [B].

        Raises:
            StorageFullError: if the disk is full; nothing is written.
        """
        marked = batch if mask is None else int(np.count_nonzero(mask))
        if marked:
            self.exclusively(lambda: self._add(leaves, batch, marked, mask, priorities))

    def _add(
        self, leaves: Sequence[Array], batch: int, marked: int, mask: Array | None, priorities: Array | None
    ) -> None:
        old, new = self._vectors()
        capacity = self.spec.capacity
        self.files.reserve(min(int(old.array[CURSOR]) % capacity + marked, capacity))
        native.note_add(self._control, self._plan, marked)
        native.begin(self._control)
        call(
            calls.add,
            (self._placed_tree, old, new, _some(mask), _some(priorities), NONE, NONE),
            self._storage,
            leaves,
            self._plan,
            self._tree.size,
            batch,
            *NO_ROOM,
        )
        native.commit(self._control, 0)

    def fill(self, arrays: Arrays) -> None:
        """Give an empty buffer the content of a state's arrays. One who dies at it leaves it empty.

        Raises:
            FileExistsError: if something was added already.
            StorageFullError: if the disk is full; nothing is written.
        """
        self.exclusively(lambda: self._fill(arrays))

    def _fill(self, arrays: Arrays) -> None:
        found, given = self._in_force(), arrays.counters
        if found[CURSOR] or found[SIZE]:
            raise FileExistsError(
                errno.EEXIST,
                "the shared buffer there has items already; rb.init(spec) joins it, and frb.load(..., "
                "storage=frb.Memmap(another_path, shared=True)), or frb.Host(), makes another of the checkpoint",
                self.files.directory,
            )
        stored = int(given[SIZE]) if given[CURSOR] == given[SIZE] else self.spec.capacity
        self.files.reserve(stored)
        # As an add is: whoever repairs it empties these slots.
        native.note_add(self._control, self._plan, stored)
        native.begin(self._control)
        of_all = [array[:stored] for array in arrays.wide]
        rows, wide = places.moved(arrays.rows[:stored], of_all, self.spec.layout, self.files.layout)
        for array, values in zip((self.files.rows, *self.files.wide), (rows, *wide), strict=True):
            array[:stored] = values
        if arrays.tree is not None:
            self.files.tree[...] = arrays.tree
        self._to_come()[:BASE] = given[:BASE]
        native.commit(self._control, 0)

    def update(self, handles: Array, priorities: Array | None, replacements: Mapping[int, Array]) -> None:
        """Set priorities float32 [B] and rewrite leaves [B, *shape] of what handles int32 [B] name.

        A piece at a time, as many as the journal has room for: whoever dies leaves whole pieces.
        """
        handles = _writable(handles)
        step = files.room(self.spec) if replacements else files.slots(self.spec)
        for start in range(0, handles.size, step):
            stop = min(start + step, handles.size)
            some = {k: leaf[start:stop] for k, leaf in replacements.items()}
            new = None if priorities is None else priorities[start:stop]
            self._update_piece(handles[start:stop], new, some)

    def _update_piece(self, handles: Array, priorities: Array | None, replacements: Mapping[int, Array]) -> None:
        leaves = [_some(replacements.get(k)) for k in range(len(self.spec.leaves))] if replacements else []

        def work() -> None:
            tree, journal, storage = self._tree, self.files.journal, self._storage.vector
            old, new = self._vectors()
            native.note_update(self._control, self._plan, storage, tree, journal, handles, len(replacements) > 0)
            native.begin(self._control)
            call(
                calls.update,
                (self._placed_tree, old, new, handles, _some(priorities), NONE, NONE),
                self._storage,
                leaves,
                self._plan,
                tree.size,
                handles.size,
                len(leaves),
                *NO_ROOM,
            )
            native.commit(self._control, 0)

        self.exclusively(work)

    def clear(self) -> None:
        """Take all items out. One who dies at it has either done so or not."""
        self.exclusively(self._clear)

    def _clear(self) -> None:
        native.note_clear(self._control)
        native.begin(self._control)
        native.empty(self._control, self._tree)
        native.commit(self._control, 0)

    def _vectors(self) -> tuple[Placed, Placed]:
        """Under the lock: the counters in force, int32 [SLOT], and those to come."""
        finished = int(self.files.control[control.SEQUENCE]) >> 1
        return self._counters[finished & 1], self._counters[~finished & 1]

    def _in_force(self) -> Array:
        """Under the lock: the counters in force, int32 [SLOT]."""
        return self._vector(int(self.files.control[control.SEQUENCE]) >> 1)

    def _to_come(self) -> Array:
        """Likewise those that the write under way puts in force."""
        return self._vector((int(self.files.control[control.SEQUENCE]) >> 1) + 1)

    def _vector(self, finished: int) -> Array:
        first = control.COUNTERS + control.SLOT_WORDS * (finished & 1)
        return self.files.control[first : first + control.SLOT_WORDS].view(np.int32)

    # Reading.

    def counters(self) -> Array:
        """int32 [BASE], as in every state."""
        return self._all_counters()[:BASE]

    def lost(self) -> Array:
        """How many items were being added by writers who died, int32 [1]."""
        return self._all_counters()[control.LOST : control.LOST + 1]

    def _all_counters(self) -> Array:
        found = np.empty(control.SLOT, np.int32)
        if int(native.read_counters(self._control, found)) & 1:
            self.exclusively(lambda: native.read_counters(self._control, found))
        return found

    def sample(self, draws: Array, beta: float) -> tuple[list[Array], Selection]:
        """Choose items by draws int32 [B, words] and read them: leaves, and what is told of them.

        Raises:
            ValueError: if nothing can be drawn.
        """
        batch, draws = draws.shape[0], _writable(draws)
        leaves = self._room_for(batch)
        selection = Selection(np.empty(batch, np.int32), np.empty(batch, np.float32), np.empty(batch, np.float32))

        def work() -> int:
            level = np.float32(beta)
            told = selection.handles, selection.weights, selection.probabilities
            found: int = call(
                native.draw, (), self._storage, leaves, self._control, self._plan, self._tree, draws, level, *told
            )
            return found

        if batch and self._read(work) == native.NOTHING:
            checks.check_nonempty(self.spec, False, int(self.counters()[SIZE]))
        return leaves, selection

    def get(self, handles: Array) -> list[Array]:
        """The leaves of the items that handles int32 [B] name, zeros for those that are gone."""
        leaves = self._room_for(handles.size)
        live = self._fetch(handles, leaves)
        for leaf in leaves:
            leaf[~live] = 0
        return leaves

    def is_live(self, handles: Array) -> Array:
        """Whether their items are still stored, bool [B]."""
        return self._fetch(handles, [])

    def look(self, function: Callable[..., Array], *given: Any) -> Array:
        """What a function of `functional_rb.buffer.functions` reads off the counters and the tree, of one moment."""
        found = self.files
        tree = None if self.spec.tree_shape is None else found.tree

        def work(counters: Array) -> Array:
            arrays = Arrays(found.rows, tuple(found.wide), tree, counters[:BASE], {})
            return np.array(function(host_ops, arrays, self.spec, *given))

        counters = np.empty(control.SLOT, np.int32)
        sequence = int(native.read_counters(self._control, counters))
        if sequence & 1 == 0:
            read = work(counters)
            if native.unchanged(self._control, sequence):
                return read
        return self.exclusively(lambda: work(self._in_force().copy()))

    def _fetch(self, handles: Array, leaves: list[Array]) -> Array:
        live, handles = np.zeros(handles.size, np.uint8), _writable(handles)
        self._read(lambda: call(native.fetch, (), self._storage, leaves, self._control, self._plan, handles, live))
        return live.view(np.bool_)

    def _read(self, work: Callable[[], int]) -> int:
        """Read between two writes, or after a few tries instead of one."""
        found = work()
        return self.exclusively(work) if found == native.TORN else found

    def _room_for(self, batch: int) -> list[Array]:
        return [
            np.empty((batch, *leaf.shape), STORED_AS.get(leaf.dtype, leaf.dtype)) for leaf in self.spec.layout.leaves
        ]

    def snapshot(self) -> Snapshot:
        """Copies of all arrays, of one moment. Writers wait for it where they would come between."""
        counters = np.empty(control.SLOT, np.int32)
        sequence = int(native.read_counters(self._control, counters))
        found = None if sequence & 1 else self._copied(counters)
        if found is None or not native.unchanged(self._control, sequence):
            found = self.exclusively(lambda: self._copied(self._in_force().copy()))
        rows, wide = places.moved(found.rows, found.wide, self.files.layout, self.spec.layout)
        return found._replace(rows=rows, wide=tuple(wide))

    def _copied(self, counters: Array) -> Snapshot:
        """As they lie in the files. Of rows only those with room: reading a hole may be an error on a full disk."""
        reserved = int(self.files.control[control.RESERVED])
        copies = []
        for array in (self.files.rows, *self.files.wide):
            copied = np.zeros_like(array)
            copied[:reserved] = array[:reserved]
            copies.append(copied)
        return Snapshot(copies[0], tuple(copies[1:]), self.files.tree.copy(), counters)

    def drawable(self, n: int) -> bool:
        """Whether n can be drawn now: so many are stored, and some have a chance."""
        found = self._read(lambda: native.can_draw(self._control, self._plan, self._tree, n))
        return found == native.DRAWN


def _some(array: Array | None) -> Array | Placed:
    return NONE if array is None else array


def _writable(array: Array) -> Array:
    """As JAX's arrays are not: numba would compile everything a second time for those."""
    return array if array.flags.writeable else array.copy()
