"""Sum trees by NumPy, as they are documented: each node from its children."""

from __future__ import annotations

from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]
Ints = np.ndarray[Any, np.dtype[np.int32]]


FANOUT = 16


def row_sums(children: Floats) -> Floats:
    """The documented order, ((c0 + c8) + (c4 + c12)) + ..., written out without `sum_tree.add_up`."""
    order = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15]
    parts = [children[:, k] for k in order]
    while len(parts) > 1:
        parts = [parts[k] + parts[k + 1] for k in range(0, len(parts), 2)]
    return parts[0]


def row_smallest(children: Floats) -> Floats:
    least = np.where(children > 0, children, np.float32(np.inf)).min(1)
    return np.where(np.isfinite(least), least, np.float32(0))


def bits(x: Any) -> Ints:
    return np.ascontiguousarray(x).view(np.int32)


def expected_tree(leaves: Floats) -> Floats:
    """The whole tree of some leaves, by NumPy."""
    blocks = []

    def rows(values: Floats) -> Floats:
        padded = np.zeros((-(-values.size // FANOUT), FANOUT), np.float32)
        padded.reshape(-1)[: values.size] = values
        blocks.append(padded)
        return padded

    sums = smallest = largest = rows(leaves)
    while len(sums) > 1:
        next_sums, next_smallest, next_largest = row_sums(sums), row_smallest(smallest), largest.max(1)
        sums, smallest, largest = rows(next_sums), rows(next_smallest), rows(next_largest)
    return np.concatenate(blocks)


def check_tree(tree: Any, capacity: int) -> Floats:
    """Every node against its children, padding included; returns the leaves."""
    tree = np.asarray(tree)
    leaves = tree.reshape(-1)[:capacity]
    np.testing.assert_array_equal(bits(tree), bits(expected_tree(leaves)))
    return leaves


def total(tree: Any) -> float:
    """The sum of all leaves, of a tree of several levels."""
    return float(row_sums(np.asarray(tree)[-3:-2])[0])
