"""Trees whose batch is divided between devices: run by `tests.programs.test_meshes` in a process that has eight."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import functional_rb as frb
import jax_backend as rb
from jax_backend import compat
from tests.support.effort import effort

BATCH, SLOTS = 16, 3
ACTION = {"push": frb.Unbounded(())}
SPEC = frb.trees.TreeSpec({"x": frb.Unbounded((2,))}, 6, SLOTS, action=ACTION, statistics="squares")


def told(x: jax.Array, reward: Any) -> frb.trees.Expansion:
    pushes = {"push": x[:, :1] + jnp.arange(3.0)}
    return frb.trees.Expansion({"x": x}, x[:, :1] * jnp.arange(3.0), x[:, 1], reward, 0.5, actions=pushes)


def step(node: Any, action: Any, key: jax.Array) -> frb.trees.Expansion:
    x = jnp.sin(node["x"] + action["push"][:, None])
    return told(x, x[:, 0])


def searched(x: jax.Array, key: jax.Array, policy: Any) -> Any:
    tree, proposal = rb.trees.search(rb.init(SPEC, items=told(x, 0.0)), key, step, 5, policy)
    tree = rb.trees.subtree(tree, proposal.slot)
    return rb.trees.reset(tree, tree.size == 0, told(x, 0.0)), proposal


CASES = [
    (AxisType.Explicit, frb.trees.GumbelMuZero()),
    *effort([], [(AxisType.Auto, frb.trees.MuZero(frb.trees.UCB1(tuned=True)))]),
]


@pytest.mark.skipif(not compat.IS_EXPLICIT, reason="meshes with explicit axes are there from JAX 0.7.2 on")
@pytest.mark.parametrize(("kind", "policy"), CASES)
def test_a_batch_stays_divided_and_each_device_may_begin_trees_of_its_own(kind: AxisType, policy: Any) -> None:
    """Under plain `jit` nothing is gathered, and `shard_map` with all that JAX checks takes `init` and `search`."""
    mesh, program = jax.make_mesh((8,), ("d",), axis_types=(kind,)), functools.partial(searched, policy=policy)
    by_tree = NamedSharding(mesh, P("d"))
    x = jnp.linspace(-1, 1, 2 * BATCH).reshape(BATCH, 2)
    whole = jax.jit(program)
    alone = whole(x, rb.key(3))
    x = jax.device_put(x, by_tree)
    compiled = jax.jit(program).lower(x, rb.key(3)).compile()
    moved = re.findall(r" (all-gather|all-to-all|collective-permute|all-reduce)\(", compiled.as_text())
    assert set(moved) == {"all-reduce"}, moved  # whether any tree goes on
    found = compiled(x, rb.key(3))
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        assert b.sharding.is_equivalent_to(by_tree, b.ndim), b.sharding
    keys = jax.device_put(rb.split(rb.key(3), 8), by_tree)
    each = jax.shard_map(lambda x, keys: program(x, keys[0]), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    tree, proposal = jax.jit(each)(x, keys)
    # What chance gives to the first rows of a batch is the same in a larger one, of which there is a program.
    own, proposed = whole(np.roll(x, -2, 0), rb.split(rb.key(3), 8)[1])
    np.testing.assert_array_equal(np.asarray(tree.visits)[2:4], own.visits[:2])
    np.testing.assert_allclose(np.asarray(proposal.weights)[2:4], proposed.weights[:2], rtol=1e-4, atol=1e-5)
