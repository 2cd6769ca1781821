"""The sum tree: after any history every node is its children's sum, smallest and largest, bit for bit."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import functional_rb as frb
from functional_rb.core.draft import Arrays
from functional_rb.native import kernels
from functional_rb.ops import numpy_ops
from functional_rb.ops.part_kernels import using
from functional_rb.storage import host_kernels
from functional_rb.structures import sum_tree
from functional_rb.structures.sum_tree import FANOUT
from jax_backend.arrays import ops as jax_ops
from tests.support.effort import effort
from tests.unit.numpy_trees import Floats, Ints, bits, check_tree, expected_tree
from torch_backend.arrays import ops as torch_ops

CAPACITIES = [1, 2, 3, 15, 16, 17, 255, 256, 257, 4097]
# Leaves in one update, one shape for all, so that JAX compiles once for a capacity.
BATCH = 24


@functools.cache
def jax_setter(capacity: int, consecutive: bool) -> Callable[..., Any]:
    return jax.jit(lambda tree, at, x: sum_tree.set_leaves(jax_ops, tree, capacity, at, x, consecutive))


def set_by_jax(tree: Floats, capacity: int, at: Ints, values: Floats, consecutive: bool = False) -> Floats:
    return np.asarray(jax_setter(capacity, consecutive)(tree, at, values))


def set_by_torch(tree: Floats, capacity: int, at: Ints, values: Floats, consecutive: bool = False) -> Floats:
    own = torch.from_numpy(tree.copy())
    tensors = torch.from_numpy(at.copy()), torch.from_numpy(values.copy())
    return sum_tree.set_leaves(torch_ops, own, capacity, *tensors, consecutive).numpy()


def set_by_kernel(tree: Floats, capacity: int, at: Ints, values: Floats) -> Floats:
    with using(host_kernels.TABLE):
        return sum_tree.set_leaves(numpy_ops, tree.copy(), capacity, at, values)


def added_by_kernel(tree: Floats, capacity: int, start: int, priorities: Floats) -> Floats:
    """A tree once items with these priorities have been added, the first of them in the slot `start`."""
    rows, counters = np.empty((capacity, 0), np.int32), np.array([start, capacity, 0, 0, 0, 0], np.int32)
    arrays = Arrays(rows, (), tree.copy(), counters, {})
    spec = frb.BufferSpec({}, capacity, frb.Prioritized(alpha=1.0))
    kernel = kernels.add(arrays, spec, [], priorities.size, None, priorities)
    assert kernel is not None
    made: Floats = host_kernels.call(kernel).tree
    return made


# Zero, and magnitudes over all that the tree stores.
leaf_values = st.just(0.0) | st.floats(-100, 95).map(lambda e: float(np.float32(2.0**e))) | st.just(1.0)


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[tuple[Ints, Floats]]]:
    """A capacity and updates whose equal leaves come with equal values."""
    capacity = draw(st.sampled_from(CAPACITIES))
    updates = []
    for _ in range(draw(st.integers(1, 4))):
        chosen = draw(st.dictionaries(st.integers(0, capacity - 1), leaf_values, min_size=1, max_size=BATCH))
        names = np.resize(np.array(list(chosen), np.int32), BATCH)
        values = np.resize(np.array(list(chosen.values()), np.float32), BATCH)
        order = draw(st.permutations(range(BATCH)))
        updates.append((names[order], values[order]))
    return capacity, updates


@hypothesis.settings(max_examples=effort(30, 200))
@hypothesis.given(history=histories())
def test_nodes_follow_from_their_children(history: tuple[int, list[tuple[Ints, Floats]]]) -> None:
    capacity, updates = history
    truth = np.zeros(capacity, np.float32)
    trees = [np.zeros((sum_tree.geometry(capacity).rows, FANOUT), np.float32)] * 3
    for at, values in updates:
        truth[at] = values
        ways = (set_by_jax, set_by_torch, set_by_kernel)
        trees = [way(tree, capacity, at, values) for way, tree in zip(ways, trees, strict=True)]
        for tree in trees:
            np.testing.assert_array_equal(check_tree(tree, capacity), truth)
        positive = truth[truth > 0]
        for ops, tree in ((jax_ops, jnp.asarray(trees[0])), (torch_ops, torch.from_numpy(trees[1]))):
            assert float(sum_tree.total(tree)) == pytest.approx(math.fsum(truth), rel=1e-6)
            assert float(sum_tree.largest(ops, tree)) == truth.max()
            assert float(sum_tree.smallest(ops, tree)) == (positive.min() if positive.size else 0)


@pytest.mark.parametrize("capacity", [*CAPACITIES[:-1], 270, 300])
def test_refreshing_a_range_is_refreshing_all_of_it(capacity: int) -> None:
    # Every start around the ring, for lengths about whole groups, the whole ring included.
    # From the last but one on, most groups are touched: one before the seam where the last has one leaf, and two there.
    rng = np.random.default_rng(capacity)
    before = expected_tree(rng.lognormal(0, 3, capacity).astype(np.float32))
    for n in sorted({min(n, capacity) for n in (1, 2, 15, 16, 17, 33, capacity - 1 or 1, capacity)}):
        starts = (
            range(0, capacity, effort(1 if capacity < 20 else 5, 1))
            if n in (2, 17)
            else {0, 1, capacity // 2, capacity - n, (capacity - 2) % capacity, capacity - 1}
        )
        for start in starts:
            at = ((start + np.arange(n)) % capacity).astype(np.int32)
            values = rng.lognormal(0, 3, n).astype(np.float32)
            after = set_by_torch(before, capacity, at, values)
            ranged = set_by_torch(before, capacity, at, values, consecutive=True)
            np.testing.assert_array_equal(bits(ranged), bits(after))
            np.testing.assert_array_equal(bits(added_by_kernel(before, capacity, start, values)), bits(after))
        check_tree(after, capacity)
    # On JAX each capacity is compiled: a tree of two levels and one of three.
    for n in {min(17, capacity), capacity} if capacity in effort((17, 300), (*CAPACITIES, 270, 300)) else ():
        for start in {0, capacity - 1, capacity // 2}:
            at = ((start + np.arange(n)) % capacity).astype(np.int32)
            values = rng.lognormal(0, 3, n).astype(np.float32)
            ranged = set_by_jax(before, capacity, at, values, consecutive=True)
            np.testing.assert_array_equal(bits(ranged), bits(set_by_torch(before, capacity, at, values)))
