"""Arrays of fixed shape and dtype, by the interval that their elements lie in."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from functional_rb import dtypes
from functional_rb.specs.base import Change, Domain, Spec, Table, as_table, checked_shape


@dataclasses.dataclass(frozen=True, repr=False)
class ArraySpec(Spec):
    """An array of fixed shape and dtype.

    Attributes:
        shape: the shape of one item's leaf, without any batch axis.
        dtype: its name, one of `functional_rb.dtypes.ITEMSIZE`; NumPy, JAX and torch dtypes are accepted.

    Example:
        >>> ArraySpec((3,), np.int16)
        ArraySpec((3,), 'int16')
    """

    arguments: ClassVar[tuple[str, ...]] = ("shape", "dtype")
    tables: ClassVar[tuple[str, ...]] = ()
    """The attributes that say something of each element: numbers, or nested tuples that broadcast to `axes`."""

    shape: tuple[int, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Bring shape and dtype into their hashable form, and check them."""
        object.__setattr__(self, "shape", checked_shape(self.shape))
        object.__setattr__(self, "dtype", dtypes.name_of(self.dtype))

    @property
    def domain(self) -> Domain:
        """All values of the dtype."""
        return whole_domain(self.dtype)

    @property
    def axes(self) -> tuple[int, ...]:
        """The shape."""
        return self.shape

    def changed(self, k: int, change: Change) -> Any:
        """The same of other elements: what is said of each goes where it goes."""
        shape = change(np.broadcast_to(np.int8(0), self.shape)).shape
        told: dict[str, Any] = {name: getattr(self, name) for name in self.arguments} | {"shape": shape}
        for name in self.tables:
            if isinstance(told[name], tuple):
                told[name] = change(self.table(name))
        return type(self)(**told)

    def table(self, name: str) -> np.ndarray[Any, Any]:
        """What is said of each element, as a NumPy array of the shape."""
        return np.broadcast_to(np.asarray(getattr(self, name)), self.shape)

    def defaults(self) -> dict[str, Any]:
        """A scalar float32."""
        return {"shape": (), "dtype": "float32"}


@dataclasses.dataclass(frozen=True, repr=False)
class Unbounded(ArraySpec):
    """Any value of the dtype.

    Example:
        >>> Unbounded((17,)).domain
        Domain(low=-inf, high=inf, discrete=False)
    """


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Bounded(ArraySpec):
    """Values between two bounds, both included.

    Attributes:
        low: a number, or an array or nested sequence that broadcasts to `shape`; kept as a number where all elements
            have the same, else as nested tuples, each as the shortest decimal that means the same number of the dtype.
        high: likewise.

    Raises:
        TypeError: for bounds that are no numbers, or a dtype without an order.
        ValueError: if low > high somewhere, or a bound lies outside of an integer dtype, or between its values.

    Example:
        >>> Bounded(-1.0, 1.0, (6,)).domain
        Domain(low=-1.0, high=1.0, discrete=False)
        >>> Bounded([0, -1], 1, (2,), "int8").low
        (0, -1)
    """

    arguments: ClassVar[tuple[str, ...]] = ("low", "high", "shape", "dtype")
    tables: ClassVar[tuple[str, ...]] = ("low", "high")

    low: Table = 0
    high: Table = 0

    def __init__(self, low: Any, high: Any, shape: tuple[int, ...] = (), dtype: object = "float32") -> None:
        """Bounds come first, as one writes them: `Bounded(-1.0, 1.0, (6,))`."""
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype)
        super().__post_init__()
        kind = dtypes.kind_of(self.dtype)
        if kind in ("bool", "complex"):
            remedy = "write Binary(shape)" if kind == "bool" else "write Unbounded(shape, dtype)"
            raise TypeError(f"Bounded: expected a dtype of integers or real numbers, got {self.dtype}; {remedy}")
        for name, bound in (("low", low), ("high", high)):
            object.__setattr__(self, name, self._bound(bound, name))
        if not np.all(self.table("low") <= self.table("high")):
            raise ValueError(f"Bounded: expected low <= high everywhere, got low={low!r}, high={high!r}")

    @property
    def domain(self) -> Domain:
        """The values between the bounds."""
        return Domain(self.low, self.high, dtypes.kind_of(self.dtype) == "int")

    def table(self, name: str) -> np.ndarray[Any, Any]:
        """Bounds in the dtype, but for bfloat16, which NumPy lacks: those are float32."""
        dtype = "float32" if self.dtype == "bfloat16" else self.dtype
        return np.broadcast_to(np.asarray(getattr(self, name), dtype), self.shape)

    def _bound(self, bound: Any, name: str) -> Table:
        array = np.asarray(bound)
        if array.dtype.kind not in "biuf" and str(array.dtype) != "bfloat16":
            raise TypeError(f"Bounded: expected {name} as a number or an array of them, got {bound!r}")
        try:
            np.broadcast_to(array, self.shape)
        except ValueError:
            raise ValueError(f"Bounded: {name} of shape {array.shape} does not broadcast to {self.shape}") from None
        if array.ndim:  # a vector of bounds may be one of rows, as 1 broadcasts to 3
            array = np.broadcast_to(array, self.shape)
        return dtypes.canonical(self.dtype, as_table(array), f"Bounded: {name}")


@dataclasses.dataclass(frozen=True, repr=False)
class Binary(ArraySpec):
    """Truth values: `bool` unless another dtype holds them as 0 and 1.

    Example:
        >>> Binary(()).dtype
        'bool'
    """

    dtype: str = "bool"

    @property
    def domain(self) -> Domain:
        """Zero and one."""
        return Domain(0, 1, True)

    def defaults(self) -> dict[str, Any]:
        """A scalar bool."""
        return {"shape": (), "dtype": "bool"}


def whole_domain(dtype: str) -> Domain:
    """All values of a dtype."""
    kind = dtypes.kind_of(dtype)
    if kind == "bool":
        return Domain(0, 1, True)
    if kind == "int":
        return Domain(*dtypes.integer_limits(dtype), True)
    return Domain(-math.inf, math.inf, False)
