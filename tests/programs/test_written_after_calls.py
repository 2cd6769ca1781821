"""What a function of JAX's is given may be written to as soon as it returns, as a program does that reuses its memory.

JAX itself reads arrays of NumPy's in the background, once what was dispatched before is done: `jnp.array` too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend as rb

ROWS, WIDTH = 256, 64
SPEC = frb.BufferSpec({"x": frb.Unbounded((WIDTH,))}, ROWS)
EMPTY = {name: np.array(array) for name, array in rb.state_dict(rb.init(SPEC)).items()}
ADD = rb.jit(rb.add)


@jax.jit
def long(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 60, lambda _, x: jnp.tanh(x @ x), x)


class Exporter:
    """An array of another library's."""

    def __init__(self, array: Any) -> None:
        self.dtype, self.shape, self._array = array.dtype, array.shape, array

    def __dlpack__(self, **how: Any) -> Any:
        return self._array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def loaded(given: Any) -> Any:
    counters = EMPTY["counters"].copy()
    counters[:2] = ROWS
    state = rb.load_state_dict(SPEC, EMPTY | {"rows": given, "counters": counters})
    return rb.items(state)["x"]


def ahead(given: Any) -> Any:
    state = rb.init(SPEC)
    return rb.items(ADD.lower(state, {"x": given}).compile()(state, {"x": given}))["x"]


WAYS: dict[str, Callable[[Any], Any]] = {
    "add": lambda given: rb.items(rb.add(rb.init(SPEC), {"x": given}))["x"],
    "rb.jit": lambda given: rb.items(ADD(rb.init(SPEC), {"x": given}))["x"],
    "rb.jit, ahead of time": ahead,
    "from_dlpack, of NumPy": lambda given: rb.from_dlpack({"x": given}, copy=True)["x"],
    "from_dlpack, of torch": lambda given: rb.from_dlpack({"x": torch.from_numpy(given)}, copy=True)["x"],
    "from_dlpack, of others": lambda given: rb.from_dlpack({"x": Exporter(given)}, copy=True)["x"],
    "load_state_dict, of NumPy": lambda given: loaded(given.view(np.int32)),
    "load_state_dict, of torch": lambda given: loaded(torch.from_numpy(given.view(np.int32))),
    "texts": lambda given: rb.text.gae(given, np.zeros((ROWS, WIDTH + 1), np.float32), given == given).advantages,
}


NODES = frb.trees.TreeSpec(node=(frb.Unbounded((WIDTH,)),), capacity=2, children=2)
ROOTS = np.zeros((ROWS, 2), np.float32), np.zeros(ROWS, np.float32)
WAYS["trees"] = lambda given: jax.lax.bitcast_convert_type(
    rb.init(NODES, items=frb.trees.Expansion((given,), *ROOTS)).rows[:, 0], jnp.float32
)


def aligned() -> np.ndarray:
    """Memory that JAX takes as it is, without a copy of its own."""
    memory = np.empty(4 * ROWS * WIDTH + 64, np.uint8)
    first = -memory.ctypes.data % 64
    return memory[first : first + 4 * ROWS * WIDTH].view(np.float32).reshape(ROWS, WIDTH)


@pytest.mark.parametrize("way", WAYS)
def test_memory_that_is_given_can_be_written_to_at_once(way: str) -> None:
    work, given = WAYS[way], aligned()
    given[:] = 0
    jax.block_until_ready((work(given), long(jnp.ones((200, 200)))))  # compiled
    for value in range(1, 4):
        given[:] = value
        long(jnp.ones((200, 200)))
        result = work(given)
        given[:] = -1
        assert (np.asarray(result) == value).all()
