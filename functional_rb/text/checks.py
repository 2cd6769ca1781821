"""What the public functions of text check of models and of how replies are drawn, and as what they hand it on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from functional_rb.lib import A
from functional_rb.ops.protocol import Array
from functional_rb.text.arguments import whole
from functional_rb.text.decoding import Decoding
from functional_rb.text.generation import Settings
from functional_rb.text.laws import Law
from functional_rb.text.lib import TextLib


def check_callable(function: object, name: str, who: str) -> None:
    if not callable(function):
        raise TypeError(f"{who}: expected {name} as a function, got {type(function).__name__}")


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
