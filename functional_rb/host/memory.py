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

    def copied_files(self) -> MappedFiles | None:
        """Files too for what belongs in files, and came from elsewhere; `place` is the spec of such a buffer."""
        if self.files is not None or self.place is None:
            return super().copied_files()
        given = {"rows": self.rows, **{f"wide_{k}": array for k, array in enumerate(self.wide)}, **self.kept}
        return mapped.filled(self.place, {name: given[name] for name in mapped.shapes(self.place)})

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
        files: the mapped files that they lie in.
    """
    memory = Memory(arrays.rows, arrays.wide, arrays.tree, arrays.kept, pinned)
    memory.files, memory.place = files, spec if isinstance(spec.storage, Memmap) else None
    return versions.begin(memory, spec.capacity, table)
