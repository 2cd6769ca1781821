"""Kills processes that convert, and one that may not: run as a program, which imports NumPy and the core alone.

    python -m tests.children.kill_conversions DIRECTORY SEED KILLS MEGABYTES

Children convert the same dataset and are killed, each a little later than the one before has lived, until one gets to
the end: the files are the same bytes as those of a conversion that nobody killed. Then a child converts so many
megabytes, and says how much memory it has taken.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from functional_rb.datasets import convert
from tests.datasets.made_up import MadeUp

converting = sys.modules["functional_rb.datasets.convert"]
SMALL = MadeUp([3, 40, 1, 17] * 30, (50,), piece=9, blind=[1, 6])


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def child(work: Callable[[], object]) -> int:
    """Start a process that does some work, and ends."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def kill_at_random(directory: Path, seed: int, kills: int) -> int:
    """How many died before one got to the end, over and over until so many have; every end has the same bytes."""
    converting.CHUNK = 4000  # type: ignore[attr-defined]  # a line of the journal for every other episode
    start = time.monotonic()
    convert(SMALL, directory / "whole")
    usual = time.monotonic() - start
    whole, numbers, died, rounds = contents(directory / "whole"), random.Random(seed), 0, 0
    while died < kills:
        rounds += 1
        path = directory / f"round {rounds}"
        while not path.exists():
            pid = child(lambda path=path: convert(SMALL, path))  # type: ignore[misc]  # bound at once
            time.sleep(numbers.random() * usual)
            os.kill(pid, signal.SIGKILL)
            died += os.waitpid(pid, 0)[1] != 0
        assert contents(path) == whole, f"round {rounds}: other bytes than of a conversion that nobody killed"
    return died


def most_memory(directory: Path, megabytes: int) -> int:
    """The most megabytes that a process has had in memory that converts so many."""
    big = MadeUp([4000] * (megabytes * 2**20 // (4000 * 5008)), (1250,), piece=1000)

    def work() -> None:
        convert(big, directory / "big")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        (directory / "peak").write_text(str(peak))

    converting.CHUNK = 2**26  # type: ignore[attr-defined]  # as it is
    os.waitpid(child(work), 0)
    written = sum(path.stat().st_size for path in (directory / "big").iterdir())
    assert written > 0.9 * megabytes * 2**20, written
    return int((directory / "peak").read_text())


if __name__ == "__main__":
    place, seed, kills, megabytes = Path(sys.argv[1]), *map(int, sys.argv[2:])
    print(kill_at_random(place, seed, kills), most_memory(place, megabytes))
