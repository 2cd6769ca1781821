"""Shards as actors of Ray. The only module here that uses Ray."""

from __future__ import annotations

import os
import pickle
import time
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeAlias

from functional_rb.base import extras
from functional_rb.base.arrays import NumpyArray
from functional_rb.buffer.spec import BufferSpec
from functional_rb.scale.ray import blocks
from functional_rb.scale.ray.limits import Limiter, RateLimit
from functional_rb.scale.ray.messages import Drawn, Ticket, Write, Wrote
from functional_rb.scale.ray.options import Options
from functional_rb.scale.ray.shard import Shard
from functional_rb.scale.ray.transport import LIMITER, ShardDiedError, Transport

# A handle of an actor, by which Ray calls its methods: `handle.method.remote(...)`.
Handle: TypeAlias = Any

WHO = "frb.ray"
OLDEST = "2.60"
# Seconds between two updates of a shard's gauges.
METRICS_EVERY = 1.0
# Seconds that are waited for what tells where the shards are, if it is being restarted.
PATIENCE = 60.0
# What Prometheus gets of each shard, as `ray_functional_rb_<name>`, with the tags `buffer` and `shard`.
GAUGES = ("size", "capacity", "mass", "inserted", "sampled", "unsaved", "epoch", "stale", "rejected", "duplicates",
          "masked", "saves", "save_failures")  # fmt: skip


# Ray, which need not be installed until it is used.
def _ray() -> ModuleType:
    ray: ModuleType = extras.imported("ray", WHO)
    return ray


class ShardActor(Shard):
    """A shard in a process of its own, one call after the other; blocks may come and go in pieces."""

    def __init__(self, number: int, shards: int, spec: BufferSpec, checkpoint: str | None, options: Options) -> None:
        import torch

        torch.set_num_threads(1)  # a call is short, and machines have several shards
        restarted = _was_restarted()
        self._refused: ValueError | None = None
        try:
            super().__init__(number, shards, spec, checkpoint, restarted, options.save_every)
        except ValueError as error:  # of a checkpoint that is another buffer's: `ready` tells whoever starts
            if restarted:
                raise
            self._refused = error
        metrics = extras.imported("ray.util.metrics", WHO)
        self._tags = {"buffer": options.name, "shard": str(number)}
        self._gauges = {
            one: metrics.Gauge(f"functional_rb_{one}", description=f"{one} of a shard", tag_keys=tuple(self._tags))
            for one in GAUGES
        }
        self._gauges_due = 0.0

    def ready(self) -> None:
        """Raise what was wrong with what the shard was to begin with."""
        if self._refused is not None:
            raise self._refused

    def write_pieces(self, writes: Sequence[Write], counts: Sequence[int], *pieces: NumpyArray) -> Wrote:
        """`write`, where the block of each write comes in so many pieces."""
        rest = iter(pieces)
        whole = [
            write._replace(block=blocks.joined(write.block, [next(rest) for _ in range(n)]))
            for write, n in zip(writes, counts, strict=True)
        ]
        return self.write(whole)

    def sample_in_pieces(
        self, pieces: int, seed: int, batch: int, oldest: int | None = None, ticket: Ticket | None = None
    ) -> tuple[Drawn | NumpyArray, ...]:
        """What `sample` draws without the bytes of its block, and these in so many pieces."""
        drawn = self.sample(seed, batch, oldest, ticket)
        rest, cut = blocks.cut(drawn.block, pieces)
        return (drawn._replace(block=rest), *cut)

    def write(self, writes: Sequence[Write]) -> Wrote:
        wrote = super().write(writes)
        self._refresh_gauges()
        return wrote

    def sample(self, seed: int, batch: int, oldest: int | None = None, ticket: Ticket | None = None) -> Drawn:
        drawn = super().sample(seed, batch, oldest, ticket)
        self._refresh_gauges()
        return drawn

    def counts(self) -> dict[str, int | float]:
        counts = super().counts()
        for name, gauge in self._gauges.items():
            gauge.set(float(counts[name]), tags=self._tags)
        return counts

    def _refresh_gauges(self) -> None:
        now = time.monotonic()
        if now >= self._gauges_due:
            self._gauges_due = now + METRICS_EVERY
            self.counts()

    def process(self) -> int:
        """The number of its process on its machine."""
        return os.getpid()

    def place(self) -> str:
        """The address of its machine."""
        return str(_ray().util.get_node_ip_address())


class Coordinator(Limiter):
    """What there is once for a buffer: it keeps the rate limit, if there is one, and tells where the shards are."""

    def __init__(self, limit: RateLimit | None, about: bytes, name: str, shards: int) -> None:
        self._about, self._names = about, [_name(name, k) for k in range(shards)]
        inserted = sampled = 0
        if limit is not None and _was_restarted():  # what it had counted has died with it; the shards have counted too
            standings = _ray().get([_ray().get_actor(one).standing.remote() for one in self._names])
            inserted, sampled = sum(one.inserted for one in standings), sum(one.sampled for one in standings)
        super().__init__(limit or RateLimit(), inserted, sampled)

    def about(self) -> tuple[list[str], bytes]:
        """The names of the shards, and what clients are made of, pickled."""
        return self._names, self._about


def _was_restarted() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, about what it calls itself for this
        return bool(_ray().get_runtime_context().was_current_actor_reconstructed)


def _name(name: str, k: int) -> str:
    return f"{name}/shard/{k}"


class RayTransport(Transport):
    """Calls are tasks of actors. Handles of actors can be pickled, and with them this."""

    def __init__(self, shards: Sequence[Handle], coordinator: Handle) -> None:
        self._actors, self._coordinator = shards, coordinator
        # How many bytes a row had in the block that was drawn last: the next is expected to have as many.
        self._row_bytes = 0.0

    @property
    def shards(self) -> int:
        return len(self._actors)

    def call(self, shard: int, method: str, *args: Any) -> object:
        actor = self._coordinator if shard == LIMITER else self._actors[shard]
        try:
            if method == "write":
                return self._write(actor, *args)
            if method == "sample":
                return self._sample(actor, *args)
            return getattr(actor, method).remote(*args)
        except _ray().exceptions.RayError as error:
            return error

    def _write(self, actor: Handle, writes: Sequence[Write]) -> object:
        whole = any(write.block.large for write in writes)
        if whole or not blocks.pieces_for(sum(write.block.nbytes for write in writes)):
            return actor.write.remote(writes)
        cuts = [blocks.cut(write.block, blocks.pieces_for(write.block.nbytes) or 1) for write in writes]
        rests = [write._replace(block=rest) for write, (rest, _) in zip(writes, cuts, strict=True)]
        counts = [len(pieces) for _, pieces in cuts]
        return actor.write_pieces.remote(rests, counts, *(piece for _, pieces in cuts for piece in pieces))

    def _sample(self, actor: Handle, seed: int, batch: int, *more: object) -> object:
        pieces = blocks.pieces_for(int(self._row_bytes * batch))
        if not pieces:
            return actor.sample.remote(seed, batch, *more)
        return actor.sample_in_pieces.options(num_returns=pieces + 1).remote(pieces, seed, batch, *more)

    def result(self, call: object, timeout: float | None = None) -> object:
        errors = _ray().exceptions
        gone = (errors.ActorDiedError, errors.ActorUnavailableError, errors.ObjectLostError, errors.NodeDiedError)
        try:
            if isinstance(call, Exception):
                raise call
            answer = _ray().get(call, timeout=timeout)
        except errors.GetTimeoutError:
            raise TimeoutError(f"no answer within {timeout} s") from None
        except gone as error:
            raise ShardDiedError(str(error)) from None
        except errors.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        if isinstance(call, list):  # a draw in pieces
            first, *pieces = answer
            answer = first._replace(block=blocks.joined(first.block, pieces))
        if isinstance(answer, Drawn) and answer.rows:
            self._row_bytes = answer.block.nbytes / answer.rows
        return answer

    def ready(self, calls: Sequence[object]) -> set[int]:
        done = {k for k, call in enumerate(calls) if isinstance(call, Exception)}
        # All that a call returns comes at once.
        firsts = [call[0] if isinstance(call, list) else call for call in calls]
        waiting = [call for call in firsts if not isinstance(call, Exception)]
        if waiting:
            arrived, _ = _ray().wait(waiting, num_returns=len(waiting), timeout=0.0, fetch_local=False)
            done |= {k for k, call in enumerate(firsts) if not isinstance(call, Exception) and call in set(arrived)}
        return done

    def kill(self, shard: int, restart: bool = True) -> None:
        """End the process of a shard, as a crash would; Ray restarts it, unless told not to."""
        _ray().kill(self._actors[shard], no_restart=not restart)


def start(
    spec_of_shard: BufferSpec,
    shards: int,
    checkpoint: str | None,
    limit: RateLimit | None,
    options: Options,
    about: object,
) -> RayTransport:
    """Start the actors, under names of their own."""
    extras.check_version(_ray(), OLDEST, WHO)
    if not _ray().is_initialized():
        raise RuntimeError("start: expected that Ray was initialized; call ray.init() first, or give local=True")
    common: dict[str, object] = {"max_restarts": -1, "max_task_retries": 0}
    if options.detached:
        common["lifetime"] = "detached"
    # What an actor has in flight at a crash is not run again by Ray: clients send it again, with its number.
    kind = _ray().remote(ShardActor)
    actor_options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **common, **options.actors}
    name = options.name
    actors = [
        kind.options(name=_name(name, k), **actor_options).remote(k, shards, spec_of_shard, checkpoint, options)
        for k in range(shards)
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


def find(name: str) -> tuple[RayTransport, object]:
    """The transport to a buffer that has been started, and what clients of it are made of."""
    if not _ray().is_initialized():
        raise RuntimeError("connect: expected that Ray was initialized; call ray.init(address=...) first")
    coordinator = _ray().get_actor(name)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            names, about = _ray().get(coordinator.about.remote())
        except _ray().exceptions.ActorUnavailableError:  # it is being restarted
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)
        else:
            return RayTransport([_ray().get_actor(one) for one in names], coordinator), pickle.loads(about)
