"""The compiled search on JAX: nothing of the trees' size is copied in its loop."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest

import functional_rb as frb
import jax_backend as rb
from tests.support.compiled_programs import big_copies
from tests.support.effort import effort
from tests.support.xla_options import AS_USERS

BATCH, SLOTS, CAPACITY = 4, 3, 2000
SPEC = frb.trees.TreeSpec(
    {"x": frb.Unbounded((2,))}, CAPACITY, SLOTS, statistics=("squares", "log_weights"), chance=True
)


SOME = [frb.trees.MuZero(frb.trees.UCB1(tuned=True)), frb.trees.GumbelMuZero()]


def step(node: dict[str, jax.Array], action: jax.Array, key: jax.Array) -> frb.trees.Expansion:
    x = jnp.sin(node["x"] + action[:, None])
    return frb.trees.Expansion({"x": x}, x[:, :1] * jnp.arange(SLOTS), x[:, 1], x[:, 0], 0.9)


def bodies(text: str) -> str:
    """All of a compiled program but its entry, what comes before and behind the loop of simulations."""
    entry = re.search(r"^ENTRY .*?^}", text, re.MULTILINE | re.DOTALL)
    assert entry is not None
    return text.replace(entry[0], "")


@pytest.mark.parametrize(
    "policy", [*SOME, *effort([], [frb.trees.MuZero(), frb.trees.UCB1(), frb.trees.EXP3()])], ids=repr
)
def test_nothing_large_is_copied(policy: object) -> None:
    def program(tree: frb.trees.Tree, key: jax.Array) -> frb.trees.Tree:
        return rb.trees.search(tree, key, step, 8, policy, chance_step=step)[0]

    x = jnp.zeros((BATCH, 2))
    tree = rb.init(SPEC, items=frb.trees.Expansion({"x": x}, jnp.zeros((BATCH, SLOTS)), x[:, 0]))
    compiled = jax.jit(program, donate_argnums=0).lower(tree, rb.key(0)).compile(AS_USERS)
    assert big_copies(bodies(compiled.as_text()), CAPACITY // 2) == []
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= held
    assert memory.temp_size_in_bytes < 4 * BATCH * CAPACITY  # less than the smallest array of the tree
