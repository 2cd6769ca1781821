"""Draws of single items from several lanes on JAX: one kernel, whatever the capacity, and for a stack of buffers."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest

import functional_rb as frb
import jax_backend
from tests.support.backends import needs_native
from tests.support.compiled_programs import big_copies
from tests.support.xla_options import AS_USERS

ITEM = {"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((3,)), "image": frb.Bounded(0, 255, (40, 40), "uint8")}


def steps(rng: np.random.Generator, n: int, lanes: int) -> dict[str, Any]:
    """Steps [n, lanes], every item another."""
    x = rng.standard_normal((n, lanes, 3)).astype(np.float32)
    images = rng.integers(0, 255, (n, lanes, 40, 40)).astype(np.uint8)
    return {"id": rng.integers(0, 1000, (n, lanes)).astype(np.int32), "x": x, "image": images}


@needs_native
@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.Prioritized(alpha=0.7)], ids=["uniform", "prioritized"])
def test_on_jax_a_draw_is_one_kernel(sampler: Any) -> None:
    """Whatever the capacity, and with nothing copied."""
    rng = np.random.default_rng(0)
    for length in (16, 2048):
        spec = frb.BufferSpec(ITEM, 3 * length, sampler, lanes=3)
        state = jax_backend.add(jax_backend.init(spec), steps(rng, 11, 3))
        key = jax_backend.key(0)

        def draw(state: frb.State, key: jax.Array) -> Any:
            return jax_backend.sample(state, key, 20)[1]

        program = jax.jit(draw).lower(state, key).compile(AS_USERS)
        calls = re.findall(r"custom_call_target=\"functional_rb_(\w+)\"", program.as_text())
        assert calls == ["draw"]
        assert big_copies(program.as_text(), spec.capacity) == []
        with frb.kernels(False):
            expected = jax.tree.map(np.asarray, draw(state, key))
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, program(state, key)), expected)


def test_a_stack_of_buffers_is_drawn_from_in_one_call() -> None:
    rng = np.random.default_rng(0)
    spec = frb.BufferSpec(ITEM, 30, frb.Prioritized(), lanes=3)
    ones = [jax_backend.add(jax_backend.init(spec), steps(rng, n, 3)) for n in (4, 13)]
    states = jax.tree.map(lambda *x: jax.numpy.stack(x), *ones)
    keys = jax_backend.split(jax_backend.key(0), 2)
    found = jax.vmap(lambda state, key: jax_backend.sample(state, key, 9)[1])(states, keys)
    for k, one in enumerate(ones):
        expected = jax_backend.sample(one, keys[k], 9)[1]
        jax.tree.map(lambda x, y, k=k: np.testing.assert_array_equal(x[k], y), found, expected)
