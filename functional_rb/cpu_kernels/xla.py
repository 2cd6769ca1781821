"""The fused kernels as XLA FFI handlers: what each hands on."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels import buffer, random_bits
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
    operands,
    result,
    result_addresses,
    rows_of,
    table,
)


@handler
def add(frame: Any) -> Any:
    """XLA passes plan, batch, rows, *wide, tree, counters, mask, priorities, *leaves; the results are new arrays."""
    for number in range(calls(frame)):
        call = frame, number
        plan = ints(operand(call, 0))
        wide = np.int64(plan[WIDE])
        buffer.add(
            plan,
            result_addresses(call, 0, 1 + wide),
            floats(result(call, 1 + wide)),
            ints(operand(call, 4 + wide)),
            ints(result(call, 2 + wide)),
            operand_addresses(call, 7 + wide, np.int64(plan[LEAVES])),
            np.int64(ints(operand(call, 1))[0]),
            marks(operand(call, 5 + wide)),
            ints(operand(call, 6 + wide)),
            np.empty(0, np.int32),
            np.empty(0, np.int64),
            np.empty(0, np.float32),
        )
    return 0


@handler
def threefry(frame: Any) -> Any:
    """Key uint32 [2] -> draws int32 [B, words]."""
    for number in range(calls(frame)):
        call = frame, number
        key = ints(operand(call, 0))
        random_bits.fill_threefry(key[0], key[1], ints(result(call, 0)))
    return 0


@handler
def draw(frame: Any) -> Any:
    """XLA passes plan, rows, *wide, tree, counters, draws, beta; the results are *leaves and the selection's arrays."""
    for number in range(calls(frame)):
        call = frame, number
        plan = ints(operand(call, 0))
        wide, leaves = np.int64(plan[WIDE]), np.int64(plan[LEAVES])
        numbers = operand(call, 4 + wide)
        batch = rows_of(numbers)
        words = length(numbers) // max(batch, 1)
        buffer.draw(
            plan,
            operand_addresses(call, 1, 1 + wide),
            floats(operand(call, 2 + wide)),
            ints(operand(call, 3 + wide)),
            table(numbers, INT32, (batch, words)),
            floats(operand(call, 5 + wide))[0],
            result_addresses(call, 0, leaves),
            ints(result(call, leaves)),
            floats(result(call, leaves + 1)),
            floats(result(call, leaves + 2)),
        )
    return 0


@handler
def update(frame: Any) -> Any:
    """XLA passes plan, tree, counters, handles, priorities; the results are tree, counters.

    Where leaves are rewritten, also rows, *wide, *leaves (empty for those that are not) -> rows, *wide.
    """
    for number in range(calls(frame)):
        call = frame, number
        plan = ints(operand(call, 0))
        rewrites = operands(call) > 5
        arrays = 1 + np.int64(plan[WIDE]) if rewrites else np.int64(0)
        buffer.update(
            plan,
            result_addresses(call, 2, arrays),
            floats(result(call, 0)),
            ints(operand(call, 2)),
            ints(result(call, 1)),
            ints(operand(call, 3)),
            ints(operand(call, 4)),
            operand_addresses(call, 5 + arrays, np.int64(plan[LEAVES]) if rewrites else np.int64(0)),
            np.empty(0, np.int32),
            np.empty(0, np.int64),
            np.empty(0, np.float32),
        )
    return 0
