"""What JAX traces for a GPU, carried out by the CPU: exact divisions, and barriers that keep XLA from copying.

Whether XLA for GPUs then copies nothing, `test_jax` and `test_jax_loops` tell where there is one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import functional_rb as frb
import jax_backend as rb
from tests.support import backends, gpu, lives
from tests.support.effort import effort
from tests.support.lives import live_on_torch
from tests.support.members import LANES, MEMBERS, Member

# The last two divide and keep XLA from copying as the others do.
NAMES = ("prioritized, distinct", "slices, prioritized", "uniform")
NAMES += effort((), ("prioritized", "prioritized, with a limit"))


def spec_of(name: str) -> frb.BufferSpec:
    """One that no other test has: what is traced here is kept."""
    member = MEMBERS[name]
    return Member(member.sampler, member.writer, member.lanes, member.capacity + 6 * LANES).spec


@pytest.fixture
def traced_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


@gpu.not_on_one("there it is so in all tests")
@pytest.mark.parametrize("name", NAMES)
def test_the_bits_are_those_of_the_core(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lives.same_draws(monkeypatch)
    spec = spec_of(name)
    expected = live_on_torch("torch-core", spec)[0]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with backends.make("jax-core") as backend:
        step = jax.jit(lambda state, given, keys: lives.step(backend, state, given, keys))
        state = lives.begin(backend, spec)
        for k, given in enumerate(lives.inputs(spec)):
            state, seen = step(state, given, lives.keys(backend, k))
            assert (lives.bits(backend, seen), lives.state_bits(backend, state)) == expected[k]


@pytest.mark.usefixtures("traced_for_a_gpu")
def test_leaves_are_known_before_the_tree_is_written() -> None:
    spec = frb.BufferSpec({"x": frb.Unbounded(())}, 1027, frb.Prioritized())
    given = rb.init(spec), jnp.arange(4), jnp.ones(4)
    assert "optimization_barrier" in str(jax.make_jaxpr(rb.update)(*given))
    assert "optimization_barrier" in str(jax.make_jaxpr(rb.add)(given[0], {"x": jnp.ones(4)}))
