"""The writes of one client to one shard: in order, each applied once, whatever gets lost on the way."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from functional_rb.scale.ray.messages import Welcome, Write, Wrote
from functional_rb.scale.ray.transport import ShardDiedError, Transport


class Receipt:
    """What stands for a write until its shard has acknowledged it; see `Client.add`."""

    def __init__(self, client: Any, shard: int) -> None:
        """Of a write that was just sent."""
        self._client, self.shard = client, shard
        self._done = False
        self._error: Exception | None = None
        self._told = False

    def done(self) -> bool:
        """Whether it is acknowledged, or refused, as far as the client has heard."""
        return self._done

    def result(self, timeout: float | None = None) -> None:
        """Wait until the write is acknowledged.

        Args:
            timeout: seconds; None for the client's.

        Raises:
            TimeoutError: if it takes longer. The write is tried again until it succeeds, all the same.
            ValueError: if the shard has refused it; also another error that it had.
        """
        self._client._wait_for(self, timeout)
        self._told = True
        if self._error is not None:
            raise self._error

    def _finish(self, error: Exception | None) -> None:
        self._done, self._error = True, error


class Lost(NamedTuple):
    """What was acknowledged, and went with a shard that died, as its checkpoint was older.

    Attributes:
        writes: how many.
        items: how many items they had added.
    """

    writes: int
    items: int


class _Sent:
    """A write that is not acknowledged yet, and the call that it was last sent by."""

    __slots__ = ("call", "items", "receipt", "write")

    def __init__(self, write: Write, items: int, receipt: Receipt) -> None:
        self.write, self.items, self.receipt, self.call = write, items, receipt, None


class Channel:
    """The way to one shard.

    Attributes:
        shard: its number.
        session: of this client, by the shard.
        epoch: of the shard, when it was last greeted.
        alive: whether the shard answers, as far as is known.
        sequence: of the newest write.
        acknowledged: the highest number of which the shard has said that it is applied.
        retries: how many writes were sent again.
        lost: acknowledged writes that a crash took.
    """

    def __init__(self, transport: Transport, shard: int, client: str) -> None:
        """Not connected yet."""
        self._transport, self.shard, self._client = transport, shard, client
        self.session = self.epoch = self.sequence = self.acknowledged = self.retries = 0
        self.alive, self.lost = True, Lost(0, 0)
        self._pending: deque[_Sent] = deque()
        self._unsaved: deque[tuple[int, int]] = deque()
        """Of acknowledged writes that no checkpoint is known to have: numbers and items."""

    @property
    def waiting(self) -> int:
        """How many writes are not acknowledged."""
        return len(self._pending)

    def connect(self, welcome: Welcome) -> None:
        """Begin where the shard says that this client has stopped."""
        self.session, self.sequence, self.acknowledged = welcome.session, welcome.applied, welcome.applied
        self.epoch = welcome.standing.epoch

    def send(self, write: dict[str, Any], items: int, receipt: Receipt) -> None:
        """Send a write; if the shard is dead it goes out when that is back."""
        self.sequence += 1
        whole = Write(self._client, self.session, self.epoch, self.sequence, self.acknowledged, **write)
        sent = _Sent(whole, items, receipt)
        self._pending.append(sent)
        if self.alive:
            sent.call = self._transport.call(self.shard, "write", whole)

    def first_call(self) -> Any:
        """The call that is to be waited for; None if none is under way."""
        return self._pending[0].call if self._pending else None

    def collect(self, timeout: float | None) -> Wrote | None:
        """Take the answer to the oldest write, for which `first_call` stands; None if the shard asked for more again.

        Raises:
            ShardDiedError: if the shard has died: then the channel is not alive.
        """
        sent = self._pending[0]
        try:
            answer: Wrote = self._transport.result(sent.call, timeout)
        except ShardDiedError:
            self.broken()
            raise
        if answer.refused is None and answer.standing.epoch != self.epoch:
            self.broken()
            raise ShardDiedError(f"shard {self.shard} was restarted")
        if answer.applied < sent.write.sequence and answer.refused is None:  # something before it is missing
            self._resend(answer.applied)
            return None
        self._acknowledge(sent, answer.refused)
        self._note_saved(answer.saved)
        return answer

    def broken(self) -> None:
        """Note that the shard has died; nothing is sent until `revive`."""
        self.alive = False
        for sent in self._pending:
            sent.call = None

    def revive(self, welcome: Welcome) -> None:
        """Go on with a shard that answers again: it may have lost what was acknowledged, or have what was not."""
        self.alive, self.epoch = True, welcome.standing.epoch
        gone = [items for number, items in self._unsaved if number > welcome.applied]
        if self.acknowledged > welcome.applied:
            self.lost = Lost(self.lost.writes + self.acknowledged - welcome.applied, self.lost.items + sum(gone))
        self._unsaved = deque(entry for entry in self._unsaved if entry[0] <= welcome.applied)
        self._note_saved(welcome.saved)
        self._resend(welcome.applied)

    def _resend(self, applied: int) -> None:
        """Send all again that is not applied."""
        while self._pending and self._pending[0].write.sequence <= applied:
            self._acknowledge(self._pending[0], None)
        for sent in self._pending:
            sent.write = sent.write._replace(after=self.acknowledged, epoch=self.epoch)
            sent.call = self._transport.call(self.shard, "write", sent.write)
            self.retries += 1

    def _acknowledge(self, sent: _Sent, refused: Exception | None) -> None:
        assert sent is self._pending[0]
        self._pending.popleft()
        self.acknowledged = max(self.acknowledged, sent.write.sequence)
        self._unsaved.append((sent.write.sequence, 0 if refused else sent.items))
        sent.receipt._finish(refused)

    def _note_saved(self, saved: int) -> None:
        while self._unsaved and self._unsaved[0][0] <= saved:
            self._unsaved.popleft()
