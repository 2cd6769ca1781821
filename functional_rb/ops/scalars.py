"""Scalars and Python's numbers: NumPy before 2 makes 64 bits of both, so the core combines them by these functions.

With NumPy 2.0 as the oldest version they can be written out again; elsewhere arrays keep their dtype beside a number.
"""

from __future__ import annotations

from functional_rb.ops.protocol import Array, Ops


def plus(ops: Ops, x: Array, number: int) -> Array:
    """`x + number`, of the dtype of x."""
    return x + ops.full_like(x, number)


def minus(ops: Ops, number: int, x: Array) -> Array:
    """`number - x`, of the dtype of x."""
    return ops.full_like(x, number) - x


def reciprocal(ops: Ops, x: Array) -> Array:
    """`1 / x`, of the dtype of x, rounded to the nearest."""
    return ops.divide(ops.full_like(x, 1), x)
