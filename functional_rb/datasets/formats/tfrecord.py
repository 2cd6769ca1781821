"""Files of TFRecords: each record with its length before it, and checksums of both."""

from __future__ import annotations

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
    """The records of a file, from one on, each a view of the file in memory that is mapped, as are views of it.

    Args:
        path: of the file.
        first: the records before it are passed over, by their lengths.

    Raises:
        DatasetError: for a wrong checksum or length, naming the file, the record and the byte.
        FileNotFoundError: if there is no such file.
    """
    for number, (record, checksum, where) in enumerate(_framed(path)):
        if number >= first:
            _check(record, checksum, where)
            yield record


def count(path: str) -> int:
    """How many records a file has, by their lengths.

    Raises:
        DatasetError: for a wrong length.
        FileNotFoundError: if there is no such file.
    """
    return sum(1 for _ in _framed(path))


def _framed(path: str) -> Iterator[tuple[memoryview, memoryview, str]]:
    """Each record, its checksum, and where it stands."""
    try:
        descriptor, size = files.open_regular(path)
    except files.UnusableFileError as error:
        raise DatasetError(str(error)) from None
    with os.fdopen(descriptor, "rb") as file:
        if size == 0:
            return
        # It is unmapped when nobody has a view of it any more.
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    at = number = 0
    while at < size:
        where = f"{path}, record {number}, byte {at}"
        record = _record(content, at, where)
        end = at + BEFORE + len(record)
        yield record, content[end : end + AFTER], where
        at, number = end + AFTER, number + 1


def _record(content: memoryview, at: int, where: str) -> memoryview:
    """The record at a byte, whose length is what was written."""
    head = content[at : at + BEFORE]
    if len(head) < BEFORE:
        raise DatasetError(f"{where}: the file is cut in front of a record; fetch it again")
    _check(head[:8], head[8:], f"{where}, its length")
    (length,) = struct.unpack("<Q", head[:8])
    if length > len(content) - at - BEFORE - AFTER:
        raise DatasetError(f"{where}: expected {length} bytes, and the file is cut before; fetch it again")
    return content[at + BEFORE : at + BEFORE + length]


def _check(content: memoryview, checksum: memoryview, where: str) -> None:
    found, (expected,) = masked(content), struct.unpack("<I", checksum)
    if found != expected:
        raise DatasetError(
            f"{where}: expected the checksum {expected:#010x} (CRC-32C), got {found:#010x}; fetch it again"
        )
