"""The kernels of what n-step returns are made of, `returns.fold_floats` and `step_queue.plan_line`, on raw memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels.cache import compiled, entry_point
from functional_rb.cpu_kernels.raw_memory import INT32, UINT8, bools, ints, table


@entry_point
def fold(rewards: Any, real: Any, total: Any, steps: Any, discounts: Any, m: Any, w: Any) -> None:
    """Add up rewards [m, n, w], real uint8 [m, n], to total [m, w], of the dtype of discounts [n].

    See `returns.fold_floats`.
    """
    n, nothing = discounts.size, discounts.dtype.type(0)
    rewards, total = table(rewards, discounts[0], (m, n, w)), table(total, discounts[0], (m, w))
    real, steps = table(real, UINT8, (m, n)), ints(steps, m)
    for i in range(m):
        for j in range(w):
            total[i, j] = rewards[i, 0, j]
        count = np.int32(1)
        for k in range(1, n):
            there = real[i, k] != 0
            count += there
            for j in range(w):
                term = rewards[i, k, j] * discounts[k]
                total[i, j] += term if there and term != 0 else nothing  # which makes of -0 a 0
        steps[i] = count


@entry_point
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
    lanes: Any,
    batch: Any,
    words: Any,
    n: Any,
) -> None:
    """Do what `step_queue.plan_line` does, for rows = S * lanes = batch + lanes * (n - 1).

    Args:
        held: int32 [lanes], how many wait before.
        ended: uint8 [batch].
        ids: int32 [rows, words], 0 and no words for none.
        mask: uint8 [batch], or 0.
        window: int32 [rows, n].
        real: uint8 of the same shape.
        complete: uint8 [rows].
        waiting: int32 [lanes * (n - 1)].
        pending: int32 [lanes].
        lanes: how many.
        batch: new steps of all lanes.
        words: of a trajectory's id.
        n: steps of a window.
    """
    rows = batch + lanes * (n - 1)
    held, pending, waiting = ints(held, lanes), ints(pending, lanes), ints(waiting, lanes * (n - 1))
    ended, mask, complete = bools(ended, batch), bools(mask, batch), bools(complete, rows)
    ids, window, real = table(ids, INT32, (rows, words)), table(window, INT32, (rows, n)), table(real, UINT8, (rows, n))
    columns = rows // lanes
    line = np.empty(columns, np.int32)
    for lane in range(lanes):
        count = fill_line(line, lane, lanes, n, min(max(np.int64(held[lane]), np.int64(0)), n - 1), mask)
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
