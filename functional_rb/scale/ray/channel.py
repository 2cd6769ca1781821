"""The writes of one client to one shard: in order, each applied once, whatever gets lost on the way."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.scale.ray import blocks
from functional_rb.scale.ray.messages import Welcome, Write, Wrote
from functional_rb.scale.ray.transport import ShardDiedError, Transport


class Content(NamedTuple):
    """What a write says."""

    kind: str  # "add", "update" or "clear"
    leaves: dict[int, NumpyArray]  # leaves [rows, ...] by their positions
    named: dict[str, NumpyArray]  # other arrays by their names
    items: int = 0  # how many items are added
    version: int = 0  # of what made them

    def rows(self, at: NumpyArray) -> Content:
        leaves = {k: leaf[at] for k, leaf in self.leaves.items()}
        return self._replace(leaves=leaves, named={name: array[at] for name, array in self.named.items()})


class Receipt:
    """What stands for a write until its shard has acknowledged it; see `Client.add`.

    Attributes:
        shard: where it goes.
        error: why it was refused, if it was.
        told: whether `result` has raised that.
    """

    def __init__(self, wait: Callable[[Receipt, float | None], None], shard: int) -> None:
        self._wait, self.shard = wait, shard
        self._done = self.told = False
        self.error: Exception | None = None

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
        self._wait(self, timeout)
        self.told = True
        if self.error is not None:
            raise self.error

    def finish(self, error: Exception | None) -> None:
        self._done, self.error = True, error


@dataclasses.dataclass(slots=True, eq=False)
class _Sent:
    """A write that is not acknowledged yet."""

    write: Write
    items: int
    receipt: Receipt
    call: object = None  # that it was last sent by


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
        lost: items of acknowledged adds that crashes took.
        wanted: how many items the oldest of those writes has that wait as the shard has no room for them; 0 if none do.
    """

    def __init__(self, transport: Transport, shard: int, client: str, per_call: int) -> None:
        self._transport, self.shard, self._client, self._per_call = transport, shard, client, per_call
        self.session = self.epoch = self.sequence = self.acknowledged = self.retries = 0
        self.alive, self.lost, self.wanted = True, 0, 0
        self._pending: deque[_Sent] = deque()
        # The newest of them, which have not been sent.
        self._gathered: list[_Sent] = []
        # The items of all acknowledged writes that no crash took, by this client and those before of its name.
        self._items = 0

    @property
    def waiting(self) -> int:
        return len(self._pending)

    @property
    def items_waiting(self) -> int:
        return sum(sent.items for sent in self._pending)

    def connect(self, welcome: Welcome) -> None:
        """Begin where the shard says that this client has stopped."""
        self.session, self.sequence, self.acknowledged = welcome.session, welcome.applied, welcome.applied
        self.epoch, self._items = welcome.standing.epoch, welcome.items

    def send(self, content: Content, receipt: Receipt) -> None:
        """Send a write, with those that were gathered; if the shard is dead or full it goes out when that is over."""
        self.sequence += 1
        block = blocks.pack([*content.leaves.values(), *content.named.values()])
        # What is gathered, or goes again to a shard that was restarted, the caller may have written to meanwhile.
        block = block._replace(large=tuple(map(np.array, block.large)))
        fields = content.kind, tuple(content.leaves), tuple(content.named), block, content.version
        write = Write(self._client, self.session, self.epoch, self.sequence, self.acknowledged, *fields)
        sent = _Sent(write, content.items, receipt)
        self._pending.append(sent)
        if self.alive and not self.wanted:
            self._gathered.append(sent)
            if len(self._gathered) >= self._per_call:
                self.post()

    def post(self) -> None:
        if self._gathered:
            self._call(self._gathered)
            self._gathered = []

    def _call(self, together: list[_Sent]) -> None:
        call = self._transport.call(self.shard, "write", [sent.write for sent in together])
        for sent in together:
            sent.call = call

    @property
    def is_held_back(self) -> bool:
        """Whether the oldest write waits for room, with no call under way that could tell of it."""
        return bool(self.wanted) and self._pending[0].call is None

    def collect(self, timeout: float | None) -> Wrote | None:
        """Take the answer to the oldest call; None if the shard asked for more again.

        If it has no room for the oldest write, nothing more is sent until `room_for`.

        Raises:
            ShardDiedError: if the shard has died: then the channel is not alive.
        """
        self.post()
        call = self._pending[0].call
        together = [sent for sent in self._pending if sent.call is call]
        try:
            answer = self._transport.result(call, timeout)
        except ShardDiedError:
            self.broken()
            raise
        assert isinstance(answer, Wrote)
        if not any(answer.refused) and answer.standing.epoch != self.epoch:
            self.broken()
            raise ShardDiedError(f"shard {self.shard} was restarted")
        for sent, refused in zip(together, answer.refused, strict=True):
            if answer.applied < sent.write.sequence and refused is None:
                if not answer.full:
                    self._resend(answer.applied)  # something before it is missing
                    return None
                # The shard takes nothing behind what has no room, so all that was sent is to be sent again.
                self.wanted, self._gathered = max(self._pending[0].items, 1), []
                for waiting in self._pending:
                    waiting.call = None
                return answer
            self._acknowledge(sent, refused)
        if self._pending and self.is_held_back:
            self.room_for(answer.standing.room)
        return answer

    def room_for(self, items: int | None) -> None:
        """Send again what the shard had no room for, as far as it has room for so many items now; None: for all."""
        if not self.alive or not self.wanted or (items is not None and items < self.wanted):
            return
        # What does not fit would come back and travel once more for each room: as often as there are writes in flight.
        ends = itertools.accumulate(sent.items for sent in self._pending)
        fitting = [sent for sent, end in zip(self._pending, ends, strict=True) if items is None or end <= items]
        self._send_again(fitting)
        self.wanted = max(self._pending[len(fitting)].items, 1) if len(fitting) < len(self._pending) else 0

    def broken(self) -> None:
        """Note that the shard has died; nothing is sent until `revive`."""
        self.alive, self.wanted, self._gathered = False, 0, []
        for sent in self._pending:
            sent.call = None

    def revive(self, welcome: Welcome) -> None:
        """Go on with a shard that answers again: it may have lost what was acknowledged, or have what was not."""
        self.alive, self.epoch = True, welcome.standing.epoch
        if self.acknowledged > welcome.applied:
            self.lost += self._items - welcome.items
        self._resend(welcome.applied)
        self._items = welcome.items

    def _resend(self, applied: int) -> None:
        while self._pending and self._pending[0].write.sequence <= applied:
            self._acknowledge(self._pending[0], None)
        self.retries += len(self._pending)
        self.wanted = 0
        self._send_again(list(self._pending))

    def _send_again(self, again: list[_Sent]) -> None:
        for sent in again:
            sent.write = sent.write._replace(after=self.acknowledged, epoch=self.epoch)
        for k in range(0, len(again), self._per_call):
            self._call(again[k : k + self._per_call])

    def _acknowledge(self, sent: _Sent, refused: Exception | None) -> None:
        assert sent is self._pending[0]
        self._pending.popleft()
        self.acknowledged = max(self.acknowledged, sent.write.sequence)
        self._items += 0 if refused else sent.items
        sent.receipt.finish(refused)
