"""One choice of several, or several such choices: as numbers, or as vectors with a one."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from functional_rb import dtypes
from functional_rb.ops import Array
from functional_rb.specs import allowed, draws, host, numpy_ops, order
from functional_rb.specs.allowed import Allowed
from functional_rb.specs.array import ArraySpec
from functional_rb.specs.base import Change, Domain, Table, as_table, broadcast, numbers, whole_number
from functional_rb.specs.ops import SpecOps

Mask = None | tuple[Any, ...]
"""Which choices are allowed: nested tuples of truth values that broadcast to `[*axes, n]`; None if all are."""


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Choices(ArraySpec):
    """What the four have in common: see them.

    Attributes:
        mask: which choices are allowed, `[*choice_axes, choices]`; of several in a row one after the other.
    """

    tables: ClassVar[tuple[str, ...]] = ("mask",)
    several: ClassVar[bool] = False
    """Whether there are several choices along the last axis."""

    mask: Mask = None

    @property
    def choices(self) -> int:
        """How many choices a mask has: of one, or of all that a vector has in a row."""
        return sum(self.counts)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many choices each of those has that lie in a row."""
        raise TypeError(f"{type(self).__name__} has no choices")

    @property
    def choice_axes(self) -> tuple[int, ...]:
        """The axes along which such rows are repeated."""
        return self.axes

    def _begin(self, shape: Any, dtype: object) -> None:
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype)
        super().__post_init__()

    def _set_mask(self, mask: Any) -> None:
        """Keep a mask in its one form, None if it forbids nothing."""
        if mask is None or 0 in self.choice_axes:
            object.__setattr__(self, "mask", None)
            return
        who = type(self).__name__
        array = broadcast(mask, (*self.choice_axes, self.choices), who, "mask")
        if array.dtype != bool:
            raise TypeError(f"{who}: expected mask as truth values, got {array.dtype}; write mask > 0, say")
        array = np.broadcast_to(array, (*self.choice_axes, self.choices))
        # Looked at where it differs only: axes that were broadcast are told by their strides, and may be huge.
        told = array[tuple(slice(None) if stride else slice(1) for stride in array.strides[:-1])]
        start = 0
        for count in self.counts:
            if not told[..., start : start + count].any(-1).all():
                raise ValueError(f"{who}: the mask forbids all {count} choices; leave one of them allowed")
            start += count
        object.__setattr__(self, "mask", None if told.all() else as_table(array))

    def mask_table(self) -> np.ndarray[Any, Any]:
        """The mask as bool `[*choice_axes, choices]`."""
        mask = True if self.mask is None else np.asarray(self.mask)
        return np.broadcast_to(mask, (*self.choice_axes, self.choices))

    def table(self, name: str) -> np.ndarray[Any, Any]:
        """What is said of each element; the mask has an axis behind."""
        return self.mask_table() if name == "mask" else super().table(name)

    @functools.cached_property
    def allowed(self) -> list[Allowed]:
        """What is allowed of each choice that lies in a row."""
        axes = self.choice_axes
        if self.mask is None or np.ndim(self.mask) == 1:
            rows = np.broadcast_to(True if self.mask is None else np.asarray(self.mask), (1, self.choices))
            of = np.zeros(axes, np.int32)
        else:
            of = np.arange(np.prod(axes, dtype=int)).reshape(axes)
            rows = self.mask_table().reshape(-1, self.choices)
        ends = np.cumsum(self.counts)[:-1]
        return [Allowed(part, of) for part in np.split(rows, ends, -1)]

    def _drawn(self, ops: SpecOps, words: Array) -> Array:
        """Allowed choices int32 [N, *choice_axes] (of several [..., number of them]) by chance."""
        parts, start = [], 0
        for one in self.allowed:
            parts.append(one.draw(ops, words[:, start : start + one.words]))
            start += one.words
        return self._together(ops, parts)

    def _allowed_nearest(self, ops: SpecOps, index: Array) -> Array:
        """The allowed choices that are nearest to some, all likewise."""
        return self._together(
            ops, [one.nearest(ops, i) for one, i in zip(self.allowed, self._apart(index), strict=True)]
        )

    def _together(self, ops: SpecOps, parts: Sequence[Array]) -> Array:
        return ops.concat([part[..., None] for part in parts], -1) if self.several else parts[0]

    @functools.cached_property
    def words_among(self) -> int:
        """Random words that `draw_among` takes."""
        return self.allowed[0].words_among

    def draw_among(self, ops: SpecOps, words: Array, mask: Array) -> Array:
        """As `draw` of one choice for each element, of those that a mask bool [N, *axes, n] allows too.

        Where that leaves none, it is left out.
        """
        return self._made(ops, self.allowed[0].draw_among(ops, words, mask))

    def _made(self, ops: SpecOps, index: Array) -> Array:
        """Values [N, *shape] of choices int32."""
        raise TypeError(f"{type(self).__name__} has no choices")

    def _apart(self, index: Array) -> list[Array]:
        return [index[..., i] for i in range(len(self.counts))] if self.several else [index]

    def _same(self, ops: SpecOps, x: Array, near: Array) -> Array:
        """Whether values are those nearest to them, which lie inside, bool [N]."""
        equal = order.comparable(ops, x, self.dtype) == order.comparable(ops, near, self.dtype)
        return ops.all_rows(equal.reshape(equal.shape[0], self.size))


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class _Numbers(Choices):
    """Choices as numbers. Without a mask they are whole numbers between bounds, like others."""

    @functools.cached_property
    def words(self) -> int:
        """Random words of 31 bits that `draw` takes for a value."""
        return super().words if self.mask is None else sum(one.words for one in self.allowed)

    def draw(self, ops: SpecOps, words: Array) -> Array:
        """A value for each row of int32 [N, words]: an array [N, *shape], uniform over what is allowed."""
        return super().draw(ops, words) if self.mask is None else self._made(ops, self._drawn(ops, words))

    def inside(self, ops: SpecOps, x: Array) -> Array:
        """Whether values [N, *shape] are allowed, bool [N]."""
        return super().inside(ops, x) if self.mask is None else self._same(ops, x, self.nearest(ops, x))

    def nearest(self, ops: SpecOps, x: Array) -> Array:
        """The allowed numbers that are nearest to some [N, *shape], of two the lower."""
        x = super().nearest(ops, x)
        if self.mask is None:
            return x
        index = allowed.number_of(ops, x, self._starts().astype(self.dtype), self.dtype)
        return self._made(ops, self._allowed_nearest(ops, index))

    def _made(self, ops: SpecOps, index: Array) -> Array:
        return draws.numbered(ops, [index], self._starts(), self.dtype)

    def _starts(self) -> np.ndarray[Any, Any]:
        """The first number of each element, as Python's numbers that broadcast to the shape."""
        return np.asarray(self.domain.low, object)


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class _Vectors(Choices):
    """Choices as vectors with a one."""

    @functools.cached_property
    def words(self) -> int:
        """Random words of 31 bits that `draw` takes for a value."""
        return sum(one.words for one in self.allowed)

    def draw(self, ops: SpecOps, words: Array) -> Array:
        """A value for each row of int32 [N, words]: an array [N, *shape], uniform over what is allowed."""
        return self._made(ops, self._drawn(ops, words))

    def inside(self, ops: SpecOps, x: Array) -> Array:
        """Whether values [N, *shape] have a single one, where it is allowed, and zeros else, bool [N]."""
        return self._same(ops, x, self.nearest(ops, x))

    def nearest(self, ops: SpecOps, x: Array) -> Array:
        """The vectors with the one where the largest allowed element of some [N, *shape] is, of equal ones the first.

        These are the nearest ones: they differ in the length that is left. NaN counts as -inf.
        """
        return self._made(ops, self.decoded(ops, x))

    def encoded(self, ops: SpecOps, value: Array) -> Array:
        """Vectors [*batch, *shape] for choices of any dtype of integers, clamped to allowed ones."""
        shape, dtype = tuple(value.shape), dtypes.shown(value.dtype)
        expected = (*self.axes, len(self.counts)) if self.several else self.axes
        if dtypes.kind_of(dtype) != "int":
            raise TypeError(f"expected choices as whole numbers, got dtype {dtype}; convert them")
        if shape[max(len(shape) - len(expected), 0) :] != expected:
            raise ValueError(f"expected choices of shape {('...', *expected)}, got {shape}; reshape them")
        counts = np.asarray(self.counts if self.several else self.counts[0], np.int64)
        index = allowed.clamped_index(ops, value, dtype, counts)
        return self._made(ops, self._allowed_nearest(ops, index))

    def decoded(self, ops: SpecOps, x: Array) -> Array:
        """The choices int32 of vectors [*batch, *shape]: where the largest allowed element is."""
        ends = np.cumsum((0, *self.counts)).tolist()
        parts = [x[..., start:end] for start, end in itertools.pairwise(ends)]
        found = [one.largest(ops, part, self.dtype) for one, part in zip(self.allowed, parts, strict=True)]
        return self._together(ops, found)

    def from_host(self, value: Any, batch: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Vectors for choices on the host, which are not clamped but refused."""
        choices = self._read(value)
        made = super().from_host(choices, batch)
        wrong = np.asarray(self.decoded(numpy_ops, made) != choices)
        if wrong.any():
            raise ValueError(
                f"expected choices below {self.counts if self.several else self.counts[0]}"
                f"{'' if self.mask is None else ' that the mask allows'}, got {choices[wrong].flat[0]}"
            )
        return made

    def _read(self, value: Any) -> np.ndarray[Any, Any]:
        return host.as_dtype(value, "int64")

    def _made(self, ops: SpecOps, index: Array) -> Array:
        """Vectors [..., *shape] with ones at int32 [..., *choice_axes]."""
        ones = [
            i[..., None] == ops.table(np.arange(n, dtype=np.int32), "int32", index)
            for i, n in zip(self._apart(index), self.counts, strict=True)
        ]
        together = ops.concat(ones, -1) if self.several else ones[0]
        return together if self.dtype == "bool" else ops.cast(together, self.dtype)

    def _refuse_complex(self) -> None:
        if dtypes.kind_of(self.dtype) == "complex":
            raise TypeError(f"{type(self).__name__}: expected a real dtype, got {self.dtype}; write dtype='float32'")


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Categorical(_Numbers):
    """One of n choices, as a number.

    Attributes:
        n: how many there are, at least 1.
        mask: bool that broadcasts to `[*shape, n]`, which of them are allowed; None if all are.
        start: the number of the first one.

    Raises:
        TypeError: for a dtype that is not of integers.
        ValueError: for n < 1, numbers that do not fit into the dtype, or a mask that allows none.

    Example:
        >>> Categorical(5).domain
        Domain(low=0, high=4, discrete=True)
        >>> Categorical(3, mask=[True, False, True], shape=(2,))
        Categorical(3, (True, False, True), (2,))
    """

    arguments: ClassVar[tuple[str, ...]] = ("n", "mask", "shape", "dtype", "start")

    n: int = 1
    start: int = 0

    def __init__(
        self, n: int, mask: Any = None, shape: tuple[int, ...] = (), dtype: object = "int32", start: int = 0
    ) -> None:
        """The number of choices comes first: `Categorical(5)`."""
        self._begin(shape, dtype)
        for name, value in (("n", n), ("start", start)):
            object.__setattr__(self, name, whole_number(value, f"Categorical: {name}"))
        check_range(type(self).__name__, self.dtype, [self.n], [self.start])
        self._set_mask(mask)

    @property
    def domain(self) -> Domain:
        """From the first to the last, those that the mask forbids included."""
        return Domain(self.start, self.start + self.n - 1, True)

    def to_one_hot(self, dtype: object = "bool") -> OneHot:
        """The spec of the same choices as vectors with a one; their numbers count from `start` on.

        Example:
            >>> Categorical(3, mask=[True, False, True], shape=(2,)).to_one_hot()
            OneHot(3, (True, False, True), (2, 3))
        """
        return OneHot(self.n, self.mask, (*self.shape, self.n), dtype)

    @property
    def counts(self) -> tuple[int, ...]:
        """One choice."""
        return (self.n,)

    def defaults(self) -> dict[str, Any]:
        """All choices, a scalar int32, from zero on."""
        return {"mask": None, "shape": (), "dtype": "int32", "start": 0}


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class OneHot(_Vectors):
    """One of n choices, as a vector with a one in its place and zeros elsewhere.

    Attributes:
        n: how many there are, at least 1: the last axis of the shape.
        mask: bool that broadcasts to the shape, which of them are allowed; None if all are.

    Raises:
        ValueError: for n < 1, a shape whose last axis is not n, or a mask that allows none.

    Example:
        >>> OneHot(5).shape, OneHot(5, shape=(2, 5)).dtype
        ((5,), 'bool')
    """

    arguments: ClassVar[tuple[str, ...]] = ("n", "mask", "shape", "dtype")

    n: int = 1

    def __init__(self, n: int, mask: Any = None, shape: tuple[int, ...] | None = None, dtype: object = "bool") -> None:
        """The number of choices comes first: `OneHot(5)`."""
        object.__setattr__(self, "n", whole_number(n, "OneHot: n"))
        check_range("OneHot", "int32", [self.n], [0])
        self._begin((self.n,) if shape is None else shape, dtype)
        check_last_axis(self, self.n)
        self._refuse_complex()
        self._set_mask(mask)

    @property
    def domain(self) -> Domain:
        """Zero and one."""
        return Domain(0, 1, True)

    @property
    def axes(self) -> tuple[int, ...]:
        """The shape without the last axis, which is one value."""
        return self.shape[:-1]

    @property
    def counts(self) -> tuple[int, ...]:
        """One choice."""
        return (self.n,)

    def to_categorical(self, dtype: object = "int32", start: int = 0) -> Categorical:
        """The spec of the same choices as numbers.

        Example:
            >>> OneHot(3, shape=(2, 3)).to_categorical()
            Categorical(3, shape=(2,))
        """
        return Categorical(self.n, self.mask, self.axes, dtype, start)

    def defaults(self) -> dict[str, Any]:
        """All choices, one vector of bools."""
        return {"mask": None, "shape": (self.n,), "dtype": "bool"}


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class MultiCategorical(_Numbers):
    """Several choices, each of its own number, as numbers.

    Attributes:
        nvec: how many choices each element has: an array or nested sequence that broadcasts to the shape; its own
            shape by default.
        mask: bool that broadcasts to `[*shape[:-1], sum(nvec)]`: for each element of the last axis which of its
            choices are allowed, one after the other; None if all are. Only where nvec is one vector.
        start: the number of the first choice, likewise of each.

    Raises:
        TypeError: for a dtype that is not of integers.
        ValueError: for a number of choices < 1, numbers that do not fit, or a mask that allows none.

    Example:
        >>> spec = MultiCategorical([3, 5])
        >>> spec.shape, spec.domain
        ((2,), Domain(low=0, high=(2, 4), discrete=True))
        >>> spec[1]
        Categorical(5)
    """

    arguments: ClassVar[tuple[str, ...]] = ("nvec", "mask", "shape", "dtype", "start")
    several: ClassVar[bool] = True
    tables: ClassVar[tuple[str, ...]] = ("nvec", "start")

    nvec: Table = 1
    start: Table = 0

    def __init__(
        self,
        nvec: Any,
        mask: Any = None,
        shape: tuple[int, ...] | None = None,
        dtype: object = "int32",
        start: Any = 0,
    ) -> None:
        """The numbers of choices come first: `MultiCategorical([3, 5])`."""
        self._begin(numbers(nvec, "MultiCategorical", "nvec").shape if shape is None else shape, dtype)
        if not self.shape:
            raise ValueError(f"MultiCategorical: expected at least one axis, got shape (); write Categorical({nvec!r})")
        for name, value in (("nvec", nvec), ("start", start)):
            array = broadcast(value, self.shape, "MultiCategorical", name)
            if array.dtype.kind not in "iuO":
                raise TypeError(f"MultiCategorical: expected {name} as whole numbers, got {value!r:.80}")
            # Of no elements nothing is said, in one form.
            object.__setattr__(self, name, as_table(array) if 0 not in self.shape else int(name == "nvec"))
        check_range("MultiCategorical", self.dtype, self.table("nvec"), self.table("start"))
        if mask is not None and np.ndim(self.nvec) > 1:
            raise ValueError(
                f"MultiCategorical: a mask needs one vector of numbers of choices, got nvec of shape {np.shape(nvec)}; "
                f"use a part of an item for each row"
            )
        self._set_mask(mask)

    @property
    def domain(self) -> Domain:
        """From the first to the last of each, those that the mask forbids included."""
        start, nvec = (np.asarray(table, object) for table in (self.start, self.nvec))  # as no int64 may overflow
        return Domain(self.start, as_table(start + nvec - 1), True)

    @property
    def counts(self) -> tuple[int, ...]:
        """Along the last axis, where that is the same in all rows."""
        return tuple(int(n) for n in np.broadcast_to(np.asarray(self.nvec), self.shape[-1:]))

    @property
    def choice_axes(self) -> tuple[int, ...]:
        """The shape without the last axis."""
        return self.shape[:-1]

    def to_one_hot(self, dtype: object = "bool") -> MultiOneHot:
        """The spec of the same choices as vectors with a one; their numbers count from `start` on.

        Raises:
            ValueError: if the numbers of choices are not the same in all rows.

        Example:
            >>> MultiCategorical([3, 5]).to_one_hot()
            MultiOneHot((3, 5))
        """
        if np.ndim(self.nvec) > 1:
            raise ValueError(
                f"MultiCategorical.to_one_hot: expected the same numbers of choices in all rows, got nvec "
                f"{self.nvec!r}; use a part of an item for each row"
            )
        return MultiOneHot(self.counts, self.mask, (*self.shape[:-1], sum(self.counts)), dtype)

    def changed(self, k: int, change: Change) -> Any:
        """Each element takes its number of choices with it; one alone is `Categorical`."""
        probe = change(np.broadcast_to(np.int8(0), self.shape))
        nvec, start = (change(self.table(name)) for name in self.tables)
        mask = None if self.mask is None or not nvec.size else self._changed_mask(change)
        if not probe.shape:
            return Categorical(int(nvec), mask, (), self.dtype, int(start))
        return MultiCategorical(nvec, mask, probe.shape, self.dtype, start)

    def _changed_mask(self, change: Change) -> np.ndarray[Any, Any]:
        """Where each choice of the last axis is allowed, padded to a table, so that it goes where the choice goes."""
        widest = max(self.counts)
        pieces = np.split(self.mask_table(), np.cumsum(self.counts)[:-1], -1)
        blank = np.zeros((*self.shape[:-1], 1, widest), bool)
        padded = [np.concatenate([piece[..., None, :], blank[..., : widest - piece.shape[-1]]], -1) for piece in pieces]
        table, counts = change(np.concatenate(padded, -2)), change(self.table("nvec"))
        if not counts.ndim:
            return table[: int(counts)]
        row = counts.reshape(-1, counts.shape[-1])
        if (row != row[0]).any():
            raise ValueError(
                f"MultiCategorical: with a mask, the last axis of {self.shape} has to stay as it is, as each element "
                f"has its own choices; leave the mask out"
            )
        return np.concatenate([table[..., i, :n] for i, n in enumerate(row[0])], -1)

    def defaults(self) -> dict[str, Any]:
        """All choices, as many elements as numbers, from zero on."""
        return {"mask": None, "shape": np.shape(self.nvec) or None, "dtype": "int32", "start": 0}


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class MultiOneHot(_Vectors):
    """Several choices, each as a vector with a one, one behind the other.

    Attributes:
        nvec: how many choices each has, a sequence of numbers >= 1; their sum is the last axis of the shape.
        mask: bool that broadcasts to the shape, which choices are allowed; None if all are.

    Raises:
        ValueError: for a number < 1, a shape whose last axis is not their sum, or a mask that allows none of a choice.

    Example:
        >>> MultiOneHot([3, 5]).shape
        (8,)
    """

    arguments: ClassVar[tuple[str, ...]] = ("nvec", "mask", "shape", "dtype")
    several: ClassVar[bool] = True

    nvec: tuple[int, ...] = ()

    def __init__(
        self, nvec: Any, mask: Any = None, shape: tuple[int, ...] | None = None, dtype: object = "bool"
    ) -> None:
        """The numbers of choices come first: `MultiOneHot([3, 5])`."""
        if not np.ndim(nvec) == 1 or not len(nvec):
            raise ValueError(f"MultiOneHot: expected nvec as a sequence of numbers of choices, got {nvec!r:.80}")
        counts = tuple(whole_number(n, "MultiOneHot: nvec") for n in nvec)
        object.__setattr__(self, "nvec", counts)
        check_range("MultiOneHot", "int32", counts, [0])
        self._begin((sum(counts),) if shape is None else shape, dtype)
        check_last_axis(self, sum(counts))
        self._refuse_complex()
        self._set_mask(mask)

    @property
    def domain(self) -> Domain:
        """Zero and one."""
        return Domain(0, 1, True)

    @property
    def axes(self) -> tuple[int, ...]:
        """The shape without the last axis, which is one value."""
        return self.shape[:-1]

    @property
    def counts(self) -> tuple[int, ...]:
        """All of them lie in a row."""
        return self.nvec

    def to_categorical(self, dtype: object = "int32", start: Any = 0) -> MultiCategorical:
        """The spec of the same choices as numbers.

        Example:
            >>> MultiOneHot([3, 5]).to_categorical()
            MultiCategorical((3, 5))
        """
        return MultiCategorical(self.nvec, self.mask, (*self.axes, len(self.nvec)), dtype, start)

    def defaults(self) -> dict[str, Any]:
        """All choices, one vector of bools."""
        return {"mask": None, "shape": (sum(self.nvec),), "dtype": "bool"}


def check_range(who: str, dtype: str, counts: Any, starts: Any) -> None:
    """Refuse numbers of choices below 1, and choices whose numbers do not fit into the dtype."""
    if dtypes.kind_of(dtype) != "int":
        raise TypeError(f"{who}: expected a dtype of integers, as choices are numbered, got {dtype}")
    counts, starts = np.asarray(counts, object), np.asarray(starts, object)
    if counts.size and not (counts >= 1).all():
        raise ValueError(f"{who}: expected at least 1 choice, got {counts.min()}")
    if counts.size and counts.max() > 2**31 - 1:
        raise ValueError(f"{who}: expected fewer than 2^31 choices, got {counts.max()}")
    low, high = dtypes.integer_limits(dtype)
    if counts.size and not ((starts >= low).all() and (starts + counts - 1 <= high).all()):
        raise ValueError(
            f"{who}: choices from {starts.min()} to {(starts + counts - 1).max()} do not fit into {dtype} "
            f"({low} to {high}); give a wider dtype"
        )


def check_last_axis(spec: ArraySpec, size: int) -> None:
    """Refuse a shape whose last axis is not one value."""
    if not spec.shape or spec.shape[-1] != size:
        raise ValueError(
            f"{type(spec).__name__}: expected a shape whose last axis is {size}, got {spec.shape}; "
            f"write shape=(*axes, {size})"
        )
