"""What an actor or a learner has in hand: a buffer that lies in shards."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from functional_rb.base import nest
from functional_rb.base.arrays import Array, ArrayLike, Nest, PRNGKey
from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.sample import AnySample
from functional_rb.scale.ray import blocks
from functional_rb.scale.ray.arrays import NumPyArrays, arrays_of, words_of
from functional_rb.scale.ray.batches import Batches
from functional_rb.scale.ray.channel import Content, Receipt
from functional_rb.scale.ray.draw import Draw
from functional_rb.scale.ray.drawing import Drawing
from functional_rb.scale.ray.options import Options, checked_name
from functional_rb.scale.ray.outbox import Outbox
from functional_rb.scale.ray.permits import Permits
from functional_rb.scale.ray.taking import Taking
from functional_rb.scale.ray.transport import ShardDiedError, Transport
from functional_rb.scale.ray.watch import Watch
from functional_rb.scale.ray.writing import addition, change, handles_of

# What shards count that is added up in a `Tally`.
SUMMED = ("size", "inserted", "sampled", "unsaved", "duplicates", "stale", "rejected", "masked", "saves",
          "save_failures")  # fmt: skip


class About(NamedTuple):
    """What all clients of a buffer have in common."""

    spec: BufferSpec  # of the whole buffer
    options: Options = Options()  # how clients wait
    limited: bool = False  # whether there is a rate limit


class Resumed(NamedTuple):
    """What shards have of a client's name from before it connected.

    Attributes:
        adds: calls of `add` that are applied.
        items: how many items these had.
    """

    adds: int
    items: int


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

    def __init__(self, transport: Transport, about: About, backend: object = None, name: str | None = None) -> None:
        self.spec, self._about = about.spec, about
        self.name = secrets.token_hex(8) if name is None else checked_name(name, "connect: name")
        self._arrays: NumPyArrays = arrays_of(backend)
        self._watch = Watch(transport, about.options, self.name)
        spec, takes_out = about.spec, about.spec.sampler.takes_out
        # Steps that follow upon each other are stored in the order in which a client adds them, and so in one shard.
        in_order = bool(spec.lanes or spec.plan.boundaries or spec.plan.frames or spec.inner)
        self._outbox = Outbox(self._watch, spread=not in_order, stops=not spec.writer.overwrites and not takes_out)
        self._permits = Permits(self._watch, about.limited)
        self._drawing = (Taking if takes_out else Drawing)(self._watch, self._permits, spec, self._arrays)
        welcomes = self._watch.welcomes
        self.resumed = Resumed(sum(one.adds for one in welcomes), sum(one.items for one in welcomes))

    # ---------------------------------------------------------------- writing

    def add(self, items: object, mask: ArrayLike = None, priorities: ArrayLike = None, version: int = 0) -> Receipt:
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
        deadline = self._watch.deadline()
        content = addition(self.spec, items, mask, priorities, version)
        self._permits.to_add(content.items, deadline)
        return self._outbox.send(self._outbox.next(deadline, content.items), content)

    def update(self, indices: ArrayLike, priorities: ArrayLike = None, items: object = None) -> None:
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
        deadline = self._watch.deadline()
        handles = handles_of(indices, "update")
        content = change(self.spec, handles, priorities, items)
        shards = np.where(handles[:, 0] >= 0, handles[:, 0] % len(self._watch.channels), -1)
        for k, channel in enumerate(self._watch.channels):
            rows = np.flatnonzero(shards == k)
            if rows.size:
                self._outbox.make_room(channel, deadline, "update")
                self._outbox.send(channel, content.rows(rows))

    def clear(self) -> None:
        """Take all items out of all shards; handles go on, so that old ones name nothing."""
        deadline = self._watch.deadline()
        for channel in self._watch.channels:
            self._outbox.make_room(channel, deadline, "clear")
            self._outbox.send(channel, Content("clear", {}, {}))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was added and updated is acknowledged.

        Raises:
            TimeoutError: if it takes longer than that, or than the client's timeout.
            ValueError: if something was refused, and its receipt not asked; also another error that it had.
        """
        self._outbox.flush(self._watch.deadline(timeout))

    # ---------------------------------------------------------------- drawing

    def sample(
        self,
        key: PRNGKey,
        batch_size: int | None = None,
        beta: float | None = None,
        exact: bool = False,
        oldest: int | None = None,
        timeout: float | None = None,
    ) -> AnySample[Nest]:
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
        seeds = np.random.SeedSequence(words_of(key))
        size, power = self._checked(batch_size, beta)
        deadline, draw = self._watch.deadline(timeout), Draw(size, seeds, oldest)
        self._drawing.begin(draw, deadline, exact)
        return self._drawing.finish(draw, [power], deadline)[0]

    def iterate(
        self,
        key: object,
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
        n = None if n is None else checks.count("iterate", "n", n)
        prefetch, per_call = (checks.count("iterate", *one) for one in (("prefetch", prefetch), ("per_call", per_call)))
        if per_call < 1:
            raise ValueError("iterate: per_call: expected 1 or more, got 0")
        size, _ = self._checked(batch_size, None if callable(beta) else beta)

        def begin(first: int, count: int, wait: bool) -> Draw | None:
            seeds = np.random.SeedSequence(words, spawn_key=(first,))
            draw = Draw(count * size, seeds, oldest() if callable(oldest) else oldest)
            return draw if self._drawing.begin(draw, self._watch.deadline(), wait=wait) else None

        def finish(draw: Draw, numbers: range) -> list[AnySample[Nest]]:
            powers = [self._checked(size, beta(k) if callable(beta) else beta)[1] for k in numbers]
            return self._drawing.finish(draw, powers, self._watch.deadline())

        return Batches(begin, finish, n, prefetch, per_call)

    def get(self, indices: ArrayLike) -> tuple[Nest, Array]:
        """Read stored items by their handles.

        Args:
            indices: int32 [B, 2].

        Returns:
            The items as stored, leaves [B, *shape], and bool [B], which of them are there.

        Raises:
            ShardDiedError: if a shard does not answer.
        """
        handles = handles_of(indices, "get")
        transport, timeout = self._watch.transport, self._watch.options.timeout
        self._watch.post()
        shards = np.where(handles[:, 0] >= 0, handles[:, 0] % transport.shards, 0)
        rows = [np.flatnonzero(shards == k) for k in range(transport.shards)]
        calls = [
            (at, transport.call(k, "get", handles[at])) for k, at in enumerate(rows) if at.size or not handles.size
        ]
        answers = []
        for at, call in calls:
            block = transport.result(call, timeout)
            assert isinstance(block, blocks.Block)
            answers.append((at, blocks.unpack(block)))
        order = np.argsort(np.concatenate([at for at, _ in answers]), kind="stable")
        whole = [np.concatenate(parts)[order] for parts in zip(*(arrays for _, arrays in answers), strict=True)]
        *leaves, live = (self._arrays.from_numpy(array) for array in whole)
        structure = self.spec.plan.outline.structure
        return nest.unflatten(structure, leaves, self._arrays.build_mapping, (len(handles),)), live

    # ---------------------------------------------------------------- about the buffer

    def size(self) -> int:
        """How many items all shards store that answer now."""
        self._watch.ask_all(self._watch.deadline())
        return sum(standing.size for standing in self._watch.standings)

    def masses(self) -> tuple[float, ...]:
        """How much the items of each shard count in a draw, as this client last heard; 0 of one that is dead."""
        return tuple(standing.mass for standing in self._watch.standings)

    def counts(self) -> Tally:
        """What all shards, which are asked for it, and this client have counted."""
        deadline = self._watch.deadline()
        self._watch.ask_all(deadline)  # by which a shard that was restarted unseen is found, and what is gone with it
        answers = self._watch.ask("counts", deadline)

        def each(name: str) -> list[int]:
            return [one[name] if isinstance(one, dict) else 0 for one in answers]

        return Tally(
            capacity=self.spec.capacity,
            sizes=tuple(each("size")),
            masses=tuple(each("mass")),
            epochs=tuple(each("epoch")),
            dead=sum(one is None for one in answers),
            deaths=self._watch.deaths,
            lost=sum(channel.lost for channel in self._watch.channels),
            retries=sum(channel.retries for channel in self._watch.channels),
            redraws=self._drawing.redraws,
            **{name: sum(each(name)) for name in SUMMED},
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
        deadline, transport = self._watch.deadline(timeout), self._watch.transport
        self.flush(timeout)
        calls = [transport.call(k, "save") for k in range(transport.shards)]
        numbers = []
        for k, call in enumerate(calls):
            try:
                number = transport.result(call, self._watch.left(deadline))
            except ShardDiedError:
                self._watch.died(k)
                raise
            assert isinstance(number, int)
            numbers.append(number)
        return tuple(numbers)

    def for_backend(self, backend: object, name: str | None = None) -> Client:
        """Another client of the same buffer, whose samples are arrays of another backend; None for NumPy's."""
        return Client(self._watch.transport, self._about, backend, name)

    def __reduce__(self) -> tuple[type[Client], tuple[object, ...]]:
        return Client, (self._watch.transport, self._about, self._arrays.name)

    def __repr__(self) -> str:
        alive = sum(channel.alive for channel in self._watch.channels)
        return f"Client({self.name!r}, {alive} of {len(self._watch.channels)} shards)"

    def _checked(self, batch_size: int | None, beta: float | None) -> tuple[int, float]:
        size = checks.batch_size(self.spec, batch_size)
        self.spec.sampler.check_batch(self.spec.plan, size)
        power = getattr(self.spec.sampler, "beta", 0.0) if beta is None else float(beta)
        if not 0 <= power <= 100:
            raise ValueError(f"sample: beta: expected a number from 0 to 100, got {beta!r}")
        return size, power
