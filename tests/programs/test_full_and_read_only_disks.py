"""Whatever writes files where nothing can be written: what is there stays in use, and errors say what to do."""

from __future__ import annotations

import os
import re
import resource
import signal
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import functional_rb as frb
import torch_backend as rb
from functional_rb import ted
from tests.datasets.made_up import MadeUp
from tests.support.children import ended, forked, gives_up_privileges

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs namespaces and limits as Linux has them")

SOURCE = MadeUp([30, 20, 4] * 5, (100,))
Write = Callable[[Path], object]


@pytest.fixture(name="made", scope="module")
def made_fixture(tmp_path_factory: pytest.TempPathFactory) -> frb.datasets.Dataset:
    return frb.datasets.convert(SOURCE, tmp_path_factory.mktemp("source") / "made")


def writers(made: frb.datasets.Dataset) -> dict[str, tuple[str, Write]]:
    """What writes files of its own: the name in its errors, and a function that writes below a folder."""
    form = ted.to_form(frb.datasets.load(made, rb))

    def exported(to: Path) -> object:
        pytest.importorskip("minari", reason="needs minari")
        return made.export(to / "a-v0", facts={"author": "A. Uthor"})

    return {
        "form": ("Form.save", lambda to: form.save(to / "a")),
        "nested form": ("Form.save", lambda to: ted.to_form(form, "nested").save(to / "a")),
        "form in HDF5": ("Form.save", lambda to: form.save(to / "a.h5")),
        "compressed form": ("Form.save", lambda to: form.save(to / "a.h5", compression="gzip")),
        "convert": ("datasets.convert", lambda to: frb.datasets.convert(SOURCE, to / "a")),
        "map": ("Dataset.map", lambda to: made.map(lambda episode: episode, to / "a")),
        "filter": ("Dataset.filter", lambda to: made.filter(lambda episode: True, to / "a")),
        "concat": ("Dataset.concat", lambda to: made.concat(made, to=to / "a")),
        "split": ("Dataset.split", lambda to: made.split([1.0], [to / "a"])),
        "export": ("Dataset.export", exported),
    }


@pytest.mark.parametrize("name", ["form", "nested form", "form in HDF5", "compressed form", "export"])
def test_a_full_disk_is_an_error_and_leaves_nothing(name: str, made: frb.datasets.Dataset, tmp_path: Path) -> None:
    """HDF5 crashes a process that closes a file where a write has failed."""
    _, write = writers(made)[name]
    write(tmp_path)  # which imports what is imported late
    (whole,) = (path for path in tmp_path.iterdir() if not path.name.startswith("."))
    sizes = [path.stat().st_size for path in (whole.rglob("*") if whole.is_dir() else [whole])]
    for share in range(5):
        folder = tmp_path / f"share {share}"
        folder.mkdir()

        def limited(folder: Path = folder, most: int = 1 + max(sizes) * share // 5) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            with pytest.raises(frb.errors.StorageFullError, match=r"make room there \(df; quota; ulimit -f\)"):
                write(folder)

        ended(forked(limited))
        assert [path.name for path in folder.iterdir() if not path.name.endswith(".lock")] == []


@pytest.mark.parametrize("name", ["form in HDF5", "export"])
def test_an_interrupt_as_hdf5_is_written_leaves_nothing(
    name: str, made: frb.datasets.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, write = writers(made)[name]
    written, came = os.write, threading.Event()

    def interrupts(fd: int, content: Any) -> int:
        count = written(fd, content)
        if threading.current_thread() is not threading.main_thread() and not came.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            assert came.wait(60)
        return count

    def noted(number: int, frame: object) -> None:
        came.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, noted)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", interrupts)
            with pytest.raises(KeyboardInterrupt):
                write(tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == []
    write(tmp_path)


def test_what_cannot_be_written_says_where_to_write_instead(made: frb.datasets.Dataset, tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    each = writers(made)

    def refused() -> None:
        if not gives_up_privileges():
            return
        for who, write in each.values():
            message = (
                f"{re.escape(who)}: Permission denied; give a path in a folder that can be written to: '{tmp_path}"
            )
            with pytest.raises(PermissionError, match=message):
                write(tmp_path)
        with pytest.raises(PermissionError, match=r"datasets\.fetch: Permission denied; .*give another root=, or set"):
            frb.datasets.fetch(frb.datasets.RemoteFile("rows.bin", (made.path,)), tmp_path)

    ended(forked(refused))


def test_what_is_there_stays_in_use_where_nothing_can_be_written(tmp_path: Path) -> None:
    made = frb.datasets.convert(SOURCE, tmp_path / "made")
    halves = [tmp_path / "train", tmp_path / "test"]

    def derived() -> list[frb.datasets.Dataset]:
        return [
            frb.datasets.convert(SOURCE, tmp_path / "made"),
            made.filter(lambda episode: episode.steps > 4, tmp_path / "long"),
            made.concat(made, to=tmp_path / "twice"),
            *made.split([0.5, 0.5], halves),
        ]

    before = [(dataset.path, dataset.steps) for dataset in derived()]
    frb.datasets.fetch(frb.datasets.RemoteFile("rows.bin", (made.path,)), tmp_path)
    for place, _, names in os.walk(tmp_path):
        for name in names:
            os.chmod(os.path.join(place, name), stat.S_IRUSR)
        os.chmod(place, stat.S_IRUSR | stat.S_IXUSR)

    def used() -> None:
        if not gives_up_privileges():
            return
        assert [(dataset.path, dataset.steps) for dataset in derived()] == before
        assert frb.datasets.Dataset(made, verify=True).statistics()["steps"] == made.steps
        assert int(rb.size(frb.datasets.load(made, rb))) == made.steps
        assert frb.datasets.fetch(frb.datasets.RemoteFile("rows.bin", (made.path,)), tmp_path)

    ended(forked(used))
