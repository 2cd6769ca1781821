"""Which shards live, and how they stand, as far as one client has heard."""

from __future__ import annotations

import secrets

from functional_rb.scale.ray.channel import Channel
from functional_rb.scale.ray.messages import NOTHING, Standing, Welcome
from functional_rb.scale.ray.options import Options
from functional_rb.scale.ray.transport import ShardDiedError, Transport

# Seconds between two looks at something that has no call to wait for.
PAUSE = 0.01
# Seconds between two tries to reach a shard that has died.
TRY_AGAIN = 0.2


class Watch:
    """The shards of a buffer, watched by one client.

    Attributes:
        transport: by which they are called.
        options: how long is waited.
        name: by which shards know the client.
        connection: by which they know this connection of it.
        channels: the way to each shard.
        standings: how each was when it was last heard of; `NOTHING` of one that is dead.
        welcomes: what each said when it was greeted first.
        deaths: how often one was found dead.
    """

    def __init__(self, transport: Transport, options: Options, name: str) -> None:
        self.transport, self.options, self.name = transport, options, name
        self.connection = f"{name}/{secrets.token_hex(4)}"
        count = transport.shards
        self.channels = [Channel(transport, k, name, options.per_call) for k in range(count)]
        self.standings: list[Standing] = [NOTHING] * count
        self.deaths = 0
        self._heard = [transport.now()] * count
        self._probes: dict[int, object] = {}
        self._try_at = [0.0] * count
        # Seconds until a full shard is asked for room again.
        self._patience = PAUSE
        # The shards whose death was counted, and that have not answered since.
        self._dead: set[int] = set()
        self.welcomes = [self._connected(k) for k in range(count)]

    # ---------------------------------------------------------------- time

    def deadline(self, timeout: float | None = None) -> float:
        """When what begins now has to be done; None for the client's own timeout."""
        return self.transport.now() + (self.options.timeout if timeout is None else timeout)

    def left(self, deadline: float) -> float:
        return max(deadline - self.transport.now(), 0.0)

    def is_late(self, deadline: float) -> bool:
        return self.transport.now() >= deadline

    def pause(self) -> None:
        self.transport.sleep(PAUSE)

    # ---------------------------------------------------------------- life and death

    def hear(self, k: int, standing: Standing) -> None:
        """Take note of how a shard stands; one that was restarted unseen has to be greeted first."""
        if standing.epoch != self.channels[k].epoch:
            self.died(k)
            self._try_at[k] = 0.0
            return
        self.standings[k], self._heard[k] = standing, self.transport.now()

    def died(self, k: int) -> None:
        """Count a death once, and draw no more from that shard until it answers again."""
        if k not in self._dead:
            self.deaths += 1
        self._dead.add(k)
        self.channels[k].broken()
        self.standings[k] = NOTHING
        self._try_at[k] = self.transport.now() + TRY_AGAIN

    def poll(self) -> None:
        """Look after shards that are dead, and after masses that are old, without waiting."""
        now = self.transport.now()
        for k, channel in enumerate(self.channels):
            if k in self._probes:
                continue
            if not channel.alive and now >= self._try_at[k]:
                self._probes[k] = self.transport.call(k, "hello", self.name)
            elif channel.alive and now - self._heard[k] > self.options.mass_age:
                self._probes[k] = self.transport.call(k, "standing")
        if not self._probes:
            return
        asked = list(self._probes)
        for position in self.transport.ready([self._probes[k] for k in asked]):
            self._answered(asked[position])

    def _answered(self, k: int) -> None:
        try:
            answer = self.transport.result(self._probes.pop(k))
        except ShardDiedError:
            self.died(k)
            return
        if isinstance(answer, Welcome):
            self.channels[k].revive(answer)
            self._dead.discard(k)
            answer = answer.standing
        assert isinstance(answer, Standing)
        if self.channels[k].alive:
            self.hear(k, answer)

    def _connected(self, k: int) -> Welcome:
        deadline = self.deadline()
        while True:
            try:
                call = self.transport.call(k, "hello", self.name, self.connection)
                welcome = self.transport.result(call, self.left(deadline))
            except ShardDiedError:
                if self.is_late(deadline):
                    raise TimeoutError(
                        f"connect: waited {self.options.timeout} s for shard {k}, which does not answer"
                    ) from None
                self.pause()
                continue
            assert isinstance(welcome, Welcome)
            self.channels[k].connect(welcome)
            self.hear(k, welcome.standing)
            return welcome

    # ---------------------------------------------------------------- questions and answers

    def post(self) -> None:
        """Send the writes that were gathered, before anything else is asked."""
        for channel in self.channels:
            channel.post()

    def ask(self, method: str, deadline: float) -> list[object]:
        """What all shards answer; None for those that do not."""
        self.poll()
        self.post()
        calls = {k: self.transport.call(k, method) for k, channel in enumerate(self.channels) if channel.alive}
        return [self._answer(k, calls[k], deadline) if k in calls else None for k in range(len(self.channels))]

    def _answer(self, k: int, call: object, deadline: float) -> object:
        try:
            return self.transport.result(call, self.left(deadline))
        except ShardDiedError:
            self.died(k)
            return None

    def ask_all(self, deadline: float) -> None:
        for k, standing in enumerate(self.ask("standing", deadline)):
            if isinstance(standing, Standing):
                self.hear(k, standing)

    def ask_behind_own(self, deadline: float) -> None:
        """Ask all shards how they stand once what this very client has added has arrived."""
        for channel in self.channels:
            if channel.alive and channel.waiting:
                self.advance(channel, deadline, "sample")
        self.ask_all(deadline)

    def stores(self) -> str:
        """How many items the shards store, and which have died, for errors."""
        dead = [k for k, channel in enumerate(self.channels) if not channel.alive]
        return f"the shards store {[one.size for one in self.standings]}" + (
            f", and of them {dead} have died" if dead else ""
        )

    def advance(self, channel: Channel, deadline: float, who: str) -> None:
        """Bring the oldest write of a channel further."""
        shard, waited = channel.shard, f"{who}: waited {self.options.timeout} s for shard {channel.shard}"
        if channel.is_held_back:
            self._wait_for_room(channel, deadline, waited)
            return
        if channel.alive:
            try:
                waiting = channel.waiting
                answer = channel.collect(self.left(deadline))
                if answer is not None:
                    self.hear(shard, answer.standing)
                if channel.waiting < waiting:
                    self._patience = PAUSE
            except ShardDiedError:
                self.died(shard)
            except TimeoutError:
                raise TimeoutError(
                    f"{waited} to acknowledge {channel.waiting} writes; it is alive, but behind: add more slowly, or "
                    f"start more shards"
                ) from None
            return
        self.poll()
        if not channel.alive:
            if self.is_late(deadline):
                raise TimeoutError(
                    f"{waited}, which has died, to be restarted; {channel.waiting} writes are kept, and sent when it "
                    f"is back"
                )
            self.pause()

    # Ask a shard that was full how it stands, by which what waits is sent if there is room for it.
    def _wait_for_room(self, channel: Channel, deadline: float, waited: str) -> None:
        if self.is_late(deadline):
            raise TimeoutError(
                f"{waited}, whose queue is full: the next of {channel.waiting} writes that are kept has "
                f"{channel.wanted} items; are learners sampling?"
            )
        self.transport.sleep(self._patience)
        self._patience = min(2 * self._patience, TRY_AGAIN)
        standing = self._answer(channel.shard, self.transport.call(channel.shard, "standing"), deadline)
        if isinstance(standing, Standing):
            self.hear(channel.shard, standing)
            channel.room_for(standing.room)
