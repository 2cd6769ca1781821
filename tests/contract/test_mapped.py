"""Memory-mapped files: sparse, copied as such, and written to only where room is reserved."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import functional_rb as frb
from functional_rb.storage import holes, mapped, mapped_array
from functional_rb.storage.mapped import MappedFiles
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


# ---------------------------------------------------------------- copies, and files that are read


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
    with pytest.raises(ValueError, match=r"storage\.json: .* expected .*, got .*; give Memmap another path"):
        mapped.open_existing(spec_of(capacity=11), str(tmp_path), writable=False)


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
