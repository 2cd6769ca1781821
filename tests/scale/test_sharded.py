"""Sharded buffers. JAX is told at its start how many devices it has, so these run in a process of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.effort import effort

ROOT = Path(__file__).parents[2]


def test_programs_on_eight_devices() -> None:
    file = Path(__file__).parents[1] / "support" / "on_eight_devices.py"
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-q", "-x", "-p", "no:cacheprovider", "--durations=15", file],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "TESTS_DEVICE": "cpu", "XLA_FLAGS": flags},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    print(run.stdout)


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
            [sys.executable, "-m", "tests.support.some_processes", str(number), port, str(tmp_path), str(count)],
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
