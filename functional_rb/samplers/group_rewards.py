"""What is told of the rewards of a group's items, with the same bits on all carriers."""

from __future__ import annotations

import math

from functional_rb.ops.protocol import Array, Ops

MEAN, DEVIATION = "group_mean", "group_deviation"
SMALLEST = 2.0**-126
# Half of what the bits of a float32 have for its exponent 0: with half of a number's bits, a root within a tenth.
HALF_EXPONENT = 127 << 22


def statistics(ops: Ops, values: Array, real: Array) -> dict[str, Array]:
    """Mean and deviation of the real values of each row, float32 [n, m] by name, 0 where nothing is real.

    Args:
        values: float32 [n, m].
        real: bool [n, m], the first of each row.
    """
    none = ops.full_like(values, 0)
    rewards = ops.where(real, values, none)
    count = ops.cast(ops.cumsum(ops.cast(real, "int32"))[:, -1:], "float32")
    count = ops.maximum(count, ops.full_like(count, 1))
    mean = ops.divide(_sums(ops, rewards), count)
    apart = rewards - mean
    # A choice stands between products and sums, or a compiler might round the two as one.
    squares = ops.where(real, apart * apart, none)
    fewer = ops.maximum(count - 1, ops.full_like(count, 1))
    deviation = _square_root(ops, ops.divide(_sums(ops, squares), fewer))
    return {MEAN: ops.where(real, mean + none, none), DEVIATION: ops.where(real, deviation + none, none)}


# The sums of rows, float32 [n, 1] of [n, m], added two by two, so that all carriers round alike.
def _sums(ops: Ops, x: Array) -> Array:
    while x.shape[1] > 1:
        half, odd = x.shape[1] // 2, x.shape[1] % 2
        rest = [x[:, 2 * half :]] if odd else []
        x = ops.concat([x[:, :half] + x[:, half : 2 * half], *rest], 1)
    return x


# Square roots of float32 that are not negative, by Newton's steps: those of libraries differ.
def _square_root(ops: Ops, x: Array) -> Array:
    positive = (x >= SMALLEST) & (x < math.inf)
    safe = ops.where(positive, x, ops.full_like(x, 1))
    root = ops.bitcast((ops.bitcast(safe, "int32") >> 1) + HALF_EXPONENT, "float32")
    for _ in range(4):
        root = 0.5 * (root + ops.divide(safe, root))
    return ops.where(positive, root, ops.where(x < SMALLEST, ops.full_like(x, 0), x))
