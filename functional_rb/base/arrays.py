"""The types of arrays, and of what is made of them, that annotations everywhere use.

A docstring, or a comment behind a field, gives an array's shape: `[B, *shape]` are B rows of a leaf's own shape,
`[T, lanes]` are T steps of each lane, and `[n]` is a vector. A scalar is called one. A shape is said in one place only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, Self, TypeAlias, overload

import numpy as np

# The other side of an operator, or an index: numbers, and arrays of the same library, which has no name for both.
Operand: TypeAlias = Any


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
    def dtype(self) -> Any:
        """What the library has for dtypes; `base.dtypes.name_of` gives the name that all have in common."""

    @property
    def device(self) -> Any:
        """Where it lies, in the library's own terms."""

    @property
    def T(self) -> Self:
        """The matrix with its two axes exchanged."""

    @overload
    def reshape(self, shape: tuple[int, ...], /) -> Self: ...
    @overload
    def reshape(self, first: int, /, *rest: int) -> Self: ...
    def cumsum(self, axis: int, /) -> Self:
        """Running sums along an axis."""

    def sum(self) -> Self:
        """The sum of all elements."""

    def all(self) -> Any:
        """Whether all elements are true: a scalar, which in NumPy is no array."""

    def any(self) -> Any:
        """Whether any element is true: a scalar, which in NumPy is no array."""

    def tolist(self) -> Any:
        """Python numbers in nested lists; of a scalar the number."""

    def __getitem__(self, index: Operand, /) -> Self: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __bool__(self) -> bool: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __index__(self) -> int: ...
    def __add__(self, other: Operand, /) -> Self: ...
    def __radd__(self, other: Operand, /) -> Self: ...
    def __sub__(self, other: Operand, /) -> Self: ...
    def __rsub__(self, other: Operand, /) -> Self: ...
    def __mul__(self, other: Operand, /) -> Self: ...
    def __rmul__(self, other: Operand, /) -> Self: ...
    def __truediv__(self, other: Operand, /) -> Self: ...
    def __rtruediv__(self, other: Operand, /) -> Self: ...
    def __floordiv__(self, other: Operand, /) -> Self: ...
    def __mod__(self, other: Operand, /) -> Self: ...
    def __pow__(self, other: Operand, /) -> Self: ...
    def __and__(self, other: Operand, /) -> Self: ...
    def __rand__(self, other: Operand, /) -> Self: ...
    def __or__(self, other: Operand, /) -> Self: ...
    def __ror__(self, other: Operand, /) -> Self: ...
    def __xor__(self, other: Operand, /) -> Self: ...
    def __lshift__(self, other: Operand, /) -> Self: ...
    def __rshift__(self, other: Operand, /) -> Self: ...
    def __neg__(self) -> Self: ...
    def __abs__(self) -> Self: ...
    def __invert__(self) -> Self: ...
    def __eq__(self, other: Operand, /) -> Self: ...  # type: ignore[override]  # element by element
    def __ne__(self, other: Operand, /) -> Self: ...  # type: ignore[override]  # element by element
    def __lt__(self, other: Operand, /) -> Self: ...
    def __le__(self, other: Operand, /) -> Self: ...
    def __gt__(self, other: Operand, /) -> Self: ...
    def __ge__(self, other: Operand, /) -> Self: ...


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
