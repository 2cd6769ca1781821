"""The memory of states in NumPy's arrays; see `functional_rb.versions.memory`."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from functional_rb.base.arrays import BackendArray, NumpyArray
from functional_rb.ops import numpy_ops as ops
from functional_rb.ops.protocol import ItemOps
from functional_rb.versions import memory


class Memory(memory.Memory):
    """Memory of the host, in NumPy arrays."""

    __slots__ = ()

    ops: ClassVar[ItemOps] = ops.OPS

    def join_stream(self) -> None:
        """Do nothing, as on the host all is in order."""

    @staticmethod
    def taken(array: BackendArray) -> NumpyArray:
        # NumPy's arrays need no copy here.
        same: NumpyArray = array
        return same

    @staticmethod
    def as_numpy(array: NumpyArray) -> NumpyArray:
        return array

    @staticmethod
    def clone(array: NumpyArray) -> NumpyArray:
        return ops.copy(array)

    @staticmethod
    def is_plain_array(array: object) -> bool:
        # What JAX hands in may have other strides.
        return isinstance(array, np.ndarray) and array.flags.c_contiguous
