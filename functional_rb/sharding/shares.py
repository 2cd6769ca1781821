"""Who sends which rows of a batch to whom, where all shards know the batch and each has the rows of its own items.

Each shard gets its share of a batch in one exchange in which each sends to each. A message begins with a mark, a row of
its own, so that there is one even where nothing is asked for; see `torch_backend.scale.exchange`. What this takes is
counted on the host, in NumPy: the sizes of messages have to be known there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from functional_rb.ops import numpy_ops
from functional_rb.sharding import deal
from functional_rb.sharding.deal import Dealing

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


class Exchange(NamedTuple):
    """What one shard sends and receives."""

    asked: Numbers  # int32 [m], which rows of the batch the shard has, in the order in which it sends them
    slots: Numbers  # int32 [m], where they lie in its part
    sent: list[int]  # [D], how many rows, with the mark, go to each shard
    received: list[int]  # [D], how many rows, with the mark, come from each
    outgoing: Numbers  # int32 [m + D], what it sends, in order: 0 for a mark, 1 + j for row j of those that it has
    marks: Numbers  # int32 [D], at which row of those that it receives each shard's mark is
    # int32 [n], at which row of those that it receives each row of its share is; behind the last one where nobody has
    # it.
    places: Numbers


def exchange(dealing: Dealing, handles: Numbers, shard: int) -> Exchange:
    """What a shard sends and receives so that each shard gets its share of a batch.

    Args:
        dealing: of the buffer.
        handles: int32 [D * n] of all items of the batch, -1 for none; the first n are the first shard's share.
        shard: its number.

    Example:
        >>> from functional_rb import BufferSpec, Unbounded
        >>> dealing = deal.deal(BufferSpec((Unbounded(()),), 8, lanes=2), 2)
        >>> rows = exchange(dealing, np.array([0, 5, -1, 3], np.int32), 0)  # slots below 4 are the first shard's
        >>> rows.asked.tolist(), rows.sent, rows.received, rows.places.tolist()
        ([0, 3], [2, 2], [2, 2], [1, 3])
    """
    shards, each = dealing.shards, len(handles) // dealing.shards
    real = handles >= 0
    slots, is_own = deal.own_slots(numpy_ops.OPS, dealing, handles % dealing.spec.capacity, np.array(shard, np.int32))
    asked = np.flatnonzero(is_own & real).astype(np.int32)
    to = asked // max(each, 1)
    sent = np.bincount(to, minlength=shards) + 1
    outgoing = np.zeros(len(asked) + shards, np.int32)
    outgoing[np.arange(len(asked)) + to + 1] = np.arange(1, len(asked) + 1)

    share = slice(shard * each, (shard + 1) * each)
    owners = np.where(real[share], handles[share] % dealing.spec.capacity // dealing.slots_each, shards)
    received = np.bincount(owners, minlength=shards)[:shards] + 1
    order = np.argsort(owners, kind="stable")
    places = np.empty(each, np.int32)
    places[order] = np.arange(each) + owners[order] + 1
    ends = np.cumsum(received)
    places[owners == shards] = ends[-1]
    marks = (ends - received).astype(np.int32)
    return Exchange(asked, slots[asked], sent.tolist(), received.tolist(), outgoing, marks, places)
