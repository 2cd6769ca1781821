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

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from functional_rb import layout, ring
from functional_rb.dtypes import ITEMSIZE
from functional_rb.frames import AT, CURSOR, ROWS, WIDE, Chain, Stack, newest, wides
from functional_rb.ops import Array, Ops
from functional_rb.ring import Ends, Removal

if TYPE_CHECKING:
    from functional_rb.draft import Draft
    from functional_rb.ring import Write


class Takes(NamedTuple):
    """How many frames the steps of a batch take, each int32 [lanes, T] in the order of writing.

    Attributes:
        own: for S, 0, 1 or `depth`.
        following: for M, 1 or `depth`; 0 without next values.
        end: for this step and all before it in its lane, those that are not real taking none.
    """

    own: Array
    following: Array
    end: Array


def added(ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array]) -> None:
    """Store the frames of a batch, and let items go that have lost theirs. Its items are stored already."""
    chain = draft.spec.frames
    if chain is None:
        return
    if write.mask is not None:  # each lane's real steps first
        order = ring.by_time(ring.compact(ops, chain.items.lanes, write.mask)[0])
        leaves = [ops.take(leaf, order) if k in chain.leaves else leaf for k, leaf in enumerate(leaves)]
    cursor = draft.counters.more[CURSOR]
    takes = _takes(ops, draft, chain, write, leaves)
    after = ring.advance(ops, cursor, takes.end[:, -1], chain.limit)
    _store(ops, draft, chain, takes, after, leaves)
    _point(ops, draft, chain, write, takes, cursor)
    draft.count(frame_cursor=after)
    removal = _overwritten(ops, draft, chain, after, takes.end.shape[1])
    draft.spec.sampler.removed(ops, draft, removal)
    draft.counters = draft.counters.replace(ends=removal.after)


def _takes(ops: Ops, draft: Draft, chain: Chain, write: Write, leaves: Sequence[Array]) -> Takes:
    """Compare each step with the one before it, and its next observation with its own."""
    lanes, depth = chain.items.lanes, chain.depth
    shares, moves = [], []
    for k, tail in newest(ops, draft, chain).items():
        stack = chain.stacks[k]
        shares.append(_shares(ops, stack, tail, leaves))
        if stack.following is not None and stack.depth > 1:
            moves.append(_moved_on(ops, stack, leaves[stack.leaf], leaves[stack.following]))
    least = 0 if chain.paired else 1
    own = depth - _all(ops, lanes, shares) * (depth - least)
    following = ops.full_like(own, 1 if chain.paired else 0)
    if moves:
        following = depth - _all(ops, lanes, moves) * (depth - 1)
    real = ops.arange(own.shape[1], like=own) < write.written[:, None]
    return Takes(own, following, ops.cumsum(ops.where(real, own + following, ops.full_like(own, 0))))


def _shares(ops: Ops, stack: Stack, tail: Array, leaves: Sequence[Array]) -> Array:
    """Which steps can share what is there of the step before, bool [T * lanes]; tails are [lanes, *leaf's shape]."""
    own = leaves[stack.leaf]
    before, alike = own, _moved_on
    if stack.following is not None:
        before, alike = leaves[stack.following], _equal
    lanes = tail.shape[0]
    first = alike(ops, stack, tail, own[:lanes])
    if own.shape[0] == lanes:
        return first
    return ops.concat([first, alike(ops, stack, before[:-lanes], own[lanes:])], 0)


def _moved_on(ops: Ops, stack: Stack, x: Array, y: Array) -> Array:
    """Whether stacks y [n, *leaf's shape] are x with the oldest frame dropped and a new one added, bool [n]."""
    return _equal(ops, stack, stack.split(ops, x)[:, 1:], stack.split(ops, y)[:, :-1])


def _equal(ops: Ops, stack: Stack, x: Array, y: Array) -> Array:
    """Whether the bytes of x and y [n, ...] are the same, bool [n]."""
    kind = {1: "uint8", 2: "int16"}.get(ITEMSIZE[stack.dtype], "int32")
    size = math.prod(x.shape[1:])
    return ops.equal_rows(*(ops.bitcast(array.reshape(array.shape[0], size), kind) for array in (x, y)))


def _all(ops: Ops, lanes: int, marks: Sequence[Array]) -> Array:
    """1 where all of several marks bool [T * lanes] are set, else 0: int32 [lanes, T]."""
    together = marks[0]
    for more in marks[1:]:
        together = together & more
    return ops.cast(ring.by_lane(lanes, together), "int32")


def _store(ops: Ops, draft: Draft, chain: Chain, takes: Takes, after: Array, leaves: Sequence[Array]) -> None:
    """Write the last frames that a batch takes, as many as there is room for."""
    lanes, steps = takes.end.shape
    n = min(chain.most * steps, chain.room)
    lane = ops.arange(lanes, like=after)[:, None]
    number = takes.end[:, -1:] - n + ops.arange(n, like=after)  # of a frame among the lane's new ones
    live = (number >= 0).reshape(-1)
    # One ascending vector for all lanes, so that one search finds the step that each frame is of.
    offset = lane * (chain.most * steps + 1)
    number = ops.maximum(number, ops.full_like(number, 0))
    step = ops.searchsorted((takes.end + offset).reshape(-1), (number + offset).reshape(-1), "right")
    step = ops.minimum(step, ops.full_like(step, lanes * steps - 1))
    own, following, end = (ops.take(x.reshape(-1), step) for x in takes)
    rank = number.reshape(-1) - (end - own - following)
    # Of S, or M, that takes one frame this is the newest.
    place = chain.depth - own + rank
    place = ops.where(rank < own, place, place + chain.depth - following)
    source = (step % steps * lanes + step // steps) * chain.most + place
    source = ops.where(live, source, ops.full_like(source, 0))
    coordinate = ring.retreat(ops, after[:, None], n - ops.arange(n, like=after), chain.limit)
    slots = chain.slots(lane, coordinate).reshape(-1)
    frames = [_candidates(ops, chain, stack, leaves) for stack in chain.stacks]
    draft.kept[ROWS], wide = layout.store(
        ops, chain.layout, draft.kept[ROWS], wides(draft, chain), slots, source, live, frames
    )
    draft.kept |= {WIDE.format(k): array for k, array in enumerate(wide)}


def _candidates(ops: Ops, chain: Chain, stack: Stack, leaves: Sequence[Array]) -> Array:
    """What may have to be written of each step, [T * lanes * most, *frame]: `depth` frames of S, then those of M."""
    parts = []
    for k in (stack.leaf, stack.following):
        if k is not None:
            frames = stack.split(ops, leaves[k])
            # A stack that is less deep than others repeats its oldest frame, which nobody asks for.
            parts += [frames[:, :1]] * (chain.depth - stack.depth) + [frames]
    frames = parts[0] if len(parts) == 1 else ops.concat(parts, 1)
    return frames.reshape(-1, *stack.shape) if stack.shape else frames.reshape(-1)


def _point(ops: Ops, draft: Draft, chain: Chain, write: Write, takes: Takes, cursor: Array) -> None:
    """Keep where the frames of the new items are."""
    last = ring.retreat(ops, cursor, 1, chain.limit)
    at = ring.advance(ops, last[:, None], takes.end - takes.following, chain.limit)
    new = ring.for_slots(ops, write, 2 * at + ops.cast(takes.following > 1, "int32"))
    if write.live is not None:
        new = ops.where(write.live, new, ops.take(draft.kept[AT], write.slots))
    draft.kept[AT] = ops.set_at(draft.kept[AT], write.slots, new)


def _overwritten(ops: Ops, draft: Draft, chain: Chain, after: Array, steps: int) -> Removal:
    """The items that have lost frames to a batch of so many steps.

    Each item has its newest frame for itself, so of those stored before no more go than there are new frames; and new
    items go only if all older ones do.
    """
    items, ends = chain.items, draft.counters.ends
    n = min(chain.most * steps, items.length)
    lane, position = ops.arange(items.lanes, like=after)[:, None], ops.arange(n, like=after)
    oldest = ring.retreat(ops, ends.cursors, ends.sizes, items.limit)
    slots = ring.slot_of(items, lane, ring.advance(ops, oldest[:, None], position, items.limit))
    at = ops.take(draft.kept[AT], slots.reshape(-1)).reshape(slots.shape) >> 1
    behind = ring.retreat(ops, after[:, None], at, chain.limit) + (chain.depth - 1)
    gone = (position < ends.sizes[:, None]) & (behind > chain.room)
    sizes = ends.sizes - ops.cumsum(ops.cast(gone, "int32"))[:, -1]
    return Removal(slots.reshape(-1), gone.reshape(-1), Ends(ends.cursors, sizes))
