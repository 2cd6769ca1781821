"""The undo logs: whatever was written since, the rows of each checkpoint come back, wherever the process was killed."""

from __future__ import annotations

import dataclasses
import errno
import os
import pathlib
import resource
import shutil
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import functional_rb as frb
from functional_rb.storage import undo_log

CAPACITY = 7


def arrays_of(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, 99, (CAPACITY, 3)).astype(np.int32),
        rng.integers(0, 99, (CAPACITY, 2, 5)).astype(np.uint8),
    ]


def write(arrays: list[np.ndarray], slots: list[int], rng: np.random.Generator) -> None:
    for array in arrays:
        array[slots] = rng.integers(0, 99, (len(slots), *array.shape[1:])).astype(array.dtype)


def copied(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [array.copy() for array in arrays]


def rows_equal(a: list[np.ndarray], b: list[np.ndarray], rows: Any) -> bool:
    return all(np.array_equal(x[rows], y[rows]) for x, y in zip(a, b, strict=True))


@dataclasses.dataclass
class Taken:
    number: int
    arrays: list[np.ndarray]
    in_use: np.ndarray


slots = st.lists(st.integers(0, CAPACITY - 1), min_size=1, max_size=9)
saves = st.lists(st.booleans(), min_size=CAPACITY, max_size=CAPACITY)


@hypothesis.settings(max_examples=60)
@hypothesis.given(history=st.lists(slots | saves.map(tuple), max_size=14), cut=st.integers(1, 200))
def test_every_checkpoint_comes_back(history: list[Any], cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = str(tmp_path_factory.mktemp("undo"))
    arrays, rng = arrays_of(), np.random.default_rng(1)
    log: undo_log.UndoLog | None = None
    taken: list[Taken] = []
    for step in history:
        if isinstance(step, tuple):
            if log is not None:
                log.close()
            number = len(taken) + 1
            log = undo_log.UndoLog(directory, number, arrays, np.array(step), log)
            taken.append(Taken(number, copied(arrays), np.array(step)))
        else:
            if log is not None:
                log.before_write(np.array(step, np.int32))
            write(arrays, step, rng)
    # A record whose write never came, of which the kill left only a part.
    if log is not None:
        before = os.path.getsize(os.path.join(directory, undo_log.name_of(log.number)))
        log.before_write(np.arange(CAPACITY))
        path = os.path.join(directory, undo_log.name_of(log.number))
        size = os.path.getsize(path)
        if size > before:
            os.truncate(path, max(before, size - cut))
    for one in taken:
        back = copied(arrays)
        undo_log.roll_back(directory, one.number, back)
        assert rows_equal(back, one.arrays, one.in_use)
        undo_log.roll_back(directory, one.number, back)  # a second time, as after a kill in the midst of it
        assert rows_equal(back, one.arrays, one.in_use)
    shutil.rmtree(directory)


def test_a_row_is_kept_once(tmp_path: pathlib.Path) -> None:
    arrays = arrays_of()
    log = undo_log.UndoLog(str(tmp_path), 1, arrays, np.ones(CAPACITY, bool))
    path = tmp_path / undo_log.name_of(1)
    log.before_write(np.array([2, 2, 3]))
    size = path.stat().st_size
    log.before_write(np.array([3, 2]))
    assert path.stat().st_size == size
    log.before_write(np.arange(CAPACITY))
    whole = path.stat().st_size
    for _ in range(5):
        log.before_write(np.arange(CAPACITY))
    assert path.stat().st_size == whole < size + 2 * undo_log.HEAD + CAPACITY * (8 + 12 + 10)


def test_rows_that_were_not_in_use_are_not_kept(tmp_path: pathlib.Path) -> None:
    log = undo_log.UndoLog(str(tmp_path), 1, arrays_of(), np.zeros(CAPACITY, bool))
    log.before_write(np.arange(CAPACITY))
    assert (tmp_path / undo_log.name_of(1)).stat().st_size == 0


def test_large_writes_are_kept_in_pieces(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo_log, "CHUNK", 50)
    arrays = arrays_of()
    old = copied(arrays)
    log = undo_log.UndoLog(str(tmp_path), 1, arrays, np.ones(CAPACITY, bool))
    log.before_write(np.arange(CAPACITY))
    assert len(list(undo_log.records(str(tmp_path / undo_log.name_of(1)), arrays))) == 4
    write(arrays, list(range(CAPACITY)), np.random.default_rng(2))
    undo_log.roll_back(str(tmp_path), 1, arrays)
    assert rows_equal(arrays, old, slice(None))


@pytest.mark.parametrize(
    ("written", "number", "kind"),
    [
        (0, errno.ENOSPC, frb.errors.StorageFullError),
        (1, errno.EDQUOT, frb.errors.StorageFullError),
        (40, errno.EFBIG, frb.errors.StorageFullError),
        (100, errno.ENOSPC, frb.errors.StorageFullError),
        (40, errno.EIO, OSError),
    ],
)
def test_a_full_disk_leaves_the_log_as_it_was(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, written: int, number: int, kind: type[OSError]
) -> None:
    arrays = arrays_of()
    log = undo_log.UndoLog(str(tmp_path), 1, arrays, np.ones(CAPACITY, bool))
    log.before_write(np.array([0]))
    path = tmp_path / undo_log.name_of(1)
    before = path.read_bytes()
    real, calls = os.pwrite, 0

    def pwrite(file: int, content: Any, at: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 1 and written:
            return real(file, content[:written], at)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(kind, match=rf"{os.strerror(number)}.*nothing was written.*undo-00000001\.bin") as caught:
        log.before_write(np.array([1, 2, 3, 4]))
    assert type(caught.value) is kind
    assert ("make room" in str(caught.value)) == (kind is frb.errors.StorageFullError)
    assert path.read_bytes() == before
    monkeypatch.undo()
    old = copied(arrays)
    log.before_write(np.array([1, 2]))
    write(arrays, [1, 2], np.random.default_rng(3))
    undo_log.roll_back(str(tmp_path), 1, arrays)
    assert rows_equal(arrays, old, slice(None))


def test_a_limit_on_the_size_of_files(tmp_path: pathlib.Path) -> None:
    arrays = arrays_of()
    log = undo_log.UndoLog(str(tmp_path), 1, arrays, np.ones(CAPACITY, bool))
    log.before_write(np.array([0]))
    before = (tmp_path / undo_log.name_of(1)).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, limits[1]))
    try:
        with pytest.raises(frb.errors.StorageFullError, match=r"File too large.*ulimit -f"):
            log.before_write(np.array([1, 2]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / undo_log.name_of(1)).read_bytes() == before
    log.before_write(np.array([1, 2]))
    assert [record.slots.tolist() for record in undo_log.records(str(tmp_path / undo_log.name_of(1)), arrays)] == [
        [0],
        [1, 2],
    ]


def test_damage_is_told(tmp_path: pathlib.Path) -> None:
    arrays = arrays_of()
    log = undo_log.UndoLog(str(tmp_path), 1, arrays, np.ones(CAPACITY, bool))
    for k in range(3):
        log.before_write(np.array([k]))
    path = tmp_path / undo_log.name_of(1)
    whole = path.read_bytes()
    record = len(whole) // 3
    for at in range(2 * record):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(frb.errors.CorruptCheckpointError, match="undo-00000001"):
            undo_log.roll_back(str(tmp_path), 1, copied(arrays))


def test_other_logs_are_left_alone(tmp_path: pathlib.Path) -> None:
    arrays = arrays_of()
    first = undo_log.UndoLog(str(tmp_path), 1, arrays, np.ones(CAPACITY, bool))
    first.before_write(np.array([1]))
    first.close()
    (tmp_path / "undo-x.bin").write_bytes(b"no log")
    write(arrays, [1], np.random.default_rng(4))
    now = copied(arrays)
    undo_log.roll_back(str(tmp_path), 2, arrays)
    assert rows_equal(arrays, now, slice(None))
    assert undo_log.numbers(str(tmp_path)) == [1]


def test_a_directory_that_is_not_there(tmp_path: pathlib.Path) -> None:
    with pytest.raises(frb.errors.CheckpointError, match=r"undo-00000001\.bin"):
        undo_log.UndoLog(str(tmp_path / "none"), 1, arrays_of(), np.ones(CAPACITY, bool))
