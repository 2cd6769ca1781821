"""The directory of memory-mapped files: what is there already, what it says of itself, and where none can be made."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend as rb
from tests.support.full_disks import fill_after

ITEM = {"x": frb.Unbounded((256,)), "image": frb.Unbounded((32, 32), "bfloat16")}


def spec_of(path: Any = None, capacity: int = 10, item: Any = ITEM, **flags: Any) -> frb.BufferSpec:
    return frb.BufferSpec(item, capacity, storage=frb.Memmap(path, **flags))


def filled(path: Path, number: int) -> Any:
    """A full buffer, all of whose numbers are the same."""
    image = torch.full((10, 32, 32), number, dtype=torch.bfloat16)
    return rb.add(rb.init(spec_of(path)), {"x": torch.full((10, 256), float(number)), "image": image})


def stored(path: Path, name: str = "rows.bin") -> np.ndarray:
    """The numbers in a file, as float32."""
    if name == "rows.bin":
        return np.fromfile(path / name, np.float32)
    return (np.fromfile(path / name, np.uint16).astype(np.uint32) << 16).view(np.float32)


def test_files_that_are_there_are_refused_or_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, 7)
    with pytest.raises(FileExistsError, match=r"existsok=True.*storage\.json"):
        rb.init(spec_of(tmp_path))
    again = rb.init(spec_of(tmp_path, existsok=True))
    assert (stored(tmp_path) == 7).all()
    assert (stored(tmp_path, "wide_0.bin") == 7).all()
    fill_after(monkeypatch, 0)
    with pytest.raises(frb.errors.StorageFullError):  # nobody knows for what there is room
        rb.add(again, {name: torch.zeros(leaf.shape, dtype=getattr(torch, leaf.dtype)) for name, leaf in ITEM.items()})


OTHERS: dict[str, frb.BufferSpec] = {
    "capacity": spec_of(None, 11),
    "leaf's shape": spec_of(item=ITEM | {"x": frb.Unbounded((16, 16))}),
    "leaf's dtype": spec_of(item=ITEM | {"x": frb.Unbounded((256,), "int32")}),
    "leaf's name": spec_of(item={"y": ITEM["x"], "image": ITEM["image"]}),
    "one leaf more": spec_of(item=ITEM | {"y": frb.Unbounded(())}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_another_buffer_are_refused(name: str, tmp_path: Path) -> None:
    filled(tmp_path, 7)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = frb.BufferSpec(OTHERS[name].item, OTHERS[name].capacity, storage=frb.Memmap(tmp_path, existsok=True))
    with pytest.raises(ValueError, match=r"storage\.json: .* expected .*, got .*; give Memmap another path"):
        rb.init(other)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_files_that_nothing_describes_or_that_were_cut_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.bin").write_bytes(b"somebody's")
    with pytest.raises(ValueError, match=r"rows\.bin: expected storage\.json beside it"):
        rb.init(spec_of(tmp_path, existsok=True))
    assert (tmp_path / "rows.bin").read_bytes() == b"somebody's"
    directory = tmp_path / "cut"
    rb.init(spec_of(directory))
    os.truncate(directory / "wide_0.bin", 100)
    with pytest.raises(ValueError, match=r"wide_0\.bin: expected 20480 bytes, .* got 100"):
        rb.init(spec_of(directory, existsok=True))
    (directory / "storage.json").write_text("{")
    with pytest.raises(ValueError, match=r"storage\.json: expected JSON"):
        rb.init(spec_of(directory, existsok=True))


def test_files_of_a_process_that_was_killed_as_it_made_them_are_completed(tmp_path: Path) -> None:
    rb.init(spec_of(tmp_path))
    os.truncate(tmp_path / "wide_0.bin", 0)
    (tmp_path / "rows.bin").unlink()
    rb.init(spec_of(tmp_path, existsok=True))
    assert not stored(tmp_path).any()
    assert stored(tmp_path, "wide_0.bin").shape == (10 * 32 * 32,)


def test_one_writer_for_a_directory(tmp_path: Path) -> None:
    first = filled(tmp_path, 1)
    for flags in ({}, {"existsok": True}):
        with pytest.raises(frb.errors.StorageInUseError, match=r"del state.*another path.*shared=True"):
            rb.init(spec_of(tmp_path, **flags))
    assert (rb.items(first)["x"] == 1).all()
    del first
    rb.init(spec_of(tmp_path, existsok=True))


# ---------------------------------------------------------------- where nothing can be made


def test_a_path_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in ("file", "file/below"):
        with pytest.raises((FileExistsError, NotADirectoryError)) as caught:
            rb.init(spec_of(tmp_path / path))
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
    monkeypatch.setattr(os, function, refused(number))
    with pytest.raises(OSError, match=r"give Memmap\(path=...\) a directory that can be written to") as caught:
        rb.init(spec_of(tmp_path / "x"))
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
        rb.init(spec_of(where / "functional_rb"))


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
        rb.init(spec_of(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"storage.lock"}
    monkeypatch.undo()
    rb.init(spec_of(tmp_path))


def test_what_the_directory_says_of_itself(tmp_path: Path) -> None:
    rb.init(spec_of(tmp_path))
    told = json.loads((tmp_path / "storage.json").read_text())
    assert told["files"]["rows.bin"] == {"shape": [10, 256], "dtype": "int32"}
    assert told["leaves"]["image"] == [[32, 32], "bfloat16", None, 0]
    assert told["byteorder"] == sys.byteorder
