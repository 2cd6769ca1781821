"""The kernels of what n-step returns are made of, `returns.fold_floats` and `step_queue.plan_line`, on raw memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels.cache import compiled


@compiled
def fold(discounts: Any, rewards: Any, real: Any, total: Any, steps: Any) -> None:
    """Add up rewards [m, n, w], discounts [n], real uint8 [m, n], to total [m, w]: see `returns.fold_floats`."""
    nothing = discounts.dtype.type(0)
    for i in range(steps.size):
        total[i] = rewards[i, 0]
        count = np.int32(1)
        for k in range(1, discounts.size):
            there = real[i, k] != 0
            count += there
            for j in range(total.shape[1]):
                term = rewards[i, k, j] * discounts[k]
                total[i, j] += term if there and term != 0 else nothing  # which makes of -0 a 0
        steps[i] = count


@compiled
def plan_line(
    held: Any,
    ended: Any,
    ids: Any,
    mask: Any,
    window: Any,
    real: Any,
    complete: Any,
    waiting: Any,
    pending: Any,
) -> None:
    """Do what `step_queue.plan_line` does.

    Args:
        held: int32 [lanes], how many wait before.
        ended: uint8 [batch].
        ids: int32 [rows, words], no words for none.
        mask: uint8 [batch], or empty.
        window: int32 [S * lanes, n].
        real: uint8 of the same shape.
        complete: uint8 [S * lanes].
        waiting: int32 [lanes * (n - 1)].
        pending: int32 [lanes].
    """
    lanes, n = held.size, window.shape[1]
    columns = complete.size // lanes
    line = np.empty(columns, np.int32)
    for lane in range(lanes):
        count = fill_line(line, lane, lanes, n, np.int64(held[lane]), mask)
        done = look_ahead(line, count, lane, lanes, ended, ids, window, real, complete)
        for k in range(n - 1):
            waiting[lane * (n - 1) + k] = line[min(done + k, columns - 1)]
        pending[lane] = count - done


@compiled
def fill_line(line: Any, lane: Any, lanes: Any, n: Any, held: Any, mask: Any) -> Any:
    """The row in each column of a lane; returns how many are taken. The rest has the lane's last row."""
    steps = line.size - (n - 1)
    for k in range(held):
        line[k] = lane * (n - 1) + k
    count = held
    for step in range(steps):
        if mask.size == 0 or mask[step * lanes + lane] != 0:
            line[count] = lanes * (n - 1) + step * lanes + lane
            count += 1
    line[count:] = lanes * (n - 1) + (steps - 1) * lanes + lane
    return count


@compiled
def look_ahead(
    line: Any, count: Any, lane: Any, lanes: Any, ended: Any, ids: Any, window: Any, real: Any, complete: Any
) -> Any:
    """The windows of a lane, from its last column to the first; returns how many steps are complete."""
    n = window.shape[1]
    stop, known, done = count, False, np.int64(0)
    for column in range(line.size - 1, -1, -1):
        entry = column * lanes + lane
        fresh = line[column] - lanes * (n - 1)
        is_last = fresh >= 0 and ended[fresh] != 0
        if column < count and (is_last or (column + 1 < count and differ(ids, line, column))):
            stop, known = column + 1, True
        for k in range(n):
            window[entry, k] = line[min(column + k, line.size - 1)]
            real[entry, k] = column + k < stop
        finished = column < count and (known or column + n <= stop)
        complete[entry] = finished
        done += finished
    return done


@compiled
def differ(ids: Any, line: Any, column: Any) -> Any:
    """Whether the next column is of another trajectory."""
    other = False
    for word in range(ids.shape[1]):
        other |= ids[line[column], word] != ids[line[column + 1], word]
    return other
