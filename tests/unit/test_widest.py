"""The choice of the largest variance against all choices there are."""

from __future__ import annotations

from fractions import Fraction

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from functional_rb.ops import numpy_ops
from functional_rb.structures import widest
from tests.support.backends import Backend
from tests.support.taken import spread
from tests.support.taken import widest as tried


def chosen_of(numbers: np.ndarray, k: int) -> tuple[float, ...]:
    ascending = np.sort(numbers)[None]
    (lows,) = widest.lowest_in(numpy_ops.OPS, ascending[:, :k], ascending[:, -k:])[:, 0].tolist()
    assert 0 <= lows < k
    return (*ascending[0, :lows].tolist(), *ascending[0, len(numbers) - k + lows :].tolist())


@pytest.mark.parametrize("scale", [1.0, 2.0**-60, 2.0**60])
@pytest.mark.parametrize("kind", ["small", "quarters", "far"])
def test_of_all_choices_none_is_wider(kind: str, scale: float) -> None:
    """Whole numbers, with many equal choices, are compared exactly; nor does it matter how far from 0 they lie."""
    random = np.random.default_rng(0)
    for _ in range(60):
        n = int(random.integers(1, 9))
        numbers = random.integers(-3, 4, n) if kind == "small" else random.integers(-20, 20, n) / 4
        numbers = ((numbers + (1000 if kind == "far" else 0)) * scale).astype(np.float32)
        for k in range(1, n + 1):
            assert spread(chosen_of(numbers, k)) == spread(tried(numbers.tolist(), k)), (numbers, k)


@hypothesis.given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9), st.integers(1, 9))
@hypothesis.settings(max_examples=100, deadline=None)
def test_of_any_finite_or_infinite_numbers_nearly_the_widest(numbers: list[float], k: int) -> None:
    """As far as they lie within the bounds; those beyond count as these."""
    k = min(k, len(numbers))
    found = spread(within(np.array(chosen_of(np.array(numbers, np.float32), k))))[0]
    most = spread(tried(within(np.array(numbers, np.float32)), k))[0]
    assert found >= most * Fraction(99_999, 100_000)


def within(numbers: np.ndarray) -> list[float]:
    """What the numbers count as."""
    bounded = np.clip(numbers, -widest.LARGEST, widest.LARGEST)
    bounded[abs(bounded) < widest.SMALLEST] = 0
    return bounded.tolist()


def test_the_same_bits_on_both_backends(library: Backend) -> None:
    random = np.random.default_rng(0)
    numbers = (random.normal(size=(200, 13)) * 10.0 ** random.integers(-39, 38, (200, 1))).astype(np.float32)
    ascending = np.sort(numbers, 1)
    for k in (1, 4, 13):
        low, high = ascending[:, :k], ascending[:, -k:]
        found = widest.lowest_in(library.ops, library.array(low.copy()), library.array(high.copy()))
        expected = widest.lowest_in(numpy_ops.OPS, low, high)
        np.testing.assert_array_equal(library.numpy(found), expected)
