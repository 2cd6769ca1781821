"""Programs on several devices. JAX is told at its start how many it has, so these run in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(map(str, (ROOT / "tests" / "children").glob("*_devices.py")))


def test_programs_on_eight_devices() -> None:
    """Sharded buffers, buffers of which each device has its own or a part, and trees."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "--durations=15", *PROGRAMS],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "TESTS_DEVICE": "cpu", "XLA_FLAGS": flags},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    print(run.stdout)
