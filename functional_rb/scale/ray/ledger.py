"""Which writes of which client a shard has applied, so that each is applied once however often it arrives."""

from __future__ import annotations

import dataclasses
import json

import numpy as np

# So many are remembered; then those are forgotten that have not written for the longest time.
MOST_CLIENTS = 10_000


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
        entry = self._clients.pop(client, None) or Entry()
        self._clients[client] = entry
        while len(self._clients) > MOST_CLIENTS:
            del self._clients[next(iter(self._clients))]
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
