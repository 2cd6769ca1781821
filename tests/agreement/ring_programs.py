"""Programs of JAX on buffers of several lanes, by the samplers that have launches, and what they launch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax import lax

import functional_rb as frb
import jax_backend as rb
from tests.agreement.jax_programs import ITEM, items, mask, priorities, stacked

LANES, CAPACITY, STEPS, DRAWN = 3, 24, 4, 6
ADDED: Final = {"rank_in_rings", "add_to_rings"}
RINGS: Final[dict[str, tuple[Any, set[str]]]] = {
    "uniform": (frb.Uniform(), ADDED | {"sample"}),
    "prioritized": (frb.Prioritized(alpha=0.7), ADDED | {"sample", "update"}),
    "uniform, with a limit": (frb.Uniform(max_times_sampled=2), ADDED | {"sample", "spend"}),
    "prioritized, with a limit": (frb.Prioritized(max_times_sampled=3), ADDED | {"sample", "spend", "update"}),
    "prioritized, each once": (frb.Prioritized(replacement=False), ADDED | {"arrive", "read_drawn", "update"}),
    "slices": (frb.Slices(2, trajectory_key="n"), ADDED | {"draw_slices"}),
    "slices, of whatever is there": (
        frb.Slices(3, strict_length=False, span=(1, True), flat=True),
        ADDED | {"draw_slices"},
    ),
    "slices, fresh ones first": (frb.Slices(2, fresh_first=True), ADDED | {"read_drawn"}),
    "slices, prioritized": (frb.PrioritizedSlices(2, period=2), ADDED | {"draw_slices", "update"}),
    "without replacement": (frb.WithoutReplacement(drop_last=True), ADDED | {"draw_epoch", "read_epoch"}),
    "trajectories, without replacement": (
        frb.SlicesWithoutReplacement(2, strict_length=False),
        ADDED | {"draw_epoch", "read_epoch"},
    ),
    "newer items": (frb.Recency(3), ADDED | {"sample"}),
    "fresh items": (frb.Staleness("n", 1), ADDED | {"sample"}),
    "in order": (frb.WithoutReplacement(True, shuffle=False), ADDED | {"draw_in_order"}),
    "queue of windows": (frb.Queue(2), ADDED | {"draw_in_turn"}),
    "windows, without replacement": (
        frb.SlicesWithoutReplacement(2, weighting="window", drop_last=True),
        ADDED | {"draw_epoch", "read_epoch"},
    ),
}


def of(sampler: str, **more: Any) -> frb.BufferSpec:
    return frb.BufferSpec(ITEM, CAPACITY, RINGS[sampler][0], lanes=LANES, **more)


def batch(seed: int, steps: int = STEPS) -> Any:
    """Of some steps of each lane, with one of two trajectories' names."""
    made = items(seed, steps, LANES)
    return made | {"n": made["n"] // 50}


def step(state: frb.State, given: Any, key: jax.Array) -> Any:
    """A batch, draws, and new priorities of these, with others that are there or gone."""
    added, marked, numbers = given
    state, sample = rb.sample(rb.add(state, added, marked), key, DRAWN)
    if state.spec.sampler.has_priorities:
        handles = jnp.concatenate([sample.indices.reshape(-1), jnp.arange(-2, 9, dtype=jnp.int32)])
        state = rb.update(state, handles, jnp.resize(numbers, handles.shape))
    return state, (sample.items, jax.tree.leaves(sample))


def given(k: int, steps: int = STEPS) -> Any:
    return batch(k, steps), mask(k, steps, LANES), priorities(k, 9)


def donated(spec: frb.BufferSpec, jit: Callable[[Any], Any] = rb.jit) -> Any:
    """By rb.jit, which donates; the last batch is larger than the lanes."""
    run, state, told = jit(step), rb.init(spec), []
    for k in range(4):
        state, seen = run(state, given(k, 10 if k == 3 else STEPS), rb.key(k))
        told.append(seen)
    return state, told


def eager(spec: frb.BufferSpec) -> Any:
    """Without masks, and with priorities; older states stay as they were."""
    states, told = [rb.init(spec)], []
    for k in range(3):
        own = {"priorities": priorities(k, STEPS, LANES)} if spec.sampler.has_priorities and k else {}
        state, sample = rb.sample(rb.add(states[-1], batch(k), **own), rb.key(k), DRAWN // 2)
        states.append(state)
        told.append(jax.tree.leaves(sample))
    return states, told


def scanned(spec: frb.BufferSpec) -> Any:
    """With a branch in which nothing is added."""

    def turn(state: Any, xs: Any) -> Any:
        k, *own = xs
        state = lax.cond(k % 2 == 0, lambda s: rb.add(s, batch(9)), lambda s: s, state)
        return step(state, *own)

    turns = (jnp.arange(3), stacked(*(given(k) for k in range(3))), rb.split(rb.key(3), 3))
    return jax.jit(lambda s, xs: lax.scan(turn, s, xs))(rb.init(spec), turns)


def several(spec: frb.BufferSpec) -> Any:
    """Stacked buffers, each with its own batch, and two keys for one of them."""
    states = jax.vmap(lambda _: rb.init(spec))(jnp.arange(2))
    turns = stacked(*(given(k) for k in range(2)))
    states, told = jax.jit(jax.vmap(step))(states, turns, rb.split(rb.key(0), 2))
    one = jax.tree.map(lambda x: x[0], states)
    return states, told, jax.jit(jax.vmap(lambda key: rb.sample(one, key, DRAWN)))(rb.split(rb.key(1), 2))


PROGRAMS: dict[str, Callable[[frb.BufferSpec], Any]] = {
    program.__name__: program for program in (donated, eager, scanned, several)
}


# --- the same, call by call -------------------------------------------------------------------------------------------


def arrays_of(nest: Any) -> Any:
    """With the arrays of states in their places: those of the host's states are no leaves of theirs."""

    def arrays(x: Any) -> Any:
        if not isinstance(x, frb.State):
            return x
        auxiliary = {name: x.auxiliary[name] for name in sorted(x.auxiliary)}
        return jax.tree.map(jnp.asarray, [x.rows, *x.wide, x.tree, auxiliary, x.counters])

    return jax.tree.map(arrays, nest, is_leaf=lambda x: isinstance(x, frb.State))


def turn_by_turn(spec: frb.BufferSpec) -> Any:
    """What `scanned` gives."""
    state, told = rb.init(spec), []
    for k, key in enumerate(rb.split(rb.key(3), 3)):
        state = rb.add(state, batch(9)) if k % 2 == 0 else state
        state, seen = step(state, given(k), key)
        told.append(seen)
    return state, stacked(*told)


def one_by_one(spec: frb.BufferSpec) -> Any:
    """What `several` gives."""
    each = [step(rb.init(spec), given(k), key) for k, key in enumerate(rb.split(rb.key(0), 2))]
    drawn = [rb.sample(each[0][0], key, DRAWN) for key in rb.split(rb.key(1), 2)]
    return *stacked(*arrays_of(each)), stacked(*arrays_of(drawn))


# Nothing of these is traced.
CALL_BY_CALL: Final[dict[str, Callable[[frb.BufferSpec], Any]]] = {
    "donated": functools.partial(donated, jit=lambda function: function),
    "eager": eager,
    "scanned": turn_by_turn,
    "several": one_by_one,
}
