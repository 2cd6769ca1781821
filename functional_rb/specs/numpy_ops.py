"""`SpecOps` on NumPy, for values on the host, which environments give and take.

Numbers of bfloat16, which NumPy lacks, are float32 here.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.arrays import DeviceLike, NumpyArray
from functional_rb.ops.numpy_ops import Vector as Vector
from functional_rb.ops.numpy_ops import all_rows as all_rows
from functional_rb.ops.numpy_ops import argmax as argmax
from functional_rb.ops.numpy_ops import bitcast as bitcast
from functional_rb.ops.numpy_ops import concat as concat
from functional_rb.ops.numpy_ops import cos as cos
from functional_rb.ops.numpy_ops import cumsum as cumsum
from functional_rb.ops.numpy_ops import log as log
from functional_rb.ops.numpy_ops import mul_wide as mul_wide
from functional_rb.ops.numpy_ops import take as take
from functional_rb.ops.numpy_ops import where as where
from functional_rb.ops.protocol import SpecOps, SpecOpsOf


def zeros(shape: Sequence[int], dtype: str, device: DeviceLike = None) -> Vector:
    return dtypes.as_numpy(dtype, np.zeros(tuple(shape), np.bool_))


def table(values: Vector, dtype: str, like: Vector) -> Vector:
    return dtypes.as_numpy(dtype, values)


def cast(x: Vector, dtype: str) -> Vector:
    return dtypes.as_numpy(dtype, x) if dtype == "bfloat16" else x.astype(dtype)


def clamp(x: Vector, low: Vector | float, high: Vector | float) -> Vector:
    return np.asarray(np.clip(x, low, high))


def without_nan(x: Vector) -> Vector:
    return np.where(x == x, x, x.dtype.type(0))


def scale(high: Vector, low: Vector, n: Vector) -> Vector:
    wide = n.astype(np.int64)
    return np.asarray((high * wide + (low * wide >> 31) >> 31).astype(np.int32))


if TYPE_CHECKING:
    from functional_rb.specs import numpy_ops as _functions

    _compared: SpecOpsOf[NumpyArray] = _functions

# This module, for the algorithms: they see arrays as `Array`, and hand back to it what came out of it.
OPS: Final = typing.cast("SpecOps", sys.modules[__name__])
