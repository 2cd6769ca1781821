"""Priorities to the power alpha, and importance weights, the same bits on every backend."""

from __future__ import annotations

import math

from functional_rb.ops import fixed_point
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops

LARGEST_FACTOR = 2.0**23
"""By which logarithms may be multiplied. What is stored of priorities to a power below 2^-23 tells little of them."""
SMALLEST_BITS, LARGEST_BITS = 0x00800000, 0x7F7FFFFF
"""Of the normal float32."""
EXPONENT = 2**23
"""One more in the exponent of a float32, in its bits."""
NEIGHBOURS = (-2, 2, -1, 1, 0)
"""How far, in steps of float32, a priority may lie from the root that is computed: what is found last, counts."""


@replaceable
def stored_value(ops: Ops, priorities: Array, alpha: float) -> tuple[Array, Array]:
    """`priorities ** alpha` as the tree holds it, and whether each priority is good.

    Zero stays zero; other powers are held within 2^-100 and 2^95, so that no sum can overflow.
    """
    bits = ops.bitcast(priorities[:, None], "int32")[:, 0]
    positive = (bits > 0) & (bits < 0x7F800000)
    zero = (bits & 0x7FFFFFFF) == 0
    # A subnormal priority counts as the smallest normal one: some devices flush it to zero, others do not.
    bits = ops.minimum(ops.maximum(bits, ops.full_like(bits, SMALLEST_BITS)), ops.full_like(bits, LARGEST_BITS))
    value = power_of(ops, bits, alpha)
    return ops.where(positive, value, ops.full_like(value, 0)), positive | zero


def priority_of(ops: Ops, values: Array, alpha: float) -> Array:
    """The priorities float32 [n] of which `stored_value` makes given values, 0 or what it has made of some.

    Of several such the one in the middle or next to it. Where alpha is 0 nothing is known of them: 1 where positive.
    """
    positive = values > 0
    if alpha == 1.0 or alpha == 0.0:
        return values if alpha else ops.cast(positive, "float32")
    bits = ops.bitcast(ops.where(positive, values, ops.full_like(values, 1))[:, None], "int32")[:, 0]
    y = _scaled_log(ops, bits, min(1 / alpha, LARGEST_FACTOR))
    lowest, highest = ops.full_like(bits, SMALLEST_BITS), ops.full_like(bits, LARGEST_BITS)
    root = fixed_point.exp2(ops, fixed_point.Fixed(_clip(ops, y.whole), y.fraction))
    center = ops.bitcast(root[:, None], "int32")[:, 0]
    # A whole part of 127 is one more in the exponent.
    center = ops.where(y.whole == 127, ops.minimum(center, highest - EXPONENT) + EXPONENT, center)
    center = ops.where(y.whole > 127, highest, ops.where(y.whole < -126, lowest, center))
    found = center
    for step in NEIGHBOURS:
        near = ops.minimum(ops.maximum(center + step, lowest), highest)
        made, _ = stored_value(ops, ops.bitcast(near[:, None], "float32")[:, 0], alpha)
        found = ops.where(made == values, near, found)
    priorities = ops.bitcast(found[:, None], "float32")[:, 0]
    return ops.where(positive, priorities, ops.full_like(priorities, 0))


def raised(ops: Ops, values: Array, alpha: float, other: float) -> Array:
    """Priorities to one power, as the tree holds them, float32 [n], as those to another: `value ** (other / alpha)`.

    Alpha is positive. The result is within 1 + other / alpha units in the last place of what would be stored of the
    priorities themselves; what is held at 2^-100 or 2^95 counts as that.
    """
    return values if other == alpha else stored_value(ops, values, min(other / alpha, LARGEST_FACTOR))[0]


def power_of(ops: Ops, bits: Array, alpha: float) -> Array:
    """`x ** alpha` for positive normal float32 x given by their bits int32 [n], held within 2^-100 and 2^95."""
    if alpha == 1.0:
        value = ops.bitcast(bits[:, None], "float32")[:, 0]
    else:
        y = _scaled_log(ops, bits, alpha)
        value = fixed_point.exp2(ops, fixed_point.Fixed(_clip(ops, y.whole), y.fraction))
    value = ops.maximum(value, ops.full_like(value, fixed_point.SMALLEST))
    return ops.minimum(value, ops.full_like(value, fixed_point.LARGEST))


def _scaled_log(ops: Ops, bits: Array, factor: float) -> fixed_point.Fixed:
    """`factor * log2(x)` for x as in `power_of`; the fraction is never negative."""
    parts, bias = fixed_point.fixed_constant(factor), fixed_point.fixed_constant(factor, fixed_point.BIAS)
    log = fixed_point.log2_biased(ops, bits)
    y = fixed_point.times(ops, log, fixed_point.Fixed(*(ops.full_like(bits, part) for part in parts)))
    return fixed_point.minus(ops, y, fixed_point.Fixed(*(ops.full_like(bits, part) for part in bias)))


@replaceable
def importance_weights(ops: Ops, values: Array, smallest: Array, beta: Array) -> Array:
    """`(values / smallest) ** -beta` in (0, 1], for float32 [B], a scalar, and a float32 scalar beta.

    Values are positive and at least the smallest; where they are not (nothing could be drawn), the result is
    meaningless but finite. A beta beyond 2^20 counts as 2^20. With one that is negative or NaN there are no weights,
    and NaN says so: to take it for 0 would switch the correction off without a word.
    """
    floor = ops.full_like(values, fixed_point.SMALLEST)
    log = fixed_point.log2_biased(ops, ops.bitcast(ops.maximum(values, floor)[:, None], "int32")[:, 0])
    base = ops.maximum(smallest + ops.full_like(values, 0), floor)
    distance = fixed_point.minus(ops, log, fixed_point.log2_biased(ops, ops.bitcast(base[:, None], "int32")[:, 0]))
    beta = beta + ops.full_like(values, 0)
    is_power = beta >= 0
    beta = ops.where(is_power, ops.minimum(beta, ops.full_like(beta, 2.0**20)), ops.full_like(beta, 0))
    whole = ops.cast(beta, "int32")
    rest = ops.cast((beta - ops.cast(whole, "float32")) * float(2**fixed_point.FRACTION), "int32")
    y = fixed_point.times(ops, distance, fixed_point.Fixed(whole, rest))
    zero = ops.full_like(y.whole, 0)
    y = fixed_point.minus(ops, fixed_point.Fixed(zero, zero), y)
    weights = fixed_point.exp2(ops, fixed_point.Fixed(_clip(ops, y.whole), y.fraction))
    return ops.where(is_power, weights, ops.full_like(weights, math.nan))


def _clip(ops: Ops, whole: Array) -> Array:
    return ops.maximum(ops.minimum(whole, ops.full_like(whole, 126)), ops.full_like(whole, -126))
