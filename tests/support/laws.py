"""The law that draws follow, by going through all draws instead of drawing."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from functional_rb.samplers import DRAW_LIMIT
from functional_rb.structures import sum_tree
from functional_rb.structures.sum_tree import FANOUT, RESOLUTION
from torch_backend.arrays import ops as torch_ops

Floats = np.ndarray[Any, np.dtype[np.float32]]
Ints = np.ndarray[Any, np.dtype[np.int32]]
Longs = np.ndarray[Any, np.dtype[np.int64]]
Doubles = np.ndarray[Any, np.dtype[np.float64]]


def tree_of(priorities: Floats) -> Floats:
    """The tree of some leaves; test_sum_tree proves that it is right."""
    capacity = priorities.size
    tree = torch.zeros(sum_tree.geometry(capacity).rows, FANOUT)
    leaves = torch.arange(capacity, dtype=torch.int32)
    return sum_tree.set_leaves(torch_ops, tree, capacity, leaves, torch.from_numpy(priorities), True).numpy()


def intervals(tree: Floats, capacity: int) -> list[tuple[Longs, Longs]]:
    """For each level, root first, the draws [first, end) that pick each of its nodes, from the definition."""
    found = []
    for level in reversed(sum_tree.geometry(capacity).levels):
        children = tree[level.sums : level.sums + level.groups].astype(np.float64)
        total = sum_tree.add_up(tree[level.sums : level.sums + level.groups]).astype(np.float64)
        _, exponent = np.frexp(total)
        scaled = np.floor(np.ldexp(children, RESOLUTION + 1 - exponent[:, None])).astype(np.int64)
        reach = np.cumsum(np.where(children > 0, np.maximum(scaled, 1), 0), 1)
        assert reach.max() < DRAW_LIMIT
        whole = np.maximum(reach[:, -1:], 1)
        # A child is picked if reach before it <= draw * whole / 2^31 (rounded down) < reach with it.
        ends = -(-reach * DRAW_LIMIT // whole)
        firsts = np.concatenate([np.zeros_like(ends[:, :1]), ends[:, :-1]], 1)
        found.append((firsts.reshape(-1)[: level.nodes], ends.reshape(-1)[: level.nodes]))
    return found


def chance_of(counts: Longs, expected: Doubles) -> float:
    """The p-value of Pearson's chi-square by the approximation of Wilson and Hilferty (1931).

    scipy.stats, which has it exactly, takes a second to import.
    """
    freedom = len(counts) - 1
    root = (((counts - expected) ** 2 / expected).sum() / freedom) ** (1 / 3)
    variance = 2 / (9 * freedom)
    return 1 - NormalDist(1 - variance, variance**0.5).cdf(root)


def path(leaves: Ints, levels: int) -> list[Ints]:
    """The node of each level, root first, above given leaves."""
    return [leaves // FANOUT ** (levels - 1 - depth) for depth in range(levels)]


def probabilities(found: list[tuple[Longs, Longs]], leaves: Ints) -> Doubles:
    product = np.ones(leaves.size)
    for (first, end), nodes in zip(found, path(leaves, len(found)), strict=True):
        product *= (end - first)[nodes] / DRAW_LIMIT
    return product


def edge_draws(found: list[tuple[Longs, Longs]], leaves: Ints, last: bool) -> Ints:
    """The first, or the last, draw of every level that leads to each of some leaves."""
    columns = []
    for (first, end), nodes in zip(found, path(leaves, len(found)), strict=True):
        columns.append(end[nodes] - 1 if last else first[nodes])
    return np.stack(columns, 1).astype(np.int32)
