"""What is counted of a sharded buffer."""

from __future__ import annotations

from typing import NamedTuple


class Tally(NamedTuple):
    """The counts of all shards together, and what this client has met; see `Client.counts`.

    Attributes:
        size: items that are stored.
        capacity: items that fit.
        inserted: items that were ever added, without those that crashes took.
        sampled: items that were ever drawn.
        sizes: of each shard how many it stores; 0 of one that is dead.
        masses: of each shard; 0 of one that is dead.
        epochs: how often each shard was restarted; without a checkpoint a number by chance after the first time.
        dead: how many shards do not answer.
        deaths: how often this client has found a shard dead.
        lost: acknowledged items of this client that went with shards that died.
        unsaved: items that no checkpoint has yet.
        duplicates: writes that came again after they had been applied, and were not applied again.
        retries: writes that this client has sent again.
        redraws: rows that this client has drawn anew from other shards, as their shard had died or was empty.
        stale: handles in updates whose items are no longer stored.
        rejected: bad priorities.
        masked: drawn items that were too old for the limit of staleness.
        saves: checkpoints that were written since the shards were started.
        save_failures: those that could not be.
    """

    size: int
    capacity: int
    inserted: int
    sampled: int
    sizes: tuple[int, ...]
    masses: tuple[float, ...]
    epochs: tuple[int, ...]
    dead: int
    deaths: int
    lost: int
    unsaved: int
    duplicates: int
    retries: int
    redraws: int
    stale: int
    rejected: int
    masked: int
    saves: int
    save_failures: int
