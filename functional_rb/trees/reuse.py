"""Going on from a child with what is known, and beginning some trees of a batch anew, over any `TreeOps`."""

from __future__ import annotations

import dataclasses
import math

from functional_rb.base.arrays import DeviceLike
from functional_rb.ops.protocol import Array, TreeOps
from functional_rb.structures.row_layout import along
from functional_rb.trees import nodes, search
from functional_rb.trees.nodes import BATCH, get_edge
from functional_rb.trees.search import Evaluated
from functional_rb.trees.state import FIELDS, NONE, ROOT, Tree


def subtree(ops: TreeOps, tree: Tree, slot: Array, device: DeviceLike) -> Tree:
    """The trees below one slot int32 [B] of each root; an empty tree where nothing is stored behind it, or it is -1.

    The nodes that stay keep their order, so that a child still has a larger number than its parent.
    """
    spec, batch = tree.spec, tree.size.shape[0]
    count, blank = spec.capacity, nodes.empty(ops, spec, batch, device)
    # The node that becomes the root, and all that is below it.
    inside = (slot >= 0) & (slot < spec.children)
    root = ops.full_like(slot, ROOT)
    first = get_edge(ops, tree.children, ops.where(inside, slot, root))  # the root is node 0, so its slots come first
    top = ops.where(inside & (tree.size > 0), first, root + NONE)
    kept = _below(ops, tree, top)
    # For each node its number in the new tree, and for each new node the number that it had.
    number = ops.cumsum(ops.cast(kept, "int32")) - 1
    number = ops.where(kept, number, ops.full_like(number, NONE))
    # Stable, so that nodes that stay keep their order, with parents before their children.
    order = ops.argsort(ops.cast(~kept, "int32"))
    size = ops.total(kept)
    live = ops.arange(count, like=slot)[None] < size[:, None]

    # Each array is compacted by one gather: what stays comes first, in its order, and the rest is blank.
    def renumbered(old: Array) -> Array:
        flat = old.reshape(batch, math.prod(old.shape[1:]))
        known = ops.take_each(number, ops.maximum(flat, ops.full_like(flat, ROOT))).reshape(old.shape)
        return ops.where(old >= 0, known, ops.full_like(old, NONE))

    def moved(old: Array, new: Array) -> Array:
        mask = live.reshape(batch, count, *[1] * (old.ndim - 2))
        return ops.where(mask, ops.take_each(old, order), new)

    # The new root has no parent, though it has a number itself.
    below_top = kept & (number > ROOT)
    none = ops.full_like(tree.parent, NONE)
    depth_of_top = ops.take_each(tree.depth, ops.maximum(top, root))
    changed = dataclasses.replace(
        tree,
        parent=ops.where(below_top, renumbered(tree.parent), none),
        slot=ops.where(below_top, tree.slot, none),
        depth=tree.depth - depth_of_top[:, None],
        children=renumbered(tree.children),
    )
    result = changed.each(moved, blank, fields=[name for name in FIELDS if name not in BATCH])
    q = result.q.reshape(batch, -1)
    taken, unknown = (result.edge_visits > 0).reshape(q.shape), ops.full_like(q, math.inf)
    low, high = -ops.largest(ops.where(taken, -q, -unknown)), ops.largest(ops.where(taken, q, -unknown))
    return dataclasses.replace(result, low=low, high=high, size=size, refused=blank.refused, rejected=blank.rejected)


def _below(ops: TreeOps, tree: Tree, top: Array) -> Array:
    # Pointer doubling: each node looks at an ancestor twice as far away in each round, and stops at the node that is
    # asked for. It takes log2(N) gathers, whatever the depth of the tree.
    count = tree.spec.capacity
    nodes = ops.arange(count, like=top)[None] + ops.full_like(tree.parent, 0)
    is_top = nodes == top[:, None]
    root = ops.full_like(tree.parent, ROOT)
    above = ops.where(is_top, nodes, ops.maximum(tree.parent, root))
    for _ in range(max(count - 1, 1).bit_length()):
        above = ops.take_each(above, above)
    stored = nodes < tree.size[:, None]
    return stored & (above == top[:, None])


def reset(ops: TreeOps, tree: Tree, mask: Array, root: Evaluated, device: DeviceLike) -> Tree:
    fresh = search.init(ops, root, tree.spec, device)
    return tree.each(lambda old, new: ops.where(along(mask, old), new, old), fresh)
