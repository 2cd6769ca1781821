"""Steps in a line: those that wait for others to follow, and the new ones behind them."""

from __future__ import annotations

from typing import NamedTuple

from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import ring


class Line(NamedTuple):
    """Waiting and new steps of every lane in their order, S = n - 1 + T columns of which the first are taken.

    Entry `column * lanes + lane` is for one column of a lane. Rows are those of all waiting steps (n - 1 for each lane)
    and of the batch, one after the other.
    """

    # int32 [S * lanes, n], the row of the step in this column and those of the following ones; past the last column
    # that one again.
    window: Array
    real: Array  # bool [S * lanes, n], which of them there are, in the same trajectory: the first of each entry
    # bool [S * lanes], whether a step is there and waits no longer: its n steps are there, or its trajectory has ended.
    # They are the first steps of each lane.
    complete: Array
    waiting: Array  # int32 [lanes * (n - 1)], the rows of those that wait from now on, lane by lane; then any
    pending: Array  # int32 [lanes], how many wait


@replaceable
def plan_line(ops: Ops, pending: Array, ended: Array, ids: Array | None, mask: Array | None, n: int) -> Line:
    """Put the steps of a batch behind those that wait.

    Args:
        pending: int32 [lanes], how many wait.
        ended: bool [batch], whether a step is marked as its trajectory's last. No step that waits is.
        ids: int32 [rows, words], others where the trajectory is another; None if nothing tells so.
        mask: bool [batch], which of the batch's rows are added; None if all are.
        n: how many steps are wanted from each one on.
    """
    lanes, waiting = pending.shape[0], n - 1
    rows, count = _rows_in_line(ops, pending, ended.shape[0], mask, waiting)
    columns = rows.shape[1]
    column = ops.arange(columns, like=rows)
    there = column < count[:, None]
    not_ended = ops.arange(lanes * waiting, like=rows) < 0  # waiting steps have not ended: else they would not wait
    last = ops.take(ops.concat([not_ended, ended], 0), rows) & there
    if ids is not None:
        last = last | _changes(ops, ops.take(ids, rows), there)
    ends = ops.cumsum(ops.cast(last, "int32"))
    trajectory = ends - ops.cast(last, "int32")  # its number in the lane
    ahead = column[:, None] + ops.arange(n, like=rows)
    inside = ops.minimum(ahead, ops.full_like(ahead, columns - 1)).reshape(-1)
    lane = ops.arange(lanes, like=rows)[:, None]
    place = lane * columns + inside

    def looking_ahead(values: Array) -> Array:
        return ops.take(values.reshape(-1), place.reshape(-1)).reshape(lanes, columns, n)

    real = (ahead < columns) & looking_ahead(there) & (looking_ahead(trajectory) == trajectory[:, :, None])
    # Behind its trajectory's end nothing more can come, so that fewer steps than n have to do.
    complete = there & (real[:, :, n - 1] | (trajectory < ends[:, -1:]))
    done = ops.cumsum(ops.cast(complete, "int32"))[:, -1]
    following = done[:, None] + ops.arange(waiting, like=rows)
    following = lane * columns + ops.minimum(following, ops.full_like(following, columns - 1))
    return Line(
        _by_time(ops, looking_ahead(rows)),
        _by_time(ops, real),
        ring.by_time(complete),
        ops.take(rows.reshape(-1), following.reshape(-1)),
        count - done,
    )


# The row in each column, int32 [lanes, S], and how many columns are taken, int32 [lanes].
def _rows_in_line(ops: Ops, pending: Array, batch: int, mask: Array | None, waiting: int) -> tuple[Array, Array]:
    lanes = pending.shape[0]
    steps = batch // lanes
    lane = ops.arange(lanes, like=pending)[:, None]
    if mask is None:
        fresh, new = ops.arange(steps, like=pending)[None, :] * lanes + lane, ops.full_like(pending, steps)
    else:
        fresh, new = ring.compact(ops, lanes, mask)
    column = ops.arange(waiting + steps, like=pending)[None, :] + ops.full_like(lane, 0)
    behind = column - pending[:, None]
    at = ops.minimum(ops.maximum(behind, ops.full_like(behind, 0)), ops.full_like(behind, steps - 1))
    fresh = ops.take(fresh.reshape(-1), (lane * steps + at).reshape(-1)).reshape(column.shape)
    return ops.where(behind < 0, lane * waiting + column, lanes * waiting + fresh), pending + new


# Whether the next step there is of another trajectory, bool [lanes, S], for ids [lanes, S, words].
def _changes(ops: Ops, ids: Array, there: Array) -> Array:
    other = ids[:, 1:, 0] != ids[:, :-1, 0]
    for word in range(1, ids.shape[2]):
        other = other | (ids[:, 1:, word] != ids[:, :-1, word])
    return ops.concat([other & there[:, 1:], there[:, :1] & ~there[:, :1]], 1)


# [lanes, S, n] as [S * lanes, n].
def _by_time(ops: Ops, of_lanes: Array) -> Array:
    lanes, columns, n = of_lanes.shape
    if lanes == 1:
        return of_lanes.reshape(columns, n)
    order = ring.by_time(ops.arange(lanes * columns, like=of_lanes).reshape(lanes, columns))
    return ops.take(of_lanes.reshape(-1, n), order)
