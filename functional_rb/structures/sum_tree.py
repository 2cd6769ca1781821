"""A wide sum tree over exactly `capacity` leaves, with the smallest and the largest leaf kept beside the sums.

All levels lie in one array float32 [rows, FANOUT]. A row holds the children of one node; the leaves come first, then,
level by level, the sums, the smallest positive and the largest values. A node is always computed afresh from its
children, in one fixed order of additions, never adjusted by a difference: rounding cannot pile up, and both backends
hold the same bits.

Drawing goes down from the root with fresh random bits at every level. There the children are turned into integers, in
units of 2^-29 of their sum's power of two, and an integer draw picks one of them: exact arithmetic, so that a
child of weight zero can never be picked and one of any positive weight always can, at either end.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable
from typing import NamedTuple

from functional_rb.ops import fixed_point
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops

# Children of a node. One cache line of float32; 8, 16 and 32 were measured, see docs/performance.md.
FANOUT = 16
# Bits that distinguish a node's children: their sum stays below 2^31 and any positive child gets at least 1.
RESOLUTION = 29


@dataclasses.dataclass(frozen=True)
class Level:
    """Rows at which a level's children groups begin."""

    nodes: int  # how many values the level has
    groups: int  # how many rows they fill, the last one padded with zeros
    sums: int  # first row of the sums (of the leaves themselves at the lowest level)
    smallest: int  # first row of the smallest positive values below (the leaves at the lowest level)
    largest: int  # first row of the largest values below (the leaves at the lowest level)


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The levels, the leaves first, and how many rows they take together."""

    levels: tuple[Level, ...]
    rows: int


_PLANNED: dict[int, Geometry] = {}


def geometry(capacity: int) -> Geometry:
    """Plan the tree, once for a capacity (in a dict, since torch.compile does not trace functools.cache).

    Example:
        >>> [level.nodes for level in geometry(1_000_003).levels], geometry(3).rows
        ([1000003, 62501, 3907, 245, 16], 1)
    """
    if capacity not in _PLANNED:
        _PLANNED[capacity] = _plan(capacity)
    return _PLANNED[capacity]


def _plan(capacity: int) -> Geometry:
    groups = -(-capacity // FANOUT)
    levels = [Level(capacity, groups, 0, 0, 0)]
    row = groups
    while groups > 1:
        nodes, groups = groups, -(-groups // FANOUT)
        levels.append(Level(nodes, groups, row, row + groups, row + 2 * groups))
        # Three rows for each group: the sums, the smallest and the largest. The leaves alone serve as all three.
        row += 3 * groups
    return Geometry(tuple(levels), row)


def fold(children: Array, combined: Callable[[Array, Array], Array]) -> Array:
    """The last axis, of FANOUT, halved until one is left: always in the same order, as backends choose others."""
    while children.shape[-1] > 1:
        half = children.shape[-1] // 2
        children = combined(children[..., :half], children[..., half:])
    return children[..., 0]


def add_up(children: Array) -> Array:
    """Sums over the last axis, of FANOUT, as ((c0 + c8) + (c4 + c12)) + ..."""
    return fold(children, operator.add)


# The smallest positive value over the last axis; 0 if there is none.
def _smallest_of(ops: Ops, children: Array) -> Array:
    # A value of zero is no item, and infinity loses against every priority: infinite ones are never stored.
    value = fold(ops.where(children > 0, children, ops.full_like(children, math.inf)), ops.minimum)
    return ops.where(value < math.inf, value, ops.full_like(value, 0))


def refresh(ops: Ops, tree: Array, capacity: int, leaves: Array, nodes_touched: int | None = None) -> Array:
    """Compute every node above given leaves again.

    Args:
        tree: float32 [rows, FANOUT].
        capacity: number of leaves.
        leaves: int32 [n] whose values have changed.
        nodes_touched: if the leaves are consecutive around the ring, n; then each node is visited once only.

    Returns:
        The tree with its sums, smallest and largest values right again.
    """
    levels = geometry(capacity).levels
    nodes = leaves
    for below, level in itertools.pairwise(levels):
        nodes = nodes // FANOUT
        if nodes_touched is not None:
            # Consecutive leaves have few parents, consecutive around a ring of their own (with one twice at the seam).
            nodes_touched = min((nodes_touched - 1) // FANOUT + 3, level.nodes)
            nodes = (nodes[0] + ops.arange(nodes_touched, like=nodes)) % level.nodes
        parts = [
            add_up(ops.take(tree, below.sums + nodes)),
            _smallest_of(ops, ops.take(tree, below.smallest + nodes)),
            fold(ops.take(tree, below.largest + nodes), ops.maximum),
        ]
        starts = (level.sums, level.smallest, level.largest)
        places = ops.concat([start * FANOUT + nodes for start in starts], 0)
        tree = ops.set_flat(tree, places, ops.concat(parts, 0))
    return tree


def rebuild(ops: Ops, tree: Array, capacity: int) -> Array:
    """Compute every node above all leaves again, each once."""
    return refresh(ops, tree, capacity, ops.arange(1, like=tree), nodes_touched=capacity)


@replaceable
def get_leaves(ops: Ops, tree: Array, leaves: Array) -> Array:
    """The values of leaves int32 [n], float32 [n]."""
    return ops.take(tree.reshape(-1), leaves)


@replaceable
def set_leaves(ops: Ops, tree: Array, capacity: int, leaves: Array, values: Array, consecutive: bool = False) -> Array:
    """Set leaves int32 [n] to float32 [n] (equal leaves come with equal values) and refresh what is above them."""
    tree = ops.set_flat(tree, leaves, ops.settled(values))  # some may have been read from the tree
    return refresh(ops, tree, capacity, leaves, leaves.shape[0] if consecutive else None)


def total(tree: Array) -> Array:
    """The sum of all leaves, a float32 scalar."""
    return add_up(tree[_root(tree).sums])


def smallest(ops: Ops, tree: Array) -> Array:
    """The smallest positive leaf, 0 if there is none."""
    return _smallest_of(ops, tree[_root(tree).smallest])


def largest(ops: Ops, tree: Array) -> Array:
    """The largest value of any leaf."""
    return ops.largest(tree[_root(tree).largest])


# The last level has one group: its rows are the tree's last three, or its only one.
def _root(tree: Array) -> Level:
    last = tree.shape[0] - 1
    return Level(FANOUT, 1, 0, 0, 0) if last == 0 else Level(FANOUT, 1, last - 2, last - 1, last)


def as_integers(ops: Ops, children: Array) -> Array:
    """Float weights [n, FANOUT] as integers in proportion: at least 1 where positive, with a sum below 2^31."""
    # The biased exponent alone: the sign bit of a sum of weights is 0.
    exponent = ops.bitcast(add_up(children)[:, None], "int32") >> 23
    # Two exact scalings by powers of two, as their product could be out of range.
    unit = ops.bitcast((254 - exponent) << 23, "float32")
    # Scaled so, the sum is below 2, and then below 2^30: what raises children to 1 cannot bring it to 2^31.
    whole = ops.cast(children * unit * float(2**RESOLUTION), "int32")
    return ops.where(children > 0, ops.maximum(whole, ops.full_like(whole, 1)), ops.full_like(whole, 0))


@replaceable
def descend(ops: Ops, tree: Array, capacity: int, draws: Array) -> Array:
    """Draw leaves in proportion to their values.

    Args:
        tree: float32 [rows, FANOUT]; some leaf is positive (else the result is meaningless, though in bounds).
        capacity: number of leaves.
        draws: int32 [B, levels], uniform in [0, 2^31).

    Returns:
        Leaves, int32 [B].
    """
    levels = geometry(capacity).levels
    node = ops.full_like(draws[:, 0], 0)
    for depth, level in enumerate(reversed(levels)):
        weights = as_integers(ops, ops.take(tree, level.sums + node))
        reach = ops.cumsum(weights)
        # floor(draw * sum / 2^31) is below the sum, so that the reach of some child exceeds it.
        target = fixed_point.mul_high(ops, draws[:, depth], reach[:, -1])
        child = ops.cumsum(ops.cast(reach <= target[:, None], "int32"))[:, -1]
        # Where all weights are zero no reach exceeds the target: then the child is one too many.
        node = ops.minimum(node * FANOUT + child, ops.full_like(node, level.nodes - 1))
    return node


# --- spans of leaves ------------------------------------------------------------------------------------------------


class Edges(NamedTuple):
    """Of a level, the two nodes at which spans begin and end: only of these does a part lie outside.

    Attributes:
        first, last: int32 [n], those nodes; a span without leaves has its last before its first, at some level.
        sums: float32 [n] each, what the leaves below them that lie within the span add up to.
        smallest: float32 [n] each, the smallest positive one of those leaves, 0 if there is none.
    """

    first: Array
    last: Array
    sums: tuple[Array, Array]
    smallest: tuple[Array, Array]


class Spans(NamedTuple):
    """Spans of leaves of a tree, each as if it were a tree of its own."""

    edges: tuple[Edges, ...]  # of each level, the leaves first
    totals: Array  # float32 [n], the sum of each
    smallest: Array  # float32 [n], the smallest positive leaf of each, 0 if there is none

    def at(self, ops: Ops, which: Array) -> Spans:
        """The one span that `which`, int32 [1], names."""

        def take(pair: tuple[Array, Array]) -> tuple[Array, Array]:
            return ops.take(pair[0], which), ops.take(pair[1], which)

        edges = tuple(
            Edges(ops.take(x.first, which), ops.take(x.last, which), take(x.sums), take(x.smallest)) for x in self.edges
        )
        return Spans(edges, ops.take(self.totals, which), ops.take(self.smallest, which))


def spans(ops: Ops, tree: Array, capacity: int, first: Array, end: Array) -> Spans:
    """What lies in spans of the tree's leaves: sums along the two paths above their ends are computed anew.

    That is O(log capacity) for each, and exact as the tree itself is: no sum is a difference.

    Args:
        tree: float32 [rows, FANOUT].
        capacity: number of leaves.
        first: int32 [n], the first leaf of each span.
        end: int32 [n], the leaf behind its last one; equal to the first where there is none.
    """
    levels = geometry(capacity).levels
    last = end - 1
    values = tuple(get_leaves(ops, tree, _within(ops, node, capacity)) for node in (first, last))
    edges = [Edges(first, last, (values[0], values[1]), (values[0], values[1]))]
    for below, level in itertools.pairwise(levels):
        nodes = tuple(_within(ops, node // FANOUT, level.nodes) for node in (edges[-1].first, edges[-1].last))
        sums, smallest = zip(*(_of_span(ops, tree, below, edges[-1], node) for node in nodes), strict=True)
        edges.append(
            Edges(edges[-1].first // FANOUT, edges[-1].last // FANOUT, (sums[0], sums[1]), (smallest[0], smallest[1]))
        )
    root = ops.full_like(first, 0)
    return Spans(tuple(edges), *_of_span(ops, tree, levels[-1], edges[-1], root))


def _within(ops: Ops, nodes: Array, count: int) -> Array:
    return ops.minimum(ops.maximum(nodes, ops.full_like(nodes, 0)), ops.full_like(nodes, count - 1))


# The sum and the smallest positive value of what lies in a span below nodes int32 [n] over a level.
def _of_span(ops: Ops, tree: Array, level: Level, edges: Edges, nodes: Array) -> tuple[Array, Array]:
    sums = _children(ops, tree, level.sums, edges, edges.sums, nodes)
    smallest = _children(ops, tree, level.smallest, edges, edges.smallest, nodes)
    return add_up(sums), _smallest_of(ops, smallest)


# The children float32 [n, FANOUT] of nodes: 0 outside of the span, and at its edges what lies within.
def _children(ops: Ops, tree: Array, start: int, edges: Edges, at_edges: tuple[Array, Array], nodes: Array) -> Array:
    values = ops.take(tree, start + nodes)
    child = nodes[:, None] * FANOUT + ops.arange(FANOUT, like=nodes)[None, :]
    first, last = edges.first[:, None], edges.last[:, None]
    nothing = ops.full_like(values, 0)
    values = ops.where(child == last, at_edges[1][:, None] + nothing, values)
    values = ops.where(child == first, at_edges[0][:, None] + nothing, values)
    return ops.where((child >= first) & (child <= last), values, nothing)


def descend_span(ops: Ops, tree: Array, capacity: int, span: Spans, draws: Array) -> Array:
    """Draw leaves of one span in proportion to their values.

    A span consists of runs: at each level the children that lie whole within it, of the node above its first leaf and
    of that above its last one. One of the runs is drawn, and `descend` goes the way down: as far as the run by draws
    that lead there, then by one of those that lead to its children, and below by any.

    Args:
        tree: float32 [rows, FANOUT].
        capacity: number of leaves.
        span: a single one; some leaf in it is positive (else the result is meaningless, though in bounds).
        draws: int32 [B, levels + 1], uniform in [0, 2^31).

    Returns:
        Leaves, int32 [B].
    """
    levels = geometry(capacity).levels
    assert draws.shape[1] == len(levels) + 1
    runs = [_runs(ops, tree, level, span, height) for height, level in enumerate(levels)]
    below = _draws_below(ops, ops.concat([run.reach for run in runs], 0), ops.concat([run.total for run in runs], 0))
    sums, ways = ops.concat([run.sums for run in runs], 0), _ways(ops, runs, below)
    padding = ops.full_like(sums, 0)
    # One row of children has room for all runs: there are two for each level, and never more than eight levels, as 16^8
    # leaves are more than an int32 counts.
    padded = ops.concat([sums] + [padding] * -(-FANOUT // sums.shape[0]), 0)[:FANOUT]
    reach = ops.cumsum(as_integers(ops, padded[None, :]))
    target = fixed_point.mul_high(ops, draws[:, 0], reach[0, -1] + ops.full_like(draws[:, 0], 0))
    chosen = add_up(ops.cast(reach <= target[:, None], "int32"))
    chosen = ops.minimum(chosen, ops.full_like(chosen, sums.shape[0] - 1))
    first, width, free = (ops.take(x, chosen) for x in ways)
    led = first + fixed_point.mul_high(ops, draws[:, 1:], width)
    return descend(ops, tree, capacity, ops.where(free > 0, draws[:, 1:], led))


@replaceable
def draw_in_span(
    ops: Ops, tree: Array, capacity: int, first: Array, end: Array, which: Array, draws: Array
) -> tuple[Array, Array, Array]:
    """Draw leaves of one among some spans, in proportion to their values.

    Args:
        tree: float32 [rows, FANOUT].
        capacity: number of leaves.
        first: int32 [n], the first leaf of each span.
        end: int32 [n], the leaf behind its last one.
        which: int32 [1], the span to draw from.
        draws: int32 [B, levels + 1], uniform in [0, 2^31).

    Returns:
        Leaves, int32 [B], as `descend_span` has them; and of each span what it adds up to and its smallest positive
        leaf, float32 [n], as `spans` has them.
    """
    sums = spans(ops, tree, capacity, first, end)
    leaves = descend_span(ops, tree, capacity, sums.at(ops, which), draws)
    return leaves, sums.totals, sums.smallest


class _Runs(NamedTuple):
    """Two runs of a level: children of the node above the first leaf of a span, and of that above its last one."""

    sums: Array  # float32 [2], what they add up to
    # int32 [2, 3], what the integer weights add up to of the node's children before the run, of those and the run, and
    # of those before the child on the way to the edge of the span.
    reach: Array
    total: Array  # int32 [2], of all of the node's children


# The runs of a level; of the leaves, whose height is 0, the edges of the span lie whole within it.
def _runs(ops: Ops, tree: Array, level: Level, span: Spans, height: int) -> _Runs:
    edges, inner = span.edges[height], 0 if height == 0 else 1
    last_of_all = height + 1 == len(span.edges)
    above = edges.first * 0 if last_of_all else span.edges[height + 1].first
    other = above if last_of_all else span.edges[height + 1].last
    nodes = _within(ops, ops.concat([above, other], 0), level.groups)
    start, end = edges.first + inner, edges.last + 1 - inner
    one = above == other  # then it has a single run
    begins = ops.concat([start, ops.where(one, end, other * FANOUT)], 0)
    ends = ops.concat([ops.where(one, end, (above + 1) * FANOUT), end], 0)
    values = ops.take(tree, level.sums + nodes)
    weights = as_integers(ops, values)
    child = nodes[:, None] * FANOUT + ops.arange(FANOUT, like=nodes)[None, :]
    inside = (child >= begins[:, None]) & (child < ends[:, None])

    def before(bound: Array) -> Array:
        return add_up(ops.where(child < bound[:, None], weights, ops.full_like(weights, 0)))[:, None]

    reach = [before(begins), before(ends), before(ops.concat([edges.first, edges.last], 0))]
    return _Runs(add_up(ops.where(inside, values, ops.full_like(values, 0))), ops.concat(reach, 1), add_up(weights))


# The largest draws whose targets lie below given ones, int32 [n, 3]; -1 for none.
def _draws_below(ops: Ops, reach: Array, total: Array) -> Array:
    total = total[:, None] + ops.full_like(reach, 0)
    draws = ops.full_like(reach, 0)
    # The target grows with the draw, so its bits are found from the top, without a branch.
    for bit in reversed(range(31)):
        further = draws + 2**bit
        draws = ops.where(fixed_point.mul_high(ops, further, total) < reach, further, draws)
    return ops.where(reach > 0, draws, ops.full_like(draws, -1))


# Which draws lead to each run, int32 [2 * levels, levels]: the first, how many, and whether any does.
#
# Of the second axis the root comes first.
def _ways(ops: Ops, runs: list[_Runs], below: Array) -> tuple[Array, Array, Array]:
    levels = len(runs)
    first, width, free = [], [], []
    for height in range(levels):
        at = slice(2 * height, 2 * height + 2)
        low, high = below[at, 0], below[at, 1]
        every = (low < 0) & (high == 2**31 - 1)
        nothing = ops.full_like(low, 0)
        led = [below[2 * k : 2 * k + 2, 2] + 1 for k in reversed(range(height + 1, levels))]
        first.append([*led, low + 1, *[nothing] * height])
        width.append([*[nothing] * len(led), ops.where(every, nothing, high - low), *[nothing] * height])
        free.append([*[nothing] * len(led), ops.cast(every, "int32"), *[nothing + 1] * height])
    tables = [
        ops.concat([ops.concat([x[:, None] for x in row], 1) for row in rows], 0) for rows in (first, width, free)
    ]
    return tables[0], tables[1], tables[2]
