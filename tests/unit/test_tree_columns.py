"""The tree child by child, as TPUs have it: bit for bit `sum_tree`, and many fewer pieces of work."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functional_rb as frb
import jax_backend as rb
from functional_rb.ops import numpy_ops
from functional_rb.structures import sum_tree, tree_columns
from tests.support import backends

OPS = numpy_ops.OPS
# The first half of the children of several nodes.
HALF = r"limit_indices=\(\d+, 8\)\s+start_indices=\(0, 0\)"


@pytest.mark.parametrize("capacity", [1, 15, 16, 17, 257, 4097])
def test_the_bits_are_those_of_the_sum_tree(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    trees = [np.zeros((sum_tree.geometry(capacity).rows, sum_tree.FANOUT), np.float32) for _ in range(2)]
    for turn in range(12):
        consecutive = turn % 2 == 0
        count = min(capacity, 40)
        leaves = (
            np.arange(count) + rng.integers(capacity) if consecutive else rng.choice(capacity, count, replace=False)
        )
        leaves = (leaves % capacity).astype(np.int32)
        values = (rng.random(count) * (rng.random(count) < 0.7) * 10.0 ** rng.integers(-9, 9, count)).astype(np.float32)
        values[0] = 1  # so that there is something to draw
        trees[0] = sum_tree.set_leaves.core(OPS, trees[0], capacity, leaves, values, consecutive)
        trees[1] = tree_columns.set_leaves(OPS, trees[1], capacity, leaves, values, consecutive)
        assert trees[0].tobytes() == trees[1].tobytes()
        draws = rng.integers(0, 2**31, (50, len(sum_tree.geometry(capacity).levels))).astype(np.int32)
        drawn = sum_tree.descend.core(OPS, trees[0], capacity, draws)
        np.testing.assert_array_equal(tree_columns.descend(OPS, trees[1], capacity, draws), drawn)


def step(state: rb.State, key: jax.Array) -> tuple[rb.State, jax.Array]:
    state, sample = rb.sample(rb.add(state, jnp.ones(4)), key, 8)
    return rb.update(state, sample.indices, sample.items), sample.indices


def test_what_is_traced_for_a_tpu_draws_the_same_and_halves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each halving would be a piece of work of its own there."""
    found, halvings = list[object](), list[int]()
    for where, batch_size in (("cpu", 11), ("tpu", 13)):  # specs of their own, as what is traced is kept
        with backends.make("jax-core"), monkeypatch.context() as patch:
            patch.setattr(jax, "default_backend", lambda where=where: where)
            spec = frb.BufferSpec(frb.Unbounded(()), 1031, frb.Prioritized(), batch_size=batch_size)
            given = rb.add(rb.init(spec), jnp.arange(900.0)), rb.key(1)
            halvings.append(len(re.findall(HALF, str(jax.make_jaxpr(step)(*given)))))
            found.append(jax.jit(step)(*given))
    for one, other in zip(jax.tree.leaves(found[0]), jax.tree.leaves(found[1]), strict=True):
        np.testing.assert_array_equal(one, other)
    assert halvings[0] > 10
    assert halvings[1] == 0
