"""The kernels of `episode_windows`, on raw memory.

Those that are called from outside take addresses, 0 for an array that is not given. Arguments that recur:
    plan: see `descriptor.encode_windows`.
    cursors, sizes: int32 [lanes], see `ring.RingState`.
    in_episode: int32 [capacity], which step of its episode lies in each slot.
    own: the part of it that belongs to one lane.
    step: which step of its episode one is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels.cache import compiled, entry_point
from functional_rb.cpu_kernels.descriptor import (
    BY_TRAJECTORY,
    LEFT,
    PERIOD,
    RIGHT,
    RING_CAPACITY,
    RING_LANES,
    RING_LENGTH,
    RING_TURNS,
    STRICT,
    WINDOW_LENGTH,
)
from functional_rb.cpu_kernels.raw_memory import INT32, UINT8, bools, bounded, ints, table
from functional_rb.cpu_kernels.ring import back_of, lane_of, lanes_of, modulo, place_of
from functional_rb.structures import episode_windows

LONGEST = np.int64(episode_windows.LONGEST)


@entry_point
def steps_in_episodes(
    next_in_episode: Any, written: Any, begins: Any, ends: Any, in_episode: Any, new_next: Any, lanes: Any, size: Any
) -> None:
    """Do what `episode_windows.steps_in_episodes` does, to int32 [size] in_episode; begins or ends is 0 for none."""
    next_in_episode, written, new_next = ints(next_in_episode, lanes), ints(written, lanes), ints(new_next, lanes)
    begins, ends, in_episode = bools(begins, size), bools(ends, size), ints(in_episode, size)
    steps = size // lanes
    for lane in range(lanes):
        began = -np.int64(next_in_episode[lane])
        first = lane * steps
        for column in range(steps):
            starts = begins.size != 0 and begins[first + column] != 0
            if starts or (ends.size != 0 and column != 0 and ends[first + column - 1] != 0):
                began = np.int64(column)
            in_episode[first + column] = column - began
        newest = first + bounded(np.int64(written[lane]) - 1, steps)
        following = np.int64(in_episode[newest]) + 1
        if following >= LONGEST or (ends.size != 0 and ends[newest] != 0):
            following = np.int64(0)
        new_next[lane] = following if written[lane] > 0 else next_in_episode[lane]


@compiled
def goes_on(plan: Any, own: Any, head: Any, back: Any, step: Any, distance: Any) -> Any:
    """Whether the trajectory of a live step has a live step so far after it."""
    return back - distance >= 1 and np.int64(own[place_of(plan, head, back - distance)]) - step == distance


@compiled
def multiples(plan: Any, low: Any, high: Any) -> Any:
    """How many multiples of the period lie in [low, high]."""
    period = np.int64(plan[PERIOD])
    if period == 1:
        return high - low + 1
    shift = (np.int64(plan[WINDOW_LENGTH]) + period - 1) // period * period
    return (high + shift) // period - (low - 1 + shift) // period


@compiled
def weight(plan: Any, own: Any, head: Any, size: Any, back: Any) -> Any:
    """Do what `episode_windows.weights` does for one step, `back` being at least 1."""
    if back > size:
        return np.int64(0)
    step = np.int64(own[place_of(plan, head, back)])
    first_live = step == 0 or back == size
    starts = modulo(step, plan[PERIOD]) == 0
    reach = np.int64(plan[WINDOW_LENGTH]) - 1 - np.int64(plan[RIGHT])
    if starts and reach > 0:
        starts = goes_on(plan, own, head, back, step, reach) or (first_live and not plan[STRICT])
    count = np.int64(starts)
    if plan[LEFT] and first_live:
        count += multiples(plan, step - np.int64(plan[LEFT]), step - 1)
    return count


@compiled
def last_start(plan: Any, own: Any, head: Any, size: Any, back: Any) -> Any:
    """Do what `episode_windows.last_starts` does for one step, `back` being at least 1."""
    if weight(plan, own, head, size, back) == 0:
        return np.int64(0)
    step, period = np.int64(own[place_of(plan, head, back)]), np.int64(plan[PERIOD])
    reach = np.int64(plan[WINDOW_LENGTH]) - 1 - np.int64(plan[RIGHT])
    return np.int64(not goes_on(plan, own, head, back, step, period - modulo(step, period) + reach))


@entry_point
def changed(
    cursors: Any,
    sizes: Any,
    in_episode: Any,
    lane: Any,
    back: Any,
    slots: Any,
    numbers: Any,
    plan: Any,
    ranges: Any,
    count: Any,
) -> None:
    """Do what `episode_windows.changed` does, int32 [count] entries, for `episode_windows.distances` as ranges."""
    length = np.int64(plan[RING_LENGTH])
    cursors, sizes = lanes_of(plan, cursors, sizes)
    in_episode, lane, back = ints(in_episode, np.int64(plan[RING_CAPACITY])), ints(lane, count), ints(back, count)
    slots, numbers = ints(slots, count), ints(numbers, count)
    entry = np.int64(0)
    for e in range(plan[RING_LANES]):
        own = in_episode[e * length : (e + 1) * length]
        head, size = modulo(cursors[e], length), np.int64(sizes[e])
        for k in range(0, ranges.size + 2, 2):
            start, stop = max(size, np.int64(1)) - 1, max(size, np.int64(1))  # the oldest comes last
            if k < ranges.size:
                start, stop = np.int64(ranges[k]), np.int64(ranges[k + 1])
            for behind in range(start + 1, stop + 1):
                lane[entry], back[entry] = e, behind
                slots[entry] = e * length + place_of(plan, head, behind)
                by_trajectory = plan[BY_TRAJECTORY]
                number = (
                    last_start(plan, own, head, size, behind)
                    if by_trajectory
                    else weight(plan, own, head, size, behind)
                )
                numbers[entry] = number
                entry += 1


@entry_point
def weights_at(cursors: Any, sizes: Any, in_episode: Any, slots: Any, numbers: Any, plan: Any, count: Any) -> None:
    """Do what `episode_windows.weights_at` does, of int32 [count] slots."""
    length = np.int64(plan[RING_LENGTH])
    cursors, sizes = lanes_of(plan, cursors, sizes)
    in_episode, slots, numbers = (
        ints(in_episode, np.int64(plan[RING_CAPACITY])),
        ints(slots, count),
        ints(numbers, count),
    )
    for i in range(count):
        slot = bounded(slots[i], in_episode.size)
        lane = lane_of(plan, slot)
        head = modulo(cursors[lane], length)
        back = back_of(plan, head, slot - lane * length)
        numbers[i] = weight(plan, in_episode[lane * length : (lane + 1) * length], head, np.int64(sizes[lane]), back)


@compiled
def begin(plan: Any, own: Any, head: Any, size: Any, back: Any, draws: Any, live: Any) -> Any:
    """Which window a draw gives: its first step, how far back that lies, and how many steps to go for."""
    step, length = np.int64(own[place_of(plan, head, back)]), np.int64(plan[WINDOW_LENGTH])
    if plan[BY_TRAJECTORY]:
        drawn = live and last_start(plan, own, head, size, back) > 0
        first = max(step - (size - back), np.int64(0))
        count = multiples(plan, first - np.int64(plan[LEFT]), step) if drawn else np.int64(0)
    else:
        count = weight(plan, own, head, size, back)
        drawn = live and count > 0
        first = step
    chosen = (np.int64(draws[0]) * count + ((np.int64(draws[1]) * count) >> 31)) >> 31
    v = step - modulo(step, plan[PERIOD]) - chosen * np.int64(plan[PERIOD])
    start = max(v, first)
    return start, back + step - start, v + length - start if drawn else np.int64(0)


@entry_point
def expand(
    cursors: Any,
    sizes: Any,
    in_episode: Any,
    next_in_episode: Any,
    starts: Any,
    draws: Any,
    live: Any,
    slots: Any,
    handles: Any,
    mask: Any,
    is_first: Any,
    is_last: Any,
    truncated: Any,
    plan: Any,
    count: Any,
) -> None:
    """Do what `episode_windows.expand` does with starts int32 [count], draws int32 [count, 2]; live is 0 for none."""
    shape = count, np.int64(plan[WINDOW_LENGTH])
    cursors, sizes = lanes_of(plan, cursors, sizes)
    in_episode, next_in_episode = (
        ints(in_episode, np.int64(plan[RING_CAPACITY])),
        ints(next_in_episode, np.int64(plan[RING_LANES])),
    )
    starts, draws, live = ints(starts, count), table(draws, INT32, (count, 2)), bools(live, count)
    told = slices_at((slots, handles, mask, is_first, is_last, truncated), shape)
    cut(plan, cursors, sizes, in_episode, next_in_episode, starts, draws, live, told)


@compiled
def slices_at(addresses: Any, shape: Any) -> Any:
    """The fields of `episode_windows.Slices` that lie at these addresses, [S, K] each."""
    slots, handles, mask, is_first, is_last, truncated = addresses
    numbers = table(slots, INT32, shape), table(handles, INT32, shape)
    ends = table(is_first, UINT8, shape), table(is_last, UINT8, shape), table(truncated, UINT8, shape)
    return *numbers, table(mask, UINT8, shape), *ends


@compiled
def cut(
    plan: Any,
    cursors: Any,
    sizes: Any,
    in_episode: Any,
    next_in_episode: Any,
    starts: Any,
    draws: Any,
    live: Any,
    told: Any,
) -> None:
    """Do what `expand` does, on arrays; live is empty for none."""
    length = np.int64(plan[RING_LENGTH])
    slots, handles, mask, is_first, is_last, truncated = told
    for i in range(starts.size):
        first = bounded(starts[i], in_episode.size)
        lane = lane_of(plan, first)
        own = in_episode[lane * length : (lane + 1) * length]
        head = modulo(cursors[lane], length)
        back = back_of(plan, head, first - lane * length)
        counts = live.size == 0 or live[i] != 0
        start, back, steps = begin(plan, own, head, np.int64(sizes[lane]), back, draws[i], counts)
        back = min(max(back, np.int64(1)), length)
        place = place_of(plan, head, back)
        real, following = count_steps(own, place, back, start, steps, np.int64(next_in_episode[lane]))
        name_steps(plan, cursors[lane], lane, place, back, real, slots[i], handles[i])
        for k in range(mask.shape[1]):
            mask[i, k] = k < real
        is_first[i], is_last[i], truncated[i] = 0, 0, 0
        if real:
            is_first[i, 0] = start == 0
            is_last[i, real - 1], truncated[i, real - 1] = following == 0, following != 0


@compiled
def count_steps(own: Any, place: Any, back: Any, start: Any, steps: Any, next_in_episode: Any) -> Any:
    """How many of so many steps from a place on belong to the trajectory, and the step in episode of what follows."""
    count = np.int64(0)
    step = np.int64(own[place])
    while count < steps and count < back and step - start == count:
        count += 1
        place = place + 1 if place + 1 < own.size else np.int64(0)
        step = np.int64(own[place]) if count < back else next_in_episode
    return count, step


@compiled
def name_steps(plan: Any, cursor: Any, lane: Any, place: Any, back: Any, count: Any, slots: Any, handles: Any) -> None:
    """The slots and handles of so many steps from a place on, and of the padding behind them."""
    length = np.int64(plan[RING_LENGTH])
    turn = np.int64(np.uint32(cursor) // np.uint32(length))
    if back > modulo(cursor, length):  # before the head came round
        turn = turn - 1 if turn else np.int64(plan[RING_TURNS]) - 1
    slot = lane * length + place
    handle = turn * np.int64(plan[RING_CAPACITY]) + slot
    straight = min(count, length - place)
    for k in range(straight):
        slots[k], handles[k] = slot + k, handle + k
    if straight < count:
        turn = turn + 1 if turn + 1 < plan[RING_TURNS] else np.int64(0)
        handle = turn * np.int64(plan[RING_CAPACITY]) + lane * length
        for k in range(straight, count):
            slots[k], handles[k] = lane * length + k - straight, handle + k - straight
    last = slots[count - 1] if count else slot
    for k in range(count, slots.size):
        slots[k], handles[k] = last, -1


@entry_point
def following(cursors: Any, in_episode: Any, slots: Any, found: Any, real: Any, plan: Any, count: Any, n: Any) -> None:
    """Do what `episode_windows.following` does: slots int32 [count]; found int32, real uint8 [count, n]."""
    length = np.int64(plan[RING_LENGTH])
    cursors, in_episode = ints(cursors, np.int64(plan[RING_LANES])), ints(in_episode, np.int64(plan[RING_CAPACITY]))
    slots, found, real = ints(slots, count), table(found, INT32, (count, n)), table(real, UINT8, (count, n))
    for i in range(count):
        slot = bounded(slots[i], in_episode.size)
        lane = lane_of(plan, slot)
        own = in_episode[lane * length : (lane + 1) * length]
        place = slot - lane * length
        back = back_of(plan, modulo(cursors[lane], length), place)
        start = np.int64(own[place])
        for k in range(n):
            found[i, k] = lane * length + place
            real[i, k] = k < back and np.int64(own[place]) - start == k
            if k + 1 < back:  # else this is the newest
                place = place + 1 if place + 1 < length else np.int64(0)


@entry_point
def extent(
    cursors: Any, sizes: Any, in_episode: Any, slots: Any, before: Any, after: Any, plan: Any, count: Any
) -> None:
    """Do what `episode_windows.extent` does, slots, before and after being int32 [count].

    The steps double and then halve: most trajectories are far shorter than their lane, so little is read, and near by.
    """
    length = np.int64(plan[RING_LENGTH])
    cursors, sizes = lanes_of(plan, cursors, sizes)
    in_episode, slots = ints(in_episode, np.int64(plan[RING_CAPACITY])), ints(slots, count)
    before, after = ints(before, count), ints(after, count)
    for i in range(count):
        slot = bounded(slots[i], in_episode.size)
        lane = lane_of(plan, slot)
        own = in_episode[lane * length : (lane + 1) * length]
        head, place = modulo(cursors[lane], length), slot - lane * length
        back, start = back_of(plan, head, place), np.int64(own[place])
        before[i] = min(start, max(np.int64(sizes[lane]) - back, np.int64(0)))
        beyond = np.int64(1)
        while goes_on(plan, own, head, back, start, beyond):
            beyond *= 2
        distance = beyond // 2
        further = distance // 2
        while further:
            if goes_on(plan, own, head, back, start, distance + further):
                distance += further
            further //= 2
        after[i] = distance
