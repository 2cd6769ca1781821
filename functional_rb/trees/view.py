"""A tree on the host, as what reads trees sees it: NumPy arrays in which siblings lie side by side."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from functional_rb.base import nest
from functional_rb.base.dtypes import whole_number
from functional_rb.ops import numpy_ops
from functional_rb.specs.values import Outline
from functional_rb.structures import row_layout
from functional_rb.trees import soundness
from functional_rb.trees.spec import Content
from functional_rb.trees.state import Tree

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
NONE: Final = -1


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Steps:
    """Steps, one after another.

    Attributes:
        start: int64 [S], the vertex where each begins.
        end: int64 [S], the vertex where it leads.
        edge: int64 [S], the number of its edge; steps of one vertex with equal actions have the same.
        reward: float32 [S], its mean reward.
        terminated: bool [S], whether it ended an episode by its rules, at least once.
    """

    start: Ints
    end: Ints
    edge: Ints
    reward: Floats
    terminated: Bools


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TreeView:
    """A tree that can be read: n nodes, the root first, then level by level, siblings side by side.

    A *vertex* is an observation, or what else a node stands for. Where a tree was read from a forest, several nodes may
    be of one vertex: it was met on several ways from the root.

    Attributes:
        vertex: int64 [n], the number of each node's vertex in the forest, or of the node in a search tree.
        parent: int64 [n], -1 of the root.
        slot: int64 [n], which of its parent's children a node is, from 0 on; -1 of the root.
        depth: int64 [n], how many edges lie between the root and a node.
        visits: int64 [n], how often a node was reached from its parent; of the root, how many steps began there.
        value: float32 [n], the value of a search tree's node. Of a forest's the mean of the sum of rewards below it.
        terminal: bool [n], whether an episode ended here by its rules.
        repeats: bool [n], whether a node's vertex lies above it too, so that its children are not repeated.
        cut: bool [n], whether children of a node were left out, as the tree would be too deep or too large.
        first_child: int64 [n], the first of a node's children, if it has some.
        num_children: int64 [n], how many it has.
        steps: the steps between nodes; those that lead to node k are `first_step[k]` to `first_step[k + 1] - 1`.
        first_step: int64 [n + 1].
        spec: the description of the forest, or of the search tree, that this was read from.
        observations: the nest of what a vertex holds.
        actions: the nest of what an edge holds; None if that is the number of a slot.
        observe: the leaves of observations int64 [m] -> [m, *shape].
        act: the leaves of the actions of steps int64 [m] -> [m, *shape].
    """

    vertex: Ints
    parent: Ints
    slot: Ints
    depth: Ints
    visits: Ints
    value: Floats
    terminal: Bools
    repeats: Bools
    cut: Bools
    first_child: Ints
    num_children: Ints
    steps: Steps
    first_step: Ints
    spec: Any
    observations: Outline
    actions: Outline | None
    observe: Callable[[Ints], list[Any]]
    act: Callable[[Ints], list[Any]]

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self.vertex)

    def __repr__(self) -> str:
        """How large it is."""
        return f"TreeView({len(self)} nodes, {len(self.levels) - 2} deep)"

    def __contains__(self, observation: Any) -> bool:
        """Whether a node has an observation, which is compared as a whole.

        Raises:
            ValueError: for another structure than that of the observations, or another shape, naming the leaf.
        """
        given = nest.flatten_as(self.observations.structure, observation)
        which = self.unique
        found = np.ones(len(which), bool)
        for have, one, name in zip(self.observe(which), given, self.observations.names, strict=True):
            one = host(one)
            if one.shape != have.shape[1:]:
                shape = list(have.shape[1:])
                raise ValueError(f"trees: observation: leaf {name!r}: expected shape {shape}, got {list(one.shape)}")
            same = have == one
            if have.dtype.kind in "fc":
                same |= (have != have) & (one != one)
            found &= same.reshape(len(which), -1).all(1)
        return bool(found.any())

    @functools.cached_property
    def levels(self) -> Ints:
        """Where each level begins, and where the last one ends, int64 [depth + 2]."""
        return np.searchsorted(self.depth, np.arange(int(self.depth[-1]) + 2))

    @functools.cached_property
    def unique(self) -> Ints:
        """The vertices, each once, ascending."""
        return np.unique(self.vertex)

    @functools.cached_property
    def first_nodes(self) -> Ints:
        """The first node of each vertex, in the order of `unique`."""
        return np.unique(self.vertex, return_index=True)[1]

    @functools.cached_property
    def dense(self) -> Ints:
        """The number of each node's vertex among those of the tree, in the order of their coming, int64 [n]."""
        order = np.argsort(self.first_nodes)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return rank[np.searchsorted(self.unique, self.vertex)]

    @functools.cached_property
    def below(self) -> Ints:
        """How many nodes are below each, itself included."""
        sizes = np.ones(len(self), np.int64)
        for level in range(len(self.levels) - 2, 0, -1):
            part = slice(self.levels[level], self.levels[level + 1])
            np.add.at(sizes, self.parent[part], sizes[part])
        return sizes

    @functools.cached_property
    def preorder(self) -> Ints:
        """When each node is met if one goes down before going on to the right."""
        before = np.cumsum(self.below) - self.below
        rank = np.zeros(len(self), np.int64)
        for level in range(1, len(self.levels) - 1):
            part = slice(self.levels[level], self.levels[level + 1])
            up = self.parent[part]
            rank[part] = rank[up] + 1 + before[part] - before[self.first_child[up]]
        return rank

    @functools.cached_property
    def in_preorder(self) -> Ints:
        """The nodes in that order."""
        return np.argsort(self.preorder)

    def path(self, node: int) -> tuple[int, ...]:
        """The slots that lead from the root to a node."""
        slots = []
        while self.parent[node] >= 0:
            slots.append(int(self.slot[node]))
            node = int(self.parent[node])
        return tuple(reversed(slots))

    def node_at(self, path: Any) -> int:
        """The node that slots lead to from the root.

        Raises:
            KeyError: if there is none.
            TypeError: for what is no sequence of slots.
        """
        if isinstance(path, str | bytes) or not hasattr(path, "__iter__"):
            raise TypeError(f"trees: expected a path, the slots that lead from the root to a node, got {path!r}")
        node = 0
        for given in path:
            slot = whole_number(given, "trees: path", "the number of a slot")
            if not 0 <= slot < self.num_children[node]:
                raise KeyError(path)
            node = int(self.first_child[node]) + slot
        return node


def children_of(parent: Ints, n: int) -> tuple[Ints, Ints]:
    """The first child and the number of children of each node, of the parents of nodes whose siblings lie together."""
    num = np.bincount(parent[1:], minlength=n).astype(np.int64)
    return 1 + np.cumsum(num) - num, num


def host(array: Any) -> Any:
    """An array of any library in NumPy."""
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)


_VIEWS: weakref.WeakKeyDictionary[Tree, TreeView] = weakref.WeakKeyDictionary()
"""The views of search trees that are alive."""


def view(tree: Any) -> TreeView:
    """A tree as it is read; of a search tree, the nodes are put in order once.

    Raises:
        TypeError: for what is no tree.
        ValueError: for a batch of trees.
    """
    if isinstance(tree, TreeView):
        return tree
    if not isinstance(tree, Tree):
        raise TypeError(
            f"frb.trees: expected a tree of rb.forests.tree or of rb.trees, got {type(tree).__name__}; "
            f"of a forest, read one by rb.forests.tree(forest, observation)"
        )
    if tree.batch:
        raise ValueError(f"frb.trees: expected one tree, got a batch {tree.batch}; read tree.at(0), and so on")
    if tree not in _VIEWS:
        _VIEWS[tree] = _of_search(tree)
    return _VIEWS[tree]


def _of_search(tree: Tree) -> TreeView:
    """The nodes of a search tree level by level; in storage a parent stands before its children.

    Raises:
        ValueError: for a tree that nobody has made so.
    """
    found = {name: host(getattr(tree, name)) for name in soundness.LINKS}
    if problem := soundness.problem_of_links(tree.spec, found):
        raise ValueError(f"frb.trees: {problem}; the tree was not made by rb.trees")
    n = max(int(host(tree.size)), 1)
    parent, slot, depth = (host(x)[:n].astype(np.int64) for x in (tree.parent, tree.slot, tree.depth))
    # Level by level, as the order of a level follows from that of the one above.
    rank, order = np.zeros(n, np.int64), [np.zeros(1, np.int64)]
    by_depth = np.argsort(depth, kind="stable")
    ends = np.searchsorted(depth[by_depth], np.arange(int(depth.max()) + 2))
    for level in range(1, len(ends) - 1):
        own = by_depth[ends[level] : ends[level + 1]]
        own = own[np.lexsort((slot[own], rank[parent[own]]))]
        rank[own] = np.arange(ends[level], ends[level + 1])
        order.append(own)
    nodes = np.concatenate(order)
    up = np.concatenate([[NONE], rank[parent[nodes[1:]]]])
    first, num = children_of(up, n)
    places = np.arange(n) - np.concatenate([[0], first[up[1:]]])
    places[0] = NONE
    into = (parent[nodes[1:]], slot[nodes[1:]])
    content, edges = tree.spec.node_content, tree.spec.action_content
    rows, wide = host(tree.rows)[:n], [host(x)[:n] for x in tree.wide]
    action_rows, action_wide = tree.action_rows, tree.action_wide  # not the tree: it would live as long as its view

    def observe(vertices: Ints) -> list[Any]:
        return _unpacked(content, rows[vertices], [x[vertices] for x in wide])

    def act(steps: Ints) -> list[Any]:
        at = (into[0][steps], into[1][steps])
        if edges is None:
            return [at[1].astype(np.int32)]
        return _unpacked(edges, host(action_rows)[at], [host(x)[at] for x in action_wide])

    terminal = host(tree.terminal)[:n][nodes]
    edge = into[0] * tree.spec.children + into[1]
    return TreeView(
        vertex=nodes,
        parent=up,
        slot=places,
        depth=depth[nodes],
        visits=host(tree.visits)[:n][nodes].astype(np.int64),
        value=host(tree.value)[:n][nodes],
        terminal=terminal,
        repeats=np.zeros(n, bool),
        cut=np.zeros(n, bool),
        first_child=first,
        num_children=num,
        steps=Steps(into[0], nodes[1:], edge, host(tree.reward)[into], terminal[1:]),
        first_step=np.concatenate([[0], np.arange(n)]),
        spec=tree.spec,
        observations=content.outline,
        actions=None if edges is None else edges.outline,
        observe=observe,
        act=act,
    )


def _unpacked(content: Content, rows: Any, wide: list[Any]) -> list[Any]:
    return row_layout.unpack(numpy_ops, content.layout, rows, wide)
