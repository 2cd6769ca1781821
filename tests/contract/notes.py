"""Items with Python objects."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import functional_rb as frb
from tests.support import backends

WITH_OBJECTS = [*(name for name in backends.VARIANTS if name.startswith("torch")), *backends.HOST_VARIANTS]


ITEM = {"id": frb.Unbounded((), "int32"), "note": frb.specs.NonTensor()}


@dataclasses.dataclass
class Note:
    """What is stored: it compares by value, and can be referred to weakly."""

    value: Any

    __hash__ = object.__hash__


def spec_of(capacity: int = 4, **more: Any) -> frb.BufferSpec:
    return frb.BufferSpec(ITEM, capacity, **more)


def batch(*ids: int, notes: list[Any] | None = None) -> dict[str, Any]:
    return {"id": np.array(ids, np.int32), "note": [Note(k) for k in ids] if notes is None else notes}


def values(array: Any) -> list[Any]:
    """The values of notes, None where there is none."""
    assert isinstance(array, np.ndarray)
    assert array.dtype == object
    return [None if note is None else note.value for note in array.reshape(-1).tolist()]


STEPS = {
    "obs": frb.Unbounded((), "int32"),
    "note": frb.specs.NonTensor(),
    "reward": frb.Unbounded(()),
    "next_obs": frb.Unbounded((), "int32"),
    "next_note": frb.specs.NonTensor(),
    "done": frb.Binary(),
}


def steps(first: int, n: int, notes: list[Any]) -> dict[str, Any]:
    ids = np.arange(first, first + n, dtype=np.int32)
    return {
        "obs": ids,
        "note": [notes[k] for k in ids],
        "reward": np.ones(n, np.float32),
        "next_obs": ids + 1,
        "next_note": [notes[k + 1] for k in ids],
        "done": ids % 7 == 6,
    }
