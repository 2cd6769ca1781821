"""`frb.iterate`: the same samples as a plain loop, whatever the threads do; devices and arguments."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import functional_rb as frb
from tests.programs.iterating import (
    BATCH,
    ITEM,
    PATIENCE,
    SAMPLERS,
    a_device,
    counting,
    filled,
    items,
    nobody_left,
    ours,
    plain,
    told,
)
from tests.support.backends import Backend, make
from tests.support.effort import effort


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_batches_are_those_of_a_plain_loop(library: Backend, sampler: frb.Uniform) -> None:
    state = filled(library, sampler)
    wanted = plain(library, state, 3, 6)
    for prefetch, threads in ((0, 1), (1, 1), (2, 3), (9, 2)):
        with nobody_left():
            batches = frb.iterate(
                library.rb,
                state,
                library.rb.key(3),
                prefetch=frb.Prefetch(batches=prefetch, threads=threads),
                n=6,
            )
            assert [told(library, sample) for sample in batches] == wanted
            assert plain(library, batches.state, 4, 1) == plain(library, last_state(library, state, 3, 6), 4, 1)


def last_state(library: Backend, state: Any, seed: int, n: int) -> Any:
    key = library.rb.key(seed)
    for _ in range(n):
        key, now = library.rb.split(key)
        state, _ = library.rb.sample(state, now, BATCH)
    return state


class Plan(NamedTuple):
    """What a consumer does: before which batches it gives a new state, and before which it only looks at it."""

    n: int
    gives: frozenset[int]
    looks: frozenset[int]


PLANS = st.integers(0, 8).flatmap(
    lambda n: st.builds(Plan, st.just(n), *(st.frozensets(st.integers(1, max(n, 1)), max_size=4) for _ in range(2)))
)


def run_plan(library: Backend, state: Any, plan: Plan, prefetch: int, threads: int, lag: int) -> None:
    """Follow a plan with `iterate`, and with a loop over the states that the plan says are drawn from."""
    changes, found, current = {}, [], state
    batches = frb.iterate(
        library.rb,
        state,
        library.rb.key(7),
        prefetch=frb.Prefetch(batches=prefetch, threads=threads, lag=lag),
        n=plan.n,
    )
    for k in range(plan.n):
        if k in plan.looks:
            current = batches.state
        if k in plan.gives:
            given = library.tree(items(3, 100 * k))
            if k % 2:
                batches.apply(library.rb.add, given)
            else:
                batches.state = library.rb.add(batches.state, given)
            current = batches.state
            changes[k + lag] = current
        found.append(told(library, next(batches)))
    with pytest.raises(StopIteration):
        next(batches)
    assert found == plain(library, state, 7, plan.n, changes)
    if plan.gives and not state.spec.sampler.remembers:
        assert batches.state is current


@hypothesis.settings(max_examples=effort(20, 80))
@hypothesis.given(
    plan=PLANS,
    prefetch=st.integers(0, 4),
    threads=st.integers(1, 3),
    lag=st.integers(0, 3),
    sampler=st.sampled_from(SAMPLERS),
)
def test_states_that_are_given_are_drawn_from_in_time(
    plan: Plan, prefetch: int, threads: int, lag: int, sampler: frb.Uniform
) -> None:
    with make("torch") as library, nobody_left():
        run_plan(library, filled(library, sampler), plan, prefetch, threads, 0 if sampler.remembers else lag)


@pytest.mark.parametrize("lag", [0, 2])
def test_states_that_are_given_on_jax(lag: int) -> None:
    with make("jax") as library, nobody_left():
        run_plan(library, filled(library), Plan(7, frozenset({1, 2, 5}), frozenset({3})), 2, 2, lag)


def test_within_a_compiled_function_nothing_is_drawn_ahead() -> None:
    import jax

    import jax_backend as rb

    state = rb.add(rb.init(frb.BufferSpec(frb.Unbounded(()), 8)), np.arange(8, dtype=np.float32))

    def drawn(key: Any, prefetch: int) -> list[Any]:
        return [sample.items for sample in frb.iterate(rb, state, key, 3, n=2, prefetch=prefetch)]

    compiled = jax.jit(drawn, static_argnums=1)
    assert np.array_equal(compiled(rb.key(1), 0), drawn(rb.key(1), 2))
    with pytest.raises(TypeError, match=r"iterate: within a compiled function .* prefetch is 2; give prefetch=0"):
        compiled(rb.key(1), 2)
    with pytest.raises(TypeError, match="within a compiled function"):
        jax.jit(lambda: drawn(rb.key(1), 1))()


def test_a_donated_state_can_be_given_back() -> None:
    import jax

    with make("jax") as library:
        add = jax.jit(library.rb.add, donate_argnums=0)
        found = []
        for prefetch, threads in ((0, 1), (3, 2)):
            batches = frb.iterate(
                library.rb,
                filled(library),
                library.rb.key(0),
                prefetch=frb.Prefetch(batches=prefetch, threads=threads, lag=2),
                n=12,
            )
            found.append([])
            for k, sample in enumerate(batches):
                found[-1].append(told(library, sample))
                if k % 3 == 0:
                    batches.state = add(batches.state, library.tree(items(3, 100 * k)))
        assert found[0] == found[1]


@pytest.mark.parametrize("sampler", [frb.Prioritized(), frb.WithoutReplacement()], ids=repr)
def test_a_state_is_a_value_while_others_add_to_its_successors(library: Backend, sampler: frb.Uniform) -> None:
    state = filled(library, sampler)
    wanted, newest = plain(library, state, 5, 12), state
    batches = frb.iterate(library.rb, state, library.rb.key(5), prefetch=frb.Prefetch(batches=4, threads=3), n=12)
    found = []
    for k, sample in enumerate(batches):
        found.append(told(library, sample))
        newest = library.rb.add(newest, library.tree(items(5, 1000 * k)))
    assert found == wanted


def test_nothing_is_drawn_ahead_where_a_state_is_given_each_time(library: Backend) -> None:
    rb = counting(library)
    batches = frb.iterate(rb, filled(library), library.rb.key(0), n=10, prefetch=3)
    for _ in range(10):
        batches.state = rb.add(batches.state, library.tree(items(1)))
        next(batches)
    assert len(rb.calls) == 10


def test_what_is_taken_back_is_drawn_later_in_the_same_order(library: Backend) -> None:
    """All but the first wait, so that several have not been begun when the state is read."""
    go, first, state = threading.Event(), [True], filled(library)
    rb = counting(library, wait=SimpleNamespace(wait=lambda patience: first.pop() if first else go.wait(patience)))
    with frb.iterate(rb, state, library.rb.key(3), n=6, prefetch=4) as batches:
        found = [told(library, next(batches))]
        threading.Timer(0.02, go.set).start()
        assert batches.state is state
        found += [told(library, sample) for sample in batches]
    assert found == plain(library, state, 3, 6)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_as_many_are_drawn_ahead_as_was_asked_for(library: Backend, prefetch: int) -> None:
    rb = counting(library)
    with frb.iterate(rb, filled(library), library.rb.key(0), prefetch=prefetch) as batches:
        next(batches)
        assert batches.state is not None  # waits for what was begun, and takes the rest back
        assert len(rb.calls) <= prefetch + 1
        next(batches)
        until = time.monotonic() + PATIENCE
        while len(rb.calls) < prefetch + 2 and time.monotonic() < until:
            time.sleep(0.001)
    assert len(rb.calls) == prefetch + 2


def test_batches_are_drawn_while_the_caller_is_busy(library: Backend) -> None:
    rb = counting(library)
    with frb.iterate(rb, filled(library), library.rb.key(0), prefetch=2) as batches:
        next(batches)
        until = time.monotonic() + PATIENCE
        while len(rb.calls) < 3 and time.monotonic() < until:
            time.sleep(0.001)
        assert len(rb.calls) == 3


def test_several_threads_draw_at_once(library: Backend) -> None:
    meeting = threading.Barrier(3)

    class Meeting:
        def wait(self, patience: float) -> bool:
            return meeting.wait(patience) >= 0

    rb = counting(library, wait=Meeting())
    assert (
        len(list(frb.iterate(rb, filled(library), library.rb.key(0), prefetch=frb.Prefetch(batches=2, threads=3), n=3)))
        == 3
    )


@pytest.mark.parametrize("n", [0, 1])
def test_short_ones(library: Backend, n: int) -> None:
    rb = counting(library)
    with nobody_left():
        assert len(list(frb.iterate(rb, filled(library), library.rb.key(0), n=n))) == len(rb.calls) == n


# --- devices, arguments ---------------------------------------------------------------------------------------------


def test_all_of_a_sample_goes_to_the_device() -> None:
    import torch

    with make("torch") as library:
        state = filled(library, frb.Slices(2), n=32)
        (sample,) = frb.iterate(library.rb, state, library.rb.key(0), n=1, device="meta")
        (drawn,) = frb.iterate(library.rb, state, library.rb.key(0), n=1)
    assert type(sample) is type(drawn)
    told_of, wanted = ({**given.items, **given._asdict(), **given.extras} for given in (sample, drawn))
    assert list(told_of) == list(wanted)
    for name, leaf in told_of.items():
        if isinstance(leaf, torch.Tensor):
            assert (leaf.device.type, leaf.shape, leaf.dtype) == ("meta", wanted[name].shape, wanted[name].dtype)
    assert sum(isinstance(leaf, torch.Tensor) for leaf in told_of.values()) >= 9


@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_was_moved_is_what_was_drawn(library: Backend, prefetch: int) -> None:
    state = filled(library, frb.Prioritized())
    batches = frb.iterate(library.rb, state, library.rb.key(3), n=3, prefetch=prefetch, device=a_device(library))
    assert [told(library, sample) for sample in batches] == plain(library, state, 3, 3)
    if library.library == "jax":
        (sample,) = frb.iterate(library.rb, state, library.rb.key(3), n=1, device=a_device(library))
        assert sample.items["x"].committed


def test_objects_and_containers_come_through() -> None:
    import torch
    from tensordict import TensorDict

    with make("torch") as library:
        example = TensorDict({"a": torch.zeros(4, 2), "name": ["zero", "one", "two", "three"]}, batch_size=[4])
        state = library.rb.add(library.rb.init(frb.BufferSpec(frb.specs.spec_of(example[0]), capacity=8)), example)
        (sample,) = frb.iterate(library.rb, state, library.rb.key(0), 3, n=1, device="cpu")
    assert isinstance(sample.items, TensorDict)
    assert sample.items.batch_size == (3,)
    assert set(sample.items["name"]) <= {"zero", "one", "two", "three"}


@pytest.mark.gpu
def test_to_cuda_and_back() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    with make("torch") as library:
        state = filled(library, frb.Prioritized())
        wanted = plain(library, state, 3, 20)
        found = []
        for sample in frb.iterate(
            library.rb, state, library.rb.key(3), prefetch=frb.Prefetch(batches=3, threads=2), n=20, device="cuda"
        ):
            assert sample.items["x"].is_cuda
            assert sample.weights.is_cuda
            moved = sample._replace(
                items={"x": sample.items["x"].cpu()}, indices=sample.indices.cpu(), weights=sample.weights.cpu()
            )
            found.append(told(library, moved))
        assert found == wanted


def test_beta_may_follow_the_batches_number(library: Backend) -> None:
    state = library.rb.update(
        filled(library, frb.Prioritized()),
        library.array(np.arange(8, dtype=np.int32)),
        library.array(np.arange(1, 9, dtype=np.float32)),
    )
    key, wanted = library.rb.key(3), []
    for k in range(4):
        key, now = library.rb.split(key)
        wanted.append(told(library, library.rb.sample(state, now, BATCH, beta=0.25 * k)[1]))
    batches = frb.iterate(
        library.rb, state, library.rb.key(3), prefetch=frb.Prefetch(threads=2), n=4, beta=lambda k: 0.25 * k
    )
    assert [told(library, sample) for sample in batches] == wanted
    (first,) = frb.iterate(library.rb, state, library.rb.key(3), n=1, beta=0.0)
    assert told(library, first) == wanted[0]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"prefetch": -1}, ValueError, "iterate: expected prefetch >= 0, got -1"),
        ({"prefetch": frb.Prefetch(threads=0)}, ValueError, "expected threads >= 1, got 0; give prefetch=0"),
        ({"n": 2.5}, TypeError, "expected n as a Python int"),
        ({"prefetch": frb.Prefetch(lag=True)}, TypeError, "expected lag as a Python int"),
        ({"batch_size": None}, ValueError, "batch_size is missing"),
        ({"state": 3}, TypeError, "iterate"),
    ],
)
def test_bad_arguments(library: Backend, change: dict[str, Any], error: type[Exception], message: str) -> None:
    spec = frb.BufferSpec(ITEM, capacity=8)
    given = {"state": library.rb.init(spec), "batch_size": 2, "key": library.rb.key(0)} | change
    with pytest.raises(error, match=message):
        frb.iterate(library.rb, **given)
    assert not ours()


def test_bad_states(library: Backend) -> None:
    remembering = filled(library, frb.WithoutReplacement())
    with pytest.raises(ValueError, match=r"lag=0 with WithoutReplacement, which remembers what it drew, got 1"):
        frb.iterate(library.rb, remembering, library.rb.key(0), prefetch=frb.Prefetch(lag=1))
    with frb.iterate(library.rb, remembering, library.rb.key(0)) as batches:
        with pytest.raises(ValueError, match="a state of the same spec"):
            batches.state = filled(library)
        with pytest.raises(TypeError, match="iterate"):
            batches.state = None
        next(batches)  # it goes on
