"""Numbers in a dtype that every backend can compare: torch does not order most unsigned integers."""

from __future__ import annotations

import numpy as np

from functional_rb.base.arrays import Array, NumpyArray
from functional_rb.ops.protocol import SpecOps

# The dtypes that are compared as another: a wider one, or a signed one of the same width after a sign-bit flip.
WORK = {
    "bool": "int32",
    "uint16": "int32",
    "uint32": "int32",
    "uint64": "int64",
    "float16": "float32",
    "bfloat16": "float32",
}


def comparable(ops: SpecOps, x: Array, dtype: str) -> Array:
    """Numbers of a dtype as numbers of the same order in a dtype that can be compared."""
    work = WORK.get(dtype, dtype)
    if dtype in ("uint32", "uint64"):
        return ops.bitcast(x[..., None], work)[..., 0] ^ _sign(work)
    return x if work == dtype else ops.cast(x, work)


def back(ops: SpecOps, x: Array, dtype: str) -> Array:
    """The numbers that `comparable` was given: its inverse."""
    work = WORK.get(dtype, dtype)
    if dtype in ("uint32", "uint64"):
        return ops.bitcast((x ^ _sign(work))[..., None], dtype)[..., 0]
    return x if work == dtype else ops.cast(x, dtype)


def limit(ops: SpecOps, numbers: NumpyArray, dtype: str, like: Array) -> Array:
    """NumPy's numbers of a dtype in the form that `comparable` gives them."""
    work = WORK.get(dtype, dtype)
    if dtype in ("uint32", "uint64"):
        numbers = np.asarray(numbers, dtype).view(work) ^ np.dtype(work).type(_sign(work))
    return ops.table(np.asarray(numbers), work, like)


def _sign(work: str) -> int:
    return int(np.iinfo(work).min)
