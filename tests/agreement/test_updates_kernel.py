"""The kernel of updates on JAX: nothing else in a program, whatever the capacity, and one call for a stack."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functional_rb as frb
import jax_backend
from tests.support.backends import needs_native
from tests.support.compiled_programs import big_copies
from tests.support.effort import effort
from tests.support.xla_options import AS_USERS

ITEM = {"done": frb.Binary(), "id": frb.Unbounded((), "int32")}
MORE = {**ITEM, "image": frb.Unbounded((1030,), "uint8"), "reward": frb.Unbounded((2,))}
BAD = (float("nan"), float("inf"), -1.0)


def items(rng: np.random.Generator, n: int, lanes: int | None) -> dict[str, Any]:
    """Steps [n] or [n // lanes, lanes], a trajectory ending at three of ten."""
    made = {"done": rng.random(n) < 0.3, "id": np.arange(n, dtype=np.int32)}
    return {name: x if lanes is None else x.reshape(-1, lanes) for name, x in made.items()}


def filled_on_jax(sampler: Any, capacity: int, writer: Any = None) -> frb.State:
    """With what has been drawn once where that is counted."""
    spec = frb.BufferSpec(ITEM, capacity, sampler, writer or frb.RoundRobin(), lanes=2)
    key = jax_backend.key(0) if spec.writer.words else None
    state = jax_backend.add(jax_backend.init(spec), items(np.random.default_rng(0), 40, 2), key=key)
    return jax_backend.sample(state, jax_backend.key(0), 20)[0] if sampler.remembers else state


SAMPLERS = {
    "slices": frb.PrioritizedSlices(3, strict_length=False, end_keys=("done",)),
    "items": frb.Prioritized(),
    "a limit": frb.Prioritized(max_times_sampled=1),
}
WRITERS = {"a reservoir": frb.Reservoir(), "the best": frb.MaxValue("id")}
ONE_STEP = [(sampler, None) for sampler in SAMPLERS.values()] + [(SAMPLERS["items"], x) for x in WRITERS.values()]


def bits(state: frb.State) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(state)]


@needs_native
@pytest.mark.parametrize(("sampler", "writer"), ONE_STEP, ids=[*SAMPLERS, *WRITERS])
def test_on_jax_an_update_is_one_step(sampler: Any, writer: Any) -> None:
    """In a program that takes the state over nothing is copied, sorted or scattered, whatever the capacity."""
    rng, programs = np.random.default_rng(1), []
    handles = rng.integers(-2, 60, 30).astype(np.int32)
    priorities = rng.choice([0.0, 0.3, 7.0, *BAD], 30).astype(np.float32)
    for capacity in (32, 4096):
        state = filled_on_jax(sampler, capacity, writer)
        program = jax.jit(jax_backend.update, donate_argnums=0).lower(state, handles, priorities).compile(AS_USERS)
        text = program.as_text()
        assert re.findall(r"custom_call_target=\"functional_rb_(\w+)\"", text) == ["update_priorities"]
        assert big_copies(text, state.counters.size) == []
        programs.append(re.findall(r" = .*?\s([a-z-]+)\(", text[text.index("ENTRY") :]))
        held = sum(x.nbytes for x in jax.tree.leaves(state))
        assert program.memory_analysis().alias_size_in_bytes >= held
        if capacity == effort(32, capacity):  # of trees of more levels the bits are compared elsewhere
            with frb.kernels(False):
                expected = bits(jax_backend.update(state, handles, priorities))
            assert bits(jax_backend.update(state, handles, priorities)) == expected
            assert bits(program(state, handles, priorities)) == expected
    assert programs[0] == programs[1]
    assert set(programs[0]) <= {"parameter", "constant", "custom-call", "get-tuple-element", "tuple"}


@needs_native
def test_on_jax_an_update_that_no_kernel_does_whole_takes_part_kernels() -> None:
    writer = frb.MaxValue("image")
    state = jax_backend.init(frb.BufferSpec(MORE, 32, frb.Prioritized(), writer))
    traced = str(jax.make_jaxpr(jax_backend.update)(state, np.arange(3), np.ones(3, np.float32)))
    assert set(re.findall(r"name='(\w+)'", traced)) == {"updated_values", "set_leaves"}


def test_a_stack_of_buffers_is_updated_in_one_call() -> None:
    one = filled_on_jax(SAMPLERS["slices"], 32)
    states = jax.tree.map(lambda x: jnp.stack([x, x]), one)
    handles, priorities = jnp.array([[0, 1, 1], [3, 40, -1]]), jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    found = jax.jit(jax.vmap(jax_backend.update))(states, handles, priorities)
    for k in range(2):
        alone = jax_backend.update(one, handles[k], priorities[k])
        assert bits(jax.tree.map(lambda x, k=k: x[k], found)) == bits(alone)
