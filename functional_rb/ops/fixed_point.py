"""Powers of priorities in fixed point, so that every backend and device computes the same bits.

`p ** alpha` decides which item a draw lands on. Float `pow` differs by an ulp or more between NumPy, XLA, torch and
CUDA, and two backends fed the same draws would now and then return different items. Here a logarithm is an integer
part and a 31-bit fraction, found from a table of 256 entries and a cubic, as its inverse is: 32-bit integers
throughout, so there is nothing to round differently. For alpha up to 1 the error is at most 0.53 ulp of
float32 with alpha rounded to 2^-31, and 0.77 ulp with alpha exact; that of the importance weights 0.52 ulp for beta up
to 1 (tested).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops

FRACTION: Final = 31
MASK: Final = 2**31 - 1
# Added to log2 so that it is never negative.
BIAS: Final = 128
MIN_EXPONENT: Final = -100
# Powers are held within 2^-100 and 2^95 (8e-31 and 4e28): no sum over 2^31 items overflows, none is subnormal.
MAX_EXPONENT: Final = 95
LARGEST: Final = float(2.0**MAX_EXPONENT)
SMALLEST: Final = float(2.0**MIN_EXPONENT)

_STEPS = np.arange(256) / 256.0
# Of 256 points c in [1, 2): log2(c) and 1/c in units of 2^-31; and 2^x of 256 points x in [0, 1) in units of 2^-30.
TABLES: Final = {
    "log": np.round(np.log2(1 + _STEPS) * 2**31).astype(np.int32),
    "inverse": np.minimum(np.round(2**31 / (1 + _STEPS)), MASK).astype(np.int32),
    "exp": np.round(2.0**_STEPS * 2**30).astype(np.int32),
}
LOG_COEFFICIENTS: Final = tuple(round(c / math.log(2) * 2**30) for c in (1.0, 1 / 2, 1 / 3))
EXP_COEFFICIENTS: Final = tuple(round(math.log(2) ** k / math.factorial(k) * 2**31) for k in (1, 2, 3))


class Fixed(NamedTuple):
    """A number that is not negative, as an integer part and a fraction in units of 2^-31; each int32."""

    whole: Array
    fraction: Array


def fixed_constant(value: float, factor: int = 1) -> tuple[int, int]:
    """A Python number that is not negative, rounded, times a whole factor: whole part and 31-bit fraction.

    Example:
        >>> fixed_constant(2.5)
        (2, 1073741824)
    """
    scaled = round(value * 2**FRACTION) * factor
    return scaled >> FRACTION, scaled & MASK


def mul_high(ops: Ops, a: Array, b: Array) -> Array:
    """`a * b / 2^31`, rounded down, for int32 that are not negative."""
    return ops.mul_wide(a, b)[0]


@replaceable
def lookup(ops: Ops, table: str, entry: Array) -> Array:
    """The entries int32 [n], each below 256, of one of the `TABLES`."""
    return ops.take(ops.constant(table, entry), entry)


def log2_biased(ops: Ops, bits: Array) -> Fixed:
    """`log2(x) + 128` of positive normal float32 x, given by their bits int32."""
    mantissa = bits & (2**23 - 1)
    entry = mantissa >> 15
    inverse = lookup(ops, "inverse", entry)
    # x = 2^e * c * (1 + r), where c is the table's point below the mantissa and 0 <= r < 2^-8.
    r = mul_high(ops, (mantissa & (2**15 - 1)) << 8, inverse)
    c1, c2, c3 = LOG_COEFFICIENTS
    slope = c1 - mul_high(ops, r, c2 - mul_high(ops, r, ops.full_like(r, c3)))
    fraction = lookup(ops, "log", entry) + 2 * mul_high(ops, r, slope)
    return Fixed((bits >> 23) - 127 + BIAS, fraction)


def times(ops: Ops, x: Fixed, factor: Fixed) -> Fixed:
    """The product of two fixed-point numbers, rounded down to 2^-31; the whole part must stay below 2^31."""
    whole, fraction = ops.mul_wide(x.whole, factor.fraction)
    total = Fixed(x.whole * factor.whole + whole, fraction)
    whole, fraction = ops.mul_wide(x.fraction, factor.whole)
    total = plus(ops, total, Fixed(whole, fraction))
    low = mul_high(ops, x.fraction, factor.fraction)
    return plus(ops, total, Fixed(ops.full_like(low, 0), low))


def plus(ops: Ops, x: Fixed, y: Fixed) -> Fixed:
    """The sum of two fixed-point numbers."""
    # Compared before they are added, as the sum may take 32 bits.
    room = MASK - y.fraction
    carry = ops.cast(x.fraction > room, "int32")
    return Fixed(x.whole + y.whole + carry, (x.fraction - room - 1) & MASK)


def minus(ops: Ops, x: Fixed, y: Fixed) -> Fixed:
    """The difference of two fixed-point numbers; its whole part may be negative, its fraction never is."""
    borrow = ops.cast(x.fraction < y.fraction, "int32")
    return Fixed(x.whole - y.whole - borrow, (x.fraction - y.fraction) & MASK)


def exp2(ops: Ops, y: Fixed) -> Array:
    """`2 ** y` as float32, for a whole part within -126 and 126."""
    x = y.fraction & (2**23 - 1)
    c1, c2, c3 = EXP_COEFFICIENTS
    slope = c1 + mul_high(ops, x, c2 + mul_high(ops, x, ops.full_like(x, c3)))
    base = lookup(ops, "exp", y.fraction >> 23)
    mantissa = base + mul_high(ops, base, mul_high(ops, x, slope))
    rounded = (mantissa >> 7) + ((mantissa >> 6) & 1)
    # The leading bit of the significand, which a float does not store, adds the one that is missing to the exponent.
    return ops.bitcast(((y.whole + 126) << 23) + rounded, "float32")
