"""What torch's versions keep for older states, and for how long; that an interrupted write loses none of it."""

from __future__ import annotations

import copy
import gc
import inspect
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import functional_rb as frb
import torch_backend as rb
from functional_rb.buffer import functions
from functional_rb.versions import memory as versioned
from functional_rb.versions import version
from functional_rb.versions.engine import Engine
from functional_rb.versions.recorder import Log
from functional_rb.versions.version import Version, forget_dead
from tests.support import backends, torch_steps
from tests.support.chain_programs import check_books
from tests.support.effort import effort
from tests.support.torch_steps import assert_equal, assert_reads_as, batch, memory_of
from torch_backend.arrays import ops
from torch_backend.engines import execute
from torch_backend.memory.memory import Memory


@pytest.fixture(params=["torch", "torch-core"], autouse=True)
def twin(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs with the compiled kernels and with torch's operations alone."""
    with backends.make(request.param):
        yield request.param


def full(capacity: int = 13, added: int = 17, sampler: Any = None) -> Any:
    return torch_steps.full(frb.Prioritized(alpha=1.0) if sampler is None else sampler, capacity, added=added)


def alive(kind: type) -> int:
    return sum(type(x) is kind for x in gc.get_objects())


@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.Prioritized(alpha=1.0)], ids=repr)
def test_the_usual_loop_keeps_nothing_and_reuses_its_memory(sampler: Any) -> None:
    state = full(sampler=sampler)
    places = [tensor.data_ptr() for tensor in memory_of(state).arrays]
    gc.collect()
    versions, copies = alive(Version), alive(Log)
    gc.disable()  # so that only what reference counts free is freed: no cycle may hold an old state
    try:
        for step in range(50):
            older = weakref.ref(state._version)
            state = rb.add(state, batch(step, 4))
            state, sample = rb.sample(state, rb.key(step), 8)
            priorities = torch.rand(8) if state.spec.plan.tree_shape else None
            state = rb.update(state, sample.indices, priorities, {"id": sample.items["id"]})
            assert older() is None
            memory = memory_of(state)
            assert [tensor.data_ptr() for tensor in memory.arrays] == places
            assert len(memory.history or ()) <= 1
        assert alive(Version) == versions
        assert alive(Log) == copies
    finally:
        gc.enable()
    forget_dead(memory)
    assert not memory.history
    assert memory.retained == 0


def test_what_is_kept_for_one_old_state_is_at_most_one_copy_of_the_storage() -> None:
    first = state = full(capacity=40, added=60)
    frozen, memory = copy.deepcopy(first), memory_of(first)
    most, steps_until_rebuilt = 0, None
    for step in range(100):
        state = rb.add(state, batch(step, 1))
        assert memory_of(state) is memory
        most = max(most, memory.retained)
        assert memory.retained <= memory.nbytes
        if steps_until_rebuilt is None and first._version.memory is not None:
            steps_until_rebuilt = step
    assert steps_until_rebuilt is not None
    # Not at once either: one copy is dear, the rows of a few steps are cheap.
    assert most > memory.nbytes // 2
    forget_dead(memory)
    assert not memory.history
    assert memory.retained == 0
    assert_reads_as(first, frozen)


def test_each_of_many_old_states_costs_at_most_a_copy() -> None:
    states = [full(capacity=20, added=30)]
    frozen = [copy.deepcopy(states[0])]
    gc.collect()
    for step in range(60):
        states.append(rb.add(states[-1], batch(step, 3)))
        frozen.append(copy.deepcopy(states[-1]))
    memory = memory_of(states[-1])
    owned = {id(s._version.memory) for s in states if s._version.memory is not None}
    one_write = 3 * (states[0].spec.item_bytes + 8)
    assert memory.retained <= memory.nbytes + one_write
    assert len(owned) < len(states)
    for state, wanted in zip(states, frozen, strict=True):
        assert_reads_as(state, wanted)


def test_an_older_state_is_as_full_as_it_was_before_another_was_cleared() -> None:
    first = full()
    frozen = copy.deepcopy(first)
    assert rb.size(rb.clear(first)) == 0
    assert_reads_as(first, frozen)


def test_what_was_given_out_is_not_copied_for_a_cleared_state() -> None:
    state = full()
    given, memory = rb.items(state), memory_of(state)
    frozen = copy.deepcopy(given)
    cleared = rb.add(rb.clear(state), batch(40, 3))
    assert memory_of(state) is memory
    assert int(rb.size(cleared)) == 3
    assert_equal(given, frozen)


def test_what_was_kept_for_a_dropped_state_is_no_longer_counted_after_writes_in_place() -> None:
    state = full()
    for step in range(3):
        state = rb.add(state, batch(step, 4))  # the one before lives until it is overwritten here
        state = rb.clear_(state)
        assert memory_of(state).retained == 0


def test_trees_that_were_cleared_are_counted_too() -> None:
    first = state = full()
    frozen = copy.deepcopy(first)
    for _ in range(100):  # each has a tree of its own, which is kept for the first
        state = rb.clear(state)
    assert first._version.memory is not None
    assert_reads_as(first, frozen)


def test_an_old_state_that_was_dropped_is_forgotten() -> None:
    first = full()
    second = rb.add(first, batch(1, 2))
    third = rb.add(second, batch(3, 2))
    memory = memory_of(third)
    assert len(memory.history or ()) == 2
    saved = weakref.ref(first._version)
    del first
    assert saved() is None
    forget_dead(memory)
    assert len(memory.history or ()) == 1
    assert_reads_as(second, rb.add(full(), batch(1, 2)))


@pytest.mark.parametrize("capacity", [5, 200_000], ids=["rebuilt soon", "one long chain"])
def test_very_many_versions_can_be_dropped(twin: str, capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of adds with the first state alive: a chain of versions must not be freed by recursion."""
    if capacity > 5:
        monkeypatch.setattr(versioned, "LEAST", 2**40)  # what is kept for it outgrows a copy
    steps = effort(5_000, 100_000 if capacity > 5 else 20_000)
    if twin != "torch":  # the core is slower
        steps = effort(1_500, 5_000)
    spec = frb.BufferSpec((frb.Unbounded((), "int32"),), capacity)
    first = rb.add(rb.init(spec), (7,))
    state, item = first, (torch.ones(1, dtype=torch.int32),)
    for _ in range(steps):
        state = rb.add(state, item)
    assert int(rb.size(state)) == min(steps + 1, capacity)
    if capacity == 5:
        assert rb.items(first)[0].tolist() == [7, 0, 0, 0, 0]
    else:
        assert first._version.memory is None
    chain = weakref.ref(first._version)
    del first
    assert chain() is None
    assert rb.sample(state, rb.key(0), 4)[1].items[0].sum() >= 4


def test_a_long_chain_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versioned, "LEAST", 2**40)
    spec = frb.BufferSpec((frb.Unbounded((), "int32"),), 40_000, frb.Prioritized(alpha=1.0))
    first = state = rb.add(rb.init(spec), (torch.arange(10, dtype=torch.int32),))
    frozen = copy.deepcopy(first)
    few = len(inspect.stack(0)) + 150
    for step in range(few + 100):  # more than Python's calls may lie in one another while it is read
        state = rb.add(state, (step,), priorities=torch.tensor([float(step + 1)]))
    assert first._version.memory is None
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(few)
    try:
        read = rb.items(first), first.tree, first.counters
    finally:
        sys.setrecursionlimit(usual)
    assert_equal(read, (rb.items(frozen), frozen.tree, frozen.counters))


class Interrupt(BaseException):
    """Stands for Ctrl-C, or memory that runs out."""


@pytest.mark.parametrize("call", range(6))
def test_an_interrupt_while_writing_leaves_older_states_whole(
    twin: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = full()
    state = rb.add(older, batch(30, 2))
    frozen = copy.deepcopy(older), copy.deepcopy(state)
    newest = rb.add(state, batch(50, 2))
    calls = 0
    with monkeypatch.context() as patch:
        if twin == "torch":
            # Wherever the version chain asks Python: for an older state's copy, for a memory of one's own, for an older
            # version's.
            def broken(*args: Any) -> Any:
                raise Interrupt

            if call // 2 == 1:
                assert newest.rows is not None  # which exports it, so that a write begins with a copy
            patch.setattr(Memory, "retains_too_much", True)
            place, name = ((version, "part_with_oldest"), (Memory, "copy"), (Memory, "wait_for_draws"))[call // 2]
            patch.setattr(place, name, broken)
            given = (newest, newest, state)[call // 2]
        else:
            set_at = ops.set_at

            def broken(*args: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > call // 2:
                    raise Interrupt
                return set_at(*args)

            patch.setattr(ops, "set_at", broken)
            given = state
        handles = torch.tensor([12, 12, 13, 18], dtype=torch.int32)
        replaced = {"id": handles, "image": batch(7, 4)["image"]}
        with pytest.raises(Interrupt):
            _ = rb.update(given, handles, torch.ones(4) * 3, replaced) if call % 2 else rb.add(given, batch(90, 5))
    assert_reads_as(state, frozen[1])
    assert_reads_as(older, frozen[0])
    assert_reads_as(rb.add(state, batch(40, 3)), rb.add(frozen[1], batch(40, 3)))


@pytest.mark.parametrize("function", ["add_", "update_"])
def test_an_interrupt_amid_a_write_in_place_leaves_the_state(
    twin: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if twin == "torch":
        pytest.skip("no interrupt comes amid a kernel")
    state, set_at = full(), ops.set_at
    frozen = copy.deepcopy(state)

    def broken(*args: Any) -> Any:
        set_at(*args)
        raise Interrupt

    handles = torch.tensor([12, 12, 13, 18], dtype=torch.int32)
    given = (batch(90, 5),) if function == "add_" else (handles, torch.ones(4) * 3, {"id": handles})
    with monkeypatch.context() as patch:
        patch.setattr(ops, "set_at", broken)
        with pytest.raises(Interrupt):
            getattr(rb, function)(state, *given)
    assert_reads_as(state, frozen)
    assert_reads_as(rb.add_(state, batch(40, 3)), rb.add(frozen, batch(40, 3)))


NAMES = "rows", "tree"
WRITES: dict[str, Any] = {
    "add_": lambda state: rb.add_(state, batch(50, 4)),
    "update_": lambda state: rb.update_(state, torch.arange(5, 9, dtype=torch.int32), torch.full((4,), 7.0)),
    "clear_": rb.clear_,
}


@pytest.mark.parametrize("other", ["exports", "reads piece by piece"])
@pytest.mark.parametrize("write", WRITES)
def test_a_thread_that_comes_before_an_in_place_write_has_the_lock(
    write: str, other: str, twin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread asks for the state's arrays after the call has found that nobody else has any."""
    if twin == "torch":
        pytest.skip("the version chain looks and writes under one lock")
    had: list[Any] = []
    state, looked = full(), Engine._lock_to_write
    wanted = [x.clone() for x in (copy.deepcopy(state).rows, copy.deepcopy(state).tree)]

    def and_then(engine: Engine, *given: Any) -> Any:
        lock = looked(engine, *given)
        had.append(state.exported_memory() if other == "exports" else state.reader())
        return lock

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "_lock_to_write", and_then)
        after = WRITES[write](state)
    assert int(rb.size(after)) == (0 if write == "clear_" else 13)
    mine, *_ = had
    found = [mine.rows, mine.tree] if other == "exports" else [torch.from_numpy(mine.read(x, 0, 99)) for x in NAMES]
    for x, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, expected, rtol=0, atol=0)


def reached(n: int, value: float) -> Any:
    point = {"achieved_goal": torch.full((n, 2), value)}
    flags = {name: torch.zeros(n, dtype=torch.bool) for name in ("terminated", "truncated")}
    return point | flags | {"next": point, "desired_goal": torch.zeros(n, 2), "reward": torch.zeros(n)}


def relabelled(sampler: Any, reward: Any) -> Any:
    """A state whose items get rewards by a function of the user's as they are drawn."""
    her = frb.her("future", 4, reward=reward, achieved_key=("next", "achieved_goal"), goal_keys=("desired_goal",))
    point = {"achieved_goal": frb.Unbounded((2,))}
    flags = {"terminated": frb.Binary(()), "truncated": frb.Binary(())}
    item = point | flags | {"next": point, "desired_goal": frb.Unbounded((2,)), "reward": frb.Unbounded(())}
    return rb.add(rb.init(frb.BufferSpec(item, 8, sampler, transforms=her)), reached(4, 1.0))


@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.WithoutReplacement()], ids=repr)
@pytest.mark.parametrize("function", ["sample", "sample_"])
def test_what_a_failing_function_has_made_of_the_state_stays(function: str, sampler: Any) -> None:
    """A reward adds to the very state that is drawn from, and fails: what it has made has memory of its own."""
    made: list[Any] = []

    def reward(achieved: Any, goal: Any) -> Any:
        made.append(rb.add(state, reached(1, 100.0)))
        raise ArithmeticError("a failing reward")

    state = relabelled(sampler, reward)
    with pytest.raises(ArithmeticError):
        getattr(rb, function)(state, rb.key(0), 4)
    after = rb.add(state, reached(1, 7.0))
    for found, last in ((state, 0.0), (made[0], 100.0), (after, 7.0)):
        assert rb.items(found)["achieved_goal"][:6, 0].tolist() == [1.0, 1.0, 1.0, 1.0, last, 0.0]


def test_what_a_function_has_written_amid_a_draw_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versioned, "LEAST", 2**40)
    made: list[Any] = []

    def reward(achieved: Any, goal: Any) -> Any:
        made.append(rb.add(state, reached(1, 100.0)))
        return torch.zeros(len(achieved))

    state = relabelled(frb.WithoutReplacement(), reward)
    rb.sample(state, rb.key(0), 4)
    check_books(made[0])


def test_an_older_state_hears_of_a_version_with_its_lock_held(monkeypatch: pytest.MonkeyPatch) -> None:
    rebuild, held = Version._rebuild, []
    monkeypatch.setattr(Version, "_rebuild", lambda self: (held.append(self.lock._is_owned()), rebuild(self))[1])
    spec = frb.BufferSpec({"policy_version": frb.Unbounded((), "int32")}, 4, frb.Staleness(max_staleness=0))
    older = rb.add(rb.init(spec), {"policy_version": torch.arange(2, dtype=torch.int32)})
    newer = rb.add(older, {"policy_version": torch.arange(3, dtype=torch.int32)})
    after = rb.update(older, version=1)
    assert held == [True]
    assert rb.probabilities(after, torch.arange(2)).tolist() == [0, 1]
    assert int(rb.size(newer)) == 4


def test_a_draw_in_place_whose_function_fails_costs_no_copy() -> None:
    def failing(items: Any) -> Any:
        raise ArithmeticError("a failing function")

    item = {"x": frb.Unbounded((2,))}
    mapped = frb.map_items(failing, gives=item)
    state = rb.init(frb.BufferSpec(item, 8, frb.WithoutReplacement(), transforms=mapped), items={"x": torch.ones(8, 2)})
    memory = memory_of(state)
    with pytest.raises(ValueError, match="a failing function"):
        rb.sample_(state, rb.key(0), 4)
    assert memory_of(state) is memory


@pytest.mark.parametrize("samplers", [(frb.Uniform(), frb.Prioritized()), (frb.Prioritized(), frb.Uniform())], ids=str)
def test_an_interrupt_before_arrays_are_exchanged_leaves_the_state(
    samplers: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = full(sampler=samplers[0])
    wanted, take = rb.items(copy.deepcopy(state)), Memory.take

    def interrupted(memory: Memory, arrays: Any) -> None:
        monkeypatch.setattr(Memory, "take", take)
        raise KeyboardInterrupt

    monkeypatch.setattr(Memory, "take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rb.with_spec(state, frb.BufferSpec(state.spec.item, state.spec.capacity, samplers[1]))
    after = rb.add(state, batch(50, 2))
    rb.sample(after, rb.key(0), 4)
    assert int(rb.size(after)) == int(rb.size(state)) == 13
    assert_equal(rb.items(state), wanted)


@pytest.mark.parametrize(("writes", "fullest"), [({}, 5), ({"rows": 1}, None), ({"rewrites": True}, None)], ids=repr)
def test_how_full_lanes_are_is_not_known_where_a_function_may_have_added(writes: Any, fullest: int | None) -> None:
    state = full(added=5).note_fullest(5)
    assert execute.write_by(state, functions.cut, **writes).fullest_after(0) == fullest
