"""Memory-mapped files and processes: who cleans up, who is killed or forked, and disks that are really full."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import functional_rb as frb
import torch_backend as rb
from tests.support.children import ROOT, program
from tests.support.effort import effort

ITEM = {"x": frb.Unbounded((256,)), "image": frb.Unbounded((32, 32), "bfloat16")}


def spec_of(path: Any = None, capacity: int = 10, item: Any = ITEM, **flags: Any) -> frb.BufferSpec:
    return frb.BufferSpec(item, capacity, storage=frb.Memmap(path, **flags))


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
    state = rb.init(spec_of(tmp_path, 10_000, (frb.Unbounded((256,)),), existsok=True))
    assert (rb.items(state)[0].view(torch.int32) == 1).all()


@pytest.mark.parametrize("end", ["return", "SystemExit"])
def test_who_cleans_up_and_what(end: str, tmp_path: Path) -> None:
    ended(start("clean_up", tmp_path, end))
    left = ["again", "kept", "mine", "mixed"]
    assert [name for name in names(tmp_path) if "." not in name] == left
    assert sorted(path.name for path in (tmp_path / "mixed").iterdir()) == ["mine"]
    assert (tmp_path / "kept" / "rows.bin").stat().st_size == 10_000 * 1024


def test_what_is_removed_in_the_end_is_ones_own(tmp_path: Path) -> None:
    state = rb.init(spec_of(tmp_path / "files", auto_cleanup=True))
    (tmp_path / "files").rename(tmp_path / "renamed")
    others = rb.init(spec_of(tmp_path / "files"))
    del state
    assert (tmp_path / "files" / "rows.bin").exists()
    assert (tmp_path / "renamed" / "rows.bin").exists()
    del others
    state = rb.init(spec_of(tmp_path / "more", auto_cleanup=True))
    before = len(os.listdir("/proc/self/fd"))
    del state
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


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_what_was_never_written_is_read_without_taking_room(library: str, tmp_path: Path) -> None:
    done = on_a_small_disk(tmp_path, library, *program("holes_on_a_full_disk"))
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr
    if effort(False, library == "torch"):  # that the process dies without it
        assert on_a_small_disk(tmp_path, "unprotected", *program("holes_on_a_full_disk")).returncode == -signal.SIGBUS
