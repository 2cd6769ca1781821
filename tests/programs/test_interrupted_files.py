"""Ctrl-C in whatever opens files: once the error is gone no file stays open, and the same call works."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import functional_rb as frb
import torch_backend as rb
from tests.datasets.made_up import MadeUp
from tests.support import interrupts
from tests.support.effort import effort

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")

STEP = {"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((2,))}
ITEMS = {"id": np.arange(4, dtype=np.int32), "x": np.ones((4, 2), np.float32)}
SOURCE = MadeUp([3, 2, 4], ())


def mapped(path: Path) -> None:
    """Files are made, saved to, and opened again: to be written to, and only read."""
    state = rb.add(rb.init(frb.BufferSpec(STEP, 8, storage=frb.Memmap(str(path)))), ITEMS)
    frb.save(state, path)
    frb.save(rb.add(state, ITEMS), path)
    del state
    frb.load(path, rb)
    assert int(rb.size(frb.load(path, rb, storage=frb.Host()))) == 8


def saved(path: Path) -> None:
    state = rb.add(rb.init(frb.BufferSpec(STEP, 8)), ITEMS)
    frb.save(state, path)
    frb.save(rb.add(state, ITEMS), path, incremental=True)
    assert int(rb.size(frb.load(path, rb))) == 8


def shared(path: Path) -> None:
    spec = frb.BufferSpec(STEP, 8, storage=frb.Memmap(str(path), shared=True))
    rb.add(rb.init(spec), ITEMS)
    assert int(rb.size(rb.init(spec))) == 4


def dataset(path: Path) -> None:
    frb.datasets.convert(SOURCE, path)
    frb.datasets.Dataset(path, verify=True)
    assert int(rb.size(frb.datasets.load(str(path), rb))) == 9


@pytest.fixture
def open_files() -> Iterator[Callable[[], int]]:
    """Counts them, once what nobody refers to is gone; looking for it is quick, as nothing is old."""

    def counted() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    gc.freeze()
    yield counted
    gc.unfreeze()


# What dies where an interrupt comes closes its files by itself, and Python's own warn.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("work", [mapped, saved, shared, dataset])
def test_no_file_stays_open(work: Callable[[Path], None], open_files: Callable[[], int], tmp_path: Path) -> None:
    work(tmp_path / "first")
    calls = interrupts.interrupted_as_a_call_ends(-1, work, tmp_path / "calls")
    lines = interrupts.lines(work, tmp_path / "lines")
    opening = "base/descriptors.py", "base/files.py"
    before = open_files()
    for number in interrupts.chosen(calls, effort(3, 2000), always=opening):
        interrupts.interrupted_as_a_call_ends(number, work, tmp_path / f"call {number}")
        assert open_files() == before, calls[number]
    for number in interrupts.chosen(lines, effort(3, 2000), always=opening):
        interrupts.interrupted(number, work, tmp_path / f"line {number}")
        assert open_files() == before, lines[number]
