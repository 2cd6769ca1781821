"""Files of TFRecords: each record with its length before it, and checksums of both."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from typing import IO

from functional_rb.base.extras import imported
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats import streams

# Bytes before a record, its length and the checksum of that; and behind it, its checksum.
BEFORE, AFTER = 12, 4


def records(path: str, first: int = 0) -> Iterator[memoryview]:
    """The records of a file, from one on, each a view of a part of the file that is mapped for it."""
    with streams.opened(path) as file:
        for number, (at, length, where) in enumerate(_framed(file, path)):
            if number >= first:
                start = at - at % mmap.ALLOCATIONGRANULARITY
                # It is unmapped when nobody has a view of it any more.
                pages = mmap.mmap(file.fileno(), at + length + AFTER - start, access=mmap.ACCESS_READ, offset=start)
                record = memoryview(pages)[at - start :]
                _check(record[:length], record[length:], where)
                yield record[:length]


def count(path: str) -> int:
    """How many records a file has, by their lengths."""
    with streams.opened(path) as file:
        return sum(1 for _ in _framed(file, path))


def _framed(file: IO[bytes], path: str) -> Iterator[tuple[int, int, str]]:
    # For each record: the byte at which it begins, its length, and where it stands.
    descriptor, at, number = file.fileno(), 0, 0
    size = os.fstat(descriptor).st_size
    while at < size:
        where = f"{path}, record {number}, byte {at}"
        head = memoryview(os.pread(descriptor, BEFORE, at))
        if len(head) < BEFORE:
            raise DatasetError(f"{where}: the file is cut in front of a record; fetch it again")
        _check(head[:8], head[8:], f"{where}, its length")
        (length,) = struct.unpack("<Q", head[:8])
        # Before the record is mapped: a length may claim anything.
        if length > size - at - BEFORE - AFTER:
            raise DatasetError(f"{where}: expected {length} bytes, and the file is cut before; fetch it again")
        yield at + BEFORE, length, where
        at, number = at + BEFORE + length + AFTER, number + 1


def masked(content: memoryview | bytes) -> int:
    """The checksum CRC-32C as TFRecord files have it: rotated and moved, since a checksum of checksums is weak.

    Example:
        >>> hex(masked(b"123456789"))
        '0xc78ab0e5'
    """
    crc: int = imported("crc32c", "datasets: TFRecords").crc32c(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _check(content: memoryview, checksum: memoryview, where: str) -> None:
    actual, (expected,) = masked(content), struct.unpack("<I", checksum)
    if actual != expected:
        raise DatasetError(f"{where}: expected checksum {expected:#010x} (CRC-32C), got {actual:#010x}; fetch it again")
