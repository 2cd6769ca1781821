"""The twins of `ring.plan_write` and of `windows` as XLA FFI handlers: what each hands on.

A module of their own, as handlers are compiled when theirs is imported.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from functional_rb.native import rings
from functional_rb.native.frame import (
    FRAME_ARGUMENTS,
    FRAME_RESULTS,
    INT32,
    UINT8,
    answers_metadata,
    buffer_at,
    data,
    handler,
    ints,
    marks,
    rows_of,
)
from functional_rb.native.memory import pointer_to
from functional_rb.native.plan import WINDOW_LENGTH


@handler
def plan_write(frame: Any) -> Any:
    """plan, cursors, sizes, steps [T, 0], mask -> slots, source, live, written, cursors, sizes (no mask: all empty)."""
    if answers_metadata(frame):
        return 0
    rings.plan_write(
        ints(buffer_at(frame, FRAME_ARGUMENTS, 0)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 1)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 2)),
        rows_of(buffer_at(frame, FRAME_ARGUMENTS, 3)),
        marks(buffer_at(frame, FRAME_ARGUMENTS, 4)),
        ints(buffer_at(frame, FRAME_RESULTS, 0)),
        ints(buffer_at(frame, FRAME_RESULTS, 1)),
        marks(buffer_at(frame, FRAME_RESULTS, 2)),
        ints(buffer_at(frame, FRAME_RESULTS, 3)),
        ints(buffer_at(frame, FRAME_RESULTS, 4)),
        ints(buffer_at(frame, FRAME_RESULTS, 5)),
    )
    return 0


@handler
def step_ages(frame: Any) -> Any:
    """next_age, written, begins, ends (one may be empty) -> ages, next_age."""
    if answers_metadata(frame):
        return 0
    rings.step_ages(
        ints(buffer_at(frame, FRAME_ARGUMENTS, 0)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 1)),
        marks(buffer_at(frame, FRAME_ARGUMENTS, 2)),
        marks(buffer_at(frame, FRAME_ARGUMENTS, 3)),
        ints(buffer_at(frame, FRAME_RESULTS, 0)),
        ints(buffer_at(frame, FRAME_RESULTS, 1)),
    )
    return 0


@handler
def changed(frame: Any) -> Any:
    """plan, distances, cursors, sizes, age -> lane, back, slots, numbers."""
    if answers_metadata(frame):
        return 0
    rings.changed(
        ints(buffer_at(frame, FRAME_ARGUMENTS, 0)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 1)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 2)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 3)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 4)),
        ints(buffer_at(frame, FRAME_RESULTS, 0)),
        ints(buffer_at(frame, FRAME_RESULTS, 1)),
        ints(buffer_at(frame, FRAME_RESULTS, 2)),
        ints(buffer_at(frame, FRAME_RESULTS, 3)),
    )
    return 0


@handler
def weights_at(frame: Any) -> Any:
    """plan, cursors, sizes, age, slots -> weights."""
    if answers_metadata(frame):
        return 0
    rings.weights_at(
        ints(buffer_at(frame, FRAME_ARGUMENTS, 0)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 1)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 2)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 3)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 4)),
        ints(buffer_at(frame, FRAME_RESULTS, 0)),
    )
    return 0


@handler
def expand(frame: Any) -> Any:
    """plan, cursors, sizes, age, next_age, starts, draws [S, 2], live (empty for all) -> the fields of `Slices`."""
    if answers_metadata(frame):
        return 0
    plan = ints(buffer_at(frame, FRAME_ARGUMENTS, 0))
    starts = ints(buffer_at(frame, FRAME_ARGUMENTS, 5))
    shape = (starts.size, np.int64(plan[WINDOW_LENGTH]))
    rings.expand(
        plan,
        ints(buffer_at(frame, FRAME_ARGUMENTS, 1)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 2)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 3)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 4)),
        starts,
        numba.carray(pointer_to(data(buffer_at(frame, FRAME_ARGUMENTS, 6)), INT32), (starts.size, 2)),
        marks(buffer_at(frame, FRAME_ARGUMENTS, 7)),
        numba.carray(pointer_to(data(buffer_at(frame, FRAME_RESULTS, 0)), INT32), shape),
        numba.carray(pointer_to(data(buffer_at(frame, FRAME_RESULTS, 1)), INT32), shape),
        numba.carray(pointer_to(data(buffer_at(frame, FRAME_RESULTS, 2)), UINT8), shape),
        numba.carray(pointer_to(data(buffer_at(frame, FRAME_RESULTS, 3)), UINT8), shape),
        numba.carray(pointer_to(data(buffer_at(frame, FRAME_RESULTS, 4)), UINT8), shape),
        numba.carray(pointer_to(data(buffer_at(frame, FRAME_RESULTS, 5)), UINT8), shape),
    )
    return 0
