"""Messages `tf.train.Example`, decoded without TensorFlow: features by their names.

As their definitions have it: an Example holds Features in field 1, a map from names to a Feature, which is a list of
bytes (1), of float32 (2), or of int64 (3).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats.wire import BYTES, FOUR, VARINT, fields, varints

Array = NumpyArray
# A list of bytes; or float32 or int64 [n].
Feature: TypeAlias = "list[memoryview] | Array"
# How many texts or images a list may hold: each takes some hundred bytes of memory, and maybe two of the file.
MOST = 2**20


def example(message: memoryview, where: str) -> dict[str, Feature]:
    """The features of an Example, by name. Those that are empty are empty lists.

    Example:
        >>> example(memoryview(bytes.fromhex("0a0c0a0a0a017812051a030a0107")), "a file")
        {'x': array([7])}
    """
    found: dict[str, Feature] = {}
    for part in _messages(message, 1, where):
        for entry in _messages(part, 1, where):
            names, values = _messages(entry, 1, where), _messages(entry, 2, where)
            try:
                name = str(names[-1], "utf-8") if names else ""
            except UnicodeDecodeError as error:
                raise DatasetError(f"{where}: expected the name of a feature: {error}") from None
            # Of a field that comes several times the last one counts, as the format says.
            found[name] = _feature(values[-1] if values else memoryview(b""), f"{where}, feature {name!r}")
    return found


def _messages(message: memoryview, number: int, where: str) -> list[memoryview]:
    found = []
    for at, kind, value in fields(message, where):
        if at == number:
            if kind != BYTES:
                raise DatasetError(f"{where}: expected bytes in field {number}, got kind {kind}")
            found.append(value)
            if len(found) > MOST:
                raise DatasetError(f"{where}: expected at most {MOST} values in a list")
    return found


def _feature(message: memoryview, where: str) -> Feature:
    made: Feature = []
    for number, kind, value in fields(message, where):
        if kind == BYTES and number in (1, 2, 3):
            made = _messages(value, 1, where) if number == 1 else _numbers(value, number == 2, where)
    return made


def _numbers(message: memoryview, is_float: bool, where: str) -> Array:
    """Numbers, packed as everybody writes them, or one a field."""
    single, packed = (FOUR, "<f4") if is_float else (VARINT, "<i8")
    parts: list[Array] = []
    ones: list[object] = []
    for number, kind, value in fields(message, where):
        if number != 1:
            continue
        if kind == BYTES and ones:
            parts.append(_ones(ones, packed))
            ones = []
        if kind == BYTES and is_float and len(value) % 4:
            raise DatasetError(f"{where}: expected float32 values, got {len(value)} bytes")
        if kind == BYTES:
            parts.append(np.frombuffer(value, packed) if is_float else varints(value, where))
        elif kind == single:
            ones.append(value)
        else:
            raise DatasetError(f"{where}: expected numbers, got a field of kind {kind}")
        if len(ones) + len(parts) > MOST:
            raise DatasetError(f"{where}: expected at most {MOST} fields of numbers; packed they are one")
    parts += [_ones(ones, packed)] if ones or not parts else []
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _ones(values: list[Any], dtype: str) -> Array:
    if dtype == "<i8":
        return np.array(values, np.uint64).view(np.int64)
    return np.frombuffer(b"".join(values), dtype)
