"""Kills processes that fetch, two at a time: run as a program, which imports NumPy and the core alone.

    python -m tests.children.kill_fetches DIRECTORY SEED KILLS

It prints how many died, and how many requests went on with what a dead one had left. Where a machine is so busy that
each of them died before it had anything, it goes on until one has, up to ten times as many.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
import time
from pathlib import Path

from functional_rb.datasets import RemoteFile, fetch
from tests.datasets.file_server import Served, serving

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


class Ranges(list[str | None]):
    """The ranges asked for; how many of them begin behind the first byte stands where other processes see it."""

    def __init__(self, seen: mmap.mmap) -> None:
        """Take memory that is shared with them."""
        super().__init__()
        self._seen = seen

    def append(self, asked: str | None) -> None:
        """Note what a request asks for."""
        super().append(asked)
        self._seen[:4] = sum(one is not None for one in self).to_bytes(4, "little")


def parent_of_server(seen: mmap.mmap) -> tuple[int, str]:
    """A process of its own that serves, since one with threads had better not fork; its number and the address."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with serving({"/a.bin": Served(CONTENT, requests=Ranges(seen))}) as address:
            os.write(writing, address.encode())
            signal.sigwait({signal.SIGTERM})
        os._exit(0)
    return pid, os.read(reading, 100).decode()


def main(directory: Path, seed: int, kills: int) -> None:
    fetching.PIECE = 20_000  # type: ignore[attr-defined]  # of this process and its children
    partial.SYNC = 50_000  # type: ignore[attr-defined]  # likewise
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    seen = mmap.mmap(-1, 4)
    server, address = parent_of_server(seen)
    url, numbers, died, rounds = f"{address}/a.bin", random.Random(seed), 0, 0
    start = time.monotonic()
    os.waitpid(child(url, directory / "whole"), 0)
    usual = time.monotonic() - start
    while died < kills or (seen[:4] == bytes(4) and died < 10 * kills):
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
    print(died, int.from_bytes(seen[:4], "little"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
