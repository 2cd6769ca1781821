"""Whole numbers by chance, exactly."""

from __future__ import annotations

from functional_rb.ops.fixed_point import MASK, mul_high
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops


@replaceable
def below(ops: Ops, draws: Array, n: Array) -> Array:
    """`floor(n * u)` for a 62-bit uniform u: one word alone would prefer some of a million numbers by a part in 2000.

    Args:
        ops: the backend.
        draws: int32 [B, 2], uniform in [0, 2^31): the high and the low half of u.
        n: int32 [B] or scalar, not negative.

    Returns:
        int32 [B], each in [0, n), and 0 where n is 0.
    """
    high, low = ops.mul_wide(draws[:, 0], n)
    carry = low > MASK - mul_high(ops, draws[:, 1], n)
    return high + ops.cast(carry, "int32")
