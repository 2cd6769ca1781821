"""Windows: runs of consecutive steps of one trajectory, and the index from which they are drawn in O(log n).

Steps are stored in lanes, one for each of several environments stepped together; a lane is a ring of slots. A stored
step is named by its lane and by `back`, its distance from the cursor: 1 is the newest step of the lane, `size` the
oldest. Of every stored step its step in the episode is kept: how many steps of its trajectory came before it, those
counted that have been overwritten since. Two steps of a lane, d apart, are of one trajectory exactly if these numbers
are d apart too, because one that began again in between is less than d.

A window begins at some step v of its trajectory, a multiple of the period: the grid is fixed to the true start and does
not shift when steps are overwritten. It holds the live steps v to v + length - 1. Which v there are, from the numbers
`first` and `last` of the trajectory's first and last live step, says the `Rule`:

    strict            first <= v <= last - length + 1
    otherwise         first <= v <= max(first, last - length + 1)
    ... with left     also first - left <= v < first: such a window begins with the first live step, cut short
    ... with right    also last - length + 1 < v <= last - length + 1 + right: such a window is cut short at its end

The index is one number for each slot, kept at write time in a tree from which slots are drawn: `weights`, how many
windows have their first live step there, if each window is to be equally likely; `last_starts`, 1 at one step of
each trajectory that has a window, if each trajectory is. Writing n steps changes few of these numbers, and `touched`
says where; `expand` goes from a drawn slot to one of its windows.

Of all functions `rule` says which windows there are, `lanes` where the rings are, and `in_episode`, int32 [capacity],
which step of its episode lies in each slot.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops
from functional_rb.ops.random_bits import below
from functional_rb.structures import ring
from functional_rb.structures.ring import Ring, RingState

# A trajectory that has got this long is taken as ended, so that no number overflows.
LONGEST = 2**30


@dataclasses.dataclass(frozen=True)
class Rule:
    """Which windows there are."""

    length: int  # steps in a window, 1 to 2^28
    period: int  # windows begin at every so many-th step of a trajectory, 1 to 2^28
    strict: bool  # no window has fewer steps than `length`. Excludes `left` and `right`.
    left: int  # how many steps windows may reach out before the first live step, 0 to length - 1
    right: int  # how many steps they may reach out past the last live step, 0 to length - 1

    @property
    def reach(self) -> int:
        """How many steps after v a trajectory must go on for v to be a window's start (the first live step apart)."""
        return self.length - 1 - self.right


class Lanes(NamedTuple):
    """The rings. Lane e has the slots e * length to e * length + length - 1."""

    ring: Ring  # how the slots are divided, static (so build this inside of a compiled function)
    ends: RingState  # where the lanes' rings are

    @property
    def length(self) -> int:
        """How many slots each ring has."""
        return self.ring.length

    @property
    def head(self) -> Array:
        """int32 [E], the place in its ring, 0 to length - 1, that each lane writes next."""
        return self.ends.cursors % self.ring.length

    @property
    def size(self) -> Array:
        """How many steps each ring stores, int32 [E]."""
        return self.ends.sizes


class Entries(NamedTuple):
    """Entries of the index."""

    lane: Array  # int32 [m]
    back: Array  # int32 [m], in 1 to the lanes' length
    slots: Array  # int32 [m], where these steps lie, stored or not
    numbers: Array  # int32 [m], their weights, or whether each is a last start


class Slices(NamedTuple):
    """Windows, their steps first and padding after them."""

    slots: Array  # int32 [S, K], consecutive steps in their order; padding repeats the last one
    handles: Array  # int32 [S, K], of the steps; -1 for padding
    # bool [S, K], false for padding. No step is real where the slot given was no window's start, or not live.
    mask: Array
    is_first: Array  # bool [S, K], the trajectory's very first step
    is_last: Array  # bool [S, K], the trajectory is known to have ended with this step
    # bool [S, K], the window's last step, where the trajectory is not known to have ended: it went on, or may go on,
    # and the cut is the window's.
    truncated: Array


@replaceable
def steps_in_episodes(
    ops: Ops, next_in_episode: Array, written: Array, begins: Array | None = None, ends: Array | None = None
) -> tuple[Array, Array]:
    """The steps in their episodes that new ones are, by where trajectories begin, where they end, or both.

    Args:
        next_in_episode: int32 [E], which step each lane's next one is: 0 if no trajectory is under way.
        written: int32 [E], how many steps of each lane are real, the first of its row.
        begins: bool [E, T], this step is of another trajectory than the one before it (for the first column, than the
            newest step stored).
        ends: bool [E, T], this step is its trajectory's last.

    Returns:
        int32 [E, T], meaningless for steps that are not real, and `next_in_episode` after these steps.
    """
    if ends is None:
        assert begins is not None
        starts = begins
    else:
        # An end begins the next trajectory one column later. For the first column `next_in_episode` says it.
        starts = ops.concat([ops.full_like(ends[:, :1], 0), ends[:, :-1]], 1)
        starts = starts if begins is None else starts | begins
    lanes, columns = starts.shape
    column = ops.arange(columns, like=written)[None, :]
    # The column in which each step's trajectory began; one that was under way began before the first column.
    began = ops.cummax(ops.where(starts, column, -next_in_episode[:, None]))
    steps = column - began
    newest = ops.arange(lanes, like=written) * columns + ops.maximum(written - 1, ops.full_like(written, 0))
    following = ops.take(steps.reshape(-1), newest) + 1
    # Cut there, so that numbers of steps, and sums of them, stay within an int32.
    ended = following >= LONGEST
    if ends is not None:
        ended = ended | ops.take(ends.reshape(-1), newest)
    following = ops.where(ended, ops.full_like(following, 0), following)
    return steps, ops.where(written > 0, following, next_in_episode)


def slot_of(ops: Ops, lanes: Lanes, lane: Array, back: Array) -> Array:
    """The slot of a step, for int32 arrays of one shape; a `back` outside of 1 to length counts as the nearest."""
    back = ops.minimum(ops.maximum(back, ops.full_like(back, 1)), ops.full_like(back, lanes.length))
    place = ops.take(lanes.head, lane) - back
    return lane * lanes.length + ops.where(place < 0, place + lanes.length, place)


def step_at(ops: Ops, lanes: Lanes, slots: Array) -> tuple[Array, Array]:
    """The lane and `back` of given slots, the inverse of `slot_of`; that of an empty slot is above the lane's size."""
    lane = slots // lanes.length
    back = ops.take(lanes.head, lane) - slots % lanes.length
    return lane, ops.where(back <= 0, back + lanes.length, back)


def weights(ops: Ops, rule: Rule, lanes: Lanes, in_episode: Array, lane: Array, back: Array) -> Array:
    """How many windows have given steps as their first live step.

    Args:
        lane: int32 [n].
        back: int32 [n].

    Returns:
        int32 [n], 0 to `length`; 0 for a `back` below 1 or above the lane's size.
    """
    step = ops.take(in_episode, slot_of(ops, lanes, lane, back))
    size = ops.take(lanes.size, lane)
    # The steps before it are overwritten, or were never there: windows that begin before it begin with it.
    first_live = (step == 0) | (back == size)
    starts = step % rule.period == 0
    if rule.reach:
        long_enough = _goes_on(ops, lanes, in_episode, lane, back, ops.full_like(back, rule.reach))
        starts = starts & (long_enough if rule.strict else long_enough | first_live)
    count = ops.cast(starts, "int32")
    if rule.left:
        # Windows that would begin up to `left` steps before, of which only those on the grid count.
        cut_short = _multiples(rule, step - rule.left, step - 1)
        count = count + ops.where(first_live, cut_short, ops.full_like(count, 0))
    return ops.where((back >= 1) & (back <= size), count, ops.full_like(count, 0))


def last_starts(ops: Ops, rule: Rule, lanes: Lanes, in_episode: Array, lane: Array, back: Array) -> Array:
    """1 at the last step of each trajectory that is the first of a window: one in each that has windows.

    That is a step of positive weight with none after it. Only the first live step may have weight off the grid, or
    with fewer than `reach` steps after it, and it is after none; so it is enough to look at the next step on the grid.

    Args:
        lane: int32 [n].
        back: int32 [n].

    Returns:
        int32 [n], 0 or 1; 0 for a `back` below 1 or above the lane's size.
    """
    step = ops.take(in_episode, slot_of(ops, lanes, lane, back))
    next_start = rule.period - step % rule.period
    more = _goes_on(ops, lanes, in_episode, lane, back, next_start + rule.reach)
    return ops.cast((weights(ops, rule, lanes, in_episode, lane, back) > 0) & ~more, "int32")


def distances(rule: Rule, length: int, n: int, by_trajectory: bool) -> list[tuple[int, int]]:
    """How far behind the newest step those are whose number in the index depends on whether the last n were there.

    Args:
        length: slots of a lane.
        n: most steps written in any lane, at most the length.
        by_trajectory: whether `last_starts` are asked for, or `weights`.

    Returns:
        Ranges in ascending order, the stop excluded; 0 is the newest step.
    """
    ranges = []
    covered = 0
    for first in sorted({0, rule.reach} | ({rule.period + rule.reach} if by_trajectory else set())):
        start, stop = max(first, covered), min(first + n, length)
        if start < stop:
            ranges.append((start, stop))
            covered = stop
    return ranges


def touched(ops: Ops, rule: Rule, lanes: Lanes, n: int, by_trajectory: bool) -> tuple[Array, Array]:
    """The steps whose number in the index a write may have changed.

    These are: the slots written; the steps so far behind them that their number depends on what was written; and the
    oldest step of each lane, which is now its trajectory's first live one. Slots that are still empty are among
    them and have weight 0, others may be repeated; each slot that is named has one `back`, and so one value.

    Args:
        lanes: the rings after the write.
        n: most steps written in any lane, a Python int, at most the lanes' length.
        by_trajectory: whether `last_starts` are asked for, or `weights`.

    Returns:
        lane int32 [m], `back` int32 [m] in 1 to the lanes' length, where m <= E * (3 n + 1), 2 n for weights.
    """
    backs = [
        ops.arange(stop - start, like=lanes.size) + (start + 1)
        for start, stop in distances(rule, lanes.length, n, by_trajectory)
    ]
    oldest = ops.maximum(lanes.size, ops.full_like(lanes.size, 1))[:, None]
    back = ops.concat([*(ops.full_like(oldest, 0) + row[None, :] for row in backs), oldest], 1)
    lane = ops.full_like(back, 0) + ops.arange(back.shape[0], like=back)[:, None]
    return lane.reshape(-1), back.reshape(-1)


@replaceable
def changed(ops: Ops, rule: Rule, lanes: Lanes, in_episode: Array, n: int, by_trajectory: bool) -> Entries:
    """The entries of the index that a write may have changed, see `touched`, as they are now.

    Args:
        lanes: the rings after the write.
        n: most steps written in any lane, a Python int, at most the lanes' length.
        by_trajectory: whether `last_starts` are asked for, or `weights`.
    """
    lane, back = touched(ops, rule, lanes, n, by_trajectory)
    numbers = (last_starts if by_trajectory else weights)(ops, rule, lanes, in_episode, lane, back)
    return Entries(lane, back, slot_of(ops, lanes, lane, back), numbers)


def left(ops: Ops, rule: Rule, lanes: Lanes, in_episode: Array, slots: Array, by_trajectory: bool) -> Entries:
    """The entries of the index at given slots, and at the oldest step of each lane: all that change when steps go.

    Args:
        lanes: the rings now that the steps are gone.
        slots: int32 [m], those of the steps; others do no harm.
        by_trajectory: whether `last_starts` are asked for, or `weights`.
    """
    lane, back = step_at(ops, lanes, slots)
    oldest = ops.maximum(lanes.size, ops.full_like(lanes.size, 1))
    lane = ops.concat([lane, ops.arange(oldest.shape[0], like=oldest)], 0)
    back = ops.concat([back, oldest], 0)
    numbers = (last_starts if by_trajectory else weights)(ops, rule, lanes, in_episode, lane, back)
    return Entries(lane, back, slot_of(ops, lanes, lane, back), numbers)


@replaceable
def weights_at(ops: Ops, rule: Rule, lanes: Lanes, in_episode: Array, slots: Array) -> Array:
    """The `weights` of slots int32 [n], int32 [n]; 0 for empty ones."""
    return weights(ops, rule, lanes, in_episode, *step_at(ops, lanes, slots))


def of_trajectories(ops: Ops, rule: Rule, lanes: Lanes, in_episode: Array, slots: Array) -> tuple[Array, Array]:
    """How many windows the trajectories of stored steps have, and the slots of their last starts (any if none).

    Args:
        slots: int32 [n], of stored steps.

    Returns:
        int32 [n] each.
    """
    before, after = extent(ops, lanes, in_episode, slots)
    step = ops.take(in_episode, slots)
    first, last = step - before, step + after
    lowest = first - rule.left
    highest = last
    if rule.reach:
        highest = last - rule.reach
        highest = ops.maximum(highest, lowest - 1 if rule.strict else first)
    last_start = ops.maximum(highest - highest % rule.period, first)
    return _multiples(rule, lowest, highest), shifted(ops, lanes, slots, last_start - step)


@replaceable
def expand(
    ops: Ops,
    rule: Rule,
    lanes: Lanes,
    in_episode: Array,
    next_in_episode: Array,
    slots: Array,
    draws: Array,
    live: Array | None,
    by_trajectory: bool,
) -> Slices:
    """From drawn slots to windows, each window of a slot being equally likely.

    Args:
        next_in_episode: int32 [E], which step each lane's next one will be; 0 if its newest trajectory has ended.
        slots: int32 [S], slots of the lanes, drawn by `weights`, or by `last_starts`.
        draws: int32 [S, 2], uniform in [0, 2^31).
        live: bool [S], which slots count at all; None if all do.
        by_trajectory: whether by `last_starts`; then any window of the step's trajectory is chosen, else one that
            begins with the step.
    """
    lane, back = step_at(ops, lanes, slots)
    step = ops.take(in_episode, slots)
    if by_trajectory:
        count = last_starts(ops, rule, lanes, in_episode, lane, back)
        drawn = count > 0 if live is None else live & (count > 0)
        # As far back as the lane goes, or to the trajectory's start.
        first = ops.maximum(step - (ops.take(lanes.size, lane) - back), ops.full_like(step, 0))
        lowest = first - rule.left
        count = ops.where(drawn, _multiples(rule, lowest, step), ops.full_like(step, 0))
    else:
        count = weights(ops, rule, lanes, in_episode, lane, back)
        drawn = count > 0 if live is None else live & (count > 0)
        first = step
    # The windows begin at the count's multiples of the period up to the step's number. This holds for a step off the
    # grid too: only windows that reach out before the first live step begin with one.
    v = step - step % rule.period - below(ops, draws, count) * rule.period
    start = ops.maximum(v, first)
    steps = ops.where(drawn, v + rule.length - start, ops.full_like(v, 0))
    return _slices(ops, rule.length, lanes, in_episode, next_in_episode, lane, back + (step - start), start, steps)


@replaceable
def following(ops: Ops, lanes: Lanes, in_episode: Array, slots: Array, n: int) -> tuple[Array, Array]:
    """The steps that follow on given ones in their trajectories.

    Args:
        slots: int32 [m], of stored steps.
        n: how many steps, the given one included, at most.

    Returns:
        Their slots int32 [m, n], in bounds, and which are stored and of the same trajectory, bool [m, n]: the first of
        each row.
    """
    lane, back = step_at(ops, lanes, slots)
    offset = ops.arange(n, like=back)[None, :]
    behind = back[:, None] - offset
    next_slots = slot_of(ops, lanes, lane[:, None] + ops.full_like(behind, 0), behind)
    distance = ops.take(in_episode, next_slots) - ops.take(in_episode, slots)[:, None]
    return next_slots, (behind >= 1) & (distance == offset)


@replaceable
def extent(ops: Ops, lanes: Lanes, in_episode: Array, slots: Array) -> tuple[Array, Array]:
    """How many stored steps of its trajectory lie before a stored step, and how many after it, int32 [m] for slots."""
    lane, back = step_at(ops, lanes, slots)
    before = ops.minimum(
        ops.take(in_episode, slots), ops.maximum(ops.take(lanes.size, lane) - back, ops.full_like(back, 0))
    )
    after = ops.full_like(back, 0)
    # If a step so far ahead is of the trajectory, so are all between: the distance is found bit by bit.
    # At most log2(length) reads, where looking at one step after the other would take as many as the trajectory has.
    for bit in reversed(range((lanes.length - 1).bit_length())):
        further = after + 2**bit
        after = ops.where(_goes_on(ops, lanes, in_episode, lane, back, further), further, after)
    return before, after


def shifted(ops: Ops, lanes: Lanes, slots: Array, by: Array) -> Array:
    """The slots so far after given ones in the turn of their lanes, int32 [m], for -length < by < length."""
    place = slots % lanes.length
    forward = ops.where(by < 0, by + lanes.length, by)
    return slots - place + ring.advance(ops, place, forward, lanes.length)


# Whether the trajectory of a live step has a live step so far (>= 0) after it.
def _goes_on(ops: Ops, lanes: Lanes, in_episode: Array, lane: Array, back: Array, distance: Array) -> Array:
    here = ops.take(in_episode, slot_of(ops, lanes, lane, back))
    there = ops.take(in_episode, slot_of(ops, lanes, lane, back - distance))
    return (back - distance >= 1) & (there - here == distance)


# How many multiples of the period lie in [low, high], for -length < low <= high + 1.
def _multiples(rule: Rule, low: Array, high: Array) -> Array:
    shift = -(-rule.length // rule.period) * rule.period  # nothing negative is divided
    return (high + shift) // rule.period - (low - 1 + shift) // rule.period


# At most `steps` steps of a trajectory from the one at (lane, back), its step `start`; all int32 [S].
def _slices(
    ops: Ops,
    length: int,
    lanes: Lanes,
    in_episode: Array,
    next_in_episode: Array,
    lane: Array,
    back: Array,
    start: Array,
    steps: Array,
) -> Slices:
    # One column more than a window has: what follows on its last step says whether the trajectory ended there.
    offset = ops.arange(length + 1, like=back)[None, :]
    behind = back[:, None] - offset
    lane = lane[:, None] + ops.full_like(behind, 0)
    numbers = ops.take(in_episode, slot_of(ops, lanes, lane, behind))
    # What comes behind the newest step is not stored, but its number is known: 0 if the trajectory has ended.
    numbers = ops.where(behind >= 1, numbers, ops.take(next_in_episode, lane))
    real = (behind >= 1) & (numbers - start[:, None] == offset) & (offset < steps[:, None])
    mask, following = real[:, :-1], numbers[:, 1:]
    # Padding repeats the last real step, as its slot is in bounds and its content harmless.
    last_real = ops.cummax(ops.where(mask, offset[:, :-1], ops.full_like(numbers[:, :-1], 0)))
    ended = following == 0
    lane, behind = lane[:, :-1], back[:, None] - last_real
    sequence_number = ring.retreat(ops, ops.take(lanes.ends.cursors, lane), behind, lanes.ring.limit)
    return Slices(
        slot_of(ops, lanes, lane, behind),
        ops.where(mask, ring.handle_of(lanes.ring, lane, sequence_number), ops.full_like(lane, -1)),
        mask,
        mask & (numbers[:, :-1] == 0),
        mask & ended,
        mask & ~real[:, 1:] & ~ended,
    )
