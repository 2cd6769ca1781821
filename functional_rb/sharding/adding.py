"""How a batch is added to a dealt buffer: written once, over what a backend does with the buffers of one shard."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from functional_rb.buffer.checked_items import Batch
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.core.draft import Arrays, Draft
from functional_rb.ops.protocol import Array, Ops
from functional_rb.sharding import deal, follow, place
from functional_rb.sharding.deal import Dealing
from functional_rb.sharding.follow import LaneCounts
from functional_rb.structures.ring import Write

Buffer = TypeVar("Buffer", bound=State)


@dataclasses.dataclass(frozen=True)
class Shard(Generic[Buffer]):
    """One shard while a batch is added, and what its backend does with its buffers."""

    ops: Ops
    dealing: Dealing
    number: Array  # which shard it is, an int32 scalar
    index: Buffer
    part: Buffer
    add: Callable[[Buffer, Batch], Buffer]  # a buffer with a batch
    run: Callable[..., Buffer]  # a buffer with the arrays that `function(ops, arrays, spec, *args)` makes of its own
    read: Callable[..., Any]  # what `function(ops, arrays, spec, *args)` reads of a buffer
    # Rows [steps * lanes_each, ...] of the shard's lanes as those of all lanes, [steps * lanes, ...]; None stays None.
    everyones: Callable[[Sequence[Array | None]], list[Any]]
    draws: Callable[[int, int], Array]  # rows of so many random words, the same on all shards


def added(shard: Shard[Buffer], batch: Batch) -> tuple[Buffer, Buffer]:
    """The index and the part with a batch of the shard's lanes: all shards note all lanes, and each stores its own."""
    ops, dealing, before = shard.ops, shard.dealing, shard.part.counters
    steps = batch.size // dealing.lanes_each
    if dealing.by_slots:
        index, part = _where_chosen(shard, batch, steps)
    elif dealing.delays:
        # The part makes other items of the rows, and these go to the index.
        part = shard.add(shard.part, _real(shard, steps, batch))
        following = dealing.part.rows(batch.size) // dealing.lanes_each
        real = follow.first_rows(ops, _lane_counts(shard, before, part).written, following)
        read = []
        if dealing.index_leaves:
            slots = follow.slots_of_rows(ops, dealing.part.plan, before, following)
            read = shard.everyones(shard.read(part, stored, slots, dealing.index_leaves))
        index = shard.add(shard.index, Batch(read, following * dealing.lanes, real, None))
    else:
        *leaves, mask, priorities = shard.everyones(
            [*(batch.leaves[k] for k in dealing.index_leaves), batch.mask, batch.priorities]
        )
        index = shard.add(shard.index, Batch(leaves, steps * dealing.lanes, mask, priorities))
        part = shard.add(shard.part, _real(shard, steps, batch))
    if dealing.spec.plan.frames is not None and batch.size:
        sizes = _lane_counts(shard, before, part).sizes
        index = shard.run(index, follow.shortened, sizes, steps, dealing.spec.plan.frames)
    return index, part


# Note the rows of all lanes in the index, whose writer chooses slots, and write those that go to the shard's own.
def _where_chosen(shard: Shard[Buffer], batch: Batch, steps: int) -> tuple[Buffer, Buffer]:
    dealing, words = shard.dealing, shard.dealing.index.writer.words
    *all_leaves, all_mask, all_priorities = shard.everyones([*batch.leaves, batch.mask, batch.priorities])
    if not steps:
        return shard.index, shard.part
    rows = steps * dealing.lanes
    draws = shard.draws(rows, words) if words else None
    writes: list[Write] = []

    def choose(ops: Ops, arrays: Arrays, spec: BufferSpec) -> Arrays:
        after, write = place.choose(ops, arrays, dealing, all_leaves, rows, all_mask, all_priorities, draws)
        writes.append(write)
        return after

    index = shard.run(shard.index, choose, rewrites=True)
    return index, shard.run(shard.part, place.place, dealing, all_leaves, writes[0], shard.number, rewrites=True)


# What the part gets of a batch: all rows, but for those of lanes that the buffer does not have.
def _real(shard: Shard[Buffer], steps: int, batch: Batch) -> Batch:
    if shard.dealing.is_even:
        return batch._replace(priorities=None)
    real: Array = deal.real_rows(shard.ops, shard.dealing, shard.number, steps, shard.part.counters)
    return batch._replace(mask=real if batch.mask is None else real & batch.mask, priorities=None)


# The counts of all lanes after a write, which the parts of all shards tell.
def _lane_counts(shard: Shard[Buffer], before: Array, part: Buffer) -> LaneCounts:
    return LaneCounts(*shard.everyones([*follow.lane_counts(shard.ops, shard.dealing, before, part.counters)]))


def stored(ops: Ops, arrays: Arrays, spec: BufferSpec, slots: Array, which: Sequence[int]) -> list[Array]:
    """Leaves of what lies in slots int32 [n], by their positions."""
    leaves = Draft.of(arrays, spec.plan).read(ops, slots, which)
    return [leaves[k] for k in which]
