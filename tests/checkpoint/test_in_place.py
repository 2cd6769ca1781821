"""Saves of mapped buffers into their own directory: nothing is copied, and every checkpoint comes back."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend
from functional_rb.__main__ import main
from tests.checkpoint.mapped_lives import (
    KILLED,
    MEMBERS,
    STEP,
    MappedLife,
    agree,
    open_here,
    read_back,
    stepped,
    walk_through,
    written,
)
from tests.children import kill_saves
from tests.support import backends
from tests.support.backends import Backend
from tests.support.checkpoints import bits, on_host, small_blocks
from tests.support.effort import effort


@pytest.mark.parametrize("name", MEMBERS)
@hypothesis.settings(max_examples=2, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
@hypothesis.given(seed=st.integers(0, 2**32))
def test_every_kept_checkpoint_comes_back(name: str, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch, backends.make("torch") as backend:
        small_blocks(patch)
        life = MappedLife(rng, MEMBERS[name], tmp_path_factory.mktemp("life"), backend)
        does = [life.add] * 5 + [life.sample] * 2 + [life.in_place, life.load, life.load_copy] + [life.save] * 5
        does += [life.check, life.begin_anew]
        walk_through(life, does, 12, rng)


def test_slots_that_a_writer_chooses_are_kept_where_nothing_else_is(library: Backend, tmp_path: Path) -> None:
    """In place, without an older state that reads what is overwritten: the checkpoint reads it."""
    spec = frb.BufferSpec({"id": frb.Unbounded((), "int32")}, 4, writer=frb.Reservoir(), storage=frb.Memmap(tmp_path))
    state = library.rb.init(spec)
    for k in range(6):
        items = library.tree({"id": np.arange(4 * k, 4 * k + 4, dtype=np.int32)})
        state = library.rb.add_(state, items, key=library.rb.key(k))
        if not k:
            frb.save(state, tmp_path)
            saved = bits(state)
            gc.collect()
    assert bits(state) != saved
    assert read_back(tmp_path, 1) == saved


# ------------------------------------------------------------ kills


def live(path: Path, told: int, way: int) -> None:
    """The child: go on, save every other step, and tell; never come back."""
    state, k = open_here(path)
    os.write(told, bytes([k]))
    while k < 250:
        k += 1
        state = stepped(state, k)
        if k % 2:
            continue
        if way == 2:
            saving = frb.save(state, path, incremental=True, keep=2, background=True)
            _, k = (state := stepped(state, k + 1)), k + 1  # while it is written
            saving.result()
            os.write(told, bytes([k - 1]))
        else:
            frb.save(state, path, incremental=way == 1, keep=2)
            os.write(told, bytes([k]))
    signal.pause()


@pytest.mark.parametrize("way", range(3))
def test_a_killed_process_leaves_the_old_or_the_new_checkpoint(way: int, tmp_path: Path) -> None:
    chance = random.Random(way)
    stepped(on_host(KILLED), 1)  # what is compiled, is so before the children begin
    done = 0
    for _ in range(effort(12, 40)):
        if done > 200:
            shutil.rmtree(tmp_path)
            done = 0
        done = kill_one(tmp_path, way, chance, done)


def kill_one(path: Path, way: int, chance: random.Random, done: int) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # JAX warns of forks, where another test has loaded it
        told = kill_saves.killed(lambda telling: live(path, telling, way), chance, 5, 0.012)
    done = done if told is None else told
    try:
        found = agree(path)
    except FileNotFoundError:
        assert done == 0
        return 0
    assert found in (done, *range(done + 1, done + 4)), f"expected step {done} or the next save, found {found}"
    for generation in kept(path):
        agree(path, generation)
    return found


# ------------------------------------------------------------ damage


def kept(path: Path) -> list[int]:
    """The checkpoints there, the newest first."""
    return [found.generation for found in frb.checkpoint.checkpoints(path)]


def logs(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("undo-*.bin"))


def saved_twice(path: Path) -> Any:
    """Two checkpoints, with logs since both; what is returned goes on."""
    state, _ = open_here(path)
    for k in range(1, 10):
        state = stepped(state, k)
        if k in (3, 6):
            frb.save(state, path, incremental=True)
    return state


def damage(path: Path, generation: int, expected: int) -> str | None:
    """The file that is said to be damaged; None if the checkpoint comes back."""
    try:
        found = agree(path, generation)
    except frb.errors.CorruptCheckpointError as error:
        return os.path.basename(error.file)
    assert found == expected
    return None


@pytest.mark.parametrize("name", ["rows.bin", "wide_0.bin", "undo-00000001.bin", "undo-00000002.bin"])
def test_flipped_bytes_are_found_or_do_not_matter(name: str, tmp_path: Path) -> None:
    state, chance = saved_twice(tmp_path), random.Random(1)
    older, newer = sorted(kept(tmp_path))
    damaged, size = 0, (tmp_path / name).stat().st_size
    assert size
    for _ in range(12):
        at = chance.randrange(size)
        with open(tmp_path / name, "r+b", buffering=0) as file:
            byte = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes([byte[0] ^ 4]), at)
            for generation, expected in ((older, 3), (newer, 6)):
                named = damage(tmp_path, generation, expected)
                damaged += named is not None
                assert named is None or name == named or (name.startswith("undo") and named.endswith(".bin"))
            os.pwrite(file.fileno(), byte, at)
    assert damaged
    assert agree(tmp_path, older) == 3
    del state


@pytest.mark.parametrize("name", ["rows.bin", "undo-00000002.bin"])
def test_what_is_missing_or_cut_is_named(name: str, tmp_path: Path) -> None:
    del_me = saved_twice(tmp_path)
    del del_me
    if name == "rows.bin":
        os.truncate(tmp_path / name, 100)
        with pytest.raises(frb.errors.CorruptCheckpointError, match=r"rows\.bin: expected"):
            frb.load(tmp_path, "torch", storage=frb.Host())
    (tmp_path / name).unlink()
    assert name in str(frb.checkpoint.checkpoints(tmp_path)[0].problem)
    with pytest.raises(frb.errors.CorruptCheckpointError, match="missing"):
        frb.load(tmp_path, "torch", storage=frb.Host())


def test_falling_back_in_place_gives_up_the_damaged_one(tmp_path: Path) -> None:
    state = saved_twice(tmp_path)
    del state
    newest = tmp_path / f"{kept(tmp_path)[0]:010d}.json"
    os.truncate(newest, 100)
    storage = frb.Memmap(tmp_path)
    with pytest.raises(frb.errors.CorruptCheckpointError):
        frb.load(tmp_path, "torch", storage=storage)
    loaded = frb.load(tmp_path, "torch", frb.checkpoint.LoadOptions(fall_back=True), storage=storage)
    assert torch_backend.items(loaded)["x"].numpy().tobytes() == written(3)[0].tobytes()
    assert (tmp_path / "rows.bin").read_bytes() == written(3)[0].tobytes()


def test_inspection_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = saved_twice(tmp_path)
    assert main(["inspect", str(tmp_path)]) == 0
    assert "144" in capsys.readouterr().out  # the cursor, or how many were added
    os.truncate(tmp_path / "wide_0.bin", 10)
    assert main(["inspect", str(tmp_path)]) != 0
    assert "wide_0.bin" in capsys.readouterr().out
    del state


def test_rows_that_the_checkpoint_has_not_are_blank_again(tmp_path: Path) -> None:
    """Of a file of more pieces than one, by which it is reserved, and counts as written."""
    state = torch_backend.init(frb.BufferSpec({"x": frb.Unbounded((2**18,))}, 12, storage=frb.Memmap(tmp_path)))
    state = torch_backend.add(state, {"x": torch.ones(1, 2**18)})
    frb.save(state, tmp_path)
    state = torch_backend.add(state, {"x": torch.ones(11, 2**18)})
    del state
    gc.collect()
    found = torch_backend.items(frb.load(tmp_path, "torch"))["x"]
    assert found[0].all()
    assert not found[1:].any()


def test_nothing_of_what_lay_in_the_files_shines_through(tmp_path: Path) -> None:
    state = saved_twice(tmp_path / "files")
    del state
    frb.save(torch_backend.init(KILLED), tmp_path / "empty")
    loaded = frb.load(tmp_path / "empty", "torch", storage=frb.Memmap(tmp_path / "files", existsok=True))
    assert not loaded.rows.any()
    assert agree(tmp_path / "files") == 6


# ------------------------------------------------------------ costs


def test_a_save_writes_nothing_of_the_rows_and_a_log_only_what_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capacity, row = 20_000, 4096
    spec = frb.BufferSpec({"x": frb.Unbounded((1024,))}, capacity, storage=frb.Memmap(tmp_path))
    state = torch_backend.init(spec)
    state = torch_backend.add(state, {"x": torch.ones(2000, 1024)})
    count = {"bytes": 0}

    def counted(original: Any) -> Any:
        def call(fd: int, content: Any, *rest: Any) -> Any:
            count["bytes"] += memoryview(content).nbytes
            return original(fd, content, *rest)

        return call

    monkeypatch.setattr(os, "write", counted(os.write))
    monkeypatch.setattr(os, "pwrite", counted(os.pwrite))
    info = frb.save(state, tmp_path)
    assert count["bytes"] < 20_000
    assert info.written < 20_000
    reads: list[int] = []
    original = type(state.reader()).read
    monkeypatch.setattr(
        type(state.reader()), "read", lambda self, name, a, b: (reads.append(b - a), original(self, name, a, b))[1]
    )
    state = torch_backend.add(state, {"x": torch.ones(100, 1024)})
    logged = count["bytes"]
    frb.save(state, tmp_path, incremental=True)
    assert count["bytes"] - logged < 20_000
    assert sum(reads) < 100 + 2 * 16 + 20
    state = torch_backend.add(state, {"x": torch.ones(50, 1024)})
    assert count["bytes"] - logged < 20_000 + 50 * (row + 100)
    # Loading it back costs no more memory than what is there.
    assert int(torch_backend.size(frb.load(tmp_path, "torch", storage=frb.Memmap()))) == 2100
    del state


def test_logs_go_with_the_checkpoints_that_need_them(tmp_path: Path) -> None:
    state = saved_twice(tmp_path)
    for k in range(10, 16):
        state = stepped(state, k)
        frb.save(state, tmp_path, keep=1)
    assert len(logs(tmp_path)) == 1
    frb.save(loaded := frb.load(tmp_path, "torch", storage=frb.Host()), tmp_path / "elsewhere")
    frb.save(loaded, tmp_path, keep=1)
    assert logs(tmp_path) == []
    state = stepped(state, 16)
    frb.save(state, tmp_path)
    assert agree(tmp_path) == 16


def test_files_and_logs_last_before_the_manifest_has_its_name(
    library: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasting: dict[str, int] = {}
    fsync, rename = os.fsync, os.rename

    def noted(fd: int) -> None:
        lasting[os.readlink(f"/proc/self/fd/{fd}")] = os.fstat(fd).st_size
        fsync(fd)

    def renamed(source: str, to: str) -> None:
        if to.endswith(".json"):
            parts = {str(path): path.stat().st_size for path in tmp_path.glob("*.bin")}
            names.update(map(os.path.basename, parts))
            assert parts.items() <= lasting.items()
        rename(source, to)

    spec = frb.BufferSpec(STEP, 8, storage=frb.Memmap(tmp_path))
    items = {"id": np.arange(5, dtype=np.int32), "x": np.ones((5, 2), np.float32), "done": np.zeros(5, bool)}
    state = library.rb.add(library.rb.init(spec), library.tree(items))
    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "rename", renamed)
    for _ in range(3):
        lasting.clear()
        names: set[str] = set()
        frb.save(state, tmp_path, incremental=True)
        state = library.rb.add(state, library.tree(items))  # over rows that the checkpoint needs: they are logged
    assert {"rows.bin", "undo-00000001.bin", "undo-00000002.bin"} <= names
