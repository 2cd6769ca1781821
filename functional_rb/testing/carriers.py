"""What carries the functions of a buffer out: the core over the array operations of NumPy, torch and JAX.

All of them take and return NumPy's arrays, so that results can be compared bit for bit.
"""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.buffer import functions
from functional_rb.ops import numpy_ops

IN_PLACE, VALUES = "the core on NumPy, in place", "the core on NumPy, whose arrays are values"


def mapped(function: Callable[[Nest], object], nest: Nest) -> Nest:
    """A nest of tuples, lists and dicts in which each leaf is what a function makes of it."""
    if isinstance(nest, tuple | list):
        children = [mapped(function, child) for child in nest]
        return type(nest)(*children) if hasattr(nest, "_fields") else type(nest)(children)
    if isinstance(nest, dict):
        return {name: mapped(function, child) for name, child in nest.items()}
    return function(nest)


def named(nest: Nest, name: str) -> dict[str, NumpyArray]:
    """The arrays of a nest by names such as "tree" or "auxiliary['times']"."""
    if hasattr(nest, "_fields"):
        return {k: x for field in nest._fields for k, x in named(getattr(nest, field), f"{name}.{field}").items()}
    if isinstance(nest, tuple | list):
        return {k: x for i, child in enumerate(nest) for k, x in named(child, f"{name}[{i}]").items()}
    if isinstance(nest, dict):
        return {k: x for key, child in nest.items() for k, x in named(child, f"{name}[{key!r}]").items()}
    return {} if nest is None else {name: np.asarray(nest)}


def _written(write: Callable[..., NumpyArray], x: NumpyArray, index: NumpyArray, values: NumpyArray) -> NumpyArray:
    written = write(x.copy(), index, values)
    written.setflags(write=False)
    return written


def as_numpy(x: object) -> Nest:
    """A copy of an array of any backend; None stays None."""
    if x is None:
        return None
    return np.array(x.detach().cpu().numpy() if hasattr(x, "detach") else x)


class Carrier(NamedTuple):
    """What carries out functions of the core."""

    name: str
    # Calls the function of a name in `functional_rb.buffer.functions` with the other arguments, on NumPy's arrays.
    run: Callable[..., Nest]


def on_numpy(name: str) -> Carrier:
    """The core over NumPy's operations: on copies that are written in place, or on arrays that cannot be written."""
    ops: Any = numpy_ops
    if name == VALUES:
        ops = types.SimpleNamespace(**vars(numpy_ops))
        ops.set_at = functools.partial(_written, numpy_ops.set_at)
        ops.set_flat = functools.partial(_written, numpy_ops.set_flat)

    def argument(x: object) -> object:
        if not isinstance(x, np.ndarray):
            return x
        copied = numpy_ops.copy(x)
        copied.setflags(write=name == IN_PLACE)
        return copied

    def run(function: str, *arguments: object) -> Nest:
        result = getattr(functions, function)(ops, *mapped(argument, arguments))
        return mapped(lambda x: None if x is None else np.asarray(x), result)

    return Carrier(name, run)


def on_torch() -> Carrier:
    """The core over torch's operations, eagerly, on the device that torch takes by default."""
    torch, ops = importlib.import_module("torch"), importlib.import_module("torch_backend.arrays.ops")

    def tensor(x: object) -> object:
        return torch.from_numpy(x.copy()).to(torch.get_default_device()) if isinstance(x, np.ndarray) else x

    def run(function: str, *arguments: object) -> Nest:
        result = getattr(functions, function)(ops, *mapped(tensor, arguments))
        return mapped(lambda x: as_numpy(x) if isinstance(x, torch.Tensor) else x, result)

    return Carrier("the core on torch", run)


def on_jax() -> Carrier:
    """The core over JAX's operations, under `jit`; each program is compiled once."""
    jax, ops = importlib.import_module("jax"), importlib.import_module("jax_backend.arrays.ops")
    importlib.import_module("jax_backend")
    programs: dict[object, Callable[..., Nest]] = {}

    def run(function: str, *arguments: object) -> Nest:
        leaves, outline = jax.tree.flatten(arguments)
        static = tuple(None if isinstance(x, np.ndarray) else x for x in leaves)
        if (function, outline, static) not in programs:

            def program(arrays: Nest) -> Nest:
                both = [array if known is None else known for array, known in zip(arrays, static, strict=True)]
                return getattr(functions, function)(ops, *jax.tree.unflatten(outline, both))

            programs[function, outline, static] = jax.jit(program)
        arrays = [x if known is None else None for x, known in zip(leaves, static, strict=True)]
        return jax.tree.map(np.asarray, programs[function, outline, static](arrays))

    return Carrier("the core on JAX, under jit", run)
