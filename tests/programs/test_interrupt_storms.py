"""SIGINTs in a row, at instants that nobody has chosen; what they hit is in `tests.children.interrupt_storm`."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.effort import effort

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_storm(backend: str, tmp_path: Path) -> None:
    given = [str(tmp_path), backend, str(effort(1, 60)), "10"]
    command = [sys.executable, "-m", "tests.children.interrupt_storm", *given]
    errors = (
        tmp_path / "errors"
    )  # a file, as a pipe that nobody empties meanwhile would stop the program once it is full
    with (
        errors.open("w") as stderr,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            if process.stdout.readline() == "ready\n":
                rng = random.Random(0)
                while process.poll() is None:
                    process.send_signal(signal.SIGINT)
                    time.sleep(rng.uniform(0, 0.004))
            hits = process.stdout.read()
        finally:
            process.kill()
    assert process.returncode == 0, errors.read_text()
    assert int(hits) >= 10
