"""Mapped buffers whose directory, with their checkpoints, is moved, copied, linked to, or read only."""

from __future__ import annotations

import dataclasses
import errno
import gc
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.checkpoint.mapped_lives import (
    read_back,
)
from tests.support import backends
from tests.support.backends import Backend
from tests.support.checkpoints import lies_in_files

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
        assert not lies_in_files(before, 2)
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
    assert lies_in_files(now, 2)
    state = rb.add(state, library.tree(small(20, 5)))
    other = rb.add(other, library.tree(small(200, 4)))
    frb.save(state, before, keep=9)  # a copy: the files there are another's
    assert not lies_in_files(before, 2)
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
