"""Several choices: as numbers, or as vectors with a one side by side."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from functional_rb.base.arrays import ArrayLike, NumpyArray
from functional_rb.base.dtypes import kind_of, whole_number
from functional_rb.specs.allowed import Allowed
from functional_rb.specs.base import Change, Domain, SpecNest, Table, as_table, broadcast, changed_shape, numbers
from functional_rb.specs.categorical import Categorical
from functional_rb.specs.choices import Numbers, Vectors, check_range


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class MultiCategorical(Numbers):
    """Several choices, each of its own number, as numbers.

    Attributes:
        nvec: how many choices each element has: an array or nested sequence that broadcasts to the shape; its own
            shape by default.
        mask: bool that broadcasts to `[*shape[:-1], sum(nvec)]`: for each element of the last axis which of its
            choices are allowed, one after the other; None if all are. Only where nvec is one vector.
        start: the number of each element's first choice: an array or nested sequence that broadcasts to the shape.

    Raises:
        TypeError: for a dtype that is neither of integers nor of floats, which hold the numbers too.
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
        nvec: ArrayLike,
        mask: ArrayLike = None,
        shape: tuple[int, ...] | None = None,
        dtype: object = "int32",
        start: ArrayLike = 0,
    ) -> None:
        self._begin(numbers(nvec, "MultiCategorical", "nvec").shape if shape is None else shape, dtype)
        if not self.shape:
            raise ValueError(f"MultiCategorical: expected at least one axis, got shape (); write Categorical({nvec!r})")
        for name, value in (("nvec", nvec), ("start", start)):
            array = broadcast(value, self.shape, "MultiCategorical", name)
            if array.dtype.kind not in "iuO":
                raise TypeError(f"MultiCategorical: expected {name} as whole numbers, got {value!r:.80}")
            # Without elements there is one form for all arguments.
            object.__setattr__(self, name, as_table(array) if 0 not in self.shape else int(name == "nvec"))
        starts = np.broadcast_to(np.asarray(self.start, object), self.shape)
        check_range("MultiCategorical", self.dtype, self.table("nvec"), starts)
        if mask is not None and np.ndim(self.nvec) > 1:
            raise ValueError(
                f"MultiCategorical: a mask needs one vector of numbers of choices, got nvec {nvec!r:.80}; "
                f"use a part of an item for each row"
            )
        self._set_mask(mask)

    def table(self, name: str) -> NumpyArray:
        """The values of `nvec`, `start` or `mask` for every element.

        Starts are in a dtype of integers, that of the spec if it is one: NumPy makes floats of a list of 0 and
        2^64 - 1, and the whole numbers that floats hold exactly fit into int64, but those of bfloat16 not into NumPy.
        """
        if name == "start":
            dtype = self.dtype if kind_of(self.dtype) == "int" else "int64"
            return np.broadcast_to(np.asarray(self.start, dtype), self.shape)
        return super().table(name)

    @property
    def domain(self) -> Domain:
        """The numbers from the first choice to the last of each element, those that the mask forbids included."""
        # Python ints, as int64 might overflow.
        start, nvec = (np.asarray(table, object) for table in (self.start, self.nvec))
        return Domain(self.start, as_table(start + nvec - 1), True)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of choices of each element along the last axis, where all rows have the same.

        Raises:
            ValueError: if they have not.
        """
        return self._counts_of_rows("counts", "read nvec for those of each element")

    def _counts_of_rows(self, what: str, remedy: str) -> tuple[int, ...]:
        if np.ndim(self.nvec) > 1:
            raise ValueError(
                f"MultiCategorical.{what}: expected the same numbers of choices in all rows, got nvec {self.nvec!r}; "
                f"{remedy}"
            )
        return tuple(int(n) for n in np.broadcast_to(np.asarray(self.nvec), self.shape[-1:]))

    @functools.cached_property
    def allowed(self) -> list[Allowed]:
        """What is allowed, for each of the choices side by side; rows of their own numbers each have their own."""
        if np.ndim(self.nvec) < 2:
            return super().allowed
        counts = self.table("nvec").reshape(-1, self.shape[-1]).T
        of = np.arange(counts.shape[1]).reshape(self.choice_axes)
        return [Allowed(np.arange(column.max()) < column[:, None], of) for column in counts]

    @property
    def choice_axes(self) -> tuple[int, ...]:
        return self.shape[:-1]

    def to_one_hot(self, dtype: object = "bool") -> MultiOneHot:
        """The spec of the same choices as vectors with a one; their numbers count from `start` on.

        Raises:
            ValueError: if the numbers of choices are not the same in all rows.

        Example:
            >>> MultiCategorical([3, 5]).to_one_hot()
            MultiOneHot((3, 5))
        """
        counts = self._counts_of_rows("to_one_hot", "use a part of an item for each row")
        return MultiOneHot(counts, self.mask, (*self.shape[:-1], sum(counts)), dtype)

    def changed(self, k: int, change: Change) -> SpecNest:
        # Each element keeps its choices, and a single one becomes a `Categorical`.
        shape = changed_shape(self.shape, change)
        nvec, start = (change(self.table(name)) for name in self.tables)
        mask = None if self.mask is None or not nvec.size else self._changed_mask(change)
        if not shape:
            return Categorical(int(nvec), mask, (), self.dtype, int(start))
        return MultiCategorical(nvec, mask, shape, self.dtype, start)

    def _changed_mask(self, change: Change) -> NumpyArray:
        # Padded to one row for each element, so that the mask moves with the element.
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

    def defaults(self) -> dict[str, object]:
        return super().defaults() | {"shape": np.shape(self.nvec) or None}


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class MultiOneHot(Vectors):
    """Several choices, each as a vector with a one; the vectors stand side by side.

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
        self, nvec: Sequence[int], mask: ArrayLike = None, shape: tuple[int, ...] | None = None, dtype: object = "bool"
    ) -> None:
        if not np.ndim(nvec) == 1 or not len(nvec):
            raise ValueError(f"MultiOneHot: expected nvec as a sequence of numbers of choices, got {nvec!r:.80}")
        object.__setattr__(self, "nvec", tuple(whole_number(n, "MultiOneHot: nvec") for n in nvec))
        self._begin_vectors(shape, dtype, mask)

    @property
    def counts(self) -> tuple[int, ...]:
        return self.nvec

    def to_categorical(self, dtype: object = "int32", start: object = 0) -> MultiCategorical:
        """The spec of the same choices as numbers.

        Example:
            >>> MultiOneHot([3, 5]).to_categorical()
            MultiCategorical((3, 5))
        """
        return MultiCategorical(self.nvec, self.mask, (*self.axes, len(self.nvec)), dtype, start)
