"""How much of a batch each buffer gives, the same numbers on every backend."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

from functional_rb.mixture.value import MixtureSpec
from functional_rb.ops import scalars
from functional_rb.ops.protocol import Array, Ops

# Bits of a row's fraction, by which quotas are rounded.
STEPS: Final = 30
# The bits of such a fraction.
BELOW: Final = 2**STEPS - 1
# The relative error that float32 may have in a quota.
ROUNDING: Final = 2.0**-21
# So many can be shared out by float32 without an error of one.
LARGEST_BATCH = 2**22
# Shares between which float32 neither overflows nor loses digits; smaller ones count as 0.
LEAST, MOST = 2.0**-100, 2.0**100


class Assignment(NamedTuple):
    """Which buffer gives which rows of a batch.

    Attributes:
        ids: int32 [B], the buffer of each row.
        ranks: int32 [B], which of the rows that this buffer gives it is, from 0; 0 for rows that do not count.
        counts: int32 [K], how many rows each buffer gives.
    """

    ids: Array
    ranks: Array
    counts: Array


def normalized(ops: Ops, p: Array, drawable: Array) -> Array:
    """Shares float32 [K] with the sum 1, 0 for buffers that are not drawable, bool [K]; all 0 if none is."""
    nothing = ops.full_like(p, 0)
    # Written so that NaN, which is in no order, counts as 0 too.
    p = ops.where(drawable & (p >= LEAST), ops.minimum(p, ops.full_like(p, MOST)), nothing)
    total = added_up(p)
    scale = scalars.reciprocal(ops, ops.where(total > 0, total, ops.full_like(total, 1)))
    return p * scale


def added_up(x: Array) -> Array:
    """The sum of a vector, from the first on: backends would add up in different orders, and round otherwise."""
    total = x[0]
    for k in range(1, x.shape[0]):
        total = total + x[k]
    return total


def rows_of_draws(spec: MixtureSpec, batch: int) -> int:
    """How many draws a batch takes to choose the buffers."""
    return {"exact": 1, "items": batch, "buffers": spec.parts}[spec.how]


def assign(ops: Ops, spec: MixtureSpec, shares: Array, wanted: Array, batch: int, draws: Array) -> Assignment:
    """Choose the buffer of each row.

    Args:
        spec: of the mixture.
        shares: float32 [K], normalized.
        wanted: int32 scalar, how many rows count, from the first on, at most the batch.
        batch: B.
        draws: uniform int32 [n] in [0, 2^31), as many as `rows_of_draws` tells.
    """
    count, draws = shares.shape[0], draws >> 1  # 30 bits, as fractions are rounded by
    place = ops.arange(batch, like=wanted)
    if spec.how == "exact":
        ends = by_random_rounding(ops, shares, wanted, draws[0])
        ids, ranks = _reached(ops, ends, place)
        ranks = ops.where(place < ends[-1], ranks, ops.full_like(ranks, 0))
        starts = [ops.full_like(ends[0], 0), *ends[:-1]]
        return Assignment(ids, ranks, ops.stack(ends) - ops.stack(starts))
    ids = _reached(ops, borders(ops, shares), draws)[0]
    if spec.how == "buffers":
        ids = ops.take(ids, _part_of(ops, spec, place, wanted))
    ranks, numbers = ops.full_like(ids, 0), []
    for k in range(count):
        mask = (ids == k) & (place < wanted)
        ranks = ops.where(mask, ops.cumsum(ops.cast(mask, "int32")) - 1, ranks)
        numbers.append(ops.count(mask))
    return Assignment(ids, ranks, ops.stack(numbers))


def _reached(ops: Ops, reach: Sequence[Array], x: Array) -> tuple[Array, Array]:
    """How many of K ascending numbers, K - 1 at most, each x int32 [n] has reached, and how far it is from the last."""
    count, rest = ops.full_like(x, 0), x
    for one in reach[:-1]:
        past = x >= one
        count, rest = count + ops.cast(past, "int32"), ops.where(past, x - one, rest)
    return count, rest


def borders(ops: Ops, shares: Array) -> list[Array]:
    """Where the draws in [0, 2^30) end that choose each buffer, in proportion to its share, and one at least."""
    parts = ops.cast(shares * float(2**STEPS), "int32")
    parts = ops.where(shares > 0, ops.maximum(parts, ops.full_like(parts, 1)), parts)
    parts = ops.where(_is_largest(ops, shares), parts + (2**STEPS - added_up(parts)), parts)
    # So few single additions compilers put together with what comes before and after, unlike `cumsum`.
    return list(itertools.accumulate(parts[k] for k in range(parts.shape[0])))


def _is_largest(ops: Ops, shares: Array) -> Array:
    # The first of several that are equal.
    first, most = ops.cast(ops.full_like(shares[0], 0), "int32"), shares[0]
    for k in range(1, shares.shape[0]):
        first = ops.where(shares[k] > most, ops.full_like(first, k), first)
        most = ops.maximum(most, shares[k])
    return ops.arange(shares.shape[0], like=first) == first


def _part_of(ops: Ops, spec: MixtureSpec, place: Array, wanted: Array) -> Array:
    # Parts are equal up to one row where the batch cannot be divided.
    whole, rest = wanted // spec.parts, wanted % spec.parts
    # Part k begins at ceil(k * wanted / parts), computed without a product that overflows.
    starts = [k * whole + (k * rest + spec.parts - 1) // spec.parts for k in range(1, spec.parts)]
    return _reached(ops, [*starts, wanted], place)[0]


def by_random_rounding(ops: Ops, shares: Array, wanted: Array, draw: Array) -> list[Array]:
    """Where the rows of each buffer end, one int32 scalar for each, so that each gives about its share of them.

    Systematic sampling (Madow, 1949): of the running sums of the quotas, and a uniform number that is added to all of
    them, the whole parts. So each buffer gives its quota rounded up or down, and on average just its quota.

    Args:
        shares: float32 [K], normalized; where all are 0, no row is given.
        wanted: int32 scalar, how many rows there are.
        draw: int32 scalar, uniform in [0, 2^30).
    """
    # Exact in int32: sums of float32 would round, and with them the last buffer's end.
    whole, rest = quotas(ops, shares, wanted)
    ends, end, over = [], ops.full_like(draw, 0), draw
    for k in range(shares.shape[0]):
        over = over + rest[k]
        end, over = end + whole[k] + (over >> STEPS), over & BELOW
        ends.append(end)
    return ends


def quotas(ops: Ops, shares: Array, wanted: Array) -> tuple[Array, Array]:
    """The share of each buffer of the rows wanted, as whole rows and 2^-30 parts of one, int32 [K] each.

    Together they are exactly what is wanted: the largest takes the error that the others have by float32. What float32
    cannot tell from a whole number is one, so that a tenth of ten rows is one row in every batch.
    """
    quota = shares * ops.cast(wanted, "float32")
    # The maximum changes nothing, but keeps compilers from rounding the product and the difference as one.
    quota = ops.maximum(quota, ops.full_like(quota, 0))
    nearest = ops.cast(ops.cast(quota + 0.5, "int32"), "float32")
    error = ops.maximum(quota - nearest, nearest - quota)
    quota = ops.where(error <= quota * ROUNDING, nearest, quota)
    whole = ops.cast(quota, "int32")
    rest = ops.cast((quota - ops.cast(whole, "float32")) * float(2**STEPS), "int32")
    # However small a share is, its buffer comes at times.
    rest = ops.where((quota > 0) & (whole == 0), ops.maximum(rest, ops.full_like(rest, 1)), rest)
    left, over = ops.where(added_up(shares) > 0, wanted, ops.full_like(wanted, 0)), ops.full_like(wanted, 0)
    for k in range(shares.shape[0]):
        over = over - rest[k]
        left, over = left - whole[k] + (over >> STEPS), over & BELOW
    largest = _is_largest(ops, shares)
    rest = ops.where(largest, rest + over, rest)
    return ops.where(largest, whole + left + (rest >> STEPS), whole), rest & BELOW
