"""The parts of the core as XLA FFI handlers: what each hands on.

Handlers are compiled when their module is imported, so these are not in one with the fused kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels import buffer
from functional_rb.cpu_kernels.descriptor import LEAVES, WIDE
from functional_rb.cpu_kernels.xla_frame import (
    INT32,
    calls,
    floats,
    handler,
    ints,
    length,
    marks,
    operand,
    operand_addresses,
    result,
    result_addresses,
    rows_of,
    table,
)


@handler
def descend(frame: Any) -> Any:
    """plan, tree, draws [B, words] -> leaves [B]."""
    for number in range(calls(frame)):
        call = frame, number
        numbers = operand(call, 2)
        batch = rows_of(numbers)
        buffer.descend(
            ints(operand(call, 0)),
            floats(operand(call, 1)),
            table(numbers, INT32, (batch, length(numbers) // batch)),
            ints(result(call, 0)),
        )
    return 0


@handler
def set_leaves(frame: Any) -> Any:
    """XLA passes plan, tree, leaves, values; the result is tree."""
    for number in range(calls(frame)):
        call = frame, number
        buffer.set_leaves(
            ints(operand(call, 0)),
            floats(result(call, 0)),
            ints(operand(call, 2)),
            floats(operand(call, 3)),
        )
    return 0


@handler
def read(frame: Any) -> Any:
    """XLA passes plan, rows, *wide, slots; the results are *leaves."""
    for number in range(calls(frame)):
        call = frame, number
        plan = ints(operand(call, 0))
        wide = np.int64(plan[WIDE])
        buffer.load_items(
            plan,
            operand_addresses(call, 1, 1 + wide),
            ints(operand(call, 2 + wide)),
            result_addresses(call, 0, np.int64(plan[LEAVES])),
        )
    return 0


@handler
def store(frame: Any) -> Any:
    """plan, rows, *wide, slots, source, live (empty for none), *leaves [B, *shape] -> rows, *wide."""
    for number in range(calls(frame)):
        call = frame, number
        plan = ints(operand(call, 0))
        wide = np.int64(plan[WIDE])
        buffer.store_items(
            plan,
            result_addresses(call, 0, 1 + wide),
            ints(operand(call, 2 + wide)),
            ints(operand(call, 3 + wide)),
            marks(operand(call, 4 + wide)),
            operand_addresses(call, 5 + wide, np.int64(plan[LEAVES])),
            rows_of(operand(call, 5 + wide)),
        )
    return 0


@handler
def stored_values(frame: Any) -> Any:
    """XLA passes plan, priorities; the results are values, good."""
    for number in range(calls(frame)):
        call = frame, number
        buffer.stored_values(
            ints(operand(call, 0)),
            ints(operand(call, 1)),
            floats(result(call, 0)),
            marks(result(call, 1)),
        )
    return 0


@handler
def importance_weights(frame: Any) -> Any:
    """XLA passes values, smallest, beta; the result is weights."""
    for number in range(calls(frame)):
        call = frame, number
        buffer.importance_weights(
            floats(operand(call, 0)),
            floats(operand(call, 1))[0],
            floats(operand(call, 2))[0],
            floats(result(call, 0)),
        )
    return 0
