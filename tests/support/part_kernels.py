"""Functions of the core carried out by part kernels, on each library."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_backend.arrays.ops as jax_ops
import torch_backend.arrays.ops as torch_ops
from functional_rb.ops import numpy_ops
from functional_rb.ops.part_kernels import Table, using
from functional_rb.storage import host_kernels as numpy_kernels
from jax_backend.kernels import part_kernels as jax_kernels
from tests.support.backends import _torch_array, _torch_numpy
from tests.support.xla_options import AS_USERS
from torch_backend.kernels import cpu_kernels as torch_kernels
from torch_backend.kernels import custom_ops


def _by(ops: Any, table: Table, function: Callable[..., Any]) -> Callable[..., Any]:
    def carried_out(*args: Any, **named: Any) -> Any:
        with using(table), np.errstate(all="ignore"):
            return function(ops, *args, **named)

    return carried_out


class Jax:
    """Both forms of a function of `ops` and arrays as functions of the arrays, compiled by JAX."""

    ops = jax_ops
    array = staticmethod(jnp.asarray)
    numpy = staticmethod(np.asarray)

    options: Any = AS_USERS  # else XLA changes NaNs in bfloat16

    @classmethod
    def plain(cls, function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(_by(jax_ops, {}, function), compiler_options=cls.options)

    @classmethod
    def kernels(cls, function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(jax_by_kernels(function), compiler_options=cls.options)


class QuickJax(Jax):
    """Compiled quickly, for functions of whole numbers, which nothing rounds: in two thirds of the time."""

    options: Any = None


class Torch:
    """Both forms on torch, as they come."""

    ops = torch_ops
    array = staticmethod(lambda x: _torch_array(x).cpu())  # which kernels read, also where the suite runs on a GPU
    numpy = staticmethod(_torch_numpy)

    @staticmethod
    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        return _by(torch_ops, {}, function)

    @staticmethod
    def kernels(function: Callable[..., Any]) -> Callable[..., Any]:
        return torch_by_kernels(function)


class Operations(Torch):
    """The kernels as the operations that torch.compile records."""

    @staticmethod
    def kernels(function: Callable[..., Any]) -> Callable[..., Any]:
        return _by(torch_ops, custom_ops.TABLE, function)


class Numpy:
    """Both forms on NumPy, as they come."""

    ops = numpy_ops
    array = staticmethod(np.array)
    numpy = staticmethod(np.asarray)

    @staticmethod
    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        return _by(numpy_ops, {}, function)

    @staticmethod
    def kernels(function: Callable[..., Any]) -> Callable[..., Any]:
        return _by(numpy_ops, numpy_kernels.TABLE, function)


def jax_by_kernels(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `ops` and others as one of the others, not compiled."""
    return _by(jax_ops, jax_kernels.TABLE, function)


def torch_by_kernels(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `ops` and others as one of the others."""
    return _by(torch_ops, torch_kernels.TABLE, function)


def assert_same(on: Any, ours: Any, theirs: Any) -> None:
    """The same shape, dtype and bytes."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert on.numpy(ours).tobytes() == on.numpy(theirs).tobytes()


def forms(on: Any, function: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A function of `ops` and arrays as one of the arrays: on plain primitives, and by kernels."""
    return on.plain(function), on.kernels(function)


def assert_same_parts(on: Any, ours: Any, theirs: Any) -> None:
    """Nests of the same shapes, dtypes and bytes, with the same places empty."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for new, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert_same(on, new, expected)


def random_values(rng: np.random.Generator, n: int) -> np.ndarray[Any, Any]:
    """What leaves may hold: zero, and anything from the smallest to the largest."""
    values = rng.choice([0.0, 2.0**-100, 2.0**95, 1.0], n)
    return np.where(rng.random(n) < 0.8, 2.0 ** rng.uniform(-40, 20, n), values).astype(np.float32)


def custom_calls(text: str) -> set[str]:
    """The kernels that a compiled program calls."""
    return set(re.findall(r'custom_call_target="functional_rb_(\w+)"', text))
