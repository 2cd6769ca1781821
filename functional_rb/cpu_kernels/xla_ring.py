"""The kernels of `ring.choose_slots` and of `episode_windows` as XLA FFI handlers: what each hands on.

A module of their own, as handlers are compiled when theirs is imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels import ring
from functional_rb.cpu_kernels.xla_frame import handler, length, operand, result, source, target, vector


@handler
def plan_write(call: Any) -> None:
    """plan, steps, cursors, sizes, mask -> slots, source, live, written, cursors, sizes (no mask: all empty)."""
    plan, steps, count = vector(call, 0), vector(call, 1)[0], length(result(call, 0))
    cursors, sizes, mask = source(call, 2), source(call, 3), source(call, 4)
    slots, chosen, live, written = target(call, 0), target(call, 1), target(call, 2), target(call, 3)
    new_cursors, new_sizes = target(call, 4), target(call, 5)
    ring.plan_write(
        cursors, sizes, mask, slots, chosen, live, written, new_cursors, new_sizes, plan, np.int64(steps), count
    )


@handler
def step_ages(call: Any) -> None:
    """next_age, written, begins, ends (one may be empty) -> ages, next_age."""
    next_age, written, begins, ends = source(call, 0), source(call, 1), source(call, 2), source(call, 3)
    lanes, size = length(result(call, 1)), length(result(call, 0))
    ring.step_ages(next_age, written, begins, ends, target(call, 0), target(call, 1), lanes, size)


@handler
def changed(call: Any) -> None:
    """XLA passes plan, distances, cursors, sizes, age; the results are lane, back, slots, numbers."""
    plan, distances, count = vector(call, 0), vector(call, 1), length(result(call, 0))
    cursors, sizes, age = source(call, 2), source(call, 3), source(call, 4)
    lane, back, slots, numbers = target(call, 0), target(call, 1), target(call, 2), target(call, 3)
    ring.changed(cursors, sizes, age, lane, back, slots, numbers, plan, distances, count)


@handler
def weights_at(call: Any) -> None:
    """XLA passes plan, cursors, sizes, age, slots; the result is weights."""
    cursors, sizes, age, slots = source(call, 1), source(call, 2), source(call, 3), source(call, 4)
    ring.weights_at(cursors, sizes, age, slots, target(call, 0), vector(call, 0), length(result(call, 0)))


@handler
def expand(call: Any) -> None:
    """plan, cursors, sizes, age, next_age, starts, draws [S, 2], live (empty for all) -> the fields of `Slices`."""
    plan, count = vector(call, 0), length(operand(call, 5))
    cursors, sizes, age, next_age = source(call, 1), source(call, 2), source(call, 3), source(call, 4)
    starts, draws, live = source(call, 5), source(call, 6), source(call, 7)
    slots, handles, mask = target(call, 0), target(call, 1), target(call, 2)
    first, last, truncated = target(call, 3), target(call, 4), target(call, 5)
    ring.expand(
        cursors, sizes, age, next_age, starts, draws, live, slots, handles, mask, first, last, truncated, plan, count
    )
