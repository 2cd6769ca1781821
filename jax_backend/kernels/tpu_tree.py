"""What `sum_tree` does most, in few large steps, as on TPUs each step costs more than what it computes.

XLA makes two or three pieces of work of each reading of the tree there, and one of each halving of a node's children.
So a write reads the tree once and writes to it once, for all levels together, and each child is an array of its own, so
that all that is done with the children of a level is one piece. The bits are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from functional_rb.base.arrays import NumpyArray
from functional_rb.structures.sum_tree import FANOUT, RESOLUTION, Level, geometry
from jax_backend.arrays import ops

# How many leaves of one write may be compared with each other: twice as many take four times as long.
MOST_COMPARED = 1024
SHIFT = FANOUT.bit_length() - 1


def get_leaves(tree: jax.Array, leaves: jax.Array) -> jax.Array:
    """What `sum_tree.get_leaves` does, of the tree as it lies: as a vector it would have to be laid out anew."""
    elements = lax.GatherDimensionNumbers((), (0, 1), (0, 1))
    return lax.gather(tree, _rows_and_columns(leaves), elements, (1, 1), mode="promise_in_bounds")


def set_leaves(
    tree: jax.Array, capacity: int, leaves: jax.Array, values: jax.Array, consecutive: bool = False
) -> jax.Array:
    """What `sum_tree.set_leaves` does."""
    levels = geometry(capacity).levels
    touched = (Consecutive if consecutive else Touched)(levels, leaves)
    if leaves.shape[0] > MOST_COMPARED:
        return _set_in_turn(tree, levels, leaves, values, touched)
    above = range(1, len(levels))
    if not above:
        return _set(tree, leaves, values)
    old = ops.take(
        tree, touched.numbers([(height, start) for height in above for start in _starts(levels[height - 1])])
    )
    written, changed, parts, end = [values], leaves, [values] * 3, 0
    for height in above:
        start, end = end, end + 3 * touched.count(height)
        nodes = touched.numbers([(height, 0)] * 3)
        written.append(_folded(_renewed(old[start:end], nodes, changed, parts)))
        if consecutive:  # then they are few, and to compare them with those of other kinds costs less than to part them
            changed, parts = nodes, written[-1:]
        else:
            changed, parts = touched.numbers([(height, 0)]), jnp.split(written[-1], 3)
    places = touched.numbers([(height, start * FANOUT) for height in above for start in _starts(levels[height])])
    return _set(tree, joined([leaves, places]), joined(written))


class Touched:
    """The nodes above some leaves, one for each leaf at every level."""

    def __init__(self, levels: Sequence[Level], leaves: jax.Array) -> None:
        """Of leaves int32 [n]."""
        self.levels, self.leaves = levels, leaves

    def count(self, height: int) -> int:
        """How many nodes of a level are looked at."""
        return self.leaves.shape[0]

    def numbers(self, pieces: Sequence[tuple[int, int]]) -> jax.Array:
        """For each (height, start) the nodes at that height, each with the start added, one piece behind the other."""
        return joined([start + (self.leaves >> SHIFT * height) for height, start in pieces])


class Consecutive(Touched):
    """Of leaves that are consecutive around the ring each node once, or twice; see `sum_tree.refresh`."""

    def count(self, height: int) -> int:
        """How many nodes of a level are looked at."""
        count = self.leaves.shape[0]
        for level in self.levels[1 : height + 1]:
            count = min((count - 1) // FANOUT + 3, level.nodes)
        return count

    def numbers(self, pieces: Sequence[tuple[int, int]]) -> jax.Array:
        """In one vector of numbers, made of what is known of each before: XLA would copy short pieces in turn."""

        def each(of: Callable[[int, int], int | NumpyArray]) -> jax.Array:
            numbers = [np.broadcast_to(of(*piece), self.count(piece[0])) for piece in pieces]
            return jnp.asarray(np.concatenate(numbers), jnp.int32)

        nodes = (self.leaves[0] >> each(lambda height, _: SHIFT * height)) + each(
            lambda height, _: np.arange(self.count(height))
        )
        size = each(lambda height, _: self.levels[height].nodes)
        return jnp.where(nodes < size, nodes, nodes - size) + each(lambda _, start: start)


def joined(vectors: Sequence[jax.Array]) -> jax.Array:
    """Vectors of numbers that are not negative, one behind the other, in one piece of work: XLA copies them in turn."""
    size, start, whole = sum(vector.shape[0] for vector in vectors), 0, []
    for vector in vectors:
        after = size - start - vector.shape[0]
        whole.append(lax.pad(vector, jnp.zeros((), vector.dtype), [(start, after, 0)]))
        start = size - after
    return _halved(whole, jnp.maximum)


def _set_in_turn(
    tree: jax.Array, levels: Sequence[Level], leaves: jax.Array, values: jax.Array, touched: Touched
) -> jax.Array:
    """A level after the other, each read once the one below it is written."""
    tree = _set(tree, leaves, values)
    for height in range(1, len(levels)):
        children = ops.take(tree, touched.numbers([(height, start) for start in _starts(levels[height - 1])]))
        places = touched.numbers([(height, start * FANOUT) for start in _starts(levels[height])])
        tree = _set(tree, places, _folded(_columns(children)))
    return tree


def _set(tree: jax.Array, places: jax.Array, values: jax.Array) -> jax.Array:
    elements = lax.ScatterDimensionNumbers((), (0, 1), (0, 1))
    return lax.scatter(tree, _rows_and_columns(places), values, elements, mode="promise_in_bounds")


def _rows_and_columns(places: jax.Array) -> jax.Array:
    return jnp.stack([places >> SHIFT, places & FANOUT - 1], 1)


def _starts(level: Level) -> tuple[int, int, int]:
    return level.sums, level.smallest, level.largest


def _columns(children: jax.Array) -> list[jax.Array]:
    return [children[:, k] for k in range(FANOUT)]


def _renewed(old: jax.Array, nodes: jax.Array, changed: jax.Array, values: Sequence[jax.Array]) -> list[jax.Array]:
    """The children of nodes int32 [3 n], of each kind, where some have new values: float32 [3 n] of each place.

    The children before are float32 [3 n, FANOUT]. Those changed, int32 [m], have new values float32 [m] of each kind,
    not negative, and equal where numbers are; or of all kinds, one behind the other, float32 [m] alone.
    """
    kind = _kinds(nodes.shape[0])[:, None]
    place = changed[None, :] - (nodes << SHIFT)[:, None]
    new, *others = (x[None, :] for x in values)
    if others:
        smallest, largest = others
        new = jnp.where(kind == 0, new, jnp.where(kind == 1, smallest, largest))
    else:
        place = jnp.where(kind == _kinds(changed.shape[0])[None, :], place, -1)
    changed_children = [jnp.max(jnp.where(place == k, new, -1), 1) for k in range(FANOUT)]
    return [jnp.where(x >= 0, x, y) for x, y in zip(changed_children, _columns(old), strict=True)]


# Of the children of nodes by kind, FANOUT arrays [3 n], the sums, the smallest positive and the largest.
def _folded(children: Sequence[jax.Array]) -> jax.Array:
    kind = _kinds(children[0].shape[0])
    rest = jnp.where(kind == 1, _least(children), _halved(children, jnp.maximum))
    return jnp.where(kind == 0, _halved(children, jnp.add), rest)


# 0, 1 and 2, each for a third: a constant, as XLA would compute it apart from what it is for.
def _kinds(count: int) -> jax.Array:
    return jnp.asarray(np.arange(count) // (count // 3), jnp.int32)


class Drawn(NamedTuple):
    """What draws find."""

    leaves: jax.Array  # int32 [B]
    values: jax.Array  # float32 [B], what these leaves hold
    total: jax.Array  # float32 [B], each the sum of all leaves
    smallest: jax.Array  # float32 [B], each the smallest positive leaf, 0 if there is none


def draw(tree: jax.Array, capacity: int, draws: jax.Array) -> Drawn:
    """Draw leaves by draws int32 [B, levels] as `sum_tree.descend` does, and read what belongs to them."""
    levels = geometry(capacity).levels
    # All is [B, 1], as columns of what is read are: to make vectors of them would be a piece of work at every level.
    every, root = draws[:, :1] >= 0, levels[-1]
    children, least = ([spread(tree[row, k], every) for k in range(FANOUT)] for row in (root.sums, root.smallest))
    total, smallest = _halved(children, jnp.add), _least(least)
    rows = chosen = node = jnp.zeros_like(draws[:, :1])
    for depth, level in enumerate(reversed(levels)):
        if depth:
            taken = ops.take(tree, rows[:, 0])
            children = [taken[:, k : k + 1] for k in range(FANOUT)]
        chosen = _chosen(children, draws[:, depth : depth + 1])
        node = jnp.minimum(node * FANOUT + chosen, level.nodes - 1)
        rows = node + (levels[-2 - depth].sums if depth + 1 < len(levels) else 0)
        # Else XLA computes a level again for each use of what it finds.
        rows, node, chosen = lax.optimization_barrier((rows, node, chosen))
    values = _halved([jnp.where(chosen == k, x, 0) for k, x in enumerate(children)], jnp.maximum)
    return Drawn(*(x[:, 0] for x in (node, values, total, smallest)))


# Which of the children of each node a draw falls on, int32 [n]; FANOUT where all are zero.
def _chosen(children: Sequence[jax.Array], draws: jax.Array) -> jax.Array:
    exponent = lax.bitcast_convert_type(_halved(children, jnp.add), jnp.int32) >> 23
    unit = lax.bitcast_convert_type((254 - exponent) << 23, jnp.float32)
    weights = [(child * unit * float(2**RESOLUTION)).astype(jnp.int32) for child in children]
    weights = [jnp.where(x > 0, jnp.maximum(weight, 1), 0) for x, weight in zip(children, weights, strict=True)]
    reach = list(itertools.accumulate(weights))
    target = ops.mul_wide(draws, reach[-1])[0]
    chosen = jnp.zeros_like(draws)
    for until in reach:
        chosen += (until <= target).astype(jnp.int32)
    return chosen


def spread(scalar: jax.Array, every: jax.Array) -> jax.Array:
    """A float32 scalar for each of every bool [n], which are all true.

    XLA does not know that they are: what is the same for all it would compute once, each step an operation of its own.
    """
    return jnp.where(every, scalar, 0)


def _least(children: Sequence[jax.Array]) -> jax.Array:
    least = _halved([jnp.where(x > 0, x, jnp.inf) for x in children], jnp.minimum)
    return jnp.where(least < jnp.inf, least, 0)


def _halved(parts: Sequence[jax.Array], combined: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """All parts in one, a number of FANOUT in the order of `sum_tree.add_up`."""
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [*map(combined, parts[:half], parts[half : 2 * half]), *parts[2 * half :]]
    return parts[0]
