"""The kernels of `ring.choose_slots` and of `episode_windows` as XLA FFI handlers: what each hands on.

A module of their own, as handlers are compiled when theirs is imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels import ring
from functional_rb.cpu_kernels.descriptor import WINDOW_LENGTH
from functional_rb.cpu_kernels.xla_frame import INT32, UINT8, calls, handler, ints, marks, operand, result, table


@handler
def plan_write(frame: Any) -> Any:
    """plan, steps, cursors, sizes, mask -> slots, source, live, written, cursors, sizes (no mask: all empty)."""
    for number in range(calls(frame)):
        call = frame, number
        ring.plan_write(
            ints(operand(call, 0)),
            ints(operand(call, 2)),
            ints(operand(call, 3)),
            np.int64(ints(operand(call, 1))[0]),
            marks(operand(call, 4)),
            ints(result(call, 0)),
            ints(result(call, 1)),
            marks(result(call, 2)),
            ints(result(call, 3)),
            ints(result(call, 4)),
            ints(result(call, 5)),
        )
    return 0


@handler
def step_ages(frame: Any) -> Any:
    """next_age, written, begins, ends (one may be empty) -> ages, next_age."""
    for number in range(calls(frame)):
        call = frame, number
        ring.step_ages(
            ints(operand(call, 0)),
            ints(operand(call, 1)),
            marks(operand(call, 2)),
            marks(operand(call, 3)),
            ints(result(call, 0)),
            ints(result(call, 1)),
        )
    return 0


@handler
def changed(frame: Any) -> Any:
    """XLA passes plan, distances, cursors, sizes, age; the results are lane, back, slots, numbers."""
    for number in range(calls(frame)):
        call = frame, number
        ring.changed(
            ints(operand(call, 0)),
            ints(operand(call, 1)),
            ints(operand(call, 2)),
            ints(operand(call, 3)),
            ints(operand(call, 4)),
            ints(result(call, 0)),
            ints(result(call, 1)),
            ints(result(call, 2)),
            ints(result(call, 3)),
        )
    return 0


@handler
def weights_at(frame: Any) -> Any:
    """XLA passes plan, cursors, sizes, age, slots; the result is weights."""
    for number in range(calls(frame)):
        call = frame, number
        ring.weights_at(
            ints(operand(call, 0)),
            ints(operand(call, 1)),
            ints(operand(call, 2)),
            ints(operand(call, 3)),
            ints(operand(call, 4)),
            ints(result(call, 0)),
        )
    return 0


@handler
def expand(frame: Any) -> Any:
    """plan, cursors, sizes, age, next_age, starts, draws [S, 2], live (empty for all) -> the fields of `Slices`."""
    for number in range(calls(frame)):
        call = frame, number
        plan = ints(operand(call, 0))
        starts = ints(operand(call, 5))
        shape = (starts.size, np.int64(plan[WINDOW_LENGTH]))
        ring.expand(
            plan,
            ints(operand(call, 1)),
            ints(operand(call, 2)),
            ints(operand(call, 3)),
            ints(operand(call, 4)),
            starts,
            table(operand(call, 6), INT32, (starts.size, 2)),
            marks(operand(call, 7)),
            table(result(call, 0), INT32, shape),
            table(result(call, 1), INT32, shape),
            table(result(call, 2), UINT8, shape),
            table(result(call, 3), UINT8, shape),
            table(result(call, 4), UINT8, shape),
            table(result(call, 5), UINT8, shape),
        )
    return 0
