"""Draws of single items from several lanes by the native code: the core's bits, whatever the lanes hold."""

from __future__ import annotations

import re
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

import functional_rb as frb
import jax_backend
from tests.support import backends
from tests.support.backends import needs_native
from tests.support.compiled_programs import big_copies
from tests.support.effort import effort
from tests.support.histories import beginning_at
from tests.support.xla_options import AS_USERS

ITEM = {"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((3,)), "image": frb.Bounded(0, 255, (40, 40), "uint8")}
SAMPLERS = [frb.Uniform(), frb.Prioritized(alpha=0.7), frb.Prioritized(alpha=1.0, beta=1.0, new_priority="ever")]
FIELDS = ("indices", "weights", "probabilities")


def steps(rng: np.random.Generator, n: int, lanes: int) -> dict[str, Any]:
    """Steps [n, lanes], every item another."""
    x = rng.standard_normal((n, lanes, 3)).astype(np.float32)
    images = rng.integers(0, 255, (n, lanes, 40, 40)).astype(np.uint8)
    return {"id": rng.integers(0, 1000, (n, lanes)).astype(np.int32), "x": x, "image": images}


def told(backend: Any, sample: Any) -> list[bytes]:
    items = [backend.numpy(sample.items[name]) for name in ITEM]
    return [x.tobytes() for x in (*items, *(backend.numpy(getattr(sample, field)) for field in FIELDS))]


@pytest.mark.parametrize("name", ["torch", "jax-host"])
@hypothesis.settings(max_examples=effort(30, 500))
@hypothesis.given(data=st.data())
def test_draws_are_the_cores(name: str, data: st.DataObject) -> None:
    """Lanes of all lengths, some of them empty, whose numbers begin again; from older states too."""
    lanes, length = data.draw(st.integers(2, 7), "lanes"), data.draw(st.sampled_from([1, 2, 5, 70]), "length")
    spec = frb.BufferSpec(ITEM, lanes * length, data.draw(st.sampled_from(SAMPLERS), "sampler"), lanes=lanes)
    rng = np.random.default_rng(data.draw(st.integers(0, 99), "seed"))
    with backends.make(name) as backend:
        behind = data.draw(st.sampled_from([0, 1, length + 1]), "behind")
        limit = spec.plan.ring.limit
        state, kept = beginning_at(backend, backend.init(spec), (limit - behind) % limit), []
        for turn in range(data.draw(st.integers(1, 4), "turns")):
            n = data.draw(st.integers(1, 2 * length + 1), "steps")
            mask = rng.random((n, lanes)) < rng.choice([0.0, 0.3, 1.0], lanes)
            mask[0, turn % lanes] = True
            state = backend.add(state, steps(rng, n, lanes), mask)
            kept.append(state)
            for drawn_from in kept:
                found = backend.sample(drawn_from, backend.rb.key(turn), 37)[1]
                with frb.kernels(False):
                    expected = backend.sample(drawn_from, backend.rb.key(turn), 37)[1]
                assert told(backend, found) == told(backend, expected)
            if spec.sampler.has_priorities:
                new = rng.choice([0.0, 1e-3, 1.0, 50.0], 37).astype(np.float32)
                state = backend.update(state, found.indices, new)


@needs_native
@pytest.mark.parametrize("sampler", SAMPLERS[:2], ids=["uniform", "prioritized"])
def test_on_jax_a_draw_is_one_kernel_after_its_bits(sampler: Any) -> None:
    """Whatever the capacity, and with nothing copied."""
    rng, programs = np.random.default_rng(0), []
    for length in (16, 2048):
        spec = frb.BufferSpec(ITEM, 3 * length, sampler, lanes=3)
        state = jax_backend.add(jax_backend.init(spec), steps(rng, 11, 3))
        key = jax_backend.key(0)

        def draw(state: frb.State, key: jax.Array) -> Any:
            return jax_backend.sample(state, key, 20)[1]

        program = jax.jit(draw).lower(state, key).compile(AS_USERS)
        calls = re.findall(r"custom_call_target=\"functional_rb_(\w+)\"", program.as_text())
        assert [call for call in calls if call != "barrier"] == ["threefry", "draw"]
        assert big_copies(program.as_text(), spec.capacity) == []
        with frb.kernels(False):
            expected = jax.tree.map(np.asarray, draw(state, key))
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, program(state, key)), expected)
        programs.append(calls)
    assert programs[0] == programs[1]


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
