"""Buffers over the devices of several processes, of which each has one; the others are in `programs.test_meshes`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.effort import effort

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("count", effort([2], [2, 4]))
def test_processes_draw_what_one_device_does(count: int, tmp_path: Path) -> None:
    """By `jax.distributed`, on CPUs: each process has one of the devices."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = str(found.getsockname()[1])
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1"
    own = {"JAX_PLATFORMS": "cpu", "TESTS_DEVICE": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    all_of_them = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.children.some_processes", str(number), port, str(tmp_path), str(count)],
            env=os.environ | own,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(count)
    ]
    try:
        said = [process.communicate(timeout=240)[0] for process in all_of_them]
    finally:
        for process in all_of_them:
            process.kill()
    assert [process.returncode for process in all_of_them] == [0] * count, "\n".join(said)
    assert all(f"done {number}" in text for number, text in enumerate(said))
