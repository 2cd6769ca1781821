"""Files that others have made, opened and read forward.

Pipes, which would block whatever opens them, and devices are refused. Gzip and xz are decompressed, with a limit on
what comes out of them: some thousand bytes may hold gigabytes of zeros.
"""

from __future__ import annotations

import contextlib
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from functional_rb.base import files
from functional_rb.datasets.episode import DatasetError, expecting

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
BLOCK = 2**16
# Bytes that a decompressor of xz may take: what `xz -9` writes needs half of it.
MEMORY = 2**27


@contextlib.contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    try:
        descriptor, _ = files.open_regular(path)
    except files.UnusableFileError as error:
        raise DatasetError(str(error)) from None
    with descriptor:
        yield files.stream(descriptor)


class Inflated(io.RawIOBase):
    """What a file holds, decompressed if it is gzip or xz by its first bytes, and no more than `limit` bytes of it.

    It is read forward only.
    """

    def __init__(self, file: IO[bytes], limit: int, where: str) -> None:
        super().__init__()
        self._pieces, self._piece = _decompressed(file), memoryview(b"")
        self._read, self._limit, self._where = 0, limit, where

    def readable(self) -> bool:
        return True

    def readinto(self, target: WriteableBuffer) -> int:
        with expecting(f"{self._where}: it cannot be decompressed", zlib.error, lzma.LZMAError, EOFError):
            # A decompressor gives no bytes where it takes more input before it knows what comes.
            while not len(self._piece) and (piece := next(self._pieces, None)) is not None:
                self._piece = memoryview(piece)
        with memoryview(target).cast("B") as view:
            count = min(len(view), len(self._piece))
            view[:count], self._piece = self._piece[:count], self._piece[count:]
        self._read += count
        if self._read > self._limit:
            raise DatasetError(f"{self._where}: expected at most {self._limit} bytes, and more come out of it")
        return count


def _decompressed(file: IO[bytes]) -> Iterator[bytes]:
    content = file.read(BLOCK)
    make: Callable[[], Any]
    if content.startswith(GZIP):
        make = partial(zlib.decompressobj, wbits=31)
    elif content.startswith(XZ):
        make = partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, MEMORY)
    else:
        while content:
            yield content
            content = file.read(BLOCK)
        return
    # Streams may follow on each other, and zeros fill up the last block.
    while content or (content := file.read(BLOCK)):
        content = content.lstrip(b"\0")
        if not content:
            continue
        engine = make()
        while not engine.eof:
            # A decompressor of xz may have more to give of the bytes that it was fed before.
            if not content and getattr(engine, "needs_input", True):
                content = file.read(BLOCK)
                if not content:
                    raise EOFError("the file is cut")
            yield engine.decompress(content, BLOCK)  # a few bytes may stand for gigabytes: a piece at a time
            content = getattr(engine, "unconsumed_tail", b"")
        content = engine.unused_data


def read_exactly(stream: IO[bytes] | io.RawIOBase, n: int, where: str) -> bytes:
    """So many bytes, which come piece by piece: a length that is claimed takes no memory before they are there."""
    chunks, missing = [], n
    while missing:
        chunk = stream.read(min(missing, 2**20))
        if not chunk:
            raise DatasetError(f"{where}: expected {n} bytes, and {missing} are missing; fetch it again")
        chunks.append(chunk)
        missing -= len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
