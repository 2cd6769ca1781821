"""The array primitives of `functional_rb.ops.protocol.Ops` on JAX."""

from __future__ import annotations

import functools
import sys
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.dtypes import ITEMSIZE
from functional_rb.ops.fixed_point import TABLES
from functional_rb.ops.protocol import BackendOps, BackendOpsOf, Carry, T
from jax_backend import compat
from jax_backend.arrays import rules

# How many bytes a GPU reads at most as another dtype by shifts: images would take it a load for each byte.
SHIFTED: Final = 1024


def zeros(shape: Sequence[int], dtype: str, device: object = None) -> jax.Array:
    return jnp.zeros(tuple(shape), dtype, device=device)


def full_like(x: jax.Array, value: int | float) -> jax.Array:
    return jnp.full_like(x, value)


def arange(n: int, like: jax.Array) -> jax.Array:
    return jnp.arange(n, dtype=jnp.int32)


def constant(name: str, like: jax.Array) -> jax.Array:
    return table(TABLES[name], TABLES[name].dtype.name, like)


def floats(values: Sequence[float], like: jax.Array) -> jax.Array:
    return table(np.asarray(values), "float32", like)


def integers(values: Sequence[int], like: jax.Array) -> jax.Array:
    return table(np.asarray(values), "int32", like)


def cast(x: jax.Array, dtype: str) -> jax.Array:
    return x.astype(dtype)


def bitcast(x: jax.Array, dtype: str) -> jax.Array:
    # XLA reads the bytes of neither truth values nor complex numbers as another dtype.
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    elif x.dtype == jnp.complex64:
        x = jnp.stack([x.real, x.imag], -1).reshape(*x.shape[:-1], 2 * x.shape[-1])
    if dtype == "bool":
        return bitcast(x, "uint8") != 0
    if dtype == "complex64":
        halves = bitcast(x, "float32")
        return lax.complex(halves[..., ::2], halves[..., 1::2])
    lead, last = x.shape[:-1], x.shape[-1]
    old, new = x.dtype.itemsize, ITEMSIZE[dtype]
    if 4 in (old, new) and min(old, new) < 4 and last * old <= SHIFTED and jax.default_backend() == "gpu":
        return _joined(x, dtype) if new == 4 else _parted(x, dtype)
    if new > old:
        x = x.reshape(*lead, last * old // new, new // old)
    return lax.bitcast_convert_type(x, jnp.dtype(dtype)).reshape(*lead, last * old // new)


# Words of what they consist of, and back. XLA for GPUs puts nothing into one launch with its own operation for this;
# of shifts each use reads what it needs.
def _joined(parts: jax.Array, dtype: str) -> jax.Array:
    bits, count = 8 * parts.dtype.itemsize, 4 // parts.dtype.itemsize
    parts = lax.bitcast_convert_type(parts, f"uint{bits}")
    words = [parts[..., k::count].astype(jnp.uint32) << k * bits for k in range(count)]
    return lax.bitcast_convert_type(functools.reduce(jnp.bitwise_or, words), jnp.dtype(dtype))


def _parted(words: jax.Array, dtype: str) -> jax.Array:
    bits, count = 8 * ITEMSIZE[dtype], 4 // ITEMSIZE[dtype]
    words = lax.bitcast_convert_type(words, jnp.uint32)[..., None] >> bits * lax.iota(jnp.uint32, count)
    parts = words.astype(f"uint{bits}").reshape(*words.shape[:-2], count * words.shape[-2])
    return lax.bitcast_convert_type(parts, jnp.dtype(dtype))


def take(x: jax.Array, index: jax.Array) -> jax.Array:
    # `x[index]`; the core keeps every index in bounds.
    if jax.default_backend() == "tpu":  # where to look for negative ones, as JAX does, is a piece of work
        rows = lax.GatherDimensionNumbers(tuple(range(index.ndim, index.ndim + x.ndim - 1)), (0,), (0,))
        return lax.gather(x, index[..., None], rows, (1, *x.shape[1:]), mode="promise_in_bounds")
    return x.at[index].get(mode="promise_in_bounds")


def set_at(x: jax.Array, index: jax.Array, values: jax.Array) -> jax.Array:
    # `x` with `x[index] = values`; in place where XLA may.
    return x.at[index].set(values, mode="promise_in_bounds")


def take_each(x: jax.Array, index: jax.Array) -> jax.Array:
    # One gather with a batch axis, which XLA divides as the arrays are.
    return jax.vmap(take)(x, index)


def set_each(x: jax.Array, index: jax.Array, live: jax.Array | None, values: jax.Array) -> jax.Array:
    # One scatter with a batch axis; XLA leaves out what lies behind the end.
    if live is None:
        return jax.vmap(set_at)(x, index, values)
    index = jnp.where(live, index, x.shape[1])
    return jax.vmap(lambda row, place, value: row.at[place].set(value, mode="drop"))(x, index, values)


def set_flat(x: jax.Array, index: jax.Array, values: jax.Array) -> jax.Array:
    return set_at(x.reshape(-1), index, values).reshape(x.shape)


def min_at(x: jax.Array, index: jax.Array, values: jax.Array) -> jax.Array:
    return x.at[index].min(values, mode="promise_in_bounds")


def add_at(x: jax.Array, index: jax.Array, values: jax.Array) -> jax.Array:
    return x.at[index].add(values, mode="promise_in_bounds")


def where(condition: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    if x.dtype == jnp.bfloat16 == y.dtype:  # which XLA's CPU chooses by way of float32: signaling NaNs would change
        x, y = (lax.bitcast_convert_type(values, jnp.uint16) for values in (x, y))
        return lax.bitcast_convert_type(jnp.where(condition, x, y), jnp.bfloat16)
    return jnp.where(condition, x, y)


def minimum(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.minimum(x, y)


def maximum(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.maximum(x, y)


def divide(x: jax.Array, y: jax.Array) -> jax.Array:
    if x.dtype != jnp.float32 or not divides_roughly():
        return x / y
    x, y = jnp.broadcast_arrays(x, y)
    return nearest_quotient(x, y, lax.div)


def divides_roughly() -> bool:
    """Whether what is compiled here may divide float32 by an instruction that is up to 2 units off."""
    return jax.default_backend() == "gpu"


def nearest_quotient(x: jax.Array, y: jax.Array, roughly: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """`x / y` for float32, rounded to the nearest where it is a normal number; elsewhere what `roughly` finds.

    What remains of a division of the significands by a quotient that is few units off fits into int32, so it is exact,
    though each of the two products that it is the difference of has 48 bits: they may wrap around.
    """
    a, b = (lax.bitcast_convert_type(each, jnp.int32) for each in (x, y))
    (above, exponent), (below, other) = (((bits & (2**23 - 1)) + 2**23, (bits >> 23) & 255) for bits in (a, b))
    small = (above < below).astype(jnp.int32)  # then the quotient of the significands is below 1
    guess = roughly(above.astype(jnp.float32), below.astype(jnp.float32)) * jnp.where(small == 1, 2.0**24, 2.0**23)
    quotient = guess.astype(jnp.int32)
    rest = (above << (23 + small)) - quotient * below
    too_small, too_large = [rest >= k * below for k in (1, 2, 3)], [rest < -k * below for k in (0, 1, 2)]
    off = sum(too_small, jnp.int32(0)) - sum(too_large, jnp.int32(0))
    quotient, rest = quotient + off, rest - off * below
    quotient += ((2 * rest > below) | ((2 * rest == below) & (quotient & 1 == 1))).astype(jnp.int32)
    scale = exponent - other + 127 - small
    magnitude = (scale << 23) + (quotient - 2**23)  # of a quotient rounded up to 2^24 the exponent is one more
    normal = (exponent > 0) & (exponent < 255) & (other > 0) & (other < 255) & (scale > 0) & (scale < 255)
    signed = magnitude | ((a ^ b) & jnp.int32(-(2**31)))
    return jnp.where(normal, lax.bitcast_convert_type(signed, jnp.float32), roughly(x, y))


def settled(x: jax.Array) -> jax.Array:
    if jax.default_backend() != "gpu":
        return x
    fixed: jax.Array = lax.optimization_barrier(lax.stop_gradient(x))
    return fixed


def cumsum(x: jax.Array) -> jax.Array:
    return jnp.cumsum(x, -1, dtype=jnp.int32)


def cummax(x: jax.Array) -> jax.Array:
    return lax.cummax(x, x.ndim - 1)


def count(mask: jax.Array) -> jax.Array:
    return jnp.sum(mask, dtype=jnp.int32)


def argsort(x: jax.Array) -> jax.Array:
    _, order = lax.sort((x, lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)), num_keys=1, is_stable=True)
    return order


def searchsorted(ascending: jax.Array, values: jax.Array, side: Literal["left", "right"]) -> jax.Array:
    return jnp.searchsorted(ascending, values, side=side).astype(jnp.int32)


def concat(arrays: Sequence[jax.Array], axis: int) -> jax.Array:
    return jnp.concatenate(arrays, axis)


def stack(scalars: Sequence[jax.Array]) -> jax.Array:
    return jnp.stack(scalars)


def all_rows(x: jax.Array) -> jax.Array:
    return jnp.all(x, 1)


def moveaxis(x: jax.Array, source: int, destination: int) -> jax.Array:
    return jnp.moveaxis(x, source, destination)


def mul_wide(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    # The 62-bit product in 16-bit limbs: JAX has no 64-bit integers unless asked.
    x, y = a.astype(jnp.uint32), b.astype(jnp.uint32)
    x0, x1, y0, y1 = x & 0xFFFF, x >> 16, y & 0xFFFF, y >> 16
    low = x0 * y0
    middle = x1 * y0 + (low >> 16)
    cross = x0 * y1 + (middle & 0xFFFF)
    high = x1 * y1 + (middle >> 16) + (cross >> 16)
    low = (cross << 16) | (low & 0xFFFF)
    return ((high << 1) | (low >> 31)).astype(jnp.int32), (low & 0x7FFFFFFF).astype(jnp.int32)


def call(function: Callable[..., object], *arrays: object) -> Any:
    with rules.users():
        return function(*arrays)


def while_loop(condition: Callable[..., jax.Array], body: Callable[..., Carry], carry: Carry) -> Carry:
    def turn(carry: Carry) -> Carry:
        return body(*carry)

    final: Carry = lax.while_loop(lambda carry: condition(*carry), turn, _varying_as_made(turn, carry))
    return final


def repeat(n: int, body: Callable[..., T], carry: T) -> T:
    return lax.fori_loop(0, n, body, _varying_as_made(lambda carry: body(jnp.int32(0), carry), carry))


# What a loop begins with, varying between the devices of `shard_map` where what its body makes of it does.
def _varying_as_made(body: Callable[[T], T], carry: T) -> T:
    def joined(before: jax.Array, after: jax.ShapeDtypeStruct) -> jax.Array:
        further = compat.varying_axes(after) - compat.varying_axes(before)
        return compat.made_varying(before, sorted(further)) if further else before

    # Until nothing varies further: one part of the carry may make another vary at the next turn.
    while compat.in_shard_map():
        varying = jax.tree.map(joined, carry, jax.eval_shape(body, carry))
        if all(a is b for a, b in zip(jax.tree.leaves(varying), jax.tree.leaves(carry), strict=True)):
            break
        carry = varying
    return carry


def argmax_by(x: jax.Array, order: jax.Array) -> jax.Array:
    # In one pass, so that XLA computes the numbers once.
    def better(left: jax.Array, right: jax.Array) -> tuple[jax.Array, ...]:
        wins = (left[0] > right[0]) | ((left[0] == right[0]) & (left[1] >= right[1]))
        return tuple(jnp.where(wins, a, b) for a, b in zip(left, right, strict=True))

    positions = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    least = jnp.float32(-np.inf), jnp.int32(-1), jnp.int32(0)
    position: jax.Array = lax.reduce((x, order, positions), least, better, (x.ndim - 1,))[2]
    return position


def largest(x: jax.Array) -> jax.Array:
    return jnp.max(x, -1)


def total(x: jax.Array) -> jax.Array:
    return jnp.sum(x, -1, dtype=jnp.int32 if x.dtype == jnp.bool_ else x.dtype)


def exp(x: jax.Array) -> jax.Array:
    return jnp.exp(x)


def table(values: NumpyArray, dtype: str, like: jax.Array) -> jax.Array:
    """A constant of the compiled program.

    It is the result of a program of its own: a constant in a branch becomes an argument of that, and where `vmap` makes
    a selection of branches inside of `shard_map`, JAX (0.10) refuses arguments that are the same on all devices.
    """
    constant: jax.Array = jax.jit(lambda: jnp.asarray(values, dtype))()
    return constant


def argmax(x: jax.Array) -> jax.Array:
    return lax.argmax(x, x.ndim - 1, jnp.int32)


def by_places(
    function: Callable[[jax.Array, jax.Array], jax.Array],
    slopes: Callable[[jax.Array, jax.Array], jax.Array],
    x: jax.Array,
    y: jax.Array,
) -> jax.Array:
    # XLA joins what is computed on the way; the slopes, put in by hand, measured the same.
    return function(x, y)


def in_turn(function: Callable[..., tuple[T, jax.Array]], carry: T, *arrays: jax.Array) -> tuple[T, jax.Array]:
    # For gradients a turn is computed again, not kept; within a scan XLA cannot join the two, so nothing need prevent
    # it.
    body = jax.checkpoint(lambda carry, slices: function(carry, *slices), prevent_cse=False)
    return lax.scan(body, carry, arrays)


def take_along(x: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x, index, -1, mode="promise_in_bounds")


def log(x: jax.Array) -> jax.Array:
    return jnp.log(x)


def cos(x: jax.Array) -> jax.Array:
    return jnp.cos(x)


def clamp(x: jax.Array, low: jax.Array | float, high: jax.Array | float) -> jax.Array:
    # Chosen, as XLA's minimum and maximum make zeros of subnormal numbers.
    x = jnp.where(x >= low, x, low)
    return jnp.where(x <= high, x, high)


def without_nan(x: jax.Array) -> jax.Array:
    return jnp.where(x == x, x, 0)


def scale(high: jax.Array, low: jax.Array, n: jax.Array) -> jax.Array:
    top, rest = mul_wide(high, n)
    return top + (rest > 0x7FFFFFFF - mul_wide(low, n)[0])


# So many elements of a row are added up one by one: a matrix product takes as long for many more.
MOST_ADDED = 16


def resampled(x: jax.Array, weights: NumpyArray, axis: int) -> jax.Array:
    """Lines along an axis times a matrix, by the few elements of each of its rows that are not 0.

    XLA puts the sums of those together with what comes before and after: a fifth of the time of a matrix product.
    """
    count = int((weights != 0).sum(1).max())
    if count > MOST_ADDED:
        lines, matrix = moveaxis(x, axis, -1), table(weights.T, "float32", x)
        # XLA would leave out digits on a GPU or TPU.
        return moveaxis(jnp.matmul(lines, matrix, precision=lax.Precision.HIGHEST), -1, axis)
    first = np.minimum((weights != 0).argmax(1), weights.shape[1] - count)
    total: jax.Array | None = None
    for k in range(count):
        factors = table(weights[np.arange(len(weights)), first + k], "float32", x)
        taken = jnp.take(x, first + k, axis=axis, mode="clip")
        product = taken * lax.expand_dims(factors, range(1, x.ndim - axis % x.ndim))
        total = product if total is None else total + product
    assert total is not None
    return total


def rounded(x: jax.Array) -> jax.Array:
    return jnp.round(x)


if TYPE_CHECKING:
    from jax_backend.arrays import ops as _functions

    _compared: BackendOpsOf[jax.Array] = _functions

# This module, for the algorithms: they see arrays as `Array`, and hand back to it what came out of it.
OPS: Final = typing.cast("BackendOps", sys.modules[__name__])
