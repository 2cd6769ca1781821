"""Draws without replacement against the exact law of successive sampling, and what is told of their chances."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from functional_rb.structures import exponential_race, sum_tree
from functional_rb.structures.sum_tree import FANOUT
from jax_backend.arrays import ops as jax_ops
from tests.support.effort import effort
from torch_backend.arrays import ops as torch_ops

Floats = np.ndarray[Any, np.dtype[np.float32]]
Doubles = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int32]]


def tree_of(values: Floats) -> Floats:
    tree = torch.zeros(sum_tree.geometry(values.size).rows, FANOUT)
    leaves = torch.arange(values.size, dtype=torch.int32)
    return sum_tree.set_leaves(torch_ops, tree, values.size, leaves, torch.from_numpy(values), True).numpy()


@functools.cache
def on_jax(capacity: int) -> Callable[..., Any]:
    return jax.jit(lambda tree, draws: exponential_race.first(jax_ops, tree, capacity, draws))


def draw_each(values: Floats, draws: Ints) -> tuple[torch.Tensor, ...]:
    """Slots, which of them are live, and their chances, of independent draws [N, B + 1, words].

    On torch, which compiles nothing for that: JAX draws the same, see below.
    """
    capacity, tree = values.size, torch.from_numpy(tree_of(values))

    def once(draws: torch.Tensor) -> tuple[torch.Tensor, ...]:
        slots, live, threshold = exponential_race.first(torch_ops, tree, capacity, draws)
        leaves = sum_tree.get_leaves(torch_ops, tree, slots)
        return slots, live, exponential_race.inclusion(torch_ops, leaves, threshold)

    drawn: tuple[torch.Tensor, ...] = torch.vmap(once)(torch.from_numpy(draws))
    return drawn


def random_words(seed: int, *shape: int) -> Ints:
    return np.random.default_rng(seed).integers(0, 2**31, shape, dtype=np.int32)


def draw_many(values: Floats, batch: int, times: int, seed: int = 0) -> tuple[Ints, Doubles]:
    """Slots [times, batch] and their chances; all are live and distinct."""
    draws = random_words(seed, times, batch + 1, exponential_race.words(values.size))
    slots, live, probabilities = (x.numpy() for x in draw_each(values, draws))
    assert live.all()
    ascending = np.sort(slots, 1)
    assert (ascending[:, 1:] > ascending[:, :-1]).all()
    assert (ascending >= 0).all()
    assert (ascending < values.size).all()
    return slots, probabilities.astype(np.float64)


def check_counts(counts: Doubles, probabilities: Doubles) -> None:
    """Chi-square: of these seeded draws it lies within 5 deviations of its mean, by chance in all but 1 of 10^5 cases.

    Cells of less than 20 expected draws are put together.
    """
    expected = probabilities / probabilities.sum() * counts.sum()
    assert (counts[probabilities == 0] == 0).all()
    rare = expected < 20
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    used = expected > 0
    statistic = ((counts - expected)[used] ** 2 / expected[used]).sum()
    freedom = used.sum() - 1
    assert statistic < freedom + 5 * math.sqrt(2 * max(freedom, 1)), (statistic, freedom)


@pytest.mark.parametrize(("draw", "leaf"), [(0, 0), (2**31 - 1, 2)])
def test_the_lowest_draw_is_of_the_first_leaf_and_the_highest_of_the_last(draw: int, leaf: int) -> None:
    """However rarely it comes: that one is there at once, the others wait."""
    tree, draws = tree_of(np.float32([1, 1000, 1])), np.full((2, exponential_race.words(3)), 2**30, np.int32)
    draws[:, 0] = draw
    on_torch = exponential_race.first(torch_ops, torch.from_numpy(tree), 3, torch.from_numpy(draws))
    for slots, _, _ in (on_jax(3)(tree, draws), on_torch):
        assert slots.tolist() == [leaf]


def chance_of_order(values: Doubles, order: Sequence[int]) -> float:
    chance, left = 1.0, float(values.sum())
    for k in order:
        chance *= values[k] / left
        left -= values[k]
    return chance


@pytest.mark.parametrize(
    ("values", "batch"),
    [
        ([1, 1, 1, 1, 1], 3),
        ([1, 2, 3, 4, 5], 4),
        ([0.01, 100, 1, 0.3, 7], 3),
        ([0, 3, 0, 1, 2], 2),
        ([5, 0, 0, 0, 1], 1),
        ([2.0**95, 0, 2.0**94, 2.0**93, 0], 2),
        ([2.0**-100, 2.0**-99, 2.0**-98, 0, 0], 2),
    ],
)
def test_every_order_of_a_few(values: list[float], batch: int) -> None:
    slots, _ = draw_many(np.float32(values), batch, effort(2**13, 2**16))
    orders = list(itertools.permutations(range(len(values)), batch))
    probabilities = np.array([chance_of_order(np.float64(values), order) for order in orders])
    digits = len(values) ** np.arange(batch)
    drawn = np.bincount(slots @ digits, minlength=len(values) ** batch)
    check_counts(drawn[np.array(orders) @ digits].astype(np.float64), probabilities)


@pytest.mark.few(2, by="capacity")
@pytest.mark.parametrize("kind", ["equal", "skewed", "sparse"])
@pytest.mark.parametrize("capacity", [17, 300])
def test_the_first_three_over_several_levels(capacity: int, kind: str) -> None:
    rng = np.random.default_rng(capacity)
    values = {
        "equal": np.full(capacity, 0.3),
        "skewed": rng.lognormal(0, 1.5, capacity),
        "sparse": np.where(rng.random(capacity) < 0.3, rng.random(capacity), 0),
    }[kind].astype(np.float32)
    slots, _ = draw_many(values, 3, effort(2**13, 2**16))
    p = values.astype(np.float64) / values.sum(dtype=np.float64)
    # pairs[i, j] = P(first i, then j), and P(third k) = sum of pairs * p_k / (1 - p_i - p_j) over i, j, k distinct.
    pairs = p[:, None] * p[None] / (1 - p[:, None])
    np.fill_diagonal(pairs, 0)
    rest = pairs / (1 - p[:, None] - p[None])
    third = p * (rest.sum() - rest.sum(0) - rest.sum(1))
    for column, probabilities in zip(slots.T, (p, pairs.sum(0), third), strict=True):
        check_counts(np.bincount(column, minlength=capacity).astype(np.float64), probabilities)
    # How the first two are related: whether the second lies near the first in the tree, and before or after it.
    for size in (1, 16, 256):
        nodes = np.arange(capacity) // size
        together = np.bincount(slots[:, 0] // size * nodes.size + slots[:, 1] // size, minlength=nodes.size**2)
        probabilities = np.zeros((nodes.size, nodes.size))
        np.add.at(probabilities, (nodes[:, None], nodes[None]), pairs)
        check_counts(together.astype(np.float64), probabilities.reshape(-1))


@pytest.mark.parametrize(
    ("capacity", "batch", "times"),
    effort([(300, 40, 2**10)], [(17, 5, 2**16), (300, 40, 2**13)]),
)
def test_sums_weighted_by_chances_are_unbiased(capacity: int, batch: int, times: int) -> None:
    # For each leaf E[1 / chance if drawn, else 0] = 1; so for any sum, too.
    values = np.random.default_rng(batch).lognormal(0, 1, capacity).astype(np.float32)
    slots, probabilities = draw_many(values, batch, times)
    estimates = np.zeros((times, capacity))
    np.put_along_axis(estimates, slots, 1 / probabilities, 1)
    deviation = estimates.std(0) / math.sqrt(times)
    assert (np.abs(estimates.mean(0) - 1) < 5 * deviation).all()
    amounts = np.random.default_rng(1).normal(size=capacity)
    sums = estimates @ amounts
    assert abs(sums.mean() - amounts.sum()) < 4 * sums.std() / math.sqrt(times)
    # It is precise enough to tell, however many are drawn: 2^13 draws find each leaf's share to a twentieth.
    assert estimates.std(0).mean() < 0.05 * math.sqrt(2**13)


def sparse(leaves: dict[int, float]) -> Floats:
    values = np.zeros(300, np.float32)
    values[list(leaves)] = list(leaves.values())
    return values


LEAST_VALUE, LARGEST_VALUE = 2.0**-100, 2.0**95
EXTREME = {3: LEAST_VALUE, 4: LARGEST_VALUE, 100: LEAST_VALUE, 299: LARGEST_VALUE}
EDGE_CASES: dict[str, tuple[Floats, int]] = {
    "all zero": (sparse({}), 4),
    "one leaf": (np.float32([3]), 1),
    "one leaf, more wanted": (np.float32([3]), 20),
    "one positive": (sparse({277: LEAST_VALUE}), 4),
    "fewer": (sparse({0: 1, 16: 2, 255: 3}), 4),
    "as many": (sparse({0: 1, 15: 2, 16: 3, 256: 4}), 4),
    "one left": (sparse({0: 1, 15: 2, 16: 3, 255: 4, 256: 5}), 4),
    "extreme": (sparse(EXTREME), 4),
    "extreme, one left": (sparse(EXTREME | {101: LEAST_VALUE}), 4),
    "extreme, two left": (sparse(EXTREME | {101: LEAST_VALUE, 5: LARGEST_VALUE}), 4),
    "all at the largest": (np.full(300, LARGEST_VALUE, np.float32), 4),
    "all at the least": (np.full(300, LEAST_VALUE, np.float32), 4),
    "decades": ((10 ** np.random.default_rng(0).uniform(-30, 28, 300)).astype(np.float32), 299),
    "more than there are": (np.random.default_rng(0).random(17, np.float32), 40),
}


@pytest.mark.parametrize("case", EDGE_CASES)
def test_live_and_threshold(case: str) -> None:
    values, batch = EDGE_CASES[case]
    positive = int((values > 0).sum())
    tree = tree_of(values)
    last = 2**31 - 1
    same = np.zeros((batch + 1, exponential_race.words(values.size)), np.int32)
    for draws in (random_words(1, *same.shape), random_words(2, *same.shape), same, same + last):
        slots, live, threshold = (np.asarray(x) for x in on_jax(values.size)(tree, draws))
        by_torch = exponential_race.first(torch_ops, torch.from_numpy(tree), values.size, torch.from_numpy(draws))
        for got, expected in zip(by_torch, (slots, live, threshold), strict=True):
            np.testing.assert_array_equal(got.numpy(), expected, strict=True)
        assert slots.shape == live.shape == (batch,)
        assert ((slots >= 0) & (slots < values.size)).all()
        assert live.tolist() == [k < positive for k in range(batch)]
        assert len(set(slots[live])) == live.sum()
        assert (values[slots[live]] > 0).all()
        assert threshold > 0
        assert math.isinf(threshold) == (positive <= batch)
        probabilities = exponential_race.inclusion(torch_ops, torch.from_numpy(values[slots]), by_torch[2]).numpy()
        assert (probabilities[live] > 0).all()
        assert (probabilities <= 1).all()
        if positive <= batch:
            assert (probabilities[live] == 1).all()


def test_extreme_ratios_come_in_their_order() -> None:
    # The large ones first, then the small ones, either of either first: their times are comparable, 2^195 later.
    values = np.float32([LEAST_VALUE, LARGEST_VALUE, LEAST_VALUE, LARGEST_VALUE])
    slots, _ = draw_many(values, 3, 2**12)
    assert (slots[:, :2] % 2 == 1).all()
    for column in slots.T:
        check_counts(np.bincount(column // 2, minlength=2).astype(np.float64), np.array([0.5, 0.5]))


@pytest.mark.parametrize(("capacity", "batch"), effort([(70_000, 100)], [(5, 3), (300, 40), (70_000, 100)]))
def test_both_backends_draw_the_same_bits(capacity: int, batch: int) -> None:
    rng = np.random.default_rng(capacity)
    tree = tree_of(rng.lognormal(0, 2, capacity).astype(np.float32))
    for seed in range(10):
        draws = random_words(seed, batch + 1, exponential_race.words(capacity))
        by_jax = on_jax(capacity)(tree, draws)
        by_torch = exponential_race.first(torch_ops, torch.from_numpy(tree), capacity, torch.from_numpy(draws))
        for a, b in zip(by_jax, by_torch, strict=True):
            np.testing.assert_array_equal(np.asarray(a), b.numpy(), strict=True)


def test_exponential_numbers() -> None:
    near_one = 2**31 - 1 - np.arange(2**16)
    few = np.arange(2**16)
    about = (2 ** np.arange(31)[:, None] + np.arange(-200, 200)).clip(0, 2**31 - 1).reshape(-1)
    draws = np.concatenate([near_one, few, about, random_words(0, 2**18)]).astype(np.int32)
    by_torch = exponential_race.exponentials(torch_ops, torch.from_numpy(draws)).numpy()
    by_jax = np.asarray(jax.jit(functools.partial(exponential_race.exponentials, jax_ops))(draws))
    np.testing.assert_array_equal(by_torch, by_jax, strict=True)
    exact = -np.log2(np.maximum(draws, 1) / 2.0**31)
    np.testing.assert_allclose(by_torch, exact, rtol=1.2e-7, atol=5 * 2.0**-31)
    assert by_torch.min() >= 2.0**-31
    assert by_torch.max() == 31


def test_inclusion() -> None:
    exponents = np.arange(-125, 30, 0.01)
    # Arguments x = value * threshold / UNIT over all sizes, about the seam of both formulas and of the largest.
    x = np.concatenate([2**exponents, np.linspace(0.2, 0.3, 1001), np.linspace(1, 70, 5001)])
    for exponent in (-100, 0, 95):
        values = np.float32(2.0**exponent * (x / 2 ** np.floor(np.log2(x))))
        with np.errstate(over="ignore", under="ignore"):
            thresholds = np.float32(2.0 ** (np.floor(np.log2(x)) - exponent + 18))
        used = np.isfinite(thresholds) & (thresholds >= exponential_race.LEAST) & (values <= LARGEST_VALUE)
        values, thresholds = values[used], thresholds[used]
        by_torch = exponential_race.inclusion(torch_ops, torch.from_numpy(values), torch.from_numpy(thresholds)).numpy()
        by_jax = np.asarray(jax.jit(functools.partial(exponential_race.inclusion, jax_ops))(values, thresholds))
        np.testing.assert_array_equal(by_torch, by_jax, strict=True)
        exact = -np.expm1(-np.log(2) * values.astype(np.float64) * (thresholds.astype(np.float64) / 2**18))
        np.testing.assert_allclose(by_torch, exact, rtol=3e-7)
        assert (by_torch <= 1).all()


@pytest.mark.parametrize("ops", [jax_ops, torch_ops], ids=["jax", "torch"])
def test_inclusion_at_its_ends(ops: Any) -> None:
    values = np.float32([0, LEAST_VALUE, 1, LARGEST_VALUE])
    array: Callable[..., Any] = torch.tensor if ops is torch_ops else jnp.asarray
    inclusion = functools.partial(exponential_race.inclusion, ops)
    inclusion = inclusion if ops is torch_ops else jax.jit(inclusion)
    for threshold, expected in (
        (np.inf, [0, 1, 1, 1]),
        (2.0**127, [0, 1 - 2.0 ** -(2.0**9), 1, 1]),
        (2.0**-126, [0, 2.0**-126, 2.0**-126, np.log(2) * 2.0**-49]),
    ):
        got = np.asarray(inclusion(array(values), array(np.float32(threshold))))
        np.testing.assert_allclose(got, expected, rtol=3e-7)
