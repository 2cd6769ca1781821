"""Primitives that write in place, writing down what they overwrite, so that the older version can be rebuilt."""

from __future__ import annotations

from collections.abc import Sequence

from functional_rb.base.arrays import BackendArray
from functional_rb.ops.part_kernels import Table
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import row_layout, sum_tree
from functional_rb.structures.row_layout import Layout
from functional_rb.structures.stored_arrays import is_items
from functional_rb.versions.memory import Entry, Memory

# Bytes that Python and the library take for each small array that is saved, about.
OVERHEAD = 512


class Log(list[Entry]):
    """What all writes of one function overwrote, in their order; see `versions.memory.Saved`."""

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes + OVERHEAD for entry in self for x in (entry.where, entry.old) if x is not None)

    def writes(self, memory: Memory) -> Sequence[Entry]:
        return self


class Recorder:
    """`functional_rb.ops.protocol.Ops` for one function that writes to a memory.

    An entry is made before its write: an interrupt in between leaves one that changes nothing.
    """

    def __init__(self, primitives: Ops, memory: Memory, log: Log) -> None:
        self._primitives, self._memory, self._log = primitives, memory, log

    def __getattr__(self, name: str) -> object:
        """A primitive that writes nothing, as the library has it."""
        return getattr(self._primitives, name)

    def recorded(self, table: Table) -> Table:
        """The kernels of a table, of which those that write to the memory have what they overwrite recorded first."""

        def store(
            layout: Layout, rows: BackendArray, wide: Sequence[BackendArray], slots: Array, *given: object
        ) -> object:
            for array in (rows, *wide):
                self.save(array, slots)
            return table[row_layout.store](layout, rows, wide, slots, *given)

        def set_leaves(tree: BackendArray, capacity: int, leaves: Array, *given: object) -> object:
            self.save(tree, leaves, flat=True)  # the nodes above follow from these, see `version.take_back`
            return table[sum_tree.set_leaves](tree, capacity, leaves, *given)

        recorders: Table = {row_layout.store: store, sum_tree.set_leaves: set_leaves}
        return {function: recorders.get(function, kernel) for function, kernel in table.items()}

    def save(self, x: BackendArray, index: BackendArray, flat: bool = False) -> None:
        """Write down what lies in rows (or elements) of an array, if that is one of the memory's."""
        undo = None if self._memory.files is None else self._memory.files.undo
        for name, array in self._memory.by_name.items():
            if array is x:
                if undo is not None and is_items(name):
                    undo.before_items(self._memory.as_numpy(index))
                old = self._primitives.take(x.reshape(-1) if flat else x, index)
                self._log.append(Entry(name, flat, index, old))

    def set_at(self, x: BackendArray, index: BackendArray, values: BackendArray) -> BackendArray:
        self.save(x, index)
        return self._primitives.set_at(x, index, values)

    def set_flat(self, x: BackendArray, index: BackendArray, values: BackendArray) -> BackendArray:
        self.save(x, index, flat=True)
        return self._primitives.set_flat(x, index, values)
