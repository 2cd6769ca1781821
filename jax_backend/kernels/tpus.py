"""What of the core is computed in another form on TPUs, with the same bits.

There the pieces of work that XLA makes of a program cost more than what each computes, so these forms take few: what
could be sorted is compared with each other, and a table is looked up by choosing between its halves.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from functional_rb.ops import fixed_point
from functional_rb.ops.part_kernels import NONE, Table
from functional_rb.samplers import importance, prioritized
from functional_rb.structures import sum_tree
from jax_backend.arrays import ops
from jax_backend.kernels import tpu_tree

# Of an update, how many items may be compared with each other: twice as many take four times as long.
MOST_COMPARED = 4096


def descend(tree: jax.Array, capacity: int, draws: jax.Array) -> jax.Array:
    leaves: jax.Array = tpu_tree.draw(tree, capacity, draws).leaves
    return leaves


def draw_weighed(
    tree: jax.Array, capacity: int, draws: jax.Array, beta: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    drawn = tpu_tree.draw(tree, capacity, draws)
    weighed: tuple[jax.Array, jax.Array, jax.Array] = _core(prioritized.weighed, *drawn[1:], beta)
    return drawn.leaves, *weighed


def importance_weights(values: jax.Array, smallest: jax.Array, beta: jax.Array) -> jax.Array:
    smallest, beta = (tpu_tree.spread(x, values >= 0) for x in (smallest, beta))
    weights: jax.Array = _core(importance.importance_weights.core, values, smallest, beta)
    return weights


def updated_values(
    slots: jax.Array, live: jax.Array, priorities: jax.Array, alpha: float
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    if slots.shape[0] > MOST_COMPARED:
        updated: tuple[jax.Array, jax.Array, jax.Array, jax.Array] = _core(
            importance.updated_values.core, slots, live, priorities, alpha
        )
        return updated
    values: jax.Array
    good: jax.Array
    values, good = _core(importance.stored_value, priorities, alpha)
    applies, place = live & good, jnp.arange(slots.shape[0], dtype=jnp.int32)
    rivals = (slots[:, None] == slots[None, :]) & applies[None, :]
    winner = jnp.max(jnp.where(rivals, place[None, :], -1), 1)
    # No value is negative, and of those compared at most one is the winner.
    won = jnp.max(jnp.where(winner[:, None] == place[None, :], values[None, :], 0), 1)
    peak = jnp.max(jnp.where(applies, lax.bitcast_convert_type(values, jnp.int32), 0))
    return won, winner >= 0, ops.count(live & ~good), peak


# A function of the core, which is written over any backend's arrays.
def _core(function: Callable[..., Any], *operands: object) -> Any:
    return function(ops.OPS, *operands)


def written_values(tree: jax.Array, slots: jax.Array, values: jax.Array) -> jax.Array:
    return values


def lookup(table: str, entry: jax.Array) -> jax.Array:
    """By the bits of the entry, the lowest first: each halves what is left of the table."""
    left = [jnp.int32(number) for number in fixed_point.TABLES[table]]
    bit = 1
    while len(left) > 1:
        second = entry & bit != 0
        left = [jnp.where(second, b, a) for a, b in zip(left[::2], left[1::2], strict=True)]
        bit *= 2
    return left[0]


def bits(data: jax.Array, batch: int, words: int) -> jax.Array:
    """The upper bits of `jax.random.bits` for the words uint32 [2] of a key: Threefry of a counter of 64 bits.

    JAX counts in two halves, by products of which each is a piece of work; below 2^32 words the upper half is 0.
    """
    threefry = importlib.import_module("jax.extend.random").threefry2x32_p  # which nothing needs but on TPUs
    low = lax.iota(jnp.uint32, batch * words)
    key = [jnp.broadcast_to(word, low.shape) for word in data]
    high, low = threefry.bind(*key, jnp.zeros_like(low), low)
    return ((high ^ low) >> 1).astype(jnp.int32).reshape(batch, words)


TABLE: Table = {
    fixed_point.lookup: lookup,
    importance.importance_weights: importance_weights,
    importance.updated_values: updated_values,
    importance.written_values: written_values,
    prioritized.draw_weighed: draw_weighed,
    sum_tree.descend: descend,
    sum_tree.get_leaves: tpu_tree.get_leaves,
    sum_tree.set_leaves: tpu_tree.set_leaves,
}


def core_table() -> Table:
    """What stands in for functions of the core where no kernels do."""
    return TABLE if jax.default_backend() == "tpu" else NONE
