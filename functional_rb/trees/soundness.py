"""Whether the arrays of a tree can be those of its spec: what a file has, or a user swaps, may be anything."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.containers import add_rule
from functional_rb.core import soundness
from functional_rb.ops import numpy_ops
from functional_rb.structures.expected import Expected, problem_of_stack
from functional_rb.trees import nodes
from functional_rb.trees.spec import TreeSpec
from functional_rb.trees.state import FIELDS, NONE, ROOT, Tree

COUNTS: Final = ("visits", "edge_visits", "refused")
# The arrays by which the nodes of a tree hang together.
LINKS: Final = ("size", "parent", "slot", "depth", "children", *COUNTS)


def problem(tree: Any) -> str | None:
    """Why a tree, or a batch of trees, of NumPy's arrays cannot be one; or None.

    Each node but the root is a child of one that was stored before it, and stands where its parent says.
    """
    if not isinstance(tree.spec, TreeSpec):
        return f"its spec is that of no tree but {tree.spec!r:.60}"
    ops: Any = numpy_ops  # which makes arrays, but knows nothing of trees
    expected_arrays, arrays = named(nodes.empty(ops, tree.spec, 0, None)), named(tree)
    if list(arrays) != list(expected_arrays):
        return f"its arrays are {list(arrays)}, and by its spec {list(expected_arrays)}"
    expected = [Expected(name, array.shape[1:], array.dtype.name) for name, array in expected_arrays.items()]

    def links(arrays: list[NumpyArray]) -> str | None:
        return problem_of_links(tree.spec, dict(zip(expected_arrays, arrays, strict=True)))

    return problem_of_stack(expected, list(arrays.values()), links)


def named(tree: Tree) -> dict[str, NumpyArray]:
    arrays: dict[str, NumpyArray] = {}
    for name in FIELDS:
        value = getattr(tree, name)
        if isinstance(value, tuple):
            arrays |= {f"{name}/{k}": array for k, array in enumerate(value)}
        elif isinstance(value, dict):
            arrays |= {f"{name}/{key}": array for key, array in sorted(value.items())}
        else:
            arrays[name] = value
    return arrays


def problem_of_links(spec: TreeSpec, arrays: dict[str, NumpyArray]) -> str | None:
    """Why the nodes of one tree, by its arrays `LINKS`, do not hang together; or None."""
    size, parent, slot, depth, children = (arrays[name] for name in ("size", "parent", "slot", "depth", "children"))
    if not 0 <= size <= spec.capacity:
        return f"its size is {size}, and its capacity is {spec.capacity}"
    if size and (parent[ROOT], slot[ROOT], depth[ROOT]) != (NONE, NONE, 0):
        return f"its root has the parent {parent[ROOT]}, the slot {slot[ROOT]} and the depth {depth[ROOT]}"
    nodes, up, at = np.arange(1, max(int(size), 1)), parent[1:size], slot[1:size]
    wrong = np.flatnonzero((up < 0) | (up >= nodes) | (at < 0) | (at >= spec.children))
    if wrong.size:
        k = wrong[0]
        return f"node {nodes[k]} has the parent {up[k]} and the slot {at[k]}"
    wrong = np.flatnonzero((children[up, at] != nodes) | (depth[1:size] != depth[up] + 1))
    if wrong.size:
        k = wrong[0]
        behind = children[up[k], at[k]]
        return f"node {nodes[k]} has the depth {depth[nodes[k]]}, and its parent {up[k]} has {behind} in slot {at[k]}"
    stored = int((children != NONE).sum())
    if stored != len(nodes):
        return f"{stored} slots have a node behind them, and its size is {size}"
    problems = (soundness.problem_of_range(name, arrays[name].reshape(-1), 0, 2**31 - 1) for name in COUNTS)
    return next(filter(None, problems), None)


add_rule(Tree, problem)
