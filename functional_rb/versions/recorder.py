"""Primitives that write in place, writing down what they overwrite, so that the older version can be rebuilt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from functional_rb.ops.protocol import Array, Native
from functional_rb.structures.row_layout import Layout
from functional_rb.versions.version import OVERHEAD, Entry, Memory


class Log:
    """What all writes of one function overwrote, in their order.

    Attributes:
        entries: one for each write.
        leaves: the leaves of the tree that kernels have set, which do not save the nodes above.
    """

    __slots__ = ("entries", "leaves")

    def __init__(self) -> None:
        """Nothing yet."""
        self.entries: list[Entry] = []
        self.leaves: list[Array] = []

    @property
    def nbytes(self) -> int:
        """Of all that was saved, and of what it takes to keep it."""
        return sum([entry.where.nbytes + entry.old.nbytes + 2 * OVERHEAD for entry in self.entries])

    def writes(self, memory: Memory) -> Sequence[Entry]:
        """All of them."""
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
        """Carry the operations of a module of primitives out."""
        self._primitives, self._memory, self._arrays, self._log = primitives, memory, memory.arrays, log
        self._undo = None if memory.files is None else memory.files.undo
        self.native: Any = None if primitives.native is None else RecordingNative(primitives.native, self)

    def __getattr__(self, name: str) -> Any:
        """What writes nothing."""
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
        self._log.leaves.append(leaves)

    def set_at(self, x: Array, index: Array, values: Array) -> Array:
        """`x[index] = values`, in place."""
        self.save(x, index)
        return self._primitives.set_at(x, index, values)

    def set_flat(self, x: Array, index: Array, values: Array) -> Array:
        """Likewise for `x` seen as one vector."""
        self.save(x, index, flat=True)
        return self._primitives.set_flat(x, index, values)


class RecordingNative:
    """`functional_rb.ops.protocol.Native` likewise."""

    def __init__(self, native: Native, recorder: Recorder) -> None:
        """Carry the operations of kernels out."""
        self._native, self._recorder = native, recorder

    def __getattr__(self, name: str) -> Any:
        """What writes nothing."""
        return getattr(self._native, name)

    def set_leaves(self, tree: Array, capacity: int, leaves: Array, values: Array) -> Array:
        """`sum_tree.set_leaves`."""
        self._recorder.save_leaves(tree, leaves)
        return self._native.set_leaves(tree, capacity, leaves, values)

    def store(
        self,
        layout: Layout,
        rows: Array,
        wide: Sequence[Array],
        slots: Array,
        source: Array | None,
        live: Array | None,
        leaves: Sequence[Array],
    ) -> tuple[Array, tuple[Array, ...]]:
        """`layout.store`."""
        written = slots if live is None else slots[live]
        for array in (rows, *wide):
            self._recorder.save(array, written)
        return self._native.store(layout, rows, wide, slots, source, live, leaves)
