"""`frb.iterate` from several threads at once, and over cells that others write to."""

from __future__ import annotations

import contextlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.programs.iterating import BATCH, PATIENCE, SAMPLERS, a_device, filled, items, nobody_left, plain, told
from tests.support.backends import Backend


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
    assert int(rb.counts(batches.state).cursor) == 32 + 3 * 40, "what was applied is there"


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
    assert int(rb.counts(batches.state).cursor) == 32 + 3 * 40


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
    assert int(rb.counts(batches.state).cursor) == 32 + 9
    batches.state = rb.add(batches.state, given)
    before = batches.state
    batches.apply(rb.add, given)
    with refused:
        batches.state = rb.add(before, given)
    batches.apply(lambda newest: before)  # as it is wanted so
    assert int(rb.counts(batches.state).cursor) == 32 + 12
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
