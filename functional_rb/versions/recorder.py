"""Primitives that write in place, writing down what they overwrite, so that the older version can be rebuilt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from functional_rb.ops.part_kernels import Table
from functional_rb.ops.protocol import Array
from functional_rb.structures import row_layout, sum_tree
from functional_rb.structures.row_layout import Layout
from functional_rb.versions.memory import Entry, Memory

OVERHEAD = 512
"""Bytes that Python and the library take for each small array that is saved, about."""


class Log:
    """What all writes of one function overwrote, in their order.

    Attributes:
        entries: one for each write.
        changed: the leaves of the tree that kernels have set, which do not save the nodes above.
    """

    __slots__ = ("changed", "entries")

    def __init__(self) -> None:
        """Begin with an empty log."""
        self.entries: list[Entry] = []
        self.changed: list[Array] = []

    @property
    def nbytes(self) -> int:
        """Of all that was saved, and of what it takes to keep it."""
        return sum([entry.where.nbytes + entry.old.nbytes + 2 * OVERHEAD for entry in self.entries])

    def leaves(self, memory: Memory) -> Sequence[Array]:
        """Those that kernels have set."""
        return self.changed

    def writes(self, memory: Memory) -> Sequence[Entry]:
        """All recorded writes, in their order."""
        return self.entries

    def pieces(self, memory: Memory) -> Iterator[tuple[Array, Array]]:
        """What writes of whole rows have overwritten."""
        arrays = memory.arrays
        return ((arrays[entry.array], entry.old) for entry in self.entries if not entry.flat)


class Recorder:
    """`functional_rb.ops.protocol.Ops` for one function that writes to a memory.

    An entry is made before its write: an interrupt in between leaves one that changes nothing.
    """

    def __init__(self, primitives: Any, memory: Memory, log: Log) -> None:
        """Carry out the operations of a module of primitives on a memory, and record them in a log."""
        self._primitives, self._memory, self._arrays, self._log = primitives, memory, memory.arrays, log
        self._undo = None if memory.files is None else memory.files.undo

    def __getattr__(self, name: str) -> Any:
        """A primitive that writes nothing, as the library has it."""
        return getattr(self._primitives, name)

    def save(self, x: Array, index: Array, flat: bool = False) -> None:
        """Write down what lies in rows (or elements) of an array, if that is one of the memory's."""
        for k, array in enumerate(self._arrays):
            if array is x:
                if self._undo is not None and k <= len(self._memory.wide):
                    self._undo.before_items(self._memory.as_numpy(index))
                old = self._primitives.take(x.reshape(-1) if flat else x, index)
                self._log.entries.append(Entry(k, flat, index, old))

    def save_leaves(self, tree: Array, leaves: Array) -> None:
        """Write leaves of the tree down, for a kernel that computes the nodes above anew."""
        self.save(tree, leaves, flat=True)
        self._log.changed.append(leaves)

    def set_at(self, x: Array, index: Array, values: Array) -> Array:
        """Write `x[index] = values` in place, and record it."""
        self.save(x, index)
        return self._primitives.set_at(x, index, values)

    def set_flat(self, x: Array, index: Array, values: Array) -> Array:
        """`x` with elements set by their position in it as one vector, in place."""
        self.save(x, index, flat=True)
        return self._primitives.set_flat(x, index, values)

    def kernels(self, table: Table) -> Table:
        """Part kernels that write down what they overwrite, as far as they write to a memory."""
        if not table:
            return table
        set_leaves, store = table[sum_tree.set_leaves], table[row_layout.store]

        def recorded_set_leaves(tree: Array, capacity: int, leaves: Array, *values: Any, **others: Any) -> Array:
            self.save_leaves(tree, leaves)
            return set_leaves(tree, capacity, leaves, *values, **others)

        def recorded_store(
            layout: Layout, rows: Array, wide: Sequence[Array], slots: Array, source: Any, live: Any, leaves: Any
        ) -> tuple[Array, tuple[Array, ...]]:
            written = slots if live is None else slots[live]
            for array in (rows, *wide):
                self.save(array, written)
            stored: tuple[Array, tuple[Array, ...]] = store(layout, rows, wide, slots, source, live, leaves)
            return stored

        return {**table, sum_tree.set_leaves: recorded_set_leaves, row_layout.store: recorded_store}
