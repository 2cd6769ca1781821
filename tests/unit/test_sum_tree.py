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
import jax_backend
import torch_backend
from functional_rb.core.draft import Arrays
from functional_rb.native import kernels
from functional_rb.ops import numpy_ops
from functional_rb.ops.part_kernels import using
from functional_rb.storage import host_kernels
from functional_rb.structures import sum_tree
from functional_rb.structures.sum_tree import FANOUT
from jax_backend.arrays import ops as jax_ops
from tests.support.backends import Backend
from tests.support.effort import effort
from torch_backend.arrays import ops as torch_ops

CAPACITIES = [1, 2, 3, 15, 16, 17, 255, 256, 257, 4097]
# Leaves in one update, one shape for all, so that JAX compiles once for a capacity.
BATCH = 24
Floats = np.ndarray[Any, np.dtype[np.float32]]
Ints = np.ndarray[Any, np.dtype[np.int32]]


def row_sums(children: Floats) -> Floats:
    """The documented order, ((c0 + c8) + (c4 + c12)) + ..., written out without `sum_tree.add_up`."""
    order = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15]
    parts = [children[:, k] for k in order]
    while len(parts) > 1:
        parts = [parts[k] + parts[k + 1] for k in range(0, len(parts), 2)]
    return parts[0]


def row_smallest(children: Floats) -> Floats:
    least = np.where(children > 0, children, np.float32(np.inf)).min(1)
    return np.where(np.isfinite(least), least, np.float32(0))


def bits(x: Any) -> Ints:
    return np.ascontiguousarray(x).view(np.int32)


def expected_tree(leaves: Floats) -> Floats:
    """The whole tree of some leaves, by NumPy."""
    blocks = []

    def rows(values: Floats) -> Floats:
        padded = np.zeros((-(-values.size // FANOUT), FANOUT), np.float32)
        padded.reshape(-1)[: values.size] = values
        blocks.append(padded)
        return padded

    sums = smallest = largest = rows(leaves)
    while len(sums) > 1:
        next_sums, next_smallest, next_largest = row_sums(sums), row_smallest(smallest), largest.max(1)
        sums, smallest, largest = rows(next_sums), rows(next_smallest), rows(next_largest)
    return np.concatenate(blocks)


def check_tree(tree: Any, capacity: int) -> Floats:
    """Every node against its children, padding included; returns the leaves."""
    tree = np.asarray(tree)
    assert tree.shape == (sum_tree.geometry(capacity).rows, FANOUT)
    leaves = tree.reshape(-1)[:capacity]
    np.testing.assert_array_equal(bits(tree), bits(expected_tree(leaves)))
    return leaves


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
    rng = np.random.default_rng(capacity)
    before = expected_tree(rng.lognormal(0, 3, capacity).astype(np.float32))
    for n in sorted({min(n, capacity) for n in (1, 2, 15, 16, 17, 33, capacity - 1 or 1, capacity)}):
        starts = (
            range(0, capacity, effort(1 if capacity < 20 else 5, 1))
            if n in (2, 17)
            else {0, 1, capacity // 2, capacity - n, capacity - 1}
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


STEPS, AT_ONCE = 1000, 1000


def collapsing(step: Any, noise: Any, exp: Callable[[Any], Any]) -> Any:
    """Priorities of the given step: 1e9 times smaller in the last third than in the first."""
    phase = (step * 3) // STEPS
    return (exp(noise) * (1e9 * (phase == 0) + 1e5 * (phase == 1) + (phase == 2))).astype(np.float32)


def check_undrifted(state: Any, truth: Floats) -> None:
    leaves = check_tree(state.tree, truth.size)
    np.testing.assert_array_equal(leaves, truth)
    # A peer adjusts its sums by differences and reads -3630 where the truth is 0.5; computed afresh they are
    # right to a few roundings.
    root = float(row_sums(np.asarray(state.tree)[-3:-2])[0])
    assert root == pytest.approx(math.fsum(truth), rel=3e-7)


def million_updates() -> tuple[Ints, Floats]:
    """Leaves int32 [STEPS, AT_ONCE] and values, with duplicates in every batch."""
    rng = np.random.default_rng(0)
    at = rng.integers(0, 4097, (STEPS, AT_ONCE), dtype=np.int32)
    at[-6:].reshape(-1)[:4097] = rng.permutation(4097)  # all of the leaves have collapsed in the end
    noise = rng.standard_normal((STEPS, AT_ONCE))
    return at, np.stack([collapsing(k, noise[k], np.exp) for k in range(STEPS)])


def last_written(at: Ints, values: Floats) -> Floats:
    truth = np.ones(4097, np.float32)
    for k in range(STEPS):
        truth[at[k]] = values[k]  # NumPy writes in order: the last duplicate wins
    return truth


def full_state(rb: Any, capacity: int, sampler: Any = None) -> Any:
    spec = frb.BufferSpec({"id": frb.Unbounded((), "int32")}, capacity, sampler or frb.Prioritized(alpha=1.0))
    return rb.add(rb.init(spec), {"id": np.arange(capacity, dtype=np.int32)})


def test_a_million_updates_do_not_drift_on_jax() -> None:
    at, values = million_updates()

    def step(state: Any, update: Any) -> tuple[Any, None]:
        return jax_backend.update(state, *update), None

    state, _ = jax.jit(lambda state: jax.lax.scan(step, state, (jnp.asarray(at), jnp.asarray(values))))(
        full_state(jax_backend, 4097)
    )
    check_undrifted(state, last_written(at, values))


def test_a_million_updates_do_not_drift_on_torch() -> None:
    at, values = million_updates()
    state = full_state(torch_backend, 4097)
    for k in range(STEPS):
        state = torch_backend.update(state, torch.from_numpy(at[k]), torch.from_numpy(values[k]))
    check_undrifted(state, last_written(at, values))


def test_single_updates_do_not_drift(backend: Backend) -> None:
    # One leaf at a time, down by 1e9 and up again, on every variant.
    state = full_state(backend.rb, 33)
    for k in range(99):
        priority = np.float32([1e9, 1.0, 1e-9][k // 33])
        state = backend.update(state, backend.array(np.int32([k % 33])), backend.array(priority[None]))
    leaves = check_tree(backend.numpy(state.tree), 33)
    assert (leaves == np.float32(1e-9)).all()
    assert float(sum_tree.total(state.tree)) == pytest.approx(33e-9, rel=2e-7)


# One for several tests, as each is compiled on JAX.
ROOTS = frb.Prioritized(alpha=0.6, beta=0.4)


def test_equal_priorities(backend: Backend) -> None:
    state = full_state(backend.rb, 300, ROOTS)
    handles = backend.array(np.arange(300, dtype=np.int32))
    state = backend.update(state, handles, backend.array(np.full(300, 0.37, np.float32)))
    leaves = check_tree(backend.numpy(state.tree), 300)
    assert np.unique(leaves).size == 1
    state, sample = backend.sample(state, backend.rb.key(1), 64)
    assert (backend.numpy(sample.weights) == 1).all()
    np.testing.assert_allclose(backend.numpy(sample.probabilities), 1 / 300, rtol=3e-7)


@pytest.mark.few_on_jax(2)
@pytest.mark.parametrize("alive", [0, 16, 17, 299])
def test_one_live_item(backend: Backend, alive: int) -> None:
    state = full_state(backend.rb, 300, ROOTS)
    priorities = np.zeros(300, np.float32)
    priorities[alive] = 1e-3
    handles = backend.array(np.arange(300, dtype=np.int32))
    state = backend.update(state, handles, backend.array(priorities))
    state, sample = backend.sample(state, backend.rb.key(alive), 64)
    assert (backend.numpy(sample.indices) == alive).all()
    assert (backend.numpy(sample.items["id"]) == alive).all()
    assert (backend.numpy(sample.weights) == 1).all()
    np.testing.assert_allclose(backend.numpy(sample.probabilities), 1, rtol=1e-6)
    check_tree(backend.numpy(state.tree), 300)
    assert bool(backend.rb.can_sample(state, 300))


def test_thirty_decades(backend: Backend) -> None:
    rng = np.random.default_rng(5)
    priorities = (10 ** rng.uniform(-15, 15, 4097)).astype(np.float32)
    state = full_state(backend.rb, 4097)
    handles = backend.array(np.arange(4097, dtype=np.int32))
    state = backend.update(state, handles, backend.array(priorities))
    np.testing.assert_array_equal(check_tree(backend.numpy(state.tree), 4097), priorities)
    assert float(sum_tree.total(state.tree)) == pytest.approx(math.fsum(priorities), rel=3e-7)
    state, sample = backend.sample(state, backend.rb.key(0), 256, 0.5)
    drawn = backend.numpy(sample.indices)
    weights = (priorities[drawn].astype(np.float64) / float(priorities.min())) ** -0.5
    np.testing.assert_allclose(backend.numpy(sample.weights), weights, rtol=1.2e-7)
    exact = priorities[drawn].astype(np.float64) / math.fsum(priorities)
    np.testing.assert_allclose(backend.numpy(sample.probabilities), exact, rtol=5e-7)


@pytest.mark.parametrize("rb", [jax_backend, torch_backend], ids=["jax", "torch"])
def test_a_million_and_three(rb: Any) -> None:
    capacity = 1_000_003
    rng = np.random.default_rng(7)
    state = full_state(rb, capacity)
    at = rng.integers(0, capacity, 4096, dtype=np.int32)
    values = rng.lognormal(0, 5, 4096).astype(np.float32)
    state = rb.update(state, at, values)
    truth = np.ones(capacity, np.float32)
    truth[at] = values
    np.testing.assert_array_equal(check_tree(state.tree, capacity), truth)
    # Over the seam of the ring, a range of it.
    state = rb.add(state, {"id": np.arange(5000, dtype=np.int32)})
    state = rb.add(
        state,
        {"id": np.arange(1000, dtype=np.int32)},
        priorities=rng.lognormal(0, 5, 1000).astype(np.float32),
    )
    check_tree(state.tree, capacity)


def test_one_early_outlier_does_not_rule(backend: Backend) -> None:
    spec = frb.BufferSpec({"id": frb.Unbounded((), "int32")}, 4, frb.Prioritized(alpha=1.0))
    for new_priority, expected in (("live", 0.5), ("ever", 1e9)):
        sampler = frb.Prioritized(alpha=1.0, new_priority=new_priority)
        state = backend.init(frb.BufferSpec(spec.item, 4, sampler))
        ids = backend.tree({"id": np.zeros(1, np.int32)})
        state = backend.add(state, ids, None, backend.array(np.float32([1e9])))
        state = backend.update(state, backend.array(np.int32([0])), backend.array(np.float32([0.5])))
        state = backend.add(state, ids)
        assert backend.numpy(state.tree)[0, 1] == expected
