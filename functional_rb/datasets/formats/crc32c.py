"""CRC-32C (Castagnoli), the checksum of TFRecord files, by NumPy.

A checksum is what is left of the content, a polynomial over GF(2), divided by another one, P. So the content may first
be reduced by any multiple of P. One with few terms makes that a few xors of long rows of bytes: x^5685 is x^1362 +
x^426 + 1 modulo P, and squaring both sides doubles the exponents, so that bytes stay whole and rows get longer.

What then is left, some thousand bytes, is combined pairwise, all pairs of a level at once: the register after two
halves is that after the first, and as many zeros as the second is long, xor that after the second. Zeros are two
lookups.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
POLYNOMIAL = 0x82F63B78
"""Reflected: the lowest bit is that of the highest power."""
PIECE = 2**20
"""Bytes that are checked at a time, so that what is in between stays in caches and memory is bounded."""
SHORT = 256
"""Up to so many bytes a loop is faster."""
TERMS = 5685, 1362, 426, 0
"""The exponents of a multiple of the polynomial; of those with four terms it moves bytes furthest for its degree."""


def crc32c(content: Any) -> int:
    """The checksum of bytes.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    data = np.frombuffer(content, np.uint8)
    crc = 0xFFFFFFFF
    for at in range(0, len(data), PIECE):
        crc = _extended(crc, data[at : at + PIECE])
    return crc ^ 0xFFFFFFFF


def masked(content: Any) -> int:
    """The checksum as TFRecord files have it: rotated and moved, since a checksum of checksums is weak."""
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _extended(crc: int, data: Array) -> int:
    """The register after more bytes."""
    if len(data) <= SHORT:
        table = _bytes_table()
        for byte in data.tobytes():
            crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
        return crc
    changed = data.copy()
    changed[:4] ^= np.frombuffer(crc.to_bytes(4, "little"), np.uint8)
    rest = _reduced(changed)
    padded = np.concatenate([np.zeros(-len(rest) % 4, np.uint8), rest])
    words = _after_zeros(padded.view("<u4"), 2)
    level = 2
    while len(words) > 1:
        if len(words) % 2:
            words = np.concatenate([np.zeros(1, np.uint32), words])
        words, level = _after_zeros(words[::2], level) ^ words[1::2], level + 1
    return int(words[0])


def _reduced(data: Array) -> Array:
    """The last bytes of data, which is overwritten, with what all before them leaves of itself modulo P."""
    at, scale = 0, 2 ** max(len(data) // TERMS[0], 1).bit_length()
    while scale:
        degree = scale * TERMS[0]
        moves = [degree - scale * term for term in TERMS[1:]]
        while (length := min(moves[0], len(data) - at - degree)) > 0:
            row = data[at : at + length]
            for move in moves:
                data[at + move : at + move + length] ^= row
            at += length
        scale //= 2
    return data[at:]


def _after_zeros(words: Array, level: int) -> Array:
    """Registers after 2**level bytes of zeros."""
    low, high = _shift_tables(level)
    return low[words & 0xFFFF] ^ high[words >> 16]


@functools.cache
def _bytes_table() -> list[int]:
    """The register after a byte, by the byte."""
    made: Array = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        made = made >> 1 ^ np.where(made & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    return made.tolist()


@functools.cache
def _shift_tables(level: int) -> tuple[Array, Array]:
    """What the lower and upper halves of registers become after 2**level bytes of zeros."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    if level == 0:
        table = np.array(_bytes_table(), np.uint32)
        after = table[bits & 0xFF] ^ bits >> 8
    else:
        after = _after_zeros(_after_zeros(bits, level - 1), level - 1)
    halves = []
    for sixteen in (after[:16], after[16:]):
        made = np.zeros(1, np.uint32)
        for value in sixteen:
            made = np.concatenate([made, made ^ value])
        halves.append(made)
    return halves[0], halves[1]
