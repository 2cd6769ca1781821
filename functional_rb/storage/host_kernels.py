"""The compiled twins of the core's functions, for NumPy's arrays; see `functional_rb.cpu_kernels.fused`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from functional_rb.base.dtypes import ITEMSIZE
from functional_rb.buffer.spec import BufferSpec
from functional_rb.cpu_kernels import fused
from functional_rb.cpu_kernels.addresses import Placed, of_numpy
from functional_rb.ops import numpy_ops


class Vectors:
    """How arrays of NumPy are found and made."""

    address = staticmethod(of_numpy)
    placed = Placed
    empty = staticmethod(numpy_ops.empty)
    dtypes: Mapping[str, np.dtype[Any]] = {name: np.dtype(name) for name in ITEMSIZE if name != "bfloat16"}

    @staticmethod
    def results(spec: BufferSpec, batch: int) -> list[numpy_ops.Vector]:
        """An array for each leaf."""
        return [
            numpy_ops.empty((batch, *leaf.shape), dtype=numpy_ops.dtype_of(leaf.dtype))
            for leaf in spec.plan.layout.leaves
        ]


_kernels = fused.Kernels(Vectors())
room, add, update, draw = _kernels.room, _kernels.add, _kernels.update, _kernels.draw
