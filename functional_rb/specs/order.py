"""Numbers in a form that every backend compares: torch does not order most unsigned integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.ops.protocol import Array
from functional_rb.specs.ops import SpecOps

WORK = {
    "bool": "int32",
    "uint16": "int32",
    "uint32": "int32",
    "uint64": "int64",
    "float16": "float32",
    "bfloat16": "float32",
}
"""The dtype that one is compared as, if not as itself: wider, or as wide with the sign bit turned over."""


def comparable(ops: SpecOps, x: Array, dtype: str) -> Array:
    """Numbers of a dtype in the order that they have, in a dtype that can be compared."""
    work = WORK.get(dtype, dtype)
    if dtype in ("uint32", "uint64"):
        return ops.bitcast(x[..., None], work)[..., 0] ^ _sign(work)
    return x if work == dtype else ops.cast(x, work)


def back(ops: SpecOps, x: Array, dtype: str) -> Array:
    """What `comparable` was given."""
    work = WORK.get(dtype, dtype)
    if dtype in ("uint32", "uint64"):
        return ops.bitcast((x ^ _sign(work))[..., None], dtype)[..., 0]
    return x if work == dtype else ops.cast(x, dtype)


def limit(ops: SpecOps, numbers: np.ndarray[Any, Any], dtype: str, like: Array) -> Array:
    """Numbers of a dtype known beforehand, likewise."""
    work = WORK.get(dtype, dtype)
    if dtype in ("uint32", "uint64"):
        numbers = np.asarray(numbers, dtype).view(work) ^ np.dtype(work).type(_sign(work))
    return ops.table(np.asarray(numbers), work, like)


def _sign(work: str) -> int:
    return int(np.iinfo(work).min)
