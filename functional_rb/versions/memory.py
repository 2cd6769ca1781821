"""The arrays that a buffer is written into, for libraries whose arrays can be written to (torch, NumPy).

What depends on the library is in a few methods of `Memory`, which each has a subclass of.
"""

from __future__ import annotations

import abc
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np

from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays
from functional_rb.ops.protocol import Array
from functional_rb.structures import stored_arrays
from functional_rb.structures.stored_arrays import auxiliary_name
from functional_rb.versions.object_table import Table

LEAST = 2**14
"""So many bytes may always be kept for older versions: of a small buffer a copy costs more than its bytes."""
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


class Place(Protocol):
    """Where the arrays of a memory lie, for the native code."""

    def wait(self) -> None:
        """Wait until no draw reads them any more."""


class Entry(NamedTuple):
    """What one write overwrote.

    Attributes:
        array: which of `Memory.arrays`; also counted from the end, as for `TREE`.
        flat: whether the index counts elements of the array seen as a vector, not rows.
        where: int32 [n]; equal places have equal content.
        old: what was there.

    The two are arrays of the memory's library, or of NumPy's for memory that is ordinary.
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

    def leaves(self, memory: Memory) -> Sequence[Array]:
        """The leaves of the tree that were saved, int32 vectors; the nodes above follow from them."""

    def writes(self, memory: Memory) -> Sequence[Entry]:
        """What single writes to arrays of the memory overwrote, in their order."""

    def pieces(self, memory: Memory) -> Iterator[tuple[Array, Array]]:
        """The whole rows that were saved, and of which array of the memory."""


class Memory(abc.ABC):
    """The arrays that a buffer is written into.

    Attributes:
        ops: the primitives of the library, which write in place.
        rows: int32 [capacity, words].
        wide: arrays [capacity, *shape].
        tree: float32 [rows, FANOUT] or None.
        auxiliary: what else the sampler and the writer keep, by name.
        pinned: whether an array has been exported: then it is never written again.
        shared: whether an older version that needs the saved rows may be alive.
        written: whether anything may have been added: a host's knowledge, where looking would wait for a device.
        history: the older versions, the oldest first, each with the bytes saved for it; see `versions.version.Version`.
        retained: the sum of those bytes.
        table: the Python objects whose tokens are in the arrays, if the buffer has such leaves.
        files: the mapped files that rows, wide arrays and frames lie in, if they do.
        fits: whether the arrays have the shapes and dtypes that the spec says. What a user's function over a pytree has
            made may have others (a stack of states, say), and kernels would write beyond them.
        placement: where the memory belongs; None for arrays that are only handed on.
        place: where these arrays lie, once the version chain has looked them up, which may read there without the lock:
            whoever writes waits for it.
    """

    __slots__ = (
        "__weakref__",
        "_nbytes",
        "_ordinary",
        "auxiliary",
        "files",
        "fits",
        "history",
        "pinned",
        "place",
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
        self.history: deque[tuple[weakref.ref[Any], int]] | None = None
        self.retained = 0
        self.place: Place | None = None
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
    def numpy_dtype(array: Array) -> np.dtype[Any]:
        """The dtype that NumPy has for an array's."""

    @staticmethod
    @abc.abstractmethod
    def clone(array: Array) -> Array:
        """A copy of an array."""

    @staticmethod
    @abc.abstractmethod
    def joined(arrays: Sequence[Array]) -> Array:
        """Arrays one after the other, along their first axis."""

    @staticmethod
    @abc.abstractmethod
    def is_plain_array(array: Array) -> bool:
        """Whether it is a contiguous one of the library's own, in the memory of some device."""

    @classmethod
    def is_ordinary_array(cls, array: Array) -> bool:
        """Whether it is a plain one in the CPU's memory."""
        return cls.is_plain_array(array)

    def wait_for_draws(self) -> None:
        """Wait until no draw reads the arrays any more. Hold the lineage's lock, so that none begins."""
        if self.place is not None:
            self.place.wait()

    @property
    def is_ordinary(self) -> bool:
        """Whether compiled kernels can read and write the arrays, and these have the spec's shapes; asked once."""
        if self._ordinary is None:
            self._ordinary = self.fits and all(map(self.is_ordinary_array, self.arrays))
        return self._ordinary

    def in_numpy(self, pieces: Sequence[Array]) -> np.ndarray[Any, Any]:
        """What was saved in arrays of the library, or of NumPy's, one after the other."""
        if any(isinstance(piece, np.ndarray) for piece in pieces):
            return np.concatenate([self.as_numpy(piece) for piece in pieces])
        return self.as_numpy(self.joined(pieces))

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
        where, old = (self.in_numpy([entry[k] for entry in saved]) for k in (2, 3))
        places, first = np.unique(where, return_index=True)
        if len(places) < len(where):
            where, old = places, old[first]
        (target.reshape(-1) if saved[0].flat else target)[where] = old

    @property
    def arrays(self) -> list[Array]:
        """All arrays. The tree comes last: those that versions share, whatever their sampler, have the same places."""
        return [self.rows, *self.wide, *self.auxiliary.values(), *([] if self.tree is None else [self.tree])]

    def place_of(self, name: str) -> int:
        """Which of `arrays` an auxiliary one is."""
        return 1 + len(self.wide) + list(self.auxiliary).index(name)

    @property
    def by_name(self) -> dict[str, Array]:
        """All arrays by their names, see `stored_arrays`."""
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
        self.place = self._nbytes = self._ordinary = None

    @property
    def retains_too_much(self) -> bool:
        """Whether more is kept for older versions than a copy takes, or, of files, than memory can bear."""
        if self.retained <= min(LEAST, RETAINED_BYTES):  # most often, and then nothing has to be added up
            return False
        most = max(self.nbytes, LEAST)
        return self.retained > (most if self.files is None else min(most, RETAINED_BYTES))
