"""Random programs of JAX's control flow, nested, compiled and mapped, beside the same step by step without kernels."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import functional_rb as frb
import jax_backend as rb
from tests.support.effort import EVERYTHING, effort

LANES, DEPTH = 2, 3
ITEM = {"x": frb.Unbounded((3,)), "done": frb.Binary()}
SPECS: list[dict[str, Any]] = [
    {},
    {"lanes": LANES},
    {"sampler": frb.Prioritized()},
    {"sampler": frb.Prioritized(), "lanes": LANES},
    {"sampler": frb.Prioritized(replacement=False)},
    {"sampler": frb.Prioritized(max_times_sampled=3)},
    {"sampler": frb.Uniform(max_times_sampled=2)},
    {"sampler": frb.WithoutReplacement()},
    {"sampler": frb.InOrder(max_times_sampled=2)},
    {"sampler": frb.Recency()},
    {"sampler": frb.Slices(length=2)},
    {"sampler": frb.PrioritizedSlices(length=2)},
    {"writer": frb.Reservoir()},
    {"writer": frb.StopWhenFull()},
]
Change = Callable[[frb.State, Any], frb.State]


def added(state: frb.State, key: Any, steps: int, value: float) -> frb.State:
    lead = (steps, LANES) if state.spec.lanes else (steps,)
    batch = {"x": jnp.full((*lead, 3), value), "done": jnp.zeros(lead, bool)}
    return rb.add(state, batch, key=key if state.spec.writer.words else None)


def one(draw: random.Random, spec: frb.BufferSpec) -> Change:
    """A call that changes a state; from an empty one nothing would be drawn eagerly."""
    n, value = draw.randint(1, 3), draw.random()
    handles = jnp.array([n, 0, 1000])
    calls: list[Change] = [
        lambda state, key: added(state, key, n, value),
        lambda state, key: rb.sample(state, key, 2 * n)[0],
        lambda state, key: rb.update(state, handles, items={"x": jnp.full((3, 3), value)}),
        lambda state, key: added(rb.clear(state), key, 4, value),
    ]
    if spec.sampler.has_priorities:
        calls.append(lambda state, key: rb.update(state, handles, jnp.array([value, 1.0, 2.0])))
    return draw.choice(calls)


def nested(draw: random.Random, spec: frb.BufferSpec, depth: int) -> Change:
    """Calls under the operations of control flow, so deep."""
    if not depth:
        return one(draw, spec)
    first, second, n = nested(draw, spec, depth - 1), nested(draw, spec, depth - 1), draw.randint(1, 3)

    def is_small(carry: tuple[frb.State, Any]) -> Any:
        return (jnp.sum(rb.size(carry[0])) < 9) & (carry[1] < n)

    forms: list[Change] = [
        lambda state, key: second(first(state, key), jax.random.fold_in(key, 1)),
        lambda state, key: lax.fori_loop(0, n, lambda k, s: first(s, jax.random.fold_in(key, k)), state),
        lambda state, key: lax.scan(lambda s, k: (first(s, k), None), state, rb.split(key, n))[0],
        lambda state, key: lax.cond(jnp.sum(rb.size(state)) > 6, first, second, state, key),
        lambda state, key: lax.switch(jnp.sum(rb.size(state)) % 3, [first, second, lambda s, _: s], state, key),
        lambda state, key: jax.jit(first)(state, key),
        lambda state, key: jax.checkpoint(first)(state, key),
        lambda state, key: lax.while_loop(is_small, lambda c: (first(c[0], key), c[1] + 1), (state, 0))[0],
    ]
    return draw.choice(forms)


@pytest.mark.parametrize("seed", range(effort(4, 150)))
def test_nested_control_flow_does_what_its_steps_do(seed: int) -> None:
    draw = random.Random(seed)
    spec = frb.BufferSpec(ITEM, capacity=12, **draw.choice(SPECS))
    program, key = nested(draw, spec, DEPTH), rb.key(seed)
    state = added(rb.init(spec), key, 4, 0.5)
    with jax.disable_jit(), frb.kernels(False):
        expected = jax.tree.map(np.array, program(state, key))  # which the last program does not consume

    if EVERYTHING:  # beside what is donated and what is mapped over, of which XLA makes programs in seconds each
        chex.assert_trees_all_equal(jax.jit(program)(state, key), expected)
    stacked = jax.tree.map(lambda x: jnp.asarray(np.stack([x, x])), state)
    mapped = jax.device_get(jax.jit(jax.vmap(program, in_axes=(0, None)))(stacked, key))
    chex.assert_trees_all_equal(jax.tree.map(lambda x: x[1], mapped), expected)
    chex.assert_trees_all_equal(rb.jit(program)(state, key), expected)
