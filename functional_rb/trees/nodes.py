"""Reading and writing one node, or one edge, of each tree of a batch: one gather or scatter for the whole batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from functional_rb.base.arrays import DeviceLike
from functional_rb.ops.protocol import Array, TreeOps
from functional_rb.structures import row_layout
from functional_rb.trees.scores import Edges
from functional_rb.trees.spec import Content, TreeSpec
from functional_rb.trees.state import NONE, ROOT, Tree

# The fields of whole trees; all others are of nodes or edges.
BATCH: Final = ("low", "high", "size", "refused", "rejected")


def empty(ops: TreeOps, spec: TreeSpec, batch: int, device: DeviceLike) -> Tree:
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
    # No value has been backed up yet: every one will be below infinity and above minus infinity.
    none, unknown = zeros(nodes) + NONE, zeros((batch,), "float32") + math.inf
    return Tree(
        parent=none,
        slot=zeros(nodes) + NONE,
        depth=zeros(nodes),
        visits=zeros(nodes),
        value=zeros(nodes, "float32"),
        prediction=zeros(nodes, "float32"),
        terminal=zeros(nodes, "bool"),
        chance=zeros(nodes, "bool"),
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
        rejected=zeros((batch,)),
        spec=spec,
    )


def get_edge(ops: TreeOps, array: Array, edge: Array) -> Array:
    """What an array [B, N, A, ...] has of an edge of each tree, see `edge_index`."""
    return ops.take_each(as_edges(array), edge)


def put_edge(ops: TreeOps, array: Array, edge: Array, values: Array, live: Array | None = None) -> Array:
    """An array [B, N, A, ...] with values [B, ...] of an edge of each tree; where not live they stay."""
    return ops.set_each(as_edges(array), edge, live, values).reshape(array.shape)


def as_edges(array: Array) -> Array:
    """An array [B, N, A, ...] by edges, [B, N * A, ...]."""
    batch, nodes, slots, *shape = array.shape
    return array.reshape(batch, nodes * slots, *shape)


def edges_of(ops: TreeOps, tree: Tree, node: Array) -> Edges:
    """What is known of the edges of a node int32 [B] of each tree."""
    return _edges(tree, lambda array: ops.take_each(array, node))


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


def read(ops: TreeOps, content: Content, rows: Array, wide: tuple[Array, ...], node: Array) -> list[Array]:
    """The leaves [B, *shape] of the content of a node int32 [B] of each tree."""
    return row_layout.unpack(
        ops, content.layout, ops.take_each(rows, node), [ops.take_each(array, node) for array in wide]
    )


def read_edge(ops: TreeOps, content: Content, rows: Array, wide: tuple[Array, ...], edge: Array) -> list[Array]:
    return read(ops, content, as_edges(rows), tuple(map(as_edges, wide)), edge)


def store(
    ops: TreeOps,
    content: Content,
    rows: Array,
    wide: tuple[Array, ...],
    node: Array,
    live: Array,
    leaves: list[Array],
) -> tuple[Array, tuple[Array, ...]]:
    """Rows and wide arrays with the content of a node int32 [B] of each tree, or that of all of its edges, where live.

    Rows are int32 [B, N, W] of nodes, [B, N, A, W] of edges; leaves [B, *shape], of edges [B, A, *shape].
    """
    # Rows are packed as one batch, of all trees, or of all trees' edges.
    lead = (rows.shape[0], *rows.shape[2:-1])
    flat = [leaf.reshape(math.prod(lead), *leaf.shape[len(lead) :]) for leaf in leaves]
    like = ops.arange(math.prod(lead), like=node)
    packed, apart = row_layout.pack(ops, content.layout, flat, like)
    new = (packed, *apart)
    stored = [
        ops.set_each(old, node, live, x.reshape(*lead, *x.shape[1:])) for old, x in zip((rows, *wide), new, strict=True)
    ]
    return stored[0], tuple(stored[1:])
