"""Calls that are refused: tables of them, and buffers that are given them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import functional_rb as frb

ITEM = {
    "obs": {"camera": frb.Unbounded((2, 2), "uint8"), "speed": frb.Unbounded((3,))},
    "id": frb.Unbounded((), "int32"),
    "reward": frb.Unbounded(()),
}
PRIORITIZED = frb.BufferSpec(ITEM, 6, frb.Prioritized())
UNIFORM = frb.BufferSpec(ITEM, 6)

# Of each what the error says, and what makes it. It is a ValueError, unless the words begin with "TypeError: ".
Cases = list[tuple[Any, ...]]


def told(words: str) -> tuple[type[Exception], str]:
    """The kind of an error, and its message."""
    kind, colon, message = words.partition("TypeError: ")
    return (TypeError, message) if colon else (ValueError, kind)


@contextlib.contextmanager
def refused(words: str, *, exactly: bool = True) -> Iterator[None]:
    """An error of this kind, and no subclass: JAX's own errors are often subclasses of TypeError that name nothing."""
    kind, message = told(words)
    with pytest.raises(kind, match=message) as caught:
        yield
    assert type(caught.value) is kind or not exactly, f"{caught.value!r}"


def batch(n: int) -> dict[str, Any]:
    number = np.arange(n, dtype=np.int32)
    speed = np.repeat(number[:, None], 3, 1).astype(np.float32)
    return {
        "obs": {"camera": np.full((n, 2, 2), 7, np.uint8), "speed": speed},
        "id": number,
        "reward": number.astype(np.float32),
    }


def floats(n: int) -> Any:
    return np.ones(n, np.float32)
