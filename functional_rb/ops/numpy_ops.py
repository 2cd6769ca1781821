"""The array primitives of `functional_rb.ops.protocol.Ops` on NumPy.

`set_at` writes in place: who calls the core makes sure that the memory is his alone (see `versions.version`).
"""

from __future__ import annotations

import functools
import math
import sys
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from functional_rb.base.arrays import BackendArray, DeviceLike, NumpyArray
from functional_rb.base.extras import imported
from functional_rb.ops.fixed_point import MASK, TABLES
from functional_rb.ops.protocol import Carry, ItemOps, ItemOpsOf, T

Vector = NumpyArray
# Bytes: arrays that begin at a multiple of it are taken over by XLA without a copy.
ALIGNMENT = 64
# Bytes up to which a copy costs next to nothing, so that where an array begins does not matter.
COPIED = 2**16


@functools.cache
def dtype_of(name: str) -> np.dtype[np.generic]:
    """NumPy's dtype of a name; bfloat16 is an extension, which comes with JAX.

    Raises:
        ImportError: if that is missing, saying what to install.
    """
    if name != "bfloat16":
        return np.dtype(name)
    bfloat16: np.dtype[np.generic] = np.dtype(imported("ml_dtypes", "bfloat16 on the host").bfloat16)
    return bfloat16


def aligned(make: Callable[..., Vector], shape: int | Sequence[int], dtype: np.dtype[np.generic]) -> Vector:
    """An array whose address is a multiple of `ALIGNMENT`, by a function that makes one of a size and dtype."""
    nbytes = math.prod((shape,) if isinstance(shape, int) else shape) * dtype.itemsize
    block = make(nbytes + ALIGNMENT, np.uint8)
    first = -block.ctypes.data % ALIGNMENT
    return block[first : first + nbytes].view(dtype).reshape(shape)


def empty(shape: int | Sequence[int], *, dtype: np.dtype[np.generic]) -> Vector:
    """An array that nothing is in yet, aligned unless it is small."""
    nbytes = math.prod((shape,) if isinstance(shape, int) else shape) * dtype.itemsize
    return np.empty(shape, dtype) if nbytes <= COPIED else aligned(np.empty, shape, dtype)


def zeros(shape: Sequence[int], dtype: str, device: DeviceLike = None) -> Vector:
    """Zeros, aligned; pages that nobody wrote cost nothing."""
    return aligned(np.zeros, shape, dtype_of(dtype))


def copy(x: Vector) -> Vector:
    """A copy, aligned unless it is small."""
    copied = empty(x.shape, dtype=x.dtype)
    copied[...] = x
    return copied


def call(function: Callable[..., object], *arrays: object) -> Any:
    return function(*arrays)


def full_like(x: Vector, value: int | float) -> Vector:
    return np.full_like(x, value)


def arange(n: int, like: Vector) -> Vector:
    return np.arange(n, dtype=np.int32)


def constant(name: str, like: Vector) -> Vector:
    return TABLES[name]


def floats(values: Sequence[float], like: Vector) -> Vector:
    return np.array(values, np.float32)


def integers(values: Sequence[int], like: Vector) -> Vector:
    return np.array(values, np.int32)


def cast(x: Vector, dtype: str) -> Vector:
    return x.astype(dtype_of(dtype))


def bitcast(x: Vector, dtype: str) -> Vector:
    target = dtype_of(dtype)
    if x.size == 0:  # nothing to read, and strides that NumPy may find unfit
        return np.empty((*x.shape[:-1], x.shape[-1] * x.dtype.itemsize // target.itemsize), target)
    if not x.flags.c_contiguous or (target.itemsize > x.dtype.itemsize and x.ctypes.data % target.itemsize):
        x = x.copy()  # a slice of a row need not be aligned for it
    return x.view(target)


def take(x: Vector, index: Vector) -> Vector:
    """`x[index]`, always a copy."""
    return x.take(index, 0)


def take_along(x: Vector, index: Vector) -> Vector:
    return np.take_along_axis(x, index, -1)


def set_at(x: Vector, index: Vector, values: Vector) -> Vector:
    x[index] = values
    return x


def set_flat(x: Vector, index: Vector, values: Vector) -> Vector:
    x.reshape(-1)[index] = values
    return x


def min_at(x: Vector, index: Vector, values: Vector) -> Vector:
    np.minimum.at(x, index, values)
    return x


def add_at(x: Vector, index: Vector, values: Vector) -> Vector:
    np.add.at(x, index, values)
    return x


def where(condition: Vector, x: Vector, y: Vector) -> Vector:
    return np.where(condition, x, y)


def minimum(x: Vector, y: Vector) -> Vector:
    return np.minimum(x, y)


def maximum(x: Vector, y: Vector) -> Vector:
    return np.maximum(x, y)


def divide(x: Vector, y: Vector) -> Vector:
    return x / y


def settled(x: Vector) -> Vector:
    return x


def cumsum(x: Vector) -> Vector:
    return np.cumsum(x, -1, dtype=np.int32)


def cummax(x: Vector) -> Vector:
    return np.maximum.accumulate(x, -1)


def count(mask: Vector) -> BackendArray:
    return np.sum(mask, dtype=np.int32)


def argsort(x: Vector) -> Vector:
    return np.argsort(x, -1, kind="stable").astype(np.int32)


def searchsorted(ascending: Vector, values: Vector, side: Literal["left", "right"]) -> Vector:
    return np.asarray(np.searchsorted(ascending, values, side), np.int32)


def concat(arrays: Sequence[Vector], axis: int) -> Vector:
    return np.concatenate(arrays, axis)


def stack(scalars: Sequence[object]) -> Vector:
    return np.array(scalars)


def all_rows(x: Vector) -> Vector:
    return np.asarray(x.all(1))


def moveaxis(x: Vector, source: int, destination: int) -> Vector:
    return np.moveaxis(x, source, destination)


def mul_wide(a: Vector, b: Vector) -> tuple[Vector, Vector]:
    product = np.asarray(a).astype(np.int64) * b
    return (product >> 31).astype(np.int32), (product & MASK).astype(np.int32)


def while_loop(condition: Callable[..., object], body: Callable[..., Carry], carry: Carry) -> Carry:
    while condition(*carry):
        carry = body(*carry)
    return carry


def repeat(n: int, body: Callable[..., T], carry: T) -> T:
    for i in range(n):
        carry = body(i, carry)
    return carry


def table(values: Vector, dtype: str, like: Vector) -> Vector:
    return np.asarray(values, dtype_of(dtype))


def argmax(x: Vector) -> Vector:
    return np.asarray(x.argmax(-1), np.int32)


def argmax_by(x: Vector, order: Vector) -> Vector:
    return argmax(np.where(x == x.max(-1, keepdims=True), order, -1))


def largest(x: Vector) -> Vector:
    return np.asarray(x.max(-1))


def total(x: Vector) -> Vector:
    return np.asarray(x.sum(-1, dtype=np.int32 if x.dtype == np.bool_ else x.dtype))


def log(x: Vector) -> Vector:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(x))


def exp(x: Vector) -> Vector:
    return np.asarray(np.exp(x))


def cos(x: Vector) -> Vector:
    return np.asarray(np.cos(x))


def resampled(x: Vector, weights: Vector, axis: int) -> Vector:
    product = np.matmul(moveaxis(x, axis, -1), table(weights.T, "float32", x))
    return moveaxis(product, -1, axis)


def rounded(x: Vector) -> Vector:
    return np.asarray(np.rint(x))


if TYPE_CHECKING:
    from functional_rb.ops import numpy_ops as _functions

    _compared: ItemOpsOf[NumpyArray] = _functions

# This module, for the algorithms: they see arrays as `Array`, and hand back to it what came out of it.
OPS: Final = typing.cast("ItemOps", sys.modules[__name__])
