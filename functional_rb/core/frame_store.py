"""Which frames of new steps are new themselves, and which items lose theirs.

Content decides, bit for bit: no flag is asked whether an episode has ended. In the order of a lane's steps, each has an
observation S and, if leaves have next values, a next observation M, both stacks of frames:

    S takes no frame if it is the M of the step before, else `depth` frames;
    M takes one frame if it is S moved on by one frame, else `depth` frames.

Without next values S takes one frame if it is the S of the step before moved on by one, else `depth`. What is there of
the step before are the lane's last frames, so nothing else need be remembered. (In an empty lane these are bytes that
no item has: equal bytes may be shared all the same.)

An item is stored as long as its oldest frame is among the last `room` frames of its lane. Items whose frames have
been overwritten go, always the oldest first.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

from functional_rb.base.dtypes import ITEMSIZE
from functional_rb.core import soundness
from functional_rb.core.draft import Draft
from functional_rb.core.plan import AuxiliaryArray, Plan
from functional_rb.core.soundness import Found
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import ring, row_layout
from functional_rb.structures.frame_ring import AT, CURSOR, ROWS, WIDE, Chain, Stack, gathered, places_before, wides
from functional_rb.structures.ring import Removal, RingState, Write


def auxiliary(plan: Plan) -> dict[str, AuxiliaryArray]:
    """The arrays of the frames, and of where those of each item are, if leaves are stored as frames."""
    chain = plan.frames
    if chain is None:
        return {}
    total = chain.items.lanes * chain.room
    arrays = {AT: AuxiliaryArray((plan.capacity,)), ROWS: AuxiliaryArray((total, chain.layout.row_words))}
    for k, leaf in enumerate(chain.layout.wide):
        arrays[WIDE.format(k)] = AuxiliaryArray((total, *leaf.shape), leaf.stored_as)
    return arrays


def counters(plan: Plan) -> tuple[tuple[str, int], ...]:
    """The counter that says where the lanes' next frames go, if leaves are stored as frames."""
    return () if plan.frames is None else ((CURSOR, plan.ring.lanes),)


def problem(contents: Found) -> str | None:
    """Why the frames' arrays cannot be of such a buffer, or None: every item has its frames somewhere in the ring."""
    chain = contents.plan.frames
    if chain is None:
        return None
    at = soundness.problem_of_range(AT, contents.auxiliary[AT], 0, 2 * chain.limit - 1)
    return at or soundness.problem_of_range(CURSOR, contents.numbers.more[CURSOR], 0, chain.limit - 1)


class FramePlan(NamedTuple):
    """Where the frames of a batch of T steps go: for each lane n places, as many as it may take, or has room for.

    Attributes:
        slots: int32 [lanes * n], distinct.
        source: int32 [lanes * n], which frame goes there, of those that may have to be written of each step: row
            `t * lanes + e`, times how many these are, and then `depth` of S before `depth` of M.
        live: bool [lanes * n], whether one goes there.
        after: int32 [lanes], where the lanes' next frames go.
        at: int32 [lanes, T], the steps' `AT`, meaningless for those that are not real.
    """

    slots: Array
    source: Array
    live: Array
    after: Array
    at: Array


def added(ops: Ops, draft: Draft, chain: Chain, write: Write, leaves: Sequence[Array]) -> Removal:
    """Store the frames of a batch whose items are stored already; returns the items that have lost theirs to them."""
    if write.mask is not None:  # each lane's real steps first
        order = ring.by_time(ring.compact(ops, chain.items.lanes, write.mask)[0])
        leaves = [ops.take(leaf, order) if k in chain.leaves else leaf for k, leaf in enumerate(leaves)]
    compared = _compared(ops, draft, chain, leaves)
    plan = plan_frames(ops, chain, draft.counters.more[CURSOR], write.written, *compared)
    frames = [_candidates(ops, chain, stack, leaves) for stack in chain.stacks]
    target = draft.auxiliary[ROWS], wides(draft.auxiliary, chain), plan.slots
    rows, wide = row_layout.store(ops, chain.layout, *target, plan.source, plan.live, frames)
    draft.auxiliary |= {ROWS: rows} | {WIDE.format(k): array for k, array in enumerate(wide)}
    # Where the frames of the new items are.
    at = ring.for_slots(ops, write, plan.at)
    if write.live is not None:
        at = ops.where(write.live, at, ops.take(draft.auxiliary[AT], write.slots))
    draft.auxiliary[AT] = ops.set_at(draft.auxiliary[AT], write.slots, at)
    draft.count(frame_cursor=plan.after)
    return overwritten(ops, chain, draft.auxiliary[AT], draft.counters.ends, plan.after, plan.at.shape[1])


# Which steps share what is there of the one before, and which next observations are their own moved on.
#
# Both bool [T * lanes]; None if there are no next observations, or they are no stacks.
def _compared(ops: Ops, draft: Draft, chain: Chain, leaves: Sequence[Array]) -> tuple[Array, Array | None]:
    shares, moves = [], []
    for k, tail in newest(ops, draft, chain).items():
        stack = chain.stacks[k]
        shares.append(_shares(ops, stack, tail, leaves))
        if stack.following is not None and stack.depth > 1:
            moves.append(_moved_on(ops, stack, leaves[stack.leaf], leaves[stack.following]))
    return functools.reduce(operator.and_, shares), functools.reduce(operator.and_, moves) if moves else None


# Which steps can share what is there of the step before, bool [T * lanes]; tails are [lanes, *leaf's shape].
def _shares(ops: Ops, stack: Stack, tail: Array, leaves: Sequence[Array]) -> Array:
    current = leaves[stack.leaf]
    before, alike = current, _moved_on
    if stack.following is not None:
        before, alike = leaves[stack.following], _equal
    lanes = tail.shape[0]
    first = alike(ops, stack, tail, current[:lanes])
    if current.shape[0] == lanes:
        return first
    return ops.concat([first, alike(ops, stack, before[:-lanes], current[lanes:])], 0)


# Whether stacks y [n, *leaf's shape] are x with the oldest frame dropped and a new one added, bool [n].
def _moved_on(ops: Ops, stack: Stack, x: Array, y: Array) -> Array:
    return _equal(ops, stack, stack.split(ops, x)[:, 1:], stack.split(ops, y)[:, :-1])


# Whether the bytes of x and y [n, ...] are the same, bool [n].
def _equal(ops: Ops, stack: Stack, x: Array, y: Array) -> Array:
    # As integers: a NaN would not equal itself, and -0.0 would equal 0.0, whose bits are others.
    kind = {1: "uint8", 2: "int16"}.get(ITEMSIZE[stack.dtype], "int32")
    size = math.prod(x.shape[1:])
    first, second = (ops.bitcast(array.reshape(array.shape[0], size), kind) for array in (x, y))
    return ops.all_rows(first == second)


@replaceable
def plan_frames(ops: Ops, chain: Chain, cursor: Array, written: Array, shares: Array, moves: Array | None) -> FramePlan:
    """Choose the places for the frames of a batch.

    Args:
        chain: of the buffer.
        cursor: int32 [lanes], where the lanes' next frames go.
        written: int32 [lanes], how many steps of each lane are real, its first ones.
        shares: bool [T * lanes], whether S takes none of its own (one, without next observations).
        moves: bool [T * lanes], whether M takes one; None if it always does.
    """
    lanes, depth = chain.items.lanes, chain.depth
    current = depth - ops.cast(ring.by_lane(lanes, shares), "int32") * (depth if chain.paired else depth - 1)
    following = ops.full_like(current, 1 if chain.paired else 0)
    if moves is not None:
        following = depth - ops.cast(ring.by_lane(lanes, moves), "int32") * (depth - 1)
    real = ops.arange(current.shape[1], like=current) < written[:, None]
    takes = ops.where(real, current + following, ops.full_like(current, 0))
    end = ops.cumsum(takes)
    last = ring.retreat(ops, cursor, 1, chain.limit)
    at = ring.advance(ops, last[:, None], end - takes + current, chain.limit)
    after = ring.advance(ops, cursor, end[:, -1], chain.limit)
    slots, source, live = _last_frames(ops, chain, current, following, end, after)
    # The lowest bit tells whether next values have all of their frames for themselves, which `places` reads.
    return FramePlan(slots, source, live, after, 2 * at + ops.cast(following > 1, "int32"))


# Slots, source and live of a `FramePlan`, from how many frames S and M take, and all steps so far, [lanes, T].
def _last_frames(
    ops: Ops, chain: Chain, current: Array, following: Array, end: Array, after: Array
) -> tuple[Array, Array, Array]:
    lanes, steps = end.shape
    # As many as there may be: shapes must not depend on how many frames can be shared.
    n = min(chain.most * steps, chain.room)
    lane, place = ops.arange(lanes, like=after)[:, None], ops.arange(n, like=after)
    slots = chain.slots(lane, ring.retreat(ops, after[:, None], n - place, chain.limit)).reshape(-1)
    number = end[:, -1:] - n + place  # of a frame among the lane's new ones
    live = (number >= 0).reshape(-1)
    number = ops.maximum(number, ops.full_like(number, 0))
    # One ascending vector for all lanes, so that one search finds the step that each frame is of.
    offset = lane * (chain.most * steps + 1)
    step = ops.searchsorted((end + offset).reshape(-1), (number + offset).reshape(-1), "right")
    step = ops.minimum(step, ops.full_like(step, lanes * steps - 1))
    current, following, end = (ops.take(x.reshape(-1), step) for x in (current, following, end))
    rank = number.reshape(-1) - (end - current - following)
    # Of S, or M, that takes one frame this is the newest.
    which = chain.depth - current + rank
    which = ops.where(rank < current, which, which + chain.depth - following)
    source = (step % steps * lanes + step // steps) * chain.most + which
    return slots, ops.where(live, source, ops.full_like(source, 0)), live


# What may have to be written of each step, [T * lanes * most, *frame]: `depth` frames of S, then those of M.
def _candidates(ops: Ops, chain: Chain, stack: Stack, leaves: Sequence[Array]) -> Array:
    parts = []
    for k in (stack.leaf, stack.following):
        if k is not None:
            frames = stack.split(ops, leaves[k])
            # A stack that is less deep than others repeats its oldest frame, which nobody asks for.
            parts += [frames[:, :1]] * (chain.depth - stack.depth) + [frames]
    frames = parts[0] if len(parts) == 1 else ops.concat(parts, 1)
    return frames.reshape(frames.shape[0] * frames.shape[1], *stack.shape)


@replaceable
def overwritten(ops: Ops, chain: Chain, at: Array, ends: RingState, after: Array, steps: int) -> Removal:
    """The items that have lost frames to a batch of so many steps.

    Each item has its newest frame for itself, so of those stored before no more go than there are new frames; and new
    items go only if all older ones do.

    Args:
        chain: of the buffer.
        at: int32 [capacity], the array `AT`.
        ends: where the rings of the items are.
        after: int32 [lanes], where the lanes' next frames go.
        steps: of the batch, in each lane.
    """
    items = chain.items
    n = min(chain.most * steps, items.length)
    lane, position = ops.arange(items.lanes, like=after)[:, None], ops.arange(n, like=after)
    oldest = ring.retreat(ops, ends.cursors, ends.sizes, items.limit)
    slots = ring.slot_of(items, lane, ring.advance(ops, oldest[:, None], position, items.limit))
    newest = ops.take(at, slots.reshape(-1)).reshape(slots.shape) >> 1
    behind = ring.retreat(ops, after[:, None], newest, chain.limit) + (chain.depth - 1)
    # An item needs the frames from its newest one back; it goes once the oldest of these is overwritten.
    gone = (position < ends.sizes[:, None]) & (behind > chain.room)
    sizes = ends.sizes - ops.cumsum(ops.cast(gone, "int32"))[:, -1]
    return Removal(slots.reshape(-1), gone.reshape(-1), RingState(ends.cursors, sizes))


def newest(ops: Ops, draft: Draft, chain: Chain) -> dict[int, Array]:
    """The stacks [lanes, *leaf's shape], by their place in the chain, that the last frames of each lane are."""
    last = ring.retreat(ops, draft.counters.more[CURSOR], 1, chain.limit)
    lane = ops.arange(chain.items.lanes, like=last)
    stacks: dict[int, Array] = {}
    for depth in chain.depths:
        chosen = tuple(k for k, stack in enumerate(chain.stacks) if stack.depth == depth)
        stacks |= gathered(ops, chain, draft.auxiliary, chosen, [places_before(ops, chain, lane, last, depth)])[0]
    return stacks


def held(ops: Ops, draft: Draft, chain: Chain, room: int, sizes: Array) -> Array:
    """How many of each lane's newest items, int32 [lanes], have all of their frames among the last so many of the lane.

    Args:
        draft: of the buffer.
        chain: of the buffer.
        room: frames of a lane.
        sizes: int32 [lanes], so many items at most.
    """
    items, ends = chain.items, draft.counters.ends
    place = ops.arange(items.length, like=sizes)
    lane, back = ops.arange(items.lanes, like=sizes)[:, None], place + 1
    slots = ring.slot_of(items, lane, ring.retreat(ops, ends.cursors[:, None], back, items.limit))
    newest = ops.take(draft.auxiliary[AT], slots.reshape(-1)).reshape(slots.shape) >> 1
    behind = ring.retreat(ops, draft.counters.more[CURSOR][:, None], newest, chain.limit) + (chain.depth - 1)
    whole = (place < sizes[:, None]) & (behind <= room)
    return ops.cumsum(ops.cast(whole, "int32"))[:, -1]


def move(
    ops: Ops,
    before: Draft,
    after: Draft,
    ours: Chain,
    theirs: Chain,
    slots: Array,
    step: int | None = None,
    prepare: Callable[[Array], None] | None = None,
) -> Array:
    """Write the last frames of each lane that there is room for to other rings, where they are the first ones.

    Args:
        before: of the buffer that has them.
        after: of that which gets them, empty so far.
        ours: the chain of the one.
        theirs: of the other.
        slots: int32 [n], of items of the first.
        step: so many are moved at a time; None for all at once.
        prepare: called before frames are written to places int32 [n].

    Returns:
        The items' `AT` in the new rings, int32 [n], meaningless for those that are not `held`.
    """
    room, lanes = min(ours.room, theirs.room), ours.items.lanes
    cursor = before.counters.more[CURSOR]
    lane, place = ops.arange(lanes, like=cursor)[:, None], ops.arange(room, like=cursor)
    old = ours.slots(lane, ring.retreat(ops, cursor[:, None], room - place, ours.limit)).reshape(-1)
    new = theirs.slots(lane, place + ops.full_like(lane, 0)).reshape(-1)
    for start in range(0, room * lanes, step or room * lanes):
        chunk = slice(start, start + (step or room * lanes))
        if prepare is not None:
            prepare(new[chunk])
        for name in (ROWS, *(WIDE.format(k) for k in range(len(ours.layout.wide)))):
            values = ops.take(before.auxiliary[name], old[chunk])
            after.auxiliary[name] = ops.set_at(after.auxiliary[name], new[chunk], values)
    after.count(frame_cursor=ops.full_like(cursor, room))
    at = ops.take(before.auxiliary[AT], slots)
    behind = ring.retreat(ops, ring.of_lane(ops, cursor, slots // ours.items.length), at >> 1, ours.limit)
    return 2 * ops.maximum(room - behind, ops.full_like(behind, 0)) + (at & 1)
