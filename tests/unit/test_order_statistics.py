"""Ranks of marked slots against NumPy's list of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
import torch

from functional_rb.structures import order_statistics, sum_tree
from jax_backend.arrays import ops as jax_ops
from tests.support.effort import effort
from torch_backend.arrays import ops as torch_ops

CAPACITIES = [1, 2, 16, 17, 257, 300]
# Queries at once, one shape for all, so that JAX compiles once for a capacity.
BATCH = 32
Ints = np.ndarray[Any, np.dtype[np.int32]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


def tree_of(marks: Bools) -> torch.Tensor:
    tree = torch.zeros(sum_tree.geometry(marks.size).rows, sum_tree.FANOUT)
    leaves = torch.arange(marks.size, dtype=torch.int32)
    return sum_tree.set_leaves(torch_ops, tree, marks.size, leaves, torch.from_numpy(marks).float(), consecutive=True)


@functools.cache
def on_jax(function: Callable[..., Any], capacity: int) -> Callable[..., Any]:
    return jax.jit(functools.partial(function, jax_ops, capacity=capacity))


def both_ways(function: Callable[..., Any], tree: torch.Tensor, capacity: int, queries: Ints) -> list[Ints]:
    """What torch and jitted JAX answer."""
    by_torch = function(torch_ops, tree, capacity, torch.from_numpy(queries))
    by_jax = on_jax(function, capacity)(
        tree.numpy(), **{"ranks" if function is order_statistics.select else "slots": queries}
    )
    assert by_torch.dtype == torch.int32
    assert by_jax.dtype == np.int32
    return [by_torch.numpy(), np.asarray(by_jax)]


@st.composite
def marked(draw: st.DrawFn) -> Bools:
    capacity = draw(st.sampled_from(CAPACITIES))
    density = draw(st.sampled_from([0.0, 0.02, 0.5, 1.0]))
    marks = np.random.default_rng(draw(st.integers(0, 2**32))).random(capacity) < density
    marks[draw(st.lists(st.integers(0, capacity - 1), max_size=3))] = True
    return marks


@hypothesis.settings(max_examples=effort(50, 100))
@hypothesis.given(marks=marked(), seed=st.integers(0, 2**32))
def test_ranks_and_slots(marks: Bools, seed: int) -> None:
    tree, capacity = tree_of(marks), marks.size
    expected = np.flatnonzero(marks)
    rng = np.random.default_rng(seed)
    if expected.size:
        queries = rng.integers(0, expected.size, BATCH, dtype=np.int32)
        queries[:2] = 0, expected.size - 1
        for got in both_ways(order_statistics.select, tree, capacity, queries):
            np.testing.assert_array_equal(got, expected[queries])
    slots = rng.integers(0, capacity, BATCH, dtype=np.int32)
    slots[:2] = 0, capacity - 1
    for got in both_ways(order_statistics.before, tree, capacity, slots):
        np.testing.assert_array_equal(got, [marks[:slot].sum() for slot in slots])


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_ranks_out_of_range_stay_in_bounds(capacity: int) -> None:
    for density in (0, 0.3, 1):
        marks = np.random.default_rng(capacity).random(capacity) < density
        queries = np.resize(np.int32([-(2**31), -1, marks.sum(), capacity, capacity + 1, 2**31 - 1]), BATCH)
        for got in both_ways(order_statistics.select, tree_of(marks), capacity, queries):
            assert ((got >= 0) & (got < capacity)).all()


def test_one_slot_as_a_scalar() -> None:
    marks = np.arange(300) % 3 == 0
    for slot in (0, 15, 16, 299):
        for got in both_ways(order_statistics.before, tree_of(marks), 300, np.array(slot, np.int32)):
            assert got.shape == ()
            assert got == marks[:slot].sum()


def test_counts_are_exact_up_to_the_limit() -> None:
    # All are marked: the sums reach 2^24, and every rank is its own slot.
    capacity = order_statistics.MAX_CAPACITY
    tree = tree_of(np.ones(capacity, np.bool_))
    ends = torch.arange(8, dtype=torch.int32) * 2
    queries = torch.cat([ends, capacity - 1 - ends, capacity // 2 + ends])
    assert order_statistics.select(torch_ops, tree, capacity, queries).tolist() == queries.tolist()
    assert order_statistics.before(torch_ops, tree, capacity, queries).tolist() == queries.tolist()
