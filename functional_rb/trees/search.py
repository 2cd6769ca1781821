"""The search: simulations that select, expand and back up, over any `TreeOps`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from functional_rb.base.arrays import BackendArray, DeviceLike, Nest, PRNGKey
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, TreeOps
from functional_rb.structures.row_layout import along
from functional_rb.trees import nodes
from functional_rb.trees.nodes import as_edges, edges_of, get_edge, put_edge, root_edges
from functional_rb.trees.policies import Policy
from functional_rb.trees.scores import Edges, Score, best, log_softmax, next_bits
from functional_rb.trees.spec import TreeSpec
from functional_rb.trees.state import NONE, ROOT, Tree


class Leaf(NamedTuple):
    """Where a simulation ends: an edge, and what lies behind it."""

    # int32 [B], the node from which the last edge was taken; -1 if a tree cannot be searched, as it is empty, or its
    # root is terminal.
    node: BackendArray
    slot: BackendArray  # int32 [B], the slot that was taken
    child: BackendArray  # int32 [B], the node behind it; -1 if none is stored
    # float32 [B], what is to be backed up: the predicted value of the node behind the edge, which `expand` fills in; 0
    # before.
    value: BackendArray


class Evaluated(NamedTuple):
    """An `Expansion` as arrays."""

    node: list[Array]  # the leaves of the content, each [B, *shape]
    prior: Array  # float32 [B, A], logits
    value: Array  # float32 [B]
    reward: Array  # float32 [B]
    discount: Array  # float32 [B]
    valid: Array  # bool [B, A]
    terminal: Array  # bool [B]
    actions: list[Array]  # the leaves of the actions, each [B, A, *shape]
    chance: Array  # bool [B]


class Draws(NamedTuple):
    """The randomness of a search."""

    begin: Array  # int32 [B, A, words], for the policy's noise at the root
    ties: Array  # int32 [simulations, B], for each simulation
    propose: Array  # int32 [B], for the proposal
    keys: Array  # [simulations], keys of the backend, for `step`

    @classmethod
    def of(cls, bits: Array, keys: Array, slots: int, words: int) -> Draws:
        """Draws of random bits int32 [B, 1 + slots * words + simulations], and of the keys."""
        begin = bits[:, 1 : 1 + slots * words].reshape(bits.shape[0], slots, words)
        return cls(begin, bits[:, 1 + slots * words :].T, bits[:, 0], keys)


Step = Callable[[list[Array], list[Array] | Array, PRNGKey], Evaluated]
"""A model: the leaves of a batch of nodes, the leaves of their actions or the slots, and a key to what lies behind."""


def init(ops: TreeOps, root: Evaluated, spec: TreeSpec, device: DeviceLike) -> Tree:
    batch = root.value.shape[0]
    tree = nodes.empty(ops, spec, batch, device)
    root, rejected = _sound(ops, root, ops.full_like(root.value, 0))
    at = tree.size
    live = tree.size == 0
    tree = _written(ops, tree, at, live, root)
    return dataclasses.replace(
        tree,
        visits=ops.set_each(tree.visits, at, None, ops.cast(live, "int32")),
        value=ops.set_each(tree.value, at, None, root.value),
        size=tree.size + 1,
        rejected=rejected,
    )


@replaceable
def select(ops: Any, tree: Tree, score: Score, slot: Array, bits: Array, max_depth: int) -> Leaf:
    """Go down from the root to an edge behind which no node is stored, a terminal node, or the largest depth.

    The slot int32 [B] is taken at the root; below it the score chooses, by random bits int32 [B], but at chance nodes.
    """
    # Trees that have arrived, or cannot be searched, wait for the others: the node from which they go on is -1.
    root, none = ops.full_like(tree.size, ROOT), ops.full_like(tree.size, NONE)
    alive = _searched(ops, tree)
    node, slot = ops.where(alive, root, none), ops.where(alive, slot, none)

    def onward(node: Array, slot: Array) -> Array:
        """The node from which a tree goes on; -1 if that is not stored, terminal, or as deep as it may be."""
        child = _behind(ops, tree, node, slot)
        at = ops.maximum(child, root)
        # A child has a larger number than its parent: whatever a forged tree says, the way down has an end.
        is_inner = (child > node) & ~ops.take_each(tree.terminal, at)
        if max_depth < tree.spec.capacity:
            is_inner = is_inner & (ops.take_each(tree.depth, at) < max_depth)
        return ops.where(is_inner, child, none)

    def goes_on(node: Array, slot: Array, here: Array, bits: Array) -> Array:
        return ops.count(here >= 0) > 0

    def further(node: Array, slot: Array, here: Array, bits: Array) -> tuple[Array, ...]:
        bits, going = next_bits(ops, bits), here >= 0
        at = ops.maximum(here, root)
        edges = edges_of(ops, tree, at)
        taken = _or_outcome(ops, tree, score.choose(ops, edges, bits), at, edges, bits)
        node, slot = ops.where(going, here, node), ops.where(going, taken, slot)
        return node, slot, onward(here, taken), bits

    node, slot, _, _ = ops.while_loop(goes_on, further, (node, slot, onward(node, slot), bits))
    return Leaf(node, slot, _behind(ops, tree, node, slot), ops.full_like(tree.low, 0))


def _or_outcome(ops: TreeOps, tree: Tree, slot: Array, node: Array, edges: Edges, bits: Array) -> Array:
    # The slot int32 [B] that was chosen at a node; at a chance node the outcome that is the furthest behind its prior.
    # That is the one with the largest `P / (1 + n)`, so that the visits follow the prior without being drawn.
    # Antonoglou et al.: Planning in stochastic environments with a learned model (2022), section 4.
    if not tree.spec.chance:
        return slot
    behind = ops.exp(edges.prior) / (ops.cast(edges.visits, "float32") + 1.0)
    return ops.where(ops.take_each(tree.chance, node), best(ops, behind, edges.valid, bits), slot)


def _searched(ops: TreeOps, tree: Tree) -> Array:
    return (tree.size > 0) & ~tree.terminal[:, ROOT]


def _behind(ops: TreeOps, tree: Tree, node: Array, slot: Array) -> Array:
    # The node behind a slot, int32 [B]; -1 if none is stored, or the node is -1.
    child = get_edge(ops, tree.children, edge_index(ops, tree, node, slot)[1])
    return ops.where(node >= 0, child, ops.full_like(node, NONE))


def edge_index(ops: TreeOps, tree: Tree, node: Array, slot: Array) -> tuple[Array, Array]:
    """Where nodes and their edges lie among those of their tree; for -1 the root and its first slot."""
    root = ops.full_like(node, ROOT)
    at = ops.maximum(node, root)
    return at, at * tree.spec.children + ops.maximum(slot, root)


def expand(ops: TreeOps, tree: Tree, leaf: Leaf, answer: Evaluated) -> tuple[Tree, Leaf]:
    """Trees with nodes stored behind leaves, where there is room and none is yet, and leaves with values to back up."""
    spec = tree.spec
    # `new`: whose model's answer counts; `live`: whose node is stored too.
    new = (leaf.node >= 0) & (leaf.child < 0)
    room = tree.size < spec.capacity
    live = new & room
    at = ops.minimum(tree.size, ops.full_like(tree.size, spec.capacity - 1))
    above, edge = edge_index(ops, tree, leaf.node, leaf.slot)
    answer, rejected = _sound(ops, answer, ops.take_each(tree.value, above))
    before = get_edge(ops, tree.children, edge)  # all that is written of edges is written at the same ones
    tree = dataclasses.replace(
        tree,
        parent=ops.set_each(tree.parent, at, live, leaf.node),
        slot=ops.set_each(tree.slot, at, live, leaf.slot),
        depth=ops.set_each(tree.depth, at, live, ops.take_each(tree.depth, above) + 1),
        children=put_edge(ops, tree.children, edge, ops.where(live, at, before), new),
        reward=put_edge(ops, tree.reward, edge, answer.reward, new),
        discount=put_edge(ops, tree.discount, edge, answer.discount, new),
        size=tree.size + ops.cast(live, "int32"),
        refused=tree.refused + ops.cast(new & ~room, "int32"),
        rejected=tree.rejected + ops.where(new, rejected, ops.full_like(rejected, 0)),
    )
    # Read of what has just been written, as is the prediction. Of what was there before, XLA would have to make a
    # copy; and where more than eight steps are ready at once, it hands half of them to another thread on CPUs, which
    # takes longer than the steps themselves. So some are not ready before others are done.
    child = _behind(ops, tree, leaf.node, leaf.slot)
    stored = child >= 0
    at = ops.maximum(child, ops.full_like(child, ROOT))
    tree = _written(ops, tree, at, live, answer)
    return tree, leaf._replace(child=child, value=ops.where(stored, ops.take_each(tree.prediction, at), answer.value))


def _sound(ops: TreeOps, answer: Evaluated, above: Array) -> tuple[Evaluated, Array]:
    # What a model says without its numbers that are NaN or infinite, and how many those were, int32 [B]. The mean
    # values float32 [B] of the nodes above stay as they are where a value is left out.
    # Each number that is left out is replaced by one that changes nothing, so that one NaN cannot spread to the root.
    zero = ops.full_like(above, 0)
    known = [_finite(x) for x in (answer.value, answer.reward, answer.discount)]
    reward, discount = ops.where(known[1], answer.reward, zero), ops.where(known[2], answer.discount, zero)
    nothing = ops.full_like(answer.prior, -math.inf)
    rated = answer.prior < math.inf
    prior = ops.where(answer.valid & rated, answer.prior, nothing)
    prior = ops.where((ops.largest(prior) > -math.inf)[:, None], prior, ops.full_like(prior, 0))
    rejected = ops.total(answer.valid & ~rated)
    for x in known:
        rejected = rejected + ops.cast(~x, "int32")
    value = ops.where(known[0], answer.value, _unchanging(ops, above, reward, discount))
    return answer._replace(prior=prior, value=value, reward=reward, discount=discount), rejected


def _finite(x: Array) -> Array:
    return (x > -math.inf) & (x < math.inf)


def _unchanging(ops: TreeOps, mean: Array, reward: Array, discount: Array) -> Array:
    # The value float32 [B] for which `reward + discount * value` is a mean; 0 where the discount is.
    zero = ops.full_like(mean, 0)
    return ops.where(discount != 0, (mean - reward) / ops.where(discount != 0, discount, zero + 1.0), zero)


def _written(ops: TreeOps, tree: Tree, at: Array, live: Array, answer: Evaluated) -> Tree:
    # Trees with what a model says of a node int32 [B] of each, where live.
    spec = tree.spec
    rows, wide = nodes.store(ops, spec.node_content, tree.rows, tree.wide, at, live, answer.node)
    action_rows, action_wide = tree.action_rows, tree.action_wide
    if spec.action_content is not None:
        action_rows, action_wide = nodes.store(
            ops, spec.action_content, action_rows, action_wide, at, live, answer.actions
        )
    return dataclasses.replace(
        tree,
        prediction=ops.set_each(tree.prediction, at, live, answer.value),
        terminal=ops.set_each(tree.terminal, at, live, answer.terminal | (ops.total(answer.valid) == 0)),
        chance=ops.set_each(tree.chance, at, live, answer.chance) if spec.chance else tree.chance,
        prior=ops.set_each(tree.prior, at, live, log_softmax(ops, answer.prior, answer.valid)),
        valid=ops.set_each(tree.valid, at, live, answer.valid),
        rows=rows,
        wide=wide,
        action_rows=action_rows,
        action_wide=action_wide,
    )


class Tallies(NamedTuple):
    """What a backup changes of a tree; see `Tree`."""

    visits: Array
    value: Array
    edge_visits: Array
    edge_value: Array
    statistics: dict[str, Array]
    low: Array
    high: Array

    @classmethod
    def of(cls, tree: Tree) -> Tallies:
        return cls(*(getattr(tree, name) for name in cls._fields))

    def put_into(self, tree: Tree) -> Tree:
        return dataclasses.replace(tree, **self._asdict())


@replaceable
def backup(ops: Any, tree: Tree, leaf: Leaf, score: Score) -> Tree:

    def goes_on(node: Array, slot: Array, passed: Array, tallies: Tallies) -> Array:
        return ops.count(node >= 0) > 0  # the root's parent is -1

    def up(node: Array, slot: Array, passed: Array, tallies: Tallies) -> tuple[Array, Array, Array, Tallies]:
        going = node >= 0
        visits, value, edge_visits, edge_value, statistics, low, high = tallies
        at, edge = edge_index(ops, tree, node, slot)
        reward, discount = (get_edge(ops, x, edge) for x in (tree.reward, tree.discount))
        # `passed` is the value of the node behind the edge, `returns` what it means to the node above.
        returns = reward + discount * passed
        of_edges = _visited(ops, as_edges(edge_visits), as_edges(edge_value), edge, passed, going)
        edge_visits, edge_value = (x.reshape(edge_visits.shape) for x in of_edges)
        visits, value = _visited(ops, visits, value, at, returns, going)
        q = reward + discount * get_edge(ops, edge_value, edge)
        low = ops.where(going, ops.minimum(low, q), low)
        high = ops.where(going, ops.maximum(high, q), high)
        tallies = Tallies(visits, value, edge_visits, edge_value, statistics, low, high)
        if score.statistics:
            edges = edges_of(ops, tallies.put_into(tree), ops.maximum(node, ops.full_like(node, ROOT)))
            learned = score.learned(ops, edges, ops.maximum(slot, ops.full_like(slot, 0)), returns)
            changed = {name: put_edge(ops, statistics[name], edge, x, going) for name, x in learned.items()}
            tallies = tallies._replace(statistics=statistics | changed)
        # A parent has a smaller number than its child; by the minimum the way up ends even in a tree that was forged.
        return ops.minimum(ops.take_each(tree.parent, at), node - 1), ops.take_each(tree.slot, at), returns, tallies

    carry = (leaf.node, leaf.slot, leaf.value, Tallies.of(tree))
    tallies: Tallies = ops.while_loop(goes_on, up, carry)[3]
    at = ops.maximum(leaf.child, ops.full_like(leaf.child, ROOT))
    visits, value = _visited(ops, tallies.visits, tallies.value, at, leaf.value, leaf.child >= 0)
    return tallies._replace(visits=visits, value=value).put_into(tree)


def _visited(ops: TreeOps, visits: Array, value: Array, at: Array, new: Array, live: Array) -> tuple[Array, Array]:
    # Visits and mean values, with one visit more at indices where live, that brought a new value.
    visits = ops.set_each(visits, at, None, ops.take_each(visits, at) + ops.cast(live, "int32"))
    # Read again of what has been written: XLA would else copy all visits to read them after that.
    count, mean = ops.cast(ops.take_each(visits, at), "float32"), ops.take_each(value, at)
    mean = ops.where(live, (mean * (count - 1.0) + new) / count, mean)
    return visits, ops.set_each(value, at, None, mean)


def select_by(ops: TreeOps, tree: Tree, score: Score, bits: Array, max_depth: int) -> Leaf:
    """`select` by a score alone, at the root too."""
    edges, root = root_edges(tree), ops.full_like(tree.size, ROOT)
    slot = _or_outcome(ops, tree, score.choose(ops, edges, bits), root, edges, bits)
    return select(ops, tree, score, slot, bits, max_depth)


def search(
    ops: TreeOps,
    tree: Tree,
    draws: Draws,
    step: Step,
    policy: Policy,
    simulations: int,
    max_depth: int,
    chance_step: Step | None = None,
) -> tuple[Tree, BackendArray, BackendArray]:
    """Some simulations from the root; returns the trees, the slots int32 [B] proposed, and the improved policy."""
    top = ops.full_like(tree.size, ROOT)
    root = policy.begin(ops, edges_of(ops, tree, top), draws.begin)

    def simulate(i: object, tree: Tree) -> Tree:
        bits, edges = draws.ties[i], root_edges(tree)
        slot = policy.choose(ops, edges, root, i, simulations, bits)
        leaf = select(ops, tree, policy.score, _or_outcome(ops, tree, slot, top, edges, bits), bits, max_depth)
        asked = (*content_of(ops, tree, leaf), draws.keys[i])
        answer = step(*asked)
        if chance_step is not None:
            by_chance = ops.take_each(tree.chance, ops.maximum(leaf.node, top))
            answer = _either(ops, by_chance, chance_step(*asked), answer)
        return backup(ops, *expand(ops, tree, leaf, answer), policy.score)

    tree = ops.repeat(simulations, simulate, tree)
    # The tree has changed: visits at the root are read again.
    slot, weights = policy.propose(ops, root_edges(tree), root, draws.propose)
    # At a chance node nobody acts, so nothing is proposed.
    decides = _searched(ops, tree) & ~tree.chance[:, ROOT]
    return tree, ops.where(decides, slot, ops.full_like(slot, NONE)), weights


def _either(ops: TreeOps, mask: Array, one: Evaluated, other: Evaluated) -> Evaluated:
    def chosen(a: Nest, b: Nest) -> Nest:
        if isinstance(a, list):
            return [chosen(x, y) for x, y in zip(a, b, strict=True)]
        return ops.where(along(mask, a), a, b)

    return Evaluated(*map(chosen, one, other))


def within(ops: TreeOps, tree: Tree, leaf: Leaf) -> Leaf:
    """A leaf as it was given: an edge that the tree does not have becomes -1, and what lies behind it is looked up."""
    node, slot = leaf.node, leaf.slot
    there = (node >= 0) & (node < tree.size) & (slot >= 0) & (slot < tree.spec.children)
    none = ops.full_like(node, NONE)
    node, slot = ops.where(there, node, none), ops.where(there, slot, none)
    return leaf._replace(node=node, slot=slot, child=_behind(ops, tree, node, slot))


def valued(ops: TreeOps, tree: Tree, leaf: Leaf) -> tuple[Tree, Leaf]:
    """A leaf as it was given, without a value that is NaN or infinite, and trees in which that is counted."""
    at, edge = edge_index(ops, tree, leaf.node, leaf.slot)
    known = _finite(leaf.value) | (leaf.node < 0)
    reward, discount = (get_edge(ops, x, edge) for x in (tree.reward, tree.discount))
    value = ops.where(known, leaf.value, _unchanging(ops, ops.take_each(tree.value, at), reward, discount))
    rejected = tree.rejected + ops.cast(~known, "int32")
    return dataclasses.replace(tree, rejected=rejected), leaf._replace(value=value)


def content_of(ops: TreeOps, tree: Tree, leaf: Leaf) -> tuple[list[Array], list[Array] | Array]:
    """The leaves of the nodes of some edges, and those of their actions; without actions in the spec, the slots."""
    at, edge = edge_index(ops, tree, leaf.node, leaf.slot)
    spec = tree.spec
    content = nodes.read(ops, spec.node_content, tree.rows, tree.wide, at)
    if spec.action_content is None:
        return content, ops.maximum(leaf.slot, ops.full_like(leaf.slot, 0))
    return content, nodes.read_edge(ops, spec.action_content, tree.action_rows, tree.action_wide, edge)
