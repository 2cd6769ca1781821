"""Files: room is reserved before anything is written to a mapping; new files and directories are nobody else's."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.base import descriptors, files
from functional_rb.storage import mapped_array
from tests.support import backends
from tests.support.children import ROOT, program

PAGE = 4096


def test_a_row_that_lies_across_the_end_of_a_chunk_has_room_in_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_array, "CHUNK", PAGE)
    file = files.open_own(str(tmp_path / "rows.bin"))
    array = mapped_array.MappedArray(file, (4, 3000), "uint8", "rows.bin")
    array.reserve_rows(np.array([0]))
    array.reserve_rows(np.array([1]))
    assert array.reserved.tolist() == [True, True, False]


def test_a_row_of_several_chunks_has_room_in_all_where_its_ends_have_it_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_array, "CHUNK", PAGE)
    file = files.open_own(str(tmp_path / "rows.bin"))
    array = mapped_array.MappedArray(file, (3, PAGE * 9 // 4), "uint8", "rows.bin")
    array.reserve_rows(np.array([0, 2]))
    assert array.reserved.tolist() == [True, True, True, False, True, True, True]
    array.reserve_rows(np.array([1]))
    assert array.complete


@pytest.mark.parametrize("name", ["torch-core", "jax-core"])
def test_frames_are_written_only_where_there_is_room(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core writes as many frames as may be new; those before the cursor, at the end of the ring, as they are."""
    monkeypatch.setattr(mapped_array, "CHUNK", PAGE)
    frame, steps = frb.Unbounded((PAGE,), "uint8"), 4
    item = {"obs": frame, "next": {"obs": frame}, "done": frb.Binary()}
    with backends.make(name) as backend:
        spec = frb.BufferSpec(item, 20, compact=frb.Compact(), storage=frb.Memmap(tmp_path))
        seen = np.repeat(np.arange(1, steps + 2, dtype=np.uint8)[:, None], PAGE, 1)
        items = {"obs": seen[:-1], "next": {"obs": seen[1:]}, "done": np.zeros(steps, bool)}
        state = backend.add(backend.init(spec), backend.tree(items))
        (stored,) = (array for array in state._version.memory.files._arrays.values() if array.item == PAGE)
        written = [row for first, stop in stored.written() for row in range(first, stop)]
        assert set(range(steps + 1)) < set(written), "frames before the cursor too"
        assert stored.reserved[written].all()


def test_a_file_that_someone_makes_meanwhile_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    for make in (lambda path: os.symlink(target, path), os.mkfifo, lambda path: target.rename(path)):
        target.write_text("theirs")
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", make)
            with pytest.raises(FileExistsError):
                files.create(str(tmp_path / "new"))
        os.unlink(tmp_path / "new")


def test_a_directory_aside_is_nobody_elses_and_goes(tmp_path: Path) -> None:
    with files.aside(os.fspath(tmp_path)) as first, files.aside(os.fspath(tmp_path)) as other:
        assert first != other
        assert stat.S_IMODE(os.stat(first).st_mode) == 0o700
        Path(first, "inside").write_text("x")
        assert sorted(os.listdir(tmp_path)) == sorted(Path(place).name for place in (first, other))
    assert not os.listdir(tmp_path)


def test_directories_aside_of_processes_that_died_are_swept(tmp_path: Path) -> None:
    subprocess.run(program("dies_with_a_directory_aside", tmp_path), cwd=ROOT, check=True)
    left = os.listdir(tmp_path)
    assert len(left) == 1
    (tmp_path / ".functional_rb-of-mine.part").mkdir()
    with files.aside(os.fspath(tmp_path)) as place:
        assert sorted(os.listdir(tmp_path)) == sorted([".functional_rb-of-mine.part", Path(place).name])


def test_a_directory_aside_that_is_swept_as_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is made, and nothing stays open."""
    original, swept = os.stat, list[Any]()

    def sweeping(path: Any, *args: Any, **options: Any) -> Any:
        if str(path).endswith(".part") and not swept:
            swept.append(path)
            os.rmdir(path)
        return original(path, *args, **options)

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", sweeping)
        with files.aside(os.fspath(tmp_path)) as place:
            assert len(swept) == 1
            assert place != swept[0]
    assert len(os.listdir("/proc/self/fd")) == before
    assert not os.listdir(tmp_path)


def test_names_of_temporary_directories_are_never_the_same(tmp_path: Path) -> None:
    """Not even those of a process forked from the same one."""
    seen = set()
    for _ in range(20):
        with files.aside(os.fspath(tmp_path)) as place:
            seen.add(place)
    assert len(seen) == 20


def test_a_new_file_is_new(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    os.link(file, tmp_path / "other")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    for name in ("file", "link"):
        files.create(os.fspath(tmp_path / name)).close()
        assert not (tmp_path / name).is_symlink()
        assert (tmp_path / name).read_text() == ""
        assert (tmp_path / "other").read_text() == "old"


def test_a_file_that_dies_as_the_interpreter_ends_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules are emptied by then: "'NoneType' object has no attribute 'close'", said for each file."""
    file = files.create(os.fspath(tmp_path / "file"))
    number = file.fd
    with monkeypatch.context() as patch:
        patch.setattr(descriptors, "os", None)
        file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
