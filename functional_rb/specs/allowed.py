"""Which choices a mask allows, and choosing among them: at random, the nearest, or the one of the largest element."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from functional_rb.base.arrays import Array, NumpyArray
from functional_rb.base.dtypes import ITEMSIZE
from functional_rb.ops.protocol import SpecOps
from functional_rb.specs import order, random_numbers

# For each row of `Allowed`, and each choice, another choice: [R, n].
Lookup = NumpyArray


@dataclasses.dataclass(frozen=True)
class Allowed:
    """Which of n choices each element may take. Elements with equal masks share a row: images of choices are large."""

    rows: NumpyArray  # bool [R, n], at least one true in each row
    of: NumpyArray  # int32 [*elements], the row of each element

    @property
    def counts(self) -> NumpyArray:
        """How many choices each element may take, as Python ints that broadcast to [*elements]."""
        counts = self.rows.sum(-1).astype(object)
        return np.asarray(counts[0] if len(counts) == 1 else counts[self.of], object)

    @property
    def words(self) -> int:
        """How many random words of 31 bits all elements take together."""
        return self.of.size * self._whole.words

    def draw(self, ops: SpecOps, bits: Array) -> Array:
        """Choices int32 [N, *elements], uniform over the allowed ones, from random bits int32 [N, words]."""
        bits = bits.reshape(bits.shape[0], *self.of.shape, self._whole.words)
        return self.ranked(ops, self._whole.draw(ops, bits))

    def ranked(self, ops: SpecOps, rank: Array) -> Array:
        """The allowed choices of given ranks int32 [..., *elements]: rank 0 is the first that an element may take."""
        return self._look_up(ops, self._in_front, rank)

    def nearest(self, ops: SpecOps, choice: Array) -> Array:
        """The allowed choices nearest to choices int32 [..., *elements] in [0, n); of two the lower."""
        return self._look_up(ops, self._nearest, choice)

    @functools.cached_property
    def _whole(self) -> random_numbers.Whole:
        return random_numbers.Whole(np.zeros((), object), self.counts, "int32")

    @functools.cached_property
    def _every(self) -> bool:
        return bool(self.rows.all())

    @functools.cached_property
    def _in_front(self) -> Lookup | None:
        return _unless_itself(np.argsort(~self.rows, -1, kind="stable"))

    @functools.cached_property
    def _nearest(self) -> Lookup | None:
        return _unless_itself(nearest_true(self.rows))

    @property
    def words_among(self) -> int:
        """How many random words `draw_among` takes."""
        return 2 * self.of.size

    def draw_among(self, ops: SpecOps, bits: Array, mask: Array) -> Array:
        """Choices that a further mask bool [N, *elements, n] allows too; where that leaves none, it is ignored."""
        allowed = self._table(ops, bits)
        both = mask & allowed
        # The last of the running sums is how many choices both masks allow.
        both = ops.where(ops.cumsum(ops.cast(both, "int32"))[..., -1:] > 0, both, allowed)
        rank = ops.cumsum(ops.cast(both, "int32"))
        # How many choices there are is known with the values alone: so two words are drawn, whatever that is.
        bits = bits.reshape(bits.shape[0], *self.of.shape, 2)
        drawn = ops.scale(bits[..., 0], bits[..., 1], rank[..., -1])
        return ops.argmax(ops.cast(rank > drawn[..., None], "int32"))

    def _table(self, ops: SpecOps, like: Array) -> Array:
        # Broadcasts to [*elements, n].
        return ops.table(self.rows[0] if len(self.rows) == 1 else self.rows[self.of], "bool", like)

    def only(self, ops: SpecOps, chosen: Array) -> list[Array]:
        """Whether only allowed choices are set in bool [N, *elements, n]; an empty list where all are allowed."""
        return [] if self._every else [~chosen | self._table(ops, chosen)]

    def _look_up(self, ops: SpecOps, table: Lookup | None, index: Array) -> Array:
        if table is None:
            return index
        flat = ops.table(table.reshape(-1).astype(np.int32), "int32", index)
        if len(table) > 1:
            index = index + ops.table((self.of * table.shape[-1]).astype(np.int32), "int32", index)
        return ops.take(flat, index.reshape(-1)).reshape(index.shape)

    def largest(self, ops: SpecOps, x: Array, dtype: str) -> Array:
        """The first allowed position int32 [..., *elements] of the largest number along the last axis.

        NaN counts as -inf.
        """
        y = order.comparable(ops, x, dtype)
        work = order.WORK.get(dtype, dtype)
        least = -np.inf if "float" in work else np.iinfo(work).min
        bottom = ops.table(np.asarray(least, work), work, x)
        if "float" in work:
            y = ops.where(y == y, y, bottom)
        if not self._every:
            y = ops.where(self._table(ops, x), y, bottom)
        # A forbidden position wins only as the first, where all are alike: then the first allowed one is the nearest.
        return self.nearest(ops, ops.argmax(y))


def _unless_itself(table: Lookup) -> Lookup | None:
    # A table of choices; None if each choice stands in its own place.
    return None if (table == np.arange(table.shape[-1])).all() else table


def nearest_true(rows: NumpyArray) -> NumpyArray:
    """For each position along the last axis the nearest true one, of two the lower; at least one has to be true.

    Example:
        >>> nearest_true(np.array([False, True, False, False, True])).tolist()
        [1, 1, 1, 4, 4]
    """
    n = rows.shape[-1]
    here = np.arange(n)
    before = np.maximum.accumulate(np.where(rows, here, -n - 1), -1)
    after = np.minimum.accumulate(np.where(rows, here, 3 * n + 1)[..., ::-1], -1)[..., ::-1]
    return np.where(here - before <= after - here, before, after)


def number_of(ops: SpecOps, x: Array, start: NumpyArray, dtype: str) -> Array:
    """`x - start` as int32, for numbers of a dtype that lie between `start` and `start + 2^31 - 1`."""
    if ITEMSIZE[dtype] < 4:  # the difference need not fit into the dtype
        return ops.cast(x, "int32") - ops.table(start.astype(np.int32), "int32", x)
    return ops.cast(order.comparable(ops, x, dtype) - order.limit(ops, start, dtype, x), "int32")


def clamped_index(ops: SpecOps, index: Array, dtype: str, counts: NumpyArray) -> Array:
    """Indices of any integer dtype as int32, clamped to [0, counts)."""
    last = np.minimum(counts - 1, int(np.iinfo(dtype).max))
    bounds = [order.limit(ops, np.asarray(bound, dtype), dtype, index) for bound in (0, last)]
    clamped = ops.clamp(order.comparable(ops, index, dtype), bounds[0], bounds[1])
    return number_of(ops, order.back(ops, clamped, dtype), np.asarray(0, dtype), dtype)
