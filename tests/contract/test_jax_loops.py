"""A training loop in one `lax.scan`, for every sampler and writer: nothing of the buffer's size is copied."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import functional_rb as frb
import jax_backend as rb
from tests.support.backends import needs_native
from tests.support.compiled_programs import big_copies
from tests.support.effort import effort
from tests.support.xla_options import AS_USERS

CAPACITY, LANES = 40_000, 4
ITEM = {"x": frb.Unbounded((4,)), "done": frb.Binary(()), "trajectory": frb.Unbounded((), "int32")}
IN_LANES: dict[str, Any] = {"lanes": LANES}
STEP = {"reward": frb.Unbounded(()), "done": frb.Binary(()), "x": frb.Unbounded((4,)), "next_x": frb.Unbounded((4,))}
STACKS = {"done": frb.Binary(()), "x": frb.Unbounded((4, 2), "uint8"), "next_x": frb.Unbounded((4, 2), "uint8")}
PICTURES = {"done": frb.Binary(()), "x": frb.Unbounded((1030, 2), "uint8"), "next_x": frb.Unbounded((1030, 2), "uint8")}
GOALS = STEP | {"desired_goal": frb.Unbounded((2,)), "next_achieved_goal": frb.Unbounded((2,))}
N_STEP = {"transforms": frb.n_step(3, 0.99)}


def nearness(achieved: jax.Array, goal: jax.Array) -> jax.Array:
    return -abs(achieved - goal).sum(-1)


LOOPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "uniform": (frb.Uniform(), {}),
    "uniform in lanes": (frb.Uniform(), IN_LANES),
    "uniform, some times": (frb.Uniform(max_times_sampled=2), {}),
    "prioritized": (frb.Prioritized(), {}),
    "prioritized in lanes": (frb.Prioritized(), IN_LANES),
    "prioritized, some times": (frb.Prioritized(max_times_sampled=2), {}),
    "prioritized without replacement": (frb.Prioritized(replacement=False), {}),
    "recency": (frb.Recency(), {}),
    "fifo": (frb.InOrder(max_times_sampled=2), {}),
    "queue": (frb.Queue(length=2), IN_LANES),
    "without replacement": (frb.WithoutReplacement(), {}),
    "in order": (frb.WithoutReplacement(shuffle=False), IN_LANES),
    "slices": (frb.Slices(length=4), IN_LANES),
    "slices by key": (frb.Slices(length=4, trajectory_key="trajectory"), IN_LANES),
    "prioritized slices": (frb.PrioritizedSlices(length=4), IN_LANES),
    "slices without replacement": (frb.SlicesWithoutReplacement(length=4), IN_LANES),
    "reservoir": (frb.Uniform(), {"writer": frb.Reservoir()}),
    "max value": (frb.Prioritized(), {"writer": frb.MaxValue("x")}),
    "n steps": (frb.Prioritized(), {"item": STEP, **N_STEP}),
    "n steps in lanes": (frb.Slices(length=4), {"item": STEP, **N_STEP, **IN_LANES}),
    "n steps, added": (frb.Uniform(), {"item": STEP, "transforms": frb.n_step(3, 0.99, at="add"), **IN_LANES}),
    "hindsight": (frb.Uniform(), {"item": GOALS, "transforms": frb.her("future", 4, reward=nearness), **IN_LANES}),
    "compact": (frb.Prioritized(), {"item": STEP, "compact": frb.Compact()}),
    "compact, n steps in lanes": (frb.Uniform(), {"item": STEP, "compact": frb.Compact(), **N_STEP, **IN_LANES}),
    "compact stacks": (frb.Uniform(), {"item": STACKS, "compact": frb.Compact(stack=2, axis=-1), **IN_LANES}),
    "compact pictures": (frb.Prioritized(), {"item": PICTURES, "compact": frb.Compact(stack=2, axis=-1)}),
}


def batch(spec: frb.BufferSpec, lead: tuple[int, ...]) -> dict[str, jax.Array]:
    return {name: jnp.zeros((*lead, *leaf.shape), leaf.dtype) for name, leaf in spec.item.items()}


def step(state: frb.State, key: jax.Array) -> tuple[frb.State, Any]:
    """What is drawn is used after the writes, so that reading it early is XLA's to arrange."""
    spec = state.spec
    state, sample = rb.sample(state, key, 8)
    state = rb.add(state, batch(spec, (2, LANES) if spec.lanes else (8,)), key=key if spec.writer.words else None)
    if spec.sampler.has_priorities:
        first = sample.indices if sample.indices.ndim == 1 else sample.indices[:, 0]
        state = rb.update(state, first, sample.weights + 1)
    told = [x.sum() for x in sample.extras.values()]
    return state, (sample.items["x"].sum(), sample.weights.sum(), sample.probabilities.sum(), *told)


ALIKE = {"uniform", "uniform, some times", "prioritized", "prioritized in lanes", "recency", "in order", "slices"}
ALIKE |= {"slices by key", "n steps in lanes", "compact", "compact, n steps in lanes", "fifo"}
ALIKE |= {"uniform in lanes", "without replacement", "n steps", "compact stacks"}
"""Others have the same arrays, and more."""


@needs_native
@pytest.mark.parametrize("name", [name for name in LOOPS if name not in effort(ALIKE, set[str]())])
def test_nothing_large_is_copied(name: str) -> None:
    sampler, others = LOOPS[name]
    spec = frb.BufferSpec(**{"item": ITEM, **others}, capacity=CAPACITY, sampler=sampler)

    program = jax.jit(lambda state, keys: lax.scan(step, state, keys), donate_argnums=0)
    state, keys = rb.init(spec), rb.split(rb.key(0), 5)
    compiled = program.lower(state, keys).compile(AS_USERS)
    # A leaf of the tree is 4 bytes: anything of half the capacity is a copy of some array of the state. Where items are
    # large, a batch of them is more than that, but still less than their storage.
    large = max(math.prod(leaf.shape) for leaf in spec.item.values())
    small = max(CAPACITY // 32, 16 * large)
    assert big_copies(compiled.as_text(), small) == []
    memory = compiled.memory_analysis()
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert memory.alias_size_in_bytes >= held
    assert memory.temp_size_in_bytes < max(CAPACITY, 5 * small)
    state, told = compiled(state, keys)
    state, told = compiled(state, keys)
    assert all(np.isfinite(np.asarray(x)).all() for x in told)
    assert 0 < int(rb.size(state)) + int(rb.counts(state).refused) <= 80


STACKED = ("without replacement", "prioritized slices")


@needs_native
@pytest.mark.parametrize("name", effort(STACKED, ("prioritized", "uniform in lanes", *STACKED)))
def test_nothing_large_is_copied_of_stacked_buffers(name: str) -> None:
    """One program for several seeds: a loop of a step under `vmap`."""
    sampler, others = LOOPS[name]
    spec = frb.BufferSpec(ITEM, CAPACITY, sampler, **others)
    program = jax.jit(lambda states, keys: lax.scan(jax.vmap(step), states, keys), donate_argnums=0)
    states = jax.eval_shape(jax.vmap(lambda _: rb.init(spec)), jnp.arange(2))
    keys = jax.eval_shape(lambda: rb.split(rb.key(0), 10).reshape(5, 2))
    compiled = program.lower(states, keys).compile(AS_USERS)
    assert big_copies(compiled.as_text(), CAPACITY // 32) == []
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(states))
    assert compiled.memory_analysis().alias_size_in_bytes >= held
    assert compiled.memory_analysis().temp_size_in_bytes < CAPACITY
