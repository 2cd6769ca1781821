"""Numbers as dtypes have them, as bounds show: the shortest decimals, and rounding to bfloat16."""

from __future__ import annotations

import decimal

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings

import functional_rb as frb
from tests.support.effort import effort

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
LARGEST = float(np.finfo(np.float32).max)


def bounds(kind: str, values: list[float]) -> list[float]:
    """What each of these values becomes as a bound: a lower one if it is negative, else an upper one."""
    given = np.array(values)
    spec = frb.Bounded(np.where(given < 0, given, -np.inf), np.where(given < 0, np.inf, given), given.shape, kind)
    return np.where(given < 0, spec.low, spec.high).tolist()


@pytest.mark.parametrize("kind", DTYPES)
def test_numbers_are_the_shortest_decimals(kind: str) -> None:
    """All finite numbers that are not negative, by step: a decimal with one digit less would mean another number."""
    every = np.arange(2**15, dtype=np.uint16).view(DTYPES[kind])
    values = every[every.astype("float32") < np.inf][:: effort(13, 3)]
    short = bounds(kind, values.astype(float).tolist())
    assert (np.array(short).astype(values.dtype) == values).all()
    for value, found in zip(values.tolist(), short, strict=True):
        digits = len(decimal.Decimal(repr(found)).normalize().as_tuple().digits)
        if digits > 1:
            with np.errstate(over="ignore"):
                assert np.float32(f"{value:.{digits - 2}e}").astype(values.dtype) != value, found
    assert bounds(kind, short) == short


@settings(max_examples=effort(100, 600))
@given(st.floats(width=32, allow_nan=False))
def test_float32_as_numpy_writes_it(value: float) -> None:
    assert repr(bounds("float32", [value])[0]) == repr(float(str(np.float32(value))) + 0.0)
    assert bounds("float64", [value / 3])[0] == value / 3


@settings(max_examples=effort(100, 600))
@given(st.floats(allow_nan=False) | st.floats(width=32, allow_nan=False) | st.floats(width=16, allow_nan=False))
@example(LARGEST)  # which becomes infinite
def test_rounding_to_bfloat16_is_the_usual_one(value: float) -> None:
    with np.errstate(over="ignore"):
        wanted = np.float32(value).astype(ml_dtypes.bfloat16)
    assert np.float32(bounds("bfloat16", [value])[0]).astype(ml_dtypes.bfloat16) == wanted


def test_rounding_between_two_of_bfloat16() -> None:
    bits = np.arange(2**15 - 2**7 - 1, dtype=np.uint32) << 16
    for low in (0x7FFF, 0x8000, 0x8001):
        values = (bits + low).astype(np.uint32).view(np.float32)[::37]
        found = bounds("bfloat16", values.astype(float).tolist())
        wanted = values.astype(ml_dtypes.bfloat16)
        assert np.float32(found).astype(ml_dtypes.bfloat16).tolist() == wanted.tolist()
