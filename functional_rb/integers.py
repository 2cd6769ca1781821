"""Uniform integers from draws."""

from __future__ import annotations

from functional_rb import power, ring
from functional_rb.ops import Array, Ops


def below(ops: Ops, draws: Array, n: Array) -> Array:
    """Uniform integers below n.

    Args:
        ops: the backend.
        draws: int32 [B, 2], uniform in [0, 2^31): together 62 bits, so that no number is preferred by more than 2^-31.
        n: int32 scalar or [B], not negative.

    Returns:
        int32 [B], `floor(n * u)` for the uniform u in [0, 1) that a row of draws spells.
    """
    high, low = ops.mul_wide(draws[:, 0], n)
    carry = low > ring.INT32_MAX - power.mul_high(ops, draws[:, 1], n)
    return high + ops.cast(carry, "int32")
