"""The distribution that is drawn, by counting the draws that lead to each item instead of drawing.

A draw is 31 bits at each level of the tree and integer arithmetic picks the child, so the draws that pick it
are an interval whose ends are known: their number over 2^31 is the probability, exactly. The ends themselves
are then given to each implementation, with their neighbours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import functional_rb as frb
from functional_rb.core.draft import Arrays, Draft
from functional_rb.native import launches
from functional_rb.ops import fixed_point, numpy_ops
from functional_rb.ops.part_kernels import using
from functional_rb.samplers import DRAW_LIMIT
from functional_rb.storage import host_kernels
from functional_rb.structures import ring, sum_tree
from functional_rb.structures.sum_tree import FANOUT, RESOLUTION
from jax_backend.arrays import ops as jax_ops
from tests.support.laws import Floats, Ints, Longs, edge_draws, intervals, probabilities, tree_of
from torch_backend.arrays import ops as torch_ops

LAST = DRAW_LIMIT - 1


@functools.cache
def jax_descent(capacity: int) -> Callable[..., Any]:
    return jax.jit(lambda tree, draws: sum_tree.descend(jax_ops, tree, capacity, draws))


def descend_by_jax(tree: Floats, capacity: int, draws: Ints) -> Ints:
    return np.asarray(jax_descent(capacity)(tree, draws))


def descend_by_torch(tree: Floats, capacity: int, draws: Ints) -> Ints:
    return sum_tree.descend(torch_ops, torch.from_numpy(tree), capacity, torch.from_numpy(draws)).numpy()


def descend_by_kernel(tree: Floats, capacity: int, draws: Ints) -> Ints:
    with using(host_kernels.TABLE):
        return sum_tree.descend(numpy_ops, tree, capacity, draws)


WAYS = [descend_by_jax, descend_by_torch, descend_by_kernel]


def check_distribution(priorities: Floats, ways: list[Callable[..., Ints]], every: int = 1) -> None:
    """All of the counting, and the ends of the intervals of every so many items by each of the ways."""
    capacity = priorities.size
    tree = tree_of(priorities)
    found = intervals(tree, capacity)
    leaves = np.arange(capacity, dtype=np.int32)
    drawn = probabilities(found, leaves)
    exact = priorities.astype(np.float64) / priorities.sum(dtype=np.float64)
    assert drawn.sum() == pytest.approx(1, abs=1e-12)
    assert np.abs(drawn - exact).sum() / 2 <= 1e-6
    assert (drawn[priorities == 0] == 0).all()
    assert (drawn[priorities > 0] > 0).all()
    edges = np.flatnonzero(priorities)[[0, -1]].tolist()
    positive = np.flatnonzero(priorities).astype(np.int32)
    positive = positive[(np.arange(positive.size) // 2) % every == 0]  # pairs, as neighbours are compared
    low, high = edge_draws(found, positive, last=False), edge_draws(found, positive, last=True)
    depths = len(found)
    # One draw beyond an end at the lowest level, and the neighbour must be picked, if it has the same parent.
    before, after = low.copy(), high.copy()
    before[:, -1] -= 1
    after[:, -1] += 1
    same_parent = positive[1:] // FANOUT == positive[:-1] // FANOUT
    extremes = np.array([[0] * depths, [LAST] * depths], np.int32)
    for way in ways:
        np.testing.assert_array_equal(way(tree, capacity, low), positive)
        np.testing.assert_array_equal(way(tree, capacity, high), positive)
        if same_parent.any():
            np.testing.assert_array_equal(way(tree, capacity, before[1:][same_parent]), positive[:-1][same_parent])
            np.testing.assert_array_equal(way(tree, capacity, after[:-1][same_parent]), positive[1:][same_parent])
        assert way(tree, capacity, extremes).tolist() == edges


def test_every_draw_of_a_small_tree() -> None:
    # The intervals against Fractions, and every level's ends with their neighbours, one node at a time.
    rng = np.random.default_rng(0)
    for priorities in (
        np.float32([1, 2, 3, 4]),
        np.float32([0, 0, 1e-30, 0, 1e30, 0]),
        np.float32(rng.lognormal(0, 4, 16)),
        np.float32([2.0**95] * 15 + [2.0**-100]),
        np.float32([1, *[1e-12] * 15]),
    ):
        tree = tree_of(priorities)
        ((first, end),) = intervals(tree, priorities.size)
        total = sum(Fraction(float(p)) for p in priorities)
        counts = end - first
        assert counts.sum() == DRAW_LIMIT
        # Each child is off by a unit of 2^-29 and a draw of 2^-31 at most, and so is the total by 16 of them.
        distance = sum(
            abs(Fraction(int(n), DRAW_LIMIT) - Fraction(float(p)) / total)
            for n, p in zip(counts, priorities, strict=True)
        )
        assert distance / 2 < Fraction(16, 2**RESOLUTION)
        draws = np.unique(np.clip(np.concatenate([first + k for k in (-1, 0, 1)]), 0, LAST))
        expected = np.searchsorted(end, draws, "right")
        for way in WAYS:
            got = way(tree, priorities.size, draws.astype(np.int32)[:, None])
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("capacity", [1, 2, 3, 15, 16, 17, 255, 256, 257, 4097])
@pytest.mark.parametrize("kind", ["equal", "skewed", "decades", "sparse", "collapsed"])
def test_distribution(capacity: int, kind: str) -> None:
    rng = np.random.default_rng(capacity)
    priorities = {
        "equal": np.full(capacity, 0.3),
        "skewed": rng.lognormal(0, 2, capacity),
        "decades": 10 ** rng.uniform(-15, 15, capacity),
        "sparse": np.where(rng.random(capacity) < 0.1, rng.random(capacity), 0),
        "collapsed": np.full(capacity, 1e-9),
    }[kind].astype(np.float32)
    if kind == "sparse":
        priorities[capacity // 2] = 1
    if kind == "collapsed":
        priorities[-1] = 1
    # XLA takes a second to compile each capacity: some are enough, as the code is the same.
    check_distribution(priorities, WAYS if capacity in (3, 17, 257) else WAYS[1:])


def test_a_million_lognormal_priorities() -> None:
    # With a float32 uniform a third of these could never be drawn.
    priorities = np.random.default_rng(0).lognormal(0, 2, 2**20).astype(np.float32)
    check_distribution(priorities, [descend_by_kernel])
    check_distribution(priorities, [descend_by_jax, descend_by_torch], every=16)


def test_a_partly_filled_tree() -> None:
    priorities = np.zeros(1_000_003, np.float32)
    priorities[:54_321] = np.random.default_rng(1).lognormal(0, 2, 54_321)
    check_distribution(priorities, [descend_by_torch, descend_by_kernel])


def test_probabilities_told_are_those_drawn() -> None:
    # Both are right to 1e-6 of the total; the smallest are drawn in units of 2^-29 of their parent.
    rng = np.random.default_rng(2)
    priorities = rng.lognormal(0, 2, 4097).astype(np.float32)
    tree = tree_of(priorities)
    positive = np.arange(4097, dtype=np.int32)
    draws = edge_draws(intervals(tree, 4097), positive, last=False)
    spec = frb.BufferSpec({}, 4097, frb.Prioritized())
    counters = torch.tensor([4097, 4097, 0, 0, 0, 0], dtype=torch.int32)
    draft = draft_of(spec, torch.from_numpy(tree), counters)
    _, drawn = spec.sampler.draw(torch_ops, draft, torch.from_numpy(draws), torch.tensor(0.4), len(draws))
    exact = probabilities(intervals(tree, 4097), positive)
    np.testing.assert_allclose(drawn.probabilities.numpy(), exact, rtol=2e-5, atol=1e-10)


def draft_of(spec: frb.BufferSpec, tree: Any, counters: Any) -> Draft:
    """What a sampler draws from, of a buffer whose items are empty."""
    return Draft.of(Arrays(None, (), tree, counters, {}), spec.plan)


@functools.partial(jax.jit, static_argnums=2)
def jax_uniform(draws: jax.Array, counters: jax.Array, capacity: int) -> Any:
    spec = frb.BufferSpec({}, capacity)
    return spec.sampler.draw(jax_ops, draft_of(spec, None, counters), draws, jnp.float32(0), len(draws))


def uniform_by(library: str, draws: Ints, counters: Ints, capacity: int) -> tuple[Ints, Ints]:
    if library == "kernel":
        # Each item is its own slot, so that the slots are what is read.
        spec = frb.BufferSpec({"slot": frb.Unbounded((), "int32")}, capacity)
        arrays = Arrays(np.arange(capacity, dtype=np.int32)[:, None], (), None, counters, {})
        kernel = launches.draw(arrays, spec, draws, None, np.zeros(1, np.float32), len(draws))
        _, (slots,), (handles, weights, probabilities, *_) = host_kernels.call(kernel)
        assert (handles >= 0).all()
    elif library == "jax":
        slots, (handles, weights, probabilities, *_) = jax.device_get(jax_uniform(draws, counters, capacity))
    else:
        spec = frb.BufferSpec({}, capacity)
        draft = draft_of(spec, None, torch.from_numpy(counters))
        found, drawn = spec.sampler.draw(torch_ops, draft, torch.from_numpy(draws), torch.tensor(0.0), len(draws))
        slots, handles, weights, probabilities = (x.numpy() for x in (found, *drawn[:3]))
    assert (weights == 1).all()
    np.testing.assert_allclose(probabilities, 1 / int(counters[1]), rtol=1.2e-7)
    return slots, handles


def words(numbers: list[int]) -> Ints:
    """62-bit numbers as two words of 31 bits."""
    return np.array([[n >> 31, n & LAST] for n in numbers], np.int32)


def boundary_words(size: int) -> tuple[Ints, Longs]:
    """The first draw of every position, ceil(k * 2^62 / size) as two words, and how many draws each has."""
    quotient, rest = divmod(2**62, size)
    k = np.arange(size + 1, dtype=np.int64)
    extra = -(-k * rest // size)
    # In two words: quotient = a * 2^31 + b, and k * a, k * b and the carries all fit into int64.
    a, b = quotient >> 31, quotient & LAST
    low = k * b + extra
    high = k * a + (low >> 31)
    counts = quotient + np.diff(extra)
    return np.stack([high, low & LAST], 1)[:size].astype(np.int32), counts


@pytest.mark.few_on_jax(4)
@pytest.mark.parametrize("library", ["jax", "torch", "kernel"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000, 65_537, 1_000_003])
def test_uniform(library: str, size: int) -> None:
    first, counts = boundary_words(size)
    assert first[:3].tolist() == words([-(-k * 2**62 // size) for k in range(min(size, 3))]).tolist()
    assert counts.sum(dtype=object) == 2**62
    assert np.abs(counts / 2.0**62 - 1 / size).sum() / 2 <= 1e-6
    counters = np.array([size, size, 0, 0, 0, 0], np.int32)
    positions = np.arange(size)
    np.testing.assert_array_equal(uniform_by(library, first, counters, size)[0], positions)
    # The draw just before belongs to the position before.
    before = first[1:].copy()
    before[:, 1] -= 1
    borrow = before[:, 1] < 0
    before[borrow, 0] -= 1
    before[borrow, 1] = LAST
    if size > 1:
        np.testing.assert_array_equal(uniform_by(library, before, counters, size)[0], positions[:-1])
    assert uniform_by(library, words([0, 2**62 - 1]), counters, size)[0].tolist() == [0, size - 1]


@pytest.mark.parametrize("library", ["jax", "torch", "kernel"])
@pytest.mark.parametrize(("capacity", "cursor", "size"), [(10, 4, 4), (10, 13, 10), (10, 0, 7), (7, 3, 7), (3, 1, 2)])
def test_uniform_over_a_ring(library: str, capacity: int, cursor: int, size: int) -> None:
    # Partly filled, wrapped, and where the numbers of the items start again from 0.
    counters = np.array([cursor, size, 0, 0, 0, 0], np.int32)
    first, _ = boundary_words(size)
    slots, handles = uniform_by(library, first, counters, capacity)
    modulus = ring.modulus(capacity)
    expected = [(cursor - size + k) % modulus for k in range(size)]
    assert handles.tolist() == expected
    assert slots.tolist() == [handle % capacity for handle in expected]
    slots, handles = uniform_by(library, words([0, 2**62 - 1]), counters, capacity)
    assert handles.tolist() == [expected[0], expected[-1]]


@pytest.mark.parametrize("ops", [jax_ops, torch_ops], ids=["jax", "torch"])
def test_children_as_integers(ops: Any) -> None:
    # The proportions that the intervals above rest on, computed in the float arithmetic of each backend.
    rng = np.random.default_rng(3)
    children = np.concatenate(
        [
            rng.lognormal(0, 3, (64, FANOUT)),
            10 ** rng.uniform(-30, 27, (64, FANOUT)),
            np.where(rng.random((64, FANOUT)) < 0.7, 0, rng.random((64, FANOUT))),
            np.full((1, FANOUT), fixed_point.LARGEST),
            np.full((1, FANOUT), fixed_point.SMALLEST),
            np.zeros((1, FANOUT)),
        ]
    ).astype(np.float32)
    array = torch.from_numpy(children) if ops is torch_ops else jnp.asarray(children)
    got = np.asarray(sum_tree.as_integers(ops, array))
    total = sum_tree.add_up(children).astype(np.float64)
    _, exponent = np.frexp(total)
    scaled = np.floor(np.ldexp(children.astype(np.float64), RESOLUTION + 1 - exponent[:, None]))
    np.testing.assert_array_equal(got, np.where(children > 0, np.maximum(scaled, 1), 0))
    assert got.sum(1, dtype=np.int64).max() < DRAW_LIMIT
