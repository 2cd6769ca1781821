"""What an actor or a learner has in hand: it chooses shards, weighs what they give, and sends again what was lost."""

from __future__ import annotations

import dataclasses
import secrets
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from functional_rb.base import nest
from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import AnySample, MaskedSample, Sample, SliceSample
from functional_rb.ops import numpy_ops
from functional_rb.scale.ray import blocks, law
from functional_rb.scale.ray.arrays import NumPyArrays, arrays_of, as_numpy, convert, optional, unflatten, words_of
from functional_rb.scale.ray.blocks import Array
from functional_rb.scale.ray.channel import Channel, Lost, Receipt
from functional_rb.scale.ray.draw import Draw
from functional_rb.scale.ray.limits import Answer
from functional_rb.scale.ray.messages import NOTHING, Drawn, Standing, Welcome
from functional_rb.scale.ray.tally import Tally
from functional_rb.scale.ray.transport import LIMITER, ShardDiedError, Transport

__all__ = ["Batches", "Client", "Lost", "Receipt"]

PAUSE = 0.01
"""Seconds between two looks at something that has no call to wait for."""
TRY_AGAIN = 0.2
"""Seconds between two tries to reach a shard that has died."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all clients of a buffer have in common; see `start`."""

    limited: bool = False
    in_flight: int = 4
    mass_age: float = 1.0
    timeout: float = 60.0


class Resumed(NamedTuple):
    """What shards have of a client's name from before it connected.

    Attributes:
        adds: calls of `add` that are applied.
        items: how many items these had.
    """

    adds: int
    items: int


class Client:
    """A buffer that lies in shards, for one actor or learner; made by `frb.ray.start` or `connect`.

    It is used by one thread. Pickled, as into an actor of Ray, it comes out as another client of the same buffer.
    What it adds and updates is sent without waiting, in order, and applied once however often it must be sent;
    `flush`, or a receipt's `result`, waits until it is acknowledged, and raises what was refused.

    Attributes:
        spec: of the whole buffer.
        name: by which shards know this client.
        resumed: what they had of that name before.

    Example:
        >>> spec = frb.BufferSpec({"x": frb.Unbounded(())}, capacity=8, sampler=frb.Prioritized())
        >>> client = frb.ray.start(spec, shards=2, backend=rb, local=True)  # in this process, without Ray
        >>> receipts = [client.add({"x": np.arange(4, dtype=np.float32)}) for _ in range(2)]
        >>> client.flush()
        >>> sample = client.sample(rb.key(0), 4)
        >>> sample.items["x"].shape[0], sample.indices.shape[1], client.size()
        (4, 2, 8)
        >>> client.update(sample.indices, np.ones(4, np.float32))
    """

    def __init__(
        self,
        transport: Transport,
        spec: BufferSpec,
        settings: Settings = Settings(),
        backend: Any = None,
        name: str | None = None,
    ) -> None:
        """Connect to all shards."""
        self.spec, self._settings, self._transport = spec, settings, transport
        self._arrays: NumPyArrays = arrays_of(backend)
        self.name = secrets.token_hex(8) if name is None else _checked_name(name)
        self._asks_as, self._tickets = f"{self.name}/{secrets.token_hex(4)}", 0
        count = transport.shards
        self._channels = [Channel(transport, k, self.name) for k in range(count)]
        self._standings: list[Standing] = [NOTHING] * count
        self._heard = [transport.now()] * count
        self._probes: dict[int, Any] = {}
        self._try_at = [0.0] * count
        self._unasked: deque[Receipt] = deque()
        self._deaths = self._redraws = 0
        self._dead: set[int] = set()
        """The shards whose death was counted, and that have not answered since."""
        self._structure: nest.Structure | None = None if spec.on_sample is not None else spec.plan.outline.structure
        self._spread = not needs_order(spec)
        self._turn = zlib.crc32(self.name.encode()) % count
        welcomes = [self._connected(k) for k in range(count)]
        self.resumed = Resumed(sum(one.adds for one in welcomes), sum(one.items for one in welcomes))

    # ---------------------------------------------------------------- writing

    def add(self, items: Any, mask: Any = None, priorities: Any = None, version: int = 0) -> Receipt:
        """Add items to one of the shards; each call goes to one as a whole.

        Where the order of steps matters (lanes, slices, n-step returns, compact storage) all of a client's items go to
        the same shard, else the shards take turns.

        Args:
            items: a nest like `spec.item`: a batch, leaves [B, *shape], or one item, leaves [*shape]; with lanes
                [E, *shape] or [T, E, *shape]. Arrays of NumPy, torch or JAX in the host's memory.
            mask: bool [B], which of them are added.
            priorities: float32 [B], before alpha.
            version: of what has made them, such as the number of the policy; see `sample(oldest=...)`.

        Returns:
            A receipt, whose `result()` waits until the shard has acknowledged the items.

        Raises:
            TypeError: for a leaf of another dtype, naming it.
            ValueError: for a structure or shape that does not fit, naming the leaf.
            TimeoutError: if the rate limit, or shards that are dead or behind, let nothing through for so long; it
                says which.
        """
        deadline = self._deadline(None)
        marks, ranks = optional(mask, "mask", "bool"), optional(priorities, "priorities", "float32")
        batch = checks.batch(self.spec, items, convert, marks, ranks)
        named = {"mask": batch.mask, "priorities": batch.priorities}
        named = {name: array for name, array in named.items() if array is not None}
        lead = (batch.size,) if self.spec.lanes is None else (batch.size // self.spec.lanes, self.spec.lanes)
        specs = self.spec.added.leaves
        leaves = [leaf.reshape(*lead, *own.shape) for leaf, own in zip(batch.leaves, specs, strict=True)]
        arrays = [*leaves, *(array.reshape(lead) for array in named.values())]
        count = batch.size if batch.mask is None else int(np.count_nonzero(batch.mask))
        self._permit("insert", count, deadline, "add")
        channel = self._channel_with_room(deadline)
        block = blocks.pack(arrays)
        return self._send(channel, "add", tuple(range(len(leaves))), tuple(named), block, count, version)

    def update(self, indices: Any, priorities: Any = None, items: Any = None) -> None:
        """Set priorities, rewrite stored leaves, or both, of what was sampled.

        Args:
            indices: int32 [B, 2], from `sample.indices`. Those whose item is no longer stored are dropped and counted.
            priorities: float32 [B], before alpha.
            items: a nest with some or all leaves of `spec.stored`, each [B, *shape].

        Raises:
            TypeError: for a dtype that does not fit.
            ValueError: for a shape that does not fit, or priorities for a sampler that has none.
            TimeoutError: if shards are dead or behind for so long.
        """
        deadline = self._deadline(None)
        handles = self._handles(indices, "update")
        ranks = optional(priorities, "priorities", "float32")
        arrays: dict[str, Array] = {}
        if ranks is not None:
            checks.check_prioritized(self.spec, "update")
            checks.check_dtype("priorities", ranks, "float32")
            if ranks.shape not in ((len(handles),), (len(handles), 1)):
                raise ValueError(
                    f"priorities: expected shape ({len(handles)},), one for each handle, got {ranks.shape}"
                )
            arrays["priorities"] = ranks.reshape(-1)
        leaves = checks.replacements(self.spec, items, convert, len(handles))
        live = handles[:, 0] >= 0
        shard = np.where(live, handles[:, 0] % self._transport.shards, -1)
        for k, channel in enumerate(self._channels):
            rows = np.flatnonzero(shard == k)
            if not rows.size:
                continue
            named = {"indices": handles, **arrays}
            block = blocks.pack([leaf[rows] for leaf in (*leaves.values(), *named.values())])
            self._make_room(channel, deadline, "update")
            self._send(channel, "update", tuple(leaves), tuple(named), block, 0, 0)

    def clear(self) -> None:
        """Take all items out of all shards; handles go on, so that old ones name nothing."""
        deadline = self._deadline(None)
        for channel in self._channels:
            self._make_room(channel, deadline, "clear")
            self._send(channel, "clear", (), (), blocks.pack([]), 0, 0)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was added and updated is acknowledged.

        Raises:
            TimeoutError: if it takes longer than that, or than the client's timeout.
            ValueError: if something was refused, and its receipt not asked; also another error that it had.
        """
        deadline = self._deadline(timeout)
        for channel in self._channels:
            while channel.waiting:
                self._advance(channel, deadline, "flush")
        errors = [receipt._error for receipt in self._unasked if receipt._error is not None and not receipt._told]
        self._unasked.clear()
        if errors:
            raise errors[0]

    # ---------------------------------------------------------------- drawing

    def sample(
        self,
        key: Any,
        batch_size: int | None = None,
        beta: float | None = None,
        exact: bool = False,
        oldest: int | None = None,
        timeout: float | None = None,
    ) -> AnySample[Any]:
        """Draw items from all shards.

        The shard of each row is chosen in proportion to what the shards' priorities, as they are to the power alpha,
        added up to when this client last heard of them; the shard draws by what it has then. `probabilities` are those
        of the items in just this law, so the weights that follow from them are right whatever was heard, and when.

        Args:
            key: randomness, from `rb.key(seed)` of either backend, or a seed as an int.
            batch_size: B; by default the spec's.
            beta: overrides the sampler's; also for a sampler without weights, whose are 1 otherwise.
            exact: asks all shards first how they stand, which takes a round: the law is then that of one buffer with
                all items, as far as nothing is written between the round and the draw.
            oldest: items of an older `version` are masked: they come with index -1, weight 0, and are counted.
            timeout: seconds to wait for items, the rate limit and dead shards; None for the client's.

        Returns:
            A sample as of `rb.sample`, its rows shard by shard. `indices` are int32 [B, 2] ([B, length, 2] of slices):
            the first column modulo the number of shards is the shard.

        Raises:
            TimeoutError: if nothing could be drawn for so long; it says what was waited for.
            ValueError: if the batch size is missing, or beta is out of range.
        """
        words = words_of(key)
        size, power = self._checked(batch_size, beta)
        deadline = self._deadline(timeout)
        begun = self._begin(np.random.SeedSequence(words), size, oldest, deadline, exact)
        assert begun is not None
        return self._finish(begun, [power], deadline)[0]

    def iterate(
        self,
        key: Any,
        batch_size: int | None = None,
        *,
        n: int | None = None,
        prefetch: int = 2,
        per_call: int = 1,
        beta: float | Callable[[int], float] | None = None,
        oldest: Callable[[], int] | int | None = None,
    ) -> Batches:
        """Draw batch after batch, `prefetch` of them ahead of the one in use.

        What is drawn follows from the key, `per_call`, and what is stored when it is asked for.

        Args:
            key: as for `sample`.
            batch_size: as for `sample`.
            n: how many; None for no end.
            prefetch: how many are asked for ahead. Their priorities are those of then.
            per_call: how many are asked for at once, which saves calls: a call costs about a millisecond, and a shard
                draws thousands of items in that time.
            beta: as for `sample`, or a function of the batch's number.
            oldest: as for `sample`, or a function that tells it as each batch is asked for.

        Returns:
            The iterator.
        """
        words = words_of(key)
        wanted = None if n is None else checks.count("iterate", "n", n)
        ahead = checks.count("iterate", "prefetch", prefetch)
        together = checks.count("iterate", "per_call", per_call)
        if together < 1:
            raise ValueError("iterate: per_call: expected 1 or more, got 0")
        size, _ = self._checked(batch_size, None if callable(beta) else beta)
        return Batches(self, words, size, (wanted, ahead, together), beta, oldest)

    def get(self, indices: Any) -> tuple[Any, Any]:
        """Read stored items by their handles.

        Args:
            indices: int32 [B, 2].

        Returns:
            The items as stored, leaves [B, *shape], and bool [B], which of them are there.

        Raises:
            ShardDiedError: if a shard does not answer.
        """
        handles = self._handles(indices, "get")
        shard = np.where(handles[:, 0] >= 0, handles[:, 0] % self._transport.shards, 0)
        rows = [np.flatnonzero(shard == k) for k in range(self._transport.shards)]
        calls = [
            (at, self._transport.call(k, "get", handles[at]))
            for k, at in enumerate(rows)
            if at.size or not handles.size
        ]
        found = [(at, blocks.unpack(self._transport.result(call, self._settings.timeout))) for at, call in calls]
        order = np.argsort(np.concatenate([at for at, _ in found]), kind="stable")
        whole = [np.concatenate(parts)[order] for parts in zip(*(arrays for _, arrays in found), strict=True)]
        *leaves, live = (self._arrays.given(array) for array in whole)
        structure = self.spec.plan.outline.structure
        return unflatten(structure, leaves, self._arrays.build_mapping, (len(handles),)), live

    # ---------------------------------------------------------------- about the buffer

    def size(self) -> int:
        """How many items all shards store that answer now."""
        self._ask_all(self._deadline(None))
        return sum(standing.size for standing in self._standings)

    def masses(self) -> tuple[float, ...]:
        """Of each shard, what its items count in a draw, as this client last heard; 0 of one that is dead."""
        return tuple(standing.mass for standing in self._standings)

    def counts(self) -> Tally:
        """What all shards have counted, and this client; a round."""
        deadline = self._deadline(None)
        self._ask_all(deadline)  # by which a shard that was restarted unseen is found, and what is gone with it
        found = self._round("counts", deadline)
        none: dict[str, Any] = {}

        def each(name: str) -> list[Any]:
            return [(none if one is None else one).get(name, 0) for one in found]

        summed = {name: sum(each(name)) for name in
                  ("size", "inserted", "sampled", "unsaved", "duplicates", "stale", "rejected", "masked", "saves",
                   "save_failures")}  # fmt: skip
        return Tally(
            capacity=self.spec.capacity,
            sizes=tuple(each("size")),
            masses=tuple(each("mass")),
            epochs=tuple(each("epoch")),
            dead=sum(one is None for one in found),
            deaths=self._deaths,
            lost=sum(channel.lost.items for channel in self._channels),
            retries=sum(channel.retries for channel in self._channels),
            redraws=self._redraws,
            **summed,
        )

    def save(self, timeout: float | None = None) -> tuple[int, ...]:
        """Write a checkpoint of each shard, with all that this client has added before.

        Returns:
            The number of each shard's checkpoint.

        Raises:
            TimeoutError: if it takes longer than that, or than the client's timeout.
            ShardDiedError: if a shard died meanwhile.
            ValueError: if the buffer was started without `checkpoint`.
        """
        deadline = self._deadline(timeout)
        self.flush(timeout)
        calls = [self._transport.call(k, "save") for k in range(self._transport.shards)]
        found = []
        for k, call in enumerate(calls):
            try:
                found.append(self._transport.result(call, self._left(deadline)))
            except ShardDiedError:
                self._died(k)
                raise
        return tuple(found)

    def for_backend(self, backend: Any, name: str | None = None) -> Client:
        """Another client of the same buffer, whose samples are arrays of another backend; None for NumPy's."""
        return Client(self._transport, self.spec, self._settings, backend, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another client of the same buffer."""
        return Client, (self._transport, self.spec, self._settings, self._arrays.name)

    def __repr__(self) -> str:
        """Its name, and how many shards it knows to be alive."""
        alive = sum(channel.alive for channel in self._channels)
        return f"Client({self.name!r}, {alive} of {len(self._channels)} shards)"

    # ---------------------------------------------------------------- what is under way

    def _send(
        self, channel: Channel, kind: str, leaves: tuple[int, ...], names: tuple[str, ...], block: blocks.Block,
        items: int, version: int,
    ) -> Receipt:  # fmt: skip
        receipt = Receipt(self, channel.shard)
        told = {"kind": kind, "leaves": leaves, "names": names, "block": block, "version": int(version)}
        channel.send(told, items, receipt)
        self._unasked.append(receipt)
        while self._unasked and self._unasked[0].done() and self._unasked[0]._error is None:
            self._unasked.popleft()
        return receipt

    def _wait_for(self, receipt: Receipt, timeout: float | None) -> None:
        deadline = self._deadline(timeout)
        while not receipt.done():
            self._advance(self._channels[receipt.shard], deadline, "result")

    def _channel_with_room(self, deadline: float) -> Channel:
        """The channel of the next add."""
        if not self._spread:
            channel = self._channels[self._turn]
            self._make_room(channel, deadline)
            return channel
        self._poll()
        count = len(self._channels)
        turns = [self._channels[(self._turn + k) % count] for k in range(count)]
        alive = [channel for channel in turns if channel.alive]
        free = [channel for channel in alive if channel.waiting < self._settings.in_flight]
        chosen = (free or alive or turns)[0]
        self._turn = (chosen.shard + 1) % count
        self._make_room(chosen, deadline)
        return chosen

    def _make_room(self, channel: Channel, deadline: float, who: str = "add") -> None:
        while channel.waiting >= self._settings.in_flight:
            self._advance(channel, deadline, who)

    def _advance(self, channel: Channel, deadline: float, who: str) -> None:
        """Bring the oldest write of a channel further."""
        if channel.alive:
            try:
                answer = channel.collect(self._left(deadline))
                if answer is not None:
                    self._hear(channel.shard, answer.standing)
            except ShardDiedError:
                self._died(channel.shard)
            except TimeoutError:
                raise TimeoutError(
                    f"{who}: waited {self._settings.timeout} s for shard {channel.shard} to acknowledge "
                    f"{channel.waiting} writes; it is alive, but behind: add more slowly, or start more shards"
                ) from None
            return
        self._poll()
        if not channel.alive:
            if self._transport.now() >= deadline:
                raise TimeoutError(
                    f"{who}: waited {self._settings.timeout} s for shard {channel.shard}, which has died, to be "
                    f"restarted; {channel.waiting} writes are kept, and sent when it is back"
                )
            self._transport.sleep(PAUSE)

    def _poll(self) -> None:
        """Look after shards that are dead, and after masses that are old, without waiting."""
        now = self._transport.now()
        for k, channel in enumerate(self._channels):
            if k in self._probes:
                continue
            if not channel.alive and now >= self._try_at[k]:
                self._probes[k] = self._transport.call(k, "hello", self.name)
            elif channel.alive and now - self._heard[k] > self._settings.mass_age:
                self._probes[k] = self._transport.call(k, "standing")
        if not self._probes:
            return
        asked = list(self._probes)
        for position in self._transport.ready([self._probes[k] for k in asked], 0.0):
            self._answered(asked[position])

    def _answered(self, k: int, timeout: float | None = None) -> None:
        """Take the answer to a probe."""
        call = self._probes.pop(k)
        try:
            answer = self._transport.result(call, timeout)
        except ShardDiedError:
            self._died(k)
            return
        if isinstance(answer, Welcome):
            self._channels[k].revive(answer)
            self._dead.discard(k)
            answer = answer.standing
        if self._channels[k].alive:
            self._hear(k, answer)

    def _hear(self, k: int, standing: Standing) -> None:
        """Take note of how a shard stands; one that was restarted unseen has to be greeted first."""
        if standing.epoch != self._channels[k].epoch:
            self._died(k)
            self._try_at[k] = 0.0
            return
        self._standings[k], self._heard[k] = standing, self._transport.now()

    def _died(self, k: int) -> None:
        """Count a death once, and draw no more from that shard until it answers again."""
        channel = self._channels[k]
        if k not in self._dead:
            self._deaths += 1
        self._dead.add(k)
        channel.broken()
        self._standings[k] = NOTHING
        self._try_at[k] = self._transport.now() + TRY_AGAIN

    def _connected(self, k: int) -> Welcome:
        """Connect to one shard, and wait for it."""
        deadline = self._deadline(None)
        while True:
            try:
                call = self._transport.call(k, "hello", self.name, self._asks_as)
                welcome: Welcome = self._transport.result(call, self._left(deadline))
            except ShardDiedError:
                if self._transport.now() >= deadline:
                    raise TimeoutError(
                        f"connect: waited {self._settings.timeout} s for shard {k}, which does not answer"
                    ) from None
                self._transport.sleep(PAUSE)
                continue
            self._channels[k].connect(welcome)
            self._hear(k, welcome.standing)
            return welcome

    def _round(self, method: str, deadline: float) -> list[Any]:
        """Ask all shards; None of those that do not answer."""
        self._poll()
        calls = {k: self._transport.call(k, method) for k, channel in enumerate(self._channels) if channel.alive}
        found: list[Any] = [None] * len(self._channels)
        for k, call in calls.items():
            try:
                found[k] = self._transport.result(call, self._left(deadline))
            except ShardDiedError:
                self._died(k)
        return found

    def _ask_all(self, deadline: float) -> None:
        for k, standing in enumerate(self._round("standing", deadline)):
            if standing is not None:
                self._hear(k, standing)

    # ---------------------------------------------------------------- a draw

    def _begin(
        self, seeds: np.random.SeedSequence, size: int, oldest: int | None, deadline: float, exact: bool = False,
        wait: bool = True,
    ) -> Draw | None:  # fmt: skip
        """Choose shards and ask them; None if that would have to wait, and must not."""
        if not self._permit("sample", size, deadline, "sample", wait):
            return None
        self._poll()
        if exact:
            self._ask_all(deadline)
        if not self._wait_for_mass(deadline, wait):
            self._give_back(size)
            return None
        draw = Draw(size, oldest, np.random.Generator(np.random.Philox(seeds)), self._standings)
        self._ask(draw, size)
        return draw

    def _wait_for_mass(self, deadline: float, wait: bool) -> bool:
        while not any(standing.mass > 0 for standing in self._standings):
            if not wait:
                return False
            for channel in self._channels:  # what this very client has added may be under way
                if channel.alive and channel.waiting:
                    self._advance(channel, deadline, "sample")
            self._ask_all(deadline)
            if any(standing.mass > 0 for standing in self._standings):
                return True
            if self._transport.now() >= deadline:
                dead = [k for k, channel in enumerate(self._channels) if not channel.alive]
                raise TimeoutError(
                    f"sample: waited {self._settings.timeout} s for items that can be drawn; the shards "
                    f"{'store ' + str([one.size for one in self._standings])}"
                    f"{f', and of them {dead} have died' if dead else ''}: are actors adding?"
                )
            self._transport.sleep(PAUSE)
        return True

    def _ask(self, draw: Draw, rows: int) -> None:
        """Ask shards for so many rows by the chances of the draw."""
        counts = np.bincount(law.choose(draw.chances, draw.random.random(rows)), minlength=len(self._channels))
        for k in np.flatnonzero(counts):
            seed = int(draw.random.integers(0, 2**63))
            call = self._transport.call(int(k), "sample", seed, int(counts[k]), draw.oldest)
            draw.calls.append((int(k), int(counts[k]), call))

    def _finish(self, draw: Draw, betas: Sequence[float], deadline: float) -> list[AnySample[Any]]:
        """Wait for what was asked for, draw anew what dead and empty shards did not give, and put it together.

        Returns one sample for each beta, all of the same size.
        """
        while draw.calls:
            missing = 0
            calls, draw.calls = draw.calls, []
            for k, rows, call in calls:
                try:
                    drawn: Drawn = self._transport.result(call, self._left(deadline))
                except ShardDiedError:
                    self._died(k)
                    missing += rows + draw.leave_out(k)
                    continue
                except TimeoutError:
                    raise TimeoutError(
                        f"sample: waited for shard {k} to draw {rows} items; it is alive, but behind: start more shards"
                    ) from None
                if self._channels[k].alive:
                    self._hear(k, drawn.standing)
                if drawn.rows:
                    draw.parts.append((k, drawn))
                else:
                    missing += rows + draw.leave_out(k)
            if missing:
                self._redraws += missing
                missing = self._begin_anew(draw, missing, deadline)
                self._ask(draw, missing)
        return self._together(draw, betas)

    def _begin_anew(self, draw: Draw, missing: int, deadline: float) -> int:
        """See to it that there is a shard to ask; how many rows are to be asked for: all, where none was left."""
        if draw.chances.any():
            return missing
        self._wait_for_mass(deadline, True)
        draw.restart(self._standings)
        return draw.size

    def _together(self, draw: Draw, betas: Sequence[float]) -> list[AnySample[Any]]:
        """Samples of what shards have drawn, one for each beta."""
        parts = [(k, drawn, blocks.unpack(drawn.block)) for k, drawn in draw.parts]
        _, first, _ = parts[0]
        own = len(first.names) + len(first.extras)
        # Several batches come shard by shard, and no batch may have more of one shard than chance gives it. Rows are
        # drawn independently, so that in any order that does not look at them they are as good.
        order = draw.random.permutation(draw.size) if len(betas) > 1 else None
        columns = [_aligned(arrays, order) for arrays in zip(*(arrays for _, _, arrays in parts), strict=True)]
        count = len(columns) - own
        named = dict(zip((*first.names, *first.extras), columns[count:], strict=True))
        rows = [drawn.rows for _, drawn, _ in parts]
        chosen = np.repeat([draw.chances[k] for k, _, _ in parts], rows)
        if order is not None:
            chosen = chosen[order]
        chance = chosen * named["probabilities"].astype(np.float64)
        leasts = np.array([standing.least for standing in draw.standings])
        for k, drawn, _ in parts:
            leasts[k] = drawn.standing.least
        mask = named.get("mask")
        masked = None if mask is None else mask.reshape(len(mask), -1).any(1)
        if masked is not None:
            chance = np.where(masked, chance, 0.0)
        least = law.least_chance(draw.chances, leasts)
        named["probabilities"] = chance.astype(np.float32)
        if self._structure is None:
            self._structure = self._described(parts[0][0])
        size = draw.size // len(betas)
        samples: list[AnySample[Any]] = []
        for j, beta in enumerate(betas):
            at = slice(j * size, (j + 1) * size)
            weights = law.weights(chance[at], least, beta).astype(np.float32)
            these = {name: array[at] for name, array in named.items()} | {"weights": weights}
            samples.append(self._as_sample([column[at] for column in columns[:count]], these, first.extras))
        return samples

    def _as_sample(self, leaves: list[Array], named: dict[str, Array], extras: Sequence[str]) -> AnySample[Any]:
        """A sample of the backend's arrays."""
        assert self._structure is not None
        given = {name: self._arrays.given(array) for name, array in named.items()}
        lead = tuple(named["indices"].shape[:-1])
        mine = [self._arrays.given(leaf) for leaf in leaves]
        items = unflatten(self._structure, mine, self._arrays.build_mapping, lead)
        told = (items, given["indices"], given["weights"], given["probabilities"])
        more = {name: given[name] for name in extras}
        if "is_first" in given:
            return SliceSample(*told, given["mask"], given["is_first"], given["is_last"], given["truncated"], more)
        return MaskedSample(*told, given["mask"], more) if "mask" in given else Sample(*told, more)

    def _described(self, k: int) -> nest.Structure:
        """How items of samples look that a function of items has made."""
        call = self._transport.call(k, "description")
        found: nest.Structure = self._transport.result(call, self._settings.timeout).structure
        return found

    # ---------------------------------------------------------------- the rate limit

    def _permit(self, kind: str, items: int, deadline: float, who: str, wait: bool = True) -> bool:
        """Wait until the rate limit lets items through."""
        if not self._settings.limited or not items:
            return True
        self._tickets += 1
        pause, why = 0.001, "what keeps the rate limit has died"
        while True:
            try:
                call = self._transport.call(LIMITER, "ask", self._asks_as, self._tickets, kind, items)
                answer: Answer = self._transport.result(call, max(self._left(deadline), 1.0))
                if answer.granted:
                    return True
                if answer.never:
                    raise ValueError(answer.why)
                why = answer.why
            except ShardDiedError:
                pass
            if not wait:
                return False
            if self._transport.now() >= deadline:
                raise TimeoutError(f"{who}: waited for the rate limit: {why}")
            self._poll()  # so that what was sent goes on, as others may wait for it
            self._transport.sleep(pause)
            pause = min(2 * pause, 0.05)

    def _give_back(self, items: int) -> None:
        """Undo a permit of which no use was made."""
        if self._settings.limited:
            self._transport.call(LIMITER, "give_back", items)

    # ---------------------------------------------------------------- small things

    def _checked(self, batch_size: int | None, beta: Any) -> tuple[int, float]:
        size = checks.batch_size(self.spec, batch_size)
        self.spec.sampler.check_batch(self.spec.plan, size)
        power = getattr(self.spec.sampler, "beta", 0.0) if beta is None else float(beta)
        if not 0 <= power <= 100:
            raise ValueError(f"sample: beta: expected a number from 0 to 100, got {beta!r}")
        return size, power

    def _handles(self, indices: Any, who: str) -> Array:
        given = np.asarray(indices) if isinstance(indices, list) else as_numpy(indices, "indices")
        if given.ndim != 2 or given.shape[1] != 2:
            raise ValueError(
                f"{who}: indices: expected shape (B, 2), shard and handle, as sample.indices has it, got {given.shape}"
            )
        if given.dtype.kind not in "iu":
            raise TypeError(f"{who}: indices: expected int32, got {given.dtype}")
        return given.astype(np.int32)

    def _deadline(self, timeout: float | None) -> float:
        return self._transport.now() + (self._settings.timeout if timeout is None else timeout)

    def _left(self, deadline: float) -> float:
        return max(deadline - self._transport.now(), 0.0)


class Batches(Iterator[AnySample[Any]]):
    """Samples in their order, asked for ahead; made by `Client.iterate`."""

    def __init__(
        self,
        client: Client,
        words: tuple[int, ...],
        size: int,
        numbers: tuple[int | None, int, int],
        beta: float | Callable[[int], float] | None,
        oldest: Callable[[], int] | int | None,
    ) -> None:
        """Begin; nothing is asked for yet."""
        self._client, self._words, self._size, self._beta, self._oldest = client, words, size, beta, oldest
        self._n, self._prefetch, self._together = numbers
        self._asked = self._given = 0
        self._ahead: deque[tuple[int, Draw]] = deque()
        """What was asked for: how many batches, and where they will be."""
        self._here: deque[AnySample[Any]] = deque()
        """Batches that have come with others."""

    def __iter__(self) -> Batches:
        """The iterator itself."""
        return self

    def __next__(self) -> AnySample[Any]:
        """The next sample.

        Raises:
            StopIteration: after `n`.
            TimeoutError: as `Client.sample`.
        """
        if self._n is not None and self._given >= self._n:
            raise StopIteration
        client = self._client
        deadline = client._deadline(None)
        if not self._here:
            if not self._ahead:
                self._ask(deadline, True)
            count, draw = self._ahead.popleft()
            self._ask_ahead(deadline)
            powers = [self._power(self._given + j) for j in range(count)]
            self._here.extend(client._finish(draw, powers, deadline))
        self._given += 1
        return self._here.popleft()

    def _power(self, number: int) -> float:
        """Beta of a batch."""
        _, power = self._client._checked(self._size, self._beta(number) if callable(self._beta) else self._beta)
        return power

    def _ask_ahead(self, deadline: float) -> None:
        while self._asked - self._given < self._prefetch + 1 and (self._n is None or self._asked < self._n):
            if not self._ask(deadline, False):
                return

    def _ask(self, deadline: float, wait: bool) -> bool:
        count = self._together if self._n is None else min(self._together, self._n - self._asked)
        seeds = np.random.SeedSequence(self._words, spawn_key=(self._asked,))
        oldest = self._oldest() if callable(self._oldest) else self._oldest
        begun = self._client._begin(seeds, count * self._size, oldest, deadline, wait=wait)
        if begun is None:
            return False
        self._ahead.append((count, begun))
        self._asked += count
        return True


def needs_order(spec: BufferSpec) -> bool:
    """Whether steps have to be stored in the order in which a client adds them, and so in one shard."""
    plan = spec.plan
    return bool(spec.lanes or plan.boundaries or plan.frames or spec.inner)


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise ValueError(f"connect: name: expected a str of up to 200 characters, got {name!r}")
    return name


def _aligned(arrays: Sequence[Array], order: Any = None) -> Array:
    """Arrays one behind the other, in another order, in memory that every backend can share."""
    shape = (sum(len(array) for array in arrays), *arrays[0].shape[1:])
    whole = numpy_ops.aligned(np.empty, shape, arrays[0].dtype)
    if order is None:
        return np.concatenate(arrays, out=whole)
    joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    # With the usual mode, which raises, NumPy takes into memory of its own first: 17 times as long for 7 MB of frames.
    return joined.take(order, 0, out=whole, mode="clip")
