"""The parts of the core as XLA FFI handlers: what each hands on.

Handlers are compiled when their module is imported, so these are not in one with those of the twins.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from functional_rb.native import kernels
from functional_rb.native.frame import (
    FRAME_ARGUMENTS,
    FRAME_RESULTS,
    INT32,
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
from functional_rb.native.memory import pointer_to
from functional_rb.native.plan import LEAVES, WIDE


@handler
def descend(frame: Any) -> Any:
    """plan, tree, draws [B, words] -> leaves [B]."""
    if answers_metadata(frame):
        return 0
    numbers = buffer_at(frame, FRAME_ARGUMENTS, 2)
    batch = rows_of(numbers)
    kernels.descend(
        ints(buffer_at(frame, FRAME_ARGUMENTS, 0)),
        floats(buffer_at(frame, FRAME_ARGUMENTS, 1)),
        numba.carray(pointer_to(data(numbers), INT32), (batch, length(numbers) // batch)),
        ints(buffer_at(frame, FRAME_RESULTS, 0)),
    )
    return 0


@handler
def set_leaves(frame: Any) -> Any:
    """plan, tree, leaves, values -> tree."""
    if answers_metadata(frame):
        return 0
    kernels.set_leaves(
        ints(buffer_at(frame, FRAME_ARGUMENTS, 0)),
        floats(buffer_at(frame, FRAME_RESULTS, 0)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 2)),
        floats(buffer_at(frame, FRAME_ARGUMENTS, 3)),
    )
    return 0


@handler
def read(frame: Any) -> Any:
    """plan, rows, *wide, slots -> *leaves."""
    if answers_metadata(frame):
        return 0
    plan = ints(buffer_at(frame, FRAME_ARGUMENTS, 0))
    wide = np.int64(plan[WIDE])
    kernels.load_items(
        plan,
        addresses(frame, FRAME_ARGUMENTS, 1, 1 + wide),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 2 + wide)),
        addresses(frame, FRAME_RESULTS, 0, np.int64(plan[LEAVES])),
    )
    return 0


@handler
def store(frame: Any) -> Any:
    """plan, rows, *wide, slots, source, live (empty for none), *leaves [B, *shape] -> rows, *wide."""
    if answers_metadata(frame):
        return 0
    plan = ints(buffer_at(frame, FRAME_ARGUMENTS, 0))
    wide = np.int64(plan[WIDE])
    kernels.store_items(
        plan,
        addresses(frame, FRAME_RESULTS, 0, 1 + wide),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 2 + wide)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 3 + wide)),
        marks(buffer_at(frame, FRAME_ARGUMENTS, 4 + wide)),
        addresses(frame, FRAME_ARGUMENTS, 5 + wide, np.int64(plan[LEAVES])),
        rows_of(buffer_at(frame, FRAME_ARGUMENTS, 5 + wide)),
    )
    return 0


@handler
def stored_values(frame: Any) -> Any:
    """plan, priorities -> values, good."""
    if answers_metadata(frame):
        return 0
    kernels.stored_values(
        ints(buffer_at(frame, FRAME_ARGUMENTS, 0)),
        ints(buffer_at(frame, FRAME_ARGUMENTS, 1)),
        floats(buffer_at(frame, FRAME_RESULTS, 0)),
        marks(buffer_at(frame, FRAME_RESULTS, 1)),
    )
    return 0


@handler
def importance_weights(frame: Any) -> Any:
    """values, smallest [1], beta [1] -> weights."""
    if answers_metadata(frame):
        return 0
    kernels.importance_weights(
        floats(buffer_at(frame, FRAME_ARGUMENTS, 0)),
        floats(buffer_at(frame, FRAME_ARGUMENTS, 1))[0],
        floats(buffer_at(frame, FRAME_ARGUMENTS, 2))[0],
        floats(buffer_at(frame, FRAME_RESULTS, 0)),
    )
    return 0
