"""One choice of several: as a number, or as a vector with a one."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from functional_rb.base.arrays import ArrayLike
from functional_rb.base.dtypes import whole_number
from functional_rb.specs.base import Domain
from functional_rb.specs.choices import Numbers, Vectors, check_range


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Categorical(Numbers):
    """One of n choices, as a number.

    Attributes:
        n: how many there are, at least 1.
        mask: bool that broadcasts to `[*shape, n]`, which of them are allowed; None if all are.
        start: the number of the first one.

    Raises:
        TypeError: for a dtype that is neither of integers nor of floats, which hold the numbers too.
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
        self, n: int, mask: ArrayLike = None, shape: tuple[int, ...] = (), dtype: object = "int32", start: int = 0
    ) -> None:
        self._begin(shape, dtype)
        for name, value in (("n", n), ("start", start)):
            object.__setattr__(self, name, whole_number(value, f"Categorical: {name}"))
        check_range(type(self).__name__, self.dtype, [self.n], [self.start])
        self._set_mask(mask)

    @property
    def domain(self) -> Domain:
        """The numbers from the first choice to the last, those that the mask forbids included."""
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
        return (self.n,)


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class OneHot(Vectors):
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

    def __init__(
        self, n: int, mask: ArrayLike = None, shape: tuple[int, ...] | None = None, dtype: object = "bool"
    ) -> None:
        object.__setattr__(self, "n", whole_number(n, "OneHot: n"))
        self._begin_vectors(shape, dtype, mask)

    @property
    def counts(self) -> tuple[int, ...]:
        return (self.n,)

    def to_categorical(self, dtype: object = "int32", start: int = 0) -> Categorical:
        """The spec of the same choices as numbers.

        Example:
            >>> OneHot(3, shape=(2, 3)).to_categorical()
            Categorical(3, shape=(2,))
        """
        return Categorical(self.n, self.mask, self.axes, dtype, start)
