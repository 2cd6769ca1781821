"""The memory of host states; see `functional_rb.versions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from functional_rb import versions
from functional_rb.draft import Arrays
from functional_rb.host import ops
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


def fresh(arrays: Arrays, capacity: int, pinned: bool = False, table: Table | None = None) -> Version:
    """The first version of a lineage, with a table if there are Python objects."""
    return versions.begin(Memory(arrays.rows, arrays.wide, arrays.tree, arrays.kept, pinned), capacity, table)
