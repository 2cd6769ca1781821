"""The twins of the core's functions as XLA FFI handlers: what each hands on."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from functional_rb.native import draws, kernels
from functional_rb.native.frame import (
    FRAME_ARGUMENTS,
    FRAME_RESULTS,
    INT32,
    LIST_SIZE,
    addresses,
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
from functional_rb.native.memory import load_int64, pointer_to
from functional_rb.native.plan import LEAVES, WIDE


@handler
def add(frame: Any) -> Any:
    """plan, rows, *wide, tree, counters, mask, priorities, batch [B, 0], *leaves -> rows, *wide, tree, counters."""
    if answers_metadata(frame):
        return 0
    plan = ints(buffer_at(frame, FRAME_ARGUMENTS, 0))
    wide = np.int64(plan[WIDE])
    kernels.add(
        plan,
        addresses(frame, FRAME_RESULTS, 0, 1 + wide),
        floats(buffer_at(frame, FRAME_RESULTS, 1 + wide)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 3 + wide)),
        ints(buffer_at(frame, FRAME_RESULTS, 2 + wide)),
        addresses(frame, FRAME_ARGUMENTS, 7 + wide, np.int64(plan[LEAVES])),
        rows_of(buffer_at(frame, FRAME_ARGUMENTS, 6 + wide)),
        marks(buffer_at(frame, FRAME_ARGUMENTS, 4 + wide)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 5 + wide)),
        np.empty(0, np.int32),
        np.empty(0, np.int64),
        np.empty(0, np.float32),
    )
    return 0


@handler
def threefry(frame: Any) -> Any:
    """Key uint32 [2] -> draws int32 [B, words]."""
    if answers_metadata(frame):
        return 0
    key = ints(buffer_at(frame, FRAME_ARGUMENTS, 0))
    draws.fill_threefry(key[0], key[1], ints(buffer_at(frame, FRAME_RESULTS, 0)))
    return 0


@handler
def draw(frame: Any) -> Any:
    """plan, rows, *wide, tree, counters, draws, beta -> *leaves, handles, weights, probabilities."""
    if answers_metadata(frame):
        return 0
    plan = ints(buffer_at(frame, FRAME_ARGUMENTS, 0))
    wide, leaves = np.int64(plan[WIDE]), np.int64(plan[LEAVES])
    numbers = buffer_at(frame, FRAME_ARGUMENTS, 4 + wide)
    batch = rows_of(numbers)
    words = length(numbers) // max(batch, 1)
    kernels.draw(
        plan,
        addresses(frame, FRAME_ARGUMENTS, 1, 1 + wide),
        floats(buffer_at(frame, FRAME_ARGUMENTS, 2 + wide)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 3 + wide)),
        numba.carray(pointer_to(data(numbers), INT32), (batch, words)),
        floats(buffer_at(frame, FRAME_ARGUMENTS, 5 + wide))[0],
        addresses(frame, FRAME_RESULTS, 0, leaves),
        ints(buffer_at(frame, FRAME_RESULTS, leaves)),
        floats(buffer_at(frame, FRAME_RESULTS, leaves + 1)),
        floats(buffer_at(frame, FRAME_RESULTS, leaves + 2)),
    )
    return 0


@handler
def update(frame: Any) -> Any:
    """plan, rows, *wide, tree, counters, handles, priorities, *leaves (all or none) -> rows, *wide, tree, counters."""
    if answers_metadata(frame):
        return 0
    plan = ints(buffer_at(frame, FRAME_ARGUMENTS, 0))
    wide = np.int64(plan[WIDE])
    given = load_int64(frame + FRAME_ARGUMENTS + LIST_SIZE) - (6 + wide)
    kernels.update(
        plan,
        addresses(frame, FRAME_RESULTS, 0, 1 + wide),
        floats(buffer_at(frame, FRAME_RESULTS, 1 + wide)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 3 + wide)),
        ints(buffer_at(frame, FRAME_RESULTS, 2 + wide)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 4 + wide)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 5 + wide)),
        addresses(frame, FRAME_ARGUMENTS, 6 + wide, given),
        np.empty(0, np.int32),
        np.empty(0, np.int64),
        np.empty(0, np.float32),
    )
    return 0
