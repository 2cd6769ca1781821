"""What rb.jit makes of functions of states: which it donates, wherever they are, and what it refuses."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import functional_rb as frb
import jax_backend
from tests.programs.consumed import (
    CONSUMED,
    LIMITED,
    SPEC,
    UNIFORM,
    batch,
    filled,
    is_gone,
    numbers,
)

rb = jax_backend


class Nested(NamedTuple):
    states: Any
    rest: Any


def test_states_are_found_wherever_they_are() -> None:
    rest = {"a": jnp.ones(3), "b": (jnp.zeros(2), None)}
    tree = Nested([filled(), {"eval": filled(UNIFORM)}], rest)

    @rb.jit
    def step(tree: Nested, other: Any, *, third: Any) -> Any:
        first, second = tree.states
        return Nested([rb.add(first, batch(3)), second], tree.rest), {"other": other["s"]}, (third,)

    other, third = {"s": filled(), "x": 1.5}, filled()
    after, told, (last,) = step(tree, other, third=third)
    assert is_gone((tree.states, other["s"], third))
    assert not any(x.is_deleted() for x in jax.tree.leaves(rest))
    assert [numbers(s) for s in (after.states[0], after.states[1]["eval"], told["other"], last)] == [
        [0, 1, 2, 3, 4, 5, 0, 0],
        *[[0, 1, 2, 0, 0, 0, 0, 0]] * 3,
    ]


def test_a_state_that_comes_back_unchanged_costs_nothing() -> None:
    state = filled()
    rows = state.rows.unsafe_buffer_pointer()
    after = rb.jit(lambda state: state)(state)
    assert is_gone(state)
    assert after.rows.unsafe_buffer_pointer() == rows


def test_a_state_that_does_not_come_back_is_not_donated() -> None:
    """Nor is it traced twice, nor does JAX warn that its memory is of no use."""
    chex.clear_trace_counter()
    state, other = filled(), filled(UNIFORM)

    @rb.jit
    @chex.assert_max_traces(n=1)
    def look(state: Any, other: Any, key: Any) -> Any:
        return rb.sample(state, key, 3)[1].items["n"], rb.add(other, batch(3))

    for seed in range(2):
        before = other
        _, other = look(state, other, rb.key(seed))
        assert is_gone(before)
        assert numbers(state) == [0, 1, 2, 0, 0, 0, 0, 0]
    assert rb.jit(rb.size)(state).tolist() == 3


def test_the_same_state_twice() -> None:
    both = rb.jit(lambda a, b: (rb.add(a, batch(3)), rb.add(b, batch(6))))
    state = filled()
    first, second = both(state, state)
    assert is_gone(state)
    assert [numbers(s)[:6] for s in (first, second)] == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 6, 7, 8]]
    first, second = both(first, second)  # and now two
    assert [numbers(s)[6:] for s in (first, second)] == [[3, 4], [6, 7]]
    state = filled()
    after, told = rb.jit(lambda state, counters: (rb.add(state, batch(3)), counters + 1))(state, state.counters)
    assert int(told[1]) == 4
    assert numbers(after)[3:6] == [3, 4, 5]
    older = filled(LIMITED)
    newer, _ = rb.sample(older, rb.key(0), 2)  # which has the rows of the older one
    first, second = both(older, newer)
    assert numbers(first)[3:6] + numbers(second)[3:6] == [3, 4, 5, 6, 7, 8]
    with pytest.raises(RuntimeError, match=CONSUMED):
        rb.size(newer)


def test_static_arguments() -> None:
    traced = []

    @rb.jit(static_argnames=("n", "both"))
    def draw(state: Any, n: int, key: Any, both: bool = False) -> Any:
        traced.append(n)
        state, sample = rb.sample(state, key, n)
        return (state, sample.indices) if both else sample.indices

    state, key = filled(), rb.key(0)
    assert draw(state, 2, key).shape == draw(state, n=2, key=key).shape == (2,)
    assert draw(state, 4, key).shape == (4,)
    after, _ = draw(state, 4, key, both=True)
    assert is_gone(state)
    assert len(traced) == 4  # by position or by name are two structures, as for jax.jit
    by_number = rb.jit(lambda key, n, state: rb.sample(state, key, n), static_argnums=-2)
    after, sample = by_number(key, 3, after)
    assert sample.indices.shape == (3,)
    with pytest.raises(ValueError, match="Non-hashable static arguments"):
        by_number(key, [3], after)
    assert int(rb.size(after)) == 3


class Agent:
    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    @rb.jit(static_argnums=0)
    def act(self, state: Any, key: Any) -> Any:
        """Draws."""
        return rb.sample(state, key, self.batch_size)


def test_methods_and_names() -> None:
    two, three, state = Agent(2), Agent(3), filled()
    for agent in (two, three, two):
        before = state
        state, sample = agent.act(state, rb.key(0))
        assert is_gone(before)
        assert sample.indices.shape == (agent.batch_size,)
    assert (Agent.act.__name__, Agent.act.__doc__) == ("act", "Draws.")
    bound = rb.jit(two.act.__wrapped__.__get__(two))
    assert bound(state, rb.key(0))[1].indices.shape == (2,)


def test_making_it_anew_traces_nothing_anew() -> None:
    chex.clear_trace_counter()
    step = chex.assert_max_traces(lambda state, items: rb.add(state, items), n=1)
    state = filled()
    for start in range(3):
        state = rb.jit(step)(state, batch(start))
    assert int(rb.size(state)) == 8


@dataclasses.dataclass(frozen=True)
class Adding:
    """A function that equals others."""

    number: int

    def __call__(self, state: Any, items: Any) -> Any:
        return rb.add(state, items)

    def once(self, state: Any, items: Any) -> Any:
        return rb.add(state, items)


@pytest.mark.parametrize("make", [Adding, lambda number: ADDING.once], ids=["callable", "bound method"])
def test_a_function_outlives_its_equal(make: Any) -> None:
    """Each `ADDING.once` is another object of Python's, and equal to the others."""
    items = batch(0)
    first, second = rb.jit(make(3)), rb.jit(make(3))
    state = first(filled(), items)
    del first
    gc.collect()
    fewer = jax.tree.map(lambda x: x[:1], items)  # for which nothing is compiled yet
    assert int(rb.size(second(state, fewer))) == int(rb.size(filled())) + 4


ADDING = Adding(0)


def test_what_was_compiled_goes_with_the_function() -> None:
    def make() -> Any:
        def step(state: Any) -> Any:
            return rb.add(state, batch(0))

        rb.jit(step)(filled())
        return weakref.ref(step)

    step = make()
    gc.collect()
    assert step() is None


def test_ahead_of_time() -> None:
    draw = rb.jit(lambda run, key, n: {"s": rb.sample(run["s"], key, n)[0], "w": run["w"] + 1}, static_argnums=2)
    shapes = {"s": jax.eval_shape(rb.init, SPEC), "w": jax.ShapeDtypeStruct((3,), jnp.float32)}
    state = filled()
    for compiled in (draw.lower(shapes, rb.key(0), 4).compile(), draw.trace(shapes, rb.key(0), 4).lower().compile()):
        before = state
        state = compiled({"s": state, "w": jnp.ones(3)}, rb.key(1))["s"]
        assert is_gone(before)
        with pytest.raises(TypeError, match="compiled for arguments of the structure"):
            compiled(state, rb.key(1))
    assert jax.tree.structure(draw.eval_shape(shapes, rb.key(0), 4)) == jax.tree.structure(shapes)
    draw.clear_cache()
    assert numbers(draw({"s": state, "w": jnp.ones(3)}, rb.key(0), 4)["s"])[:3] == [0, 1, 2]


def test_other_transformations_outside_and_inside() -> None:
    add = rb.jit(rb.add)
    many = jax.vmap(lambda _: rb.init(SPEC))(jnp.arange(2))
    given = jax.tree.map(lambda x: np.stack([x, x]), batch(0))
    assert jax.vmap(add)(many, given).counters[:, 1].tolist() == [3, 3]
    after = rb.jit(jax.vmap(rb.add))(many, given)
    assert is_gone(many)
    assert rb.size(after).tolist() == [3, 3]
    state = filled()
    assert int(rb.size(jax.jit(add)(state, batch(0)))) == 6
    loss = rb.jit(lambda w, state: (w * rb.sample(state, rb.key(0), 2)[1].items["x"].sum(), state))
    (_, same), gradient = jax.value_and_grad(loss, has_aux=True)(2.0, state)
    assert np.isfinite(gradient)
    assert numbers(same) == numbers(state)  # which is there: nothing was donated


def test_shardings_and_further_donation() -> None:
    where = NamedSharding(jax.make_mesh((1,), ("d",)), PartitionSpec())
    state, items = filled(), jax.tree.map(jnp.asarray, batch(3))
    for shardings in (where, (where, None)):
        before, state = state, rb.jit(rb.add, in_shardings=shardings, out_shardings=where)(state, items)
        assert is_gone(before)
        assert state.rows.sharding == where
    state = jax.device_put(state, jax.devices()[0])
    weights = jnp.ones(1000)
    rb.jit(lambda state, w: (state, w + 1), donate_argnums=1)(state, weights)
    assert weights.is_deleted()


def test_errors_name_function_and_argument() -> None:
    def branch(state: Any, items: Any) -> Any:
        return rb.add(state, items) if items["n"].sum() > 2 else state

    state = filled()
    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"function branch at .*jit_of_states.*items\['n'\]"):
        rb.jit(branch)(state, batch(0))
    assert numbers(state)[:3] == [0, 1, 2]  # what fails while it is traced consumes nothing
    with pytest.raises(TypeError, match="jit: expected a function, got int"):
        rb.jit(3)


@pytest.mark.parametrize(
    "storage", [frb.Host(), frb.Memmap(), frb.Memmap(shared=True)], ids=["host", "files", "shared"]
)
def test_buffers_on_the_host_are_refused_by_jit(storage: Any) -> None:
    state = filled(dataclasses.replace(SPEC, storage=storage))
    with pytest.raises(TypeError, match=r"rb\.jit: this buffer lies in the memory of the host.*rb\.add_"):
        rb.jit(lambda run: rb.add(run["s"], batch(0)))({"s": state})
    assert int(rb.size(state)) == 3


@dataclasses.dataclass
class Plain:
    buffer: Any
    key: Any


def test_jit_on_torch_alone() -> None:
    import torch

    import torch_backend as rb

    with pytest.raises(TypeError, match=r"the option 'in_shardings' has no meaning on torch"):
        rb.jit(lambda s: s, in_shardings=None)
    state = filled(rb=rb)
    assert rb.jit(lambda s: s)(state) is state  # as it came: it goes on
    run = Plain(state, rb.key(0))
    run.key = run  # a nest that contains itself
    step = rb.jit(lambda run: Plain(rb.add(run.buffer, batch(3)), None), donate_argnums=0)
    after = step(run)
    assert int(rb.size(after.buffer)) == 6
    with pytest.raises(RuntimeError, match=CONSUMED):
        rb.add(state, batch(0))
    with pytest.raises(RuntimeError, match=CONSUMED):
        step(run)
    compiled = torch.compile(rb.jit(lambda s, x: rb.update_(s, x, x.float())), fullgraph=True, backend="eager")
    state = compiled(rb.own_(after.buffer), torch.arange(3, dtype=torch.int32))
    assert int(rb.counts(state).stale) == 0
