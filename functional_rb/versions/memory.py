"""The arrays that a buffer is written into, for libraries whose arrays can be written to (torch, NumPy).

What depends on the library is in a few methods of `Memory`, which each has a subclass of.
"""

from __future__ import annotations

import abc
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from functional_rb.base.arrays import BackendArray, NumpyArray
from functional_rb.core.draft import Arrays
from functional_rb.ops.protocol import Ops
from functional_rb.structures import stored_arrays
from functional_rb.structures.stored_arrays import AUXILIARY, ROWS, TREE, own_name, wide_name

# So many bytes may always be kept for older versions: of a small buffer a copy costs more than its bytes.
LEAST = 2**14
# So much is kept in memory for older states of a buffer in files, before the oldest gets files of its own.
RETAINED_BYTES = 2**30


class Entry(NamedTuple):
    """What one write overwrote, in arrays of the memory's library or of NumPy's.

    Attributes:
        name: of the array.
        flat: whether the index counts elements of the array seen as a vector, not rows.
        where: int32 [n]; equal places have equal content. None for a whole array that another took the place of.
        old: what was there; None if there was no such array.
    """

    name: str
    flat: bool
    where: BackendArray
    old: BackendArray


class Saved(Protocol):
    """What the next version has overwritten, saved for this one: a `Log`, or from kernels one piece of memory."""

    @property
    def nbytes(self) -> int:
        """Bytes of all that was saved, and of what it takes to keep it."""

    def writes(self, memory: Memory) -> Sequence[Entry]:
        """What single writes to arrays of the memory overwrote, in their order."""


class Memory(abc.ABC):
    """The arrays that a buffer is written into.

    Attributes:
        ops: the primitives of the library, which write in place.
        rows: int32 [capacity, words].
        wide: arrays [capacity, *shape].
        tree: float32 [rows, FANOUT] or None.
        auxiliary: what else the sampler and the writer keep, by name.
        pinned: whether an array has been exported: then it is never written again.
        history: the older versions, the oldest first, each with the bytes saved for it; see `versions.version.Version`.
        retained: the sum of those bytes.
        table: the Python objects whose tokens are in the arrays, an `object_table.Table`, if there are such leaves.
        files: the mapped files that rows, wide arrays and frames lie in, if they do: `storage.mapped.MappedFiles`.
        fits: whether the arrays have the shapes and dtypes that the spec says. What a user's function over a pytree has
            made may have others (a stack of states, say), and kernels would write beyond them.
        placement: where the memory belongs; None for arrays that are only handed on.
        place: where the version chain of the native code has found these arrays, which may read there without the
            lock: whoever writes waits for it.
    """

    __slots__ = (
        *("__weakref__", "auxiliary", "files", "fits", "history", "pinned", "place", "placement", "retained"),
        *("rows", "table", "tree", "wide"),
    )

    ops: ClassVar[Ops]

    def __init__(self, arrays: Arrays, pinned: bool = False) -> None:
        """Take arrays over, but for the counters; pinned if somebody else may hold them."""
        self.rows, self.wide, self.tree, _, self.auxiliary = arrays
        self.pinned, self.fits = pinned, True
        self.history: deque[tuple[weakref.ref[Any], int]] = deque()
        self.retained = 0
        self.table: Any = None
        self.files: Any = None
        self.placement: Any = None
        self.place: Any = None

    # ------------------------------------------------------------ what depends on the array library

    @staticmethod
    @abc.abstractmethod
    def taken(array: object) -> BackendArray:
        """An array of NumPy's as the library has it, in the same memory; one of the library itself."""

    @staticmethod
    @abc.abstractmethod
    def as_numpy(array: BackendArray) -> NumpyArray:
        """An array as NumPy has it, in the same memory where that can be."""

    @staticmethod
    @abc.abstractmethod
    def clone(array: BackendArray) -> BackendArray:
        """A copy of an array."""

    @staticmethod
    @abc.abstractmethod
    def is_plain_array(array: BackendArray) -> bool:
        """Whether an array is a contiguous one of the library's own, in the memory of some device."""

    @abc.abstractmethod
    def join_stream(self) -> None:
        """Have what works on the arrays from now on come after what was asked for before, by any stream of a GPU."""

    # ------------------------------------------------------------ the arrays

    @property
    def by_name(self) -> dict[str, BackendArray]:
        """All arrays by their names, see `stored_arrays`."""
        return stored_arrays.named(self.rows, self.wide, self.tree, self.auxiliary)

    def take(self, arrays: Mapping[str, BackendArray]) -> None:
        """Have other arrays from now on, by their names: the rows, and all that is there now or not."""
        self.rows, self.tree = arrays[ROWS], arrays.get(TREE)
        self.wide = tuple(arrays[wide_name(k)] for k in range(len(self.wide)))
        self.auxiliary = {own_name(name): array for name, array in arrays.items() if name.startswith(AUXILIARY)}
        self.place = None

    @property
    def arrays(self) -> list[BackendArray]:
        """All arrays."""
        return [*self.by_name.values()]

    def state_arrays(self, counters: BackendArray) -> Arrays:
        """The arrays of a state with these counters."""
        return Arrays(self.rows, self.wide, self.tree, counters, dict(self.auxiliary))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum([array.nbytes for array in self.arrays])

    @property
    def is_ordinary(self) -> bool:
        """Whether compiled kernels can read and write the arrays, and these have the spec's shapes."""
        return self.fits and all(map(self.is_plain_array, self.arrays))

    def like(self, arrays: Arrays, pinned: bool = False) -> Self:
        """Memory of the same buffer with other arrays, in no files."""
        memory = type(self)(arrays, pinned)
        memory.fits, memory.placement = self.fits, self.placement
        if self.table is not None:
            self.table.watch(memory)
        return memory

    def copy(self) -> Self:
        """Fresh memory with the same content: in files without a name what lies in files, or belongs there."""
        self.join_stream()
        files = None if self.placement is None else self.placement.filed(self)
        there = {} if files is None else files.arrays()
        copied = self.like(self.state_arrays(None))
        filed = {name: there[own_name(name)] for name in self.by_name if own_name(name) in there}
        copied.take({n: self.taken(filed[n]) if n in filed else self.clone(x) for n, x in self.by_name.items()})
        copied.files = files
        return copied

    def wait_for_draws(self) -> None:
        """Wait until no draw reads the arrays any more. Hold the lineage's lock, so that none begins."""
        if self.place is not None:
            self.place.wait()

    # ------------------------------------------------------------ older versions

    @property
    def retains_too_much(self) -> bool:
        """Whether more is kept for older versions than a copy takes, or, of files, than memory can bear."""
        most = max(self.nbytes, LEAST)
        return self.retained > (most if self.files is None else min(most, RETAINED_BYTES))

    @property
    def older(self) -> list[Any]:
        """The older versions that somebody holds and that have no memory of their own, the oldest first."""
        versions = [older() for older, _ in self.history]  # apart, as torch.compile traces no := within the next one
        return [version for version in versions if version is not None and version.memory is None]
