"""A tree as it is read on the host: of a forest, or of a search tree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Literal

import numpy as np

from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.base.steps import FLAGS, OBSERVATION
from functional_rb.ops import numpy_ops
from functional_rb.specs import Binary, Categorical, Unbounded
from functional_rb.specs.composite import cardinality, checked
from functional_rb.structures import row_layout
from functional_rb.trees import drawing, soundness
from functional_rb.trees.forest_spec import ForestSpec
from functional_rb.trees.nodes_in_order import NONE, Ints, Nodes, Path, Steps, host
from functional_rb.trees.reading import NodesByPath, Vertices, hashes, in_ted
from functional_rb.trees.state import Tree


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TreeView(Nodes):
    """A forest's tree, or a search tree, as it is read on the host: what `rb.trees.view` gives.

    A node is named by its number: nodes are numbered level by level, the root is 0, and siblings follow on each other.
    An *id* is the number of a node's vertex in its forest, or of a search tree's node in storage; several nodes may
    have one. What a number says of each node is an array of NumPy, such as `parent`, `num_children`, `visits` and
    `value`, see `Nodes`.

    Example:
        >>> spec = frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(2), capacity=100, children=2)
        >>> before, action, after = (np.array(x, np.int32) for x in ([0, 1, 0], [0, 1, 1], [1, 2, 3]))
        >>> steps = frb.ted.from_transitions(before, action, np.ones(3, np.float32), after, done=np.zeros(3, bool))
        >>> tree = rb.trees.view(rb.add(rb.init(spec), steps), np.int32(0))
        >>> tree.parent.tolist(), list(tree.children(0)), list(tree.valid_paths()), np.int32(3) in tree
        ([-1, 0, 0, 1], [1, 2], [(0, 0), (1,)], True)
    """

    def fully_expanded(self, node: int = 0, actions: object = None) -> bool:
        """Whether each action was taken in a node.

        Args:
            node: the node.
            actions: how many actions there are, or their spec; that of the tree if None.

        Raises:
            ValueError: if there are infinitely many actions.
        """
        node = self._checked(node, "fully_expanded")
        spec = self.full_specs["action"] if actions is None else actions
        most = spec if isinstance(spec, int) else cardinality(checked(spec, "trees.fully_expanded: actions"))
        if most == float("inf"):
            raise ValueError("trees.fully_expanded: there are infinitely many actions; give how many count, actions=n")
        return len(np.unique(self.steps.edge[self.first_step[self.children(node)]])) == most

    def edges(self, *, dense: bool = False) -> Ints:
        """The ids of parent and child of each edge, level by level, int64 [nodes - 1, 2].

        Args:
            dense: in place of ids, which of the tree's vertices it is, `dense`: 0 to `num_vertices - 1`, as arrays of
                vertices and programs for graphs number them. A compact tree has few of a forest's ids.
        """
        numbers = self.dense if dense else self.vertex
        return np.stack([numbers[self.parent[1:]], numbers[1:]], 1)

    def vertices(self, *, key_type: Literal["id", "hash", "path"] = "hash") -> Mapping[int, int] | Mapping[Path, int]:
        """Nodes by a key; of a vertex that is several nodes, the first.

        Args:
            key_type: "id" for the ids, "hash" for the hash of the observation, "path" for the slots from the root, by
                which each node has a key of its own.

        Returns:
            A mapping that finds its answers when it is asked.

        Raises:
            ValueError: for another type of key, or if two observations have one hash (of 60 bits).
        """
        if key_type == "path":
            return NodesByPath(self)
        if key_type == "id":
            return Vertices(self, self.unique, self.first_nodes)
        if key_type != "hash":
            raise ValueError(f"trees.vertices: expected key_type 'id', 'hash' or 'path', got {key_type!r}")
        keys = hashes(self, self.unique)
        order = np.argsort(keys, kind="stable")
        if (np.diff(keys[order]) == 0).any():
            raise ValueError("trees.vertices: two observations have the same hash; ask by key_type='id'")
        return Vertices(self, keys[order], self.first_nodes[order])

    def node_hash(self, node: int = 0) -> int:
        """The hash of a node's observation: the same for equal observations, in each tree and process."""
        node = self._checked(node, "node_hash")
        return int(hashes(self, self.vertex[node : node + 1])[0])

    def rollout_from_path(self, path: Path) -> dict[str, Nest] | None:
        """The steps on a way from the root, in TED.

        Args:
            path: the slots to take, from the root on.

        Returns:
            Steps, leaves [T, *shape]; None for a way of no steps. A reward is the mean of an edge that was taken
            several times; a step is terminated if an episode ever ended where it led.

        Raises:
            KeyError: if there is no such way.
            TypeError: for what is no sequence of slots.

        Example:
            >>> spec = frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(2), capacity=100, children=2)
            >>> before, action, after = (np.array(x, np.int32) for x in ([0, 1, 0], [0, 1, 1], [1, 2, 3]))
            >>> steps = frb.ted.from_transitions(before, action, np.ones(3, np.float32), after, done=np.zeros(3, bool))
            >>> tree = rb.trees.view(rb.add(rb.init(spec), steps), np.int32(0), compact=True)
            >>> rollout = tree.rollout_from_path((0,))
            >>> rollout["action"].tolist(), rollout["next"]["observation"].tolist()
            ([0, 1], [1, 2])
        """
        node = self.node_at(path)
        nodes = []
        while node:
            nodes.append(node)
            node = int(self.parent[node])
        if not nodes:
            return None
        spans = [np.arange(self.first_step[k], self.first_step[k + 1]) for k in reversed(nodes)]
        return in_ted(self, np.concatenate(spans))

    @property
    def full_specs(self) -> dict[str, object]:
        """The specs of what a tree stores of each step, by what it is.

        Returns:
            A dict of "observation", the specs of `node_observations` by name; "action", of a search tree without
            actions that of the number of a slot; "reward", float32; "done", those of the flags by name; and "state",
            those of what a step holds besides: none.
        """
        spec = self.spec
        observation = spec.observation if isinstance(spec, ForestSpec) else spec.node
        return {
            "observation": dict(observation) if isinstance(observation, Mapping) else {OBSERVATION: observation},
            "action": Categorical(spec.children) if spec.action is None else spec.action,
            "reward": Unbounded(()),
            "done": {name: Binary(()) for name in FLAGS},
            "state": {},
        }

    def to_string(self, node_format: Callable[[TreeView, int], str] | None = None, max_nodes: int = 200) -> str:
        """A tree as lines of text, a node a line, indented by its depth.

        Args:
            node_format: makes the text of a node, of the tree and its number; by default action, visits and value.
            max_nodes: how many lines to make; what is left out is said in the last one.

        Example:
            >>> spec = frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(2), capacity=100, children=2)
            >>> before, action, after = (np.array(x, np.int32) for x in ([0, 1, 0], [0, 1, 1], [1, 2, 3]))
            >>> steps = frb.ted.from_transitions(before, action, np.ones(3, np.float32), after, done=np.zeros(3, bool))
            >>> tree = rb.trees.view(rb.add(rb.init(spec), steps), np.int32(0))
            >>> print(tree.to_string())
            0: visits 2, value 1.5
            |-- 1 by 0: visits 1, value 1
            |   `-- 2 by 1: visits 1, value 0
            `-- 3 by 1: visits 1, value 0
        """
        return drawing.to_string(self, node_format, max_nodes)

    def plot(
        self,
        path: str | PathLike[str] | None = None,
        *,
        labels: Callable[[TreeView, int], str] | None = None,
        max_nodes: int = drawing.MOST,
    ) -> drawing.Figure:
        """An interactive picture of a tree: nodes sized by visits and coloured by value, edges labelled by action.

        A text shows where the pointer rests on a node. Of the first level for which there is no room the most visited
        nodes are shown, and the rest is folded: the node above is a square, and tells how many nodes are below.

        Args:
            path: of an HTML page to write, which needs nothing else; None for none.
            labels: makes the text of a node, of the tree and its number; by default what is known of it.
            max_nodes: how many nodes to show at most.

        Returns:
            The figure, of `plotly.graph_objects`.

        Raises:
            ImportError: if plotly is not installed.
        """
        return drawing.plot(self, path, labels, max_nodes)


def of_search(tree: Tree) -> TreeView:
    """The nodes of one search tree level by level; in storage a parent stands before its children."""
    if tree.batch:
        raise ValueError(f"trees.view: expected one tree, got a batch {tree.batch}; give tree.at(0), and so on")
    links = {name: host(getattr(tree, name)) for name in soundness.LINKS}
    if problem := soundness.problem_of_links(tree.spec, links):
        raise ValueError(f"trees.view: {problem}; the tree was not made by rb.trees")
    n = max(int(host(tree.size)), 1)
    parent, slot, depth = (host(x)[:n].astype(np.int64) for x in (tree.parent, tree.slot, tree.depth))
    # Level by level, as the order of a level follows from that of the one above.
    rank, order = np.zeros(n, np.int64), [np.zeros(1, np.int64)]
    by_depth = np.argsort(depth, kind="stable")
    ends = np.searchsorted(depth[by_depth], np.arange(int(depth.max()) + 2))
    for level in range(1, len(ends) - 1):
        level_nodes = by_depth[ends[level] : ends[level + 1]]
        level_nodes = level_nodes[np.lexsort((slot[level_nodes], rank[parent[level_nodes]]))]
        rank[level_nodes] = np.arange(ends[level], ends[level + 1])
        order.append(level_nodes)
    nodes = np.concatenate(order)
    up = np.concatenate([[NONE], rank[parent[nodes[1:]]]])
    into = (parent[nodes[1:]], slot[nodes[1:]])
    content, edges = tree.spec.node_content, tree.spec.action_content
    rows, wide = host(tree.rows)[:n], [host(x)[:n] for x in tree.wide]
    action_rows, action_wide = tree.action_rows, tree.action_wide  # not the tree: it would live as long as its view

    def observe(vertices: Ints) -> list[NumpyArray]:
        return row_layout.unpack(numpy_ops.OPS, content.layout, rows[vertices], [x[vertices] for x in wide])

    def act(steps: Ints) -> list[NumpyArray]:
        at = (into[0][steps], into[1][steps])
        if edges is None:
            return [at[1].astype(np.int32)]
        return row_layout.unpack(numpy_ops.OPS, edges.layout, host(action_rows)[at], [host(x)[at] for x in action_wide])

    terminal = host(tree.terminal)[:n][nodes]
    edge = into[0] * tree.spec.children + into[1]
    return TreeView(
        vertex=nodes,
        parent=up,
        depth=depth[nodes],
        visits=host(tree.visits)[:n][nodes].astype(np.int64),
        value=host(tree.value)[:n][nodes],
        terminal=terminal,
        repeats=np.zeros(n, bool),
        cut=np.zeros(n, bool),
        steps=Steps(into[0], nodes[1:], edge, host(tree.reward)[into], terminal[1:]),
        first_step=np.concatenate([[0], np.arange(n)]),
        spec=tree.spec,
        observations=content.outline,
        actions=None if edges is None else edges.outline,
        observe=observe,
        act=act,
    )
