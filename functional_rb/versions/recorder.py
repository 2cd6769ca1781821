"""Primitives that write in place, writing down what they overwrite, so that the older version can be rebuilt."""

from __future__ import annotations

from collections.abc import Sequence

from functional_rb.base.arrays import BackendArray
from functional_rb.ops.protocol import Ops
from functional_rb.structures import row_layout, sum_tree
from functional_rb.structures.stored_arrays import is_items
from functional_rb.versions.memory import Entry, Memory

# Bytes that Python and the library take for each small array that is saved, about.
OVERHEAD = 512
# Functions whose kernels may stand in only where nothing is recorded, as they do not tell what was there.
WRITERS = sum_tree.set_leaves, row_layout.store


class Log:
    """What all writes of one function overwrote, in their order; see `versions.memory.Saved`."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        """Begin with an empty log."""
        self.entries: list[Entry] = []

    @property
    def nbytes(self) -> int:
        """Bytes of all that was saved, and of what it takes to keep it."""
        arrays = [array for entry in self.entries for array in (entry.where, entry.old) if array is not None]
        return sum([array.nbytes + OVERHEAD for array in arrays])

    def writes(self, memory: Memory) -> Sequence[Entry]:
        """All recorded writes, in their order."""
        return self.entries


class Recorder:
    """`functional_rb.ops.protocol.Ops` for one function that writes to a memory.

    An entry is made before its write: an interrupt in between leaves one that changes nothing.
    """

    def __init__(self, primitives: Ops, memory: Memory, log: Log) -> None:
        """Carry out the operations of a module of primitives on a memory, and record them in a log."""
        self._primitives, self._memory, self._log = primitives, memory, log

    def __getattr__(self, name: str) -> object:
        """A primitive that writes nothing, as the library has it."""
        return getattr(self._primitives, name)

    def save(self, x: BackendArray, index: BackendArray, flat: bool = False) -> None:
        """Write down what lies in rows (or elements) of an array, if that is one of the memory's."""
        undo = None if self._memory.files is None else self._memory.files.undo
        for name, array in self._memory.by_name.items():
            if array is x:
                if undo is not None and is_items(name):
                    undo.before_items(self._memory.as_numpy(index))
                old = self._primitives.take(x.reshape(-1) if flat else x, index)
                self._log.entries.append(Entry(name, flat, index, old))

    def set_at(self, x: BackendArray, index: BackendArray, values: BackendArray) -> BackendArray:
        """Write `x[index] = values` in place, and record it."""
        self.save(x, index)
        return self._primitives.set_at(x, index, values)

    def set_flat(self, x: BackendArray, index: BackendArray, values: BackendArray) -> BackendArray:
        """`x` with elements set by their position in it as one vector, in place."""
        self.save(x, index, flat=True)
        return self._primitives.set_flat(x, index, values)
