"""Values of specs on JAX, as `functional_rb.lib.Lib` names these functions: each compiled for a spec and shapes."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import numpy as np

from functional_rb.base.arrays import DeviceLike, NumpyArray
from functional_rb.specs import ArraySpec, values
from functional_rb.specs.values import Outline
from jax_backend.arrays import ops
from jax_backend.arrays.keys import check_key
from jax_backend.compiling import compile
from jax_backend.engines.execute import inside as inside

outline = values.cached_outline


@functools.partial(jax.jit, static_argnames=("outline", "n", "kernels"), inline=True)
@compile.program
def _draw(outline: Outline, key: jax.Array, n: int, mask: jax.Array | None) -> dict[int, jax.Array]:
    bits = compile.draws(key, n, values.words(outline, mask is not None))
    return values.draw(ops.OPS, outline, bits, mask)


def draw(outline: Outline, key: jax.Array, n: int, device: DeviceLike, mask: jax.Array | None) -> dict[int, jax.Array]:
    """Random values [n, *shape], by position of the leaf."""
    check_key(key)
    selection = _draw(outline, key, n, mask, kernels=compile.use_kernels())
    return selection if device is None else jax.device_put(selection, device)


@functools.partial(jax.jit, static_argnames="outline", inline=True)
@compile.program
def nearest(outline: Outline, leaves: Sequence[jax.Array]) -> dict[int, jax.Array]:
    """The nearest values of the domain, by position of the leaf."""
    return values.nearest(ops.OPS, outline, leaves)


@functools.partial(jax.jit, static_argnames="unit", inline=True)
@compile.program
def encoded(unit: ArraySpec, value: jax.Array) -> jax.Array:
    """What is stored for an environment's numbers: `ArraySpec.encoded`."""
    stored: jax.Array = unit.encoded(ops.OPS, value)
    return stored


@functools.partial(jax.jit, static_argnames="unit", inline=True)
@compile.program
def decoded(unit: ArraySpec, x: jax.Array) -> jax.Array:
    """The numbers of an environment for stored values: `ArraySpec.decoded`."""
    numbers: jax.Array = unit.decoded(ops.OPS, x)
    return numbers


def is_traced(leaf: object) -> bool:
    """Whether a leaf is a tracer."""
    return isinstance(leaf, jax.core.Tracer)


def to_numpy(array: jax.Array) -> NumpyArray:
    """A copy of an array on the host."""
    return np.asarray(array)
