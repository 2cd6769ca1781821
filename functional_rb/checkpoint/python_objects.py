"""Python objects in checkpoints: JSON values, whose types come back exactly. Never pickle, which runs code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

# Lists in lists: far below the depth at which Python's own reader of JSON gives up.
DEEPEST = 100
# Whole numbers below this are read by Python without any setting (`sys.set_int_max_str_digits` is 4300 by default).
LONGEST = 10**4000


def encode(by_token: Mapping[int, object]) -> bytes:
    return json.dumps(by_token, separators=(",", ":"), allow_nan=False).encode() if by_token else b""


def decode(content: bytes) -> dict[int, object]:
    try:
        info = json.loads(content) if content else {}
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(info, dict):
        raise ValueError("expected objects by token")
    return {int(token): value for token, value in info.items()}


def check(value: Any, leaf: str, depth: int = 0) -> None:
    kind = type(value)  # of a class that inherits from one of these, JSON would lose what it adds
    if value is None or kind is bool or kind is str:
        return
    if kind is int and -LONGEST < value < LONGEST:
        return
    if kind is float and math.isfinite(value):
        return
    if depth < DEEPEST and (kind is list or (kind is dict and all(type(key) is str for key in value))):
        for inner in value if kind is list else value.values():
            check(inner, leaf, depth + 1)
        return
    what = f"{value!r}" if kind is float else "a number too long" if kind is int else kind.__name__
    what = "a nest too deep, or one that contains itself" if depth == DEEPEST else what
    raise TypeError(
        f"save: leaf {leaf!r}: expected objects that JSON can say (None, bool, int, finite float, str, and lists and "
        f"dicts of such with str keys), got {what}; store that by a name or number of yours, or leave the leaf out"
    )
