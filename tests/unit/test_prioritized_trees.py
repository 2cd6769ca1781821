"""The tree of a prioritized buffer after many updates, at its extremes, on every variant: nodes by their children."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend
import torch_backend
from tests.support.backends import Backend
from tests.unit.numpy_trees import Floats, Ints, check_tree, total

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
    assert total(state.tree) == pytest.approx(math.fsum(truth), rel=3e-7)


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
    assert total(state.tree) == pytest.approx(33e-9, rel=2e-7)


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
    assert total(state.tree) == pytest.approx(math.fsum(priorities), rel=3e-7)
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
