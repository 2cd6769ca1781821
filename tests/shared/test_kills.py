"""Processes that share a buffer and die: at each step of the protocol, at random, while they make and remove files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.effort import effort

ROOT = Path(__file__).parents[2]
# Seconds in which a survivor must go on. It takes milliseconds; a busy machine may let a process wait.
LONG = 5.0


def scenarios(path: Path, *names: str, before: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Run some in a process without JAX and torch, whose threads do not outlive a fork."""
    command = [*before, sys.executable, "-m", "tests.children.shared_processes", str(path), *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_processes_die_at_each_step(tmp_path: Path) -> None:
    names = "few_descriptors", "protocol", "held_lock", "stopped", "making", "removing", "lockless_child"
    few, protocol, held, *_ = scenarios(tmp_path, *names)
    assert protocol["cases"] == 109
    assert max(protocol["slowest"], held["slowest"]) < LONG
    assert len(few["refused"]) == 5
    assert min(few["refused"].values()) > 3, "at each file that is opened once"
    assert list((tmp_path / "few_descriptors" / "tmp").iterdir()) == []


def test_writers_are_killed_at_random_instants(tmp_path: Path) -> None:
    spacious, crowded = scenarios(tmp_path, "spacious", "crowded")
    assert spacious["killed"] + crowded["killed"] + crowded["uniform"]["killed"] == effort(19, 100)
    for one in (spacious, crowded, crowded["uniform"]):
        assert one["added"] > one["killed"]
        assert one["samples"] > 10
        assert one["slowest"] < LONG


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    mounting = ("unshare", "--map-root-user", "--mount")
    mount = f"mount -t tmpfs -o size=3m none {tmp_path}"
    if shutil.which("unshare") is None or subprocess.run([*mounting, "sh", "-c", mount], check=False).returncode:
        pytest.skip("this needs a small disk: user namespaces in which one may mount a tmpfs")
    (full,) = scenarios(tmp_path, "full_disk", before=(*mounting, "sh", "-c", f'{mount} && exec "$@"', "sh"))
    assert full["added"] > 0
