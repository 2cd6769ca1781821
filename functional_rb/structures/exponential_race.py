"""Sampling without replacement in proportion to priorities, by the arrival times of a Poisson process.

Let leaf i of a sum tree arrive at an exponential time of rate w_i, its value. The first B arrivals are then a
successive sample without replacement: the first is i with probability w_i / sum(w), the next j with w_j / (sum(w) -
w_i), and so on (Efraimidis and Spirakis, Weighted random sampling with a reservoir, 2006; the same is known as Gumbel
top-k). Not every leaf needs a time. The first arrival below a node has the rate of its sum. It happens in one child,
chosen in proportion to the sums, and tells nothing about the other children: from then on each waits an exponential
time of its own rate. So the tree is gone down level by level from the first arrival of all, and of each level only
the B + 1 earliest nodes are kept, as no leaf arrives before the nodes above it: O(B log n).

Times are float32 in a unit in which P(leaf of value w arrives after t) = 2^(-w t / UNIT). With values within 2^-100 and
2^95 neither the earliest times nor the latest leave the range of float32, so no scale has to be chosen.

Floats here are added, divided, or multiplied by a power of two, so that each operation rounds once: in t + a * b a
compiler may leave out the rounding of the product. Logarithms are in fixed point. So all backends find the same bits.
"""

from __future__ import annotations

import math
from typing import Final

from functional_rb.ops import fixed_point
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures.sum_tree import FANOUT, add_up, as_integers, geometry

# Of time: a wait is `UNIT * E / rate`, at most 31 * 2^18 / 2^-100, which 8 levels can add up without overflow.
UNIT: Final = 2.0**18
# The smallest normal float. Waits and probabilities below count as this: some devices make zeros of them.
LEAST: Final = 2.0**-126
_SCALE: Final = 2.0**-fixed_point.FRACTION
# (1 - 2^-x) / x = ln2 - x (ln2^2 / 2! - x (ln2^3 / 3! - ...)), in units of 2^-31.
_SERIES: Final = tuple(round(math.log(2) ** k / math.factorial(k) * 2**31) for k in range(1, 7))
# Up to here these terms are right to 6e-9; above, the subtraction in 1 - 2^-x loses less than three bits.
_SMALL: Final = 0.25
# From here on 1 - 2^-x is 1.
_CERTAIN: Final = 64.0


def words(capacity: int) -> int:
    """Random 31-bit words in each row of draws for `first`: at every level one to choose a child, and 16 to wait.

    Example:
        >>> words(1_000_000)
        85
    """
    return len(geometry(capacity).levels) * (1 + FANOUT)


def first(ops: Ops, tree: Array, capacity: int, draws: Array) -> tuple[Array, Array, Array]:
    """Draw B distinct leaves in proportion to their values: the first B to arrive.

    Args:
        tree: float32 [rows, FANOUT], the sum tree; values are 0 or within 2^-100 and 2^95.
        capacity: number of leaves.
        draws: int32 [B + 1, words(capacity)], uniform in [0, 2^31).

    Returns:
        slots: int32 [B], in order of arrival; in bounds, but meaningless, where not live.
        live: bool [B]: the first ones, as many as there are positive leaves, at most B.
        threshold: float32 scalar, when the next leaf arrives, as P(leaf of value w arrives before t) is 1 - 2^(-w t /
            UNIT); infinite if no leaf is left. It is what `inclusion` wants.
    """
    rows = draws.shape[0]
    draws = draws.reshape(rows, -1, 1 + FANOUT)
    nodes = ops.arange(1, like=tree)
    times = ops.cast(nodes, "float32")
    for depth, level in enumerate(reversed(geometry(capacity).levels)):
        level_draws = draws[: nodes.shape[0], depth]
        sums = ops.take(tree, level.sums + nodes)
        # One child of each node, in proportion to the sums.
        weights = as_integers(ops, sums)
        reach = ops.cumsum(weights)
        target = fixed_point.mul_high(ops, level_draws[:, 0], reach[:, -1])[:, None]
        chosen = (reach > target) & (reach - weights <= target)
        numbers = exponentials(ops, level_draws[:, 1:])
        at_once = ops.full_like(numbers, 0)
        if depth == 0:
            # When it all begins. The child that is chosen does not wait itself, so its number is free for this.
            times = _waits(ops, add_up(ops.where(chosen, numbers, at_once)), add_up(sums))
        # The others begin to wait when the first has arrived, as exponential waits forget how long they have lasted.
        arrivals = times[:, None] + ops.where(chosen, at_once, _waits(ops, numbers, sums))
        arrivals = arrivals.reshape(-1)
        # No more than B + 1 nodes of a level can hold one of the first B + 1 leaves.
        order = ops.argsort(arrivals)[:rows]
        times = ops.take(arrivals, order)
        children = (nodes[:, None] * FANOUT + ops.arange(FANOUT, like=nodes)).reshape(-1)
        # What never arrives comes last, padding too; it is kept where there is nothing else, and has to be in bounds.
        nodes = ops.minimum(ops.take(children, order), ops.full_like(order, level.nodes - 1))
    missing = ops.full_like(draws[nodes.shape[0] :, 0, 0], 0)
    nodes = ops.concat([nodes, missing], 0)
    times = ops.concat([times, ops.cast(missing, "float32") + math.inf], 0)
    return nodes[:-1], times[:-1] < math.inf, times[-1]


# Waiting times by exponential numbers; infinite where the rate is 0.
def _waits(ops: Ops, numbers: Array, rates: Array) -> Array:
    positive = rates > 0
    waits = ops.divide(numbers * UNIT, ops.where(positive, rates, ops.full_like(rates, 1)))
    waits = ops.maximum(waits, ops.full_like(waits, LEAST))
    return ops.where(positive, waits, ops.full_like(waits, math.inf))


def exponentials(ops: Ops, draws: Array) -> Array:
    """`-log2(u)` for u = max(draw, 1) / 2^31, right to 2^-23 of itself or 5 * 2^-31, and always positive.

    Args:
        draws: int32 [..., n], uniform in [0, 2^31).

    Returns:
        Exponentially distributed numbers float32 [..., n], with P(number > x) = 2^-x, at most 31.
    """
    draws = ops.maximum(draws, ops.full_like(draws, 1))
    # A float has 24 of the 31 bits. The others matter where u is almost 1, and the number almost 0.
    rest = ops.where(draws < 2**24, ops.full_like(draws, 0), draws & 127)
    head = ops.cast(draws - rest, "float32")
    log = fixed_point.log2_biased(ops, ops.bitcast(head, "int32"))
    # log2(head + rest) = log2(head) + rest / head / ln2, as rest / head is below 2^-17.
    more = ops.cast(ops.divide(ops.cast(rest, "float32") * (2**31 / math.log(2)), head), "int32")
    log = fixed_point.plus(ops, log, fixed_point.Fixed(ops.full_like(more, 0), more))
    most = fixed_point.Fixed(ops.full_like(more, 31 + fixed_point.BIAS), ops.full_like(more, 0))
    left = fixed_point.minus(ops, most, log)
    return ops.cast(left.whole, "float32") + ops.cast(left.fraction, "float32") * _SCALE


def inclusion(ops: Ops, values: Array, threshold: Array) -> Array:
    """The chance of leaves to be among the first ones, given when the next one arrives.

    Given the threshold, the leaves before it have come independently of each other, each with the chance 1 - 2^(-w t /
    UNIT). Weighting what is drawn by the reciprocals makes sums unbiased (Duffield, Lund and Thorup, Priority sampling
    for estimation of arbitrary subset sums, 2007; Kool, van Hoof and Welling, Stochastic beams and where to find them,
    2019, section 4).

    Args:
        values: float32 [B], values of leaves: 0, or within 2^-100 and 2^95.
        threshold: float32 scalar, from `first`.

    Returns:
        float32 [B], right to 3e-7 of itself, at least 2^-126; 1 if the threshold is infinite. 0 where the value is 0.
    """
    positive = values > 0
    x = ops.where(positive, values, ops.full_like(values, 1)) * threshold * (1 / UNIT)
    x = ops.minimum(x, ops.full_like(x, _CERTAIN))
    small = ops.minimum(x, ops.full_like(x, _SMALL))
    fixed = ops.cast(small * 2.0**fixed_point.FRACTION, "int32")
    slope = ops.full_like(fixed, _SERIES[-1])
    for coefficient in reversed(_SERIES[:-1]):
        slope = coefficient - fixed_point.mul_high(ops, fixed, slope)
    by_series = ops.maximum(ops.cast(slope, "float32") * _SCALE * small, ops.full_like(x, LEAST))
    whole = ops.cast(x, "int32")
    fraction = ops.cast((x - ops.cast(whole, "float32")) * 2.0**fixed_point.FRACTION, "int32")
    zero = ops.full_like(whole, 0)
    complement = fixed_point.exp2(
        ops, fixed_point.minus(ops, fixed_point.Fixed(zero, zero), fixed_point.Fixed(whole, fraction))
    )
    chance = ops.where(x < _SMALL, by_series, 1.0 - complement)
    return ops.where(positive, chance, ops.full_like(chance, 0))
