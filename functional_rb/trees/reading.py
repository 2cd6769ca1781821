"""Functions that read trees on the host: of `rb.forests.tree`, and search trees. A node is named by its number.

Nodes are numbered level by level, the root is 0, and siblings follow on each other. An *id* is the number of a node's
vertex in its forest, or of a search tree's node in storage; several nodes may have one.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from functional_rb.base import nest
from functional_rb.base.dtypes import whole_number
from functional_rb.base.steps import ACTION, FLAGS, NEXT, OBSERVATION, REWARD
from functional_rb.hash_maps.spec import rows_of
from functional_rb.ops import numpy_ops
from functional_rb.specs import Binary, Categorical, Unbounded, cardinality
from functional_rb.specs.values import Outline
from functional_rb.structures import hash_map, key_rows
from functional_rb.structures.hash_map import MapPlan
from functional_rb.trees.forest_spec import ForestSpec
from functional_rb.trees.view import NONE, Ints, TreeView, view

CHUNK = 4096
"""So many nodes are looked at at once."""
Path = tuple[int, ...]
"""The slots that lead from the root to a node."""


def _at(tree: Any, node: Any, who: str) -> tuple[TreeView, int]:
    """What is read, and the number of one of its nodes.

    Raises:
        TypeError: if the number is none.
        ValueError: if the tree has no such node.
    """
    seen = view(tree)
    number = whole_number(node, f"trees.{who}", "the number of a node")
    if not 0 <= number < len(seen):
        raise ValueError(f"trees.{who}: expected a node from 0 to {len(seen) - 1}, got {number}")
    return seen, number


# --- nodes ----------------------------------------------------------------------------------------------------------


def parent(tree: Any, node: int) -> int | None:
    """The node above a node; None of the root."""
    seen, node = _at(tree, node, "parent")
    up = int(seen.parent[node])
    return None if up == NONE else up


def children(tree: Any, node: int = 0) -> range:
    """The nodes below a node, in the order of their slots."""
    seen, node = _at(tree, node, "children")
    first = int(seen.first_child[node])
    return range(first, first + int(seen.num_children[node]))


def num_children(tree: Any, node: int = 0) -> int:
    """How many children a node has."""
    seen, node = _at(tree, node, "num_children")
    return int(seen.num_children[node])


def is_terminal(tree: Any, node: int = 0) -> bool:
    """Whether a node has no children. Whether an episode ended there by its rules is `view(tree).terminal`."""
    seen, node = _at(tree, node, "is_terminal")
    return int(seen.num_children[node]) == 0


def visits(tree: Any, node: int = 0) -> int:
    """How often a node was reached from its parent; of a forest's root, how many steps began there."""
    seen, node = _at(tree, node, "visits")
    return int(seen.visits[node])


def fully_expanded(tree: Any, node: int = 0, actions: Any = None) -> bool:
    """Whether each action was taken in a node.

    Args:
        tree: to read.
        node: the node.
        actions: how many actions there are, or their spec; that of the tree if None.

    Raises:
        ValueError: if there are infinitely many actions.
    """
    seen, node = _at(tree, node, "fully_expanded")
    spec = full_specs(seen)["action"] if actions is None else actions
    most = spec if isinstance(spec, int) else cardinality(spec)
    if most == float("inf"):
        raise ValueError("trees.fully_expanded: there are infinitely many actions; give how many count, actions=n")
    edges = seen.steps.edge[seen.first_step[children(seen, node)]]
    return len(np.unique(edges)) == most


def branching_action(tree: Any, node: int = 0) -> Any:
    """The action by which the way to a node left its parent; None of the root. In a nest as it was given."""
    return _action_before(*_at(tree, node, "branching_action"), 0)


def prev_action(tree: Any, node: int = 0) -> Any:
    """The last action before a node; None of the root. Where one step lies between two nodes, `branching_action`."""
    return _action_before(*_at(tree, node, "prev_action"), -1)


def _action_before(seen: TreeView, node: int, which: int) -> Any:
    steps = np.arange(seen.first_step[node], seen.first_step[node + 1])
    return _nested(seen.actions, [x[0] for x in seen.act(steps[which:][:1])]) if len(steps) else None


def selected_actions(tree: Any, node: int = 0) -> Any:
    """The actions that lead from a node to its children, leaves [children, *shape]; None without children."""
    seen, node = _at(tree, node, "selected_actions")
    below = children(seen, node)
    return _nested(seen.actions, seen.act(seen.first_step[below])) if below else None


def node_observation(tree: Any, node: int = 0) -> Any:
    """What a node stands for, in a nest as it was given."""
    seen, node = _at(tree, node, "node_observation")
    return _nested(seen.observations, [x[0] for x in seen.observe(seen.vertex[node : node + 1])])


def node_observations(tree: Any, node: int = 0) -> dict[str, Any]:
    """What a node stands for, always as a dict, by the names that it has in a step."""
    return _named(node_observation(tree, node))


def contains(tree: Any, observation: Any) -> bool:
    """Whether a node of the tree has an observation, compared as a whole; also `observation in view(tree)`."""
    return observation in view(tree)


# --- whole trees ----------------------------------------------------------------------------------------------------


def num_vertices(tree: Any, *, count_repeat: bool = False) -> int:
    """How many vertices a tree has; with `count_repeat` each as often as it is a node."""
    seen = view(tree)
    return len(seen) if count_repeat else len(seen.unique)


def edges(tree: Any, *, dense: bool = False) -> Ints:
    """The ids of parent and child of each edge, level by level, int64 [nodes - 1, 2].

    Args:
        tree: to read.
        dense: in place of ids, which of the tree's vertices it is, `view(tree).dense`: 0 to `num_vertices(tree) - 1`,
            as arrays of vertices and programs for graphs number them. A compact tree has few of a forest's ids.
    """
    seen = view(tree)
    numbers = seen.dense if dense else seen.vertex
    return np.stack([numbers[seen.parent[1:]], numbers[1:]], 1)


def max_length(tree: Any) -> int:
    """How many edges the longest way from the root has; 0 of a single node."""
    return int(view(tree).depth[-1])


def valid_paths(tree: Any) -> Iterator[Path]:
    """The ways from the root to each leaf, as slots, from left to right; made as they are asked for."""
    return _paths(view(tree), leaves_alone=True)


def _paths(seen: TreeView, leaves_alone: bool) -> Iterator[Path]:
    """The ways to nodes, from left to right, a node before those below it."""
    way = [0] * (int(seen.depth[-1]) + 1)
    for begin in range(0, len(seen), CHUNK):
        at = seen.in_preorder[begin : begin + CHUNK]
        wanted = (seen.num_children[at] == 0) | (not leaves_alone)
        for depth, slot, yes in zip(seen.depth[at].tolist(), seen.slot[at].tolist(), wanted.tolist(), strict=True):
            way[depth] = slot
            if yes:
                yield tuple(way[1 : depth + 1])


class _Items(ItemsView[Any, int]):
    """Keys and nodes side by side, without a search for each."""

    def __init__(self, mapping: Vertices | NodesByPath) -> None:
        """Take the mapping."""
        super().__init__(mapping)
        self._keys, self._nodes = mapping, mapping.nodes

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """The pairs, in the order of the keys."""
        return zip(self._keys, self._nodes(), strict=True)


class Vertices(Mapping[Any, int]):
    """Nodes by a key: found when they are asked for, without a copy of the tree."""

    def __init__(self, seen: TreeView, keys: Ints, nodes: Ints) -> None:
        """Take keys, ascending, and the node of each."""
        self._view, self._keys, self._nodes = seen, keys, nodes

    def __getitem__(self, key: Any) -> int:
        """The node of a key."""
        if isinstance(key, bool) or not isinstance(key, int | np.integer):
            raise KeyError(key)
        at = int(np.searchsorted(self._keys, key))
        if at == len(self._keys) or self._keys[at] != key:
            raise KeyError(key)
        return int(self._nodes[at])

    def __iter__(self) -> Iterator[int]:
        """The keys, ascending."""
        return iter(self._keys.tolist())

    def __len__(self) -> int:
        """How many there are."""
        return len(self._keys)

    def nodes(self) -> Iterable[int]:
        """The nodes, in the order of the keys."""
        found: list[int] = self._nodes.tolist()
        return found

    def items(self) -> ItemsView[Any, int]:
        """Keys and nodes."""
        return _Items(self)


class NodesByPath(Mapping[Path, int]):
    """All nodes by the slots that lead there, from left to right, a node before those below it."""

    def __init__(self, seen: TreeView) -> None:
        """Take the tree."""
        self._view = seen

    def __getitem__(self, path: Path) -> int:
        """The node at a path."""
        try:
            return self._view.node_at(path)
        except TypeError:
            raise KeyError(path) from None

    def __iter__(self) -> Iterator[Path]:
        """The paths."""
        return _paths(self._view, leaves_alone=False)

    def __len__(self) -> int:
        """How many nodes there are."""
        return len(self._view)

    def nodes(self) -> Iterable[int]:
        """The nodes, in the order of the paths."""
        found: list[int] = self._view.in_preorder.tolist()
        return found

    def items(self) -> ItemsView[Path, int]:
        """Paths and nodes."""
        return _Items(self)


def vertices(tree: Any, *, key_type: Literal["id", "hash", "path"] = "hash") -> Mapping[Any, int]:
    """Nodes by a key; of a vertex that is several nodes, the first.

    Args:
        tree: to read.
        key_type: "id" for the ids, "hash" for the hash of the observation, "path" for the slots from the root, by which
            each node has a key of its own.

    Returns:
        A mapping that finds its answers when it is asked.

    Raises:
        ValueError: for another type of key, or if two observations have one hash (of 60 bits).
    """
    seen = view(tree)
    if key_type == "path":
        return NodesByPath(seen)
    if key_type == "id":
        return Vertices(seen, seen.unique, seen.first_nodes)
    if key_type != "hash":
        raise ValueError(f"trees.vertices: expected key_type 'id', 'hash' or 'path', got {key_type!r}")
    hashes = _hashes(seen, seen.unique)
    order = np.argsort(hashes, kind="stable")
    if (np.diff(hashes[order]) == 0).any():
        raise ValueError("trees.vertices: two observations have the same hash; ask by key_type='id'")
    return Vertices(seen, hashes[order], seen.first_nodes[order])


def node_hash(tree: Any, node: int = 0) -> int:
    """The hash of a node's observation: the same for equal observations, in each tree and process."""
    seen, node = _at(tree, node, "node_hash")
    return int(_hashes(seen, seen.vertex[node : node + 1])[0])


def _hashes(seen: TreeView, which: Ints) -> Ints:
    keys = rows_of(seen.observations)
    rows = key_rows.pack(numpy_ops, keys, seen.observe(which), np.zeros(len(which), np.int32))
    plans = (MapPlan(hash_map.MOST, keys.words, seed) for seed in (0, 1))
    high, low = (hash_map.homes(numpy_ops, plan, rows).astype(np.int64) for plan in plans)
    return high << 30 | low


def get_vertex_by_id(tree: Any, id: int) -> int:
    """The first node with an id.

    Raises:
        KeyError: if there is none.
    """
    return vertices(tree, key_type="id")[id]


def get_vertex_by_hash(tree: Any, hash: int) -> int:
    """The first node whose observation has a hash.

    Raises:
        KeyError: if there is none.
    """
    return vertices(tree, key_type="hash")[hash]


def rollout_from_path(tree: Any, path: Path) -> dict[str, Any] | None:
    """The steps on a way from the root, in TED.

    Args:
        tree: to read.
        path: the slots to take, from the root on.

    Returns:
        Steps, leaves [T, *shape]; None for a way of no steps. A reward is the mean of an edge that was taken several
        times; a step is terminated if an episode ever ended where it led.

    Raises:
        KeyError: if there is no such way.
        TypeError: for what is no sequence of slots.

    Example:
        >>> spec = frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(2), capacity=100, children=2)
        >>> before, action, after = (np.array(x, np.int32) for x in ([0, 1, 0], [0, 1, 1], [1, 2, 3]))
        >>> steps = frb.ted.from_transitions(before, action, np.ones(3, np.float32), after, done=np.zeros(3, bool))
        >>> tree = rb.forests.tree(rb.forests.extend(rb.forests.init(spec), steps), np.int32(0), compact=True)
        >>> rollout = frb.trees.rollout_from_path(tree, (0,))
        >>> rollout["action"].tolist(), rollout["next"]["observation"].tolist()
        ([0, 1], [1, 2])
    """
    seen = view(tree)
    node = seen.node_at(path)
    nodes = []
    while node:
        nodes.append(node)
        node = int(seen.parent[node])
    if not nodes:
        return None
    spans = [np.arange(seen.first_step[k], seen.first_step[k + 1]) for k in reversed(nodes)]
    return _in_ted(seen, np.concatenate(spans))


def _in_ted(seen: TreeView, which: Ints) -> dict[str, Any]:
    steps = seen.steps
    before, after = (_named(_nested(seen.observations, seen.observe(at[which]))) for at in (steps.start, steps.end))
    no, terminated = np.zeros(len(which), bool), steps.terminated[which]
    done = {"done": terminated, "terminated": terminated, "truncated": no}
    action = _nested(seen.actions, seen.act(which))
    return {**before, ACTION: action, **dict.fromkeys(FLAGS, no), NEXT: {**after, REWARD: steps.reward[which], **done}}


def _nested(outline: Outline | None, leaves: list[Any]) -> Any:
    """Leaves in the containers of a spec, its mappings as dicts."""
    if outline is None:
        return leaves[0]
    return nest.unflatten(outline.structure, leaves, lambda kind, parts, batch: parts)


def _named(observation: Any) -> dict[str, Any]:
    return observation if isinstance(observation, dict) else {OBSERVATION: observation}


# --- specs of what is stored ----------------------------------------------------------------------------------------


def full_specs(tree: Any) -> dict[str, Any]:
    """The specs of what a tree stores of each step, by what it is.

    Returns:
        A dict of "observation", the specs of `node_observations` by name; "action", of a search tree without actions
        that of the number of a slot; "reward", float32; "done", those of the flags by name; and "state", those of
        what a step holds besides: none.
    """
    spec = view(tree).spec
    observation = spec.observation if isinstance(spec, ForestSpec) else spec.node
    return {
        "observation": dict(observation) if isinstance(observation, Mapping) else {OBSERVATION: observation},
        "action": Categorical(spec.children) if spec.action is None else spec.action,
        "reward": Unbounded(()),
        "done": {name: Binary(()) for name in FLAGS},
        "state": {},
    }
