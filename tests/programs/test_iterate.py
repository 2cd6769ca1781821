"""`frb.iterate`: the same samples as a plain loop, whatever the threads do, and none of them left behind."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import subprocess
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import functional_rb as frb
from tests.support.backends import Backend, make
from tests.support.children import program
from tests.support.effort import effort

ROOT = Path(__file__).parents[2]
ITEM = {"x": frb.Unbounded((3,)), "done": frb.Binary()}
BATCH = 4
# Seconds that nothing here should ever take.
PATIENCE = 30.0


def items(n: int, start: int = 0) -> dict[str, Any]:
    """Items of which each says which it is."""
    steps = np.arange(start, start + n, dtype=np.float32)
    return {"x": steps[:, None].repeat(3, 1), "done": steps % 5 == 4}


def filled(library: Backend, sampler: Any = None, n: int = 32) -> Any:
    spec = frb.BufferSpec(ITEM, capacity=32, batch_size=BATCH, sampler=sampler or frb.Uniform())
    return library.rb.add(library.rb.init(spec), library.tree(items(n)))


class Told(NamedTuple):
    """A sample in NumPy."""

    x: list[Any]
    indices: list[int]
    weights: list[float]


def told(library: Backend, sample: Any) -> Told:
    x, indices, weights = (library.numpy(leaf) for leaf in (sample.items["x"], sample.indices, sample.weights))
    return Told(x.tolist(), indices.tolist(), weights.tolist())


def plain(library: Backend, state: Any, seed: int, n: int, changes: dict[int, Any] | None = None) -> list[Told]:
    """The loop that `iterate` stands for; states that are exchanged before the k-th draw."""
    key, found = library.rb.key(seed), []
    for k in range(n):
        state = (changes or {}).get(k, state)
        key, now = library.rb.split(key)
        state, sample = library.rb.sample(state, now, BATCH)
        found.append(told(library, sample))
    return found


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("frb-iterate")]


@contextlib.contextmanager
def nobody_left() -> Iterator[None]:
    """Threads end in a moment, and nobody has to wait for them."""
    if ours():
        gc.collect()  # what other tests have left in cycles
    _wait_until_nobody_is_left()
    yield
    _wait_until_nobody_is_left()


def _wait_until_nobody_is_left() -> None:
    until = time.monotonic() + PATIENCE
    while ours() and time.monotonic() < until:
        time.sleep(0.001)
    assert not ours()


def counting(library: Backend, fails_at: int = -1, error: Any = None, wait: Any = None) -> Any:
    """The backend, its samples counted; the one with a given number fails, each waits for an event if there is one."""
    calls: list[int] = []
    lock = threading.Lock()

    def sample(*arguments: Any) -> Any:
        with lock:
            calls.append(len(calls))
            mine = calls[-1]
        if wait is not None:
            assert wait.wait(PATIENCE)
        if mine == fails_at:
            raise error
        return library.rb.sample(*arguments)

    return SimpleNamespace(
        __name__=library.rb.__name__, sample=sample, split=library.rb.split, calls=calls, add=library.rb.add
    )


SAMPLERS = [frb.Uniform(), frb.Prioritized(), frb.WithoutReplacement()]


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


# --- from several threads, and over cells ---------------------------------------------------------------------------


def in_threads(*functions: Any) -> list[Any]:
    """What functions return that are called at once."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result(PATIENCE) for future in [pool.submit(function) for function in functions]]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_states_are_given_by_other_threads(library: Backend, prefetch: int) -> None:
    rb, given = library.rb, library.tree(items(3, 100))
    batches = frb.iterate(rb, filled(library), rb.key(0), prefetch=frb.Prefetch(batches=prefetch, lag=1), n=30)

    def apply() -> None:
        for _ in range(20):
            batches.apply(rb.add, given)
            assert library.numpy(rb.newest(batches.state, 1)) >= 32

    found = in_threads(lambda: [told(library, sample) for sample in batches], apply, apply)[0]
    assert len(found) == 30
    assert int(rb.cursor(batches.state)) == 32 + 3 * 40, "what was applied is there"


def test_states_are_assigned_by_other_threads(library: Backend) -> None:
    """Of two at once the later is refused, so that nothing is lost."""
    rb, given = library.rb, library.tree(items(3, 100))
    batches = frb.iterate(rb, filled(library), rb.key(0), n=30)

    def assign() -> None:
        done = 0
        while done < 20:
            with contextlib.suppress(RuntimeError):
                batches.state = rb.add(batches.state, given)
                done += 1

    found = in_threads(lambda: [told(library, sample) for sample in batches], assign, assign)[0]
    assert len(found) == 30
    assert int(rb.cursor(batches.state)) == 32 + 3 * 40


def test_a_state_that_is_no_successor_is_refused(library: Backend) -> None:
    """Whoever exchanged the newest since this thread looked; what the thread itself assigned it knows."""
    rb, given = library.rb, library.tree(items(3, 100))
    batches = frb.iterate(rb, filled(library), rb.key(0), prefetch=0)
    mine = rb.add(filled(library), given)
    batches.state = mine  # before anyone else has
    next(batches)
    batches.state = mine = rb.add(mine, given)  # of a variable of one's own
    before = batches.state
    in_threads(lambda: setattr(batches, "state", rb.add(batches.state, given)))
    refused = pytest.raises(RuntimeError, match=r"exchanged by another thread.*write batches\.apply\(rb\.add, items\)")
    with refused:
        batches.state = rb.add(before, given)
    assert int(rb.cursor(batches.state)) == 32 + 9
    batches.state = rb.add(batches.state, given)
    before = batches.state
    batches.apply(rb.add, given)
    with refused:
        batches.state = rb.add(before, given)
    batches.apply(lambda newest: before)  # as it is wanted so
    assert int(rb.cursor(batches.state)) == 32 + 12
    with refused:  # a thread that has never looked, either
        in_threads(lambda: setattr(batches, "state", before))
    batches.apply(rb.add, given)
    with pytest.raises(LookupError):
        batches.apply(raising(LookupError("none left"), lambda state: rb.add_(state, given)))
    batches.state = filled(library)  # nothing is lost that there was


def test_what_a_sampler_remembers_is_not_lost_by_an_assignment(library: Backend) -> None:
    state = filled(library, frb.WithoutReplacement())
    batches = frb.iterate(library.rb, state, library.rb.key(0))
    next(batches)
    with pytest.raises(RuntimeError, match="a sampler that remembers its draws"):
        batches.state = library.rb.add(state, library.tree(items(3, 100)))
    batches.state = library.rb.add(batches.state, library.tree(items(3, 100)))
    batches.close()


def test_each_batch_goes_to_one_of_those_who_ask(library: Backend) -> None:
    state = filled(library)
    batches = frb.iterate(library.rb, state, library.rb.key(3), prefetch=frb.Prefetch(batches=3, threads=2), n=12)
    parts = in_threads(*[lambda: [told(library, sample) for sample in batches]] * 3)
    assert sorted(itertools.chain(*parts)) == sorted(plain(library, state, 3, 12))


def test_closing_beside_those_who_ask(library: Backend) -> None:
    state = filled(library)
    with nobody_left():
        for _ in range(20):
            batches = frb.iterate(library.rb, state, library.rb.key(3), prefetch=2)
            going = threading.Event()

            def ask(batches: Any = batches, going: Any = going) -> int:
                return sum(going.set() is None for _ in batches)

            def close(batches: Any = batches, going: Any = going) -> int:
                assert going.wait(PATIENCE)
                batches.close()
                return 1

            assert all(in_threads(ask, close))
            assert batches.state is state


@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.WithoutReplacement()], ids=repr)
def test_what_applied_functions_return(library: Backend, sampler: frb.Uniform) -> None:
    rb = library.rb
    batches = frb.iterate(rb, filled(library, sampler), rb.key(0), prefetch=2, n=6)
    next(batches)
    assert batches.apply(rb.add, library.tree(items(3)), mask=np.array([True, False, True])) is None
    drawn = batches.apply(rb.sample, rb.key(5), batch_size=2)
    assert drawn.indices.shape == (2,)
    before = batches.state
    with pytest.raises(LookupError):
        batches.apply(raising(LookupError("no such environment")))
    with pytest.raises(TypeError, match=r"iterate, apply: expected the function to return a State, .* got NoneType"):
        batches.apply(lambda state: None)
    with pytest.raises(ValueError, match="expected a state of the same spec"):
        batches.apply(lambda state: filled(library, frb.Recency()))
    for inner in (lambda: batches.state, lambda: next(batches), batches.close, lambda: batches.apply(rb.add, items(1))):
        with pytest.raises(RuntimeError, match="iterate was used by a function that it had called"):
            batches.apply(lambda state, inner=inner: inner())
    assert batches.state is before
    assert len(list(batches)) == 5, "it goes on"


def raising(error: Exception, first: Any = None) -> Any:
    def function(state: Any) -> Any:
        if first is not None:
            first(state)
        raise error

    return function


def test_a_state_that_was_lost_is_told_of_and_replaced(library: Backend) -> None:
    rb, given = library.rb, library.tree(items(3))
    batches = frb.iterate(rb, filled(library), rb.key(0), prefetch=frb.Prefetch(batches=2, lag=1))
    next(batches)
    with pytest.raises(LookupError):
        batches.apply(raising(LookupError("no such environment"), lambda state: rb.add_(state, given)))
    for use in (lambda: next(batches), lambda: batches.state, lambda: batches.apply(rb.add, given)):
        with pytest.raises(RuntimeError, match=r"no state any more.*then failed: LookupError: no such environment; go"):
            use()
    batches.state = filled(library)
    assert len(told(library, next(batches)).x) == BATCH
    batches.close()


@pytest.mark.parametrize("prefetch", [0, 3])
def test_what_is_due_from_a_state_is_drawn_before_that_is_consumed(library: Backend, prefetch: int) -> None:
    state, given = filled(library), library.tree(items(3, 100))
    after = library.rb.add(state, given)
    wanted = plain(library, state, 7, 5, {2: after})
    batches = frb.iterate(
        library.rb,
        library.rb.add(state, given, mask=np.zeros(3, bool)),
        library.rb.key(7),
        prefetch=frb.Prefetch(lag=2),
        n=5,
    )
    batches.apply(library.rb.add_, given)
    assert [told(library, sample) for sample in batches] == wanted


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_a_cell_is_drawn_from_as_it_is(library: Backend, sampler: frb.Uniform) -> None:
    state, rb = filled(library, sampler), library.rb
    cell = frb.Cell(state)
    batches = frb.iterate(rb, cell, rb.key(7), n=6, prefetch=0)
    found, key = [], rb.key(7)
    for k, sample in enumerate(batches):
        key, now = rb.split(key)
        state, wanted = rb.sample(state, now, BATCH)
        found.append(told(library, sample) == told(library, wanted))
        for change in (cell.apply, batches.apply):
            change(rb.add, library.tree(items(3, 100 * k)))
            state = rb.add(state, library.tree(items(3, 100 * k)))
        assert batches.state is cell.state
    assert found == [True] * 6
    assert library.numpy(batches.state.counters).tolist() == library.numpy(state.counters).tolist()
    with pytest.raises(TypeError, match=r"iterator over a Cell cannot be assigned.*batches\.apply\(rb\.add, items\)"):
        batches.state = state


def test_a_cell_ahead_of_its_reader(library: Backend) -> None:
    """What samplers remember goes back into the cell as it is drawn; all is sent to a device, of whatever spec."""
    rb = library.rb
    cell = frb.Cell(filled(library, frb.WithoutReplacement()))
    batches = frb.iterate(
        rb, cell, rb.key(7), prefetch=frb.Prefetch(batches=3, threads=2), n=16, device=a_device(library)
    )
    seen = [x for _ in range(8) for x in told(library, next(batches)).indices]
    assert sorted(seen) == list(range(32)), "each once an epoch, in whatever order threads came"
    if library.library == "torch":  # on JAX it takes seconds to compile this
        cell.put(filled(library, frb.Slices(2)))
    shapes = [sample.items["x"].shape for sample in batches]
    assert shapes[-1] == ((BATCH, 2, 3) if library.library == "torch" else (BATCH, 3))
    with pytest.raises(ValueError, match="expected lag=0 with a Cell, got 1"):
        frb.iterate(rb, cell, rb.key(0), prefetch=frb.Prefetch(lag=1))


def test_within_a_function_of_the_cell_nobody_waits_for_it(library: Backend) -> None:
    rb, cell = library.rb, frb.Cell(filled(library))
    batches = frb.iterate(rb, cell, rb.key(0), prefetch=2)
    next(batches)
    for inner in (lambda: next(batches), batches.close, lambda: batches.state):
        with pytest.raises(RuntimeError, match="Cell was used by a function that it had called"):
            cell.apply(lambda state, inner=inner: inner())
    next(batches)
    batches.close()
    assert int(rb.size(batches.state)) == 32


# --- errors and ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 1, 4])
@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.WithoutReplacement()], ids=repr)
def test_an_error_comes_in_its_batchs_turn_and_once(library: Backend, prefetch: int, sampler: frb.Uniform) -> None:
    state = filled(library, sampler)
    rb = counting(library, 2, LookupError("no such item"))
    found = []
    with nobody_left():
        batches = frb.iterate(rb, state, library.rb.key(3), prefetch=prefetch)
        with pytest.raises(LookupError, match="no such item") as caught:
            found.extend(told(library, sample) for sample in batches)
        assert found == plain(library, state, 3, 2)
        # The traceback tells where in the thread it was, not only where it was waited for.
        assert "return library.rb.sample" not in "".join(traceback.format_tb(caught.tb))
        assert "raise error" in "".join(traceback.format_tb(caught.tb))
        assert list(batches) == []
        assert batches.state is state or sampler.remembers


def test_an_error_in_the_transfer_comes_likewise(library: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def send(self: Any, leaves: Any) -> Any:
        raise OSError("the device is gone")

    monkeypatch.setattr(f"{library.rb.__name__}.interop.transfer.Transfer.send", send)
    with nobody_left():
        batches = frb.iterate(library.rb, filled(library), library.rb.key(0), device=a_device(library))
        with pytest.raises(OSError, match="the device is gone"):
            next(batches)
        assert list(batches) == []


def test_errors_of_sampling_are_those_of_sampling(library: Backend) -> None:
    state = library.rb.init(frb.BufferSpec(ITEM, capacity=8, batch_size=2))
    with nobody_left(), pytest.raises(ValueError, match="empty"):
        next(frb.iterate(library.rb, state, library.rb.key(0)))


def test_an_interrupt_comes_at_once_where_there_are_no_threads(library: Backend) -> None:
    rb = counting(library, 1, KeyboardInterrupt)
    batches = frb.iterate(rb, filled(library), library.rb.key(0), prefetch=frb.Prefetch(batches=0, lag=2))
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert len(rb.calls) == 2
    assert list(batches) == []


class Failure(LookupError):
    """One that can be watched."""


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_keeps_nothing_alive(library: Backend, prefetch: int) -> None:
    """No cycle of the error, its traceback and the batch: what they hold goes when the error does."""
    rb = counting(library, 0, Failure)
    gc.disable()
    try:
        watched = failed(frb.iterate(rb, filled(library), library.rb.key(0), prefetch=prefetch))
        until = time.monotonic() + PATIENCE
        while watched() is not None and time.monotonic() < until:
            time.sleep(0.001)  # a thread may be at its last lines
        assert watched() is None
    finally:
        gc.enable()


def failed(batches: Any) -> weakref.ref[Failure]:
    """The error of the first batch, held by nobody here."""
    try:
        next(batches)
    except Failure as error:
        return weakref.ref(error)
    raise AssertionError("it did not fail")


@pytest.mark.parametrize("prefetch", [0, 2])
def test_break_close_and_with(library: Backend, prefetch: int) -> None:
    state = filled(library)
    with nobody_left():
        for _ in frb.iterate(library.rb, state, library.rb.key(0), prefetch=prefetch):
            break
    batches = frb.iterate(library.rb, state, library.rb.key(0), prefetch=prefetch)
    next(batches)
    batches.close()
    assert not ours()
    batches.close()
    assert list(batches) == []
    assert batches.state is state
    with (
        contextlib.suppress(ZeroDivisionError),
        frb.iterate(library.rb, state, library.rb.key(0), prefetch=prefetch) as batches,
    ):
        next(batches)
        raise ZeroDivisionError
    assert not ours()


def test_close_waits_for_what_is_under_way_and_leaves_the_rest(library: Backend) -> None:
    going = threading.Event()
    rb = counting(library, wait=going)
    batches = frb.iterate(rb, filled(library), library.rb.key(0), prefetch=frb.Prefetch(batches=5, threads=2))
    waiting = threading.Thread(target=lambda: next(batches, None))
    waiting.start()
    until = time.monotonic() + PATIENCE
    while (len(rb.calls), len(batches._drawing.waiting)) != (2, 4) and time.monotonic() < until:
        time.sleep(0.001)
    threading.Timer(0.05, going.set).start()
    batches.close()
    assert not ours()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert len(rb.calls) == 2


def test_closing_wakes_who_waits_for_what_nobody_has_begun(library: Backend) -> None:
    busy = threading.Event()
    batches = frb.iterate(library.rb, filled(library), library.rb.key(0), prefetch=1)
    assert batches._threads is not None
    batches._threads.submit(busy.wait)
    ends: list[Any] = []
    waiting = threading.Thread(target=lambda: ends.append(next(batches, None)))
    waiting.start()
    until = time.monotonic() + PATIENCE
    while len(batches._drawing.waiting) < 2 and time.monotonic() < until:
        time.sleep(0.001)
    threading.Timer(0.05, busy.set).start()
    batches.close()
    waiting.join(PATIENCE)
    assert ends == [None]


def test_a_forgotten_iterator_in_a_cycle_ends_its_threads(library: Backend) -> None:
    with nobody_left():
        batches = frb.iterate(library.rb, filled(library), library.rb.key(0))
        next(batches)
        cycle: list[Any] = [batches]
        cycle.append(cycle)
        del batches, cycle
        gc.collect()


ENDS = {"in_a_step": -signal.SIGINT, "between_steps": -signal.SIGINT, "caught": 0, "while_it_waits": 0}


@pytest.mark.parametrize("end", ENDS)
def test_an_interrupted_program_ends(end: str) -> None:
    code = ENDS[end]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        program("interrupted_training", end),
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "going\n", process.stderr and process.stderr.read()
            time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == code, errors
    assert "Exception ignored" not in errors
    assert ("KeyboardInterrupt" in errors) == (code != 0), errors


# --- devices, arguments ---------------------------------------------------------------------------------------------


def a_device(library: Backend) -> Any:
    if library.library == "torch":
        return "cpu"
    import jax

    return jax.devices()[0]


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
