"""What two cores cannot show: how many items many shards and clients would move, by what a message costs each of them.

It is a model, and no measurement. A turn (an add and a draw) takes the processor of a client so long and that of a
shard so long, as measured; each has a core of its own; a shard's machine has a network of 10 Gb/s; a client waits for
its answers, so that it has one turn under way. What Ray's own processes take beside is not in it.
"""

from __future__ import annotations

from typing import NamedTuple

# Bytes a second of a shard's machine, each way.
NETWORK = 10e9 / 8


class Costs(NamedTuple):
    """Of one turn.

    Attributes:
        client: seconds of a client's processor.
        shard: seconds of a shard's, if one shard does all of it.
        latency: seconds from the beginning of a turn to its end, where nothing else goes on.
        call: seconds of that which a further shard costs, as a draw asks all of them.
        out: bytes of the batch that is drawn, which is larger than the one that is added.
    """

    client: float
    shard: float
    latency: float
    call: float
    out: int


def turns_a_second(costs: Costs, clients: int, shards: int) -> float:
    """The least of what clients, shards and networks could do."""
    # A draw of a batch is a call of each shard, of which each has its fixed part: that part does not shrink.
    busy = costs.call + max(costs.shard - costs.call, 0.0) / shards
    by_clients = clients / (max(costs.client, costs.latency) + (shards - 1) * costs.call)
    return min(by_clients, 1 / busy, shards * NETWORK / costs.out)
