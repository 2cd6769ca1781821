"""The fused kernels as XLA FFI handlers: what each hands on."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels import calls, random_bits
from functional_rb.cpu_kernels.cache import compiled
from functional_rb.cpu_kernels.descriptor import LEAVES, WIDE
from functional_rb.cpu_kernels.raw_memory import floats, ints
from functional_rb.cpu_kernels.xla_frame import (
    handler,
    length,
    operand,
    operands,
    result,
    rows_of,
    source,
    sources,
    target,
    targets,
    vector,
)

NONE = np.int64(0)
"""Stands for an array that is not given, and for no room to save in what is overwritten."""


@handler
def add(call: Any) -> None:
    """XLA passes plan, batch, rows, *wide, tree, counters, mask, priorities, *leaves; the results are new arrays."""
    plan = vector(call, 0)
    wide, batch = np.int64(plan[WIDE]), np.int64(vector(call, 1)[0])
    counters, mask, priorities = source(call, 4 + wide), source(call, 5 + wide), source(call, 6 + wide)
    storage, leaves = targets(call, 0, 1 + wide), sources(call, 7 + wide, np.int64(plan[LEAVES]))
    tree, new, size = target(call, 1 + wide), target(call, 2 + wide), length(result(call, 1 + wide))
    saved = np.empty(1, np.int64)
    calls.add(tree, counters, new, mask, priorities, NONE, NONE, storage, leaves, plan, size, batch, NONE, saved)


@compiled
def asked(call: Any, k: Any, batch: Any) -> Any:
    """How many rows of a batch are to be filled: as the k-th operand says, if it is given, but at least the first."""
    wanted = vector(call, k)
    return max(np.int64(1), min(np.int64(wanted[0]), batch)) if wanted.size else batch


@handler
def threefry(call: Any) -> None:
    """Key uint32 [2], wanted int32 or nothing -> draws int32 [B, words], of which so many rows are filled."""
    key, rows = vector(call, 0), rows_of(result(call, 0))
    words = length(result(call, 0)) // max(rows, 1)
    random_bits.fill_threefry(key[0], key[1], ints(target(call, 0), asked(call, 1, rows) * words))


@handler
def draw(call: Any) -> None:
    """XLA passes plan, rows, *wide, tree, counters, draws, beta, wanted; the results are *leaves and the selection's.

    Wanted is an int32 scalar or nothing: so many rows of the results are filled.
    """
    plan = vector(call, 0)
    wide, last = np.int64(plan[WIDE]), np.int64(plan[LEAVES])
    storage, leaves = sources(call, 1, 1 + wide), targets(call, 0, last)
    tree, counters, draws = source(call, 2 + wide), source(call, 3 + wide), source(call, 4 + wide)
    handles, weights, probabilities = target(call, last), target(call, last + 1), target(call, last + 2)
    size, batch = length(operand(call, 2 + wide)), rows_of(operand(call, 4 + wide))
    words = length(operand(call, 4 + wide)) // max(batch, 1)
    beta, batch = np.float64(floats(source(call, 5 + wide), 1)[0]), asked(call, 6 + wide, batch)
    calls.draw(tree, counters, draws, handles, weights, probabilities, storage, leaves, plan, size, words, beta, batch)


@handler
def update(call: Any) -> None:
    """XLA passes plan, tree, counters, handles, priorities; the results are tree, counters.

    Where leaves are rewritten, also rows, *wide, *leaves (empty for those that are not) -> rows, *wide.
    """
    plan = vector(call, 0)
    rewrites = operands(call) > 5
    arrays, given = (1 + np.int64(plan[WIDE]), np.int64(plan[LEAVES])) if rewrites else (NONE, NONE)
    counters, handles, priorities = source(call, 2), source(call, 3), source(call, 4)
    storage, leaves = targets(call, 2, arrays), sources(call, 5 + arrays, given)
    tree, new, size, batch = target(call, 0), target(call, 1), length(result(call, 0)), length(operand(call, 3))
    saved = np.empty(1, np.int64)
    calls.update(
        tree, counters, new, handles, priorities, NONE, NONE, storage, leaves, plan, size, batch, given, NONE, saved
    )
