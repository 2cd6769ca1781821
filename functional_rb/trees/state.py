"""A tree as a value, and what a model tells of a node."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from functional_rb.base.arrays import BackendArray, Nest
from functional_rb.base.containers import register_record
from functional_rb.lib import library_of, more_of
from functional_rb.ops.protocol import TreeOps
from functional_rb.trees.policies import visit_shares
from functional_rb.trees.spec import TreeSpec

# The number of the root among the nodes.
ROOT: Final = 0
# Stands for a node or a slot that is not there.
NONE: Final = -1


class Summary(NamedTuple):
    """What is known at the roots.

    Attributes:
        visits: int32 [B, A], how many simulations took each slot.
        probabilities: float32 [B, A], their shares; without any visit the same for each valid slot.
        value: float32 [B], the mean of what was backed up.
        q: float32 [B, A], reward + discount * value of each slot; 0 of one never taken.
    """

    visits: BackendArray
    probabilities: BackendArray
    value: BackendArray
    q: BackendArray


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Tree:
    """A tree, or a batch of trees, as a value: an immutable pytree of arrays that carries its spec.

    Nodes are numbered in the order in which they were stored, so a child has a larger number than its parent, and the
    root is node 0. N is the capacity and A the number of slots of a node; `[...]` are the axes of a batch, for one tree
    none. What lies behind `size` is as in a tree that is empty: -1 for nodes and slots, 0 and False for the rest.

    Attributes:
        parent: int32 [..., N], the parent of each node; -1 of the root.
        slot: int32 [..., N], in which slot of its parent a node lies; -1 of the root.
        depth: int32 [..., N], how many edges lie between the root and a node.
        visits: int32 [..., N], how many simulations evaluated or passed a node.
        value: float32 [..., N], the mean of what these brought back to it.
        prediction: float32 [..., N], the value that the model predicted when the node was stored.
        terminal: bool [..., N], whether a node is never expanded.
        chance: bool [..., N], whether chance decides at a node: its slots are outcomes, its prior says how likely.
        children: int32 [..., N, A], the node behind each slot, -1 where none is stored.
        edge_visits: int32 [..., N, A], how many simulations took an edge.
        edge_value: float32 [..., N, A], the mean value of the node behind the edge, without the edge's reward.
        reward: float32 [..., N, A], the reward of an edge.
        discount: float32 [..., N, A], the factor of the value behind an edge; -1 where players alternate.
        prior: float32 [..., N, A], log-probabilities of the model's policy over the valid slots, minus infinity for
            the others.
        valid: bool [..., N, A], which slots may be taken.
        rows: int32 [..., N, W], the packed content of the nodes.
        wide: the leaves of the content that are not packed, each [..., N, *shape].
        action_rows: int32 [..., N, A, V], the packed actions of the edges; V is 0 without an action in the spec.
        action_wide: the leaves of the actions that are not packed, each [..., N, A, *shape].
        statistics: float32 [..., N, A] by name, those of `spec.statistics`.
        low: float32 [...], the least reward + discount * value that was backed up along an edge; infinity if none was.
        high: float32 [...], the largest; minus infinity if none was.
        size: int32 [...], how many nodes are stored.
        refused: int32 [...], how many nodes a full tree did not store.
        rejected: int32 [...], how many numbers of the model were NaN or infinite, and left out; see `Expansion`.
        spec: the description of the tree, static.
    """

    parent: BackendArray
    slot: BackendArray
    depth: BackendArray
    visits: BackendArray
    value: BackendArray
    prediction: BackendArray
    terminal: BackendArray
    chance: BackendArray
    children: BackendArray
    edge_visits: BackendArray
    edge_value: BackendArray
    reward: BackendArray
    discount: BackendArray
    prior: BackendArray
    valid: BackendArray
    rows: BackendArray
    wide: tuple[BackendArray, ...]
    action_rows: BackendArray
    action_wide: tuple[BackendArray, ...]
    statistics: dict[str, BackendArray]
    low: BackendArray
    high: BackendArray
    size: BackendArray
    refused: BackendArray
    rejected: BackendArray
    spec: TreeSpec

    @property
    def batch(self) -> tuple[int, ...]:
        """The axes of the batch; () of a single tree."""
        return tuple(self.parent.shape[:-1])

    @property
    def q(self) -> BackendArray:
        """The Q values of all edges, float32 [..., N, A]: reward + discount * value; of an edge never taken 0."""
        return self.reward + self.discount * self.edge_value

    def summary(self) -> Summary:
        """What is known at the roots: visits, their shares, value and Q values.

        Returns:
            Arrays with a row for each tree.

        Raises:
            TypeError: for a tree that is not of a backend.
            ValueError: for a single tree, or several axes of a batch.

        Example:
            >>> spec = frb.trees.TreeSpec(node=(frb.Unbounded(()),), capacity=4, children=2)
            >>> value = np.full(1, 3, np.float32)
            >>> root = frb.trees.Expansion((np.zeros(1, np.float32),), np.zeros((1, 2), np.float32), value)
            >>> rb.init(spec, items=root).summary().value.tolist()
            [3.0]
        """
        lib = library_of(self.size)
        if lib is None:
            raise TypeError("trees.summary: expected a tree of a backend; bring it over by rb.from_dlpack(tree)")
        if len(self.batch) != 1:
            raise ValueError(
                f"trees.summary: expected a tree with one batch axis, got batch={self.batch}; jax.vmap maps over more"
            )
        summary: Summary = lib.around(more_of(lib, "trees").run)(_summary, self)
        return summary

    def at(self, *index: int) -> Tree:
        """One tree of a batch, or some of several axes of a batch, by their position."""
        return self.each(lambda x: x[index])

    def each(self, function: Callable[..., BackendArray], *others: Tree, fields: Sequence[str] | None = None) -> Tree:
        """A tree of what a function makes of each array, or of those of some fields, and of others' in its place."""

        def made(*parts: Nest) -> Nest:
            first = parts[0]
            if isinstance(first, tuple):
                return tuple([made(*arrays) for arrays in zip(*parts, strict=True)])
            if isinstance(first, dict):
                return {name: made(*[part[name] for part in parts]) for name in first}
            return function(*parts)

        trees, names = (self, *others), FIELDS if fields is None else fields
        return dataclasses.replace(self, **{name: made(*[getattr(tree, name) for tree in trees]) for name in names})

    def __repr__(self) -> str:
        return f"Tree({self.spec!r}, batch={self.batch})"


def _summary(ops: TreeOps, tree: Tree) -> Summary:
    # Copies of the roots' rows: parts of the tree's arrays would change where torch writes to them.
    roots = ops.full_like(tree.size, ROOT)
    edges = tree.edge_visits, tree.valid, tree.reward, tree.discount, tree.edge_value, tree.value
    visits, valid, reward, discount, behind, value = (ops.take_each(x, roots) for x in edges)
    return Summary(visits, visit_shares(ops, visits, valid), value, reward + discount * behind)


# The arrays of a tree, in their order.
FIELDS: Final = tuple(field.name for field in dataclasses.fields(Tree) if field.name != "spec")
register_record(Tree, FIELDS)


class Expansion(NamedTuple):
    """What a model tells of a batch of nodes, and of the edges that lead there: what `init` and `step` give.

    B is the batch and A the number of slots. Numbers of float16 and bfloat16 become float32. Those that are NaN or
    infinite are left out, and counted in `Tree.rejected`: a slot without a logit has the prior 0, and where none has
    one all are alike; a reward or a discount is 0; a value is such that the mean of the node above stays as it was.
    (A logit of minus infinity is one: its slot has the prior 0.)

    Attributes:
        node: the content of the nodes, a nest like `TreeSpec.node`, leaves [B, *shape].
        prior: float32 [B, A], logits of a policy over the slots; they need not be normalised.
        value: float32 [B], the predicted value of the nodes, as whoever is to move there sees it. That of a terminal
            node is 0, unless the reward of the edge does not have the outcome.
        reward: float32 [B], of the edges that lead to the nodes; a number for all. Of a root it says nothing.
        discount: float32 [B], the factor of the nodes' values; a number for all. -1 where two players alternate.
        valid: bool [B, A], which slots may be taken; all if None.
        terminal: bool [B], which nodes are never expanded; if None those that have no valid slot.
        actions: the actions of the slots, a nest like `TreeSpec.action`, leaves [B, A, *shape]; None if the spec has
            no action.
        chance: bool [B], which nodes are chance nodes, for `TreeSpec(chance=True)`; None for what is usual: none, but
            all that `step` gives to a search that has a `chance_step` too.
    """

    node: Nest
    prior: BackendArray
    value: BackendArray
    reward: BackendArray | float = 0.0
    discount: BackendArray | float = 1.0
    valid: BackendArray | None = None
    terminal: BackendArray | None = None
    actions: Nest = None
    chance: BackendArray | bool | None = None
