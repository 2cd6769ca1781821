"""The memory of host states; see `functional_rb.versions.version`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays
from functional_rb.ops import numpy_ops as ops
from functional_rb.storage.placement import Placement
from functional_rb.versions import version
from functional_rb.versions.object_table import Table
from functional_rb.versions.version import Files, Version


class Memory(version.Memory):
    """Arrays of NumPy."""

    __slots__ = ()

    ops: ClassVar[Any] = ops

    @staticmethod
    def taken(array: ops.Vector) -> ops.Vector:
        """The same."""
        return array

    @staticmethod
    def as_numpy(array: ops.Vector) -> ops.Vector:
        """The same."""
        return array

    @staticmethod
    def clone(array: ops.Vector) -> ops.Vector:
        """A copy."""
        return ops.copy(array)

    @staticmethod
    def joined(arrays: Sequence[ops.Vector]) -> ops.Vector:
        """One after the other."""
        return np.concatenate(arrays)

    def has_ordinary_arrays(self) -> bool:
        """Always, as long as rows follow upon each other: what JAX hands in may have other strides."""
        return all(isinstance(array, np.ndarray) and array.flags.c_contiguous for array in self.arrays)


def fresh(
    arrays: Arrays, spec: BufferSpec, pinned: bool = False, table: Table | None = None, files: Files | None = None
) -> Version:
    """The first version of a lineage.

    Args:
        arrays: its content.
        spec: of the buffer.
        pinned: whether somebody else may hold the arrays: then they are never written.
        table: of the objects whose tokens are in them.
        files: the mapped files that they lie in.
    """
    memory = Memory(arrays.rows, arrays.wide, arrays.tree, arrays.auxiliary, pinned)
    memory.files, memory.placement = files, Placement(spec)
    return version.begin(memory, spec.capacity, table)
