"""Writes of a client on their way: to which shard each goes, and how many may be under way."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence

from functional_rb.scale.ray.channel import Channel, Content, Receipt
from functional_rb.scale.ray.watch import Watch


class Outbox:
    """Sends writes without waiting, up to so many to a shard.

    Attributes:
        spread: whether adds go to the shards in turn; else all go to one.
        turn: the shard of the next add.
    """

    def __init__(self, watch: Watch, spread: bool, stops: bool = False) -> None:
        self._watch, self.spread, self._stops = watch, spread, stops
        self.turn = zlib.crc32(watch.name.encode()) % len(watch.channels)
        self._unasked: deque[Receipt] = deque()

    def next(self, deadline: float, items: int) -> Channel:
        """The channel of the next add of so many items, with room for it."""
        channels, count = self._watch.channels, len(self._watch.channels)
        chosen = channels[self.turn]
        if self.spread:
            self._watch.poll()
            turns = [channels[(self.turn + k) % count] for k in range(count)]
            alive = [channel for channel in turns if channel.alive]
            free = [channel for channel in alive if channel.waiting < self._watch.options.in_flight]
            roomy = [channel for channel in free if self._has_room(channel, items)]
            if not roomy and alive and self._stops:  # by what was heard last, which may be long ago
                roomy = self._asked_for_room(turns, deadline, items)
            chosen = (roomy or free or alive or turns)[0]
            self.turn = (chosen.shard + 1) % count
        self.make_room(chosen, deadline, "add")
        return chosen

    # Whether a shard has room for items behind those under way, as far as is known.
    def _has_room(self, channel: Channel, items: int) -> bool:
        room = self._watch.standings[channel.shard].room
        return room is None or (not channel.wanted and channel.items_waiting + items <= room)

    # The shards that have room for items after what is under way has arrived.
    def _asked_for_room(self, channels: Sequence[Channel], deadline: float, items: int) -> list[Channel]:
        for channel in channels:
            while channel.alive and channel.waiting:
                self._watch.advance(channel, deadline, "add")
        self._watch.ask_all(deadline)
        return [channel for channel in channels if channel.alive and self._has_room(channel, items)]

    def make_room(self, channel: Channel, deadline: float, who: str) -> None:
        """Wait until one more write may be under way."""
        while channel.waiting >= self._watch.options.in_flight:
            self._watch.advance(channel, deadline, who)

    def send(self, channel: Channel, content: Content) -> Receipt:
        """Send a write to a shard that has room for it."""
        receipt = Receipt(self.wait_for, channel.shard)
        channel.send(content, receipt)
        self._unasked.append(receipt)
        while self._unasked and self._unasked[0].done() and self._unasked[0].error is None:
            self._unasked.popleft()
        return receipt

    def wait_for(self, receipt: Receipt, timeout: float | None) -> None:
        """Wait until a write is acknowledged."""
        deadline = self._watch.deadline(timeout)
        while not receipt.done():
            self._watch.advance(self._watch.channels[receipt.shard], deadline, "result")

    def flush(self, deadline: float) -> None:
        """Wait until all is acknowledged, and raise what was refused and not asked for."""
        self._watch.post()
        for channel in self._watch.channels:
            while channel.waiting:
                self._watch.advance(channel, deadline, "flush")
        errors: Sequence[Exception] = [one.error for one in self._unasked if one.error is not None and not one.told]
        self._unasked.clear()
        if errors:
            raise errors[0]
