"""Memory-mapped files: sparse, whose they are, who cleans up, and what happens where there is no room."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import functional_rb as frb
from functional_rb.storage import directory as mapped_directory
from functional_rb.storage import holes, mapped, mapped_array
from functional_rb.storage.mapped import MappedFiles
from tests.support.children import ROOT, program
from tests.support.effort import effort
from tests.support.full_disks import PAGE, fill_after

ITEM = {"x": frb.Unbounded((256,)), "image": frb.Unbounded((32, 32), "bfloat16")}


def spec_of(path: Any = None, capacity: int = 10, item: Any = ITEM, **flags: Any) -> frb.BufferSpec:
    return frb.BufferSpec(item, capacity, storage=frb.Memmap(path, **flags))


def blocks(files: MappedFiles) -> int:
    """Bytes on the disk."""
    return sum(os.fstat(array._file.fd).st_blocks * 512 for array in files._arrays.values())


def fill(files: MappedFiles, number: int) -> None:
    files.reserve_all()
    for array in (files.rows, *files.wide, *files.auxiliary.values()):
        array[...] = number


# ---------------------------------------------------------------- what the arrays are


def test_arrays_are_as_the_layout_says(tmp_path: Path) -> None:
    files = mapped.create(spec_of(tmp_path / "a" / "b"))
    assert files.directory == str(tmp_path / "a" / "b")
    assert (files.rows.shape, files.rows.dtype) == ((10, 256), np.int32)
    assert [(x.shape, x.dtype) for x in files.wide] == [((10, 32, 32), np.uint16)]
    for array in (files.rows, *files.wide):
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert not array.any()
    files.reserve_all()
    files.rows[3], files.wide[0][9] = 5, 7
    files.flush()
    directory = tmp_path / "a" / "b"
    np.testing.assert_array_equal(np.fromfile(directory / "rows.bin", "<i4").reshape(10, 256), files.rows)
    np.testing.assert_array_equal(np.fromfile(directory / "wide_0.bin", "<u2").reshape(10, 32, 32), files.wide[0])


def test_frames_of_compact_storage_lie_in_files() -> None:
    item = {"obs": frb.Unbounded((2048,), "uint8"), "next_obs": frb.Unbounded((2048,), "uint8"), "x": frb.Unbounded(())}
    spec = frb.BufferSpec(item, 10, compact=frb.Compact(), storage=frb.Memmap())
    files = mapped.create(spec)
    assert set(files.auxiliary) == {"frames", "frames_0"}
    assert files.auxiliary["frames_0"].shape == spec.plan.auxiliary["frames_0"].shape
    files.reserve_frames(0, 2)
    files.auxiliary["frames_0"][1] = 3
    assert (files.copy().auxiliary["frames_0"][1] == 3).all()


def test_a_leaf_that_takes_no_bytes() -> None:
    files = mapped.create(spec_of(item={"nothing": frb.Unbounded((0,))}))
    assert files.rows.shape == (10, 0)
    assert files.complete
    files.reserve(0, 10)
    assert files.copy().rows.shape == (10, 0)


def test_two_hundred_gigabytes_of_which_little_is_touched() -> None:
    spec = spec_of(capacity=200_000_000, item=(frb.Unbounded((256,)),))
    files = mapped.create(spec)
    assert files.rows.nbytes > 200e9
    counters = np.zeros(6, np.int32)
    counters[0] = spec.capacity - 10  # the last ten slots, and then the first ones
    files.make_room(spec, counters, 20)
    for slot in (spec.capacity - 1, 5):
        files.rows[slot] = slot
    assert not files.rows[100_000_000].any()
    assert blocks(files) <= 3 * mapped_array.CHUNK
    copied = files.copy()
    assert blocks(copied) <= 3 * mapped_array.CHUNK
    for slot in (spec.capacity - 1, 5):
        assert (copied.rows[slot] == slot).all()


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    written=st.lists(st.tuples(st.integers(0, 39), st.integers(0, 3)), max_size=12), later=st.integers(0, 39)
)
def test_a_copy_has_the_content_and_is_apart(written: list[tuple[int, int]], later: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped_array, "CHUNK", PAGE)
        spec = spec_of(capacity=40)
        files, model = mapped.create(spec), np.zeros((40, 256), np.int32)
        for slot, value in written:
            files.reserve(slot, 1)
            files.rows[slot] = model[slot] = value
        copied = files.copy()
        assert copied.directory is None
        again = mapped.filled(spec, {"rows": files.rows})
        files.reserve(later, 1)
        files.rows[later] = 9
        for other in (copied, again):
            np.testing.assert_array_equal(other.rows, model)
            other.reserve(later, 1)
            other.rows[later] = 8
        assert (files.rows[later] == 9).all()


def test_what_is_zero_is_left_out_when_files_are_filled_but_not_minus_zero() -> None:
    spec = spec_of(capacity=4000, item=(frb.Unbounded((1024,)),))
    values = np.zeros((4000, 1024), np.float32)
    values[0], values[3999] = 1, -0.0
    files = mapped.filled(spec, {"rows": values.view(np.int32)})
    assert files.rows.tobytes() == values.tobytes()
    assert blocks(files) <= 3 * mapped_array.CHUNK


# ---------------------------------------------------------------- room on the disk


def test_room_is_reserved_in_chunks_and_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(mapped_array, "CHUNK", PAGE)
    monkeypatch.setattr(mapped_array, "allocate", lambda _, start, nbytes: asked.append((start, nbytes)))
    files = mapped.create(spec_of(capacity=10, item=(frb.Unbounded((384,)),)))  # 1536 bytes each, so 3.75 pages
    files.reserve(3, 2)  # bytes 4608 to 7680
    files.reserve_slots([3, 4, 3])
    assert asked == [(PAGE, PAGE)]
    files.reserve_slots(np.array([2], np.int32))  # bytes 3072 to 4608
    assert asked == [(PAGE, PAGE), (0, PAGE)]
    assert not files.complete
    files.reserve(0, 10)
    assert asked[2:] == [(2 * PAGE, PAGE), (3 * PAGE, 15360 - 3 * PAGE)]
    assert files.complete


@hypothesis.settings(max_examples=100)
@hypothesis.given(
    words=st.sampled_from([1, 300, 384, 1024, 1500]),
    asked=st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 5)), max_size=8),
)
@hypothesis.example(words=1, asked=[(True, 5, 0), (True, 5, 1)])
def test_all_that_was_asked_for_is_reserved(words: int, asked: list[tuple[bool, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped_array, "CHUNK", PAGE)
        patch.setattr(mapped_array, "allocate", lambda *_: None)
        item = {"x": frb.Unbounded((words,)), "image": ITEM["image"]}
        files = mapped.create(spec_of(capacity=26, item=item))
        wanted: dict[str, set[int]] = {"rows": set(), "wide_0": set()}
        for contiguous, first, n in asked:
            slots = range(first, first + n)
            for name, size in (("rows", 4 * words), ("wide_0", 2048)):
                wanted[name] |= {byte // PAGE for k in slots for byte in (k * size, (k + 1) * size - 1)}
                wanted[name] |= {k * size // PAGE + 1 for k in slots if size > PAGE}
            if contiguous:
                files.reserve(first, n)
            else:
                files.reserve_slots(np.array(slots, np.int32))
            for name, chunks in wanted.items():
                assert set(np.flatnonzero(files._arrays[name].reserved)) == chunks


def test_items_longer_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_array, "CHUNK", PAGE)
    files = mapped.create(spec_of(capacity=8, item=(frb.Unbounded((3 * PAGE // 4,)),)))
    files.reserve_slots([5, 1])
    assert np.flatnonzero(files._arrays["rows"].reserved).tolist() == [3, 4, 5, 15, 16, 17]


ROOMS = {
    "a ring": (frb.BufferSpec(ITEM, 12), {0: 10}, 4, [0, 1, 10, 11]),
    "more than a ring": (frb.BufferSpec(ITEM, 12), {0: 10}, 400, list(range(12))),
    "lanes": (frb.BufferSpec(ITEM, 12, lanes=2), {6: 5, 7: 9}, 4, [0, 5, 9, 10]),
    "a writer that chooses": (frb.BufferSpec(ITEM, 12, writer=frb.Reservoir()), {1: 3}, 2, [0, 1, 2, 3, 4]),
}


@pytest.mark.parametrize("name", ROOMS)
def test_room_for_what_an_add_may_write(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, numbers, batch, expected = ROOMS[name]
    monkeypatch.setattr(mapped_array, "CHUNK", 1024)  # an item of the rows
    files = mapped.scratch(spec)
    counters = np.zeros(64, np.int32)
    counters[list(numbers)] = list(numbers.values())
    files.make_room(spec, counters, batch)
    assert np.flatnonzero(files._arrays["rows"].reserved).tolist() == expected
    assert np.flatnonzero(files._arrays["wide_0"].reserved[::2]).tolist() == expected


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_an_error_with_a_remedy(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_after(monkeypatch, 3, number)
    files = mapped.create(spec_of(tmp_path / "x", 40))
    files._arrays["rows"].reserve(0, 12)
    files.rows[:12] = 1
    with pytest.raises(frb.errors.StorageFullError, match=r"nothing was written: make room.*rows\.bin") as caught:
        files.reserve(0, 40)
    assert caught.value.errno == errno.ENOSPC
    assert isinstance(caught.value, OSError)
    assert (files.rows[:12] == 1).all()
    fill_after(monkeypatch, 1000)
    files.reserve(0, 40)
    assert files.complete


def test_another_failure_is_not_called_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    fill_after(monkeypatch, 0, errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as caught:
        mapped.create(spec_of()).reserve(0, 1)
    assert not isinstance(caught.value, frb.errors.StorageFullError)


def test_without_fallocate_room_is_made_by_writing_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    files = mapped.create(spec_of(capacity=4000))
    os.pwrite(files.descriptors()["rows"], np.full(256, 3, np.int32).tobytes(), 0)
    monkeypatch.delattr(os, "posix_fallocate")
    files.reserve(0, 4000)
    assert blocks(files) >= files.rows.nbytes + files.wide[0].nbytes
    assert (files.rows[0] == 3).all()
    assert not files.rows[1:].any()


# ---------------------------------------------------------------- files that are there


def test_files_that_are_there_are_refused_or_taken_as_they_are(tmp_path: Path) -> None:
    files = mapped.create(spec_of(tmp_path))
    fill(files, 7)
    del files
    with pytest.raises(FileExistsError, match=r"existsok=True.*storage\.json"):
        mapped.create(spec_of(tmp_path))
    again = mapped.create(spec_of(tmp_path, existsok=True))
    assert (again.rows == 7).all()
    assert (again.wide[0] == 7).all()
    assert not again._arrays["rows"].reserved.any()


OTHERS: dict[str, frb.BufferSpec] = {
    "capacity": spec_of(None, 11),
    "leaf's shape": spec_of(item=ITEM | {"x": frb.Unbounded((16, 16))}),
    "leaf's dtype": spec_of(item=ITEM | {"x": frb.Unbounded((256,), "int32")}),
    "leaf's name": spec_of(item={"y": ITEM["x"], "image": ITEM["image"]}),
    "one leaf more": spec_of(item=ITEM | {"y": frb.Unbounded(())}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_another_buffer_are_refused(name: str, tmp_path: Path) -> None:
    fill(mapped.create(spec_of(tmp_path)), 7)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = frb.BufferSpec(OTHERS[name].item, OTHERS[name].capacity, storage=frb.Memmap(tmp_path, existsok=True))
    for call in (lambda: mapped.create(other), lambda: mapped.open_existing(other, str(tmp_path), False)):
        with pytest.raises(ValueError, match=r"storage\.json: .* expected .*, got .*; give Memmap another path"):
            call()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_files_that_nothing_describes_or_that_were_cut_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.bin").write_bytes(b"somebody's")
    with pytest.raises(ValueError, match=r"rows\.bin: expected storage\.json beside it"):
        mapped.create(spec_of(tmp_path, existsok=True))
    assert (tmp_path / "rows.bin").read_bytes() == b"somebody's"
    directory = tmp_path / "cut"
    mapped.create(spec_of(directory))
    os.truncate(directory / "wide_0.bin", 100)
    with pytest.raises(ValueError, match=r"wide_0\.bin: expected 20480 bytes, .* got 100"):
        mapped.create(spec_of(directory, existsok=True))
    (directory / "storage.json").write_text("{")
    with pytest.raises(ValueError, match=r"storage\.json: expected JSON"):
        mapped.create(spec_of(directory, existsok=True))


def test_files_of_a_process_that_was_killed_as_it_made_them_are_completed(tmp_path: Path) -> None:
    mapped.create(spec_of(tmp_path))
    os.truncate(tmp_path / "wide_0.bin", 0)
    (tmp_path / "rows.bin").unlink()
    files = mapped.create(spec_of(tmp_path, existsok=True))
    assert not files.rows.any()
    assert files.wide[0].shape == (10, 32, 32)


def test_what_is_opened_to_be_read_is_not_locked_and_not_written(tmp_path: Path) -> None:
    writing = mapped.create(spec_of(tmp_path))
    fill(writing, 3)
    reading = mapped.open_existing(spec_of(), str(tmp_path), writable=False)
    assert (reading.rows == 3).all()
    with pytest.raises(ValueError, match="read-only"):
        reading.rows[0] = 1
    assert (reading.copy().wide[0] == 3).all()
    with pytest.raises(frb.errors.StorageInUseError):
        mapped.open_existing(spec_of(), str(tmp_path), writable=True)
    del writing
    mapped.open_existing(spec_of(), str(tmp_path), writable=True).rows[0] = 4
    assert (reading.rows[0] == 4).all()
    with pytest.raises(FileNotFoundError, match=r"storage\.json"):
        mapped.open_existing(spec_of(), str(tmp_path / "elsewhere"), writable=False)


def test_one_writer_for_a_directory(tmp_path: Path) -> None:
    first = mapped.create(spec_of(tmp_path))
    fill(first, 1)
    for flags in ({}, {"existsok": True}):
        with pytest.raises(frb.errors.StorageInUseError, match=r"del state.*another path.*shared=True"):
            mapped.create(spec_of(tmp_path, **flags))
    assert (first.rows == 1).all()
    del first
    mapped.create(spec_of(tmp_path, existsok=True))


# ---------------------------------------------------------------- where nothing can be made


def test_a_path_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in ("file", "file/below"):
        with pytest.raises((FileExistsError, NotADirectoryError)) as caught:
            mapped.create(spec_of(tmp_path / path))
        assert "give Memmap(path=...) a directory" in caught.value.strerror
        assert caught.value.filename.startswith(str(tmp_path / "file"))


def refused(number: int) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number), args[0])

    return call


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM])
@pytest.mark.parametrize("function", ["makedirs", "open"])
def test_a_directory_that_cannot_be_written(
    function: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_directory.os, function, refused(number))
    with pytest.raises(OSError, match=r"give Memmap\(path=...\) a directory that can be written to") as caught:
        mapped.create(spec_of(tmp_path / "x"))
    assert caught.value.errno == number
    assert isinstance(caught.value, PermissionError) == (number != errno.EROFS)


def test_a_real_directory_that_cannot_be_written(tmp_path: Path) -> None:
    where = Path("/sys/kernel")  # where root may not write either
    if not where.is_dir():
        tmp_path.chmod(0o500)
        where = tmp_path
    if os.access(tmp_path, os.W_OK) and where == tmp_path:
        pytest.skip("this user may write everywhere")
    with pytest.raises(PermissionError, match="can be written to"):
        mapped.create(spec_of(where / "functional_rb"))


@pytest.mark.parametrize("fails", range(1, 4))
def test_no_room_for_the_files_themselves_leaves_none(
    fails: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [0]

    def at_last(number: int, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] == number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*args, **kwargs)

        return counted

    monkeypatch.setattr(os, "replace", at_last(fails, os.replace))
    monkeypatch.setattr(os, "ftruncate", at_last(fails, os.ftruncate))
    with pytest.raises(frb.errors.StorageFullError):
        mapped.create(spec_of(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"storage.lock"}
    monkeypatch.undo()
    mapped.create(spec_of(tmp_path))


# ---------------------------------------------------------------- other processes


def ended(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def start(name: str, *arguments: Any, **kwargs: Any) -> subprocess.Popen[str]:
    """A process with mapped files that imports NumPy alone."""
    command = program("mapped_files", name, *arguments)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, **kwargs)


def killed(process: subprocess.Popen[str]) -> None:
    """Once it has said something."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def names(path: Path) -> list[str]:
    return sorted(path.name for path in path.rglob("*"))


def test_files_without_a_path_are_seen_by_nobody_and_vanish_when_killed(tmp_path: Path) -> None:
    process = start("write_and_wait", env=os.environ | {"TMPDIR": str(tmp_path)})
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert names(tmp_path) == []
    process.kill()
    process.communicate(timeout=60)
    assert names(tmp_path) == []


def test_a_killed_writer_leaves_its_rows_and_no_lock(tmp_path: Path) -> None:
    killed(start("write_and_wait", tmp_path))
    files = mapped.create(spec_of(tmp_path, 10_000, (frb.Unbounded((256,)),), existsok=True))
    assert (files.rows == 1).all()


@pytest.mark.parametrize("end", ["return", "SystemExit"])
def test_who_cleans_up_and_what(end: str, tmp_path: Path) -> None:
    ended(start("clean_up", tmp_path, end))
    left = ["again", "kept", "mine", "mixed"]
    assert [name for name in names(tmp_path) if "." not in name] == left
    assert sorted(path.name for path in (tmp_path / "mixed").iterdir()) == ["mine"]
    assert (tmp_path / "kept" / "rows.bin").stat().st_size == 10_000 * 1024


def test_what_is_removed_in_the_end_is_ones_own(tmp_path: Path) -> None:
    files = mapped.create(spec_of(tmp_path / "files", auto_cleanup=True))
    (tmp_path / "files").rename(tmp_path / "renamed")
    others = mapped.create(spec_of(tmp_path / "files"))
    del files
    assert (tmp_path / "files" / "rows.bin").exists()
    assert (tmp_path / "renamed" / "rows.bin").exists()
    del others
    files = mapped.create(spec_of(tmp_path / "more", auto_cleanup=True))
    before = len(os.listdir("/proc/self/fd"))
    del files
    assert not (tmp_path / "more").exists()
    assert len(os.listdir("/proc/self/fd")) < before


def test_a_forked_process_may_not_use_the_files_and_does_not_unlock_them(tmp_path: Path) -> None:
    ended(start("fork", tmp_path))


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    out = ended(start("limited", tmp_path))
    assert out.count("ulimit -f") == 2
    assert names(tmp_path) == ["storage.lock"]


def on_a_small_disk(path: Path, how: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a mount namespace of its own, with a tmpfs of 9 MiB: it is told a directory there, and how."""
    inside = 'mount -t tmpfs -o size=9m none "$1" && path="$1/buffer" how="$2" && shift 2 && exec "$@" "$path" "$how"'
    mounted = ["unshare", "--mount", "--map-root-user", "sh", "-c", inside, "sh", str(path), how]
    try:
        allowed = subprocess.run([*mounted, "true"], capture_output=True, timeout=60, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("a tmpfs cannot be mounted here")
    return subprocess.run([*mounted, *command], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:  # the buffer is of 10 MB
    done = on_a_small_disk(tmp_path, "protected", *program("mapped_files", "fill_up"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("full at")
    # And without the reservation it is what the reservation is for.
    assert on_a_small_disk(tmp_path, "unprotected", *program("mapped_files", "fill_up")).returncode == -signal.SIGBUS


def test_copies_of_files_with_hidden_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holes, "take_room", lambda _: True)  # as in a tmpfs, wherever these files lie
    files = mapped.create(spec_of(tmp_path, 4000))
    files.reserve(100, 3)
    files.rows[100:103], files.wide[0][100:103] = 5, 7
    for other in (files.copy(), mapped.open_existing(spec_of(capacity=4000), str(tmp_path), writable=False).copy()):
        for copied in (other, other.copy()):
            for array, number in ((copied.rows, 5), (copied.wide[0], 7)):
                assert (array[100:103] == number).all()
                assert not array[:100].any()
                assert not array[103:].any()
        other.reserve(3000, 2)
        other.rows[3000:3002] = 6
        assert (other.copy().rows[3000:3002] == 6).all()
    files.replace({"rows": np.full((4000, 256), 2, np.int32)})
    assert (files.rows == 2).all()
    assert (files.copy().rows == 2).all()


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_what_was_never_written_is_read_without_taking_room(library: str, tmp_path: Path) -> None:
    done = on_a_small_disk(tmp_path, library, *program("holes_on_a_full_disk"))
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr
    if effort(False, library == "torch"):  # that the process dies without it
        assert on_a_small_disk(tmp_path, "unprotected", *program("holes_on_a_full_disk")).returncode == -signal.SIGBUS


def test_what_the_directory_says_of_itself(tmp_path: Path) -> None:
    mapped.create(spec_of(tmp_path))
    told = json.loads((tmp_path / "storage.json").read_text())
    assert told["files"]["rows.bin"] == {"shape": [10, 256], "dtype": "int32"}
    assert told["leaves"]["image"] == [[32, 32], "bfloat16", None, 0]
    assert told["byteorder"] == sys.byteorder
