"""A tree of minima over int32 keys: which of `capacity` slots hold the lowest, for a buffer that keeps the best items.

All levels lie in one array int32 [rows, FANOUT], the leaves first; a row holds the children of one node, and a node is
the least of its children, always computed afresh from them. An empty slot has the lowest key of all, so that it is
filled before anything is replaced; what pads a level's last row has the highest, so that it is never found.
"""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

import numpy as np

from functional_rb.base.arrays import DeviceLike, NumpyArray
from functional_rb.ops import numpy_ops
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures.sum_tree import FANOUT, fold, geometry

# The key of a slot that holds nothing.
EMPTY: Final = -(2**31)
# The key of what is no slot.
PADDING: Final = 2**31 - 1
_MAGNITUDE: Final = 2**31 - 1
# The bits of a float32 but for its sign, and those of infinity.
_INFINITY: Final = 0x7F800000


class Level(NamedTuple):
    """A level's nodes, and the rows in which they lie, the last one padded."""

    nodes: int
    first_row: int
    rows: int


# The leaves first. The counts are those of the sum tree, which keeps three values for each inner node.
def _levels(capacity: int) -> list[Level]:
    planned = geometry(capacity).levels
    ends = itertools.accumulate(level.groups for level in planned)
    return [Level(level.nodes, end - level.groups, level.groups) for level, end in zip(planned, ends, strict=True)]


def shape(capacity: int) -> tuple[int, int]:
    """The shape of the tree: some 4.3 bytes for a slot.

    Example:
        >>> shape(1_000_003)
        (66670, 16)
    """
    return sum(level.rows for level in _levels(capacity)), FANOUT


def empty(ops: Ops, capacity: int, device: DeviceLike = None) -> Array:
    """The tree of `capacity` empty slots, int32 [rows, FANOUT]."""
    return pad(ops, ops.full_like(ops.zeros(shape(capacity), "int32", device), EMPTY), capacity)


def pad(ops: Ops, tree: Array, capacity: int) -> Array:
    """A tree int32 [rows, FANOUT] with what is no slot, and no node, marked as such."""
    pads = []
    for level in _levels(capacity):
        count = level.rows * FANOUT - level.nodes
        pads.append(level.first_row * FANOUT + level.nodes + ops.arange(count, like=tree))
    places = ops.concat(pads, 0)
    return ops.set_flat(tree, places, ops.full_like(places, PADDING))


def get_keys(ops: Ops, tree: Array, slots: Array) -> Array:
    """The keys of slots int32 [n], int32 [n]."""
    return ops.take(tree.reshape(-1), slots)


def set_keys(ops: Ops, tree: Array, capacity: int, slots: Array, keys: Array) -> Array:
    """Give slots new keys.

    Args:
        tree: int32 [rows, FANOUT].
        capacity: number of slots.
        slots: int32 [n], in bounds; equal ones come with equal keys.
        keys: int32 [n], below `PADDING`.

    Returns:
        The tree with its minima right again.
    """
    tree = ops.set_flat(tree, slots, keys)
    nodes = slots
    for below, level in itertools.pairwise(_levels(capacity)):
        nodes = nodes // FANOUT
        least = fold(ops.take(tree, below.first_row + nodes), ops.minimum)
        tree = ops.set_flat(tree, level.first_row * FANOUT + nodes, least)
    return tree


def lowest(ops: Ops, tree: Array, capacity: int, k: int) -> tuple[Array, Array]:
    """Find the k slots of the lowest keys, the first of equal ones, in O(k log capacity).

    Level by level the k lowest nodes are kept, by their minimum and then by their position. That loses nothing: a
    node that is left out has k nodes before it, each with a leaf whose key is lower than all of its own, or equal to
    its least and further to the left; so none of its leaves is among the k lowest.

    Args:
        tree: int32 [rows, FANOUT].
        capacity: number of slots.
        k: how many, at least 1; counts as the capacity if it is larger.

    Returns:
        Slots int32 [k] and their keys int32 [k], in ascending order of (key, slot).
    """
    nodes = ops.arange(1, like=tree)
    keys = tree[0, :1]
    for level in reversed(_levels(capacity)):
        # In order of position, so that a stable sort by key leaves equal keys in it.
        nodes = ops.take(nodes, ops.argsort(nodes))
        children = (nodes[:, None] * FANOUT + ops.arange(FANOUT, like=nodes)).reshape(-1)
        candidates = ops.take(tree, level.first_row + nodes).reshape(-1)
        # There are that many besides the padding: every kept node has a child, and if all are kept, all children.
        kept = ops.argsort(candidates)[: min(k, level.nodes)]
        # Kept in order of their keys; the next level sorts them by position again.
        nodes, keys = ops.take(children, kept), ops.take(candidates, kept)
    return nodes, keys


def problem(tree: NumpyArray, capacity: int) -> str | None:
    """Why a tree of NumPy's cannot be one of its leaves; or None."""
    slots = np.arange(capacity, dtype=np.int32)
    rebuilt = pad(numpy_ops.OPS, np.full_like(tree, EMPTY), capacity)
    rebuilt = set_keys(numpy_ops.OPS, rebuilt, capacity, slots, get_keys(numpy_ops.OPS, tree, slots))
    wrong = np.flatnonzero(rebuilt != tree)
    return f"its minima are not those of its leaves, at {wrong[0]} for one" if wrong.size else None


def key_of(ops: Ops, ranks: Array) -> tuple[Array, Array]:
    """Turn float ranks into keys of the same order; infinite ones too, and -0.0 equals 0.0.

    Args:
        ranks: float32 [B].

    Returns:
        Keys int32 [B], above `EMPTY` and below `PADDING`; and whether each rank is good, bool [B]: not a NaN, whose
        key is that of 0.
    """
    bits = ops.bitcast(ranks[:, None], "int32")[:, 0]
    # Read as integers, positive floats have their own order, and negative ones the reverse: so these are negated.
    magnitude = bits & _MAGNITUDE
    good = magnitude <= _INFINITY
    # By bits: some devices take subnormal numbers for zeros when they compute with them.
    return ops.where(good, ops.where(bits < 0, -magnitude, magnitude), ops.full_like(bits, 0)), good


def key_of_integers(ops: Ops, ranks: Array) -> Array:
    """Turn integer ranks int32 [B] into keys: themselves, but for the two ends, -2^31 and 2^31 - 1, moved by one."""
    lower, upper = ops.full_like(ranks, EMPTY + 1), ops.full_like(ranks, PADDING - 1)
    return ops.minimum(ops.maximum(ranks, lower), upper)
