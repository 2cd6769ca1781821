"""Values padded to a fixed number of rows, of which the first ones, up to a length, are real."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from functional_rb.base.arrays import Array, Nest, NumpyArray
from functional_rb.ops.protocol import SpecOps
from functional_rb.specs import random_numbers, rows
from functional_rb.specs.base import SpecNest
from functional_rb.specs.composite import changed


@dataclasses.dataclass(frozen=True)
class Padded:
    """Rows of which `least` to `size` are real; behind these lies padding, which is zero."""

    nest: SpecNest  # the spec of a row, or a nest of them
    least: int  # the smallest length
    size: int  # the largest length, for which there is always room
    what: str  # what the rows are, as errors name them
    limit: str  # the name of the spec's argument that `size` is

    @property
    def words(self) -> int:
        return self._lengths.words + self.size * rows.words(self.nest)

    @property
    def _lengths(self) -> random_numbers.Whole:
        return random_numbers.between(self.least, self.size)

    def cardinality(self, of_row: int | float) -> int | float:
        """How many values there are, of all lengths, where a row has so many: sum_n of_row^n."""
        return math.inf if of_row == math.inf else sum(of_row**n for n in range(self.least, self.size + 1))

    def draw(self, ops: SpecOps, cut: random_numbers.Cut, lead: tuple[int, ...]) -> tuple[Nest, Array]:
        """Random rows [N, *lead, size, ...], and their lengths int32 [N, *lead], which are uniform."""
        many, words = math.prod(lead), rows.words(self.nest)
        length = cut.numbers(ops, self._lengths, lead)
        # Bits are drawn for padding too: how many there are must not depend on the lengths, which may be traced.
        bits = cut(many * self.size * words)
        drawn = rows.draw(ops, self.nest, bits.reshape(bits.shape[0] * many * self.size, words))
        padded = rows.regrouped(self.nest, drawn, 1, (bits.shape[0], *lead, self.size))
        return rows.cleared(ops, self.nest, padded, self.real(ops, length)), length

    def real(self, ops: SpecOps, length: Array) -> Array:
        """Which rows are no padding, bool [*lead, size]."""
        return ops.table(np.arange(self.size, dtype=np.int32), "int32", length) < length[..., None]

    def inside(self, ops: SpecOps, value: Nest, length: Array) -> Array:
        """Whether lengths are in range, and the rows [*lead, size, ...] up to them in their domain, bool [*lead]."""
        padding = ~self.real(ops, length)
        flat = rows.regrouped(self.nest, value, len(padding.shape), (math.prod(padding.shape),))
        # `padding == padding` is true everywhere, in an array of the values' own library.
        good = rows.inside(ops, self.nest, flat, (padding == padding).reshape(math.prod(padding.shape)))
        good = all_last(ops, good.reshape(padding.shape) | padding, self.size)
        return good & (length >= self.least) & (length <= self.size)

    def nearest(self, ops: SpecOps, value: Nest, length: Array) -> tuple[Nest, Array]:
        """The nearest rows of the domain, zeros behind the nearest lengths, and these."""
        length = ops.clamp(length, self.least, self.size)
        near = in_rows(partial(rows.nearest, ops, self.nest), self.nest, value, (*length.shape, self.size))
        return rows.cleared(ops, self.nest, near, self.real(ops, length)), length

    def from_stacked(self, values: Sequence[Nest], lead: tuple[int, ...]) -> tuple[Nest, NumpyArray]:
        """Stacked values as rows [*lead, size, ...], and their lengths int32 [*lead]."""
        length = self.checked([rows.count(self.nest, value) for value in values], self.least)
        return self.from_flat(rows.from_host(self.nest, values, stacked=True), length, lead)

    def from_flat(self, flat: Nest, length: NumpyArray, lead: tuple[int, ...]) -> tuple[Nest, NumpyArray]:
        """Rows one after the other, of values of these lengths int32 [M], as `from_stacked` has them."""
        padded = rows.scattered(self.nest, flat, np.arange(self.size) < length[:, None])
        return rows.regrouped(self.nest, padded, 2, (*lead, self.size)), length.reshape(lead)

    def checked(self, lengths: NumpyArray | Sequence[int], least: int) -> NumpyArray:
        """Lengths int32 [M], after a check that they are in range."""
        length = np.asarray(lengths, np.int32)
        wrong = length[(length < least) | (length > self.size)]
        if wrong.size:
            raise ValueError(
                f"expected {least} to {self.size} {self.what}, got {wrong[0]}; give the spec another {self.limit}"
            )
        return length

    def real_rows(self, value: Nest, length: NumpyArray) -> list[Nest]:
        """The real rows of each of the values [*lead, size, ...] in NumPy, stacked."""
        flat = rows.regrouped(self.nest, value, length.ndim + 1, (length.size, self.size))
        # A slot of a buffer that was never written has length 0, whatever the least; others are to be readable.
        counts = self.checked(length.reshape(-1), 0).tolist()
        return [rows.each_array(lambda leaf, x, i=i, n=n: x[i, :n], self.nest, flat) for i, n in enumerate(counts)]


def in_rows(function: Callable[[Nest], Nest], nest: SpecNest, value: Nest, lead: tuple[int, ...]) -> Nest:
    """Values [*lead, ...] after a function of rows [R, ...]."""
    result = function(rows.regrouped(nest, value, len(lead), (math.prod(lead),)))
    return rows.regrouped(nest, result, 1, lead)


def all_last(ops: SpecOps, mask: Array, size: int) -> Array:
    """Whether all along the last axis, of size `size`, are true."""
    lead = mask.shape[:-1]
    return ops.all_rows(mask.reshape(math.prod(lead), size)).reshape(lead)


def all_of(ops: SpecOps, mask: Array, many: int) -> Array:
    """Whether all of the `many` values of each item are true, bool [N]."""
    return ops.all_rows(mask.reshape(mask.shape[0], many))


def in_front(nest: SpecNest, lead: tuple[int, ...]) -> SpecNest:
    return changed(nest, 0, lambda x: np.broadcast_to(x, (*lead, *x.shape)))
