"""Chunks of HDF5 that several threads inflate: the same rows as h5py reads, and what is damaged is refused by name."""

from __future__ import annotations

import time
import tracemalloc
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from functional_rb.datasets import hdf5, hdf5_chunks

NUMBERS = np.random.default_rng(0)
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "float32 [23, 5]": (np.float32, {"chunks": (4, 3), "compression": "gzip"}),
    "int64, in the other order": (">i8", {"chunks": (7, 5), "compression": "gzip"}),
    "uint8": (np.uint8, {"chunks": (23, 1), "compression": "gzip"}),
}
OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "not compressed": (np.float32, {"chunks": (4, 3)}),
    "in one piece": (np.float32, {}),
    "shuffled too": (np.float32, {"chunks": (4, 3), "compression": "gzip", "shuffle": True}),
    "with checksums": (np.float32, {"chunks": (4, 3), "compression": "gzip", "fletcher32": True}),
    "marks": (bool, {"chunks": (4, 3), "compression": "gzip"}),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5_chunks, "LEAST", 1)
    monkeypatch.setattr(hdf5_chunks, "THREADS", 2)


def written(path: Path, kind: tuple[Any, dict[str, Any]]) -> np.ndarray:
    values = NUMBERS.integers(0, 2 if kind[0] is bool else 200, (23, 5)).astype(kind[0])
    with h5py.File(path, "w") as file:
        file.create_dataset("some", data=values, **kind[1])
    return values


@pytest.mark.parametrize("kind", [*KINDS, *OTHERS])
def test_rows_are_those_of_h5py(kind: str, tmp_path: Path) -> None:
    values = written(tmp_path / "file", (KINDS | OTHERS)[kind])
    with hdf5.opened(str(tmp_path / "file")) as file:
        for first, stop in ((0, 23), (0, 4), (3, 9), (22, 23), (5, 5), (20, 30)):
            alone = hdf5_chunks.rows(file["some"], first, min(stop, 23))
            assert (alone is not None) == (kind in KINDS and first < stop)
            found = hdf5.rows(file["some"], first, stop, "here")
            np.testing.assert_array_equal(found, values[first:stop])
            assert found.dtype == values.dtype


def test_what_nobody_wrote_or_the_filter_left_out_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "file", "w") as file:
        some = file.create_dataset("some", (20, 4), "f4", chunks=(5, 4), compression="gzip", fillvalue=3)
        some[10:15] = 1
        plain = file.create_dataset("plain", (5, 4), "f4", chunks=(5, 4), compression="gzip")
        plain.id.write_direct_chunk((0, 0), np.arange(20, dtype="f4").tobytes(), filter_mask=1)
    with hdf5.opened(str(tmp_path / "file")) as file:
        assert hdf5_chunks.rows(file["some"], 0, 20) is None
        np.testing.assert_array_equal(hdf5.rows(file["some"], 0, 20, "here").sum(1), [12] * 10 + [4] * 5 + [12] * 5)
        found = hdf5_chunks.rows(file["plain"], 0, 5)
        assert found is not None
        np.testing.assert_array_equal(found.reshape(-1), np.arange(20))


def test_few_chunks_wait_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put, waiting, most = hdf5_chunks._put, list[Future[None]](), list[int]()

    class Pool(ThreadPoolExecutor):
        def submit(self, *given: Any, **more: Any) -> Any:
            most.append(sum(not each.done() for each in waiting))
            waiting.append(super().submit(*given, **more))
            return waiting[-1]

    def slow(*given: Any) -> None:
        time.sleep(0.001)
        put(*given)

    monkeypatch.setattr(hdf5_chunks, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(hdf5_chunks, "_put", slow)
    with h5py.File(tmp_path / "file", "w") as file:
        file.create_dataset("some", data=np.arange(60), chunks=(1,), compression="gzip")
    with hdf5.opened(str(tmp_path / "file")) as file:
        np.testing.assert_array_equal(hdf5_chunks.rows(file["some"], 0, 60), np.arange(60))
    assert 2 <= max(most) <= 8  # for each of two threads


@pytest.mark.parametrize("what", ["too few", "too many", "no deflate"])
def test_damaged_chunks_are_refused(what: str, tmp_path: Path) -> None:
    nbytes = {"too few": 79, "too many": 10**7}.get(what, 0)
    with h5py.File(tmp_path / "file", "w") as file:
        some = file.create_dataset("some", (5, 4), "f4", chunks=(5, 4), compression="gzip")
        some.id.write_direct_chunk((0, 0), zlib.compress(bytes(nbytes)) if nbytes else b"what is this?")
    with hdf5.opened(str(tmp_path / "file")) as file:
        tracemalloc.start()
        with pytest.raises(ValueError, match="'/some' cannot be read"):
            hdf5.rows(file["some"], 0, 5, "here")
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < 10**6


def test_little_is_kept_of_the_groups_that_were_read(tmp_path: Path) -> None:
    """By default 32 MB, for which it takes 250 MB of memory once some thousands of episodes were read."""
    h5py.File(tmp_path / "a.h5", "w").close()
    with hdf5.opened(str(tmp_path / "a.h5")) as file:
        assert file.id.get_mdc_config().max_size <= 2**22


def test_blocks_of_rows_are_read_once_and_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []
    rows = hdf5.rows

    def noted(dataset: Any, first: int, stop: int, where: str) -> Any:
        read.append((first, stop))
        return rows(dataset, first, stop, where)

    monkeypatch.setattr(hdf5, "rows", noted)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["t"] = np.arange(20)
        blocks = hdf5.Blocks(file, 8)
        for first, stop in ((0, 3), (2, 8), (8, 10), (9, 19)):
            found = blocks.rows("t", first, stop, "a")
            np.testing.assert_array_equal(found, np.arange(first, stop))
            with pytest.raises(ValueError, match="read-only"):
                found[0] = 99  # another piece has the same rows
        assert read == [(0, 8), (8, 16), (9, 19)]
        with pytest.raises(ValueError, match="a: there is no 'x'"):
            blocks.rows("x", 0, 1, "a")
