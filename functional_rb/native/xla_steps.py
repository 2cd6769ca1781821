"""The twins of what transforms look for and add up as XLA FFI handlers: what each hands on.

A module of their own, as handlers are compiled when theirs is imported.
"""

from __future__ import annotations

from typing import Any

import numba

from functional_rb.native import rings, steps
from functional_rb.native.frame import (
    FLOAT32,
    FRAME_ARGUMENTS,
    FRAME_RESULTS,
    INT32,
    UINT8,
    answers_metadata,
    buffer_at,
    data,
    floats,
    handler,
    ints,
    length,
    marks,
    rows_of,
)
from functional_rb.native.memory import pointer_to


@handler
def following(frame: Any) -> Any:
    """plan, cursors, age, slots -> slots [m, n], real [m, n]."""
    if answers_metadata(frame):
        return 0
    slots = ints(buffer_at(frame, FRAME_ARGUMENTS, 3))
    found = buffer_at(frame, FRAME_RESULTS, 0)
    shape = (slots.size, length(found) // slots.size)
    rings.following(
        ints(buffer_at(frame, FRAME_ARGUMENTS, 0)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 1)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 2)),
        slots,
        numba.carray(pointer_to(data(found), INT32), shape),
        numba.carray(pointer_to(data(buffer_at(frame, FRAME_RESULTS, 1)), UINT8), shape),
    )
    return 0


@handler
def extent(frame: Any) -> Any:
    """plan, cursors, sizes, age, slots -> before, after."""
    if answers_metadata(frame):
        return 0
    rings.extent(
        ints(buffer_at(frame, FRAME_ARGUMENTS, 0)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 1)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 2)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 3)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 4)),
        ints(buffer_at(frame, FRAME_RESULTS, 0)),
        ints(buffer_at(frame, FRAME_RESULTS, 1)),
    )
    return 0


@handler
def fold(frame: Any) -> Any:
    """Factors float32 [n], rewards float32 [m, n, w], real -> total [m, w], steps [m]."""
    if answers_metadata(frame):
        return 0
    discounts = floats(buffer_at(frame, FRAME_ARGUMENTS, 0))
    total, found = buffer_at(frame, FRAME_RESULTS, 0), ints(buffer_at(frame, FRAME_RESULTS, 1))
    count, n, width = found.size, discounts.size, length(total) // found.size
    steps.fold(
        discounts,
        numba.carray(pointer_to(data(buffer_at(frame, FRAME_ARGUMENTS, 1)), FLOAT32), (count, n, width)),
        numba.carray(pointer_to(data(buffer_at(frame, FRAME_ARGUMENTS, 2)), UINT8), (count, n)),
        numba.carray(pointer_to(data(total), FLOAT32), (count, width)),
        found,
    )
    return 0


@handler
def plan_line(frame: Any) -> Any:
    """held, ended, ids [rows, words], mask (empty for none) -> window, real, complete, waiting, pending."""
    if answers_metadata(frame):
        return 0
    ended, ids = marks(buffer_at(frame, FRAME_ARGUMENTS, 1)), buffer_at(frame, FRAME_ARGUMENTS, 2)
    window = buffer_at(frame, FRAME_RESULTS, 0)
    rows = rows_of(window)
    shape = (rows, length(window) // rows)
    steps.plan_line(
        ints(buffer_at(frame, FRAME_ARGUMENTS, 0)),
        ended,
        numba.carray(pointer_to(data(ids), INT32), (rows, length(ids) // rows)),
        marks(buffer_at(frame, FRAME_ARGUMENTS, 3)),
        numba.carray(pointer_to(data(window), INT32), shape),
        numba.carray(pointer_to(data(buffer_at(frame, FRAME_RESULTS, 1)), UINT8), shape),
        marks(buffer_at(frame, FRAME_RESULTS, 2)),
        ints(buffer_at(frame, FRAME_RESULTS, 3)),
        ints(buffer_at(frame, FRAME_RESULTS, 4)),
    )
    return 0
