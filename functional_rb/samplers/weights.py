"""Priorities to the power alpha, and importance weights, the same bits on every backend."""

from __future__ import annotations

import math

from functional_rb import power
from functional_rb.ops import Array, Ops


def stored_value(ops: Ops, priorities: Array, alpha: float) -> tuple[Array, Array]:
    """`priorities ** alpha` as the tree holds it, and whether each priority is good.

    Zero stays zero; other powers are held within 2^-100 and 2^95, so that no sum can overflow.
    """
    if ops.native is not None:
        return ops.native.stored_value(priorities, alpha)
    bits = ops.bitcast(priorities[:, None], "int32")[:, 0]
    positive = (bits > 0) & (bits < 0x7F800000)
    zero = (bits & 0x7FFFFFFF) == 0
    # A subnormal priority counts as the smallest normal one: some devices flush it to zero, others do not.
    bits = ops.minimum(ops.maximum(bits, ops.full_like(bits, 0x00800000)), ops.full_like(bits, 0x7F7FFFFF))
    value = power_of(ops, bits, alpha)
    return ops.where(positive, value, ops.full_like(value, 0)), positive | zero


def power_of(ops: Ops, bits: Array, alpha: float) -> Array:
    """`x ** alpha` for positive normal float32 x given by their bits int32 [n], held within 2^-100 and 2^95."""
    if alpha == 1.0:
        value = ops.bitcast(bits[:, None], "float32")[:, 0]
    else:
        factor = power.fixed_constant(alpha)
        bias = power.fixed_constant(alpha, power.BIAS)
        log = power.log2_biased(ops, bits)
        y = power.times(ops, log, power.Fixed(*(ops.full_like(bits, part) for part in factor)))
        y = power.minus(ops, y, power.Fixed(*(ops.full_like(bits, part) for part in bias)))
        value = power.exp2(ops, power.Fixed(_clip(ops, y.whole), y.fraction))
    value = ops.maximum(value, ops.full_like(value, power.SMALLEST))
    return ops.minimum(value, ops.full_like(value, power.LARGEST))


def importance_weights(ops: Ops, values: Array, smallest: Array, beta: Array) -> Array:
    """`(values / smallest) ** -beta` in (0, 1], for float32 [B], a scalar, and a float32 scalar beta.

    Values are positive and at least the smallest; where they are not (nothing could be drawn), the result is
    meaningless but finite. A beta beyond 2^20 counts as 2^20. With one that is negative or NaN there are no weights,
    and NaN says so: to take it for 0 would switch the correction off without a word.
    """
    if ops.native is not None:
        return ops.native.importance_weights(values, smallest, beta)
    floor = ops.full_like(values, power.SMALLEST)
    log = power.log2_biased(ops, ops.bitcast(ops.maximum(values, floor)[:, None], "int32")[:, 0])
    base = ops.maximum(smallest + ops.full_like(values, 0), floor)
    distance = power.minus(ops, log, power.log2_biased(ops, ops.bitcast(base[:, None], "int32")[:, 0]))
    beta = beta + ops.full_like(values, 0)
    is_power = beta >= 0
    beta = ops.where(is_power, ops.minimum(beta, ops.full_like(beta, 2.0**20)), ops.full_like(beta, 0))
    whole = ops.cast(beta, "int32")
    rest = ops.cast((beta - ops.cast(whole, "float32")) * float(2**power.FRACTION), "int32")
    y = power.times(ops, distance, power.Fixed(whole, rest))
    zero = ops.full_like(y.whole, 0)
    y = power.minus(ops, power.Fixed(zero, zero), y)
    weights = power.exp2(ops, power.Fixed(_clip(ops, y.whole), y.fraction))
    return ops.where(is_power, weights, ops.full_like(weights, math.nan))


def _clip(ops: Ops, whole: Array) -> Array:
    return ops.maximum(ops.minimum(whole, ops.full_like(whole, 126)), ops.full_like(whole, -126))
