"""Graphs: nodes, and edges between them."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.arrays import Array, Nest, NumpyArray
from functional_rb.ops.protocol import SpecOps
from functional_rb.specs import random_numbers, rows
from functional_rb.specs.array import Bounded
from functional_rb.specs.base import SpecNest
from functional_rb.specs.categorical import Categorical
from functional_rb.specs.composite import Composite, cardinality
from functional_rb.specs.padded import Padded, all_last, all_of, in_front
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

    node: SpecNest
    edge: SpecNest
    max_nodes: int
    max_edges: int = 1
    batch_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._check(max_nodes=self.max_nodes, max_edges=self.max_edges)

    @property
    def nests(self) -> tuple[str, ...]:
        return ("node",) if self.edge is None else ("node", "edge")

    def _parts(self) -> Composite:
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
    def _nodes(self) -> Padded:
        return Padded(self.node, 1, self.max_nodes, "nodes", "max_nodes")

    @property
    def _edges(self) -> Padded:
        return Padded(self.edge, 0, self.max_edges, "edges", "max_edges")

    def _cardinality_of_one(self) -> int | float:
        node = cardinality(self.node)
        if self.edge is None:
            return self._nodes.cardinality(node)
        edge = cardinality(self.edge)
        if math.inf in (node, edge):
            return math.inf
        # Each of m edges has n^2 places between n nodes: sum_n node^n sum_m (edge n^2)^m values.
        return sum(node**n * self._edges.cardinality(edge * n * n) for n in range(1, self.max_nodes + 1))

    @property
    def words(self) -> int:
        # Two for each of the two nodes that an edge links.
        of_edges = 0 if self.edge is None else self._edges.words + 4 * self.max_edges
        return self._many * (self._nodes.words + of_edges)

    def draw(self, ops: SpecOps, bits: Array) -> dict[str, Nest]:
        # The numbers of nodes and edges are uniform, and so are the nodes that each edge links.
        cut, lead = random_numbers.Cut(bits), self.batch_shape
        nodes, n_nodes = self._nodes.draw(ops, cut, lead)
        if self.edge is None:
            return {"nodes": nodes, "n_nodes": n_nodes}
        edges, n_edges = self._edges.draw(ops, cut, lead)
        of_links = cut(self._many * self.max_edges * 4).reshape(bits.shape[0], *lead, self.max_edges, 2, 2)
        # Below the number of nodes of each graph, which is drawn: so no edge leads into the padding.
        links = ops.scale(of_links[..., 0], of_links[..., 1], n_nodes[..., None, None])
        links = ops.where(self._edges.real(ops, n_edges)[..., None], links, links * 0)
        return {"nodes": nodes, "n_nodes": n_nodes, "edges": edges, "edge_links": links, "n_edges": n_edges}

    def inside(self, ops: SpecOps, x: Nest) -> Array:
        good = self._nodes.inside(ops, x["nodes"], x["n_nodes"])
        if self.edge is not None:
            links = x["edge_links"]
            linked = (links >= 0) & (links < x["n_nodes"][..., None, None])
            linked = (linked[..., 0] & linked[..., 1]) | ~self._edges.real(ops, x["n_edges"])
            good = good & self._edges.inside(ops, x["edges"], x["n_edges"]) & all_last(ops, linked, self.max_edges)
        return all_of(ops, good, self._many)

    def nearest(self, ops: SpecOps, x: Nest) -> dict[str, Nest]:
        nodes, n_nodes = self._nodes.nearest(ops, x["nodes"], x["n_nodes"])
        if self.edge is None:
            return {"nodes": nodes, "n_nodes": n_nodes}
        edges, n_edges = self._edges.nearest(ops, x["edges"], x["n_edges"])
        links = ops.clamp(x["edge_links"], 0, n_nodes[..., None, None] - 1)
        links = ops.where(self._edges.real(ops, n_edges)[..., None], links, links * 0)
        return {"nodes": nodes, "n_nodes": n_nodes, "edges": edges, "edge_links": links, "n_edges": n_edges}

    def from_host(self, value: object, batch: tuple[int, ...]) -> dict[str, Nest]:
        lead = (*batch, *self.batch_shape)
        graphs = rows.listed(value, lead)
        for graph in graphs:
            if not all(hasattr(graph, name) for name in GraphInstance._fields):
                raise TypeError(f"expected a value with {GraphInstance._fields}, got {type(graph).__name__}")
        nodes, n_nodes = self._nodes.from_stacked([graph.nodes for graph in graphs], lead)
        if self.edge is None:
            return {"nodes": nodes, "n_nodes": n_nodes}
        # A graph without edges may have None in place of them.
        has_edges = np.asarray([graph.edges is not None for graph in graphs], bool)
        linked = [graph for graph in graphs if graph.edges is not None]
        edges, n_edges = self._edges.from_stacked([graph.edges for graph in linked], (len(linked),))
        links = [np.zeros((0, 2), np.int32)]
        for graph, n in zip(linked, n_edges.tolist(), strict=True):
            of_graph = np.zeros((0, 2), int) if graph.edge_links is None else graph.edge_links
            of_graph = dtypes.as_dtype(of_graph, "int32")
            if of_graph.shape != (n, 2):
                raise ValueError(f"expected edge_links of {n} edges, of shape {(n, 2)}, got shape {of_graph.shape}")
            links.append(of_graph)
        real = np.arange(self.max_edges) < n_edges[:, None]
        linked_rows = rows.placed(np.concatenate(links), real)
        return {
            "nodes": nodes,
            "n_nodes": n_nodes,
            "edges": rows.regrouped(self.edge, rows.scattered(self.edge, edges, has_edges), 1, lead),
            "edge_links": rows.placed(linked_rows, has_edges).reshape(*lead, self.max_edges, 2),
            "n_edges": rows.placed(n_edges, has_edges).reshape(lead),
        }

    def to_host(self, x: Nest) -> object:
        # Gymnasium's `GraphInstance`s where it is installed, else NamedTuples with the same fields.
        make = graph_instance()
        nodes = self._nodes.real_rows(x["nodes"], x["n_nodes"])
        graphs = [make(rows.to_host(self.node, graph_nodes), None, None) for graph_nodes in nodes]
        if self.edge is not None:
            edges = self._edges.real_rows(x["edges"], x["n_edges"])
            links = x["edge_links"].reshape(len(graphs), self.max_edges, 2)
            for i, n in enumerate(x["n_edges"].reshape(-1).tolist()):
                graphs[i] = graphs[i]._replace(edges=rows.to_host(self.edge, edges[i]), edge_links=links[i, :n])
        return rows.nested(graphs, x["n_nodes"].shape)


class GraphInstance(NamedTuple):
    """What a `Graph` is decoded to where Gymnasium is not installed, with the fields of its class of this name.

    Attributes:
        nodes: an array, or nest of arrays, [n_nodes, ...].
        edges: an array, or nest of arrays, [n_edges, ...], or None.
        edge_links: int32 [n_edges, 2], or None.
    """

    nodes: Nest
    edges: Nest
    edge_links: NumpyArray | None


@functools.cache
def graph_instance() -> Callable[..., GraphInstance]:
    """Gymnasium's class, as its spaces accept no other; `GraphInstance` of this module where it is not installed."""
    try:
        spaces = importlib.import_module("gymnasium.spaces")
    except ImportError:
        return GraphInstance
    return spaces.GraphInstance
