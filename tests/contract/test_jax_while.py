"""Loops that end by what is in a state, as XLA compiles them and as `jax.disable_jit` runs them step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functional_rb as frb
import jax_backend as rb

KEY = rb.key(0)
ITEM = {"x": frb.Unbounded(()), "done": frb.Binary()}
BATCH = {"x": jnp.arange(3.0), "done": jnp.zeros(3, bool)}


def added(state: frb.State) -> frb.State:
    return rb.add(state, BATCH, key=KEY if state.spec.writer.words else None)


def drawn(state: frb.State) -> frb.State:
    return rb.sample(state, KEY, 2)[0]


def drawn_and_added(state: frb.State) -> frb.State:
    return added(drawn(state))


def updated(state: frb.State) -> frb.State:
    return rb.update(state, jnp.array([0, 1, 1000]), jnp.array([2.0, 3.0, 4.0]))


def is_small(state: frb.State) -> Any:
    return rb.size(state) < 20


def is_first_epoch(state: frb.State) -> Any:
    return rb.counts(state).epochs_done < 1


def is_rarely_late(state: frb.State) -> Any:
    return rb.counts(state).stale < 5


LOOPS: dict[str, tuple[dict[str, Any], Callable[[frb.State], Any], Callable[[frb.State], frb.State]]] = {
    "uniform": ({}, is_small, added),
    "prioritized": ({"sampler": frb.Prioritized()}, is_small, added),
    "lanes": ({"lanes": 3}, is_small, added),
    "slices": ({"sampler": frb.Slices(length=2)}, is_small, added),
    "reservoir": ({"writer": frb.Reservoir()}, is_small, added),
    "until it is full": ({"writer": frb.StopWhenFull()}, is_small, added),
    "updates": ({"sampler": frb.Prioritized()}, is_rarely_late, updated),
    "an epoch": ({"sampler": frb.WithoutReplacement()}, is_first_epoch, drawn),
    "a queue": ({"sampler": frb.Queue()}, rb.can_sample, drawn),
    "limits": ({"sampler": frb.Uniform(max_times_sampled=1)}, rb.can_sample, drawn),
    "both": ({"sampler": frb.Prioritized()}, is_small, drawn_and_added),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_carries_the_state_alone_ends_where_pythons_does(name: str) -> None:
    fields, goes_on, body = LOOPS[name]
    state = added(rb.init(frb.BufferSpec(ITEM, capacity=24, **fields)))
    expected, steps = state, 0
    while bool(np.all(np.asarray(goes_on(expected)))):
        expected, steps = body(expected), steps + 1
    assert steps > 1

    loop = jax.jit(lambda state: jax.lax.while_loop(lambda s: jnp.all(goes_on(s)), body, state)).lower(state).compile()
    before = loop.as_text().partition("ENTRY")[2]
    assert before
    assert "output_to_operand_aliasing" not in before, "XLA writes the state once, and the loop might not end"
    chex.assert_trees_all_equal(loop(state), expected)


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_debugged_without_compiling(name: str) -> None:
    fields, _, body = LOOPS[name]
    state = added(rb.init(frb.BufferSpec(ITEM, capacity=24, **fields)))
    expected = body(body(state))
    with jax.disable_jit():
        found = jax.jit(lambda state: jax.lax.fori_loop(0, 2, lambda _, s: body(s), state))(state)
    chex.assert_trees_all_equal(found, expected)
