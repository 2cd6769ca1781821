"""Files that HDF5 writes to, and in which no write seems to fail.

HDF5 (1.14) crashes the process where it closes a file after a write has failed: on a full disk, say. So what fails is
kept, what is written afterwards is dropped, and the error is raised once HDF5 is done.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from functional_rb.storage import disk


class Stream(io.FileIO):
    """A new file, which h5py takes in place of a path."""

    def __init__(self, path: str | os.PathLike[str], failures: list[BaseException]) -> None:
        """Make it; with any failure in the list, of a write or of somebody else, nothing more is written."""
        super().__init__(path, "w+")
        self._failures = failures

    def check(self) -> None:
        """Raise what a write has failed with: what was dropped since then cannot be read back."""
        if self._failures:
            raise self._failures[0]

    def write(self, content: Any) -> int:
        if not self._failures:
            try:
                disk.write(self.fileno(), content)
            except OSError as error:
                self._failures.append(error)
        return len(content)

    def truncate(self, size: int | None = None) -> int:
        if not self._failures:
            try:
                return super().truncate(size)
            except OSError as error:
                self._failures.append(error)
        return size or 0


def written(path: str | os.PathLike[str], write: Callable[[Stream], None]) -> None:
    """Write a file of HDF5, by a function that takes the stream and calls its `check` from time to time."""
    failures: list[BaseException] = []

    def work() -> None:
        with Stream(path, failures) as stream:
            write(stream)
            stream.check()

    # In a thread of its own: handlers of signals run in the main one, and may raise in the midst of `Stream.write`.
    with _keeping_interrupts(failures), ThreadPoolExecutor(1) as alone:
        future = alone.submit(work)
        # Whatever comes, HDF5 has to be done before somebody removes, or writes again, what it is at.
        while not future.done():
            try:
                wait([future])
            except BaseException as error:
                failures.append(error)
    failed = future.exception()
    if failed is not None:
        failures.append(failed)
    if failures:  # the first of them: HDF5 may not have found what was dropped
        raise failures[0] from (failed if failed is not failures[0] else None)


@contextlib.contextmanager
def _keeping_interrupts(failures: list[BaseException]) -> Iterator[None]:
    """Let Ctrl-C be a failure among others, as what is still to come is not wanted any more; it is not raised.

    Where somebody else handles it, or this is not the main thread, nothing is changed.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: failures.append(KeyboardInterrupt()))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
