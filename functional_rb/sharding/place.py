"""How a batch is written where a buffer is dealt by its slots: the index's writer chooses, and each part takes its own.

All shards know the batch, and carry out the same choice on the same index. Of what was chosen a part writes the rows
whose slots it has. It is a buffer that never overwrites anything by itself: its items lie in its slots from the first
on, as many of them as the index has there.
"""

from __future__ import annotations

from collections.abc import Sequence

from functional_rb.buffer import functions
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays, Draft
from functional_rb.ops.protocol import Array, Ops
from functional_rb.sharding import deal
from functional_rb.sharding.deal import Dealing
from functional_rb.structures.ring import Write


def choose(
    ops: Ops,
    arrays: Arrays,
    dealing: Dealing,
    leaves: Sequence[Array],
    batch: int,
    mask: Array | None,
    priorities: Array | None,
    draws: Array | None,
) -> tuple[Arrays, Write]:
    """Note a batch of all lanes in the index, whose arrays are given; returns these, and where the rows go.

    Leaves are [batch, *shape], all that an item has; row `t * lanes + e` is step t of lane e. Draws int32 [batch,
    words] in [0, 2^31) are the same on all shards, for a writer that takes any.
    """
    draft = Draft.of(arrays, dealing.index.plan)
    read = [leaves[k] for k in dealing.index_leaves]
    write = functions.write_rows(ops, draft, dealing.index, read, batch, mask, priorities, draws)
    return draft.finish(ops), write


def place(
    ops: Ops, arrays: Arrays, spec: BufferSpec, dealing: Dealing, leaves: Sequence[Array], write: Write, shard: Array
) -> Arrays:
    """The arrays of a part with the rows of a batch that go to a shard's own slots, as `choose` says."""
    draft, n = Draft.of(arrays, spec.plan), write.slots.shape[0]
    row = ops.arange(n, like=write.slots)
    source = row + (leaves[0].shape[0] - n) if write.source is None else write.source
    slots, live = deal.own_slots(ops, dealing, write.slots, shard)
    live = live if write.live is None else live & write.live
    # Slots that come several times have to come with the same row, so what is not written here repeats the last row
    # that is.
    last = ops.cummax(ops.where(live, row, ops.full_like(row, 0)))[-1:]
    chosen = ops.where(live, row, last)
    draft.store(ops, ops.take(slots, chosen), ops.take(source, chosen), ops.take(live, chosen), leaves)
    draft.counters = draft.counters.replace(ends=deal.ends_of_slots(ops, dealing, write.after, shard))
    return draft.finish(ops)
