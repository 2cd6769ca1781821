"""What the specs of choices have in common: choices as numbers, and choices as vectors with a one."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.arrays import Array, ArrayLike, Nest, NumpyArray
from functional_rb.ops.protocol import SpecOps
from functional_rb.specs import allowed, numpy_ops, order, random_numbers
from functional_rb.specs.allowed import Allowed
from functional_rb.specs.array import ArraySpec, rows_of
from functional_rb.specs.base import Domain, Table, as_table, broadcast

# Which choices are allowed: nested tuples of truth values that broadcast to `[*axes, n]`; None if all are.
Mask = None | tuple[Table, ...]


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Choices(ArraySpec):
    """What `Categorical`, `OneHot`, `MultiCategorical` and `MultiOneHot` have in common."""

    tables: ClassVar[tuple[str, ...]] = ("mask",)
    # Whether there are several choices along the last axis.
    several: ClassVar[bool] = False

    # Which choices are allowed, `[*choice_axes, choices]`; the masks of several choices stand side by side.
    mask: Mask = None

    @property
    def choices(self) -> int:
        """The length of a mask: the sum of `counts`."""
        return sum(self.counts)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many values each choice has, of those side by side along the last axis."""
        raise TypeError(f"{type(self).__name__} has no choices")

    @property
    def choice_axes(self) -> tuple[int, ...]:
        """The axes in front of the choices side by side."""
        return self.axes

    def _set_mask(self, mask: ArrayLike) -> None:
        # Keep a mask in its one form, None if it forbids nothing.
        if mask is None or 0 in self.choice_axes:
            object.__setattr__(self, "mask", None)
            return
        who = type(self).__name__
        array = broadcast(mask, (*self.choice_axes, self.choices), who, "mask")
        if array.dtype != bool:
            raise TypeError(f"{who}: expected mask as truth values, got {array.dtype}; write mask > 0, say")
        array = np.broadcast_to(array, (*self.choice_axes, self.choices))
        # Axes that were broadcast have stride 0, and may be huge: one element of them is enough.
        distinct = array[tuple(slice(None) if stride else slice(1) for stride in array.strides[:-1])]
        start = 0
        for count in self.counts:
            if not distinct[..., start : start + count].any(-1).all():
                raise ValueError(f"{who}: the mask forbids all {count} choices; leave one of them allowed")
            start += count
        object.__setattr__(self, "mask", None if distinct.all() else as_table(array))

    def mask_table(self) -> NumpyArray:
        """The mask as bool `[*choice_axes, choices]`."""
        mask = True if self.mask is None else np.asarray(self.mask)
        return np.broadcast_to(mask, (*self.choice_axes, self.choices))

    def table(self, name: str) -> NumpyArray:
        """The values of one of `tables` for every element; the mask has a further axis behind."""
        return self.mask_table() if name == "mask" else super().table(name)

    @functools.cached_property
    def allowed(self) -> list[Allowed]:
        """What is allowed, for each of the choices side by side."""
        axes = self.choice_axes
        if self.mask is None or np.ndim(self.mask) == 1:
            rows = np.broadcast_to(True if self.mask is None else np.asarray(self.mask), (1, self.choices))
            of = np.zeros(axes, np.int32)
        else:
            of = np.arange(np.prod(axes, dtype=int)).reshape(axes)
            rows = self.mask_table().reshape(-1, self.choices)
        return [Allowed(mask, of) for mask in np.split(rows, np.cumsum(self.counts)[:-1], -1)]

    @property
    def value_counts(self) -> NumpyArray:
        counts = [np.broadcast_to(one.counts, one.of.shape) for one in self.allowed]
        return np.stack(counts, -1) if self.several else counts[0]

    def _allowed_nearest(self, ops: SpecOps, index: Array) -> Array:
        pairs = zip(self.allowed, self._apart(index), strict=True)
        return self._together(ops, [permitted.nearest(ops, choice) for permitted, choice in pairs])

    def _together(self, ops: SpecOps, parts: Sequence[Array]) -> Array:
        # int32 [N, *choice_axes]; of several choices side by side [N, *choice_axes, len(counts)].
        return ops.concat([choice[..., None] for choice in parts], -1) if self.several else parts[0]

    @property
    def _between(self) -> bool:
        # Whether the values are all the numbers between two bounds.
        return False

    @functools.cached_property
    def words(self) -> int:
        return super().words if self._between else sum(one.words for one in self.allowed)

    def draw(self, ops: SpecOps, bits: Array) -> Array:
        if self._between:
            return super().draw(ops, bits)
        parts, start = [], 0
        for one in self.allowed:
            parts.append(one.draw(ops, bits[:, start : start + one.words]))
            start += one.words
        return self._made(ops, self._together(ops, parts))

    @property
    def words_among(self) -> int:
        """How many random words `draw_among` takes."""
        return self.allowed[0].words_among

    def draw_among(self, ops: SpecOps, bits: Array, mask: Array) -> Array:
        """Values [N, *shape] of single choices that a further mask bool [N, *axes, n] allows too.

        Where that leaves none, it is ignored.
        """
        return self._made(ops, self.allowed[0].draw_among(ops, bits, mask))

    def _made(self, ops: SpecOps, index: Array) -> Array:
        # Values [N, *shape] for choices int32.
        raise TypeError(f"{type(self).__name__} has no choices")

    def _apart(self, index: Array) -> list[Array]:
        return [index[..., i] for i in range(len(self.allowed))] if self.several else [index]


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Numbers(Choices):
    """Choices as numbers. Integers without a mask are drawn, tested and projected as any numbers between bounds."""

    @property
    def _between(self) -> bool:
        # Floats have other values than whole numbers between the bounds.
        return self.mask is None and not self._float

    @property
    def _float(self) -> bool:
        return dtypes.kind_of(self.dtype) == "float"

    def inside(self, ops: SpecOps, x: Array) -> Array:
        if self._between:
            return super().inside(ops, x)
        equal = order.comparable(ops, x, self.dtype) == order.comparable(ops, self.nearest(ops, x), self.dtype)
        return ops.all_rows(equal.reshape(equal.shape[0], self.size))

    def nearest(self, ops: SpecOps, x: Array) -> Array:
        # Of two allowed numbers that are equally near it is the lower.
        x = super().nearest(ops, x)
        if self._between:
            return x
        if not self._float:
            index = allowed.number_of(ops, x, self._starts().astype(self.dtype), self.dtype)
            return self._made(ops, self._allowed_nearest(ops, index))
        # One of two choices is the nearest: that nearest to the whole number below, or that nearest to the one above.
        work = order.WORK.get(self.dtype, self.dtype)
        past = order.comparable(ops, x, self.dtype) - order.limit(ops, self._float_starts, self.dtype, x)
        whole = ops.cast(past, "int32")
        next_one = whole + ops.cast(past > ops.cast(whole, work), "int32")
        below, above = (self._allowed_nearest(ops, index) for index in (whole, next_one))
        is_below = past - ops.cast(below, work) <= ops.cast(above, work) - past
        return self._made(ops, ops.where(is_below, below, above))

    def _made(self, ops: SpecOps, index: Array) -> Array:
        if not self._float:
            return self._low.behind(ops, [index])
        work = order.WORK.get(self.dtype, self.dtype)
        return ops.cast(ops.cast(index, work) + order.limit(ops, self._float_starts, self.dtype, index), self.dtype)

    @property
    def _float_starts(self) -> NumpyArray:
        return dtypes.as_numpy(self.dtype, self._starts())

    @functools.cached_property
    def _low(self) -> random_numbers.Low:
        return random_numbers.Low(self._starts(), self.dtype)

    def _starts(self) -> NumpyArray:
        # Python ints that broadcast to the shape.
        return np.asarray(self.domain.low, object)


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Vectors(Choices):
    """Choices as vectors with a one."""

    def _begin_vectors(self, shape: tuple[int, ...] | None, dtype: object, mask: ArrayLike) -> None:
        who = type(self).__name__
        check_range(who, "int32", self.counts, [0])
        self._begin((self.choices,) if shape is None else shape, dtype)
        check_last_axis(self, self.choices)
        if dtypes.kind_of(self.dtype) == "complex":
            raise TypeError(f"{who}: expected a real dtype, got {self.dtype}; write dtype='float32'")
        self._set_mask(mask)

    def defaults(self) -> dict[str, object]:
        return super().defaults() | {"shape": (self.choices,)}

    @property
    def domain(self) -> Domain:
        """The values zero and one."""
        return Domain(0, 1, True)

    @property
    def axes(self) -> tuple[int, ...]:
        """The shape without the last axis, which is one value."""
        return self.shape[:-1]

    def inside(self, ops: SpecOps, x: Array) -> Array:
        # A single one, where it is allowed, and zeros elsewhere.
        ones, masks = x, []
        if self.dtype != "bool":
            y = order.comparable(ops, x, self.dtype)
            zero, one = (order.limit(ops, np.asarray(n), self.dtype, x) for n in (0, 1))
            ones = y == one
            masks = [(y == zero) | ones]
        for vector, permitted in zip(self._pieces(ones), self.allowed, strict=True):
            masks.append(vector.sum(-1) == 1)
            masks += permitted.only(ops, vector)
        return functools.reduce(operator.and_, [rows_of(ops, mask, math.prod(mask.shape[1:])) for mask in masks])

    def _pieces(self, x: Array) -> list[Array]:
        if not self.several:
            return [x]
        return [x[..., start:end] for start, end in itertools.pairwise(itertools.accumulate(self.counts, initial=0))]

    def nearest(self, ops: SpecOps, x: Array) -> Array:
        # The one stands where the largest allowed element is, of equal ones the first. NaN counts as -inf.
        return self._made(ops, self.decoded(ops, x))

    def encoded(self, ops: SpecOps, value: Array) -> Nest:
        """Vectors [*batch, *shape] for choices of any integer dtype; those that are not allowed become the nearest."""
        shape, dtype = tuple(value.shape), dtypes.shown(value.dtype)
        expected = (*self.axes, len(self.counts)) if self.several else self.axes
        if dtypes.kind_of(dtype) != "int":
            raise TypeError(f"expected choices as whole numbers, got dtype {dtype}; convert them")
        if shape[max(len(shape) - len(expected), 0) :] != expected:
            raise ValueError(f"expected choices of shape {('...', *expected)}, got {shape}; reshape them")
        # Traced numbers cannot be refused, so those that are out of range are clamped; `from_host` refuses them.
        counts = np.asarray(self.counts if self.several else self.counts[0], np.int64)
        index = allowed.clamped_index(ops, value, dtype, counts)
        return self._made(ops, self._allowed_nearest(ops, index))

    def decoded(self, ops: SpecOps, x: Array) -> Nest:
        """The choices int32 of vectors [*batch, *shape]: where the largest allowed element is."""
        pairs = zip(self.allowed, self._pieces(x), strict=True)
        return self._together(ops, [permitted.largest(ops, vector, self.dtype) for permitted, vector in pairs])

    def from_host(self, value: object, batch: tuple[int, ...]) -> NumpyArray:
        # What is encoded and decoded again is the same if it was allowed.
        choices = self._read(value)
        vectors = super().from_host(choices, batch)
        wrong = np.asarray(self.decoded(numpy_ops.OPS, vectors) != choices)
        if wrong.any():
            raise ValueError(
                f"expected choices below {self.counts if self.several else self.counts[0]}"
                f"{'' if self.mask is None else ' that the mask allows'}, got {choices[wrong].flat[0]}"
            )
        return vectors

    def _read(self, value: object) -> NumpyArray:
        return dtypes.as_dtype(value, "int64")

    def _made(self, ops: SpecOps, index: Array) -> Array:
        # [..., *shape] for choices int32 [..., *choice_axes].
        ones = [
            i[..., None] == ops.table(np.arange(n, dtype=np.int32), "int32", index)
            for i, n in zip(self._apart(index), self.counts, strict=True)
        ]
        together = ops.concat(ones, -1) if self.several else ones[0]
        return together if self.dtype == "bool" else ops.cast(together, self.dtype)


def check_range(who: str, dtype: str, counts: object, starts: object) -> None:
    """Refuse fewer than 1 choice, and choices whose numbers the dtype does not hold exactly."""
    if dtypes.kind_of(dtype) not in ("int", "float"):
        raise TypeError(f"{who}: expected a dtype of integers or floats, as choices are numbered, got {dtype}")
    counts, starts = np.asarray(counts, object), np.asarray(starts, object)
    if counts.size and not (counts >= 1).all():
        raise ValueError(f"{who}: expected at least 1 choice, got {counts.min()}")
    if counts.size and counts.max() > 2**31 - 1:
        raise ValueError(f"{who}: expected fewer than 2^31 choices, got {counts.max()}")
    low, high = dtypes.exact_integers(dtype)
    if counts.size and not ((starts >= low).all() and (starts + counts - 1 <= high).all()):
        raise ValueError(
            f"{who}: choices from {starts.min()} to {(starts + counts - 1).max()} do not fit into {dtype} "
            f"({low} to {high}); give a wider dtype"
        )


def check_last_axis(spec: ArraySpec, size: int) -> None:
    if not spec.shape or spec.shape[-1] != size:
        raise ValueError(
            f"{type(spec).__name__}: expected a shape whose last axis is {size}, got {spec.shape}; "
            f"write shape=(*axes, {size})"
        )
