"""What a shard remembers of its clients: what is asked for again is not done again, but answered as it was.

Of what it is told by a client it remembers a limited part, and forgets first what has not been asked for longest.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from functional_rb.scale.ray.messages import Drawn, Ticket

V = TypeVar("V")
# So many clients that write are remembered.
MOST_CLIENTS = 10_000
# So many connections that take items out are remembered, with their last answers.
MOST_CONNECTIONS = 100


def remember(entries: dict[str, V], name: str, entry: V, most: int) -> None:
    """Put an entry behind all others, and forget the first ones beyond so many."""
    entries.pop(name, None)
    entries[name] = entry
    while len(entries) > most:
        del entries[next(iter(entries))]


@dataclasses.dataclass
class Entry:
    """What is known of a client."""

    session: int = 0  # the newest connection
    applied: int = 0  # the highest number of its writes that is applied
    adds: int = 0  # how many of these were adds
    items: int = 0  # how many items they had
    connection: str = ""  # the name of the newest connection, so that asking for it twice begins it once


class Ledger:
    """The clients of a shard, and the numbers that go with its buffer: a checkpoint holds all or none of it.

    Attributes:
        epoch: how often the shard was restarted.
        inserted: items that were ever added.
        sampled: items that were ever drawn.
    """

    def __init__(self) -> None:
        self.epoch = self.inserted = self.sampled = 0
        self._clients: dict[str, Entry] = {}

    def of(self, client: str) -> Entry:
        """What is known of a client; blank for one that is new, which is not remembered yet."""
        return self._clients.get(client, Entry())

    def connect(self, client: str, connection: str) -> Entry:
        """Let a client begin a new session, unless it has done so by this connection."""
        entry = self._remembered(client)
        if entry.connection != connection:
            entry.session, entry.connection = entry.session + 1, connection
        return entry

    def judge(self, client: str, session: int, epoch: int, sequence: int, after: int) -> str:
        """What to do about a write: "apply" it, or it is a "duplicate", of an "old" session, or there is a "gap".

        There is one as well where it was sent to the shard before its restart: the client has to hear of that first.

        A crash may have taken writes that were acknowledged, up to the number `after`: these are gone, and no gap.
        """
        entry = self.of(client)
        if session < entry.session:
            return "old"
        if epoch != self.epoch:
            return "gap"
        if sequence <= entry.applied:
            return "duplicate"
        return "apply" if sequence - 1 <= max(entry.applied, after) else "gap"

    def apply(self, client: str, session: int, sequence: int, adds: int, items: int) -> None:
        entry = self._remembered(client)
        entry.session, entry.applied = max(entry.session, session), sequence
        entry.adds += adds
        entry.items += items
        self.inserted += items

    def _remembered(self, client: str) -> Entry:
        entry = self.of(client)
        remember(self._clients, client, entry, MOST_CLIENTS)
        return entry

    def encode(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        record = {
            "epoch": self.epoch,
            "inserted": self.inserted,
            "sampled": self.sampled,
            "clients": {client: dataclasses.astuple(entry) for client, entry in self._clients.items()},
        }
        return np.frombuffer(json.dumps(record).encode(), np.uint8)

    @classmethod
    def decode(cls, encoded: object) -> Ledger:
        try:
            record = json.loads(np.asarray(encoded, np.uint8).tobytes())
            ledger = cls()
            ledger.epoch, ledger.inserted, ledger.sampled = (int(record[x]) for x in ("epoch", "inserted", "sampled"))
            ledger._clients = {str(client): _entry(*entry) for client, entry in record["clients"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the ledger of a shard cannot be read: {error!r}") from None
        return ledger


def _entry(session: int, applied: int, adds: int, items: int, connection: str) -> Entry:
    return Entry(int(session), int(applied), int(adds), int(items), str(connection))


class KeptAnswers:
    """What each question for items that are taken out was answered, until its client has heard that."""

    def __init__(self) -> None:
        # By connection: up to which question it has heard the answers, and the answers from there on.
        self._clients: dict[str, tuple[int, dict[int, Drawn]]] = {}

    def once(self, ticket: Ticket, epoch: int, take: Callable[[], Drawn], nothing: Callable[[], Drawn]) -> Drawn:
        """What a ticket was given before, or else what is taken now; nothing for one that nobody asks by any more."""
        if ticket.epoch != epoch:
            return nothing()
        before, kept = self._clients.get(ticket.connection, (0, {}))
        heard = max(before, ticket.heard)
        kept = {number: drawn for number, drawn in kept.items() if number >= heard}
        remember(self._clients, ticket.connection, (heard, kept), MOST_CONNECTIONS)
        if ticket.number < heard:  # it was under way for longer than its repetition
            return nothing()
        if ticket.number not in kept:
            kept[ticket.number] = take()
        return kept[ticket.number]
