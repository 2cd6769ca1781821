"""The kernels for NumPy's arrays; see `functional_rb.native.part_kernels`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from functional_rb import _native
from functional_rb.base.dtypes import ITEMSIZE
from functional_rb.native.addresses import Placed, of_vectors
from functional_rb.native.part_kernels import PartKernels
from functional_rb.ops import numpy_ops
from functional_rb.ops.part_kernels import Table
from functional_rb.structures.row_layout import Layout


class _Dtypes(dict[str, "np.dtype[Any]"]):
    """By name; bfloat16 is looked up when it is asked for, as it comes with JAX."""

    def __missing__(self, name: str) -> np.dtype[Any]:
        """Look a dtype up by its name, once."""
        return self.setdefault(name, numpy_ops.dtype_of(name))


class Vectors:
    """How arrays of NumPy are found and made; see `functional_rb.native.addresses.Library`."""

    ops = numpy_ops
    addresses = staticmethod(of_vectors)
    none = Placed(np.empty(0, np.int32))
    empty = staticmethod(numpy_ops.empty)
    dtypes: Mapping[str, np.dtype[Any]] = _Dtypes({name: np.dtype(name) for name in ITEMSIZE if name != "bfloat16"})

    @staticmethod
    def ready(array: Any, dtype: np.dtype[Any]) -> numpy_ops.Vector:
        """A contiguous array; scalars that NumPy makes of sums are none yet. Of another dtype it would be misread."""
        assert array.dtype == dtype, (array.dtype, dtype)
        return np.asarray(array, order="C")

    @staticmethod
    def leaves(layout: Layout, batch: int) -> list[numpy_ops.Vector]:
        """New arrays for a batch of items, one for each leaf."""
        return [numpy_ops.empty((batch, *leaf.shape), dtype=numpy_ops.dtype_of(leaf.dtype)) for leaf in layout.leaves]


TABLE: Final[Table] = PartKernels(Vectors()).table
"""What replaces which function of the core; see `functional_rb.ops.part_kernels`."""
NOTHING: Final = np.empty(0, np.int32)


def longest(lengths: numpy_ops.Vector) -> int:
    """Do what `structures.ragged.longest` does."""
    found: int = _native.longest(_owned(lengths))
    return found


def _owned(array: numpy_ops.Vector) -> numpy_ops.Vector:
    """An array of the kind that kernels are compiled for: contiguous, and not read-only."""
    return array if array.flags.carray else array.copy()


def padded(
    tokens: Placed,
    starts: numpy_ops.Vector,
    shared: numpy_ops.Vector | None,
    lengths: numpy_ops.Vector,
    length: int,
    pad: int,
    left: bool,
) -> tuple[numpy_ops.Vector, numpy_ops.Vector, int]:
    """Do what `structures.ragged.padded` does, of tokens uint16 or int32."""
    rows, texts = lengths.shape
    ids, mask = np.empty((texts, rows, length), np.int32), np.empty((texts, rows, length), np.bool_)
    given = _owned(starts), NOTHING if shared is None else _owned(shared), _owned(lengths)
    narrow = tokens.array.dtype.itemsize == 2
    wrong = _native.pad_rows(tokens.address, tokens.array.size, narrow, *given, int(np.int32(pad)), left, ids, mask)
    return ids, mask, wrong
