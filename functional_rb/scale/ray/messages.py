"""What clients and shards tell each other; all of it is pickled."""

from __future__ import annotations

from typing import NamedTuple

from functional_rb.scale.ray.blocks import Block


class Standing(NamedTuple):
    """How a shard stands, which each of its replies carries.

    Attributes:
        epoch: how often it was restarted.
        mass: of its items in a draw over all shards: what their priorities to the power alpha add up to, of slices the
            number of windows or trajectories, else the number of items. 0 if nothing can be drawn.
        least: the least chance of an item in a draw from this shard.
        size: how many items it stores.
        inserted: items that were ever added, those lost with a crash left out.
        sampled: items that were ever drawn.
        room: how many items fit in at most, in whichever lanes; None of a buffer that overwrites.
    """

    epoch: int
    mass: float
    least: float
    size: int
    inserted: int
    sampled: int
    room: int | None = None


# Of a shard of which nothing is known, or that is dead.
NOTHING = Standing(-1, 0.0, 0.0, 0, 0, 0)


class Write(NamedTuple):
    """A change that a client asks for, which is made once however often it arrives.

    Attributes:
        client: who asks.
        session: how often this client has connected; older sessions are refused.
        epoch: of the shard, as the client knows it. One that was restarted since applies nothing before it was told
            `hello`, by which the client hears what is gone.
        sequence: its number among the writes of this client to this shard, from 1.
        after: the highest number that the client knows to be applied. A shard that has lost some of those in a crash
            goes on behind them.
        kind: "add", "update" or "clear".
        leaves: the positions of the leaves that come.
        names: of the arrays that come behind the leaves.
        block: the leaves and these arrays.
        version: of what made the items, for limits of staleness.
    """

    client: str
    session: int
    epoch: int
    sequence: int
    after: int
    kind: str
    leaves: tuple[int, ...]
    names: tuple[str, ...]
    block: Block
    version: int


class Wrote(NamedTuple):
    """What a shard answers to writes of a client that came in one call.

    Attributes:
        applied: the highest number of this client that is applied. Lower than one that was sent where one between is
            missing: then the client sends all again from there.
        standing: of the shard, afterwards.
        refused: of each write why it was refused, if it was; it counts as applied, and has changed nothing.
        full: whether the next write is not applied yet as a queue has no room for it: it is to be sent again.
    """

    applied: int
    standing: Standing
    refused: tuple[Exception | None, ...]
    full: bool = False


class Welcome(NamedTuple):
    """What a shard answers to a client that connects.

    Attributes:
        session: the number of this connection.
        applied: the highest number of this client's writes that is applied.
        adds: how many of the writes were adds.
        items: how many items these had.
        standing: of the shard.
    """

    session: int
    applied: int
    adds: int
    items: int
    standing: Standing


class Ticket(NamedTuple):
    """By which a shard knows a question for items that it takes out, so that asking again takes no others.

    Attributes:
        connection: who asks.
        epoch: of the shard, as the client knows it: one that was restarted since gives nothing, as nobody waits for it.
        number: of the question, which rises.
        heard: the answers to all questions before this one have come, or are no longer waited for.
    """

    connection: str
    epoch: int
    number: int
    heard: int


class Drawn(NamedTuple):
    """What a shard has drawn.

    Attributes:
        rows: how many there are: as many as were asked for, or none if nothing could be drawn; of a queue what it has.
        block: the leaves of the items, then the arrays below.
        names: of the arrays behind the leaves: "indices", "probabilities", and what else the sampler tells.
        extras: of those that are a sample's extras.
        standing: of the shard at the draw: the probabilities are by its mass. Of a queue it is that afterwards.
    """

    rows: int
    block: Block
    names: tuple[str, ...]
    extras: tuple[str, ...]
    standing: Standing
