"""`frb.Cell`: the newest state, exchanged by one thread at a time; what goes wrong inside of it is told plainly."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support import backends, interrupts
from tests.support.backends import Backend
from tests.support.children import ended, forked

# Seconds that nothing here should ever take.
PATIENCE = 60.0
SPEC = frb.BufferSpec({"x": frb.Unbounded(())}, 64, frb.WithoutReplacement(), batch_size=4)
LOST = "there is no state any more: the newest was consumed by a function that "


def items(start: int = 0, n: int = 4) -> dict[str, Any]:
    return {"x": np.arange(start, start + n, dtype=np.float32)}


@pytest.fixture
def cell(library: Backend) -> frb.Cell:
    return frb.Cell(library.rb.init(SPEC))


@pytest.fixture
def background() -> Iterator[Callable[..., threading.Thread]]:
    """Starts threads that have to end by themselves."""
    started: list[threading.Thread] = []

    def start(function: Any, *args: Any) -> threading.Thread:
        started.append(threading.Thread(target=function, args=args, daemon=True))
        started[-1].start()
        return started[-1]

    yield start
    for thread in started:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def caught(function: Any, *args: Any) -> str:
    """The message of the RuntimeError that it raises."""
    with pytest.raises(RuntimeError) as error:
        function(*args)
    return str(error.value)


def test_states_are_stored_and_results_returned(library: Backend, cell: frb.Cell) -> None:
    rb = library.rb
    assert cell.apply(rb.add, items(), mask=np.array([True, False, True, True])) is None
    assert int(cell.read(rb.size)) == 3
    sample = cell.apply(rb.sample, rb.key(0), batch_size=2)
    rest = cell.apply(rb.sample_, rb.key(0), 1)
    seen = {float(x) for part in (sample, rest) for x in library.numpy(part.items["x"])}
    assert seen == {0.0, 2.0, 3.0}, "what the sampler remembers is stored"
    assert cell.apply(lambda state: (rb.add_(state, items()), "result")) == "result"
    assert int(rb.size(cell.state)) == 7


def test_reading_stores_nothing(library: Backend, cell: frb.Cell) -> None:
    rb = library.rb
    cell.apply(rb.add, items())
    before = cell.state
    after, _ = cell.read(rb.sample, rb.key(0), batch_size=2)
    assert after is not before
    assert cell.state is before
    assert repr(cell) == f"Cell({before!r})"


def test_a_function_that_fails_leaves_the_state(library: Backend, cell: frb.Cell) -> None:
    rb = library.rb
    before = cell.state

    def failing(state: Any) -> Any:
        rb.add(state, items())
        raise LookupError("no such environment")

    for use in (cell.apply, cell.read):
        with pytest.raises(LookupError, match="no such environment"):
            use(failing)
    with pytest.raises(ValueError, match="leaf 'x'"):
        cell.apply(rb.add_, {"x": np.zeros((4, 2), np.float32)})  # refused before anything is consumed
    assert cell.state is before
    cell.apply(rb.add, items())


def test_a_lost_state_is_told_of_at_the_next_use(library: Backend, cell: frb.Cell) -> None:
    rb = library.rb

    def failing(state: Any) -> Any:
        rb.add_(state, items())
        raise LookupError("no such environment")

    with pytest.raises(LookupError):
        cell.apply(failing)
    uses = ((cell.apply, rb.add, items()), (cell.read, rb.size), (cell.wait_for, rb.can_sample), (lambda: cell.state,))
    for use, *given in uses:
        message = caught(use, *given)
        assert message.startswith(f"{LOST}then failed: LookupError: no such environment; go on with another one")
        assert "cell.put(" in message
    cell.put(rb.init(SPEC))
    cell.apply(rb.add_, items())
    assert int(cell.read(rb.size)) == 4


def test_a_state_is_lost_where_it_is_consumed_behind_the_cells_back(library: Backend, cell: frb.Cell) -> None:
    rb = library.rb
    cell.read(rb.add_, items())
    assert caught(cell.apply, rb.add, items()).startswith(f"{LOST}was only to read it;")
    cell.put(rb.init(SPEC))
    rb.add_(cell.state, items())
    assert caught(cell.apply, rb.add, items()).startswith(f"{LOST}was not applied by the cell;")
    cell.put(rb.init(SPEC))

    def returns_the_old_one(state: Any) -> Any:
        rb.add_(state, items())
        return state

    assert "go on with what that returned" in caught(cell.apply, returns_the_old_one)
    assert caught(cell.apply, rb.add, items()).startswith(f"{LOST}then failed: ConsumedError: this state was consumed")


@pytest.mark.parametrize(
    ("returned", "named"),
    [(None, "NoneType"), (3, "int"), ([1, 2], "list"), ((1, 2), "(int, int)"), ((), "tuple")],
)
def test_what_is_no_state_is_not_stored(library: Backend, cell: frb.Cell, returned: Any, named: str) -> None:
    before = cell.state
    with pytest.raises(TypeError) as error:
        cell.apply(lambda state: returned)
    expected = "Cell.apply: expected the function to return a State, or a tuple (State, result), got "
    assert str(error.value) == expected + named
    with pytest.raises(TypeError, match=r"got \(State, int, int\)"):
        cell.apply(lambda state: (state, 1, 2))
    assert cell.state is before


def test_what_is_no_state_is_refused(library: Backend, cell: frb.Cell) -> None:
    with pytest.raises(TypeError, match="Cell: expected a State, got dict"):
        frb.Cell({})  # type: ignore[arg-type]  # refused
    with pytest.raises(TypeError, match="got tuple; unpack it"):
        cell.put(library.rb.sample(library.rb.add(cell.state, items()), library.rb.key(0)))
    consumed = library.rb.init(SPEC)
    library.rb.add_(consumed, items())
    assert "consumed" in caught(frb.Cell, consumed)
    with pytest.raises(TypeError, match=r"got Cell; write cell\.read\(rb\.size, \.\.\.\), or cell\.apply"):
        library.rb.size(cell)


def test_a_cell_within_its_own_function_is_an_error_and_no_deadlock(library: Backend, cell: frb.Cell) -> None:
    rb = library.rb
    other = frb.Cell(rb.init(SPEC))
    uses: list[Callable[[], Any]] = [
        lambda: cell.apply(rb.add, items()),
        lambda: cell.read(rb.size),
        lambda: cell.state,
        lambda: cell.put(other.state),
        lambda: cell.wait_for(rb.can_sample),
    ]
    for outer in (cell.apply, cell.read, cell.wait_for):
        for use in uses:
            message = caught(outer, lambda state, use=use: use())
            assert message.startswith("Cell was used by a function that it had called")
    cell.apply(lambda state: other.apply(rb.add, items()) or state)  # another one
    cell.apply(rb.add, items())
    assert int(cell.read(rb.size)) == int(other.read(rb.size)) == 4


@pytest.mark.parametrize("away", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_is_not_pickled_or_copied(cell: frb.Cell, away: Any) -> None:
    with pytest.raises(TypeError, match=r"cell\.state.*frb\.Memmap\(path, shared=True\)"):
        away(cell)


def test_waiting(library: Backend, cell: frb.Cell, background: Any) -> None:
    rb = library.rb
    looked = threading.Event()
    seen: list[int] = []

    def enough(state: Any) -> bool:
        seen.append(int(rb.size(state)))
        looked.set()
        return bool(rb.can_sample(state, 8))

    def collect() -> None:
        assert looked.wait(PATIENCE)
        for k in range(3):
            cell.apply(rb.add, items(4 * k))

    collector = background(collect)
    cell.wait_for(enough, PATIENCE)
    assert seen[0] == 0
    assert seen[-1] >= 8
    assert seen == sorted(seen)
    collector.join(PATIENCE)
    with pytest.raises(TimeoutError, match=r"did not hold within 0\.01 seconds"):
        cell.wait_for(lambda state: rb.can_sample(state, 64), 0.01)
    with pytest.raises(ZeroDivisionError):
        cell.wait_for(lambda state: 1 / 0)
    cell.wait_for(lambda state: True, -1.0)


def test_those_who_wait_are_told_of_a_lost_state(library: Backend, cell: frb.Cell, background: Any) -> None:
    looked, ends = threading.Event(), []

    def wait() -> None:
        ends.append(caught(cell.wait_for, lambda state: looked.set()))

    waiting = background(wait)
    assert looked.wait(PATIENCE)
    cell.read(library.rb.add_, items())
    waiting.join(PATIENCE)
    assert ends
    assert ends[0].startswith(LOST)


def test_nothing_is_lost_between_threads(library: Backend, cell: frb.Cell, background: Any) -> None:
    rb = library.rb

    def collect(start: int) -> None:
        for k in range(12):
            cell.apply(rb.add_ if k % 2 else rb.add, items(start + 2 * k, 2))

    collectors = [background(collect, start) for start in (0, 100)]
    for collector in collectors:
        collector.join(PATIENCE)
    stored = library.numpy(rb.items(cell.state)["x"])[:48].tolist()
    for start in (0, 100):
        assert [x for x in stored if start <= x < start + 100] == list(range(start, start + 24))


# --- turns ----------------------------------------------------------------------------------------------------------


def test_turns_are_taken_in_order(cell: frb.Cell, background: Any) -> None:
    """Whoever has just been at it comes after those who wait, and is not faster than them."""
    names, order, ready = range(4), list[int](), threading.Barrier(4)

    def turns(name: int) -> None:
        ready.wait(PATIENCE)
        for _ in range(200):
            cell.read(lambda state: (order.append(name), os.sched_yield()))  # others run meanwhile, and come to wait

    for thread in [background(turns, name) for name in names]:
        thread.join(PATIENCE)
    assert len(order) == 800
    # But for a thread that the system stops between two turns of its own.
    rounds = [len({*order[k : k + len(names)]}) == len(names) for k in range(800 - len(names))]
    assert np.mean(rounds) > 0.5


@pytest.mark.parametrize("waits", [False, True])
def test_an_interrupt_at_any_line_leaves_the_queue(cell: frb.Cell, background: Any, waits: bool) -> None:
    """While it waits in the queue; as it has become the first; and as the function is called."""

    def interrupting(state: Any) -> None:
        raise KeyboardInterrupt

    line, came = 0, True
    while came:
        begun, order = threading.Event(), list[str]()

        def hold(state: Any, begun: threading.Event = begun, order: list[str] = order) -> None:
            begun.set()
            threading.Event().wait(0.02)  # meanwhile others come to wait
            order.append("held")

        def look(state: Any, order: list[str] = order) -> None:
            order.append("looked")

        holding = background(cell.read, hold) if waits else None
        assert not waits or begun.wait(PATIENCE)
        came = interrupts.interrupted(line, cell.read, look)
        interrupts.finished(cell.read, look)
        if holding is not None:
            holding.join(PATIENCE)
        assert order.index("looked") == waits, "nobody else has a turn meanwhile"
        line += 1
    assert line > 10
    with pytest.raises(KeyboardInterrupt):
        cell.read(interrupting)
    assert cell.read(lambda state: 2) == 2


def test_a_forked_process_is_told_whose_files_they_are(tmp_path: Path) -> None:
    with backends.make("torch") as library:
        cell = frb.Cell(library.rb.init(dataclasses.replace(SPEC, storage=frb.Memmap(tmp_path))))

        def asks() -> None:
            for call in (lambda: cell.state, lambda: cell.apply(library.rb.add, items())):
                assert "this state's files belong to the process that made it" in caught(call)

        ended(forked(asks))
        cell.apply(library.rb.add, items())


def test_a_forked_process_does_not_wait_for_threads_that_it_has_not(background: Any) -> None:
    with backends.make("torch") as library:
        cell = frb.Cell(library.rb.init(SPEC))
        begun, going = threading.Event(), threading.Event()

        def hold(state: Any) -> Any:
            begun.set()
            assert going.wait(PATIENCE)
            return state

        background(cell.apply, hold)
        assert begun.wait(PATIENCE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a process with threads is forked
            child = os.fork()
        if not child:
            signal.alarm(int(PATIENCE))
            try:
                cell.apply(library.rb.add, items())
                cell.wait_for(lambda state: library.rb.can_sample(state, 4), 0)
                os._exit(0)
            finally:
                os._exit(1)
        try:
            assert os.waitpid(child, 0)[1] == 0
        finally:
            going.set()
