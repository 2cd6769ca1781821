"""The search: simulations that select, expand and back up, over any `TreeOps`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, TreeOps
from functional_rb.trees import nodes
from functional_rb.trees.nodes import edges_of, get, node_index, put
from functional_rb.trees.policies import Policy, visit_shares
from functional_rb.trees.scores import Score, log_softmax, next_bits
from functional_rb.trees.spec import TreeSpec
from functional_rb.trees.state import NONE, ROOT, Tree


class Leaf(NamedTuple):
    """Where a simulation ends: an edge, and what lies behind it.

    Attributes:
        node: int32 [B], the node from which the last edge was taken; -1 if a tree cannot be searched, as it is empty,
            or its root is terminal.
        slot: int32 [B], the slot that was taken.
        child: int32 [B], the node behind it; -1 if none is stored.
        value: float32 [B], what is to be backed up: the predicted value of the node behind the edge, which `expand`
            fills in; 0 before.
    """

    node: Array
    slot: Array
    child: Array
    value: Array


class Evaluated(NamedTuple):
    """An `Expansion` as arrays.

    Attributes:
        node: the leaves of the content, each [B, *shape].
        prior: float32 [B, A], logits.
        value: float32 [B].
        reward: float32 [B].
        discount: float32 [B].
        valid: bool [B, A].
        terminal: bool [B].
        actions: the leaves of the actions, each [B, A, *shape].
    """

    node: list[Array]
    prior: Array
    value: Array
    reward: Array
    discount: Array
    valid: Array
    terminal: Array
    actions: list[Array]


class Draws(NamedTuple):
    """The randomness of a search.

    Attributes:
        begin: int32 [B, A, words], for the policy's noise at the root.
        ties: int32 [simulations, B], for each simulation.
        propose: int32 [B], for the proposal.
        keys: one key of the backend for each simulation, for `step`.
    """

    begin: Array
    ties: Array
    propose: Array
    keys: Any


Step = Callable[[list[Array], list[Array] | Array, Any], Evaluated]
"""A model: the leaves of a batch of nodes, the leaves of their actions or the slots, and a key to what lies behind."""


def init(ops: TreeOps, spec: TreeSpec, root: Evaluated, device: Any) -> Tree:
    """Trees of one node each, the root."""
    batch = root.value.shape[0]
    tree = nodes.empty(ops, spec, batch, device)
    at = node_index(ops, tree, tree.size)
    live = tree.size == 0
    tree = _written(ops, tree, at, live, root)
    return dataclasses.replace(
        tree,
        visits=put(ops, tree.visits, at, ops.cast(live, "int32")),
        value=put(ops, tree.value, at, root.value),
        size=tree.size + 1,
    )


@replaceable
def select(ops: Any, tree: Tree, score: Score, slot: Array, bits: Array, max_depth: int) -> Leaf:
    """Go down from the root to an edge behind which no node is stored, a terminal node, or the largest depth.

    Args:
        ops: the backend.
        tree: the batch of trees.
        score: the rule below the root.
        slot: int32 [B], the slot that is taken at the root.
        bits: int32 [B], uniform in [0, 2^31).
        max_depth: how many edges are taken at most.
    """
    root = ops.full_like(tree.size, ROOT)
    none = ops.full_like(tree.size, NONE)
    alive = _searched(ops, tree)
    slot = ops.where(alive, slot, root)
    child = ops.where(alive, _behind(ops, tree, root, slot), none)

    def goes_on(depth: Array, node: Array, slot: Array, child: Array, bits: Array, going: Array) -> Array:
        return ops.count(going) > 0

    def further(depth: Array, node: Array, slot: Array, child: Array, bits: Array, going: Array) -> Any:
        bits = next_bits(ops, bits)
        here = ops.where(going, child, root)
        taken = score.choose(ops, edges_of(ops, tree, here), bits)
        behind = _behind(ops, tree, here, taken)
        node, slot, child = (ops.where(going, new, old) for new, old in ((here, node), (taken, slot), (behind, child)))
        depth = depth + 1
        return depth, node, slot, child, bits, going & _inner(ops, tree, child) & (depth < max_depth)

    depth = ops.count(alive[:0]) + 1
    going = _inner(ops, tree, child) & (depth < max_depth)
    carry = (depth, ops.where(alive, root, none), ops.where(alive, slot, none), child, bits, going)
    _, node, slot, child, _, _ = ops.while_loop(goes_on, further, carry)
    return Leaf(node, slot, child, ops.full_like(tree.low, 0))


def _searched(ops: TreeOps, tree: Tree) -> Array:
    """Whether trees can be searched, bool [B]: they have a root, and it is not terminal."""
    return (tree.size > 0) & ~tree.terminal[:, ROOT]


def _behind(ops: TreeOps, tree: Tree, node: Array, slot: Array) -> Array:
    """The node behind a slot, int32 [B]; -1 if none is stored."""
    return get(ops, tree.children, node_index(ops, tree, node) * tree.spec.children + slot, axes=3)


def _inner(ops: TreeOps, tree: Tree, node: Array) -> Array:
    """Whether nodes int32 [B] are stored and not terminal."""
    stored = node >= 0
    at = node_index(ops, tree, ops.where(stored, node, ops.full_like(node, ROOT)))
    return stored & ~get(ops, tree.terminal, at)


def edge_index(ops: TreeOps, tree: Tree, leaf: Leaf) -> tuple[Array, Array]:
    """Where the edge of a leaf lies among those of all trees, that of the root's first slot if there is none."""
    root = ops.full_like(leaf.node, ROOT)
    at = node_index(ops, tree, ops.maximum(leaf.node, root))
    return at, at * tree.spec.children + ops.maximum(leaf.slot, root)


def expand(ops: TreeOps, tree: Tree, leaf: Leaf, found: Evaluated) -> tuple[Tree, Leaf]:
    """Store the nodes that lie behind the edges of leaves, where there is none and the tree has room.

    Returns:
        The trees, and the leaves with the nodes, and with the values that are to be backed up.
    """
    spec = tree.spec
    new = (leaf.node >= 0) & (leaf.child < 0)
    room = tree.size < spec.capacity
    live = new & room
    child = ops.minimum(tree.size, ops.full_like(tree.size, spec.capacity - 1))
    at = node_index(ops, tree, child)
    above, edge = edge_index(ops, tree, leaf)
    tree = _written(ops, tree, at, live, found)
    below = get(ops, tree.depth, above) + 1
    tree = dataclasses.replace(
        tree,
        parent=put(ops, tree.parent, at, leaf.node, live),
        slot=put(ops, tree.slot, at, leaf.slot, live),
        depth=put(ops, tree.depth, at, below, live),
        children=put(ops, tree.children, edge, child, live, axes=3),
        reward=put(ops, tree.reward, edge, found.reward, new, axes=3),
        discount=put(ops, tree.discount, edge, found.discount, new, axes=3),
        size=tree.size + ops.cast(live, "int32"),
        refused=tree.refused + ops.cast(new & ~room, "int32"),
    )
    child = ops.where(live, child, leaf.child)
    stored = child >= 0
    # Read of what has just been written: of what was there before, XLA would have to make a copy.
    known = get(ops, tree.prediction, node_index(ops, tree, ops.where(stored, child, ops.full_like(child, ROOT))))
    return tree, leaf._replace(child=child, value=ops.where(stored, known, found.value))


def _written(ops: TreeOps, tree: Tree, at: Array, live: Array, found: Evaluated) -> Tree:
    """Trees with what a model says of nodes written at indices among all nodes, where live."""
    spec = tree.spec
    layout = spec.node_content.layout
    rows, wide = nodes.store(ops, layout, tree.rows, tree.wide, at, live, found.node, 2)
    action_rows, action_wide = tree.action_rows, tree.action_wide
    if spec.action_content is not None:
        slots = ops.arange(spec.children, like=at)
        edges = (at[:, None] * spec.children + slots[None]).reshape(-1)
        all_live = (live[:, None] & (slots >= 0)[None]).reshape(-1)
        leaves = [x.reshape(-1, *x.shape[2:]) for x in found.actions]
        layout = spec.action_content.layout
        action_rows, action_wide = nodes.store(ops, layout, action_rows, action_wide, edges, all_live, leaves, 3)
    return dataclasses.replace(
        tree,
        prediction=put(ops, tree.prediction, at, found.value, live),
        terminal=put(ops, tree.terminal, at, found.terminal | ~_any(ops, found.valid), live),
        prior=put(ops, tree.prior, at, log_softmax(ops, found.prior, found.valid), live),
        valid=put(ops, tree.valid, at, found.valid, live),
        rows=rows,
        wide=wide,
        action_rows=action_rows,
        action_wide=action_wide,
    )


def _any(ops: TreeOps, mask: Array) -> Array:
    """Whether any of each row is true."""
    return ops.total(mask) > 0


@replaceable
def backup(ops: Any, tree: Tree, leaf: Leaf, score: Score) -> Tree:
    """Bring the values of leaves back to the root, and count the visits."""
    going = leaf.node >= 0
    stored = leaf.child >= 0
    at = node_index(ops, tree, ops.where(stored, leaf.child, ops.full_like(leaf.child, ROOT)))
    visits, value = _visited(ops, tree.visits, tree.value, at, leaf.value, stored, 2)
    moving = visits, value, tree.edge_visits, tree.edge_value, tree.statistics, tree.low, tree.high

    def goes_on(node: Array, slot: Array, passed: Array, going: Array, moving: Any) -> Array:
        return ops.count(going) > 0

    def up(node: Array, slot: Array, passed: Array, going: Array, moving: Any) -> Any:
        visits, value, edge_visits, edge_value, statistics, low, high = moving
        at, edge = edge_index(ops, tree, Leaf(node, slot, node, passed))
        reward, discount = (get(ops, x, edge, axes=3) for x in (tree.reward, tree.discount))
        returns = reward + discount * passed
        edge_visits, edge_value = _visited(ops, edge_visits, edge_value, edge, passed, going, 3)
        visits, value = _visited(ops, visits, value, at, returns, going, 2)
        q = reward + discount * get(ops, edge_value, edge, axes=3)
        low = ops.where(going, ops.minimum(low, q), low)
        high = ops.where(going, ops.maximum(high, q), high)
        if score.statistics:
            now = dataclasses.replace(
                tree,
                visits=visits,
                value=value,
                edge_visits=edge_visits,
                edge_value=edge_value,
                statistics=statistics,
                low=low,
                high=high,
            )
            edges = edges_of(ops, now, ops.maximum(node, ops.full_like(node, ROOT)))
            learned = score.learned(ops, edges, ops.maximum(slot, ops.full_like(slot, 0)), returns)
            changed = {name: put(ops, statistics[name], edge, x, going, axes=3) for name, x in learned.items()}
            statistics = statistics | changed
        node, slot = get(ops, tree.parent, at), get(ops, tree.slot, at)
        moving = visits, value, edge_visits, edge_value, statistics, low, high
        return node, slot, returns, going & (node >= 0), moving

    carry = (leaf.node, leaf.slot, leaf.value, going, moving)
    visits, value, edge_visits, edge_value, statistics, low, high = ops.while_loop(goes_on, up, carry)[4]
    return dataclasses.replace(
        tree,
        visits=visits,
        value=value,
        edge_visits=edge_visits,
        edge_value=edge_value,
        statistics=statistics,
        low=low,
        high=high,
    )


def _visited(
    ops: TreeOps, visits: Array, value: Array, at: Array, new: Array, live: Array, axes: int
) -> tuple[Array, Array]:
    """Visits and mean values, with one visit more at indices where live, that brought a new value."""
    one_more = get(ops, visits, at, axes) + ops.cast(live, "int32")
    visits = put(ops, visits, at, one_more, axes=axes)
    # Read again of what has been written: XLA would else copy all visits to read them after that.
    count, mean = ops.cast(get(ops, visits, at, axes), "float32"), get(ops, value, at, axes)
    mean = ops.where(live, (mean * (count - 1.0) + new) / count, mean)
    return visits, put(ops, value, at, mean, axes=axes)


def select_by(ops: TreeOps, tree: Tree, score: Score, bits: Array, max_depth: int) -> Leaf:
    """`select` by a score alone, at the root too."""
    slot = score.choose(ops, edges_of(ops, tree, ops.full_like(tree.size, ROOT)), bits)
    return select(ops, tree, score, slot, bits, max_depth)


def search(
    ops: TreeOps, tree: Tree, draws: Draws, step: Step, policy: Policy, simulations: int, max_depth: int
) -> tuple[Tree, Array, Array]:
    """Some simulations from the root; returns the trees, the slots int32 [B] proposed, and the improved policy."""
    root_node = ops.full_like(tree.size, ROOT)
    root = policy.begin(ops, edges_of(ops, tree, root_node), draws.begin)

    def simulate(i: Any, tree: Tree) -> Tree:
        bits = draws.ties[i]
        slot = policy.choose(ops, edges_of(ops, tree, root_node), root, i, simulations, bits)
        leaf = select(ops, tree, policy.score, slot, bits, max_depth)
        found = step(*content_of(ops, tree, leaf), draws.keys[i])
        return backup(ops, *expand(ops, tree, leaf, found), policy.score)

    tree = ops.repeat(simulations, simulate, tree)
    slot, weights = policy.propose(ops, edges_of(ops, tree, root_node), root, draws.propose)
    return tree, ops.where(_searched(ops, tree), slot, ops.full_like(slot, NONE)), weights


def content_of(ops: TreeOps, tree: Tree, leaf: Leaf) -> tuple[list[Array], list[Array] | Array]:
    """The leaves of the nodes of some edges, and those of their actions; without actions in the spec, the slots."""
    at, edge = edge_index(ops, tree, leaf)
    spec = tree.spec
    content = nodes.read(ops, spec.node_content.layout, tree.rows, tree.wide, at, 2)
    if spec.action_content is None:
        return content, ops.maximum(leaf.slot, ops.full_like(leaf.slot, 0))
    return content, nodes.read(ops, spec.action_content.layout, tree.action_rows, tree.action_wide, edge, 3)


def summary(ops: TreeOps, tree: Tree) -> tuple[Array, Array, Array, Array]:
    """Visits of the root's edges, their shares, the root's value, and the Q values of its edges."""
    edges = edges_of(ops, tree, ops.full_like(tree.size, ROOT))
    return edges.visits, visit_shares(ops, edges), edges.node_value, edges.q
