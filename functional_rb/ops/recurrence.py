"""Sums along time in which what comes later counts for less: discounted returns, and generalized advantages."""

from __future__ import annotations

from functional_rb.ops.protocol import Array, Ops


def discounted(ops: Ops, x: Array, factors: Array) -> Array:
    """`g[t] = x[t] + factors[t] g[t + 1]` along the second axis, with 0 behind the last step.

    By doubling: sums over 2 k steps are made of two over k, so that T steps take log2(T) operations on whole arrays.
    Behind a factor of 0 nothing counts, infinities and NaN neither.

    Args:
        ops: the backend.
        x: floats [B, T, ...].
        factors: floats that broadcast to these.
    """
    ahead, steps = 1, x.shape[1]
    while ahead < steps:
        later = _later(ops, x, ahead)
        x = x + factors * ops.where(factors != 0, later, ops.full_like(later, 0))
        factors = factors * _later(ops, factors, ahead)
        ahead *= 2
    return x


def _later(ops: Ops, x: Array, by: int) -> Array:
    return ops.concat([x[:, by:], ops.full_like(x[:, :by], 0)], 1)
