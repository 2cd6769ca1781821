"""Kills processes that fetch, two at a time: run as a program, which imports NumPy and the core alone.

    python -m tests.support.kill_fetches DIRECTORY SEED KILLS

It prints how many died, and how many requests went on with what a dead one had left.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from functional_rb.datasets import RemoteFile, fetch
from tests.support.file_server import Served, serving

fetching = sys.modules["functional_rb.datasets.fetching.fetch"]
partial = sys.modules["functional_rb.datasets.fetching.partial"]
CONTENT = random.Random(0).randbytes(1_500_000)


def child(url: str, root: Path) -> int:
    """Start a process that fetches."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            fetch(RemoteFile("deep/a.bin", (url,)), root)
            status = 0
        finally:
            os._exit(status)
    return pid


def parent_of_server(report: int) -> tuple[int, str]:
    """A process of its own that serves, since one with threads had better not fork; its number and the address."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        served = Served(CONTENT)
        with serving({"/a.bin": served}) as address:
            os.write(writing, address.encode())
            signal.sigwait({signal.SIGTERM})
        os.write(report, str(sum(asked is not None for asked in served.requests)).encode())
        os._exit(0)
    return pid, os.read(reading, 100).decode()


def main(directory: Path, seed: int, kills: int) -> None:
    fetching.PIECE = 20_000  # type: ignore[attr-defined]  # of this process and its children
    partial.SYNC = 50_000  # type: ignore[attr-defined]  # likewise
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    reading, writing = os.pipe()
    server, address = parent_of_server(writing)
    url, numbers, died, rounds = f"{address}/a.bin", random.Random(seed), 0, 0
    start = time.monotonic()
    os.waitpid(child(url, directory / "whole"), 0)
    usual = time.monotonic() - start
    while died < kills:
        rounds += 1
        root = directory / str(rounds)
        target = root / "deep" / "a.bin"
        while not target.exists():
            pids = [child(url, root) for _ in range(2)]
            time.sleep(numbers.random() * usual)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            died += sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
        assert target.read_bytes() == CONTENT, f"round {rounds}: other bytes than the server's"
        found = {path.name for path in root.rglob("*") if path.is_file() and ".fetching" not in path.parts}
        assert found == {"a.bin"}, found
    os.kill(server, signal.SIGTERM)
    os.waitpid(server, 0)
    print(died, int(os.read(reading, 100)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
