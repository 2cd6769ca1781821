"""The kernels of updates of priorities as XLA FFI handlers: what each hands on."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels import updates
from functional_rb.cpu_kernels.xla_frame import handler, length, operand, result, source, target, vector


@handler
def updated_values(call: Any) -> None:
    """XLA passes plan, slots, live, priorities; the results are values, replaced, bad, peak."""
    slots, live, priorities = source(call, 1), source(call, 2), source(call, 3)
    found = target(call, 0), target(call, 1), target(call, 2), target(call, 3)
    updates.updated_values(slots, live, priorities, *found, vector(call, 0), length(operand(call, 1)))


@handler
def update_priorities(call: Any) -> None:
    """plan, windows, tree, kept, counters, handles, priorities, in_episode -> tree, kept, counters."""
    counters, handles, priorities, in_episode = source(call, 4), source(call, 5), source(call, 6), source(call, 7)
    arrays = target(call, 0), target(call, 1), counters, target(call, 2), handles, priorities, in_episode
    nothing, saved = np.int64(0), np.empty(1, np.int64)
    vectors, sizes = (vector(call, 0), vector(call, 1)), (length(result(call, 0)), length(operand(call, 5)))
    updates.update_priorities(*arrays, nothing, nothing, nothing, *vectors, *sizes, nothing, saved)
