"""`functional_rb.ops.fixed_point` on scalars: the same fixed-point steps, in 64-bit integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels.cache import compiled
from functional_rb.cpu_kernels.descriptor import (
    ALPHA_FRACTION,
    ALPHA_IS_ONE,
    ALPHA_WHOLE,
    BIAS_FRACTION,
    BIAS_WHOLE,
)
from functional_rb.cpu_kernels.raw_memory import bits_of, float_of
from functional_rb.ops import fixed_point

LOG_TABLE = fixed_point.TABLES["log"].astype(np.int64)
INVERSE_TABLE = fixed_point.TABLES["inverse"].astype(np.int64)
EXP_TABLE = fixed_point.TABLES["exp"].astype(np.int64)
C1, C2, C3 = fixed_point.LOG_COEFFICIENTS
E1, E2, E3 = fixed_point.EXP_COEFFICIENTS
MASK = fixed_point.MASK
BIAS = fixed_point.BIAS
SMALLEST = np.float32(fixed_point.SMALLEST)
LARGEST = np.float32(fixed_point.LARGEST)


@compiled
def log2_biased(bits: Any) -> Any:
    """`log2(x) + 128` in units of 2^-31."""
    mantissa = np.int64(bits) & (2**23 - 1)
    entry = mantissa >> 15
    r = (((mantissa & (2**15 - 1)) << 8) * INVERSE_TABLE[entry]) >> 31
    slope = C1 - ((r * (C2 - ((r * C3) >> 31))) >> 31)
    fraction = LOG_TABLE[entry] + 2 * ((r * slope) >> 31)
    return (((np.int64(bits) >> 23) - 127 + BIAS) << 31) + fraction


@compiled
def times(x: Any, whole: Any, fraction: Any) -> Any:
    """The product with `whole + fraction / 2^31`, rounded down."""
    low = ((x & MASK) * fraction) >> 31
    return x * whole + (x >> 31) * fraction + low


@compiled
def exp2(y: Any) -> Any:
    """`2 ** y` for y in units of 2^-31."""
    whole = min(max(y >> 31, np.int64(-126)), np.int64(126))
    fraction = y & MASK
    x = fraction & (2**23 - 1)
    slope = E1 + ((x * (E2 + ((x * E3) >> 31))) >> 31)
    base = EXP_TABLE[fraction >> 23]
    mantissa = base + ((base * ((x * slope) >> 31)) >> 31)
    rounded = (mantissa >> 7) + ((mantissa >> 6) & 1)
    return float_of(np.int32(((whole + 126) << 23) + rounded))


@compiled
def stored_value(plan: Any, bits: Any) -> Any:
    """`priority ** alpha` as the tree holds it, -1 for a bad priority, which is given by its bits int32.

    Were it given as a float, LLVM would compare that with zero, and XLA's threads take subnormals for zero.
    """
    if bits & 0x7FFFFFFF == 0:
        return np.float32(0)
    if bits < 0 or bits >= 0x7F800000:
        return np.float32(-1)
    bits = max(bits, np.int32(0x00800000))
    if plan[ALPHA_IS_ONE]:
        value = float_of(np.int32(bits))
    else:
        y = times(log2_biased(bits), np.int64(plan[ALPHA_WHOLE]), np.int64(plan[ALPHA_FRACTION]))
        value = exp2(y - (np.int64(plan[BIAS_WHOLE]) << 31) - np.int64(plan[BIAS_FRACTION]))
    return min(max(value, SMALLEST), LARGEST)


@compiled
def importance_weight(value: Any, base: Any, beta: Any) -> Any:
    """`(value / smallest) ** -beta`, for the biased logarithm of the smallest as base; NaN for no such beta."""
    if not beta >= 0:
        return np.float32(np.nan)
    beta = min(beta, np.float32(2.0**20))
    whole = np.int64(beta)
    fraction = np.int64((beta - np.float32(whole)) * np.float32(2.0**31))
    return exp2(-times(log2_biased(bits_of(value)) - base, whole, fraction))
