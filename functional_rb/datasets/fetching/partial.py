"""A file that is being fetched: its part, and a journal of what it is a part of.

Both lie in a folder of their own below the root, so that a list of the files there has complete ones only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from types import TracebackType

from functional_rb.base import files, strict_json
from functional_rb.datasets.fetching.paths import ASIDE, WHO, make_inside
from functional_rb.datasets.fetching.remote import Origin
from functional_rb.storage import disk

# Bytes after which the journal is written again. A process that is killed, or a machine that loses its power, costs at
# most as many: what came after the last line may be there or not.
SYNC = 2**25
# The errors that reading a journal raises if it was cut, or is none.
CUT = (OSError, files.UnusableFileError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


class Partial:
    """The part of a file below a root: `size` bytes of `origin`. Only the holder of its lock may open it."""

    def __init__(self, root: str, name: str) -> None:
        folder = os.path.join(root, ASIDE)
        # Names of files may be too long, and have folders in them: a digest is a name that any file system takes.
        stem = os.path.join(folder, hashlib.sha256(name.encode()).hexdigest()[:32])
        self.path, self._journal, self._lock = f"{stem}.part", f"{stem}.json", f"{stem}.lock"
        self.size, self.origin, self._noted = 0, Origin(""), 0
        make_inside(root, folder)

    def while_locked(self, work: Callable[[], None]) -> None:
        disk.while_locked(self._lock, work)

    def __enter__(self) -> Partial:
        self._file = files.open_own(self.path)
        # What the journal tells; nothing, if it is not there or was cut.
        self.origin, self.size = Origin(""), 0
        with contextlib.suppress(*CUT):
            line = strict_json.parse(files.read_text(self._journal))
            synced = line.pop("synced")
            if type(synced) is int and 0 <= synced <= os.fstat(self._file.fd).st_size:
                self.origin, self.size = Origin(**line), synced
        # After a machine lost its power, what lies behind the journal's size may be there or not.
        disk.truncate(self._file.fd, self.size)
        self._noted = self.size
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self._file.fd >= 0 and self.size:
                with contextlib.suppress(OSError):  # there may be no room for it: the line before holds still
                    self.note()
        finally:
            self._file.close()

    def begin(self, origin: Origin) -> None:
        self.origin, self.size = origin, 0
        disk.truncate(self._file.fd, 0)
        self.note()

    def append(self, content: bytes) -> None:
        with disk.explained_if_full(self.path, f"{WHO}: no room for {self.origin.url}; free some, and call again"):
            disk.write(self._file.fd, content)
        self.size += len(content)
        if self.size - self._noted >= SYNC:
            self.note()

    def note(self) -> None:
        # First the bytes, then the line that speaks of them, by a new file: a line is never cut.
        disk.fsync(self._file.fd)
        with disk.create(f"{self._journal}.new") as line:
            disk.write(line.fd, json.dumps({**dataclasses.asdict(self.origin), "synced": self.size}).encode())
        disk.rename(f"{self._journal}.new", self._journal)
        self._noted = self.size

    def sha256(self) -> str:
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def drop(self) -> None:
        """Forget what is there: it is wrong."""
        self.begin(Origin(""))

    def finish(self, target: str) -> None:
        """Give the part its name: from now on the file is there."""
        disk.fsync(self._file.fd)
        self._file.close()
        # The journal goes first: a file that has its name is complete, and must not be resumed.
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(self._journal)
        disk.rename(self.path, target)
        disk.fsync_directory(os.path.dirname(target))
