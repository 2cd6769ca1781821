"""Ctrl-C while a dataset is made: none, or a whole one is there, nothing is held, and the next call makes it."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import functional_rb as frb
from tests.datasets.made_up import MadeUp, contents
from tests.support import interrupts
from tests.support.effort import effort

SOURCE = MadeUp([3, 2, 4], ())


def convert(path: Path) -> None:
    frb.datasets.convert(SOURCE, path / "a")


def split(path: Path) -> None:
    frb.datasets.Dataset(path.parent / "source").split([0.5, 0.5], [path / "a", path / "b"])


def mapped(path: Path) -> None:
    if not (path / "a").exists():  # of a function nobody knows whether it is the same
        frb.datasets.Dataset(path.parent / "source").map(lambda episode: episode, path / "a", workers=2)


def export(path: Path) -> None:
    if not (path / "a-v0").exists():
        frb.datasets.Dataset(path.parent / "source").export(path / "a-v0", facts={"author": "A. Uthor"})


# Files that were being read are closed by the garbage collector, which warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("make", [convert, split, mapped])
def test_a_dataset_at_some_lines(make: Callable[[Path], None], tmp_path: Path) -> None:
    frb.datasets.convert(SOURCE, tmp_path / "source")
    make(tmp_path / "whole")
    wanted = {place.name: len(contents(place)) for place in (tmp_path / "whole").iterdir() if place.is_dir()}
    for line in interrupts.chosen(interrupts.lines(make, tmp_path / "lines"), effort(8, 500)):
        path = tmp_path / str(line)
        interrupts.interrupted(line, make, path)
        for name in wanted:
            if (path / name).exists():
                frb.datasets.Dataset(path / name, verify=True)
        interrupts.finished(make, path)
        assert {place.name: len(contents(place)) for place in path.iterdir() if place.is_dir()} == wanted, line
        for name in wanted:
            frb.datasets.Dataset(path / name, verify=True)


@pytest.mark.parametrize("make", [convert, export])
def test_an_interrupt_that_somebody_keeps_holds_no_lock(make: Callable[[Path], None], tmp_path: Path) -> None:
    """As notebooks keep the last error: with it, what its frames held."""
    frb.datasets.convert(SOURCE, tmp_path / "source")
    entering: Any = contextlib._GeneratorContextManager.__enter__

    def at_call(frame: types.FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not entering.__code__:
            return None
        # Between the lines of the context manager and the first one of the block.
        if event == "return" and "locked" in repr(frame.f_locals["self"].gen):
            raise KeyboardInterrupt
        return at_call

    before = sys.gettrace()
    kept: list[BaseException] = []
    sys.settrace(at_call)
    try:
        make(tmp_path / "made")
    except KeyboardInterrupt as error:
        kept.append(error)
    finally:
        sys.settrace(before)
    interrupts.finished(make, tmp_path / "made")


@pytest.mark.parametrize("at", range(4))
def test_files_are_closed_that_were_opened_before_one_could_not_be(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truncate, left = os.ftruncate, [at]

    def fails(fd: int, size: int) -> None:
        if not left[0]:
            raise OSError(errno.EIO, "Input/output error")
        left[0] -= 1
        truncate(fd, size)

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", fails)
        with pytest.raises(OSError, match="Input/output"):
            convert(tmp_path)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    convert(tmp_path)
