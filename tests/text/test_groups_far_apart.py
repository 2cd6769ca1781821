"""Items of groups that lie furthest apart: the choice of the largest variance against all choices there are."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import functional_rb as frb
import jax_backend
import torch_backend
from tests.support.taken import spread, widest

ITEM = {"prompt": frb.Unbounded((), "int32"), "score": frb.Unbounded(())}
# Larger numbers count as this one, and smaller ones as 0.
LARGEST, SMALLEST = 2.0**90, 2.0**-100


def drawn(rb: Any, lists: Sequence[np.ndarray], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each list of numbers those that are taken, as rewards of a group, and which of the columns they fill."""
    prompts = np.repeat(np.arange(len(lists), dtype=np.int32), [*map(len, lists)])
    spec = frb.BufferSpec(ITEM, len(prompts), frb.Groups(k, "prompt", "score", whole=False, take="spread"))
    state = rb.add(rb.init(spec), {"prompt": prompts, "score": np.concatenate(lists)})
    _, sample = rb.sample(state, rb.key(0), len(lists))  # as many as there are groups: each of them once
    prompts, scores, mask = (np.asarray(x) for x in (sample.items["prompt"], sample.items["score"], sample.mask))
    order = np.argsort(prompts[:, 0])
    assert prompts[order, 0].tolist() == [*range(len(lists))]
    return scores[order], mask[order]


def chosen(rb: Any, lists: Sequence[np.ndarray], k: int) -> list[list[float]]:
    return [row[there].tolist() for row, there in zip(*drawn(rb, lists, k), strict=True)]


@pytest.mark.parametrize("scale", [1.0, 2.0**-60, 2.0**60])
@pytest.mark.parametrize("kind", ["small", "quarters", "far"])
def test_of_all_choices_none_is_wider(kind: str, scale: float) -> None:
    """Whole numbers, with many equal choices, are compared exactly; nor does it matter how far from 0 they lie."""
    random = np.random.default_rng(0)
    lists = []
    for n in random.integers(1, 9, 60).tolist():
        numbers = random.integers(-3, 4, n) if kind == "small" else random.integers(-20, 20, n) / 4
        # As far as float32 has their differences.
        lists.append(((4 * numbers + 2**23 if kind == "far" else numbers) * scale).astype(np.float32))
    for k in range(1, 9):
        for numbers, found in zip(lists, chosen(torch_backend, lists, k), strict=True):
            assert spread(found) == spread(widest(numbers.tolist(), min(k, len(numbers)))), (numbers, k)


@hypothesis.given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9), st.integers(1, 9))
@hypothesis.settings(max_examples=100, deadline=None)
def test_of_any_finite_or_infinite_numbers_nearly_the_widest(numbers: list[float], k: int) -> None:
    """As far as they lie within the bounds; those beyond count as these."""
    (taken,) = chosen(torch_backend, [np.array(numbers, np.float32)], k)
    assert len(taken) == min(k, len(numbers))
    found = spread(within(np.array(taken)))[0]
    most = spread(widest(within(np.array(numbers)), len(taken)))[0]
    assert found >= most * Fraction(99_999, 100_000)


def within(numbers: np.ndarray) -> list[float]:
    """What the numbers count as."""
    bounded = np.clip(numbers, -LARGEST, LARGEST)
    bounded[abs(bounded) < SMALLEST] = 0
    return bounded.tolist()


def test_the_same_bits_on_both_backends() -> None:
    random = np.random.default_rng(0)
    numbers = (random.normal(size=(200, 13)) * 10.0 ** random.integers(-39, 38, (200, 1))).astype(np.float32)
    by_torch, by_jax = (drawn(rb, [*numbers], 5)[0] for rb in (torch_backend, jax_backend))
    np.testing.assert_array_equal(by_torch, by_jax)
    assert len({(row < 0).sum() for row in by_torch}) > 2
