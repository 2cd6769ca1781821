"""Ctrl-C in the midst of a call on a shared buffer: no lock stays held, and the buffer is whole for all processes."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.buffer import functions
from functional_rb.native import shared_control as control
from functional_rb.shared.buffer import SharedBuffer
from functional_rb.shared.lock import FileLock
from tests.support import interrupts
from tests.support.effort import effort

LINES = effort(60, 600)
ITEM = {"id": frb.Unbounded((), "int32"), "image": frb.Unbounded((1100,), "uint8")}
CAPACITY = 6


def opened(directory: Path) -> SharedBuffer:
    storage = frb.Memmap(str(directory), shared=True)
    return SharedBuffer.open(frb.BufferSpec(ITEM, CAPACITY, frb.Prioritized(alpha=1.0), storage=storage))


def leaves(*ids: int) -> list[np.ndarray]:
    """Items whose image tells their number too."""
    numbers = np.array(ids, np.int32)
    return [numbers, np.repeat((numbers % 251).astype(np.uint8)[:, None], 1100, 1)]


def is_free(lock: FileLock) -> bool:
    """Whether another process, and another thread of this one, would get the lock at once."""
    other = os.open(lock.path, os.O_RDWR)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(other)
    thread = threading.Thread(target=lock.hold, args=(int, int), daemon=True)
    thread.start()
    thread.join(30)
    return not thread.is_alive()


def stored(shared: SharedBuffer) -> dict[int, float]:
    """The numbers that are there, and their priorities, once what was cut short is repaired; each item is whole."""
    size = int(shared.counters()[1])
    handles = np.arange(4 * CAPACITY, dtype=np.int32)
    live = shared.look(functions.is_live, handles)
    assert np.count_nonzero(live) == size
    numbers, images = shared.get(handles[live])
    np.testing.assert_array_equal(images, leaves(*numbers)[1])
    values = shared.snapshot().tree.reshape(-1)[handles[live] % CAPACITY]
    assert shared.files.control[control.SEQUENCE] % 2 == 0
    return dict(zip(numbers.tolist(), values.tolist(), strict=True))


def add(shared: SharedBuffer) -> None:
    shared.add(leaves(5, 6, 7), 3, None, np.full(3, 9, np.float32))


def update(shared: SharedBuffer) -> None:
    new = dict(enumerate(leaves(12, 13)))
    shared.update(np.array([1, 2], np.int32), np.array([4, 5], np.float32), new)


def read(shared: SharedBuffer) -> None:
    shared.sample(np.full((4, 4), 2**30, np.int32), 0.5)
    shared.get(np.arange(4, dtype=np.int32))
    shared.snapshot()
    shared.look(functions.drawable, 1)


START = {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}
GIVEN = {5: 9.0, 6: 9.0, 7: 9.0}
CASES: dict[str, tuple[Callable[[SharedBuffer], None], list[dict[int, float]]]] = {
    # Cut short, an add has given the places up that it was to write: that of the oldest item too.
    "add": (add, [START, {2: 2.0, 3: 3.0, 4: 4.0}, {2: 2.0, 3: 3.0, 4: 4.0} | GIVEN]),
    "update": (update, [START, {1: 1.0, 12: 4.0, 13: 5.0, 4: 4.0}]),
    "clear": (SharedBuffer.clear, [START, {}]),
    "read": (read, [START]),
}


@pytest.mark.parametrize("name", CASES)
def test_at_every_line(name: str, tmp_path: Path) -> None:
    work, allowed = CASES[name]

    def begun(number: int) -> SharedBuffer:
        shared = opened(tmp_path / str(number))
        shared.add(leaves(1, 2, 3, 4), 4, None, np.arange(1, 5, dtype=np.float32))
        return shared

    work(begun(-2))  # what is looked up once
    places, found = interrupts.lines(work, begun(-1), everywhere=True), []
    for line in interrupts.chosen(places, LINES):
        shared = begun(line)
        assert interrupts.interrupted(line, work, shared, everywhere=True)
        assert is_free(shared.files.lock), f"line {line}"
        found.append(stored(shared))
        assert found[-1] in allowed, f"line {line}"
        work(shared)  # no mark is left either by which this thread would still be at it
        assert is_free(shared.files.lock), f"line {line}"
    assert name == "read" or len({tuple(one.items()) for one in found}) > 1


def test_as_a_buffer_is_made_and_opened(tmp_path: Path) -> None:
    def make(directory: Path) -> None:
        add(opened(directory))

    make(tmp_path / "first")
    places = interrupts.lines(make, tmp_path / "second", everywhere=True)
    for line in interrupts.chosen(places, LINES):
        directory = tmp_path / str(line)
        interrupts.interrupted(line, make, directory, everywhere=True)
        shared = opened(directory)
        assert is_free(shared.files.lock), f"line {line}"
        assert stored(shared) in ({}, GIVEN), f"line {line}"
        add(shared)


def test_a_lock_that_is_taken_again_and_again(tmp_path: Path) -> None:
    lock, calls = FileLock(str(tmp_path / "lock")), []

    def work() -> None:
        calls.append("work")

    def finish() -> None:
        calls.append("finish")

    def hold() -> Any:
        return lock.hold(work, finish)

    for line in range(len(interrupts.lines(hold, everywhere=True))):
        calls.clear()
        assert interrupts.interrupted(line, hold, everywhere=True)
        assert is_free(lock), f"line {line}"
        assert calls in ([], ["finish"], ["work"], ["work", "finish"])
        lock.hold(work, finish)
    assert is_free(lock)


@pytest.mark.parametrize("writes", [1, 3, 100])
def test_what_is_read_beside_writes_is_read_anew_and_takes_the_lock_at_last(tmp_path: Path, writes: int) -> None:
    reader, writer, held = opened(tmp_path / "shared"), opened(tmp_path / "shared"), list[bool]()

    def read(ops: Any, arrays: Any, spec: frb.BufferSpec, wanted: np.ndarray) -> np.ndarray:
        held.append(not is_free(writer._lock))
        if not held[-1] and len(held) <= writes:
            writer.add(leaves(len(held)), 1, None, None)
        return functions.is_live(ops, arrays, spec, wanted)

    live = reader.look(read, np.arange(2 * CAPACITY, dtype=np.int32))
    assert np.count_nonzero(live) == min(writes, control.TRIES, CAPACITY)
    assert held == [False] * min(writes + 1, control.TRIES) + [True] * (writes >= control.TRIES)
