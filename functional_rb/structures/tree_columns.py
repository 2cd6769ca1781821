"""What `sum_tree` does most, child by child: for devices on which operations along short axes are not fused.

XLA for TPUs makes a piece of work of each halving of a node's children, and lays the tree out anew between writing to
it as a vector and reading rows of it. Here each child is an array of its own, so that all that is done with the
children of a level is one piece, and the tree is read as the vector that it is written as. The bits are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from functional_rb.ops import fixed_point
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures.sum_tree import FANOUT, RESOLUTION, geometry


def set_leaves(ops: Ops, tree: Array, capacity: int, leaves: Array, values: Array, consecutive: bool = False) -> Array:
    """What `sum_tree.set_leaves` does."""
    tree = ops.set_flat(tree, leaves, ops.settled(values))
    levels, nodes, count = geometry(capacity).levels, leaves, leaves.shape[0]
    for below, level in itertools.pairwise(levels):
        nodes = nodes // FANOUT
        if consecutive:
            count = min((count - 1) // FANOUT + 3, level.nodes)
            nodes = (nodes[0] + ops.arange(count, like=nodes)) % level.nodes
        sums, smallest, largest = (
            _children(ops, tree, row + nodes) for row in (below.sums, below.smallest, below.largest)
        )
        huge = ops.full_like(smallest[0], float("inf"))
        least = _halved([ops.where(x > 0, x, huge) for x in smallest], ops.minimum)
        parts = [
            _halved(sums, lambda x, y: x + y),
            ops.where(least < float("inf"), least, ops.full_like(least, 0)),
            _halved(largest, ops.maximum),
        ]
        places = ops.concat([row * FANOUT + nodes for row in (level.sums, level.smallest, level.largest)], 0)
        tree = ops.set_flat(tree, places, ops.concat(parts, 0))
    return tree


def descend(ops: Ops, tree: Array, capacity: int, draws: Array) -> Array:
    """What `sum_tree.descend` does."""
    node = ops.full_like(draws[:, 0], 0)
    for depth, level in enumerate(reversed(geometry(capacity).levels)):
        children = _children(ops, tree, level.sums + node)
        exponent = ops.bitcast(_halved(children, lambda x, y: x + y), "int32") >> 23
        unit = ops.bitcast((254 - exponent) << 23, "float32")
        nothing = ops.full_like(node, 0)
        reach = list[Array]()
        for child in children:
            whole = ops.cast(child * unit * float(2**RESOLUTION), "int32")
            weight = ops.where(child > 0, ops.maximum(whole, nothing + 1), nothing)
            reach.append(reach[-1] + weight if reach else weight)
        target = fixed_point.mul_high(ops, draws[:, depth], reach[-1])
        chosen = nothing
        for until in reach:
            chosen = chosen + ops.cast(until <= target, "int32")
        node = ops.minimum(node * FANOUT + chosen, ops.full_like(node, level.nodes - 1))
    return node


def _children(ops: Ops, tree: Array, rows: Array) -> list[Array]:
    """The children float32 [n] in rows int32 [n], one array for each of the FANOUT places."""
    places = rows[:, None] * FANOUT + ops.arange(FANOUT, like=rows)
    found = ops.take(tree.reshape(-1), places.reshape(-1)).reshape(rows.shape[0], FANOUT)
    return [found[:, k] for k in range(FANOUT)]


def _halved(parts: Sequence[Array], combined: Callable[[Array, Array], Array]) -> Array:
    """All parts in one, in the order of `sum_tree.add_up`."""
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [combined(x, y) for x, y in zip(parts[:half], parts[half:], strict=True)]
    return parts[0]
