"""The kernels of `episode_windows` as XLA FFI handlers: what each hands on.

A module of their own, as handlers are compiled when theirs is imported.
"""

from __future__ import annotations

from typing import Any

from functional_rb.cpu_kernels import episode_windows
from functional_rb.cpu_kernels.xla_frame import handler, length, operand, result, source, target, vector


@handler
def steps_in_episodes(call: Any) -> None:
    """next_in_episode, written, begins, ends (one may be empty) -> steps, next_in_episode."""
    next_in_episode, written, begins, ends = source(call, 0), source(call, 1), source(call, 2), source(call, 3)
    lanes, size = length(result(call, 1)), length(result(call, 0))
    episode_windows.steps_in_episodes(
        next_in_episode, written, begins, ends, target(call, 0), target(call, 1), lanes, size
    )


@handler
def changed(call: Any) -> None:
    """XLA passes plan, distances, cursors, sizes, in_episode; the results are lane, back, slots, numbers."""
    plan, distances, count = vector(call, 0), vector(call, 1), length(result(call, 0))
    cursors, sizes, in_episode = source(call, 2), source(call, 3), source(call, 4)
    lane, back, slots, numbers = target(call, 0), target(call, 1), target(call, 2), target(call, 3)
    episode_windows.changed(cursors, sizes, in_episode, lane, back, slots, numbers, plan, distances, count)


@handler
def weights_at(call: Any) -> None:
    """XLA passes plan, cursors, sizes, in_episode, slots; the result is weights."""
    cursors, sizes, in_episode, slots = source(call, 1), source(call, 2), source(call, 3), source(call, 4)
    episode_windows.weights_at(
        cursors, sizes, in_episode, slots, target(call, 0), vector(call, 0), length(result(call, 0))
    )


@handler
def expand(call: Any) -> None:
    """Expand drawn slots to windows.

    plan, cursors, sizes, in_episode, next_in_episode, starts, draws [S, 2], live (empty for all) -> the fields of
    `Slices`.
    """
    plan, count = vector(call, 0), length(operand(call, 5))
    cursors, sizes, in_episode, next_in_episode = source(call, 1), source(call, 2), source(call, 3), source(call, 4)
    starts, draws, live = source(call, 5), source(call, 6), source(call, 7)
    slots, handles, mask = target(call, 0), target(call, 1), target(call, 2)
    first, last, truncated = target(call, 3), target(call, 4), target(call, 5)
    episode_windows.expand(
        cursors,
        sizes,
        in_episode,
        next_in_episode,
        starts,
        draws,
        live,
        slots,
        handles,
        mask,
        first,
        last,
        truncated,
        plan,
        count,
    )


@handler
def following(call: Any) -> None:
    """plan, cursors, sizes, in_episode, slots -> slots [m, n], real [m, n]."""
    count = length(operand(call, 4))
    n = length(result(call, 0)) // count
    cursors, in_episode, slots = source(call, 1), source(call, 3), source(call, 4)
    episode_windows.following(cursors, in_episode, slots, target(call, 0), target(call, 1), vector(call, 0), count, n)


@handler
def extent(call: Any) -> None:
    """XLA passes plan, cursors, sizes, in_episode, slots; the results are before, after."""
    cursors, sizes, in_episode, slots = source(call, 1), source(call, 2), source(call, 3), source(call, 4)
    episode_windows.extent(
        cursors, sizes, in_episode, slots, target(call, 0), target(call, 1), vector(call, 0), length(operand(call, 4))
    )
