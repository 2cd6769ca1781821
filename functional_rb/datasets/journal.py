"""Files that are appended to, and the journal that says up to where: an unfinished conversion resumes at its last line.

A line of the journal is written after what it speaks of, with the checksum of what was appended since the line before
it. So whatever a killed process has left beyond the last line that is true is cut off, and what comes then are the same
bytes as if nothing had happened. The journal stays, and a dataset is verified by it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from contextlib import AbstractContextManager

import numpy as np

from functional_rb.base import checksum, files, strict_json
from functional_rb.base.arrays import NumpyArray
from functional_rb.base.strict_json import Json
from functional_rb.storage import disk

JOURNAL = "journal.jsonl"
# Bytes that are read at a time.
PIECE = 2**22
# Bytes of small pieces that are written at once, unless a line of the journal is: fewer are kept until then.
AT_ONCE = 2**20
# Bytes at once that the system begins to store.
LARGE = 2**16
Line = Json


class Appended:
    """A file that is appended to, of `size` bytes so far; `remedy` is what to do where the disk is full."""

    def __init__(self, path: str, size: int, remedy: str) -> None:
        self.path, self.size, self._remedy = path, size, remedy
        with self._explained():
            self._file = files.open_own(path)
            disk.truncate(self._file.fd, size)
        self._sum, self._counted, self._written = checksum.running(), size, size
        self._waiting: list[bytes | memoryview] = []

    def append(self, content: bytes) -> None:
        self._waiting.append(content)
        self.size += len(content)
        if self.size - self._written >= AT_ONCE:
            self.flush()

    def write(self, array: NumpyArray) -> None:
        """Append the bytes of an array, now: its memory may be written to afterwards."""
        self._waiting.append(array.reshape(-1).view(np.uint8).data)
        self.size += array.nbytes
        self.flush()

    def flush(self) -> None:
        # The usual case, an array of a megabyte or two, is not copied.
        content = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        self._waiting.clear()
        with self._explained():
            disk.write(self._file.fd, content)
        # Else all of it would wait for the sync in the end, while the disk has nothing to do meanwhile.
        if len(content) >= LARGE:
            disk.begin_to_store(self._file.fd, self._written, len(content))
        self._sum.update(content)
        self._written = self.size

    def lengthen(self, size: int) -> None:
        """Make it longer by zeros, which take no room."""
        self.flush()
        with self._explained():
            os.ftruncate(self._file.fd, size)

    def since(self) -> list[object]:
        """First and last byte since this was last asked, and the checksum of what lies between them."""
        self.flush()
        # Each line has a checksum of its own part: one over all would have to be taken anew by whoever resumes.
        span = [self._counted, self.size, self._sum.digest().hex()]
        self._sum, self._counted = checksum.running(), self.size
        return span

    def sync(self) -> None:
        self.flush()
        with self._explained():
            disk.fsync(self._file.fd)

    def close(self) -> None:
        self._file.close()

    def _explained(self) -> AbstractContextManager[None]:
        return disk.explained_if_full(self.path, self._remedy)


class Journal:
    """The journal of a directory: its lines that are true, the oldest first."""

    def __init__(self, directory: str, begin: Line, remedy: str) -> None:
        path = os.path.join(directory, JOURNAL)
        self.lines = read_lines(path)
        if not self.lines or self.lines[0] != begin:
            # Another dataset, or other options: nothing of it can be used. The journal goes last: if this process were
            # killed now, nobody could tell without it that the others may go.
            for name in sorted(os.listdir(directory), key=JOURNAL.__eq__):
                os.unlink(os.path.join(directory, name))
            self.lines = []
        # The first line that is not true ends it: what later ones speak of comes behind bytes that are wrong.
        true = itertools.takewhile(lambda line: problem_of_line(directory, line) is None, self.lines[1:])
        self.lines = [*self.lines[:1], *true]
        self.file = Appended(path, sum(len(_encoded(line)) for line in self.lines), remedy)
        if not self.lines:
            self.write(begin)

    def write(self, line: Line) -> None:
        self.file.append(_encoded(line))
        self.file.flush()
        self.lines.append(line)


def read_lines(path: str) -> list[Line]:
    """The lines of a journal that are whole; none if there is none."""
    lines: list[Line] = []
    with contextlib.suppress(FileNotFoundError, files.UnusableFileError):
        for text in files.read_text(path).splitlines(keepends=True):
            try:
                line = strict_json.parse(text) if text.endswith("\n") else None
            except (ValueError, RecursionError):
                line = None
            # A line that was changed may be JSON all the same.
            if not isinstance(line, dict) or _encoded(line) != text.encode():
                break
            lines.append(line)
    return lines


def problem_of_line(directory: str, line: Line) -> str | None:
    """Why the files are not what a line says, naming one; None if they are."""
    spans = line.get("files")
    if not isinstance(spans, dict) or not all(
        isinstance(span, list) and [*map(type, span)] == [int, int, str] and name == os.path.basename(name)
        for name, span in spans.items()
    ):
        return f"{os.path.join(directory, JOURNAL)}: a line does not say what was written"
    for name, (first, stop, digest) in spans.items():
        path, digester, at = os.path.join(directory, name), checksum.running(), first
        try:
            with open(path, "rb") as file:
                file.seek(first)
                while at < stop and (content := file.read(min(PIECE, stop - at))):
                    digester.update(content)
                    at += len(content)
        except OSError as error:
            return f"{path}: {error.strerror}"
        if digester.digest().hex() != digest:
            return f"{path}: bytes {first} to {stop} are not what was written"
    return None


def _encoded(line: Line) -> bytes:
    return json.dumps(line, separators=(",", ":"), sort_keys=True).encode() + b"\n"
