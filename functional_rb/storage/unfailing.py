"""Files that HDF5 writes to, and in which no write seems to fail.

HDF5 (1.14) crashes the process where it closes a file after a write has failed: on a full disk, say. So what fails is
kept, what is written afterwards is dropped, and the error is raised once HDF5 is done.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from functional_rb.storage import disk


class Stream(io.FileIO):
    """A new file, which h5py takes in place of a path."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, "w+")
        self._failure: BaseException | None = None

    def check(self) -> None:
        """Raise what a write has failed with: what was dropped since then cannot be read back."""
        if self._failure is not None:
            raise self._failure

    @contextlib.contextmanager
    def dropped_on_error(self) -> Iterator[None]:
        """Write nothing more after an error; that of a write goes before what HDF5 makes of it."""
        try:
            yield
        except BaseException as error:
            self._failure = self._failure or error
            if self._failure is not error:
                raise self._failure from error
            raise

    def write(self, content: Any) -> int:
        if self._failure is None:
            try:
                disk.write(self.fileno(), content)
            except OSError as error:
                self._failure = error
        return len(content)

    def truncate(self, size: int | None = None) -> int:
        if self._failure is None:
            try:
                return super().truncate(size)
            except OSError as error:
                self._failure = error
        return size or 0


def written(path: str | os.PathLike[str], write: Callable[[Stream], None]) -> None:
    """Write a file of HDF5, by a function that takes the stream and calls its `check` from time to time."""
    # In a thread of its own: handlers of signals run in the main one, and may raise in the midst of `Stream.write`.
    with Stream(path) as stream, ThreadPoolExecutor(1) as alone, stream.dropped_on_error():
        alone.submit(write, stream).result()
        stream.check()
