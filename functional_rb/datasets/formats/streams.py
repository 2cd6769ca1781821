"""Files that others have made, opened and read forward.

Pipes, which would block whatever opens them, and devices are refused. Gzip and xz are decompressed, with a limit on
what comes out of them: some thousand bytes may hold gigabytes of zeros.
"""

from __future__ import annotations

import contextlib
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

from functional_rb.base import files
from functional_rb.datasets.episode import DatasetError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
BLOCK = 2**16
# Bytes that a decompressor of xz may take: what `xz -9` writes needs half of it.
MEMORY = 2**27


@contextlib.contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """A regular file, to be read."""
    try:
        descriptor, _ = files.open_regular(path)
    except files.UnusableFileError as error:
        raise DatasetError(str(error)) from None
    with os.fdopen(descriptor, "rb") as file:
        yield file


class Inflated(io.RawIOBase):
    """What a file holds, decompressed if it is gzip or xz by its first bytes; it is read forward only.

    Attributes:
        read_bytes: how many have come out of it.
    """

    def __init__(self, file: IO[bytes], limit: int, where: str) -> None:
        """Read the first bytes of a file, out of which no more than `limit` bytes may come."""
        super().__init__()
        self._file, self._limit, self._where = file, limit, where
        self._input, self.read_bytes = file.read(BLOCK), 0
        self._make: Callable[[], object] | None = None  # what makes a decompressor; None if it is not compressed
        if self._input.startswith(GZIP):
            self._make = lambda: zlib.decompressobj(wbits=31)
        elif self._input.startswith(XZ):
            self._make = lambda: lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=MEMORY)
        self._engine: Any = self._make() if self._make else None

    def readable(self) -> bool:
        return True

    def readinto(self, target: WriteableBuffer) -> int:
        """Read up to as many bytes as fit, none at the end."""
        with memoryview(target).cast("B") as view:
            part = self._some(len(view)) if len(view) else b""
            view[: len(part)] = part
        self.read_bytes += len(part)
        if self.read_bytes > self._limit:
            raise DatasetError(f"{self._where}: expected at most {self._limit} bytes, and more come out of it")
        return len(part)

    def _some(self, most: int) -> bytes:
        if self._make is None:
            part, self._input = self._input[:most], self._input[most:]
            if not self._input:
                self._input = self._file.read(BLOCK)
            return part
        while True:
            try:
                part = self._decompressed(most)
            except (zlib.error, lzma.LZMAError, EOFError) as error:
                raise DatasetError(f"{self._where}: it cannot be decompressed: {error}; fetch it again") from None
            if part or self._ended():
                return part

    def _decompressed(self, most: int) -> bytes:
        """Bytes that come out of the input; none if it takes more input, or the next stream."""
        engine = self._engine
        if engine.eof:
            return b""
        if not self._input and getattr(engine, "needs_input", True):
            self._input = self._file.read(BLOCK)
            if not self._input:
                raise EOFError("the file is cut")
        part: bytes = engine.decompress(self._input, most)
        self._input = getattr(engine, "unconsumed_tail", b"")
        if engine.eof:
            self._input = engine.unused_data
        return part

    def _ended(self) -> bool:
        """Whether nothing comes any more; streams may follow on each other, and zeros fill up the last block."""
        if not self._engine.eof:
            return False
        while True:
            self._input = self._input.lstrip(b"\0") or self._file.read(BLOCK)
            if not self._input:
                return True
            if self._input.lstrip(b"\0"):
                break
        self._input = self._input.lstrip(b"\0")
        assert self._make is not None  # there was a stream before
        self._engine = self._make()
        return False


def read_exactly(stream: IO[bytes] | io.RawIOBase, n: int, where: str) -> bytes:
    """So many bytes, which come piece by piece: a length that is claimed takes no memory before they are there."""
    parts, missing = [], n
    while missing:
        part = stream.read(min(missing, 2**20))
        if not part:
            raise DatasetError(f"{where}: expected {n} bytes, and {missing} are missing; fetch it again")
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
