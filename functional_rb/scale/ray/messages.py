"""What clients and shards tell each other; all of it is pickled."""

from __future__ import annotations

from typing import NamedTuple

from functional_rb.scale.ray.blocks import Block


class Standing(NamedTuple):
    """How a shard stands, which each of its replies carries."""

    epoch: int  # how often it was restarted
    # What its items count in a draw over all shards: the sum of their priorities to the power alpha, of slices the
    # number of windows or trajectories, else the number of items. 0 if nothing can be drawn.
    mass: float
    least: float  # the least chance of an item in a draw from this shard
    size: int  # how many items it stores
    inserted: int  # items that were ever added, those lost with a crash left out
    sampled: int  # items that were ever drawn
    room: int | None = None  # how many items fit in at most, in whichever lanes; None of a buffer that overwrites


# How a shard stands of which nothing is known, or that is dead.
NOTHING = Standing(-1, 0.0, 0.0, 0, 0, 0)


class Write(NamedTuple):
    """A change that a client asks for, which is made once however often it arrives."""

    client: str  # who asks
    session: int  # how often this client has connected; older sessions are refused
    # Of the shard, as the client knows it. One that was restarted since applies nothing before it was told `hello`, by
    # which the client hears what is gone.
    epoch: int
    sequence: int  # its number among the writes of this client to this shard, from 1
    # The highest number that the client knows to be applied. A shard that has lost some of those in a crash goes on
    # behind them.
    after: int
    kind: str  # "add", "update" or "clear"
    leaves: tuple[int, ...]  # the positions of the leaves that come
    names: tuple[str, ...]  # of the arrays that come behind the leaves
    block: Block  # the leaves and these arrays
    version: int  # of what made the items, for limits of staleness


class Wrote(NamedTuple):
    """What a shard answers to writes of a client that came in one call."""

    # The highest number of this client that is applied. Lower than one that was sent where one between is missing: then
    # the client sends all again from there.
    applied: int
    standing: Standing  # of the shard, afterwards
    # Why each write was refused, if it was; it counts as applied, and has changed nothing.
    refused: tuple[Exception | None, ...]
    # Whether the next write is not applied yet as a queue has no room for it: it is to be sent again.
    full: bool = False


class Welcome(NamedTuple):
    """What a shard answers to a client that connects."""

    session: int  # the number of this connection
    applied: int  # the highest number of this client's writes that is applied
    adds: int  # how many of the writes were adds
    items: int  # how many items these had
    standing: Standing  # of the shard


class Ticket(NamedTuple):
    """Names a question for items that a shard takes out, so that asking it again takes no others."""

    connection: str  # who asks
    # Of the shard, as the client knows it: one that was restarted since gives nothing, as nobody waits for it.
    epoch: int
    number: int  # of the question, which rises
    heard: int  # the answers to all questions before this one have come, or are no longer waited for


class Drawn(NamedTuple):
    """What a shard has drawn."""

    # How many there are: as many as were asked for, or none if nothing could be drawn; of a queue what it has.
    rows: int
    block: Block  # the leaves of the items, then the arrays below
    # The names of the arrays behind the leaves: "indices", "probabilities", and what else the sampler tells.
    names: tuple[str, ...]
    extras: tuple[str, ...]  # of those that are a sample's extras
    standing: Standing  # of the shard at the draw: the probabilities are by its mass. Of a queue it is that afterwards.
