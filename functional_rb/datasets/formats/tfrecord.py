"""Files of TFRecords: each record with its length before it, and checksums of both."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator

from functional_rb.base import files
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats.crc32c import masked

BEFORE, AFTER = 12, 4
"""Bytes before a record, its length and the checksum of that; and behind it, its checksum."""


def records(path: str, first: int = 0) -> Iterator[memoryview]:
    """The records of a file, from one on, each a view of a part of the file that is mapped for it.

    Args:
        path: of the file.
        first: the records before it are passed over, by their lengths.

    Raises:
        DatasetError: for a wrong checksum or length, naming the file, the record and the byte.
        FileNotFoundError: if there is no such file.
    """
    with _opened(path) as (descriptor, size):
        for number, (at, length, where) in enumerate(_framed(descriptor, size, path)):
            if number >= first:
                start = at - at % mmap.ALLOCATIONGRANULARITY
                # It is unmapped when nobody has a view of it any more.
                part = mmap.mmap(descriptor, at + length + AFTER - start, access=mmap.ACCESS_READ, offset=start)
                record = memoryview(part)[at - start :]
                _check(record[:length], record[length:], where)
                yield record[:length]


def count(path: str) -> int:
    """How many records a file has, by their lengths.

    Raises:
        DatasetError: for a wrong length.
        FileNotFoundError: if there is no such file.
    """
    with _opened(path) as (descriptor, size):
        return sum(1 for _ in _framed(descriptor, size, path))


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[int, int]]:
    """A file's descriptor and size."""
    try:
        descriptor, size = files.open_regular(path)
    except files.UnusableFileError as error:
        raise DatasetError(str(error)) from None
    try:
        yield descriptor, size
    finally:
        os.close(descriptor)


def _framed(descriptor: int, size: int, path: str) -> Iterator[tuple[int, int, str]]:
    """Of each record the byte at which it begins, its length, and where it stands."""
    at = number = 0
    while at < size:
        where = f"{path}, record {number}, byte {at}"
        head = memoryview(os.pread(descriptor, BEFORE, at))
        if len(head) < BEFORE:
            raise DatasetError(f"{where}: the file is cut in front of a record; fetch it again")
        _check(head[:8], head[8:], f"{where}, its length")
        (length,) = struct.unpack("<Q", head[:8])
        if length > size - at - BEFORE - AFTER:
            raise DatasetError(f"{where}: expected {length} bytes, and the file is cut before; fetch it again")
        yield at + BEFORE, length, where
        at, number = at + BEFORE + length + AFTER, number + 1


def _check(content: memoryview, checksum: memoryview, where: str) -> None:
    found, (expected,) = masked(content), struct.unpack("<I", checksum)
    if found != expected:
        raise DatasetError(
            f"{where}: expected the checksum {expected:#010x} (CRC-32C), got {found:#010x}; fetch it again"
        )
