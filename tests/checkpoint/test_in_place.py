"""Saves of mapped buffers into their own directory: nothing is copied, and every checkpoint comes back."""

from __future__ import annotations

import dataclasses
import errno
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
import jax_backend
import torch_backend
from functional_rb import _native
from functional_rb.__main__ import main
from functional_rb.checkpoint import background, loading
from functional_rb.checkpoint.opened import generations, read_manifest
from functional_rb.core.counters import CURSOR
from functional_rb.storage import disk, mapped_array, undo_log
from functional_rb.storage.host_state import HostState
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
from tests.support.checkpoints import bits, locked, on_host, small_blocks
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
    for generation in generations(str(path)):
        agree(path, generation)
    return found


# ------------------------------------------------------------ damage


def saved_twice(path: Path) -> HostState:
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
    older, newer = sorted(generations(str(tmp_path)))
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
            loading.read(tmp_path)
    (tmp_path / name).unlink()
    assert name in str(frb.checkpoint.checkpoints(tmp_path)[0].problem)
    with pytest.raises(frb.errors.CorruptCheckpointError, match="missing"):
        loading.read(tmp_path)


def test_falling_back_in_place_gives_up_the_damaged_one(tmp_path: Path) -> None:
    state = saved_twice(tmp_path)
    del state
    newest = tmp_path / f"{generations(str(tmp_path))[0]:010d}.json"
    os.truncate(newest, 100)
    storage = frb.Memmap(tmp_path)
    with pytest.raises(frb.errors.CorruptCheckpointError):
        loading.read(tmp_path, wanted=loading.Wanted(storage, here=True))
    found = loading.read(tmp_path, loading.LoadOptions(fall_back=True), loading.Wanted(storage, here=True))
    assert found.arrays.rows.tobytes() == written(3)[0].view(np.int32).tobytes()
    assert found.files is not None
    assert found.files.rows is found.arrays.rows


# ------------------------------------------------------------ moved, copied, renamed

SMALL = frb.BufferSpec({"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((2,))}, 8, frb.Prioritized())


def small(first: int, count: int) -> dict[str, np.ndarray]:
    ids = np.arange(first, first + count, dtype=np.int32)
    return {"id": ids, "x": np.repeat(ids[:, None], 2, 1).astype(np.float32)}


def ids_of(library: Backend, state: Any) -> list[int]:
    found = library.numpy(library.rb.items(state)["id"])
    assert library.numpy(library.rb.items(state)["x"])[:, 1].astype(int).tolist() == found.tolist()
    return [int(number) for number in found]


def saved_at(library: Backend, path: Path, first: int = 1, **fields: Any) -> Any:
    """A buffer with six items that was saved in place."""
    state = library.rb.init(dataclasses.replace(SMALL, storage=frb.Memmap(str(path)), **fields))
    state = library.rb.add(state, library.tree(small(first, 6)))
    frb.save(state, path)
    return state


@pytest.mark.parametrize("way", ["moved", "copied", "linked to", "relative", "ordinary"])
def test_a_checkpoint_is_gone_on_with_where_it_lies(
    way: str, library: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rb, before, now = library.rb, tmp_path / "before", tmp_path / "now"
    monkeypatch.chdir(tmp_path)
    state = saved_at(library, Path("before") if way == "relative" else before)
    if way == "ordinary":  # an older state, which does not lie in the files, though its spec names them
        newer = rb.add(state, library.tree(small(50, 1)))
        frb.save(state, before)
        assert not read_manifest(str(before), 2).undo
        del newer
    del state
    gc.collect()
    if way in ("copied", "linked to"):
        (shutil.copytree if way == "copied" else os.symlink)(before, now)
    else:
        before.rename(now)
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    expected = {path: path.read_bytes() for path in before.iterdir()} if way == "copied" else {}
    state = frb.load(now, library.library)
    assert state.spec.storage.path == str(before if way == "linked to" else now)
    for first in (10, 20):
        state = rb.add(state, library.tree(small(first, 5)))
    expected_ids = [12, 13, 14, 20, 21, 22, 23, 24]
    assert ids_of(library, state) == expected_ids
    assert frb.save(state, now).nbytes < 1000
    del state
    gc.collect()
    assert ids_of(library, frb.load(now, library.library)) == expected_ids
    assert before.exists() == (way in ("copied", "linked to"))
    assert {path: path.read_bytes() for path in expected} == expected
    assert not any((tmp_path / "elsewhere").iterdir())
    if way == "copied":  # and both at once
        one, other = frb.load(before, library.library), frb.load(now, library.library)
        one, other = (rb.add(x, library.tree(small(k, 3))) for x, k in ((one, 30), (other, 40)))
        assert ids_of(library, one) == [32, 2, 3, 4, 5, 6, 30, 31]
        assert ids_of(library, other) == [40, 41, 42, 20, 21, 22, 23, 24]


def test_a_directory_that_is_renamed_while_it_is_written_to(library: Backend, tmp_path: Path) -> None:
    rb, before, now = library.rb, tmp_path / "before", tmp_path / "now"
    state = saved_at(library, before)
    before.rename(now)
    other = saved_at(library, before, 100)
    state = rb.add(state, library.tree(small(10, 5)))
    assert frb.save(state, now).nbytes < 1000  # in place
    assert read_manifest(str(now), 2).undo
    state = rb.add(state, library.tree(small(20, 5)))
    other = rb.add(other, library.tree(small(200, 4)))
    frb.save(state, before, keep=9)  # a copy: the files there are another's
    assert not read_manifest(str(before), 2).undo
    assert ids_of(library, frb.load(now, library.library)) == [12, 13, 14, 4, 5, 6, 10, 11]
    assert frb.checkpoint.checkpoints(before)[1].items == 6
    assert read_back(before, 1)["rows"] != read_back(before, 2)["rows"]
    assert ids_of(library, other) == [202, 203, 102, 103, 104, 105, 200, 201]
    del other
    gc.collect()
    assert ids_of(library, frb.load(before, library.library)) == [12, 13, 14, 20, 21, 22, 23, 24]


def test_a_shared_buffers_own_directory_is_no_other_when_it_is_moved(library: Backend, tmp_path: Path) -> None:
    before, now = tmp_path / "before", tmp_path / "now"
    state = library.rb.init(dataclasses.replace(SMALL, storage=frb.Memmap(str(before), shared=True)))
    frb.save(library.rb.add(state, library.tree(small(1, 3))), before)
    before.rename(now)
    with pytest.raises(FileExistsError, match=rf"has items already.*{now}"):
        frb.load(now, library.library)
    assert not before.exists()


def test_hard_links_are_refused_and_not_written_to(library: Backend, tmp_path: Path) -> None:
    state = saved_at(library, tmp_path / "run")
    del state
    gc.collect()
    shutil.copytree(tmp_path / "run", tmp_path / "copy", copy_function=os.link)
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    for path in (tmp_path / "copy", tmp_path / "run"):
        with pytest.raises(ValueError, match=r"2 names \(hard links.*cp -a"):
            frb.load(path, library.library)
        with pytest.raises(ValueError, match="hard links"):
            library.rb.init(dataclasses.replace(SMALL, storage=frb.Memmap(str(path), existsok=True)))
        copied = frb.load(path, library.library, storage=frb.Host())
        library.rb.add(copied, library.tree(small(10, 5)))
    assert {path: path.read_bytes() for path in before} == before
    shutil.rmtree(tmp_path / "copy")
    assert ids_of(library, frb.load(tmp_path / "run", library.library)) == [1, 2, 3, 4, 5, 6, 0, 0]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_copy_is_read_into_memory(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with backends.make("torch") as library:
        state = saved_at(library, tmp_path / "run")
        del state
        gc.collect()
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        original = os.open

        def refusing(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if str(path).startswith(str(tmp_path)) and flags & (os.O_RDWR | os.O_WRONLY):
                raise OSError(number, os.strerror(number), str(path))
            return original(path, flags, *args, **kwargs)

        monkeypatch.setattr(os, "open", refusing)
        loaded = frb.load(tmp_path / "copy", "torch")
        assert loaded.spec.storage == frb.Host()
        assert ids_of(library, loaded) == [1, 2, 3, 4, 5, 6, 0, 0]
        with pytest.raises(OSError, match="can be written to"):
            frb.load(tmp_path / "copy", "torch", storage=frb.Memmap(tmp_path / "copy"))


def test_loading_does_not_replace_what_files_hold_unless_told(library: Backend, tmp_path: Path) -> None:
    spec = dataclasses.replace(SMALL, storage=frb.Memmap(str(tmp_path / "files")))
    state = library.rb.add(library.rb.init(spec), library.tree(small(1, 3)))
    frb.save(state, tmp_path / "elsewhere")
    del state
    gc.collect()
    with pytest.raises(FileExistsError, match=r"in place of what they hold.*existsok=True\) if that is meant"):
        frb.load(tmp_path / "elsewhere", library.library, storage=spec.storage)


def test_saves_by_several_names_of_a_directory_follow_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    state = torch_backend.init(SMALL)
    with locked(tmp_path / "run" / "lock"):
        first = frb.save(state, tmp_path / "run", background=True)
        waited: list[background.SaveFuture] = []
        with monkeypatch.context() as patch:
            patch.setattr(first, "wait", lambda: waited.append(first))
            background.wait_for(str(tmp_path / "link"))  # as a save in the foreground does
        assert waited == [first]
        second = frb.save(torch_backend.add(state, small(1, 2)), tmp_path / "link", background=True)
        assert second._before is first
    assert (first.result(60).generation, second.result(60).generation) == (1, 2)


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
    # LoadOptions it back costs no more memory than what is there.
    assert int(torch_backend.size(frb.load(tmp_path, "torch", storage=frb.Memmap()))) == 2100
    del state


def test_logs_go_with_the_checkpoints_that_need_them(tmp_path: Path) -> None:
    state = saved_twice(tmp_path)
    for k in range(10, 16):
        state = stepped(state, k)
        frb.save(state, tmp_path, keep=1)
    assert len(undo_log.numbers(str(tmp_path))) == 1
    frb.save(loaded := frb.load(tmp_path, "torch", storage=frb.Host()), tmp_path / "elsewhere")
    frb.save(loaded, tmp_path, keep=1)
    assert undo_log.numbers(str(tmp_path)) == []
    state = stepped(state, 16)
    frb.save(state, tmp_path)
    assert agree(tmp_path) == 16


def test_files_and_logs_last_before_the_manifest_has_its_name(
    library: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasting: dict[str, int] = {}
    fsync, rename = os.fsync, disk.rename

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
    monkeypatch.setattr(disk, "rename", renamed)
    for _ in range(3):
        lasting.clear()
        names: set[str] = set()
        frb.save(state, tmp_path, incremental=True)
        state = library.rb.add(state, library.tree(items))  # over rows that the checkpoint needs: they are logged
    assert {"rows.bin", "undo-00000001.bin", "undo-00000002.bin"} <= names


# ------------------------------------------------------------ backends, storages


@pytest.mark.parametrize("storage", ["host", "objects", "scratch", "path", "device"])
def test_loads_into_every_storage(library: Backend, storage: str, tmp_path: Path) -> None:
    spec = frb.BufferSpec(STEP, 8, frb.Prioritized())
    items = {"id": np.arange(5, dtype=np.int32), "x": np.ones((5, 2), np.float32), "done": np.zeros(5, bool)}
    state = library.rb.add(library.rb.init(spec), items)
    frb.save(state, tmp_path / "checkpoint")
    path = tmp_path / "files"
    if storage == "path":  # with other content
        old = library.rb.init(dataclasses.replace(spec, storage=frb.Memmap(path)))
        for _ in range(4):
            old = library.rb.add(old, library.tree(items))
        del old
    where = {
        "host": frb.Host(),
        "objects": frb.Objects(),
        "scratch": frb.Memmap(),
        "path": frb.Memmap(path, existsok=True),
        "device": frb.Device("cpu"),
    }[storage]
    loaded = frb.load(
        tmp_path / "checkpoint", library.library, frb.checkpoint.LoadOptions(mmap=storage == "host"), storage=where
    )
    assert loaded.spec.storage == where
    plain = frb.load(tmp_path / "checkpoint", library.library)
    for _ in range(3):
        loaded, plain = (library.rb.add(x, items) for x in (loaded, plain))  # NumPy's go to any device
        assert np.array_equal(
            library.numpy(library.rb.items(loaded)["id"]), library.numpy(library.rb.items(plain)["id"])
        )
    if storage == "path":
        assert (path / "rows.bin").stat().st_size == 8 * 4 * 4
        del loaded
        with pytest.raises(FileExistsError, match="existsok"):
            frb.load(tmp_path / "checkpoint", library.library, storage=frb.Memmap(path))


def test_in_place_on_jax_and_over_to_torch(tmp_path: Path) -> None:
    spec = frb.BufferSpec(STEP, 8, frb.Prioritized(), storage=frb.Memmap(tmp_path))
    items = {"id": np.arange(5, dtype=np.int32), "x": np.ones((5, 2), np.float32), "done": np.zeros(5, bool)}
    state = jax_backend.add(jax_backend.init(spec), items)
    older = state
    state = jax_backend.add(state, items)
    info = frb.save(state, tmp_path, background=True)
    expected = bits(state)
    state = jax_backend.add(state, items)
    assert info.result().written < 3000
    frb.save(older, tmp_path, incremental=True, keep=3)  # not the newest: copied
    assert not read_manifest(str(tmp_path), 2).undo
    assert read_back(tmp_path, 1) == expected
    assert read_back(tmp_path, 2) == bits(older)
    frb.save(state, tmp_path, incremental=True, keep=3)
    with pytest.raises(frb.errors.StorageInUseError):
        frb.load(tmp_path, "jax", storage=frb.Memmap(tmp_path))
    assert frb.load(tmp_path, "jax").spec.storage == frb.Host()
    expected = bits(state)
    del state, older
    gc.collect()
    there = frb.load(tmp_path, "torch")
    assert bits(there) == expected
    there = torch_backend.add_(there, {name: torch.from_numpy(x) for name, x in items.items()})
    assert read_back(tmp_path, 3) == expected


def test_compiled_forms_are_refused_while_checkpoints_lie_in_the_files(tmp_path: Path) -> None:
    spec = frb.BufferSpec(STEP, 8, storage=frb.Memmap(tmp_path))
    items = {"id": torch.arange(3, dtype=torch.int32), "x": torch.ones(3, 2), "done": torch.zeros(3, dtype=torch.bool)}
    state = torch_backend.add_(torch_backend.init(spec), items)
    state = torch_backend.own_(state)
    state._version.own().files.prepare(0, 8)
    add = torch.compile(torch_backend.add_, fullgraph=True, backend="eager")
    state = add(state, items)
    frb.save(state, tmp_path)
    gc.collect()
    with pytest.raises(Exception, match="outside of the compiled function, or save to another directory"):
        add(torch_backend.own_(state), items)


def test_files_that_are_removed_in_the_end_are_copied(tmp_path: Path) -> None:
    spec = frb.BufferSpec(STEP, 8, storage=frb.Memmap(tmp_path, auto_cleanup=True))
    state = torch_backend.init(spec)
    frb.save(state, tmp_path)
    assert not read_manifest(str(tmp_path), 1).undo
    del state
    gc.collect()
    assert int(torch_backend.size(frb.load(tmp_path, "torch", storage=frb.Host()))) == 0


def test_shared_buffers_are_saved_and_made_of_checkpoints(library: Backend, tmp_path: Path) -> None:
    rb, shared = library.rb, frb.Memmap(tmp_path / "shared", shared=True, auto_cleanup=True)
    spec = frb.BufferSpec(STEP, 8, frb.Prioritized(), storage=shared)
    items = {"id": np.arange(5, dtype=np.int32), "x": np.ones((5, 2), np.float32), "done": np.zeros(5, bool)}
    state = rb.add(rb.init(spec), library.tree(items))
    state = rb.add(state, library.tree(items), priorities=np.arange(1, 6, dtype=np.float32))
    frb.save(state, tmp_path / "checkpoint")
    expected = bits(state.detached())
    state = rb.add(state, library.tree(items))
    with pytest.raises(FileExistsError, match=r"joins it"):
        frb.load(tmp_path / "checkpoint", library.library, storage=shared)
    other = frb.Memmap(tmp_path / "other", shared=True, auto_cleanup=True)
    loaded = frb.load(tmp_path / "checkpoint", library.library, storage=other)
    assert bits(loaded.detached()) == expected
    assert int(loaded.lost) == 0
    native = type(loaded.buffer)
    assert native.attach(loaded.spec, loaded.directory).counters()[CURSOR] == 10


def test_who_dies_as_a_shared_buffer_is_made_of_a_checkpoint_leaves_it_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupts, committed = iter([True]), _native.shared_commit

    def commit(*arguments: Any) -> Any:
        if next(interrupts, False):
            raise KeyboardInterrupt
        return committed(*arguments)

    spec = frb.BufferSpec(STEP, 8, frb.Prioritized())
    items = {"id": torch.arange(5, dtype=torch.int32), "x": torch.ones(5, 2), "done": torch.zeros(5, dtype=torch.bool)}
    frb.save(torch_backend.add(torch_backend.init(spec), items), tmp_path / "checkpoint")
    storage = frb.Memmap(tmp_path / "shared", shared=True, auto_cleanup=True)
    with monkeypatch.context() as patch:
        patch.setattr(_native, "shared_commit", commit)
        with pytest.raises(KeyboardInterrupt):
            frb.load(tmp_path / "checkpoint", "torch", storage=storage)
    state = torch_backend.init(dataclasses.replace(spec, storage=storage))
    assert int(torch_backend.size(state)) == 0
    assert not bits(state.detached())["tree"][2].strip(b"\0")
    loaded = frb.load(tmp_path / "checkpoint", "torch", storage=storage)
    assert int(torch_backend.size(loaded)) == 5


def test_inspection_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = saved_twice(tmp_path)
    assert main(["inspect", str(tmp_path)]) == 0
    assert "144" in capsys.readouterr().out  # the cursor, or how many were added
    os.truncate(tmp_path / "wide_0.bin", 10)
    assert main(["inspect", str(tmp_path)]) != 0
    assert "wide_0.bin" in capsys.readouterr().out
    del state


def test_rows_that_the_checkpoint_has_not_are_blank_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)
    monkeypatch.setattr(mapped_array, "CHUNK", 4096)  # else so much counts as written, and is logged
    state, _ = open_here(tmp_path)
    state = stepped(state, 1)
    frb.save(state, tmp_path)
    for k in range(2, 5):
        state = stepped(state, k)
    del state
    state, k = open_here(tmp_path)
    assert k == 1
    assert [array.tobytes() for array in (state.rows, *state.wide)] == [array.tobytes() for array in written(1)]


def test_nothing_of_what_lay_in_the_files_shines_through(tmp_path: Path) -> None:
    state = saved_twice(tmp_path / "files")
    del state
    frb.save(torch_backend.init(KILLED), tmp_path / "empty")
    loaded = frb.load(tmp_path / "empty", "torch", storage=frb.Memmap(tmp_path / "files", existsok=True))
    assert not loaded.rows.any()
    assert agree(tmp_path / "files") == 6
