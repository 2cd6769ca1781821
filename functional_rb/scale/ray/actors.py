"""Shards as actors of Ray. The only module here that uses Ray."""

from __future__ import annotations

import os
import pickle
import time
import warnings
from collections.abc import Sequence
from typing import Any

import functional_rb.scale.ray.pieces as in_pieces
from functional_rb.base import extras
from functional_rb.buffer.spec import BufferSpec
from functional_rb.scale.ray.blocks import Array
from functional_rb.scale.ray.limits import Limiter, RateLimit
from functional_rb.scale.ray.messages import Drawn, Standing, Ticket, Welcome, Write, Wrote
from functional_rb.scale.ray.options import Actors, Checkpoints
from functional_rb.scale.ray.shard import Shard
from functional_rb.scale.ray.transport import LIMITER, ShardDiedError

WHO = "frb.ray"
OLDEST = "2.60"
# Seconds between two updates of a shard's gauges.
METRICS_EVERY = 1.0
# Seconds that are waited for what tells where the shards are, if it is being restarted.
PATIENCE = 60.0
# What Prometheus gets of each shard, as `ray_functional_rb_<name>`, with the tags `buffer` and `shard`.
GAUGES = ("size", "capacity", "mass", "inserted", "sampled", "unsaved", "epoch", "stale", "rejected", "duplicates",
          "masked", "saves", "save_failures")  # fmt: skip


def _ray() -> Any:
    """Ray, which need not be installed until it is used."""
    return extras.imported("ray", WHO)


class ShardActor:
    """A shard in a process of its own, one call after the other."""

    def __init__(self, number: int, shards: int, spec: BufferSpec, checkpoint: Checkpoints | None, name: str) -> None:
        """Begin, or go on after the one before has died."""
        import torch

        torch.set_num_threads(1)  # a call is short, and machines have several shards
        restarted = _was_restarted()
        self._refused: ValueError | None = None
        try:
            self._shard = Shard(number, shards, spec, checkpoint, restarted)
        except ValueError as error:  # of a checkpoint that is another buffer's: `ready` tells whoever starts
            if restarted:
                raise
            self._refused = error
        self._gauges = _Gauges(name, number)

    def ready(self) -> None:
        """Raise what was wrong with what the shard was to begin with."""
        if self._refused is not None:
            raise self._refused

    def hello(self, client: str, connection: str | None = None) -> Welcome:
        """See `Shard.hello`."""
        return self._shard.hello(client, connection)

    def write(self, writes: Sequence[Write], counts: Sequence[int] = (), *pieces: Array) -> Wrote:
        """See `Shard.write`; the block of each write may come in so many pieces."""
        if pieces:
            rest = iter(pieces)
            blocks = [
                in_pieces.joined(w.block, [next(rest) for _ in range(n)]) for w, n in zip(writes, counts, strict=True)
            ]
            writes = [write._replace(block=block) for write, block in zip(writes, blocks, strict=True)]
        wrote = self._shard.write(writes)
        self._gauges.now_and_then(self._shard)
        return wrote

    def sample(self, seed: int, batch: int, oldest: int | None = None, ticket: Ticket | None = None) -> Drawn:
        """See `Shard.sample`."""
        drawn = self._shard.sample(seed, batch, oldest, ticket)
        self._gauges.now_and_then(self._shard)
        return drawn

    def sample_in_pieces(self, pieces: int, *question: Any) -> tuple[Any, ...]:
        """What `sample` draws without the bytes of its block, and these in so many pieces."""
        drawn = self.sample(*question)
        rest, found = in_pieces.cut(drawn.block, pieces)
        return (drawn._replace(block=rest), *found)

    def standing(self) -> Standing:
        """See `Shard.standing`."""
        return self._shard.standing()

    def description(self) -> Any:
        """See `Shard.description`."""
        return self._shard.description()

    def get(self, handles: Any) -> Any:
        """See `Shard.get`."""
        return self._shard.get(handles)

    def save(self) -> int:
        """See `Shard.save`."""
        return self._shard.save()

    def counts(self) -> dict[str, Any]:
        """See `Shard.counts`."""
        counts = self._shard.counts()
        self._gauges.set(counts)
        return counts

    def process(self) -> int:
        """The number of its process on its machine."""
        return os.getpid()

    def place(self) -> str:
        """The address of its machine."""
        return str(_ray().util.get_node_ip_address())


class _Gauges:
    """What Ray's agents hand on to Prometheus."""

    def __init__(self, name: str, number: int) -> None:
        metrics = extras.imported("ray.util.metrics", WHO)
        self._tags = {"buffer": name, "shard": str(number)}
        self._gauges = {
            one: metrics.Gauge(f"functional_rb_{one}", description=f"{one} of a shard", tag_keys=tuple(self._tags))
            for one in GAUGES
        }
        self._due = 0.0

    def now_and_then(self, shard: Shard) -> None:
        """Update them, at most once in a while."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + METRICS_EVERY
            self.set(shard.counts())

    def set(self, counts: dict[str, Any]) -> None:
        """Update them."""
        for name, gauge in self._gauges.items():
            gauge.set(float(counts[name]), tags=self._tags)


class Coordinator:
    """What there is once for a buffer: it keeps the rate limit, and tells clients where the shards are."""

    def __init__(self, limit: RateLimit | None, about: bytes, name: str, shards: int) -> None:
        """Begin, or go on from what the shards have, after the one before has died."""
        self._about, self._names, self._limiter = about, [_name(name, k) for k in range(shards)], None
        if limit is not None:
            inserted = sampled = 0
            if _was_restarted():
                found = _ray().get([_ray().get_actor(one).standing.remote() for one in self._names])
                inserted, sampled = sum(one.inserted for one in found), sum(one.sampled for one in found)
            self._limiter = Limiter(limit, inserted, sampled)

    def ask(self, *args: Any) -> Any:
        """See `Limiter.ask`."""
        assert self._limiter is not None
        return self._limiter.ask(*args)

    def give_back(self, items: int) -> None:
        """See `Limiter.give_back`."""
        assert self._limiter is not None
        self._limiter.give_back(items)

    def about(self) -> Any:
        """The names of the shards, and what clients are made of, pickled."""
        return self._names, self._about


def _was_restarted() -> bool:
    """Whether Ray runs the constructor of this actor again, as the process before has died."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, about what it calls itself for this
        return bool(_ray().get_runtime_context().was_current_actor_reconstructed)


def _name(name: str, k: int) -> str:
    """By which the actor of a shard is found."""
    return f"{name}/shard/{k}"


class RayTransport:
    """Calls are tasks of actors. Handles of actors can be pickled, and with them this."""

    def __init__(self, shards: Sequence[object], coordinator: object) -> None:
        """Take the actors."""
        self._actors, self._coordinator = shards, coordinator
        # Of the block that came last with rows that were drawn, for each: the next is expected to have as many.
        self._row_bytes = 0.0

    @property
    def shards(self) -> int:
        """How many there are."""
        return len(self._actors)

    def call(self, shard: int, method: str, *args: Any) -> Any:
        """Begin a call."""
        actor = self._coordinator if shard == LIMITER else self._actors[shard]
        try:
            if method == "write":
                return self._write(actor, *args)
            if method == "sample":
                return self._sample(actor, *args)
            return getattr(actor, method).remote(*args)
        except _ray().exceptions.RayError as error:
            return error

    def _write(self, actor: Any, writes: Sequence[Write]) -> Any:
        blocks = [write.block for write in writes]
        whole = any(block.large for block in blocks)
        if whole or not in_pieces.pieces_for(sum(block.nbytes for block in blocks)):
            return actor.write.remote(writes)
        cuts = [in_pieces.cut(block, in_pieces.pieces_for(block.nbytes) or 1) for block in blocks]
        rests = [write._replace(block=rest) for write, (rest, _) in zip(writes, cuts, strict=True)]
        found = [pieces for _, pieces in cuts]
        return actor.write.remote(rests, [len(pieces) for pieces in found], *(one for some in found for one in some))

    def _sample(self, actor: Any, seed: int, batch: int, *more: Any) -> Any:
        pieces = in_pieces.pieces_for(int(self._row_bytes * batch))
        if not pieces:
            return actor.sample.remote(seed, batch, *more)
        return actor.sample_in_pieces.options(num_returns=pieces + 1).remote(pieces, seed, batch, *more)

    def result(self, call: object, timeout: float | None = None) -> Any:
        """Wait for a result."""
        try:
            if isinstance(call, Exception):
                raise call
            found = _ray().get(call, timeout=timeout)
        except _ray().exceptions.GetTimeoutError:
            raise TimeoutError(f"no answer within {timeout} s") from None
        except (_ray().exceptions.ActorDiedError, _ray().exceptions.ActorUnavailableError) as error:
            raise ShardDiedError(str(error)) from None
        except (_ray().exceptions.ObjectLostError, _ray().exceptions.NodeDiedError) as error:
            raise ShardDiedError(str(error)) from None
        except _ray().exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        if isinstance(call, list):
            first, *pieces = found
            found = first._replace(block=in_pieces.joined(first.block, pieces))
        if isinstance(found, Drawn) and found.rows:
            self._row_bytes = found.block.nbytes / found.rows
        return found

    def ready(self, calls: Sequence[object]) -> set[int]:
        """The positions of calls that are done."""
        done = {k for k, call in enumerate(calls) if isinstance(call, Exception)}
        # All that a call returns comes at once.
        firsts = [call[0] if isinstance(call, list) else call for call in calls]
        waiting = [call for call in firsts if not isinstance(call, Exception)]
        if waiting:
            found, _ = _ray().wait(waiting, num_returns=len(waiting), timeout=0.0, fetch_local=False)
            found = set(found)
            done |= {k for k, call in enumerate(firsts) if not isinstance(call, Exception) and call in found}
        return done

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def now(self) -> float:
        """The clock of this machine."""
        return time.monotonic()

    def kill(self, shard: int, restart: bool = True) -> None:
        """End the process of a shard, as a crash would; Ray restarts it, unless told not to."""
        _ray().kill(self._actors[shard], no_restart=not restart)


def start(
    part: BufferSpec,
    shards: int,
    checkpoint: Checkpoints | None,
    limit: RateLimit | None,
    options: Actors,
    about: Any,
) -> RayTransport:
    """Start the actors, under names of their own."""
    extras.check_version(_ray(), OLDEST, WHO)
    if not _ray().is_initialized():
        raise RuntimeError("start: expected that Ray was initialized; call ray.init() first, or give local=True")
    lasting: dict[str, Any] = {"lifetime": "detached"} if options.detached else {}
    common = {"max_restarts": -1, "max_task_retries": 0, **lasting}
    # What an actor has in flight at a crash is not run again by Ray: clients send it again, with its number.
    kind = _ray().remote(ShardActor)
    given = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **common, **options.options}
    name = options.name
    actors = [
        kind.options(name=_name(name, k), **given).remote(k, shards, part, checkpoint, name) for k in range(shards)
    ]
    try:
        _ray().get([actor.ready.remote() for actor in actors])
    except _ray().exceptions.RayTaskError as error:
        for actor in actors:
            _ray().kill(actor)
        raise error.as_instanceof_cause() from None
    once = _ray().remote(Coordinator).options(name=name, num_cpus=0, **common)
    coordinator = once.remote(limit, pickle.dumps(about), name, shards)
    _ray().get(coordinator.about.remote())
    return RayTransport(actors, coordinator)


def find(name: str) -> tuple[RayTransport, Any]:
    """The transport to a buffer that has been started, and what clients of it are made of."""
    if not _ray().is_initialized():
        raise RuntimeError("connect: expected that Ray was initialized; call ray.init(address=...) first")
    coordinator = _ray().get_actor(name)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            names, about = _ray().get(coordinator.about.remote())
            break
        except _ray().exceptions.ActorUnavailableError:  # it is being restarted
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)
    return RayTransport([_ray().get_actor(one) for one in names], coordinator), pickle.loads(about)
