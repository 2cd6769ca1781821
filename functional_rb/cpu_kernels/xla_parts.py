"""The parts of the core as XLA FFI handlers: what each hands on.

Handlers are compiled when their module is imported, so these are not in one with the fused kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels import calls
from functional_rb.cpu_kernels.descriptor import LEAVES, WIDE
from functional_rb.cpu_kernels.xla_frame import (
    handler,
    length,
    operand,
    result,
    rows_of,
    source,
    sources,
    target,
    targets,
    vector,
)


@handler
def descend(call: Any) -> None:
    """plan, tree, draws [B, words] -> leaves [B]."""
    size, batch = length(operand(call, 1)), rows_of(operand(call, 2))
    words = length(operand(call, 2)) // batch
    calls.descend(source(call, 1), source(call, 2), target(call, 0), vector(call, 0), size, batch, words)


@handler
def set_leaves(call: Any) -> None:
    """XLA passes plan, tree, leaves, values; the result is tree."""
    size, count = length(result(call, 0)), length(operand(call, 2))
    calls.set_leaves(target(call, 0), source(call, 2), source(call, 3), vector(call, 0), size, count)


@handler
def read(call: Any) -> None:
    """XLA passes plan, rows, *wide, slots; the results are *leaves."""
    plan = vector(call, 0)
    wide = np.int64(plan[WIDE])
    storage, leaves = sources(call, 1, 1 + wide), targets(call, 0, np.int64(plan[LEAVES]))
    capacity, count = rows_of(operand(call, 1)), length(operand(call, 2 + wide))
    calls.read(source(call, 2 + wide), storage, leaves, plan, capacity, count)


@handler
def store(call: Any) -> None:
    """plan, rows, *wide, slots, source, live (empty for none), *leaves [B, *shape] -> rows, *wide."""
    plan = vector(call, 0)
    wide = np.int64(plan[WIDE])
    slots, chosen, live = source(call, 2 + wide), source(call, 3 + wide), source(call, 4 + wide)
    storage, leaves = targets(call, 0, 1 + wide), sources(call, 5 + wide, np.int64(plan[LEAVES]))
    capacity, count, batch = rows_of(result(call, 0)), length(operand(call, 2 + wide)), rows_of(operand(call, 5 + wide))
    calls.store(slots, chosen, live, storage, leaves, plan, capacity, count, batch)


@handler
def stored_values(call: Any) -> None:
    """XLA passes plan, priorities; the results are values, good."""
    calls.stored_values(source(call, 1), target(call, 0), target(call, 1), vector(call, 0), length(operand(call, 1)))


@handler
def importance_weights(call: Any) -> None:
    """XLA passes values, smallest, beta; the result is weights."""
    calls.importance_weights(
        source(call, 0), source(call, 1), source(call, 2), target(call, 0), length(operand(call, 0))
    )
