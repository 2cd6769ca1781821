"""Specs of arrays of fixed shape and dtype: any values, values between bounds, and truth values."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.arrays import Array, ArrayLike, Nest, NumpyArray
from functional_rb.ops.protocol import SpecOps
from functional_rb.specs import numpy_ops, order, random_numbers
from functional_rb.specs.base import (
    Change,
    Domain,
    SpecNest,
    Table,
    Unit,
    as_table,
    broadcast,
    changed_shape,
    checked_shape,
)


@dataclasses.dataclass(frozen=True, repr=False)
class ArraySpec(Unit):
    """An array of fixed shape and dtype.

    Attributes:
        shape: the shape of one item's leaf, without any batch axis.
        dtype: its name, one of `functional_rb.base.dtypes.ITEMSIZE`; NumPy, JAX and torch dtypes are accepted.

    Example:
        >>> ArraySpec((3,), np.int16)
        ArraySpec((3,), 'int16')
    """

    arguments: ClassVar[tuple[str, ...]] = ("shape", "dtype")
    # The names of attributes with a value for each element: numbers, or nested tuples that broadcast to `axes`.
    tables: ClassVar[tuple[str, ...]] = ()
    # Whether environments have Python objects in place of numbers, which are encoded and decoded on the host only.
    host_only: ClassVar[bool] = False

    shape: tuple[int, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._begin(self.shape, self.dtype)

    def _begin(self, shape: object, dtype: object) -> None:
        object.__setattr__(self, "shape", checked_shape(shape))
        object.__setattr__(self, "dtype", dtypes.name_of(dtype))

    @property
    def domain(self) -> Domain:
        """All values of the dtype."""
        return whole_domain(self.dtype)

    @property
    def axes(self) -> tuple[int, ...]:
        return self.shape

    def changed(self, k: int, change: Change) -> SpecNest:
        arguments = {name: getattr(self, name) for name in self.arguments}
        arguments["shape"] = changed_shape(self.shape, change)
        for name in self.tables:  # their values move with the elements
            if isinstance(arguments[name], tuple):
                arguments[name] = change(self.table(name))
        return type(self)(**arguments)

    def table(self, name: str) -> NumpyArray:
        """The values of one of `tables` for every element, as a NumPy array of the shape."""
        return np.broadcast_to(np.asarray(getattr(self, name)), self.shape)

    @property
    def size(self) -> int:
        """The number of elements of a value."""
        return math.prod(self.shape)

    def without_elements(self, batch_axes: int, batch_shape: tuple[int, ...]) -> ArraySpec:
        return ArraySpec((*batch_shape, *(0,) * max(len(self.shape) - batch_axes, 1)), self.dtype)

    def cardinality(self) -> int | float:
        if not self.size:
            return 1
        if self.domain.discrete:
            return math.prod(int(n) for n in self.value_counts.flat)
        low, high = self._bounds
        return 1 if self.dtype != "complex64" and (low == high).all() else math.inf

    @property
    def value_counts(self) -> NumpyArray:
        """How many values each of `axes` may take, as Python ints, which do not overflow; of several choices each."""
        return np.broadcast_to(self._counts, self.shape)

    @functools.cached_property
    def words(self) -> int:
        if dtypes.kind_of(self.dtype) in ("float", "complex"):
            parts = 2 if self.dtype == "complex64" else 1
            low, high = self._bounds
            return parts * self.size * random_numbers.real_words(low, high, self.dtype)
        return self.size * random_numbers.whole_words(self._counts)

    def draw(self, ops: SpecOps, bits: Array) -> Array:
        count = bits.shape[0]
        if self.dtype == "complex64":
            return ops.bitcast(Unbounded((*self.shape, 2)).draw(ops, bits), "complex64").reshape(count, *self.shape)
        each = self.words // self.size if self.size else 0
        if not each:
            return ops.zeros((count, *self.shape), self.dtype, getattr(bits, "device", None))
        bits = bits.reshape(count, *self.shape, each)
        drawn = self._distribution.draw(ops, bits)
        return drawn != 0 if self.dtype == "bool" else drawn

    def inside(self, ops: SpecOps, x: Array) -> Array:
        if dtypes.kind_of(self.dtype) in ("bool", "complex"):
            return rows_of(ops, x == x, self.size)  # false for NaN
        (low, high), (least, largest) = self._bounds, self._limits
        y = order.comparable(ops, x, self.dtype)
        # Bounds that the dtype has anyway are not compared with; NaN fails every comparison.
        masks = [y >= order.limit(ops, low, self.dtype, x)] if least else []
        masks += [y <= order.limit(ops, high, self.dtype, x)] if largest else []
        if not masks:
            masks = [y == y]
        return rows_of(ops, masks[0] if len(masks) == 1 else masks[0] & masks[1], self.size)

    def nearest(self, ops: SpecOps, x: Array) -> Array:
        kind = dtypes.kind_of(self.dtype)
        if kind == "bool":
            return x
        if kind == "complex":
            return ops.where(x == x, x, ops.cast(x == x, self.dtype))
        y = order.comparable(ops, x, self.dtype)
        if kind == "float":
            y = ops.without_nan(y)
        if any(self._limits):
            y = ops.clamp(y, *(order.limit(ops, bound, self.dtype, x) for bound in self._bounds))
        return order.back(ops, y, self.dtype)

    def encoded(self, ops: SpecOps, value: Array) -> Nest:
        """What is stored, [*batch, *shape], for numbers of an environment: for most specs, these numbers."""
        shape, dtype = tuple(value.shape), dtypes.shown(value.dtype)
        # NumPy lacks bfloat16, and has its numbers as float32.
        if dtype != self.dtype and (ops, self.dtype, dtype) != (numpy_ops.OPS, "bfloat16", "float32"):
            raise TypeError(f"expected dtype {self.dtype}, got {dtype}; convert it yourself, or change the spec")
        if shape[max(len(shape) - len(self.shape), 0) :] != self.shape:
            raise ValueError(f"expected shape {('...', *self.shape)}, got {shape}; reshape it")
        return value

    def decoded(self, ops: SpecOps, x: Array) -> Nest:
        """The numbers of an environment for stored values: the inverse of `encoded`."""
        return x

    def from_host(self, value: object, batch: tuple[int, ...]) -> NumpyArray:
        array = np.asarray(self.encoded(numpy_ops.OPS, self._read(value)))
        if batch and array.shape[: array.ndim - len(self.shape)] != batch:
            raise ValueError(f"expected shape {(*batch, *self.shape)}, got {array.shape}; reshape it")
        return array

    def to_host(self, x: NumpyArray) -> object:
        return self.decoded(numpy_ops.OPS, x)

    def _read(self, value: object) -> NumpyArray:
        return dtypes.as_dtype(value, self.dtype)

    def __getstate__(self) -> dict[str, object]:
        # Without what is cached, which may be large.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def _bounds(self) -> tuple[NumpyArray, NumpyArray]:
        # They broadcast to the shape. NumPy lacks bfloat16: bounds in it are float32.
        dtype = "float32" if self.dtype == "complex64" else self.dtype
        low, high = (dtypes.as_numpy(dtype, bound) for bound in self.domain[:2])
        return low, high

    @functools.cached_property
    def _limits(self) -> tuple[bool, bool]:
        # Whether the domain is narrower than the dtype below, and above.
        low, high = self._bounds
        least, largest = (np.asarray(bound, low.dtype) for bound in whole_domain(self.dtype)[:2])
        return bool((low > least).any()), bool((high < largest).any())

    @functools.cached_property
    def _distribution(self) -> random_numbers.Real | random_numbers.Whole:
        if dtypes.kind_of(self.dtype) == "float":
            return random_numbers.Real(*self._bounds, self.dtype)
        low = np.asarray(self.domain.low, object)
        return random_numbers.Whole(low, self._counts, "int32" if self.dtype == "bool" else self.dtype)

    @functools.cached_property
    def _counts(self) -> NumpyArray:
        # Python ints, as the number of all uint64 does not fit into any dtype.
        low, high = (np.asarray(bound, object) for bound in self.domain[:2])
        return np.asarray(high - low + 1, object)


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
        high: given and kept in the form of `low`.

    Raises:
        TypeError: for bounds that are no numbers, or a dtype without an order.
        ValueError: if low > high somewhere, a lower bound is inf or an upper one -inf, or a bound lies outside of an
            integer dtype, or between its values.

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

    def __init__(self, low: ArrayLike, high: ArrayLike, shape: tuple[int, ...] = (), dtype: object = "float32") -> None:
        self._begin(shape, dtype)
        kind = dtypes.kind_of(self.dtype)
        if kind in ("bool", "complex"):
            remedy = "write Binary(shape)" if kind == "bool" else "write Unbounded(shape, dtype)"
            raise TypeError(f"Bounded: expected a dtype of integers or real numbers, got {self.dtype}; {remedy}")
        for name, bound in (("low", low), ("high", high)):
            array = broadcast(bound, self.shape, "Bounded", name)
            object.__setattr__(self, name, dtypes.canonical(self.dtype, as_table(array), f"Bounded: {name}"))
        if not np.all(self._array("low") <= self._array("high")):
            raise ValueError(
                f"Bounded: expected low <= high everywhere, got low={low!r:.80}, high={high!r:.80}; "
                f"where there is no bound, write -inf or inf"
            )
        if np.any(self._array("low") == math.inf) or np.any(self._array("high") == -math.inf):
            raise ValueError(
                f"Bounded: expected low < inf and high > -inf, got low={low!r:.80}, high={high!r:.80}; "
                f"a bound of the other sign leaves no number"
            )

    @property
    def domain(self) -> Domain:
        """The values between the bounds."""
        return Domain(self.low, self.high, dtypes.kind_of(self.dtype) == "int")

    def table(self, name: str) -> NumpyArray:
        """Bounds in the dtype; those of bfloat16, which NumPy lacks, as float32."""
        return np.broadcast_to(self._array(name), self.shape)

    def _array(self, name: str) -> NumpyArray:
        return dtypes.as_numpy(self.dtype, getattr(self, name))


@dataclasses.dataclass(frozen=True, repr=False)
class Binary(ArraySpec):
    """Truth values: `bool` unless another dtype holds them as 0 and 1.

    Raises:
        TypeError: for a complex dtype.

    Example:
        >>> Binary(()).dtype
        'bool'
    """

    dtype: str = "bool"

    def __post_init__(self) -> None:
        super().__post_init__()
        if dtypes.kind_of(self.dtype) == "complex":
            raise TypeError(f"Binary: expected bool, or a dtype of integers or real numbers, got {self.dtype}")

    @property
    def domain(self) -> Domain:
        """The values zero and one; numbers above one half are nearest to one."""
        return Domain(0, 1, True)

    @property
    def words(self) -> int:
        return self.size

    def draw(self, ops: SpecOps, bits: Array) -> Array:
        ones = bits.reshape(bits.shape[0], *self.shape) >> 30
        return ones != 0 if self.dtype == "bool" else ops.cast(ones, self.dtype)

    def inside(self, ops: SpecOps, x: Array) -> Array:
        if self.dtype == "bool":
            return super().inside(ops, x)
        y = order.comparable(ops, x, self.dtype)
        zero, one = (order.limit(ops, np.asarray(n), self.dtype, x) for n in (0, 1))
        return rows_of(ops, (y == zero) | (y == one), self.size)

    def nearest(self, ops: SpecOps, x: Array) -> Array:
        if self.dtype == "bool":
            return x
        half = 0 if dtypes.kind_of(self.dtype) == "int" else 0.5
        y = order.comparable(ops, x, self.dtype)
        return ops.cast(y > order.limit(ops, np.asarray(half), self.dtype, x), self.dtype)


def rows_of(ops: SpecOps, mask: Array, size: int) -> Array:
    """Whether all of the `size` elements of each row bool [N, ...] are true, bool [N]."""
    if len(mask.shape) == 1:  # of scalars
        return mask
    return ops.all_rows(mask if len(mask.shape) == 2 else mask.reshape(mask.shape[0], size))


def whole_domain(dtype: str) -> Domain:
    kind = dtypes.kind_of(dtype)
    if kind == "bool":
        return Domain(0, 1, True)
    if kind == "int":
        return Domain(*dtypes.integer_limits(dtype), True)
    return Domain(-math.inf, math.inf, False)
