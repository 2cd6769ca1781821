"""How batches of `frb.iterate` end: by errors, interrupts and closing; no thread is left behind."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import signal
import subprocess
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import functional_rb as frb
from tests.programs.iterating import ITEM, PATIENCE, ROOT, a_device, counting, filled, nobody_left, ours, plain, told
from tests.support.backends import Backend
from tests.support.children import program


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


@pytest.mark.parametrize("away", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_iterator_is_not_pickled_or_copied(library: Backend, away: Callable[[Any], Any]) -> None:
    """As the attribute of a dataset, say, whose loader starts workers."""
    batches = frb.iterate(library.rb, filled(library, frb.Uniform()), library.rb.key(0), 4)
    with batches, pytest.raises(TypeError, match=r"threads of one process.*pass its state \(batches.state\)"):
        away(batches)
