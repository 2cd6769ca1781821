"""How much of a batch each buffer gives, the same numbers on every backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from functional_rb.mixture.value import MixtureSpec
from functional_rb.ops.protocol import Array, Ops
from functional_rb.ops.random_bits import below

RESOLUTION = 30
"""Buffers are drawn by whole numbers of this many bits: each share is within 2^-24 of what it should be."""
LARGEST_BATCH = 2**22
"""So many can be shared out by float32 without an error of one."""
LEAST, MOST = 2.0**-100, 2.0**100
"""Shares between which float32 neither overflows nor loses digits; smaller ones count as 0."""


class Assignment(NamedTuple):
    """Which buffer gives which rows of a batch.

    Attributes:
        ids: int32 [B], the buffer of each row.
        ranks: int32 [B], which of the rows that this buffer gives it is, from 0; 0 for rows that do not count.
        counts: int32 [K], how many rows each buffer gives.
        expected: float32 [K], the chance of each buffer for a row, by which weights correct.
    """

    ids: Array
    ranks: Array
    counts: Array
    expected: Array


def normalized(ops: Ops, p: Array, drawable: Array) -> Array:
    """Shares float32 [K] with the sum 1, 0 for buffers that are not drawable, bool [K]; all 0 if none is."""
    nothing = ops.full_like(p, 0)
    # Written so that NaN, which is in no order, counts as 0 too.
    p = ops.where(drawable & (p >= LEAST), ops.minimum(p, ops.full_like(p, MOST)), nothing)
    total = added_up(p)
    scale = 1.0 / ops.where(total > 0, total, ops.full_like(total, 1))
    return p * scale


def added_up(x: Array) -> Array:
    """The sum of a vector from the first on, as backends would add in different orders."""
    total = x[0]
    for k in range(1, x.shape[0]):
        total = total + x[k]
    return total


def words(spec: MixtureSpec, batch: int) -> tuple[int, int]:
    """How many draws a batch takes to choose the buffers, as (rows, words)."""
    return {"exact": (0, 2), "items": (batch, 2), "buffers": (spec.parts, 2)}[spec.how]


def assign(ops: Ops, spec: MixtureSpec, shares: Array, wanted: Array, batch: int, draws: Array) -> Assignment:
    """Choose the buffer of each row.

    Args:
        ops: of the backend.
        spec: of the mixture.
        shares: float32 [K], normalized.
        wanted: int32 scalar, how many rows count, from the first on, at most the batch.
        batch: B.
        draws: int32, of the shape that `words` tells.
    """
    count = shares.shape[0]
    place = ops.arange(batch, like=wanted)
    if spec.how == "exact":
        counts = by_largest_remainder(ops, shares, wanted)
        reach = _running_sums(counts)
        ids, ranks = _reached(ops, reach, place)
        ranks = ops.where(place < reach[-1], ranks, ops.full_like(ranks, 0))
        rows = ops.cast(ops.maximum(wanted, ops.full_like(wanted, 1)), "float32")
        # Of a batch without rows nothing is weighed, but buffers in it may be: by what they would give.
        expected = ops.where(wanted > 0, ops.cast(counts, "float32") * (1.0 / rows), shares)
        return Assignment(ids, ranks, counts, expected)
    ids = _drawn(ops, shares, draws)
    if spec.how == "buffers":
        ids = ops.take(ids, _part_of(ops, spec, place, wanted))
    ranks, numbers = ops.full_like(ids, 0), []
    for k in range(count):
        own = (ids == k) & (place < wanted)
        ranks = ops.where(own, ops.cumsum(ops.cast(own, "int32")) - 1, ranks)
        numbers.append(ops.count(own))
    return Assignment(ids, ranks, ops.stack(numbers), shares)


def _running_sums(x: Array) -> list[Array]:
    """The sums of the first numbers of an int32 vector, one for each.

    There are so few that compilers put single additions together with what comes before and after, unlike `cumsum`.
    """
    sums = [x[0]]
    for k in range(1, x.shape[0]):
        sums.append(sums[-1] + x[k])
    return sums


def _reached(ops: Ops, reach: Sequence[Array], x: Array) -> tuple[Array, Array]:
    """How many of K ascending numbers, K - 1 at most, each x int32 [n] has reached, and how far it is from the last."""
    found, rest = ops.full_like(x, 0), x
    for one in reach[:-1]:
        past = x >= one
        found, rest = found + ops.cast(past, "int32"), ops.where(past, x - one, rest)
    return found, rest


def _drawn(ops: Ops, shares: Array, draws: Array) -> Array:
    """Buffers by their shares, int32 [n] for draws int32 [n, 2]."""
    weights = ops.cast(shares * float(2**RESOLUTION), "int32")
    weights = ops.where(shares > 0, ops.maximum(weights, ops.full_like(weights, 1)), weights)
    reach = _running_sums(weights)
    return _reached(ops, reach, below(ops, draws, reach[-1]))[0]


def _part_of(ops: Ops, spec: MixtureSpec, place: Array, wanted: Array) -> Array:
    """The part of each row: parts that are equal up to one row where the batch cannot be divided."""
    whole, rest = wanted // spec.parts, wanted % spec.parts
    # Part k begins at ceil(k * wanted / parts), computed without a product that overflows.
    starts = [k * whole + (k * rest + spec.parts - 1) // spec.parts for k in range(1, spec.parts)]
    return _reached(ops, [*starts, wanted], place)[0]


def by_largest_remainder(ops: Ops, shares: Array, wanted: Array) -> Array:
    """How many of the rows wanted, an int32 scalar, each buffer gives, int32 [K].

    Each gets the whole part of its share, and those with the largest rest one more, of equal ones the first (Hamilton's
    method). Shares are normalized; where all are 0 so are the counts.
    """
    quota = shares * ops.cast(wanted, "float32")
    # The maximum changes nothing, but keeps compilers from rounding the product and the difference as one.
    quota = ops.maximum(quota, ops.full_like(quota, 0))
    whole = ops.cast(quota, "int32")
    rest = ops.where(shares > 0, quota - ops.cast(whole, "float32"), ops.full_like(quota, -1))
    numbers = ops.arange(rest.shape[0], like=whole)
    before = ops.full_like(whole, 0)
    for k in range(rest.shape[0]):
        ahead = (rest[k] > rest) | ((rest[k] == rest) & (numbers > k))
        before = before + ops.cast(ahead, "int32")
    left = wanted - _running_sums(whole)[-1]
    return whole + ops.cast((before < left) & (shares > 0), "int32")
