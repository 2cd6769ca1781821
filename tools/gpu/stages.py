"""Carrying stages out: each is a group of processes with a deadline, whose traces are read while they work."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from tools.gpu.plan import ROOT


def started(command: list[str], environment: dict[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """A program at the root of the checkout, with a group of processes of its own, which writes all to one file."""
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


class Stage:
    """A command, and what is known of it.

    Attributes:
        name: of its folder too.
        command: what is run at the root of the checkout.
        folder: with what it prints, in `output.txt`.
        seconds: how long it has taken.
        end: how it ended; empty as long as it has not begun.
    """

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name, self.command, self.folder = name, command, folder / name
        self.seconds, self.end = 0.0, ""

    def carry_out(self, environment: dict[str, str], limit: float, tell: Callable[[], object]) -> None:
        """Run it, but not beyond a limit in seconds, and tell about once in a second that it goes on."""
        self.folder.mkdir(parents=True)
        if limit <= 0:
            self.end = "not begun, as the time was over"
            return
        began, self.end = time.monotonic(), "runs"
        with (self.folder / "output.txt").open("wb") as output:
            process = started(self.command, environment, output)
            self.end = "interrupted"
            try:
                while process.poll() is None and self.seconds < limit:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(min(1.0, limit - self.seconds))
                    self.seconds = time.monotonic() - began
                    tell()
                self.end = "cut" if process.poll() is None else f"ended ({process.returncode})"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its workers, and what tests have started
                process.wait()

    @property
    def output(self) -> str:
        """What it has printed."""
        return _read(self.folder / "output.txt")

    @property
    def last_line(self) -> str:
        """What it printed last."""
        lines = self.output.split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


class Tests(Stage):
    """Tests in an order, each with a time limit."""

    def __init__(self, name: str, modules: list[str], workers: int, folder: Path) -> None:
        plugins = ["-p", "tests.support.one_by_one", "-p", "no:faulthandler", "-p", "no:cacheprovider"]
        settings = ["-c", "pyproject.toml", "--rootdir", str(ROOT), "-W", "default", "--tb=short", "-q"]
        # By modules, xdist would hand a test out again and again whose worker has ended; so by a few tests at a time.
        several = [f"-n={workers}", "--dist=load", "--maxschedchunk=16", "--max-worker-restart=10000"]
        several += ["--continue-on-collection-errors"]
        super().__init__(name, [sys.executable, "-m", "pytest", *plugins, *settings, *several, *modules], folder)
        self.modules = modules

    def settings(self, limit: float) -> dict[str, str]:
        """The variables that the plugin reads."""
        return {"TESTS_RECORD": str(self.folder), "TESTS_LIMIT": str(limit), "TESTS_ORDER": "\n".join(self.modules)}

    def record(self) -> tuple[list[dict[str, Any]], list[str]]:
        """The tests that have ended, and the names of those that have not."""
        ended: dict[str, dict[str, Any]] = {}
        collected: list[str] = []
        for line in _read(self.folder / "record.jsonl").splitlines():
            with contextlib.suppress(ValueError):  # the line that is being written
                told = json.loads(line)
                collected += told.get("collected", [])
                if "test" in told and ended.get(told["test"], {}).get("outcome") != "failed":  # a teardown may fail too
                    ended[told["test"]] = told
        return list(ended.values()), [test for test in collected if test not in ended]

    def at_work(self) -> list[str]:
        """The tests that workers were at when they were cut."""
        ended = {test["test"] for test in self.record()[0]}
        files = self.folder.glob("*.txt") if self.end in ("cut", "interrupted") else ()
        tests = [(_read(path).splitlines() or [""])[0] for path in files if path.name != "output.txt"]
        return sorted(test for test in tests if test and test not in ended)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
