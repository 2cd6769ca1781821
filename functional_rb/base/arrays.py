"""The types of arrays, and of what is made of them, that annotations everywhere use.

A docstring, or a comment behind a field, gives an array's shape: `[B, *shape]` are B rows of a leaf's own shape,
`[T, lanes]` are T steps of each lane, and `[n]` is a vector. A scalar is called one. A shape is said in one place only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias, overload

import numpy as np

# The other side of an operator, or an index: numbers, and arrays of the same library, which has no name for both.
Operand: TypeAlias = Any


# What a library has for dtypes; `base.dtypes.name_of` gives the name that all have in common.
DType: TypeAlias = Any
# One number: an array without axes, but in NumPy none.
Scalar: TypeAlias = Any


class Array(Protocol):
    """An array of any library: what `jax.Array` (a tracer too), `torch.Tensor` and `np.ndarray` have in common.

    All algorithms are written in these operators and in the functions of `ops`. Comparisons, `&`, `|`, `^`, `~` and
    arithmetic work element by element, and broadcast.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """How long each axis is."""

    @property
    def ndim(self) -> int:
        """How many axes there are."""

    @property
    def dtype(self) -> DType:
        """The dtype of its elements, in the library's own terms."""

    @property
    def device(self) -> DeviceLike:
        """The device on which it lies, in the library's own terms."""

    @property
    def nbytes(self) -> int:
        """How many bytes its elements take."""

    @property
    def T(self) -> Array:
        """The matrix with its two axes exchanged."""

    @overload
    def reshape(self, shape: tuple[int, ...], /) -> Array: ...
    @overload
    def reshape(self, first: int, /, *rest: int) -> Array: ...
    def cumsum(self, axis: int, /) -> Array:
        """Running sums along an axis."""

    # The sum of all elements; or sums along an axis.
    @overload
    def sum(self) -> Scalar: ...
    @overload
    def sum(self, axis: int, /) -> Scalar: ...

    def max(self) -> Scalar:
        """The largest element."""

    def all(self) -> Scalar:
        """Whether all elements are true."""

    def any(self) -> Scalar:
        """Whether any element is true."""

    def __array__(self, dtype: Any = None, /) -> NumpyArray:
        """The same elements in NumPy."""

    def tolist(self) -> Any:
        """Python numbers in nested lists; of a scalar the number."""

    def __getitem__(self, index: Operand, /) -> Array: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Scalar]: ...
    def __bool__(self) -> bool: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __index__(self) -> int: ...
    def __add__(self, other: Operand, /) -> Array: ...
    def __radd__(self, other: Operand, /) -> Array: ...
    def __sub__(self, other: Operand, /) -> Array: ...
    def __rsub__(self, other: Operand, /) -> Array: ...
    def __mul__(self, other: Operand, /) -> Array: ...
    def __rmul__(self, other: Operand, /) -> Array: ...
    def __truediv__(self, other: Operand, /) -> Array: ...
    def __rtruediv__(self, other: Operand, /) -> Array: ...
    def __floordiv__(self, other: Operand, /) -> Array: ...
    def __mod__(self, other: Operand, /) -> Array: ...
    def __pow__(self, other: Operand, /) -> Array: ...
    def __and__(self, other: Operand, /) -> Array: ...
    def __rand__(self, other: Operand, /) -> Array: ...
    def __or__(self, other: Operand, /) -> Array: ...
    def __ror__(self, other: Operand, /) -> Array: ...
    def __xor__(self, other: Operand, /) -> Array: ...
    def __lshift__(self, other: Operand, /) -> Array: ...
    def __rshift__(self, other: Operand, /) -> Array: ...
    def __neg__(self) -> Array: ...
    def __abs__(self) -> Array: ...
    def __invert__(self) -> Array: ...
    def __eq__(self, other: Operand, /) -> Array: ...  # type: ignore[override]  # element by element
    def __ne__(self, other: Operand, /) -> Array: ...  # type: ignore[override]  # element by element
    def __lt__(self, other: Operand, /) -> Array: ...
    def __le__(self, other: Operand, /) -> Array: ...
    def __gt__(self, other: Operand, /) -> Array: ...
    def __ge__(self, other: Operand, /) -> Array: ...


# An array of the library that is in use, in what users read and in what backends get back from the algorithms.
#
# Dynamic, as records and functions that all libraries share cannot say "a `jax.Array` here, a `torch.Tensor` there";
# it goes to functions of that library without a cast. What computes is written in `Array`.
BackendArray: TypeAlias = Any
# An array on the host, of any shape and dtype.
NumpyArray: TypeAlias = np.ndarray[Any, Any]
# A key of random numbers: a scalar array of `jax.random.key` on JAX, an int64 scalar on torch.
#
# Dynamic, as each backend takes no key but its own, and this package none at all.
PRNGKey: TypeAlias = Any
# What users may give where an array is due: their library's arrays, NumPy's, nested lists, numbers.
#
# Anything else is refused where it is converted, with an error that names the remedy.
ArrayLike: TypeAlias = object
# Where arrays lie, in each library's own terms: a `jax.Device` or `Sharding`, a `torch.device` or its name.
#
# Dynamic, as a protocol that modules fulfil cannot say that each knows its own kind only.
DeviceLike: TypeAlias = Any
# Arrays in nested dicts, tuples, dataclasses, and containers of the backends such as TensorDicts; or a single array.
#
# Dynamic, as Python has no type for "nested in whatever container was registered", and users read their own fields of
# it.
Nest: TypeAlias = Any
