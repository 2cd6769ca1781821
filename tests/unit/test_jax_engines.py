"""How JAX's engines carry calls out: what is compiled anew, and which arrays are copied on their way in and out."""

from __future__ import annotations

import sys

import jax.numpy as jnp
import numpy as np
import pytest

import functional_rb as frb
import jax_backend as rb
from functional_rb.ops import numpy_ops
from jax_backend.engines import execute, shipping
from jax_backend.lib import LIB

ITEM = {"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((2,))}


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "core"])
def test_eager_calls_are_compiled_once(kernels: bool) -> None:
    """With new arrays and a new state each time, but the same shapes."""
    programs = [execute._add, execute._sample, execute._update]
    for program in programs:
        program.clear_cache()
    with frb.kernels(kernels):
        state = rb.init(frb.BufferSpec(ITEM, 14, frb.Prioritized()))
        for i in range(4):
            number = jnp.arange(i, i + 5, dtype=jnp.int32)
            x = jnp.stack([number, -number], 1).astype(jnp.float32)
            state = rb.add(state, {"id": number, "x": x}, mask=jnp.ones(5, bool))
            state, sample = rb.sample(state, rb.key(i), 4, beta=i / 4)
            state = rb.update(state, sample.indices, sample.weights, {"x": sample.items["x"]})
    assert [program._cache_size() for program in programs] == [1, 1, 1]


@pytest.mark.parametrize("n", [1, 16, 2**20])
@pytest.mark.parametrize("offset", [0, 4])
def test_what_was_given_may_be_written_to_at_once(n: int, offset: int) -> None:
    """JAX reads in the background, and takes memory that is aligned to 64 bytes as it is."""
    memory = np.zeros(4 * n + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + offset
    given = memory[begin : begin + 4 * n].view(np.float32)
    spec = frb.Unbounded((n,))
    made = [LIB.convert(given, spec, "x"), LIB.as_array(given, None)]
    for taken in (execute.convert(given, spec, "x"), execute.as_vector(given, "priorities")):
        assert not np.shares_memory(np.asarray(taken), given)
    state = rb.add(rb.init(frb.BufferSpec({"x": spec}, 2)), {"x": given})
    given[:] = 1
    for array in (*made, rb.items(state)["x"]):
        assert not np.asarray(array).any()


def test_bfloat16_without_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match=r"needs ml_dtypes: pip install '\.\[jax\]' in a checkout"):
        numpy_ops.dtype_of.__wrapped__("bfloat16")


def test_small_arrays_are_copied_and_large_ones_shared() -> None:
    small, large = np.zeros(4, np.float32), numpy_ops.zeros((shipping.SMALL + 4,), "uint8")
    objects = np.array([None, 1], object)
    first, second, third = shipping.sent([large, objects, small], None)
    assert second is objects
    assert first.unsafe_buffer_pointer() == large.ctypes.data
    assert third.unsafe_buffer_pointer() != small.ctypes.data
