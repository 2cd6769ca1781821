"""What carries the functions of a buffer out: the core over the array operations of NumPy, torch and JAX.

All of them take and return NumPy's arrays, so that results can be compared bit for bit.
"""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.base.extras import is_there
from functional_rb.buffer import functions
from functional_rb.ops import numpy_ops

IN_PLACE, VALUES = "the core on NumPy, in place", "the core on NumPy, whose arrays are values"


def mapped(function: Callable[[Nest], object], nest: Nest) -> Nest:
    """A nest of tuples, lists and dicts in which each leaf is what a function makes of it."""
    if isinstance(nest, tuple | list):
        parts = [mapped(function, part) for part in nest]
        return type(nest)(*parts) if hasattr(nest, "_fields") else type(nest)(parts)
    if isinstance(nest, dict):
        return {name: mapped(function, part) for name, part in nest.items()}
    return function(nest)


def named(nest: Nest, name: str) -> dict[str, NumpyArray]:
    """The arrays of a nest by names such as "tree" or "auxiliary['times']"."""
    if hasattr(nest, "_fields"):
        return {k: x for field in nest._fields for k, x in named(getattr(nest, field), f"{name}.{field}").items()}
    if isinstance(nest, tuple | list):
        return {k: x for i, part in enumerate(nest) for k, x in named(part, f"{name}[{i}]").items()}
    if isinstance(nest, dict):
        return {k: x for key, part in nest.items() for k, x in named(part, f"{name}[{key!r}]").items()}
    return {} if nest is None else {name: np.asarray(nest)}


def _written(write: Callable[..., NumpyArray], x: NumpyArray, index: NumpyArray, values: NumpyArray) -> NumpyArray:
    made = write(x.copy(), index, values)
    made.setflags(write=False)
    return made


def as_numpy(x: object) -> Nest:
    """A copy of an array of any backend; None stays None."""
    if x is None:
        return None
    return np.array(x.detach().cpu().numpy() if hasattr(x, "detach") else x)


class Carrier(Protocol):
    """What carries out functions of the core."""

    name: str

    def run(self, name: str, *arguments: object) -> Nest:
        """What the function of that name in `functional_rb.buffer.functions` gives, in arrays of NumPy."""


class NumpyCarrier:
    """The core over NumPy's operations: on copies that are written in place, or on arrays that cannot be written."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ops: Any = numpy_ops
        if name == VALUES:
            self.ops = types.SimpleNamespace(**vars(numpy_ops))
            self.ops.set_at = functools.partial(_written, numpy_ops.set_at)
            self.ops.set_flat = functools.partial(_written, numpy_ops.set_flat)

    def _argument(self, x: object) -> object:
        if not isinstance(x, np.ndarray):
            return x
        copied = numpy_ops.copy(x)
        copied.setflags(write=self.name == IN_PLACE)
        return copied

    def run(self, name: str, *arguments: object) -> Nest:
        """See `Carrier`."""
        result = getattr(functions, name)(self.ops, *mapped(self._argument, arguments))
        return mapped(lambda x: None if x is None else np.asarray(x), result)


class TorchCarrier:
    """The core over torch's operations, eagerly, on the device that torch takes by default."""

    def __init__(self) -> None:
        self.name = "the core on torch"
        self.torch = importlib.import_module("torch")
        self.ops = importlib.import_module("torch_backend.arrays.ops")

    def run(self, name: str, *arguments: object) -> Nest:
        """See `Carrier`."""
        torch = self.torch

        def tensor(x: object) -> object:
            return torch.from_numpy(x.copy()).to(torch.get_default_device()) if isinstance(x, np.ndarray) else x

        result = getattr(functions, name)(self.ops, *mapped(tensor, arguments))
        return mapped(lambda x: as_numpy(x) if isinstance(x, torch.Tensor) else x, result)


class JaxCarrier:
    """The core over JAX's operations, under `jit`; each program is compiled once."""

    def __init__(self) -> None:
        self.name = "the core on JAX, under jit"
        self.jax = importlib.import_module("jax")
        self.ops = importlib.import_module("jax_backend.arrays.ops")
        importlib.import_module("jax_backend")
        self.programs: dict[object, Callable[..., Nest]] = {}

    def run(self, name: str, *arguments: object) -> Nest:
        """See `Carrier`."""
        jax = self.jax
        leaves, outline = jax.tree.flatten(arguments)
        static = tuple(None if isinstance(x, np.ndarray) else x for x in leaves)
        if (name, outline, static) not in self.programs:

            def program(arrays: Nest) -> Nest:
                both = [array if known is None else known for array, known in zip(arrays, static, strict=True)]
                return getattr(functions, name)(self.ops, *jax.tree.unflatten(outline, both))

            self.programs[name, outline, static] = jax.jit(program)
        arrays = [x if known is None else None for x, known in zip(leaves, static, strict=True)]
        return jax.tree.map(np.asarray, self.programs[name, outline, static](arrays))


def installed(backend: str) -> bool:
    """Whether a backend, "jax" or "torch", can be imported."""
    return is_there(backend)
