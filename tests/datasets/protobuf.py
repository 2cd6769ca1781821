"""Messages of Protocol Buffers and files of TFRecords, written naively: what the readers are tested against."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def field(number: int, content: bytes) -> bytes:
    """A field of bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values: Any, packed: bool = True) -> bytes:
    """A Feature: a list of bytes, or an array of float32 or int64."""
    if isinstance(values, list):
        return field(1, b"".join(field(1, value) for value in values))
    flat = np.asarray(values).reshape(-1)
    if flat.dtype.kind == "f":
        ones = [struct.pack("<f", value) for value in flat]
        return field(2, field(1, b"".join(ones)) if packed else b"".join(varint(1 << 3 | 5) + one for one in ones))
    ones = [varint(int(value)) for value in flat]
    return field(3, field(1, b"".join(ones)) if packed else b"".join(varint(1 << 3) + one for one in ones))


def entry(name: str, value: bytes) -> bytes:
    """An entry of a map from names to messages."""
    return field(1, field(1, name.encode()) + field(2, value))


def example(features: dict[str, Any], packed: bool = True) -> bytes:
    return field(1, b"".join(entry(name, feature(values, packed)) for name, values in features.items()))


def shifted(crc: int) -> int:
    """The register of CRC-32C after eight bits of zeros."""
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc


def crc32c(content: bytes) -> int:
    """Bit by bit, as the standard has it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = shifted(crc ^ byte)
    return crc ^ 0xFFFFFFFF


def masked(content: bytes) -> int:
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", masked(length)) + content + struct.pack("<I", masked(content))


def write_records(path: Path, contents: Iterable[bytes]) -> None:
    path.write_bytes(b"".join(map(record, contents)))
