"""Files that grow piece by piece, and are whole or not there: killed at any instant, writing goes on where it was.

A directory `NAME.part` holds the files while they grow. After each piece `progress.json` says how long they are, and
how many rows of the source they have; what lies behind that is cut off when writing goes on. Once all is written, the
directory is renamed to `NAME`.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import functools
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping

from functional_rb.base import files
from functional_rb.base.descriptors import Descriptor
from functional_rb.storage import directory
from functional_rb.storage.directory import need_posix
from functional_rb.text.prepared import DESCRIPTION, ROWS, TOKENS
from functional_rb.text.whole import checksum

if sys.platform != "win32":
    import fcntl

PROGRESS = "progress.json"
# Errors of the system with the remedy: all that is prepared lies in `root`.
explained = functools.partial(directory.explained, who="text", argument="root=...")


@dataclasses.dataclass
class Progress:
    """What has been written so far."""

    read: int = 0  # rows of the source
    examples: int = 0  # rows of the table
    tokens: int = 0  # tokens in the file
    text_tokens: int = 0  # tokens of all texts, those that a pair shares counted twice
    longest: int = 0  # tokens of the longest text
    merged: int = 0  # texts whose prompt ends within a token
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)  # rows that were left out, by reason
    bytes: dict[str, int] = dataclasses.field(default_factory=lambda: {TOKENS: 0, ROWS: 0})  # how long each file is

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


class Growing:
    """The files of a directory that grows; `progress` is what is in them for good."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        path = os.path.join(directory, PROGRESS)
        self.progress = Progress(**json.loads(files.read_text(path))) if os.path.exists(path) else Progress()

    def append(self, contents: Mapping[str, bytes | array.array[int]]) -> None:
        """Write a piece, and say so; `progress` has been brought up to date but for the bytes."""
        for name, content in contents.items():
            path = os.path.join(self._directory, name)
            with explained(path), open(path, "ab") as file:
                file.truncate(self.progress.bytes[name])  # a piece that was cut short lies behind
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            self.progress.bytes[name] += memoryview(content).nbytes
        # Only now: whoever goes on cuts off what no progress tells of.
        self._say(PROGRESS, dataclasses.asdict(self.progress))

    def finish(self, description: dict[str, object]) -> None:
        """Say what the whole is, and the checksums of its files; nothing is written behind it."""
        paths = {name: os.path.join(self._directory, name) for name in self.progress.bytes}
        self._say(DESCRIPTION, description | {"checksums": {name: checksum(path) for name, path in paths.items()}})

    def _say(self, name: str, content: Mapping[str, object]) -> None:
        path = os.path.join(self._directory, name)
        with explained(path):
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                json.dump(content, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{path}.new", path)  # whole or not at all


@contextlib.contextmanager
def growing(path: str) -> Iterator[Growing | None]:
    """The files that grow until they are a directory, which one process at a time writes; others wait.

    None if the directory is there, or was made meanwhile. After an error in what is to be written nothing is left of
    them. After one of the system, an interrupt, or the end of the process, the next call goes on.
    """
    lock = _taken(path)
    if lock is None:
        yield None
        return
    unfinished = f"{path}.part"
    try:
        yield Growing(unfinished)
        os.rename(unfinished, path)
        os.unlink(os.path.join(path, PROGRESS))  # last, so that whoever is killed before need not begin anew
    except (ValueError, TypeError):
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    finally:
        lock.close()


def _taken(path: str) -> Descriptor | None:
    need_posix()
    unfinished = f"{path}.part"
    while not os.path.isdir(path):
        with explained(unfinished):
            os.makedirs(unfinished, exist_ok=True)
        try:
            lock = Descriptor(os.open, unfinished, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # it is whole by now, or was given up
            continue
        # Whoever held it may have finished or given up meanwhile: then it is the lock of a directory that is gone.
        fcntl.flock(lock.fd, fcntl.LOCK_EX)
        if files.is_at(lock.fd, unfinished) and not os.path.isdir(path):
            return lock
        lock.close()
    return None
