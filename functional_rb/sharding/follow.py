"""What the index and a part tell each other where one of them alone knows which items there are.

A part knows how many items n-step returns of added steps make, and which items have lost their frames: it tells so by
two numbers a lane. The index knows which items a queue has given out, and all shards have the index, so that a part is
told without anything going between them.
"""

from __future__ import annotations

from typing import NamedTuple

from functional_rb.base.arrays import BackendArray
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core import counters
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.plan import Plan
from functional_rb.ops.protocol import Array, Ops
from functional_rb.sharding import deal
from functional_rb.sharding.deal import Dealing
from functional_rb.structures import ring
from functional_rb.structures.frame_ring import Chain
from functional_rb.structures.ring import Removal, RingState


class LaneCounts(NamedTuple):
    """What a part tells of its lanes after a write."""

    written: BackendArray  # int32 [lanes], how many items came
    sizes: BackendArray  # int32 [lanes], how many there are now


def lane_counts(ops: Ops, dealing: Dealing, before: Array, after: Array) -> LaneCounts:
    """The counts of a part's lanes, by its counters before and after a write, int32 [n] each."""
    plan = dealing.part.plan
    old, new = (counters.read(plan, vector).ends for vector in (before, after))
    return LaneCounts(ring.retreat(ops, new.cursors, old.cursors, plan.ring.limit), new.sizes)


def first_rows(ops: Ops, written: Array, steps: int) -> BackendArray:
    """Which rows of steps of all lanes are real where each lane's first ones are, bool [steps * lanes]."""
    return (ops.arange(steps, like=written)[:, None] < written[None, :]).reshape(-1)


def slots_of_rows(ops: Ops, plan: Plan, before: Array, steps: int) -> BackendArray:
    """Where a part has put the items of a write, int32 [steps * lanes], by its counters before; more than fit overlap.

    Rows that were not written have the slots that they would have had.
    """
    rings, ends = plan.ring, counters.read(plan, before).ends
    step = ops.arange(steps, like=ends.cursors)[:, None]
    lane = ops.arange(rings.lanes, like=ends.cursors)[None, :]
    sequence_number = ring.advance(ops, ends.cursors[None, :], step, rings.limit)
    return ring.slot_of(rings, lane, sequence_number).reshape(-1)


def shortened(ops: Ops, arrays: Arrays, spec: BufferSpec, sizes: Array, steps: int, chain: Chain) -> Arrays:
    """The index, in which new items are noted, without those that have lost their frames, the oldest of each lane.

    Sizes int32 [lanes] say how many items are left, steps how many were added to each lane, those that a mask left out
    included.
    """
    draft = Draft.of(arrays, spec.plan)
    rings, ends = spec.plan.ring, draft.counters.ends
    n = min(chain.most * steps, rings.length)
    lane, position = ops.arange(rings.lanes, like=sizes)[:, None], ops.arange(n, like=sizes)
    oldest = ring.retreat(ops, ends.cursors, ends.sizes, rings.limit)
    slots = ring.slot_of(rings, lane, ring.advance(ops, oldest[:, None], position, rings.limit))
    gone = position < (ends.sizes - sizes)[:, None]
    removal = Removal(slots.reshape(-1), gone.reshape(-1), RingState(ends.cursors, sizes))
    spec.sampler.removed(ops, draft, removal)
    draft.counters = draft.counters.replace(ends=removal.after)
    return draft.finish(ops)


def emptied(ops: Ops, dealing: Dealing, index: Array, part: Array, shard: Array) -> BackendArray:
    """The counters of a part, with as many items in each lane as the index has, by the counters of both."""
    plan = dealing.part.plan
    sizes = counters.read(dealing.index.plan, index).ends.sizes
    own_sizes = ops.take(deal.by_shard(ops, dealing, sizes), shard.reshape(1)).reshape(-1)
    numbers = counters.read(plan, part)
    ends = RingState(numbers.ends.cursors, own_sizes)
    return counters.write(ops, plan, numbers.replace(ends=ends))
