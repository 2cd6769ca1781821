"""What can lie under the name of a file that is to be read."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@contextlib.contextmanager
def refused(file: Path, number: int) -> Iterator[None]:
    """The system refuses to open a file; root, as who tests are often run, may open anything."""
    original = os.open

    def opened(path: Any, *args: Any, **options: Any) -> int:
        if os.fspath(path) == str(file):
            raise OSError(number, os.strerror(number), path)
        return original(path, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", opened)
        yield


@contextlib.contextmanager
def pipe(file: Path) -> Iterator[None]:
    os.mkfifo(file)
    yield


@contextlib.contextmanager
def directory(file: Path) -> Iterator[None]:
    file.mkdir()
    yield


@contextlib.contextmanager
def loop(file: Path) -> Iterator[None]:
    file.symlink_to(file)
    yield


@contextlib.contextmanager
def unreadable(file: Path) -> Iterator[None]:
    file.write_bytes(b"")
    with refused(file, errno.EACCES):
        yield


KINDS: dict[str, Callable[[Path], Any]] = {
    "a pipe": pipe,
    "a directory": directory,
    "a link to itself": loop,
    "unreadable": unreadable,
}
