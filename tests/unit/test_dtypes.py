"""Numbers as dtypes have them: the shortest decimals, and rounding to bfloat16."""

from __future__ import annotations

import decimal

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from functional_rb.base import dtypes
from tests.support.effort import effort


def all_of(kind: str) -> np.ndarray:
    values = np.arange(2**15, dtype=np.uint16).view(np.float16 if kind == "float16" else ml_dtypes.bfloat16)
    return values[values.astype("float32") < np.inf]


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_numbers_are_the_shortest_decimals(kind: str) -> None:
    """All numbers that are not negative, by step: a decimal with one digit less would mean another number."""
    values = all_of(kind)[::3]
    short = [dtypes.canonical(kind, float(value), "low") for value in values]
    assert (np.array(short).astype(values.dtype) == values).all()
    for value, found in zip(values.tolist(), short, strict=True):
        digits = len(decimal.Decimal(repr(found)).normalize().as_tuple().digits)
        if digits > 1:
            near = float(f"{value:.{digits - 2}e}")
            assert dtypes.rounded(kind, near) != value, found
    assert [dtypes.canonical(kind, one, "low") for one in short[::50]] == short[::50]


@settings(max_examples=effort(100, 600))
@given(st.floats(width=32, allow_nan=False))
def test_float32_as_numpy_writes_it(value: float) -> None:
    assert repr(dtypes.canonical("float32", value, "low")) == repr(float(str(np.float32(value))) + 0.0)
    assert dtypes.canonical("float64", value / 3, "low") == value / 3


@settings(max_examples=effort(100, 600))
@given(st.floats(allow_nan=False) | st.floats(width=32, allow_nan=False) | st.floats(width=16))
def test_rounding_to_bfloat16_is_the_usual_one(value: float) -> None:
    with np.errstate(over="ignore"):
        wanted = float(np.float32(value).astype(ml_dtypes.bfloat16))
    np.testing.assert_equal(dtypes.rounded("bfloat16", value), wanted)


def test_rounding_between_two_of_bfloat16() -> None:
    bits = np.arange(2**15 - 2**7 - 1, dtype=np.uint32) << 16
    for low in (0x7FFF, 0x8000, 0x8001):
        values = (bits + low).astype(np.uint32).view(np.float32)[::37]
        wanted = values.astype(ml_dtypes.bfloat16).astype(float).tolist()
        assert [dtypes.rounded("bfloat16", float(value)) for value in values] == wanted
