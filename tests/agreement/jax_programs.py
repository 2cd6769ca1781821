"""What tests of kernels for GPUs on JAX have in common: batches of one item, and programs that give the same twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functional_rb as frb
from tests.agreement import gpu_on_xla
from tests.support.effort import effort

GPU: Final = jax.default_backend() == "gpu"
cuda = pytest.mark.skipif(not GPU, reason="no CUDA device")
ITEM = {
    "x": frb.Unbounded((3,)),
    "n": frb.Unbounded((), "int32"),
    "done": frb.Binary(()),
    "tiny": frb.Unbounded((5,), "int8"),
    "half": frb.Unbounded((2,), "bfloat16"),
    "image": frb.Unbounded((1100,), "uint8"),
    "none": frb.Unbounded((0, 2)),
}
UNUSUAL = (np.nan, -1.0, np.inf, 0.0, -0.0, 1e-40, 3.0, 1e30, 1e-30)


def items(seed: int, *lead: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def array(shape: tuple[int, ...], dtype: str) -> Any:
        numbers = rng.integers(0, 2 if dtype == "bool" else 100, (*lead, *shape))
        return jnp.asarray(numbers.astype(jnp.dtype(dtype)))  # converted by NumPy, which compiles nothing

    return {name: array(leaf.shape, leaf.dtype) for name, leaf in ITEM.items()}


def mask(seed: int, *shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(seed).random(shape) < 0.6)


def priorities(seed: int, *shape: int) -> Any:
    rng = np.random.default_rng(seed)
    numbers = rng.random(shape, np.float32).reshape(-1)
    numbers[: len(UNUSUAL)] = UNUSUAL[: numbers.size]
    return jnp.asarray(rng.permutation(numbers).reshape(shape))


def bits(tree: Any) -> list[tuple[str, bytes]]:
    """All arrays, of a state too."""
    named = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path), np.asarray(x).tobytes()) for path, x in named if isinstance(x, jax.Array)]


def stacked(*each: Any) -> Any:
    return jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *each)


def otherwise() -> AbstractContextManager[None]:
    """By the core, or by the kernels of the CPU, which other tests hold to it and which are compiled faster."""
    return frb.kernels(False) if effort(False, True) else gpu_on_xla.by_the_cpu()


def agreeing(
    program: Callable[[frb.BufferSpec], Any], spec: frb.BufferSpec, kernels: AbstractContextManager[Any]
) -> Any:
    """What was launched by a program that gives the same with kernels for GPUs and without."""
    with otherwise():
        expected = bits(program(spec))
    with kernels as told:
        found = bits(program(spec))
    assert found == expected
    return told
