"""A plugin of pytest, with xdist: each test has a time limit, ends nobody but itself, and is written down at once.

`python -m pytest -p tests.support.one_by_one -p no:faulthandler -n 2 ...`, with these variables of the environment:

- TESTS_RECORD: a folder. `record.jsonl` there gets a line when a test has ended, and one with all that were collected.
- TESTS_LIMIT: seconds that a test may take, its fixtures included. Then its worker ends, and xdist starts another.
- TESTS_ORDER: names of modules as in node ids, in lines: these come first, in this order.

A worker notes in a file of its own which test it is at, and so does what ends it: Python's `faulthandler`, at the end
of the time limit or in a crash; or this plugin, where CUDA has failed in a way that every later test would share.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# In errors of CUDA after which nothing works in the process.
BROKEN = re.compile(r"illegal memory access|device-side assert|unspecified launch failure|misaligned address|ILLEGAL_")


def pytest_addoption(parser: pytest.Parser) -> None:
    for name in ("faulthandler_timeout", "faulthandler_exit_on_timeout"):
        parser.addini(name, "of the plugin in whose place this one is")


def pytest_configure(config: pytest.Config) -> None:
    folder = Path(os.environ["TESTS_RECORD"])
    if hasattr(config, "workerinput"):
        path = folder / f"{config.workerinput['workerid']}.txt"
        config.pluginmanager.register(Worker(path, float(os.environ["TESTS_LIMIT"])))
    else:
        config.pluginmanager.register(Record(folder))


class Worker:
    """What a worker does around each test."""

    def __init__(self, path: Path, limit: float) -> None:
        self.file, self.limit = path.open("w"), limit  # open as long as the process lives
        faulthandler.enable(self.file)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = os.environ.get("TESTS_ORDER", "").splitlines()
        rank = {module: k for k, module in enumerate(order)}
        items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(rank)))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self.file.seek(0)
        self.file.truncate()
        self.write(item.nodeid)
        faulthandler.dump_traceback_later(self.limit, exit=True, file=self.file)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[Any]) -> Iterator[Any]:
        report = yield
        if call.excinfo is not None and BROKEN.search(str(call.excinfo.value)):
            self.write(f"CUDA has failed: {error_of(report)}")
            os._exit(70)  # before the report is sent: so xdist puts it down to this test
        return report

    def write(self, line: str) -> None:
        self.file.write(f"{line}\n")
        self.file.flush()


class Record:
    """What becomes of the tests, written by the process that hands them out."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.collected, self.broken = folder, False, set[str]()
        self.file = (folder / "record.jsonl").open("w")
        self.started = time.time()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if not self.collected:
            self.write(collected=ids)
        self.collected = True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and report.nodeid not in self.broken:
            self.broken.add(report.nodeid)
            self.write(test=report.nodeid, outcome="failed", seconds=0.0, line=f"not imported: {error_of(report)}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and report.when != "call":
            return
        told = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3)}
        if report.when == "???":  # so xdist reports a test whose worker has ended
            told["line"] = self.end_of(report.node.gateway.id)
        elif report.failed:
            # In a run that is cut pytest does not come to its own list of failures.
            told |= {"line": error_of(report), "text": report.longreprtext}
        elif report.skipped:
            told["line"] = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        self.write(**told)

    def end_of(self, worker: str) -> str:
        """Why a worker has ended, as far as it could say so."""
        _, *lines = (self.folder / f"{worker}.txt").read_text(errors="replace").splitlines() or [""]
        reason = lines[0] if lines else "without a word, so by a signal or for want of memory"
        at = next((line.strip() for line in lines if line.startswith("  File") and "test_" in line), "")
        return f"the worker has ended: {reason} {at}".rstrip()

    def write(self, **line: Any) -> None:
        self.file.write(json.dumps({**line, "at": round(time.time() - self.started, 1)}) + "\n")
        self.file.flush()


def error_of(report: Any) -> str:
    """The line that says what went wrong, and where."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return f"{(crash.message.splitlines() or [''])[0]} ({Path(crash.path).name}:{crash.lineno})"
    lines = [line for line in str(report.longrepr).splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
