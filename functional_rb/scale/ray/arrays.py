"""A client's arrays: what it is given as NumPy's, and what it gives as those of its backend."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from functional_rb.base import dtypes, nest
from functional_rb.buffer import checks
from functional_rb.scale.ray.blocks import ALIGNMENT, Array
from functional_rb.specs import ArraySpec

JAX, TORCH = "jax_backend", "torch_backend"


class NumPyArrays:
    """Of a client without a backend: samples are arrays of NumPy, and so may be what is given."""

    name: str | None = None

    def given(self, array: Array) -> Any:
        """An array of the backend, in the same memory where it can be."""
        return array

    def build_mapping(self, container: Any, parts: Mapping[str, object], batch: tuple[int, ...]) -> Any:
        """What came as a dict or the like: a dict."""
        return parts


class BackendArrays(NumPyArrays):
    """Of a client of JAX or torch."""

    def __init__(self, backend: ModuleType) -> None:
        """Take the backend."""
        self.name, self._backend = backend.__name__, backend
        self._picky = self.name == JAX  # XLA takes over memory at certain addresses alone
        self._own_mapping = importlib.import_module(f"{self.name}.engines.execute").build_mapping

    def build_mapping(self, container: Any, parts: Mapping[str, object], batch: tuple[int, ...]) -> Any:
        """What the backend makes of a nest's parts: also TensorDicts, and what is registered."""
        return self._own_mapping(container, parts, batch)

    def given(self, array: Array) -> Any:
        """An array of the backend, in the same memory where it can be; objects stay in one of NumPy."""
        if array.dtype.hasobject:
            return array
        aligned = array.ctypes.data % ALIGNMENT == 0 and array.flags.c_contiguous
        return self._backend.from_dlpack(array, copy=self._picky and not aligned)


def arrays_of(backend: object) -> NumPyArrays:
    """How a client's arrays are made.

    Args:
        backend: `jax_backend` or `torch_backend`, or its name; None for NumPy's.

    Raises:
        TypeError: for anything else.
    """
    if backend is None:
        return NumPyArrays()
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", None)
    if name not in (JAX, TORCH):
        raise TypeError(
            f"frb.ray: backend: expected the module jax_backend or torch_backend, or None for NumPy, got {backend!r}"
        )
    return BackendArrays(importlib.import_module(name))


def convert(leaf: object, expected: ArraySpec, name: str) -> Array:
    """A leaf that is to be added as an array of NumPy: of arrays of any library in the host's memory, or a number."""
    if isinstance(leaf, bool | int | float | complex) and expected.shape == ():
        dtypes.check_scalar(leaf, expected.dtype, name)
        return np.asarray(leaf, expected.dtype)
    array = as_numpy(leaf, f"leaf {name!r}")
    checks.check_numpy(name, array)
    checks.check_dtype(name, array, expected.dtype)
    return array


def as_numpy(array: object, what: str) -> Array:
    """Any library's array as one of NumPy.

    Raises:
        TypeError: for what is no array, or not in the memory of the host.
    """
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


def optional(array: object, name: str, dtype: str) -> Array | None:
    """Masks and priorities; numbers of another kind of float are taken if float32 has them exactly."""
    if array is None:
        return None
    found = np.asarray(array) if isinstance(array, list) else as_numpy(array, name)
    if dtype == "float32" and found.dtype.kind in "iuf" and found.dtype != np.float32:
        exact = found.astype(np.float32)
        if np.array_equal(exact.astype(np.float64), found.astype(np.float64), equal_nan=True):
            return exact
    return found


def words_of(key: object) -> tuple[int, ...]:
    """What a key says, as numbers: one of either backend, or a plain seed.

    Raises:
        TypeError: for what is no key.

    Example:
        >>> words_of(7)
        (7,)
    """
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return (int(key) % 2**64,)
    data = key
    if str(getattr(key, "dtype", "")).startswith("key<"):
        data = sys.modules["jax"].random.key_data(key)
    found = as_numpy(data, "key") if hasattr(data, "dtype") else None
    if found is None or found.dtype.kind not in "iu":
        raise TypeError(f"sample: key: expected rb.key(seed), or a seed as an int, got {type(key).__name__}")
    return tuple(int(word) % 2**64 for word in found.reshape(-1))


def unflatten(structure: nest.Structure, leaves: list[Any], build: Callable[..., Any], batch: tuple[int, ...]) -> Any:
    """Leaves put back into their containers."""
    return nest.unflatten(structure, leaves, build, batch)
