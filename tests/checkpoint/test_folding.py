"""Undo logs that processes and saves leave behind when they fail: they become one, which is no longer than the rows."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import functional_rb as frb
import torch_backend
from functional_rb.checkpoint import in_place, loading
from functional_rb.checkpoint.opened import generations, read_manifest
from functional_rb.storage import disk, undo_log
from tests.checkpoint.mapped_lives import (
    KILLED,
    MEMBERS,
    ROWS,
    STEP_ROWS,
    MappedLife,
    agree,
    open_here,
    stepped,
    walk_through,
)
from tests.support import backends
from tests.support.backends import Backend
from tests.support.checkpoints import Killed, failing, locked, on_host, rewritten, small_blocks

# Bytes of an item of `KILLED`, and of its slot, in a log.
ROW = 8 + 4 * 40 + 32 * 32
# What a log may take of the room on the disk: the rows once.
LIMIT = ROWS * ROW + 60 * undo_log.HEAD


def log_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("undo-*.bin"))


def logs(path: Path) -> list[int]:
    return undo_log.numbers(str(path))


def begun(path: Path, k: int = 6) -> None:
    """A checkpoint in these files."""
    state, _ = open_here(path)
    for step in range(1, k + 1):
        state = stepped(state, step)
    frb.save(state, path)


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """No manifest gets its name."""
    with pytest.MonkeyPatch.context() as patch:

        def refuse(old: str, new: str) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), old)

        patch.setattr(disk, "rename", refuse)
        yield


# ------------------------------------------------------------ crash loops


def crash_after_load(path: Path) -> None:
    state, k = open_here(path)
    stepped(stepped(state, k + 1), k + 2)


def crash_in_a_save(path: Path) -> None:
    state, k = open_here(path)
    state = stepped(state, k + 1)
    state.reader(snapshot=in_place.taker(str(path)))  # its instant has come, and nothing of it gets further
    stepped(state, k + 2)


def crash_after_init(path: Path) -> None:
    state = on_host(dataclasses.replace(KILLED, storage=frb.Memmap(path, existsok=True)))
    stepped(stepped(state, 1), 2)


LOOPS = {"load": crash_after_load, "save": crash_in_a_save, "init": crash_after_init}


@pytest.mark.parametrize("name", LOOPS)
def test_a_process_that_fails_again_and_again_does_not_fill_the_disk(name: str, tmp_path: Path) -> None:
    begun(tmp_path)
    sizes = []
    for _ in range(12):
        LOOPS[name](tmp_path)
        sizes.append(log_bytes(tmp_path))
    assert sizes[1:] == sizes[1:2] * 11
    assert sizes[-1] <= (2 if name == "save" else 1) * (2 * (STEP_ROWS + 1) * ROW + 9 * undo_log.HEAD)
    assert len(logs(tmp_path)) == (2 if name == "save" else 1)
    assert agree(tmp_path) == 6


def test_a_loop_that_loads_an_ordinary_checkpoint_does_not_fill_the_disk(tmp_path: Path) -> None:
    begun(tmp_path)
    frb.save(stepped(on_host(KILLED), 1), tmp_path)  # of other states: not in the files
    sizes = []
    for _ in range(6):
        crash_after_load(tmp_path)
        sizes.append(log_bytes(tmp_path))
    assert sizes == sizes[:1] * 6
    assert sizes[0] <= LIMIT
    assert [agree(tmp_path, generation) for generation in (1, 2)] == [6, 1]


def test_saves_that_fail_do_not_fill_the_disk_further(tmp_path: Path) -> None:
    begun(tmp_path)
    state, k = open_here(tmp_path)
    sizes = []
    for step in range(k + 1, k + 15):
        state = stepped(state, step)
        with full_disk(), pytest.raises(frb.errors.StorageFullError):
            frb.save(state, tmp_path)
        sizes.append(log_bytes(tmp_path))
    assert max(sizes) <= LIMIT + STEP_ROWS * ROW
    assert len(logs(tmp_path)) == 2
    assert agree(tmp_path) == k
    frb.save(state, tmp_path)
    state = stepped(state, step + 1)
    assert [agree(tmp_path, generation) for generation in (1, 2)] == [k, step]


def test_saves_that_go_on_keep_their_logs(tmp_path: Path) -> None:
    begun(tmp_path)
    state, _ = open_here(tmp_path)
    with locked(tmp_path / "lock"):  # none of them gets further than its instant
        pending = []
        for step in range(7, 12):
            state = stepped(state, step)
            pending.append(frb.save(state, tmp_path, keep=9, background=True))
        assert len(logs(tmp_path)) == 6
    state = stepped(state, 12)
    assert [saving.result(60).generation for saving in pending] == [2, 3, 4, 5, 6]
    assert [agree(tmp_path, generation) for generation in range(1, 7)] == [6, 7, 8, 9, 10, 11]
    assert state is not None


# ------------------------------------------------------------ the ends of folding itself


@pytest.fixture(scope="module")
def littered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints, of steps 3 and 6, behind each the logs of two saves that failed, the last record cut short."""
    path = tmp_path_factory.mktemp("littered")
    state, _ = open_here(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_place, "_fold_failed", lambda files: None)  # as an older version left them
        for k in range(1, 10):
            state = stepped(state, k)
            if k in (3, 6):
                frb.save(state, path)
            else:
                with full_disk(), contextlib.suppress(frb.errors.StorageFullError):
                    frb.save(state, path)
    del state
    gc.collect()
    assert logs(path) == [3, 4, 5, 6, 7, 8, 9]
    with (path / undo_log.name_of(9)).open("ab") as file:
        file.write((path / undo_log.name_of(8)).read_bytes()[:100])  # what a kill left of a record
    return path


def test_each_checkpoint_gets_one_log(littered: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(littered, tmp_path / "x"))
    before = log_bytes(path)
    state, k = open_here(path)
    assert (k, logs(path)) == (6, [read_manifest(str(path), generation).undo for generation in (1, 2)])
    assert log_bytes(path) < before
    for step in (7, 8, 9, 10):
        state = stepped(state, step)
        assert [agree(path, generation) for generation in (1, 2)] == [3, 6]
    del state
    gc.collect()
    os.truncate(path / f"{generations(str(path))[0]:010d}.json", 9)
    found = loading.read(path, loading.LoadOptions(fall_back=True), loading.Wanted(frb.Memmap(path), here=True))
    assert found.arrays.counters[0] == 3 * STEP_ROWS
    assert agree(path, 1) == 3


@pytest.mark.parametrize("killed", [False, True], ids=["error", "killed"])
def test_a_failure_at_any_call_of_folding_leaves_every_checkpoint(killed: bool, littered: Path, tmp_path: Path) -> None:
    with failing(None) as counted:
        open_here(Path(shutil.copytree(littered, tmp_path / "count")))
    names = [name for name, _ in counted.trace]
    assert {"truncate", "write", "fsync", "unlink"} <= set(names)
    for at, name in enumerate(names):
        path = Path(shutil.copytree(littered, tmp_path / str(at)))
        with failing(at, killed, errno.ENOSPC):
            if killed:
                with pytest.raises(Killed):
                    open_here(path)
            else:
                state, k = open_here(path)  # what cannot be folded stays
                stepped(state, k + 1)
                del state
        assert [agree(path, generation) for generation in (1, 2)] == [3, 6], f"call {at}, {name}"
        state, k = open_here(path)
        stepped(state, k + 1)
        assert [agree(path, generation) for generation in (1, 2)] == [3, 6], f"call {at}, {name}"
        assert len(logs(path)) == 2
        del state
        shutil.rmtree(path)


def test_who_reads_while_logs_are_folded_finds_them(littered: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(littered, tmp_path / "x"))
    original, folded = undo_log.records, []

    def records(name: str, *args: Any) -> Any:
        if not folded and name.endswith(undo_log.name_of(6)):  # the newer ones are read
            folded.append(True)
            open_here(path)
        return original(name, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(undo_log, "records", records)
        assert agree(path, 1) == 3
    assert folded
    assert len(logs(path)) == 2


def test_logs_that_are_damaged_stay_as_they_are(littered: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(littered, tmp_path / "x"))
    middle = path / undo_log.name_of(6)
    with middle.open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        byte = file.read(1)
        file.seek(-3, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    before = {file: file.read_bytes() for file in path.glob("undo-*.bin")}
    with contextlib.suppress(frb.errors.CorruptCheckpointError):
        open_here(path)
    gc.collect()
    on_host(dataclasses.replace(KILLED, storage=frb.Memmap(path, existsok=True)))
    gc.collect()
    newest = [undo_log.name_of(number) for number in range(read_manifest(str(path), 2).undo, 8)]
    assert {name: (path / name).read_bytes() for name in newest} == {name: before[path / name] for name in newest}


def test_a_log_that_another_directory_has_too_is_not_appended_to(tmp_path: Path) -> None:
    begun(tmp_path)
    crash_after_load(tmp_path)
    gc.collect()
    log = tmp_path / undo_log.name_of(1)
    os.link(log, tmp_path / "backup")  # as rsync --link-dest does where a file has not changed
    before = log.read_bytes()
    state, k = open_here(tmp_path)
    for step in range(k + 1, k + 9):
        state = stepped(state, step)
    assert log.read_bytes() == before
    assert agree(tmp_path) == 6
    assert logs(tmp_path) == [1, 2]


def test_a_manifest_of_a_newer_version_keeps_everything(tmp_path: Path) -> None:
    begun(tmp_path)
    manifest = tmp_path / "0000000001.json"
    told = manifest.read_bytes()
    rewritten(tmp_path, lambda told: told.update(format=2))
    with pytest.raises(frb.errors.CheckpointError, match="format 2"):
        open_here(tmp_path)
    for _ in range(2):
        crash_after_init(tmp_path)
        gc.collect()
    manifest.write_bytes(told)
    assert agree(tmp_path) == 6


# ------------------------------------------------------------ histories


class CrashingLife(MappedLife):
    """The life of a mapped buffer whose saves and loads fail, and whose copied directories have holes for zeros."""

    def fail_save(self) -> None:
        self.finish()
        with full_disk(), contextlib.suppress(frb.errors.StorageFullError):
            frb.save(self.states[-1], self.path, keep=int(self.rng.integers(1, 3)))

    def kill_load(self) -> None:
        """And the next process loads."""
        self.finish()
        self.states = []
        gc.collect()
        with failing(int(self.rng.integers(12)), True), contextlib.suppress(Killed, FileNotFoundError):
            frb.load(self.path, torch_backend)
        gc.collect()
        if self.newest is None:
            self.begin_anew()
        self.load()

    def move(self) -> None:
        self.finish()
        self.states = []
        gc.collect()
        there = self.path.with_name(self.path.name + "x")
        there.mkdir()
        for file in self.path.iterdir():
            copy_with_holes(file, there / file.name)
        shutil.rmtree(self.path)
        self.path = there
        self.spec = dataclasses.replace(self.spec, storage=frb.Memmap(there))
        (self.load if self.newest is not None else self.begin_anew)()

    def check(self) -> None:
        super().check()
        manifests = [read_manifest(str(self.path), generation) for generation in generations(str(self.path))]
        needed = {manifest.undo for manifest in manifests if manifest.undo}
        # A log for each checkpoint, and one of a save that may have failed.
        assert len([number for number in logs(self.path) if number >= min(needed, default=0)]) <= len(needed) + 1


def copy_with_holes(source: Path, target: Path) -> None:
    """As `rsync -S` and `cp --sparse=always` do."""
    content, page = source.read_bytes(), 4096
    with target.open("wb") as file:
        for start in range(0, len(content), page):
            if content[start : start + page].strip(b"\0"):
                file.seek(start)
                file.write(content[start : start + page])
        file.truncate(len(content))


PAGES = frb.BufferSpec({"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((1023,)), "done": frb.Binary((4096,))}, 12)


@pytest.mark.parametrize("how", ["loaded", "begun anew", "replaced"])
def test_zeros_of_which_a_copy_made_holes_are_kept(how: str, library: Backend, tmp_path: Path) -> None:
    rb, item = library.rb, {"x": frb.Unbounded((2048,))}
    spec = frb.BufferSpec(item, 8, storage=frb.Memmap(str(tmp_path / "files")))
    state = rb.add(rb.init(spec), library.tree({"x": np.zeros((8, 2048), np.float32)}))
    state = rb.add(state, library.tree({"x": np.ones((1, 2048), np.float32)}))
    frb.save(state, tmp_path / "files")
    del state
    gc.collect()
    (tmp_path / "copy").mkdir()
    for file in (tmp_path / "files").iterdir():
        copy_with_holes(file, tmp_path / "copy" / file.name)
    storage = frb.Memmap(str(tmp_path / "copy"), existsok=True)
    if how == "loaded":
        state = frb.load(tmp_path / "copy", library.library)
    elif how == "begun anew":
        state = rb.init(dataclasses.replace(spec, storage=storage))
    else:
        other = rb.add(rb.init(frb.BufferSpec(item, 8)), library.tree({"x": np.full((8, 2048), 5, np.float32)}))
        frb.save(other, tmp_path / "other")
        state = frb.load(tmp_path / "other", library.library, storage=storage)
    state = rb.add(state, library.tree({"x": np.full((5, 2048), 7, np.float32)}))
    del state
    gc.collect()
    found = rb.items(frb.load(tmp_path / "copy", library.library, storage=frb.Host()))
    assert library.numpy(found["x"])[:, 0].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("name", ["pages", "compact images"])
@hypothesis.settings(max_examples=3, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
@hypothesis.given(seed=st.integers(0, 2**32))
def test_every_kept_checkpoint_comes_back(name: str, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch, backends.make("torch") as backend:
        small_blocks(patch)
        spec = {"pages": PAGES, **MEMBERS}[name]
        life = CrashingLife(rng, spec, tmp_path_factory.mktemp("life"), backend)
        does = [life.add] * 4 + [life.sample, life.load, life.load, life.load_copy] + [life.save] * 3
        does += [life.check, life.begin_anew, life.fail_save, life.fail_save, life.kill_load, life.kill_load, life.move]
        walk_through(life, does, 14, rng)


def test_reading_and_folding_at_once(littered: Path, tmp_path: Path) -> None:
    path, wrong = tmp_path / "x", []
    shutil.copytree(littered, path)

    def read() -> None:
        while not done.is_set():
            try:
                wrong.append([agree(path, generation) for generation in (1, 2)] != [3, 6])
            except BaseException as error:  # told to the test's own thread
                wrong.append(repr(error))

    done = threading.Event()
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(5):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(in_place, "_fold_failed", lambda files: None)
                state, k = open_here(path)
                for step in range(k + 1, k + 4):
                    state = stepped(state, step)
                    state.reader(snapshot=in_place.taker(str(path)))
            del state
    finally:
        done.set()
        reader.join()
    assert set(wrong) == {False}
