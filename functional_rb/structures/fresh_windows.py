"""Windows that come once, while they are new: pieces of trajectories, one behind the other from their true starts.

Such a window is complete with a step whose number in its episode, counted from 1, is a multiple of the length. Each
step keeps how many windows of its lane were complete with it, and each lane how many are complete, and how many of
these were given, or lost before that. So what is still to be given follows from three numbers of a lane. Where a window
lies is found by looking at the steps' numbers, which count up, in O(log n). Overwriting steps changes no number.

Numbers are modulo 2^30, as are their differences: a ring holds fewer windows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import episode_windows
from functional_rb.structures.episode_windows import Lanes

MOST: Final = 2**30
"""A lane holds fewer windows than this."""
# A search looks at so many steps at a time: more are read in all than by halves, by fewer operations.
_PROBES: Final = 15


class Windows(NamedTuple):
    """How far the windows of the lanes have come."""

    numbers: Array  # int32 [capacity], how many of its lane are complete with the step in each slot
    completed: Array  # int32 [E], how many of each lane are complete
    given: Array  # int32 [E], how many of these were given, or lost


def completes(ops: Ops, length: int, in_episode: Array, slots: Array) -> Array:
    """Whether a window is complete with the steps in slots, bool like the slots."""
    return ops.take(in_episode, slots) % length == length - 1


def note(ops: Ops, length: int, lanes: Lanes, in_episode: Array, windows: Windows, written: Array, n: int) -> Windows:
    """Count what new steps complete.

    Args:
        length: steps in a window.
        lanes: the rings after the write.
        in_episode: int32 [capacity], which step of its episode lies in each slot, the new ones among them.
        windows: before it.
        written: int32 [E], how many steps of each lane are new.
        n: most of a lane that are stored, a Python int.
    """
    back = n - ops.arange(n, like=written)[None, :] + ops.full_like(written, 0)[:, None]
    lane = ops.full_like(back, 0) + ops.arange(back.shape[0], like=back)[:, None]
    slots = episode_windows.slot_of(ops, lanes, lane, back)
    new = back <= written[:, None]
    counted = ops.cumsum(ops.cast(new & completes(ops, length, in_episode, slots), "int32"))
    numbers = ops.where(new, (windows.completed[:, None] + counted) % MOST, ops.take(windows.numbers, slots))
    return Windows(
        ops.set_at(windows.numbers, slots.reshape(-1), numbers.reshape(-1)),
        (windows.completed + counted[:, -1]) % MOST,
        windows.given,
    )


def waiting(ops: Ops, length: int, lanes: Lanes, in_episode: Array, windows: Windows) -> Array:
    """How many windows of each lane are whole and were not given, int32 [E]."""
    size = lanes.size
    oldest = ops.maximum(size - (length - 1), ops.full_like(size, 1))  # with which the oldest whole one may be complete
    lane = ops.arange(size.shape[0], like=size)
    slots = episode_windows.slot_of(ops, lanes, lane, oldest)
    whole = _newer(ops, lanes, windows, lane)(oldest) + ops.cast(completes(ops, length, in_episode, slots), "int32")
    whole = ops.where(size >= length, whole, ops.full_like(whole, 0))
    return ops.minimum(whole, (windows.completed - windows.given) & (MOST - 1))


def take_oldest(
    ops: Ops, length: int, lanes: Lanes, in_episode: Array, windows: Windows, batch: int, wanted: Array | None = None
) -> tuple[Array, Array, Windows]:
    """Give windows, the oldest first: those that were completed the most steps of their lane ago.

    Args:
        length: steps in a window.
        lanes: the rings.
        in_episode: int32 [capacity], which step of its episode lies in each slot.
        windows: so far.
        batch: how many are given at most.
        wanted: int32 scalar, at most the batch; None for all of it.

    Returns:
        The slots of their first steps, int32 [batch], in bounds; which of them there are, bool [batch], the first ones;
        and the windows afterwards.
    """
    there = waiting(ops, length, lanes, in_episode, windows)
    total = ops.cumsum(there)[-1]
    most = ops.full_like(total, batch)
    number = ops.minimum(total, most if wanted is None else ops.minimum(wanted, most))
    chosen = number.reshape(1) if there.shape[0] == 1 else _chosen_of_lanes(ops, lanes, windows, there, number)
    row, up_to = ops.arange(batch, like=there), ops.cumsum(chosen)
    live = row < number
    lane = ops.searchsorted(up_to, row, "right")
    lane = ops.minimum(lane, ops.full_like(lane, there.shape[0] - 1))
    rank = row - (ops.take(up_to, lane) - ops.take(chosen, lane))
    newer = ops.where(live, ops.take(there, lane) - 1 - rank, ops.full_like(rank, 0))
    completed_after = _newer(ops, lanes, windows, lane[:, None])
    back = _furthest(ops, lanes.length, lambda x: completed_after(x) <= newer[:, None], lane)
    if there.shape[0] > 1:  # lane by lane so far
        order = ops.argsort(ops.where(live, -back, ops.full_like(back, 0)))
        lane, back = ops.take(lane, order), ops.take(back, order)
    starts = episode_windows.slot_of(ops, lanes, lane, back + (length - 1))
    given = (windows.completed - (there - chosen)) & (MOST - 1)
    return starts, live, windows._replace(given=given)


# How many of each lane are among the oldest of all, so many: those from some step back on, in the first lanes that one.
def _chosen_of_lanes(ops: Ops, lanes: Lanes, windows: Windows, there: Array, number: Array) -> Array:
    completed_after = _newer(ops, lanes, windows, ops.arange(there.shape[0], like=there)[:, None])
    all_there, size = there[:, None], lanes.size[:, None]

    # How many of each lane are complete so far back or further, int32 [E, m] for [1, m].
    def from_there_on(back: Array) -> Array:
        older = all_there - ops.minimum(all_there, completed_after(back))
        return ops.where(back <= size, older, ops.full_like(older, 0))

    def enough(back: Array) -> Array:
        summed = ops.cumsum(ops.moveaxis(from_there_on(back), 0, 1))[:, -1]
        return (summed >= number)[None, :]

    back = _furthest(ops, lanes.length, enough, number.reshape(1))
    older, also = from_there_on(back[:, None] + 1)[:, 0], from_there_on(back[:, None])[:, 0]
    at_last = also - older
    rest = number - ops.cumsum(older)[-1]
    return older + ops.where(ops.cumsum(at_last) <= rest, at_last, ops.full_like(at_last, 0))


# What tells how many windows are complete only after the steps so far back in some lanes, int32 like both together.
def _newer(ops: Ops, lanes: Lanes, windows: Windows, lane: Array) -> Callable[[Array], Array]:
    # Looked up once for all steps that a search looks at.
    head, first, completed = ops.take(lanes.head, lane), lane * lanes.length, ops.take(windows.completed, lane)

    def newer(back: Array) -> Array:
        place = head - ops.minimum(back, ops.full_like(back, lanes.length))
        slots = first + ops.where(place < 0, place + lanes.length, place)
        return (completed - ops.take(windows.numbers, slots)) & (MOST - 1)

    return newer


# The furthest back, 1 to the length, where something holds that holds for all steps in front of it; int32 [n].
def _furthest(ops: Ops, length: int, holds: Callable[[Array], Array], like: Array) -> Array:
    back, stride = ops.full_like(like, 0), 1
    while stride * (_PROBES + 1) <= length:
        stride *= _PROBES + 1
    while stride:
        probes = back[:, None] + (ops.arange(_PROBES, like=like)[None, :] + 1) * stride
        passed = holds(probes) & (probes <= length)
        back = back + stride * ops.cumsum(ops.cast(passed, "int32"))[:, -1]
        stride //= _PROBES + 1
    return ops.maximum(back, ops.full_like(back, 1))
