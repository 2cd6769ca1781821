"""Reading and writing one node, or one edge, of each tree of a batch.

Arrays are indexed as if they had no batch axis, at `b * N + node`: one gather or scatter for the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from functional_rb.ops.protocol import Array, TreeOps
from functional_rb.structures import row_layout
from functional_rb.structures.row_layout import Layout
from functional_rb.trees.scores import Edges
from functional_rb.trees.spec import Content, TreeSpec
from functional_rb.trees.state import NONE, ROOT, Tree

BATCH: Final = ("low", "high", "size", "refused")
"""The fields of whole trees; all others are of nodes or edges."""


def empty(ops: TreeOps, spec: TreeSpec, batch: int, device: Any) -> Tree:
    """Trees without any node."""
    nodes, edges = (batch, spec.capacity), (batch, spec.capacity, spec.children)

    def zeros(shape: tuple[int, ...], dtype: str = "int32") -> Array:
        return ops.zeros(shape, dtype, device)

    def content(lead: tuple[int, ...], content: Content | None) -> tuple[Array, tuple[Array, ...]]:
        if content is None:
            return zeros((*lead, 0)), ()
        wide = tuple(zeros((*lead, *leaf.shape), leaf.stored_as) for leaf in content.layout.wide)
        return zeros((*lead, content.layout.row_words)), wide

    rows, wide = content(nodes, spec.node_content)
    action_rows, action_wide = content(edges, spec.action_content)
    none, unknown = zeros(nodes) + NONE, zeros((batch,), "float32") + math.inf
    return Tree(
        parent=none,
        slot=zeros(nodes) + NONE,
        depth=zeros(nodes),
        visits=zeros(nodes),
        value=zeros(nodes, "float32"),
        prediction=zeros(nodes, "float32"),
        terminal=zeros(nodes, "bool"),
        children=zeros(edges) + NONE,
        edge_visits=zeros(edges),
        edge_value=zeros(edges, "float32"),
        reward=zeros(edges, "float32"),
        discount=zeros(edges, "float32"),
        prior=zeros(edges, "float32"),
        valid=zeros(edges, "bool"),
        rows=rows,
        wide=wide,
        action_rows=action_rows,
        action_wide=action_wide,
        statistics={name: zeros(edges, "float32") for name in spec.statistics},
        low=unknown,
        high=-unknown,
        size=zeros((batch,)),
        refused=zeros((batch,)),
        spec=spec,
    )


def node_index(ops: TreeOps, tree: Tree, node: Array) -> Array:
    """Where node int32 [B] of each tree lies among the nodes of all."""
    return ops.arange(node.shape[0], like=node) * tree.spec.capacity + node


def get(ops: TreeOps, array: Array, index: Array, axes: int = 2) -> Array:
    """The elements of an array at indices over its first axes together."""
    return ops.take(array.reshape(-1, *array.shape[axes:]), index)


def put(ops: TreeOps, array: Array, index: Array, values: Array, live: Array | None = None, axes: int = 2) -> Array:
    """An array with elements set at indices over its first axes together; where not live they stay."""
    flat = array.reshape(-1, *array.shape[axes:])
    new = ops.set_at(flat, index, values) if live is None else ops.set_where(flat, index, live, values)
    return new.reshape(array.shape)


def edges_of(ops: TreeOps, tree: Tree, node: Array) -> Edges:
    """What is known of the edges of a node int32 [B] of each tree."""
    at = node_index(ops, tree, node)
    return _edges(tree, lambda array: get(ops, array, at))


def root_edges(tree: Tree) -> Edges:
    """What is known of the edges of the roots: parts of the tree's arrays, which on torch are written in place."""
    return _edges(tree, lambda array: array[:, ROOT])


def _edges(tree: Tree, of_node: Callable[[Array], Array]) -> Edges:
    value = of_node(tree.edge_value)
    return Edges(
        visits=of_node(tree.edge_visits),
        value=value,
        q=of_node(tree.reward) + of_node(tree.discount) * value,
        prior=of_node(tree.prior),
        valid=of_node(tree.valid),
        node_visits=of_node(tree.visits),
        node_value=of_node(tree.value),
        prediction=of_node(tree.prediction),
        low=tree.low,
        high=tree.high,
        statistics={name: of_node(array) for name, array in tree.statistics.items()},
    )


def read(ops: TreeOps, layout: Layout, rows: Array, wide: tuple[Array, ...], index: Array, axes: int) -> list[Array]:
    """The leaves of the content at indices over the first axes together."""
    flat = [array.reshape(-1, *array.shape[axes:]) for array in (rows, *wide)]
    return row_layout.read(ops, layout, flat[0], flat[1:], index)


def store(
    ops: TreeOps,
    layout: Layout,
    rows: Array,
    wide: tuple[Array, ...],
    index: Array,
    live: Array,
    leaves: list[Array],
    axes: int,
) -> tuple[Array, tuple[Array, ...]]:
    """Rows and wide arrays with the content set at indices over the first axes together, where it is live."""
    flat = [array.reshape(-1, *array.shape[axes:]) for array in (rows, *wide)]
    new, others = row_layout.store(ops, layout, flat[0], flat[1:], index, None, live, leaves)
    return new.reshape(rows.shape), tuple(x.reshape(old.shape) for x, old in zip(others, wide, strict=True))
