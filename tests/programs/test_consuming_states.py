"""Programs that write in place by consuming the state: `add_` and the like, on every storage, and `rb.jit`."""

from __future__ import annotations

import copy
import dataclasses
import gc
import itertools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import functional_rb as frb
import jax_backend
from jax_backend.compiling import copies
from tests.support import backends, gpu, lives
from tests.support.backends import Backend, needs_native
from tests.support.compiled_programs import big_copies
from tests.support.lives import live_on_torch
from tests.support.members import LANES, MEMBERS, Member
from tests.support.xla_options import AS_USERS

rb = jax_backend
CONSUMED = r"this state was consumed by an in-place function.*go on with what that returned"
SPEC = frb.BufferSpec({"x": frb.Unbounded((2,)), "n": frb.Unbounded((), "int32")}, 8, frb.Prioritized())
UNIFORM = dataclasses.replace(SPEC, sampler=frb.Uniform())
# Of a sampler that remembers what it drew.
LIMITED = dataclasses.replace(SPEC, sampler=frb.Uniform(max_times_sampled=2))
HANDLES, PRIORITIES = np.arange(3, dtype=np.int32), np.ones(3, np.float32)


def batch(start: int, count: int = 3) -> dict[str, np.ndarray]:
    numbers = np.arange(start, start + count, dtype=np.int32)
    return {"x": np.stack([numbers, -numbers], 1).astype(np.float32), "n": numbers}


def filled(spec: frb.BufferSpec = SPEC, rb: Any = jax_backend) -> Any:
    return rb.add(rb.init(spec), batch(0))


def is_gone(state: Any) -> bool:
    """All of it, as JAX says."""
    return all(x.is_deleted() for x in jax.tree.leaves(state))


def numbers(state: Any) -> list[int]:
    return rb.items(state)["n"].tolist()


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


# ---------------------------------------------------------------- rb.jit: what it donates


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


def test_of_two_alike_one_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one cannot be told: both stay, with a warning if they are large."""
    monkeypatch.setattr(copies, "_warned", set())
    expert, agent = filled(), filled()
    join = rb.jit(lambda expert, agent: rb.add(agent, rb.items(expert)))
    after = join(expert, agent)
    assert numbers(expert) == numbers(agent) == [0, 1, 2, 0, 0, 0, 0, 0]
    assert int(rb.size(after)) == 8
    monkeypatch.setattr(copies, "LARGE", 100)
    both = rb.jit(lambda expert, agent: rb.add(agent, rb.items(expert)))
    with pytest.warns(
        frb.errors.LargeCopyWarning, match=r"is given 2 states of one spec and returns 1.*return them all"
    ) as told:
        both(expert, agent)
    assert told[0].filename == __file__
    pair = rb.jit(lambda expert, agent: (expert, rb.add(agent, rb.items(expert))))
    pair(expert, agent)
    assert is_gone((expert, agent))


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


# ---------------------------------------------------------------- rb.jit: as jax.jit


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
    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"function branch at .*consuming.*items\['n'\]"):
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


# ---------------------------------------------------------------- rb.jit: the same on both


@dataclasses.dataclass
class Plain:
    buffer: Any
    key: Any


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


# ---------------------------------------------------------------- the in-place forms, on every storage

STORAGES = {
    "device": lambda path: frb.Device(),
    "host": lambda path: frb.Host(),
    "objects": lambda path: frb.Objects(),
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


# ---------------------------------------------------------------- the warning


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been told yet, and what is large is 80 bytes: of 96 of rows, and 64 of the tree."""
    monkeypatch.setattr(copies, "_warned", set())
    monkeypatch.setattr(copies, "LARGE", 80)


def test_a_large_copy_is_told_of_once(large: None) -> None:
    state = rb.init(SPEC)
    with pytest.warns(
        frb.errors.LargeCopyWarning, match=r"rb\.add: copied 0 MB.*state = rb\.add_\(state, \.\.\.\)"
    ) as told:
        state = rb.add(state, batch(0))
    assert (len(told), told[0].filename) == (1, __file__)
    state = rb.add(state, batch(3))  # a second time it would be an error
    new = {"n": HANDLES + 7}
    with pytest.warns(frb.errors.LargeCopyWarning, match=r"rb\.update: copied.*rb\.update_"):
        state = rb.update(state, HANDLES, PRIORITIES, new)
    state = rb.update(state, HANDLES, PRIORITIES, new)
    assert int(rb.size(state)) == 6
    limited = rb.init(LIMITED, items=batch(0))
    copies.LARGE = 30
    with pytest.warns(frb.errors.LargeCopyWarning, match=r"rb\.sample: copied.*rb\.sample_"):
        rb.sample(limited, rb.key(0), 2)


def test_what_copies_little_or_must_is_not_told_of(large: None) -> None:
    state = rb.init(SPEC, items=batch(0))  # nobody else has the state that is filled
    state = rb.update(state, HANDLES, PRIORITIES)  # the tree alone
    rb.sample(state, rb.key(0), 2)
    jax.jit(rb.add)(state, batch(3))
    jax.vmap(rb.clear)(jax.tree.map(lambda x: x[None], state))
    state = rb.update_(rb.sample_(rb.add_(state, batch(3)), rb.key(0), 2)[0], HANDLES, PRIORITIES, {"n": HANDLES + 7})
    rb.add(rb.init(dataclasses.replace(SPEC, storage=frb.Host())), batch(0))
    assert not copies._warned


def test_the_limit_of_the_warning() -> None:
    assert copies.LARGE == 16 * 2**20
    assert issubclass(frb.errors.LargeCopyWarning, UserWarning)
