"""Programs that write in place by consuming the state: `add_` and the like, on every storage, and `rb.jit`."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functional_rb as frb
import jax_backend
from tests.programs.consumed import (
    CONSUMED,
    HANDLES,
    LIMITED,
    PRIORITIES,
    SPEC,
    batch,
    filled,
    is_gone,
    numbers,
)
from tests.support import backends, gpu, lives
from tests.support.backends import Backend, needs_native
from tests.support.compiled_programs import big_copies
from tests.support.lives import live_on_torch
from tests.support.members import LANES, MEMBERS, Member
from tests.support.xla_options import AS_USERS

rb = jax_backend


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class TrainState:
    params: Any
    buffer: Any
    steps: Any


# ---------------------------------------------------------------- every kind of sampler


def _spec(name: str) -> frb.BufferSpec:
    """One that no other test has: what is traced with `same_draws` is kept."""
    member = MEMBERS[name]
    return Member(member.sampler, member.writer, member.lanes, member.capacity + 2 * LANES).spec


NATURAL = {
    name: _spec(name)
    for name in (
        "uniform",
        "prioritized",
        "fifo, with a limit",
        "queue of windows",
        "without replacement",
        "slices, prioritized",
    )
}
EAGER = {name: NATURAL[name] for name in ("prioritized", "queue of windows", "without replacement")}


@pytest.mark.parametrize("spec", EAGER.values(), ids=EAGER)
def test_an_eager_loop_in_place(spec: frb.BufferSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    lives.same_draws(monkeypatch)
    expected = live_on_torch("torch-core", spec)[0]
    with backends.make("jax-inplace") as backend:
        state = lives.begin(backend, spec)
        rows = state.rows.unsafe_buffer_pointer()
        for k, given in enumerate(lives.inputs(spec)):  # past the capacity
            before = state
            state, seen = lives.step(backend, state, given, lives.keys(backend, k))
            assert (lives.bits(backend, seen), lives.state_bits(backend, state)) == expected[k]
            assert is_gone(before)
            assert state.rows.unsafe_buffer_pointer() == rows
        with pytest.raises(RuntimeError, match=CONSUMED):
            rb.can_sample(before)


@pytest.mark.few(3)
@pytest.mark.parametrize("spec", NATURAL.values(), ids=NATURAL)
def test_a_compiled_loop_over_a_train_state(spec: frb.BufferSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    lives.same_draws(monkeypatch)
    expected = live_on_torch("torch-core", spec)[0]
    chex.clear_trace_counter()
    with backends.make("jax") as backend:

        @rb.jit
        @chex.assert_max_traces(n=1)
        def step(run: TrainState, given: Any, *, keys: Any) -> tuple[TrainState, Any]:
            buffer, seen = lives.step(backend, run.buffer, given, keys)
            return TrainState({"w": run.params["w"] + 1}, buffer, run.steps + 1), seen

        run = TrainState({"w": jnp.ones(3)}, lives.begin(backend, spec), jnp.int32(0))
        for k, given in enumerate(lives.inputs(spec)):
            before = run
            run, seen = step(run, given, keys=lives.keys(backend, k))
            assert (lives.bits(backend, seen), lives.state_bits(backend, run.buffer)) == expected[k]
            assert is_gone(before.buffer)
            assert before.params["w"].tolist() == [1.0 + k] * 3
        assert int(run.steps) == lives.STEPS
        with pytest.raises(RuntimeError, match=CONSUMED):
            step(before, given, keys=lives.keys(backend, 0))


@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.Prioritized()], ids=repr)
def test_jit_without_donation_leaves_the_state(sampler: Any) -> None:
    """The natural first program: it copies what is handed through, and nothing else happens."""
    state = filled(dataclasses.replace(SPEC, sampler=sampler))
    before = jax.tree.map(np.array, state)
    sample = jax.jit(lambda s, k: rb.sample(s, k, 3))
    for seed in range(2):
        after, drawn = sample(state, rb.key(seed))
        _, eager = rb.sample(state, rb.key(seed), 3)
        chex.assert_trees_all_equal(drawn, eager)
        assert numbers(after) == numbers(state)
    chex.assert_trees_all_equal(jax.tree.map(np.asarray, state), before)


@needs_native
@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.Prioritized()], ids=repr)
def test_nothing_of_the_storage_is_copied(sampler: Any) -> None:
    def step(run: TrainState, key: Any) -> tuple[TrainState, Any]:
        buffer, sample = rb.sample(rb.add(run.buffer, batch(0)), key, 8)
        if sampler.has_priorities:
            buffer = rb.update(buffer, sample.indices, sample.weights)
        return TrainState({"w": run.params["w"].sum(0)}, buffer, run.steps + 1), sample.items["x"].sum()

    capacity = 40_000
    spec = dataclasses.replace(SPEC, capacity=capacity, sampler=sampler)
    run = TrainState({"w": jnp.ones((capacity, 3))}, jax.eval_shape(rb.init, spec), jnp.int32(0))
    compiled = rb.jit(step).lower(run, rb.key(0)).compile(AS_USERS)
    assert big_copies(compiled.as_text(), capacity // 32) == []
    memory = compiled.memory_analysis()
    held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(run.buffer))
    assert held <= memory.alias_size_in_bytes < held + 1000  # and not the parameters
    assert memory.temp_size_in_bytes < capacity


# ---------------------------------------------------------------- rb.jit: the same on both


def test_a_program_for_both_backends(library: Backend) -> None:
    rb, calls = library.rb, []

    @rb.jit(static_argnames="n")
    def step(run: dict[str, Any], items: Any, n: int) -> Any:
        """A step."""
        calls.append(n)
        state, sample = rb.sample(rb.add(run["inner"][0], items), run["key"], n)
        return {"inner": [rb.update(state, sample.indices, sample.weights)], "key": run["key"]}, sample.items["n"]

    run = {"inner": [filled(rb=rb)], "key": rb.key(0)}
    for k in range(3):
        before = run
        run, drawn = step(run, library.tree(batch(3 * k)), n=4)
        assert drawn.shape == (4,)
        with pytest.raises(RuntimeError, match=CONSUMED):
            rb.size(before["inner"][0])
    assert int(rb.size(run["inner"][0])) == 8
    assert len(calls) == (1 if library.library == "jax" else 3)
    assert step.__doc__ == "A step."

    # What is only read stays.
    state = run["inner"][0]
    rb.jit(lambda s: rb.sample(s, rb.key(1), 2)[1])(state)
    assert int(rb.size(state)) == 8
    with pytest.raises(TypeError, match="jit: expected a function, got str"):
        rb.jit("step")
    older = filled(rb=rb)
    newer = rb.jit(lambda a, b: rb.add(a, rb.get(b, HANDLES)))(older, state)  # of two alike one comes back
    assert [int(rb.size(s)) for s in (older, newer, state)] == [3, 6, 8]

    def fails(state: Any) -> Any:
        rb.add(state, library.tree(batch(0)))
        raise KeyError("of the user's")

    with pytest.raises(KeyError, match="of the user's"):
        rb.jit(fails)(state)
    assert int(rb.size(state)) == 8


# ---------------------------------------------------------------- the in-place forms, on every storage

STORAGES = {
    "device": lambda path: frb.Device(),
    "host": lambda path: frb.Host(),
    "files": frb.Memmap,
    "shared": lambda path: frb.Memmap(path, shared=True),
}


def consuming(rb: Any) -> dict[str, Callable[[Any], Any]]:
    return {
        "add_": lambda s: rb.add_(s, batch(3)),
        "sample_": lambda s: rb.sample_(s, rb.key(0), 2)[0],
        "update_": lambda s: rb.update_(s, HANDLES, PRIORITIES, {"n": HANDLES + 7}),
        "clear_": rb.clear_,
    }


@pytest.mark.parametrize("storage", STORAGES)
def test_the_same_on_every_storage(library: Backend, storage: str, tmp_path: Path) -> None:
    rb = library.rb
    names = itertools.count()

    def fresh() -> Any:
        return filled(dataclasses.replace(SPEC, storage=STORAGES[storage](str(tmp_path / str(next(names))))), rb)

    for name, call in consuming(rb).items():
        state, pure = fresh(), fresh()
        after = call(state)
        expected = {
            "add_": lambda s: rb.add(s, batch(3)),
            "sample_": lambda s: rb.sample(s, rb.key(0), 2)[0],
            "update_": lambda s: rb.update(s, HANDLES, PRIORITIES, {"n": HANDLES + 7}),
            "clear_": rb.clear,
        }[name](pure)
        for read in (rb.size, lambda s: rb.get(s, HANDLES)["n"]):
            assert read(after).tolist() == read(expected).tolist()
        if storage == "shared":
            assert after is state  # a handle stays one
            continue
        for other in (rb.size, rb.items, rb.clear):
            with pytest.raises(RuntimeError, match=CONSUMED):
                other(state)
        with pytest.raises(RuntimeError, match=CONSUMED):
            frb.save(state, str(tmp_path / "saved"))


def test_what_is_refused_consumes_nothing(library: Backend) -> None:
    rb = library.rb
    state = rb.init(SPEC)
    with pytest.raises(ValueError, match="the buffer is empty"):
        rb.sample_(state, rb.key(0), 2)
    with pytest.raises(TypeError, match="leaf 'x'"):
        rb.add_(state, batch(0) | {"x": np.ones((3, 2))})
    full = frb.BufferSpec(SPEC.item, 4, writer=frb.StopWhenFull())
    stopped = rb.add_(rb.init(full), batch(0))
    with pytest.raises(ValueError, match="the buffer is full"):
        rb.add_(stopped, batch(3))
    epoch = rb.add_(rb.init(frb.BufferSpec(SPEC.item, 8, frb.WithoutReplacement(drop_last=True))), batch(0))
    with gpu.refused(library.library, "make a full batch"):
        rb.sample_(epoch if gpu.sees_values(library.library) else copy.copy(epoch), rb.key(0), 4)
    assert [int(rb.size(s)) for s in (state, stopped, epoch)] == [0, 3, 3]


def test_arrays_given_out_before_stay_as_they_were() -> None:
    """XLA does not write into memory that NumPy or torch look at."""
    import torch_backend

    for look in (lambda s: np.asarray(s.rows), lambda s: torch_backend.from_dlpack(s).rows.numpy()):
        state = filled(dataclasses.replace(SPEC, capacity=64))
        view = look(state)
        before = view.copy()
        state = rb.add_(state, batch(100, 64))
        assert (view == before).all()
        assert numbers(state)[3] == 100


def test_under_transformations_they_are_the_others() -> None:
    state = filled()

    def life(state: Any, key: Any) -> Any:
        state = rb.add_(state, batch(3))
        again = rb.add_(state, batch(6, 2))  # the state is still there
        state, sample = rb.sample_(state, key, 2)
        return rb.update_(state, sample.indices, sample.weights), rb.size(again)

    for run in (jax.jit(life), lambda s, k: jax.lax.scan(life, s, k[None])):
        after, size = run(state, rb.key(0))
        assert (int(rb.size(after)), int(size.sum())) == (6, 8)
        assert numbers(state)[:4] == [0, 1, 2, 0]
    many = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    assert rb.size(jax.vmap(rb.clear_)(many)).tolist() == [0, 0]
    assert rb.size(many).tolist() == [3, 3]
    closed = jax.jit(lambda key: rb.size(rb.add_(state, batch(0) | {"n": jax.random.bits(key, (3,)).view(jnp.int32)})))
    assert int(closed(rb.key(0))) == 6
    assert int(rb.size(state)) == 3


def test_a_traced_function_draws_from_a_state_that_it_has_from_outside() -> None:
    """Nothing that it is given is traced, and all that it computes is."""
    state, key = filled(LIMITED), rb.key(0)
    _, expected = rb.sample(state, key, 2)
    drawn = jax.jit(lambda: rb.sample_(state, key, 2)[1])()
    np.testing.assert_array_equal(drawn.indices, expected.indices)
    assert int(rb.size(state)) == 3


CONSUMING = {
    "add_": lambda state: rb.add_(state, batch(3)),
    "sample_": lambda state: rb.sample_(state, rb.key(0), 2)[0],
    "update_": lambda state: rb.update_(state, HANDLES, PRIORITIES),
    "clear_": rb.clear_,
    "jit": rb.jit(lambda state: rb.add(state, batch(3))),
}


def content(state: Any) -> list[Any]:
    return [x.tolist() for x in jax.tree.leaves(state)]


@pytest.mark.parametrize("name", CONSUMING)
def test_a_program_that_runs_again_leaves_a_state_from_outside(name: str) -> None:
    """`jax.checkpoint` runs what it has traced with the same arrays each time, which JAX found deleted."""
    state, whole = filled(), filled()
    expected = content(CONSUMING[name](whole))
    again = jax.checkpoint(lambda w: (w, CONSUMING[name](state)))
    for _ in range(2):
        assert content(again(1.0)[1]) == expected
    assert numbers(state)[:3] == [0, 1, 2]


def test_derivatives_consume_a_state_from_outside_as_plain_calls_do() -> None:
    state = filled()

    def loss(w: jax.Array) -> Any:
        after, sample = rb.sample_(state, rb.key(0), 2)
        return (w * sample.items["x"]).sum(), after

    _, after = jax.grad(loss, has_aux=True)(1.0)
    assert is_gone(state)
    assert int(rb.size(after)) == 3
    with pytest.raises(RuntimeError, match=CONSUMED):
        jax.vjp(loss, 1.0, has_aux=True)


def test_states_that_share_arrays_are_consumed_together() -> None:
    older = filled(LIMITED)
    newer, _ = rb.sample(older, rb.key(0), 2)
    newest = rb.add_(newer, batch(3))
    for state in (older, newer):
        with pytest.raises(RuntimeError, match=CONSUMED):
            rb.sample(state, rb.key(0), 2)
    assert numbers(newest)[:6] == [0, 1, 2, 3, 4, 5]


def test_consumed_states_elsewhere(tmp_path: Path) -> None:
    """Where JAX itself finds the deleted arrays first, it is JAX's error, of the same type."""
    import torch_backend

    state = filled()
    rb.add_(state, batch(3))
    ours = [
        lambda: torch_backend.from_dlpack(state),
        lambda: rb.from_dlpack({"s": state}),
        lambda: rb.state_dict(state),
        lambda: frb.save(state, str(tmp_path)),
        lambda: next(iter(frb.iterate(rb, state, rb.key(0), 2))),
        lambda: rb.jit(rb.size)(state),
        lambda: rb.jit(rb.add)(state, batch(0)),
    ]
    for use in ours:
        with pytest.raises(RuntimeError, match=CONSUMED):
            use()
    for use in (lambda: jax.jit(rb.size)(state), lambda: jax.tree.map(lambda x: x + 1, state)):
        with pytest.raises(RuntimeError, match="Array has been deleted"):
            use()
