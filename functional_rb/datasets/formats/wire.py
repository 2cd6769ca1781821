"""The wire format of Protocol Buffers, read from bytes that may mean harm.

A message is a run of fields; each has a number and a value: a whole number of variable length, 8 or 4 bytes, or so many
bytes, which may be a message again. What is read are views of the bytes; nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.datasets.episode import DatasetError

Array = NumpyArray
# The kinds of values. Those of numbers 3 and 4, groups, are of the past, and nobody writes them.
VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5


def fields(message: memoryview, where: str) -> Iterator[tuple[int, int, Any]]:
    """The fields of a message: number, kind, and value: an int for a varint, else a view of the bytes."""
    at, size = 0, len(message)
    while at < size:
        tag, at = _varint(message, at, where)
        number, kind = tag >> 3, tag & 7
        if number == 0 or kind not in (VARINT, EIGHT, BYTES, FOUR):
            raise DatasetError(f"{where}: expected a message of Protocol Buffers, got a field {number} of kind {kind}")
        if kind == VARINT:
            value, at = _varint(message, at, where)
            yield number, kind, value
            continue
        length = {EIGHT: 8, FOUR: 4}.get(kind, 0)
        if kind == BYTES:
            length, at = _varint(message, at, where)
        if length > size - at:
            raise DatasetError(f"{where}: field {number} claims {length} bytes, and {size - at} are left")
        yield number, kind, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int, where: str) -> tuple[int, int]:
    value = shift = 0
    for byte in message[at : at + 10]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise DatasetError(f"{where}: a number of a message does not end within 10 bytes; the file is damaged")


def varints(packed: memoryview, where: str) -> Array:
    """Whole numbers side by side, int64 [n]."""
    data = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(data < 0x80)
    if not len(data):
        return np.zeros(0, np.int64)
    if not len(ends) or ends[-1] != len(data) - 1:
        raise DatasetError(f"{where}: the last number of a message is cut; the file is damaged")
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > 10:
        raise DatasetError(f"{where}: a number of a message does not end within 10 bytes; the file is damaged")
    made = (data[starts] & 0x7F).astype(np.uint64)
    for k in range(1, int(lengths.max())):
        longer = np.flatnonzero(lengths > k)
        made[longer] |= (data[starts[longer] + k] & 0x7F).astype(np.uint64) << np.uint64(7 * k)
    return made.view(np.int64)
