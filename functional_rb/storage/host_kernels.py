"""The kernels for NumPy's arrays; see `functional_rb.native.kernels`."""

from __future__ import annotations

from typing import Final

import numpy as np

from functional_rb import _native
from functional_rb.native.calls import Calls
from functional_rb.ops import numpy_ops
from functional_rb.ops.part_kernels import Table
from functional_rb.storage.host_state import NUMPY

_calls = Calls(numpy_ops, NUMPY.chain, numpy_ops.dtype_of)
call = _calls.call
# What replaces which function of the core; see `functional_rb.ops.part_kernels`.
TABLE: Final[Table] = _calls.table
NOTHING: Final = np.empty(0, np.int32)


def longest(lengths: numpy_ops.Vector) -> int:
    """The largest of some lengths int32 [B, k], as `structures.ragged.longest` gives it."""
    length: int = _native.longest(_owned(lengths))
    return length


# An array of the kind that kernels are compiled for: contiguous, and not read-only.
def _owned(array: numpy_ops.Vector) -> numpy_ops.Vector:
    return array if array.flags.carray else array.copy()


def padded(
    tokens: numpy_ops.Vector,
    starts: numpy_ops.Vector,
    shared: numpy_ops.Vector | None,
    lengths: numpy_ops.Vector,
    length: int,
    pad: int,
    left: bool,
) -> tuple[numpy_ops.Vector, numpy_ops.Vector, int]:
    """Copy texts of tokens uint16 or int32 to rows of one length, see `structures.ragged.padded`."""
    rows, texts = lengths.shape
    ids, mask = np.empty((texts, rows, length), np.int32), np.empty((texts, rows, length), np.bool_)
    inputs = _owned(starts), NOTHING if shared is None else _owned(shared), _owned(lengths)
    narrow = tokens.dtype.itemsize == 2
    wrong = _native.pad_rows(tokens, tokens.size, narrow, *inputs, int(np.int32(pad)), left, ids, mask)
    return ids, mask, wrong
