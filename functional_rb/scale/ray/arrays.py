"""A client's arrays: what it is given as NumPy's, and what it gives as those of its backend."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.arrays import Array, Nest, NumpyArray
from functional_rb.buffer import checks
from functional_rb.lib import Lib
from functional_rb.scale.ray.blocks import ALIGNMENT
from functional_rb.specs import ArraySpec

JAX, TORCH = "jax_backend", "torch_backend"


class NumPyArrays:
    """How a client without a backend makes arrays: its samples are of NumPy, and so may be what it adds."""

    name: str | None = None

    def from_numpy(self, array: NumpyArray) -> Array:
        """An array of the backend, in the same memory where it can be."""
        return array

    def build_mapping(self, container: type | None, parts: Mapping[str, object], batch: tuple[int, ...]) -> Nest:
        """A nest's parts as they are, in a dict, whatever container they came in."""
        return parts


class BackendArrays(NumPyArrays):
    """How a client of JAX or torch makes arrays."""

    def __init__(self, backend: ModuleType) -> None:
        self.name, self._backend = backend.__name__, backend
        self._lib: Lib[Array] = importlib.import_module(f"{self.name}.lib").LIB

    def build_mapping(self, container: type | None, parts: Mapping[str, object], batch: tuple[int, ...]) -> Nest:
        """A nest's parts in their container, as the backend makes it: also TensorDicts, and what is registered."""
        return self._lib.build_mapping(container, parts, batch)

    def from_numpy(self, array: NumpyArray) -> Array:
        """An array of the backend, in the same memory where it can be; objects stay in one of NumPy."""
        if array.dtype.hasobject:
            return array
        # XLA takes over memory at certain addresses alone.
        aligned = array.ctypes.data % ALIGNMENT == 0 and array.flags.c_contiguous
        converted: Array = self._backend.from_dlpack(array, copy=self.name == JAX and not aligned)
        return converted


def arrays_of(backend: object) -> NumPyArrays:
    """How the arrays of a client of this backend are made."""
    if backend is None:
        return NumPyArrays()
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", None)
    if name not in (JAX, TORCH):
        raise TypeError(
            f"frb.ray: backend: expected the module jax_backend or torch_backend, or None for NumPy, got {backend!r}"
        )
    return BackendArrays(importlib.import_module(name))


def convert(leaf: object, expected: ArraySpec, name: str) -> NumpyArray:
    """A leaf that is to be added as an array of NumPy: of arrays of any library in the host's memory, or a number."""
    if isinstance(leaf, bool | int | float | complex) and expected.shape == ():
        dtypes.check_scalar(leaf, expected.dtype, name)
        return np.asarray(leaf, expected.dtype)
    array = as_numpy(leaf, f"leaf {name!r}")
    checks.check_numpy(name, array)
    checks.check_dtype(name, array, expected.dtype)
    return array


def as_numpy(array: object, what: str) -> NumpyArray:
    if isinstance(array, np.ndarray | np.generic):
        return np.asarray(array)
    if not hasattr(array, "dtype"):
        raise TypeError(f"{what}: expected an array, got {type(array).__name__}; make one of it")
    try:
        if hasattr(array, "detach"):
            array = array.detach()
        return np.asarray(array)
    except (TypeError, RuntimeError) as error:
        raise TypeError(f"{what}: expected an array in the host's memory: {error}") from None


def optional(array: object, name: str, dtype: str) -> NumpyArray | None:
    """A mask or priorities as an array of NumPy; numbers of another dtype are taken if float32 has them exactly."""
    if array is None:
        return None
    numbers = np.asarray(array) if isinstance(array, list) else as_numpy(array, name)
    if dtype == "float32" and numbers.dtype.kind in "iuf" and numbers.dtype != np.float32:
        exact = numbers.astype(np.float32)
        if np.array_equal(exact.astype(np.float64), numbers.astype(np.float64), equal_nan=True):
            return exact
    return numbers


def words_of(key: object) -> tuple[int, ...]:
    """What a key says, as numbers: one of either backend, or a plain seed.

    Example:
        >>> words_of(7)
        (7,)
    """
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return (int(key) % 2**64,)
    data = key
    if str(getattr(key, "dtype", "")).startswith("key<"):
        data = sys.modules["jax"].random.key_data(key)
    words = as_numpy(data, "key") if hasattr(data, "dtype") else None
    if words is None or words.dtype.kind not in "iu":
        raise TypeError(f"sample: key: expected rb.key(seed), or a seed as an int, got {type(key).__name__}")
    return tuple(int(word) % 2**64 for word in words.reshape(-1))
