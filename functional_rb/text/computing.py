"""Where the methods of records compute: by the backend whose arrays they hold, or by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol, TypeVar

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.arrays import ArrayLike, Nest, NumpyArray
from functional_rb.base.object_arrays import is_object_array
from functional_rb.lib import library_of, more_of
from functional_rb.ops import numpy_ops
from functional_rb.ops.protocol import Array

R = TypeVar("R")
# The kinds of dtypes that become one.
_KINDS: Final = {"int32": ("int",), "bool": ("bool", "int"), "float32": ("float",)}


class Computing(Protocol):
    """What a method needs of a `TextLib`, which says more of it."""

    @property
    def converted(self) -> Callable[[ArrayLike, str, str], Array]:
        """An array of a dtype, of `(x, dtype, name)`."""

    @property
    def number(self) -> Callable[[object, str, Array], Array]:
        """A scalar, of `(x, dtype, like)`."""

    @property
    def run(self) -> Callable[..., Nest]:
        """Carries out a function of `ops` and arrays."""

    @property
    def without_gradients(self) -> Callable[[], AbstractContextManager[object]]:
        """A context in which nothing is remembered for gradients."""

    def values(self, x: Array) -> NumpyArray | None:
        """An array in NumPy; None while it is traced."""


class OnHost:
    """Computing with NumPy's arrays alone."""

    without_gradients = nullcontext

    def converted(self, x: ArrayLike, dtype: str, name: str) -> Array:
        if not isinstance(x, np.ndarray):
            raise TypeError(
                f"{name}: expected an array of NumPy or of a backend in use, got {type(x).__name__}; import "
                f"jax_backend or torch_backend for theirs"
            )
        if is_object_array(x) or dtypes.kind_of(dtypes.name_of(x.dtype)) not in _KINDS[dtype]:
            raise TypeError(f"{name}: expected dtype {dtype}, got {x.dtype}; convert it")
        return x.astype(dtype)

    def number(self, x: object, dtype: str, like: Array) -> Array:
        return np.asarray(x, dtype)

    def run(self, function: Callable[..., object], *given: object, static: tuple[object, ...] = ()) -> Nest:
        return function(numpy_ops.OPS, *given, *static)

    def values(self, x: Array) -> NumpyArray:
        return np.asarray(x)


_ON_HOST: Final = OnHost()


def computed(function: Callable[..., R], values: tuple[object, ...], *args: object) -> R:
    """What a function gives of `Computing` and its other arguments, where one of some values is an array."""
    lib = library_of(*values)
    if lib is None:
        return function(_ON_HOST, *args)
    return lib.around(function)(more_of(lib, "text"), *args)
