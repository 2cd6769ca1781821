"""A tree on the host, as what reads trees sees it: NumPy arrays in which siblings lie side by side."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import Array, Nest, NumpyArray
from functional_rb.base.dtypes import whole_number
from functional_rb.base.steps import OBSERVATION
from functional_rb.specs.values import Outline

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
# The slots that lead from the root to a node.
Path = tuple[int, ...]
NONE: Final = -1
# So many nodes are looked at at once.
CHUNK: Final = 4096


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Steps:
    """Steps, one after another."""

    start: Ints  # int64 [S], the vertex where each begins
    end: Ints  # int64 [S], the vertex where it leads
    edge: Ints  # int64 [S], the number of its edge; steps of one vertex with equal actions have the same
    reward: Floats  # float32 [S], its mean reward
    terminated: Bools  # bool [S], whether it ended an episode by its rules, at least once


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Nodes:
    """A tree of n nodes, the root first, then level by level, siblings side by side.

    A *vertex* is an observation, or what else a node stands for. Where a tree was read from a forest, several nodes may
    be of one vertex: it was met on several ways from the root.
    """

    vertex: Ints  # int64 [n], the number of each node's vertex in the forest, or of the node in a search tree
    parent: Ints  # int64 [n], -1 of the root
    depth: Ints  # int64 [n], how many edges lie between the root and a node
    visits: Ints  # int64 [n], how often a node was reached from its parent; of the root, how many steps began there
    # float32 [n], the value of a search tree's node. Of a forest's the mean of the sum of rewards below it.
    value: Floats
    terminal: Bools  # bool [n], whether an episode ended here by its rules
    repeats: Bools  # bool [n], whether a node's vertex lies above it too, so that its children are not repeated
    cut: Bools  # bool [n], whether children of a node were left out, as the tree would be too deep or too large
    steps: Steps  # the steps between nodes; those that lead to node k are `first_step[k]` to `first_step[k + 1] - 1`
    first_step: Ints  # int64 [n + 1]
    # The description of the forest, or of the search tree, that this was read from.
    spec: Any  # a ForestSpec or a TreeSpec, which know more than this module
    observations: Outline  # the nest of what a vertex holds
    actions: Outline | None  # the nest of what an edge holds; None if that is the number of a slot
    observe: Callable[[Ints], list[NumpyArray]]  # the leaves of observations int64 [m] -> [m, *shape]
    act: Callable[[Ints], list[NumpyArray]]  # the leaves of the actions of steps int64 [m] -> [m, *shape]

    def __len__(self) -> int:
        return len(self.vertex)

    def __repr__(self) -> str:
        return f"TreeView({len(self)} nodes, {self.max_length} deep)"

    def __contains__(self, observation: object) -> bool:
        """Whether a node has an observation, which is compared as a whole.

        Raises:
            ValueError: for another structure than that of the observations, or another shape, naming the leaf.
        """
        leaves = nest.flatten_as(self.observations.structure, observation)
        which = self.unique
        same_so_far = np.ones(len(which), bool)
        for have, one, name in zip(self.observe(which), leaves, self.observations.names, strict=True):
            one = host(one)
            if one.shape != have.shape[1:]:
                shape = list(have.shape[1:])
                raise ValueError(f"trees: observation: leaf {name!r}: expected shape {shape}, got {list(one.shape)}")
            same = have == one
            if have.dtype.kind in "fc":  # NaN is itself here, as it is in the map of observations
                same |= (have != have) & (one != one)
            same_so_far &= same.reshape(len(which), -1).all(1)
        return bool(same_so_far.any())

    # --- one node ---------------------------------------------------------------------------------------------------

    def children(self, node: int = 0) -> range:
        """The nodes below a node, in the order of their slots."""
        node = self._checked(node, "children")
        first = int(self.first_child[node])
        return range(first, first + int(self.num_children[node]))

    def branching_action(self, node: int = 0) -> Nest:
        """The action by which the way to a node left its parent; None of the root. In a nest as it was given."""
        return self._action_before(self._checked(node, "branching_action"), 0)

    def prev_action(self, node: int = 0) -> Nest:
        """The last action before a node, None of the root: `branching_action` where one step lies between two nodes."""
        return self._action_before(self._checked(node, "prev_action"), -1)

    def _action_before(self, node: int, which: int) -> object:
        steps = np.arange(self.first_step[node], self.first_step[node + 1])
        return in_nest(self.actions, [x[0] for x in self.act(steps[which:][:1])]) if len(steps) else None

    def selected_actions(self, node: int = 0) -> Nest:
        """The actions that lead from a node to its children, leaves [children, *shape]; None without children."""
        below = self.children(self._checked(node, "selected_actions"))
        return in_nest(self.actions, self.act(self.first_step[below])) if below else None

    def node_observation(self, node: int = 0) -> Nest:
        """What a node stands for, in a nest as it was given."""
        node = self._checked(node, "node_observation")
        return in_nest(self.observations, [x[0] for x in self.observe(self.vertex[node : node + 1])])

    def node_observations(self, node: int = 0) -> dict[str, Nest]:
        """What a node stands for, always as a dict, by the names that it has in a step."""
        return by_name(self.node_observation(self._checked(node, "node_observations")))

    def _checked(self, node: object, who: str) -> int:
        number = whole_number(node, f"trees.{who}", "the number of a node")
        if not 0 <= number < len(self):
            raise ValueError(f"trees.{who}: expected a node from 0 to {len(self) - 1}, got {number}")
        return number

    # --- the whole tree ---------------------------------------------------------------------------------------------

    @property
    def num_vertices(self) -> int:
        """How many vertices the tree has; `len(tree)` counts each as often as it is a node."""
        return len(self.unique)

    @property
    def max_length(self) -> int:
        """How many edges the longest way from the root has; 0 of a single node."""
        return int(self.depth[-1])

    def valid_paths(self) -> Iterator[Path]:
        """The ways from the root to each leaf, as slots, from left to right; made as they are asked for."""
        return self.paths(leaves_alone=True)

    def paths(self, leaves_alone: bool = False) -> Iterator[Path]:
        """The ways to nodes, from left to right, a node before those below it."""
        # In preorder a node's way shares all but its last slots with that of the node before, so one list serves all.
        way = [0] * (self.max_length + 1)
        for begin in range(0, len(self), CHUNK):
            at = self.in_preorder[begin : begin + CHUNK]
            wanted = (self.num_children[at] == 0) | (not leaves_alone)
            for depth, slot, yes in zip(self.depth[at].tolist(), self.slot[at].tolist(), wanted.tolist(), strict=True):
                way[depth] = slot
                if yes:
                    yield tuple(way[1 : depth + 1])

    @functools.cached_property
    def num_children(self) -> Ints:
        """How many children each node has, int64 [n]."""
        return np.bincount(self.parent[1:], minlength=len(self)).astype(np.int64)

    @functools.cached_property
    def first_child(self) -> Ints:
        """The first of each node's children, if it has some, int64 [n]."""
        # Siblings lie side by side, in the order of their parents; the root, node 0, is nobody's child.
        return 1 + np.cumsum(self.num_children) - self.num_children

    @functools.cached_property
    def slot(self) -> Ints:
        """Which of its parent's children a node is, from 0 on, int64 [n]; -1 of the root."""
        return np.concatenate([[NONE], np.arange(1, len(self)) - self.first_child[self.parent[1:]]])

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
            nodes = slice(self.levels[level], self.levels[level + 1])
            np.add.at(sizes, self.parent[nodes], sizes[nodes])
        return sizes

    @functools.cached_property
    def preorder(self) -> Ints:
        """When each node is met if one goes down before going on to the right."""
        before = np.cumsum(self.below) - self.below
        rank = np.zeros(len(self), np.int64)
        for level in range(1, len(self.levels) - 1):
            nodes = slice(self.levels[level], self.levels[level + 1])
            up = self.parent[nodes]
            rank[nodes] = rank[up] + 1 + before[nodes] - before[self.first_child[up]]
        return rank

    @functools.cached_property
    def in_preorder(self) -> Ints:
        """The nodes, sorted by `preorder`."""
        return np.argsort(self.preorder)

    def path(self, node: int) -> Path:
        """The slots that lead from the root to a node."""
        slots = []
        while self.parent[node] >= 0:
            slots.append(int(self.slot[node]))
            node = int(self.parent[node])
        return tuple(reversed(slots))

    def node_at(self, path: object) -> int:
        """The node that slots lead to from the root."""
        if isinstance(path, str | bytes) or not hasattr(path, "__iter__"):
            raise TypeError(f"trees: expected a path, the slots that lead from the root to a node, got {path!r}")
        node = 0
        for value in path:
            slot = whole_number(value, "trees: path", "the number of a slot")
            if not 0 <= slot < self.num_children[node]:
                raise KeyError(path)
            node = int(self.first_child[node]) + slot
        return node


def in_nest(outline: Outline | None, leaves: Sequence[object]) -> Nest:
    """Leaves in the containers of a spec, its mappings as dicts; without a spec there is one leaf."""
    if outline is None:
        return leaves[0]
    return nest.unflatten(outline.structure, leaves, lambda kind, parts, batch: parts)


def by_name(observation: Nest) -> dict[str, Nest]:
    """An observation by the names that its parts have in a step."""
    return observation if isinstance(observation, dict) else {OBSERVATION: observation}


def host(array: Array) -> NumpyArray:
    """An array of any library in NumPy."""
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)
