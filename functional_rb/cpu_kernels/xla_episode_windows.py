"""The kernels of what transforms look for and add up as XLA FFI handlers: what each hands on.

A module of their own, as handlers are compiled when theirs is imported.
"""

from __future__ import annotations

from typing import Any

from functional_rb.cpu_kernels import episode_windows, ring
from functional_rb.cpu_kernels.xla_frame import (
    FLOAT32,
    INT32,
    UINT8,
    calls,
    floats,
    handler,
    ints,
    length,
    marks,
    operand,
    result,
    rows_of,
    table,
)


@handler
def following(frame: Any) -> Any:
    """plan, cursors, sizes, age, slots -> slots [m, n], real [m, n]."""
    for number in range(calls(frame)):
        call = frame, number
        slots = ints(operand(call, 4))
        found = result(call, 0)
        shape = (slots.size, length(found) // slots.size)
        ring.following(
            ints(operand(call, 0)),
            ints(operand(call, 1)),
            ints(operand(call, 3)),
            slots,
            table(found, INT32, shape),
            table(result(call, 1), UINT8, shape),
        )
    return 0


@handler
def extent(frame: Any) -> Any:
    """XLA passes plan, cursors, sizes, age, slots; the results are before, after."""
    for number in range(calls(frame)):
        call = frame, number
        ring.extent(
            ints(operand(call, 0)),
            ints(operand(call, 1)),
            ints(operand(call, 2)),
            ints(operand(call, 3)),
            ints(operand(call, 4)),
            ints(result(call, 0)),
            ints(result(call, 1)),
        )
    return 0


@handler
def fold(frame: Any) -> Any:
    """Factors float32 [n], rewards float32 [m, n, w], real -> total [m, w], steps [m]."""
    for number in range(calls(frame)):
        call = frame, number
        discounts = floats(operand(call, 0))
        total, found = result(call, 0), ints(result(call, 1))
        count, n, width = found.size, discounts.size, length(total) // found.size
        episode_windows.fold(
            discounts,
            table(operand(call, 1), FLOAT32, (count, n, width)),
            table(operand(call, 2), UINT8, (count, n)),
            table(total, FLOAT32, (count, width)),
            found,
        )
    return 0


@handler
def plan_line(frame: Any) -> Any:
    """held, ended, ids [rows, words], mask (empty for none) -> window, real, complete, waiting, pending."""
    for number in range(calls(frame)):
        call = frame, number
        ended, ids = marks(operand(call, 1)), operand(call, 2)
        window = result(call, 0)
        rows = rows_of(window)
        shape = (rows, length(window) // rows)
        episode_windows.plan_line(
            ints(operand(call, 0)),
            ended,
            table(ids, INT32, (rows, length(ids) // rows)),
            marks(operand(call, 3)),
            table(window, INT32, shape),
            table(result(call, 1), UINT8, shape),
            marks(result(call, 2)),
            ints(result(call, 3)),
            ints(result(call, 4)),
        )
    return 0
