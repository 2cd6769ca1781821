"""Saves that go on while training does, what is remembered of them, and the progress that they show."""

from __future__ import annotations

import gc
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import functional_rb as frb
import torch_backend
from functional_rb.base import progress
from functional_rb.checkpoint import background, saving
from functional_rb.core import save_history
from functional_rb.core.counters import BASE
from tests.support.backends import Backend
from tests.support.checkpoints import SPEC, advanced, bits, locked, numpy_state, small_blocks, steps, stored_bits

STEP = {"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((2,)), "done": frb.Binary()}


def test_training_goes_on_in_place_while_a_state_is_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small_blocks(monkeypatch)
    spec = frb.BufferSpec(STEP, 400, frb.Prioritized())
    state = torch_backend.add(torch_backend.init(spec), steps(0, 400))
    expected = bits(state)
    go, original = threading.Event(), saving._Save.run
    monkeypatch.setattr(saving._Save, "run", lambda self: go.wait(60) and original(self))
    handle = frb.save(state, tmp_path, background=True)
    place = state._version.memory.rows.data_ptr()
    assert not handle.done()
    with pytest.raises(TimeoutError):
        handle.result(0.001)
    for k in range(30):
        state = torch_backend.add(state, steps(400 + 3 * k, 3))
        state = torch_backend.update(state, np.arange(380, 390, dtype=np.int32), np.full(10, k + 1, np.float32))
        if k == 10:
            go.set()
    assert state._version.memory.rows.data_ptr() == place, "no copy was made"
    state = torch_backend.add_(state, steps(0, 5))
    assert handle.result(60).items == 400
    assert handle.done()
    assert stored_bits(tmp_path) == expected
    newer = frb.save(state, tmp_path, incremental=True)
    assert not newer.full
    assert stored_bits(tmp_path) == bits(state)


def test_in_place_forms_leave_what_is_being_saved_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    go, original = threading.Event(), saving._Save.run
    monkeypatch.setattr(saving._Save, "run", lambda self: go.wait(60) and original(self))
    state = torch_backend.add_(torch_backend.init(frb.BufferSpec(STEP, 8)), steps(0, 8))
    handle = frb.save(state, tmp_path, background=True)
    state = torch_backend.add_(state, steps(50, 6))
    go.set()
    handle.result(60)
    assert torch_backend.items(frb.load(tmp_path, "torch"))["id"].tolist() == [*range(8)]


def test_saves_in_the_background_follow_each_other(library: Backend, tmp_path: Path) -> None:
    state = library.rb.init(frb.BufferSpec(STEP, 64))
    handles = []
    for k in range(6):
        state = library.rb.add(state, library.tree(steps(4 * k, 4)))
        handles.append(frb.save(state, tmp_path, incremental=True, keep=6, background=True))
    last = frb.save(state, tmp_path, incremental=True, keep=7)
    assert [handle.result().generation for handle in handles] == [1, 2, 3, 4, 5, 6]
    assert [handle.result().items for handle in handles] == [4, 8, 12, 16, 20, 24]
    assert last.generation == 7
    assert not background._going_on


def test_what_went_wrong_in_the_background_is_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    state = torch_backend.init(frb.BufferSpec(STEP, 4))
    handle = frb.save(state, tmp_path / "file", background=True)
    with pytest.raises(frb.errors.CheckpointError, match="file"):
        handle.result(60)
    del handle
    assert not caplog.records
    unseen = frb.save(state, tmp_path / "file", background=True)
    while not unseen.done():
        time.sleep(0.001)
    unseen._thread.join()
    del unseen
    gc.collect()
    assert "nobody called result()" in caplog.text


def test_a_save_to_each_of_some_places_in_turn_is_remembered() -> None:
    history = save_history.NEW
    for k in range(save_history.REMEMBERED):
        history = history.saved(str(k)).after(1)
    assert [history.since(str(k)) for k in range(save_history.REMEMBERED)] == [4, 3, 2, 1]
    assert history.saved("more").since("0") is None


class Bar:
    """As tqdm's."""

    made: ClassVar[list[Bar]] = []

    def __init__(self, **options: Any) -> None:
        self.options, self.done, self.closed = options, options["initial"], False
        Bar.made.append(self)

    def update(self, n: int) -> None:
        self.done += n

    def close(self) -> None:
        self.closed = True


def test_progress_is_shown_after_a_second(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small_blocks(monkeypatch)
    monkeypatch.setattr(progress, "_bar", lambda: Bar)
    Bar.made.clear()
    state = advanced(numpy_state(SPEC), np.random.default_rng(0), 20)
    assert progress.DELAY == 1
    for shown in (True, None, False):
        frb.save(state, tmp_path, progress=shown)
        frb.load(tmp_path, "torch", frb.checkpoint.LoadOptions(progress=shown))
    assert not Bar.made, "it took less"
    monkeypatch.setattr(progress, "DELAY", 0.0)
    frb.save(state, tmp_path, progress=False)
    frb.load(tmp_path, "torch", frb.checkpoint.LoadOptions(progress=None))  # standard error is no terminal
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)  # as in a program without a console
        frb.save(state, tmp_path)
    assert not Bar.made
    with monkeypatch.context() as patch:
        patch.setattr(sys.stderr, "isatty", lambda: True)
        frb.save(state, tmp_path)
    assert [bar.options["desc"] for bar in Bar.made] == ["save"]
    Bar.made.clear()
    frb.save(state, tmp_path, progress=True)
    frb.load(tmp_path, "torch", frb.checkpoint.LoadOptions(progress=True))
    assert [bar.options["desc"] for bar in Bar.made] == ["save", "load"]
    for bar in Bar.made:
        assert bar.options["total"] == bar.done > 20 * 1024
        assert bar.closed


def test_progress_has_a_lock_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    # tqdm's own is shared with forked processes, and stays locked if one of them is killed.
    import tqdm

    bar = progress._bar()
    assert issubclass(bar, tqdm.tqdm)
    assert isinstance(bar.get_lock(), type(threading.RLock()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "DELAY", 0.0)
        with progress.Progress(10, "save", True) as shown:
            shown.advance(4)
    assert "save" in capsys.readouterr().err


def test_base_is_what_it_was() -> None:
    # The first six counters of every state are part of the format.
    assert BASE == 6


def test_saves_by_several_names_of_a_directory_follow_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    state = torch_backend.init(frb.BufferSpec(STEP, 8))
    with locked(tmp_path / "run" / "lock"):
        first = frb.save(state, tmp_path / "run", background=True)
        waited: list[background.SaveFuture] = []
        with monkeypatch.context() as patch:
            patch.setattr(first, "wait", lambda: waited.append(first))
            background.wait_for(str(tmp_path / "link"))  # as a save in the foreground does
        assert waited == [first]
        second = frb.save(torch_backend.add(state, steps(1, 2)), tmp_path / "link", background=True)
        assert second._before is first
    assert (first.result(60).generation, second.result(60).generation) == (1, 2)
