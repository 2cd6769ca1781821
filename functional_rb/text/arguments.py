"""Arrays and whole numbers as the functions of text take them, checked."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from functional_rb.base.arrays import ArrayLike
from functional_rb.ops.protocol import Array, FloatOps
from functional_rb.text.computing import Computing


def unset(ops: FloatOps, x: Array) -> Array:
    """False in the shape of an array, which may hold NaN."""
    return ops.cast(ops.full_like(x, 0), "bool")


def rows_of(lib: Computing, ids: ArrayLike, mask: ArrayLike, name: str, who: str) -> tuple[Array, Array]:
    tokens = lib.converted(ids, "int32", f"{who}: {name}")
    shape = tuple(int(size) for size in tokens.shape)
    if len(shape) != 2 or not all(shape):
        raise ValueError(f"{who}: {name}: expected shape [rows, tokens], at least one of each, got {list(shape)}")
    if mask is None:
        return tokens, ~lib.run(unset, tokens)
    return tokens, shaped(lib, mask, "bool", shape, "mask", who)


def shaped(lib: Computing, x: object, dtype: str, shape: tuple[int, ...], name: str, who: str) -> Array:
    array = lib.converted(x, dtype, f"{who}: {name}")
    if tuple(array.shape) != shape:
        raise ValueError(f"{who}: {name}: expected shape {list(shape)}, got {list(array.shape)}")
    return array


def whole(value: SupportsIndex, name: str, least: int, who: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{who}: expected {name} as an int, got {value!r}") from None
    if isinstance(value, bool) or number < least:
        raise ValueError(f"{who}: expected {name} as an int from {least} on, got {value!r}")
    if number >= 2**31:
        raise ValueError(f"{who}: expected {name} below 2^31, as int32 has it, got {value!r}")
    return number
