"""Of numbers in ascending order, those that lie furthest apart: the k of them that have the largest variance.

These are always some of the lowest and some of the highest: as a function of one of its numbers the variance is convex,
so a number between others that are left out can move down or up, and the variance only grows. It is left to say how
many of the lowest there are. Let j of them be taken, l be the next low number, and h the lowest of the high ones. To
take l in place of h raises the variance exactly if the middle of l and h lies below the mean of both choices together.
As j grows that middle rises and the means fall. So exchanges help as long as j is small, and none does after the first
that does not: their number is j. (RePO, Li et al., 2025, arXiv 2506.09340, tries all j.)
"""

from __future__ import annotations

from typing import Final

from functional_rb.ops.protocol import Array, Ops

# Larger numbers count as this one, so that no sum of 2^28 of them overflows, and smaller ones as 0: then no difference
# is a subnormal number, of which XLA makes 0.
LARGEST: Final = 2.0**90
SMALLEST: Final = 2.0**-100


def lowest_in(ops: Ops, low: Array, high: Array) -> Array:
    """How many of the lowest numbers are in the choice of the largest variance, whose others are the highest.

    Of several such choices it is the one with the largest sum. Numbers are compared as they lie above the lowest one,
    in float32, so that choices whose variances nearly agree may be taken for equal.

    Args:
        low: float32 [n, k], of each of n lists of at least k finite numbers the lowest, ascending.
        high: float32 [n, k], the highest, ascending.

    Returns:
        int32 [n, 1], 0 to k - 1.
    """
    origin = _bounded(ops, low[:, :1])
    low, high = _bounded(ops, low) - origin, _bounded(ops, high) - origin
    # At each j the sum of the j lowest numbers and the k - j highest ones.
    before = ops.concat([ops.full_like(origin, 0), _running(ops, low)[:, :-1]], 1)
    total = before + _remaining(ops, high)
    raises = low.shape[1] * (low + high) < 2 * total + (low - high)
    return ops.cumsum(ops.cast(raises, "int32"))[:, -1:]


def _bounded(ops: Ops, x: Array) -> Array:
    x = ops.minimum(ops.maximum(x, ops.full_like(x, -LARGEST)), ops.full_like(x, LARGEST))
    return ops.where((x < SMALLEST) & (x > -SMALLEST), ops.full_like(x, 0), x)


# Sums up to each column, and from each column on, float32 [n, k]: added in the same order by all backends.
def _running(ops: Ops, x: Array) -> Array:
    step = 1
    while step < x.shape[1]:
        x = ops.concat([x[:, :step], x[:, step:] + x[:, :-step]], 1)
        step *= 2
    return x


def _remaining(ops: Ops, x: Array) -> Array:
    step = 1
    while step < x.shape[1]:
        x = ops.concat([x[:, :-step] + x[:, step:], x[:, -step:]], 1)
        step *= 2
    return x
