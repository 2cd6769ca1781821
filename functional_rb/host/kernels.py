"""The compiled twins of the core's functions, for NumPy's arrays; see `functional_rb.native.whole`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from functional_rb.addresses import Placed, of_numpy
from functional_rb.buffer_spec import BufferSpec
from functional_rb.dtypes import ITEMSIZE
from functional_rb.host import ops
from functional_rb.native import whole


class Vectors:
    """How arrays of NumPy are found and made."""

    address = staticmethod(of_numpy)
    placed = Placed
    empty = staticmethod(ops.empty)
    dtypes: Mapping[str, np.dtype[Any]] = {name: np.dtype(name) for name in ITEMSIZE if name != "bfloat16"}

    @staticmethod
    def results(spec: BufferSpec, batch: int) -> list[ops.Vector]:
        """An array for each leaf."""
        return [ops.empty((batch, *leaf.shape), dtype=ops.dtype_of(leaf.dtype)) for leaf in spec.layout.leaves]


_kernels = whole.Kernels(Vectors())
room, add, update, draw = _kernels.room, _kernels.add, _kernels.update, _kernels.draw
