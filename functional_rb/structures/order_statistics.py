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
    """Find marked slots by their rank in slot order.

    Args:
        tree: float32 [rows, FANOUT], a sum tree whose leaves are 0 or 1.
        capacity: number of leaves, at most `MAX_CAPACITY`.
        ranks: int32 [B], 0 for the marked slot that comes first.

    Returns:
        Slots, int32 [B]; in bounds, but meaningless, where the rank is not within 0 and the number of marks - 1.
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
    """Count the marked slots that lie before given ones.

    Args:
        tree: float32 [rows, FANOUT], a sum tree whose leaves are 0 or 1.
        capacity: number of leaves, at most `MAX_CAPACITY`.
        slots: int32 scalar or [B], within 0 and capacity - 1; marked or not.

    Returns:
        How many marked slots are smaller, int32 like the slots: the rank of a slot if it is marked itself.
    """
    rank = ops.full_like(slots, 0)
    for level in geometry(capacity).levels:
        counts = ops.cast(ops.take(tree, level.sums + slots // FANOUT), "int32")
        left = ops.arange(FANOUT, like=slots) < (slots % FANOUT)[..., None]
        rank = rank + ops.cumsum(ops.where(left, counts, ops.full_like(counts, 0)))[..., -1]
        slots = slots // FANOUT
    return rank
