"""Names of files: those that are made follow no links that others put there, those that are read may be anything."""

from __future__ import annotations

import builtins
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
import torch_backend as rb
from functional_rb import inspection, ted
from tests.support.backends import Backend
from tests.support.ted_model import fixed

ITEM = {"x": frb.Unbounded((3,)), "done": frb.Binary()}


def added(state: Any, start: int = 0) -> Any:
    x = np.arange(start, start + 4, dtype=np.float32)[:, None].repeat(3, 1)
    return rb.add(state, {"x": x, "done": np.zeros(4, bool)})


def mapped(directory: Path, **settings: Any) -> Any:
    return rb.init(frb.BufferSpec(ITEM, 8, storage=frb.Memmap(directory, existsok=True, **settings)))


def save(directory: Path) -> None:
    frb.save(added(rb.init(frb.BufferSpec(ITEM, 8))), directory)


def save_in_place(directory: Path) -> None:
    state = added(mapped(directory))
    frb.save(state, directory)
    frb.save(added(added(state, 4), 8), directory)


def share(directory: Path) -> None:
    added(mapped(directory, shared=True))


WRITERS: dict[str, Callable[[Path], None]] = {"save": save, "save in place": save_in_place, "share": share}


def names_that_are_opened(write: Callable[[Path], None], directory: Path) -> set[str]:
    """Those in a directory that can be foreseen, as another run had them too."""
    names = []
    for run in ("one", "two"):
        found, place = set(), directory / run
        originals = os.open, builtins.open

        def noting(original: Any, found: set[str] = found, place: Path = place) -> Any:
            def opened(path: Any, *args: Any, **options: Any) -> Any:
                if isinstance(path, str | os.PathLike) and Path(path).parent == place:
                    found.add(Path(path).name)
                return original(path, *args, **options)

            return opened

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "open", noting(originals[0]))
            patch.setattr(builtins, "open", noting(originals[1]))
            write(place)
        names.append(found | set(os.listdir(place) if place.exists() else ()))
    return names[0] & names[1]


@pytest.mark.parametrize("there", [False, True], ids=["to nothing", "to a file"])
@pytest.mark.parametrize("name", WRITERS)
def test_nothing_is_written_through_a_link(name: str, there: bool, tmp_path: Path) -> None:
    """Whoever may write to a directory may put links there; what they lead to stays as it is."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    found = names_that_are_opened(WRITERS[name], tmp_path / "before")
    assert len(found) >= 4
    succeeded, unnamed = 0, list[str]()
    for number, victim in enumerate(sorted(found)):
        place, target = tmp_path / str(number), elsewhere / victim
        place.mkdir()
        (place / victim).symlink_to(target)
        if there:
            target.write_bytes(b"of somebody else")
        try:
            WRITERS[name](place)
            succeeded += 1
        except (frb.errors.CheckpointError, OSError, ValueError) as error:
            unnamed += [] if victim in str(error) else [f"{victim}: {error}"]
        if there:
            assert target.read_bytes() == b"of somebody else", victim
        else:
            assert not target.exists(), f"{victim} was made elsewhere"
    assert not unnamed
    assert succeeded or name == "share"


def test_who_foresees_the_number_of_the_next_checkpoint_gains_nothing(tmp_path: Path) -> None:
    save(tmp_path)
    victim = tmp_path / "victim"
    victim.write_bytes(b"of somebody else")
    for name in ("0000000002.json.part", "0000000002.safetensors.part"):
        (tmp_path / name).symlink_to(victim)
    save(tmp_path)
    assert victim.read_bytes() == b"of somebody else"
    assert [found.generation for found in frb.checkpoint.checkpoints(tmp_path)] == [3, 1]
    assert float(rb.items(frb.load(tmp_path, rb))["x"][3, 0]) == 3


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a directory"])
@pytest.mark.parametrize("name", ["lock", "0000000001.json.part"])
def test_a_lock_or_a_new_file_that_is_something_else(name: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / name)
    if name != "lock" and make is os.mkfifo:
        save(tmp_path)
        return
    with pytest.raises(frb.errors.CheckpointError, match=name):
        save(tmp_path)


SPOILT: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a directory": os.mkdir,
    "a link to itself": lambda file: file.symlink_to(file),
    "no UTF-8": lambda file: file.write_bytes(b'{"format": "\xff"}'),
    "too deep": lambda file: file.write_text("[" * 100_000),
    "a list": lambda file: file.write_text("[]"),
    "holes": lambda file: os.truncate(os.open(file, os.O_CREAT | os.O_WRONLY), 2**40),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
@pytest.mark.parametrize("shared", [False, True], ids=["mapped", "shared"])
def test_what_describes_files_may_be_anything(shared: bool, spoil: Callable[[Path], object], tmp_path: Path) -> None:
    place = tmp_path / "files"
    added(mapped(place, shared=shared))
    file = place / ("shared.json" if shared else "storage.json")
    file.unlink()
    spoil(file)
    with pytest.raises((ValueError, OSError), match=file.name):
        mapped(place, shared=shared)
    file.unlink() if not file.is_dir() else file.rmdir()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a directory"])
@pytest.mark.parametrize("name", ["rows.bin", "control.bin", "journal.bin"])
def test_a_shared_file_that_is_something_else(name: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    state = added(mapped(tmp_path, shared=True))
    (tmp_path / name).unlink()
    make(tmp_path / name)
    with pytest.raises((ValueError, OSError), match=name):
        mapped(tmp_path, shared=True)
    assert rb.size(state) == 4


def refusals(call: Callable[[Any], object]) -> Iterator[tuple[type[Exception], str]]:
    for path in ("", b"bytes", None, 3, "a\0b"):
        with pytest.raises((TypeError, ValueError)) as caught:
            call(path)
        yield type(caught.value), str(caught.value)


def test_a_path_that_names_nothing_is_refused_by_whatever_takes_one(
    library: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    state = library.rb.init(frb.BufferSpec(ITEM, 8))
    form = ted.to_form(fixed([], 4).filled(library))
    calls: dict[str, Callable[[Any], object]] = {
        "save": lambda path: frb.save(state, path),
        "load": lambda path: frb.load(path, library.rb),
        "checkpoints": frb.checkpoint.checkpoints,
        "inspect": inspection.inspect,
        "Form.save": form.save,
        "ted.to_form": ted.to_form,
        "ted.from_form": ted.from_form,
    }
    for who, call in calls.items():
        told = list(refusals(call))
        assert [kind for kind, _ in told] == [ValueError, TypeError, TypeError, TypeError, ValueError], who
        assert all(text.startswith(f"{who}: expected") for _, text in told), told
        assert "os.fsdecode" in told[1][1]
    for path in ("", b"bytes", 3):
        with pytest.raises((TypeError, ValueError), match=r"Memmap\.path: expected"):
            frb.Memmap(path)  # type: ignore[arg-type]  # refused
    assert not os.listdir(tmp_path)


def test_a_description_that_is_cut_by_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(json, "dump", full)
        with pytest.raises(frb.errors.StorageFullError):
            mapped(tmp_path / "files")
    left = tmp_path / "files"
    assert not left.exists() or set(os.listdir(left)) <= {"storage.lock"}
    shutil.rmtree(left, ignore_errors=True)
    added(mapped(left))
