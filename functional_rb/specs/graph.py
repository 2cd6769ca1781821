"""Graphs: nodes, and edges between them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.arrays import NumpyArray
from functional_rb.ops.protocol import Array, SpecOps
from functional_rb.specs import random_numbers, rows
from functional_rb.specs.array import Bounded
from functional_rb.specs.categorical import Categorical
from functional_rb.specs.composite import Composite
from functional_rb.specs.padded import (
    Cut,
    all_last,
    all_of,
    draw_length,
    draw_padded,
    first,
    in_front,
    inside_padded,
    length_words,
    nearest_padded,
    read_lengths,
    read_padded,
    real_rows,
)
from functional_rb.specs.varying import Varying


@dataclasses.dataclass(frozen=True, repr=False)
class Graph(Varying):
    """A graph with up to max_nodes nodes, at least one, and up to max_edges edges.

    Stored as `nodes` [max_nodes, *node.shape], `n_nodes` int32 and, where edges have features, `edges`
    [max_edges, *edge.shape], `edge_links` int32 [max_edges, 2] (the nodes that each edge goes from and to) and
    `n_edges` int32. What lies behind the numbers is padding.

    Attributes:
        node: the spec of one node's features.
        edge: the spec of one edge's features; None for graphs without edges, as Gymnasium has it.
        max_nodes: at least 1.
        max_edges: at least 1.
        batch_shape: leading axes.

    Example:
        >>> from functional_rb import Unbounded
        >>> Graph(Unbounded((3,)), Categorical(2), max_nodes=4, max_edges=6).shape["edge_links"]
        (6, 2)
    """

    arguments: ClassVar[tuple[str, ...]] = ("node", "edge", "max_nodes", "max_edges", "batch_shape")
    __hash__ = Varying.__hash__

    node: Any
    edge: Any
    max_nodes: int
    max_edges: int = 1
    batch_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._check(max_nodes=self.max_nodes, max_edges=self.max_edges)

    @property
    def nests(self) -> tuple[str, ...]:
        """The attributes `node` and, with edges, `edge`."""
        return ("node",) if self.edge is None else ("node", "edge")

    def _parts(self) -> Composite:
        """The parts `nodes`, `n_nodes` and, with edges, `edges`, `edge_links`, `n_edges`."""
        lead = self.batch_shape
        parts = {
            "nodes": in_front(self.node, (*lead, self.max_nodes)),
            "n_nodes": Bounded(1, self.max_nodes, lead, "int32"),
        }
        if self.edge is not None:
            parts |= {
                "edges": in_front(self.edge, (*lead, self.max_edges)),
                "edge_links": Categorical(self.max_nodes, shape=(*lead, self.max_edges, 2)),
                "n_edges": Bounded(0, self.max_edges, lead, "int32"),
            }
        return Composite(parts, batch_shape=lead)

    @property
    def words(self) -> int:
        """Random words of 31 bits that `draw` takes: for the numbers, nodes, edges, and two for each linked node."""
        count = length_words(1, self.max_nodes) + self.max_nodes * rows.words(self.node)
        if self.edge is not None:
            count += length_words(0, self.max_edges) + self.max_edges * (4 + rows.words(self.edge))
        return self._many * count

    def draw(self, ops: SpecOps, bits: Array) -> dict[str, Any]:
        """Graphs whose numbers of nodes and edges, and the nodes that each edge links, are uniform."""
        lead, many = self.batch_shape, self._many
        cut = Cut(bits)
        n_nodes = draw_length(ops, cut(many * length_words(1, self.max_nodes)), lead, 1, self.max_nodes)
        nodes = draw_padded(ops, self.node, cut(many * self.max_nodes * rows.words(self.node)), lead, self.max_nodes)
        nodes = rows.cleared(ops, self.node, nodes, real_rows(ops, n_nodes, self.max_nodes))
        if self.edge is None:
            return {"nodes": nodes, "n_nodes": n_nodes}
        n_edges = draw_length(ops, cut(many * length_words(0, self.max_edges)), lead, 0, self.max_edges)
        edges = draw_padded(ops, self.edge, cut(many * self.max_edges * rows.words(self.edge)), lead, self.max_edges)
        of_links = cut(many * self.max_edges * 4).reshape(bits.shape[0], *lead, self.max_edges, 2, 2)
        real = real_rows(ops, n_edges, self.max_edges)
        links = random_numbers.below(ops, of_links, n_nodes[..., None, None])
        return {
            "nodes": nodes,
            "n_nodes": n_nodes,
            "edges": rows.cleared(ops, self.edge, edges, real),
            "edge_links": ops.where(real[..., None], links, links * 0),
            "n_edges": n_edges,
        }

    def inside(self, ops: SpecOps, x: Any) -> Array:
        """Whether the numbers are in range, and the nodes, edges and links up to them in their domains, bool [N]."""
        n_nodes = x["n_nodes"]
        found = inside_padded(ops, self.node, x["nodes"], n_nodes, self.max_nodes)
        found = found & (n_nodes >= 1) & (n_nodes <= self.max_nodes)
        if self.edge is not None:
            n_edges, links = x["n_edges"], x["edge_links"]
            linked = (links >= 0) & (links < n_nodes[..., None, None])
            linked = (linked[..., 0] & linked[..., 1]) | ~real_rows(ops, n_edges, self.max_edges)
            found = found & (n_edges >= 0) & (n_edges <= self.max_edges)
            found = found & inside_padded(ops, self.edge, x["edges"], n_edges, self.max_edges)
            found = found & all_last(ops, linked, self.max_edges)
        return all_of(ops, found, self._many)

    def nearest(self, ops: SpecOps, x: Any) -> dict[str, Any]:
        """The numbers and links clamped, nodes and edges projected; zeros behind the numbers."""
        n_nodes = ops.clamp(x["n_nodes"], 1, self.max_nodes)
        made = {"nodes": nearest_padded(ops, self.node, x["nodes"], n_nodes, self.max_nodes), "n_nodes": n_nodes}
        if self.edge is not None:
            n_edges, links = ops.clamp(x["n_edges"], 0, self.max_edges), x["edge_links"]
            links = ops.clamp(links, 0, n_nodes[..., None, None] - 1)
            real = real_rows(ops, n_edges, self.max_edges)
            made |= {
                "edges": nearest_padded(ops, self.edge, x["edges"], n_edges, self.max_edges),
                "edge_links": ops.where(real[..., None], links, links * 0),
                "n_edges": n_edges,
            }
        return made

    def from_host(self, value: object, batch: tuple[int, ...]) -> dict[str, Any]:
        """The parts of graphs: objects with `nodes`, `edges` and `edge_links`, as Gymnasium's `GraphInstance`."""
        lead = (*batch, *self.batch_shape)
        values = rows.listed(value, lead)
        for one in values:
            if not all(hasattr(one, name) for name in GraphInstance._fields):
                raise TypeError(f"expected a value with {GraphInstance._fields}, got {type(one).__name__}")
        nodes, n_nodes = read_padded(self.node, [g.nodes for g in values], 1, self.max_nodes, "nodes", lead)
        made = {"nodes": nodes, "n_nodes": n_nodes}
        if self.edge is None:
            return made
        linked = [g for g in values if g.edges is not None]
        # A graph without edges may have None in place of them.
        own = np.asarray([g.edges is not None for g in values], bool)
        edges, n_edges = read_padded(self.edge, [g.edges for g in linked], 0, self.max_edges, "edges", (len(linked),))
        links = [_links(g, int(n)) for g, n in zip(linked, n_edges, strict=True)]
        real = np.arange(self.max_edges) < n_edges[:, None]
        linked_rows = rows.placed(np.concatenate([np.zeros((0, 2), np.int32), *links]), real)
        edges = rows.scattered(self.edge, edges, own)
        made |= {
            "edges": rows.regrouped(self.edge, edges, 1, lead),
            "edge_links": rows.placed(linked_rows, own).reshape(*lead, self.max_edges, 2),
            "n_edges": rows.placed(n_edges, own).reshape(lead),
        }
        return made

    def to_host(self, x: Any) -> Any:
        """`gymnasium.spaces.GraphInstance`s where Gymnasium is installed, else NamedTuples with the same fields.

        A slot of a buffer that was never written has no node; it is decoded too, so that the others can be read.
        """
        lead = x["n_nodes"].shape
        count = x["n_nodes"].size
        make = graph_instance()
        nodes = rows.regrouped(self.node, x["nodes"], len(lead) + 1, (count, self.max_nodes))
        n_nodes = read_lengths(x["n_nodes"].reshape(-1), 0, self.max_nodes, "nodes", "max_nodes")[0].tolist()
        made = [make(rows.to_host(self.node, first(self.node, nodes, i, n)), None, None) for i, n in enumerate(n_nodes)]
        if self.edge is not None:
            edges = rows.regrouped(self.edge, x["edges"], len(lead) + 1, (count, self.max_edges))
            links = x["edge_links"].reshape(count, self.max_edges, 2)
            n_edges, _ = read_lengths(x["n_edges"].reshape(-1), 0, self.max_edges, "edges", "max_edges")
            for i, n in enumerate(n_edges.tolist()):
                own = rows.to_host(self.edge, first(self.edge, edges, i, n))
                made[i] = made[i]._replace(edges=own, edge_links=links[i, :n])
        return rows.nested(made, lead)


class GraphInstance(NamedTuple):
    """What a `Graph` is decoded to where Gymnasium is not installed, with the fields of its class of this name.

    Attributes:
        nodes: an array, or nest of arrays, [n_nodes, ...].
        edges: an array, or nest of arrays, [n_edges, ...], or None.
        edge_links: int32 [n_edges, 2], or None.
    """

    nodes: Any
    edges: Any
    edge_links: Any


@functools.cache
def graph_instance() -> Any:
    """Gymnasium's class, as its spaces accept no other; `GraphInstance` of this module where it is not installed."""
    try:
        from gymnasium.spaces import GraphInstance as Theirs
    except ImportError:
        return GraphInstance
    return Theirs


def _links(graph: Any, count: int) -> NumpyArray:
    """The nodes that a graph's edges link, int32 [count, 2]."""
    links = dtypes.as_dtype(np.zeros((0, 2), int) if graph.edge_links is None else graph.edge_links, "int32")
    if links.shape != (count, 2):
        raise ValueError(f"expected edge_links of {count} edges, of shape {(count, 2)}, got shape {links.shape}")
    return links
