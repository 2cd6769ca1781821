"""Values padded to a fixed number of rows, of which the first ones, up to a length, are real."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from functional_rb.base.arrays import ArrayLike, Nest, NumpyArray
from functional_rb.ops.protocol import Array, SpecOps
from functional_rb.specs import random_numbers, rows
from functional_rb.specs.base import SpecNest
from functional_rb.specs.composite import changed


class Cut:
    """Cuts pieces off random bits [N, words], one after the other."""

    def __init__(self, bits: Array) -> None:
        self.bits, self.start = bits, 0

    def __call__(self, count: int) -> Array:
        """The next `count` words of each value."""
        self.start += count
        return self.bits[:, self.start - count : self.start]


def length_words(low: int, high: int) -> int:
    """How many words of random bits a length from low to high takes."""
    return random_numbers.whole_words(np.asarray(high - low + 1, object))


def draw_length(ops: SpecOps, bits: Array, lead: tuple[int, ...], low: int, high: int) -> Array:
    """Uniform lengths int32 [N, *lead] from low to high."""
    of_each = bits.reshape(bits.shape[0], *lead, length_words(low, high))
    counts = np.asarray(high - low + 1, object)
    return random_numbers.Whole(np.asarray(low, object), counts, "int32").draw(ops, of_each)


def draw_padded(ops: SpecOps, nest: SpecNest, bits: Array, lead: tuple[int, ...], size: int) -> Any:
    """Random values [N, *lead, size, ...] of a nest of specs."""
    count = bits.shape[0] * math.prod(lead) * size
    made = rows.draw(ops, nest, bits.reshape(count, rows.words(nest)))
    return rows.regrouped(nest, made, 1, (bits.shape[0], *lead, size))


def real_rows(ops: SpecOps, length: Array, size: int) -> Array:
    """Which of `size` places are no padding, bool [*lead, size]."""
    return ops.table(np.arange(size, dtype=np.int32), "int32", length) < length[..., None]


def inside_padded(ops: SpecOps, nest: SpecNest, value: Nest, length: Array, size: int) -> Array:
    """Whether the first `length` rows of values [*lead, size, ...] lie in their domain, bool [*lead]."""
    padding = ~real_rows(ops, length, size)
    flat = rows.regrouped(nest, value, len(padding.shape), (math.prod(padding.shape),))
    # `padding == padding` is true everywhere, in an array of the values' own library.
    found = rows.inside(ops, nest, flat, (padding == padding).reshape(math.prod(padding.shape)))
    return all_last(ops, found.reshape(padding.shape) | padding, size)


def nearest_padded(ops: SpecOps, nest: SpecNest, value: Nest, length: Array, size: int) -> Any:
    """The nearest values of the domain for the first `length` rows, and zeros behind."""
    near = in_rows(lambda flat: rows.nearest(ops, nest, flat), nest, value, (*length.shape, size))
    return rows.cleared(ops, nest, near, real_rows(ops, length, size))


def in_rows(function: Any, nest: Any, value: Any, lead: tuple[int, ...]) -> Any:
    """Values [*lead, ...] after a function of rows [R, ...]."""
    made = function(rows.regrouped(nest, value, len(lead), (math.prod(lead),)))
    return rows.regrouped(nest, made, 1, lead)


def all_last(ops: SpecOps, found: Array, size: int) -> Array:
    """Whether all along the last axis, of size `size`, are true."""
    lead = found.shape[:-1]
    return ops.all_rows(found.reshape(math.prod(lead), size)).reshape(lead)


def all_of(ops: SpecOps, found: Array, many: int) -> Array:
    """Whether all of the `many` values of each item are true, bool [N]."""
    return ops.all_rows(found.reshape(found.shape[0], many))


def read_lengths(lengths: ArrayLike, low: int, high: int, what: str, remedy: str) -> tuple[NumpyArray, NumpyArray]:
    """Lengths int32 [M], checked against their range, and which rows they make real, bool [M, high]."""
    length = np.asarray(lengths, np.int32)
    wrong = length[(length < low) | (length > high)]
    if wrong.size:
        raise ValueError(f"expected {low} to {high} {what}, got {wrong[0]}; give the spec another {remedy}")
    return length, np.arange(high) < length[:, None]


def read_padded(
    nest: SpecNest, values: Sequence[object], low: int, high: int, what: str, lead: tuple[int, ...]
) -> tuple[Any, NumpyArray]:
    """Stacked values as [*lead, high, ...], with zeros behind each, and how many rows each has, int32 [*lead]."""
    length, real = read_lengths([rows.count(nest, one) for one in values], low, high, what, f"max_{what}")
    padded = rows.scattered(nest, rows.from_host(nest, values, stacked=True), real)
    return rows.regrouped(nest, padded, 2, (*lead, high)), length.reshape(lead)


def first(nest: SpecNest, value: Nest, i: int, n: int) -> Any:
    """The first n rows of value i of values [M, size, ...]."""
    return rows.each_array(lambda leaf, x: x[i, :n], nest, value)


def in_front(nest: SpecNest, lead: tuple[int, ...]) -> Any:
    """A nest of specs, each with further leading axes."""
    return changed(nest, 0, lambda x: np.broadcast_to(x, (*lead, *x.shape)))
