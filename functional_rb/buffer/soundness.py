"""Whether the arrays of a state can be those of its spec: what a file has, or a dict, may be anything.

Checked is all that draws rest on: where the rings are, the leaves of the sum tree, and the slots and places that
samplers, writers and transforms keep. The content of items is not looked at: whatever it is, it is content.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core import counters, episodes, frame_store
from functional_rb.core.plan import Plan
from functional_rb.core.soundness import Found
from functional_rb.ops import numpy_ops
from functional_rb.structures import sum_tree

# No sum of leaves is larger: the powers of two that they are scaled by would overflow.
HEAVIEST = 2.0**126
# The bits of a float32.
INFINITY = 0x7F800000


def problem_of_counters(plan: Plan, vector: NumpyArray) -> str | None:
    """Why a vector int32 [n] cannot be the counters of a state, or None."""
    if vector.shape != (counters.length(plan),):
        return f"expected {counters.length(plan)} counters, found {vector.size}"
    numbers = counters.read(plan, vector)
    cursors, sizes = (np.asarray(ends, np.int64) for ends in numbers.ends)
    limit = plan.ring.limit if plan.in_order else 2**31
    if (cursors < 0).any() or (cursors >= limit).any() or (sizes < 0).any() or (sizes > plan.ring.length).any():
        return "its cursors are out of range"
    if int(vector[counters.SIZE]) != int(sizes.sum()):
        return f"its size is {int(vector[counters.SIZE])}, and its lanes have {int(sizes.sum())} items"
    if min(int(number) for number in (numbers.rejected, numbers.stale, numbers.invalid)) < 0:
        return "it has counted less than nothing"
    if not 0 <= int(numbers.peak) < INFINITY:
        return "the largest priority ever is no number"
    return None


def problem_of_arrays(
    spec: BufferSpec, vector: NumpyArray, auxiliary: Mapping[str, NumpyArray], tree: NumpyArray | None
) -> str | None:
    """Why some arrays cannot be those of a state whose counters are sound; or None.

    Args:
        spec: of the state.
        vector: its counters.
        auxiliary: the arrays beside the storage, by name.
        tree: float32 [rows, 16], the sum tree, or those of its rows that hold the leaves.
    """
    leaves = None
    if tree is not None:
        flat = tree[: sum_tree.geometry(spec.capacity).levels[0].groups].reshape(-1)
        leaves = flat[: spec.capacity]
        if problem := _problem_of_leaves(flat, spec.capacity):
            return problem
    contents = Found(spec.plan, counters.read(spec.plan, vector), auxiliary, leaves)
    keepers = [frame_store.problem, episodes.problem, *(strategy.problem for strategy in spec.strategies)]
    return next((problem for keeper in keepers if (problem := keeper(contents))), None)


def _problem_of_leaves(leaves: NumpyArray, capacity: int) -> str | None:
    bad = np.flatnonzero(~(np.isfinite(leaves) & (leaves >= 0)))
    if bad.size:
        return f"the weight of slot {bad[0]} is {leaves[bad[0]]}"
    if float(leaves.sum(dtype=np.float64)) >= HEAVIEST:
        return "its weights are too large to be added up"
    if leaves[capacity:].any():
        return f"slot {capacity + np.flatnonzero(leaves[capacity:])[0]} of {capacity} has a weight"
    return None


def problem_of_nodes(tree: NumpyArray, capacity: int) -> str | None:
    """Why the nodes of a sum tree float32 [rows, 16] are not those of its leaves; or None."""
    levels = sum_tree.geometry(capacity).levels
    rebuilt = np.zeros_like(tree)
    rebuilt[: levels[0].groups] = tree[: levels[0].groups]
    rebuilt = np.asarray(sum_tree.rebuild(numpy_ops.OPS, rebuilt, capacity))
    # Bit by bit: sums are made in one fixed order, so that a sound tree has exactly these.
    wrong = np.flatnonzero(rebuilt.view(np.int32) != tree.view(np.int32))
    return f"its sums are not those of its leaves, at {wrong[0]} for one" if wrong.size else None
