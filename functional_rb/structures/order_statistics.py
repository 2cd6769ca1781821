"""Order statistics of marked slots: a sum tree whose leaves are 0 or 1 counts the marks below every node.

Going down with the counts finds the mark of a given rank; going up adds the counts on the left of a slot.
"""

from __future__ import annotations

from typing import Final

from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures.sum_tree import FANOUT, geometry

# Float32 counts every whole number up to here, so that the sums of a tree of this many leaves are exact.
MAX_CAPACITY: Final = 2**24


def select(ops: Ops, tree: Array, capacity: int, ranks: Array) -> Array:
    """The slots int32 [B] that are marked, by their ranks int32 [B]: 0 is the one that comes first in slot order.

    The leaves of the tree are 0 or 1, at most `MAX_CAPACITY`. A rank that no mark has gives some slot in bounds.
    """
    node = ops.full_like(ranks, 0)
    for level in reversed(geometry(capacity).levels):
        counts = ops.cast(ops.take(tree, level.sums + node), "int32")
        passed = ops.cumsum(counts) <= ranks[:, None]
        ranks = ranks - ops.cumsum(ops.where(passed, counts, ops.full_like(counts, 0)))[:, -1]
        node = node * FANOUT + ops.cumsum(ops.cast(passed, "int32"))[:, -1]
        node = ops.minimum(node, ops.full_like(node, level.nodes - 1))
    return node


def before(ops: Ops, tree: Array, capacity: int, slots: Array) -> Array:
    """How many marked slots are smaller than others, int32 scalar or [B], marked or not; the tree as for `select`."""
    rank = ops.full_like(slots, 0)
    for level in geometry(capacity).levels:
        counts = ops.cast(ops.take(tree, level.sums + slots // FANOUT), "int32")
        left = ops.arange(FANOUT, like=slots) < (slots % FANOUT)[..., None]
        rank = rank + ops.cumsum(ops.where(left, counts, ops.full_like(counts, 0)))[..., -1]
        slots = slots // FANOUT
    return rank
