"""What the public functions of text check of their arguments, and as what they hand them on."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from functional_rb.base.arrays import ArrayLike
from functional_rb.lib import A
from functional_rb.ops.protocol import Array, TextOps
from functional_rb.text.decoding import Decoding
from functional_rb.text.generation import Settings
from functional_rb.text.laws import Law
from functional_rb.text.lib import TextLib


def unset(ops: TextOps, x: Array) -> Array:
    """False in the shape of an array, which may hold NaN."""
    return ops.cast(ops.full_like(x, 0), "bool")


def check_callable(function: object, name: str, who: str) -> None:
    if not callable(function):
        raise TypeError(f"{who}: expected {name} as a function, got {type(function).__name__}")


def rows_of(lib: TextLib[A], ids: ArrayLike, mask: ArrayLike, name: str, who: str) -> tuple[Array, Array]:
    tokens = lib.converted(ids, "int32", f"{who}: {name}")
    shape = tuple(int(size) for size in tokens.shape)
    if len(shape) != 2 or not all(shape):
        raise ValueError(f"{who}: {name}: expected shape [rows, tokens], at least one of each, got {list(shape)}")
    if mask is None:
        return tokens, ~lib.run(unset, tokens)
    return tokens, shaped(lib, mask, "bool", shape, "mask", who)


def shaped(lib: TextLib[A], x: object, dtype: str, shape: tuple[int, ...], name: str, who: str) -> Array:
    array = lib.converted(x, dtype, f"{who}: {name}")
    if tuple(array.shape) != shape:
        raise ValueError(f"{who}: {name}: expected shape {list(shape)}, got {list(array.shape)}")
    return array


def whole(value: Any, name: str, least: int, who: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{who}: expected {name} as an int, got {value!r}") from None
    if isinstance(value, bool) or number < least:
        raise ValueError(f"{who}: expected {name} as an int from {least} on, got {value!r}")
    if number >= 2**31:
        raise ValueError(f"{who}: expected {name} below 2^31, as int32 has it, got {value!r}")
    return number


def settings_of(decoding: Decoding, who: str) -> Settings:
    eos, at_once = decoding.eos, decoding.at_once
    count = whole(decoding.replies, "replies", 1, who)
    together = count if at_once is None else whole(at_once, "at_once", 1, who)
    if count % together:
        raise ValueError(f"{who}: expected at_once to divide replies={count}, got {together}")
    ends = () if eos is None else tuple(eos) if isinstance(eos, Sequence) else (eos,)
    ends = tuple(whole(token, "eos", 0, who) for token in ends)
    return Settings(whole(decoding.n, "n", 1, who), count, together, ends, whole(decoding.pad, "pad", 0, who))


def law_of(lib: TextLib[A], like: Array, decoding: Decoding, who: str) -> Law:
    """A law whose numbers are scalars, checked where they can be seen."""
    bounds: tuple[tuple[str, object, str, str, Callable[[float], bool]], ...] = (
        ("temperature", decoding.temperature, "float32", "a finite number from 0 on", lambda x: 0 <= x < math.inf),
        ("top_k", decoding.top_k, "int32", "an int from 1 on", lambda x: x >= 1 and int(x) == x),
        ("top_p", decoding.top_p, "float32", "a number above 0, up to 1", lambda x: 0 < x <= 1),
    )
    numbers: list[Any] = []
    # Plain numbers are checked before they are rounded to float32, by which 1 + 1e-9 would become a top_p of 1.
    for name, value, dtype, expected, fits in bounds:
        if value is None and name == "temperature":
            raise TypeError(f"{who}: expected {name} as {expected}, got None")
        refused = isinstance(value, (bool, str)) or (isinstance(value, (int, float)) and not fits(value))
        number = None if value is None or refused else lib.number(value, dtype, like)
        known = None if number is None or isinstance(value, (int, float)) else lib.values(number)
        if refused or (known is not None and not (known.ndim == 0 and fits(known.item()))):
            raise ValueError(f"{who}: expected {name} as {expected}, got {value!r}")
        numbers.append(number)
    return Law(*numbers)
