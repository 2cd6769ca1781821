"""Reading a tree from a forest, on the host."""

from __future__ import annotations

import dataclasses

import numpy as np

from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.lib import A, Lib
from functional_rb.ops import numpy_ops
from functional_rb.ops.protocol import Array
from functional_rb.structures import key_rows
from functional_rb.structures.hash_map import SIZE
from functional_rb.trees.forest import Forest, check_forest, lookup, problem_of_links
from functional_rb.trees.nodes_in_order import NONE, Bools, Floats, Ints, Steps
from functional_rb.trees.state import Tree
from functional_rb.trees.view import TreeView, of_search
from functional_rb.trees.ways import Ways


def view(
    lib: Lib[A],
    forest: Forest | Tree,
    observation: Nest = None,
    max_depth: int | None = None,
    max_nodes: int = 100_000,
    compact: bool = False,
) -> TreeView:
    """The tree of what was seen after an observation, or a search tree, read on the host.

    Of a forest, a node's children are the results of its edges, in the order in which those came first. A vertex that
    is reached in several ways is a node for each. One that lies on the way to itself is a leaf there (`repeats`), so
    that a forest with circles has a finite tree.

    Args:
        forest: to read from; or one search tree, `tree.at(0)` of a batch, which takes none of the other arguments.
        observation: that of the root, one nest like `ForestSpec.observation`, without axes in front.
        max_depth: how many steps to go down; None for all.
        max_nodes: how many nodes to make at most, level by level; the others are cut off (`cut`).
        compact: whether nodes with one child are left out, so that several steps lie between two nodes.

    Returns:
        The tree.

    Raises:
        KeyError: if the forest does not have the observation.
        TypeError: for what is neither a forest nor a search tree, a forest without an observation, or a search tree
            with other arguments.
        ValueError: for axes in front of the observation, numbers out of range, or a batch of search trees.

    Example:
        >>> spec = frb.trees.ForestSpec(frb.Unbounded((), "int32"), frb.Categorical(2), capacity=100, children=2)
        >>> before, action, after = (np.array(x, np.int32) for x in ([0, 1, 0], [0, 0, 1], [1, 0, 2]))
        >>> steps = frb.ted.from_transitions(before, action, np.ones(3, np.float32), after, done=np.zeros(3, bool))
        >>> forest = rb.add(rb.init(spec), steps)
        >>> tree = rb.trees.view(forest, np.int32(0))
        >>> tree.edges().tolist(), list(tree.valid_paths())
        ([[0, 1], [0, 2], [1, 0]], [(0, 0), (1,)])
        >>> spec = frb.trees.TreeSpec(node=(frb.Unbounded(()),), capacity=4, children=2)
        >>> value, prior = np.zeros(1, np.float32), np.zeros((1, 2), np.float32)
        >>> tree = rb.init(spec, items=frb.trees.Expansion((value + 5,), prior, value))
        >>> rb.trees.view(tree.at(0)).node_observation()[0].item()
        5.0
    """
    if isinstance(forest, Tree):
        if observation is not None or max_depth is not None or compact:
            raise TypeError("trees.view: expected a search tree alone, got arguments that are for forests")
        return of_search(forest)
    check_forest(lib, forest, "trees.view")
    if observation is None:
        raise TypeError("trees.view: expected the observation of the root, rb.trees.view(forest, observation)")
    if max_nodes < 1 or (max_depth is not None and max_depth < 0):
        raise ValueError(f"trees.view: expected max_nodes >= 1 and max_depth >= 0, got {max_nodes} and {max_depth}")
    number = np.asarray(lib.to_numpy(lookup(lib, forest, observation)))
    if number.ndim:
        raise ValueError(f"trees.view: expected one observation, got some with the axes {number.shape} in front")
    if number < 0:
        raise KeyError("trees.view: the forest does not have this observation; ask rb.lookup first")
    graph = _Graph(lib, forest)
    tree = graph.unrolled(int(number), max_depth, max_nodes)
    return _compacted(tree) if compact else tree


class _Graph:
    """The results of a forest sorted by the node where they begin."""

    def __init__(self, lib: Lib[A], forest: Forest) -> None:
        def host(array: Array) -> NumpyArray:
            return np.asarray(lib.to_numpy(array))

        arrays, spec = forest.arrays, forest.spec
        self.spec = spec
        rooms = spec.capacity, spec.edges.capacity, spec.results.capacity
        sizes = [min(int(host(x.counters)[SIZE]), room) for x, room in zip(arrays[:3], rooms, strict=True)]
        size, edges, results = sizes
        self.observations, self.actions = host(arrays.nodes.keys), host(arrays.edges.keys)
        keys = host(arrays.results.keys)
        if problem := problem_of_links(sizes, self.actions, keys):
            raise ValueError(f"trees.view: {problem}; the forest was not made by rb.init and rb.add")
        self.actions, keys = self.actions[:edges], keys[:results].astype(np.int64)
        start = self.actions[keys[:, 0], 0].astype(np.int64)
        order = np.lexsort((keys[:, 0], start))  # stable: results of one edge stay in the order in which they came
        self.edge, self.end, self.start = keys[order, 0], keys[order, 1], start[order]
        self.count = host(arrays.results.counts)[order].astype(np.int64)
        self.reward: NumpyArray = host(arrays.result_rewards)[order] / np.maximum(self.count, 1).astype(np.float32)
        self.visits = host(arrays.visits)[:size]
        self.terminal = host(arrays.terminations)[:size] > 0
        # The results of node k are [first[k], first[k] + degree[k]) among those that are sorted by their start.
        self.degree = np.bincount(start, minlength=size)
        self.first = np.cumsum(self.degree) - self.degree

    def unrolled(self, root: int, max_depth: int | None, max_nodes: int) -> TreeView:
        """The tree below a node, a level at a time."""
        vertex, parent = [np.array([root])], [np.array([NONE])]
        result, repeats, cut = [np.zeros(1, np.int64)], [np.zeros(1, bool)], [np.zeros(1, bool)]
        met = np.zeros(len(self.degree), bool)
        met[root] = True
        ways, above = Ways(len(self.degree)), np.array([Ways.EMPTY])
        # A level at a time: [begin, end) are the nodes of the newest one, whose children make the next.
        begin, end = 0, 1
        while begin < end:
            vertices = vertex[-1]
            degree = np.where(repeats[-1], 0, self.degree[vertices])
            if max_depth is not None and len(vertex) > max_depth:
                degree[:] = 0
            # Nodes from left to right get as many children as there is room for in all.
            room = np.clip(max_nodes - end - (np.cumsum(degree) - degree), 0, degree)
            cut[-1] = (room < self.degree[vertices]) & ~repeats[-1]
            total = int(room.sum())
            up = np.repeat(np.arange(begin, end), room)
            which = np.arange(total) + np.repeat(self.first[vertices] - (np.cumsum(room) - room), room)
            below = self.end[which]
            # Whether a child's vertex lies on the way to it, which only one that was met before can.
            led, on_the_way = above.copy(), np.zeros(total, bool)
            led[room > 0] = ways.extended(above[room > 0], vertices[room > 0])
            above = np.repeat(led, room)
            asked = met[below]  # the others are known to lie elsewhere
            on_the_way[asked] = ways.have(above[asked], below[asked])
            vertex.append(below)
            parent.append(up)
            result.append(which)
            repeats.append(on_the_way)
            cut.append(np.zeros(total, bool))
            met[below] = True
            begin, end = end, end + total
        sizes = [len(x) for x in vertex]
        depth = np.repeat(np.arange(len(sizes)), sizes)
        columns = (np.concatenate(x) for x in (vertex, parent, result, repeats, cut))
        return self._view(depth, *columns)

    def _view(self, depth: Ints, vertex: Ints, parent: Ints, which: Ints, repeats: Bools, cut: Bools) -> TreeView:
        n = len(vertex)
        visits = self.count[which] if len(self.count) else np.zeros(n, np.int64)
        # No result leads to the root: it is visited where a step begins there.
        visits = visits.copy()
        visits[0] = self.visits[vertex[0]]
        into = which[1:]
        steps = Steps(self.start[into], self.end[into], self.edge[into], self.reward[into], self.terminal[vertex[1:]])
        # Not the graph itself, which would live as long as the view.
        spec, actions, observations = self.spec, self.actions, self.observations
        edge = steps.edge

        def observe(vertices: Ints) -> list[NumpyArray]:
            return key_rows.unpack(numpy_ops.OPS, spec.node_rows, observations[vertices])

        def act(steps: Ints) -> list[NumpyArray]:
            return key_rows.unpack(numpy_ops.OPS, spec.action_rows, actions[edge[steps], 1:])

        return TreeView(
            vertex=vertex,
            parent=parent,
            depth=depth,
            visits=visits,
            value=_returns(parent, depth, visits, steps.reward),
            terminal=self.terminal[vertex],
            repeats=repeats,
            cut=cut,
            steps=steps,
            first_step=np.concatenate([[0], np.arange(n)]),
            spec=spec,
            observations=spec.observations,
            actions=spec.actions,
            observe=observe,
            act=act,
        )


def _returns(parent: Ints, depth: Ints, visits: Ints, reward: Floats) -> Floats:
    # The mean sum of the rewards below each node, where children are weighed by how often they were reached.
    value = np.zeros(len(parent))
    levels = np.searchsorted(depth, np.arange(int(depth[-1]) + 2))
    for level in range(len(levels) - 2, 0, -1):
        nodes = slice(levels[level], levels[level + 1])
        up, weight = parent[nodes], visits[nodes].astype(np.float64)
        first, last = levels[level - 1], levels[level]
        sums = np.bincount(up - first, weight * (reward[nodes.start - 1 : nodes.stop - 1] + value[nodes]), last - first)
        weights = np.bincount(up - first, weight, last - first)
        value[first:last] = np.divide(sums, weights, out=np.zeros(last - first), where=weights > 0)
    return value.astype(np.float32)


def _compacted(tree: TreeView) -> TreeView:
    # The tree without nodes that have one child, but the root; their steps lie on the way to the next node.
    n = len(tree)
    kept = tree.num_children != 1
    kept[0] = True
    above, down = np.maximum(tree.parent, 0), np.where(kept, np.arange(n), tree.first_child)
    for _ in range(int(tree.depth[-1]).bit_length()):  # pointer doubling
        above = np.where(kept[above], above, above[above])
        down = down[down]
    # The kept nodes, by their new depth, and within a level from left to right.
    nodes = np.flatnonzero(kept)
    number = np.cumsum(kept) - 1
    up = number[above[nodes]]
    hops = (np.arange(len(nodes)) > 0).astype(np.int64)
    further = up.copy()
    for _ in range(int(tree.depth[-1]).bit_length()):
        hops, further = hops + hops[further], further[further]
    order = np.lexsort((tree.preorder[nodes], hops))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    parent = rank[up[order]]
    parent[0] = NONE
    old = nodes[order]
    # The steps of those that are left out belong to the next kept node below, in the order of the way.
    owner = rank[number[down[1:]]]
    sequence = np.lexsort((tree.depth[1:], owner))
    steps = Steps(*(getattr(tree.steps, name)[sequence] for name in ("start", "end", "edge", "reward", "terminated")))
    lengths = np.bincount(owner, minlength=len(old))
    act = tree.act
    return dataclasses.replace(
        tree,
        vertex=tree.vertex[old],
        parent=parent,
        depth=hops[order],
        visits=tree.visits[old],
        value=tree.value[old],
        terminal=tree.terminal[old],
        repeats=tree.repeats[old],
        cut=tree.cut[old],
        steps=steps,
        first_step=np.concatenate([[0], np.cumsum(lengths)]),
        act=lambda chosen: act(sequence[chosen]),
    )
