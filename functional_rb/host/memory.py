"""The memory of host states; see `functional_rb.versions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from functional_rb import mapped, versions
from functional_rb.buffer_spec import BufferSpec
from functional_rb.draft import Arrays
from functional_rb.host import ops
from functional_rb.mapped import MappedFiles
from functional_rb.storages import Memmap
from functional_rb.tokens import Table
from functional_rb.versions import Version


class Memory(versions.Memory):
    """Arrays of NumPy."""

    __slots__ = ()

    ops: ClassVar[Any] = ops

    @staticmethod
    def taken(array: ops.Vector) -> ops.Vector:
        """The same."""
        return array

    @staticmethod
    def clone(array: ops.Vector) -> ops.Vector:
        """A copy."""
        return ops.copy(array)

    @staticmethod
    def distinct(vectors: Sequence[ops.Vector]) -> ops.Vector:
        """Each number once."""
        return np.unique(np.concatenate(vectors))

    def is_plain(self) -> bool:
        """Always, as long as rows follow upon each other: what JAX hands in may have other strides."""
        return all(isinstance(array, np.ndarray) and array.flags.c_contiguous for array in self.arrays)


def fresh(
    arrays: Arrays, spec: BufferSpec, pinned: bool = False, table: Table | None = None, files: MappedFiles | None = None
) -> Version:
    """The first version of a lineage.

    Args:
        arrays: its content.
        spec: of the buffer.
        pinned: whether somebody else may hold the arrays: then they are never written.
        table: of the objects whose tokens are in them.
        files: the mapped files that they lie in. Where the spec wants files and there are none, the content is copied
            to files without a name.
    """
    if files is None and isinstance(spec.storage, Memmap):
        arrays, files = _filed(arrays, spec)
        pinned = False
    memory = Memory(arrays.rows, arrays.wide, arrays.tree, arrays.kept, pinned)
    memory.files = files
    return versions.begin(memory, spec.capacity, table)


def _filed(arrays: Arrays, spec: BufferSpec) -> tuple[Arrays, MappedFiles]:
    wide = {f"wide_{k}": array for k, array in enumerate(arrays.wide)}
    named = {"rows": arrays.rows, **wide, **{name: arrays.kept[name] for name in mapped.filed(spec)}}
    files = mapped.filled(spec, named)
    tree = None if arrays.tree is None else ops.copy(arrays.tree)
    kept = {name: files.kept[name] if name in files.kept else ops.copy(x) for name, x in arrays.kept.items()}
    return Arrays(files.rows, files.wide, tree, arrays.counters, kept), files
