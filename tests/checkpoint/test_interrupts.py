"""Ctrl-C in the midst of a save: what loads is the checkpoint before, or the new one, and the next save works."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import torch_backend as rb
from tests.support import interrupts
from tests.support.effort import effort

LINES = effort(10, 1000)
STEP = {"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((2,))}


def steps(first: int, n: int) -> dict[str, np.ndarray]:
    ids = np.arange(first, first + n, dtype=np.int32)
    return {"id": ids, "x": np.stack([ids, -ids], 1).astype(np.float32)}


def ids(state: Any) -> list[int]:
    """What is stored, by slot."""
    found: list[int] = rb.get(state, np.arange(int(rb.size(state)), dtype=np.int32))["id"].tolist()
    return found


def is_free(path: Path) -> bool:
    """Whether the lock of a directory would be given to another process at once."""
    if not path.exists():
        return True
    lock = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def check_saved(state: Any, directory: Path, older: list[int], newer: list[int], line: int) -> None:
    """Old or new; and the next save finds nothing in its way."""
    assert is_free(directory / "lock"), f"line {line}"
    assert ids(state) == newer, f"line {line}"
    assert ids(frb.load(directory, rb, storage=frb.Device())) in (older, newer), f"line {line}"
    interrupts.finished(frb.save, state, directory)
    assert ids(frb.load(directory, rb, storage=frb.Device())) == newer, f"line {line}"
    saving: Any = frb.save(state, directory, incremental=True, background=True)
    interrupts.finished(saving.result)
    handle = type(saving)
    del saving
    wait_for_saves()
    gc.collect()
    assert not any(type(left) is handle for left in gc.get_objects()), f"line {line}"


def wait_for_saves() -> None:
    """Until those in the background have ended."""
    for thread in threading.enumerate():
        if thread.name == "functional_rb.save":
            interrupts.finished(thread.join)


def save(state: Any, directory: Path) -> None:
    frb.save(state, directory, incremental=True)


def save_in_the_background(state: Any, directory: Path) -> None:
    frb.save(state, directory, incremental=True, background=True).result(60)


@pytest.mark.parametrize("storage", ["device", "memmap"])
@pytest.mark.parametrize("function", [save, save_in_the_background])
def test_a_save_at_every_line(function: Any, storage: str, tmp_path: Path) -> None:
    older, newer = [*range(4)], [*range(6)]

    def begun(number: int) -> tuple[Any, Path]:
        directory = tmp_path / str(number)
        place = frb.Memmap(str(directory)) if storage == "memmap" else frb.Device()
        state = rb.add(rb.init(frb.BufferSpec(STEP, 8, storage=place)), steps(0, 4))
        frb.save(state, directory)
        return rb.add(state, steps(4, 2)), directory

    function(*begun(-1))
    places = interrupts.lines(function, *begun(-2))
    # What a thread and its turn are is the same wherever rows lie: so every line of these once.
    always = ("checkpoint/background.py",) if storage == "device" else ()
    for line in interrupts.chosen(places, LINES, always=always):
        state, directory = begun(line)
        interrupts.interrupted(line, function, state, directory)
        wait_for_saves()
        check_saved(state, directory, older, newer, line)


@pytest.mark.parametrize("beside", [False, True])
def test_a_signal_handler_that_saves_amid_a_save_is_refused(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for itself for ever. One that comes while another thread saves waits for that."""
    state = rb.add(rb.init(frb.BufferSpec(STEP, 8)), steps(0, 4))
    newer = rb.add(state, steps(4, 2))
    refused: list[str] = []

    def save(number: int, frame: Any) -> None:
        try:
            frb.save(newer, tmp_path)
            refused.append("")
        except RuntimeError as error:
            refused.append(str(error))

    fsync = os.fsync

    def signalled(fd: int) -> None:
        fsync(fd)
        if not refused:
            signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, save)
    try:
        if beside:
            saving = frb.save(state, tmp_path, background=True)
            signal.raise_signal(signal.SIGTERM)
            saving.result()
        else:
            monkeypatch.setattr(os, "fsync", signalled)
            frb.save(state, tmp_path)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(refused) == 1
    assert ("this thread is writing there already" in refused[0]) != beside
    assert ids(frb.load(tmp_path, rb)) == ids(newer if beside else state)
    frb.save(newer, tmp_path)
    assert ids(frb.load(tmp_path, rb)) == ids(newer)


def test_a_signal_handler_that_saves_as_a_save_in_the_background_begins(tmp_path: Path) -> None:
    """It came while the versions of the state were gone through, and added one: "deque mutated during iteration"."""
    older = rb.add(rb.init(frb.BufferSpec(STEP, 8)), steps(0, 4))
    state = rb.add(older, steps(4, 2))
    seen = 0

    def save_at(line: int) -> None:
        nonlocal seen
        seen = 0

        def at_line(frame: types.FrameType, event: str, _: Any) -> Any:
            nonlocal seen
            if event == "line":
                seen += 1
                if seen - 1 == line:
                    sys.settrace(None)
                    frb.save(state, tmp_path / f"{line} by the handler")
            return at_line

        def at_call(frame: types.FrameType, event: str, _: Any) -> Any:
            return at_line if frame.f_code.co_filename.endswith("versions/reader.py") else None

        before = sys.gettrace()
        sys.settrace(at_call)
        try:
            saving = frb.save(older, tmp_path / f"{line}", background=True)
        finally:
            sys.settrace(before)
        saving.result()

    save_at(-1)
    for line in range(seen):
        save_at(line)
        assert ids(frb.load(tmp_path / f"{line}", rb)) == [*range(4)], line
        assert ids(frb.load(tmp_path / f"{line} by the handler", rb)) == [*range(6)], line
    rb.add(state, steps(6, 4))
    assert (ids(older), ids(state)) == ([*range(4)], [*range(6)])


def test_loading_at_every_line(tmp_path: Path) -> None:
    state = rb.add(rb.init(frb.BufferSpec(STEP, 8, storage=frb.Memmap(str(tmp_path)))), steps(0, 4))
    frb.save(state, tmp_path)
    del state

    def load() -> Any:
        return frb.load(tmp_path, rb)

    load()
    for line in interrupts.chosen(interrupts.lines(load), LINES):
        interrupts.interrupted(line, load)
        assert ids(load()) == [*range(4)], f"line {line}"


def test_making_mapped_files_at_every_line(tmp_path: Path) -> None:
    def make(directory: Path) -> Any:
        storage = frb.Memmap(str(directory), existsok=True)
        return rb.add(rb.init(frb.BufferSpec(STEP, 8, storage=storage)), steps(0, 4))

    make(tmp_path / "first")
    places = interrupts.lines(make, tmp_path / "second")
    for line in interrupts.chosen(places, LINES):
        interrupts.interrupted(line, make, tmp_path / str(line))
        assert ids(make(tmp_path / str(line))) == [*range(4)], f"line {line}"
