"""Shards in this process that die, lose calls and answers, and carry calls out late, as a plan says."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import functional_rb as frb
import functional_rb.checkpoint as checkpoints
import torch_backend
from functional_rb.scale.ray import blocks
from functional_rb.scale.ray.channel import Content, Receipt
from functional_rb.scale.ray.client import About
from functional_rb.scale.ray.limits import Limiter
from functional_rb.scale.ray.shard import Shard
from functional_rb.scale.ray.starting import shard_spec
from functional_rb.scale.ray.transport import LIMITER, ShardDiedError, Transport

# What may go wrong with a call. "late": it seems lost, and is carried out after those that come next.
FAULTS = ("die_before", "die_after", "lose_call", "lose_answer", "late", "die_saving")


SHARDS = 2
SPEC = frb.BufferSpec({"x": frb.Unbounded(())}, capacity=2048, sampler=frb.Prioritized(alpha=1.0))


def transport_at(
    path: str | None, save_every: int | None = None, spec: Any = SPEC, shards: int = SHARDS, **more: Any
) -> FaultyTransport:
    part = shard_spec(spec, shards)

    def make(k: int, restarted: bool) -> Shard:
        return Shard(k, shards, part, path, restarted, save_every)

    return FaultyTransport(make, shards, **more)


def limiter_of(limit: frb.ray.RateLimit) -> Limiter:
    return Limiter(limit)


def client_of(
    transport: FaultyTransport,
    spec: frb.BufferSpec = SPEC,
    *,
    backend: Any = torch_backend,
    name: str | None = None,
    limited: bool = False,
    turn: int | None = None,
    **options: Any,
) -> frb.ray.Client:
    """A client of these shards. Its next add goes to the shard of the number `turn`, if there is one."""
    client = frb.ray.Client(transport, About(spec, frb.ray.Options(**options), limited), backend, name)
    if turn is not None:
        client._outbox.turn = turn
    return client


def write_refused_by(client: frb.ray.Client, shard: int, items: int = 0) -> Receipt:
    """The receipt of an update of a leaf that there is none of, which no function of a client would send."""
    bad = Content("update", {7: np.zeros((1, 3))}, {"indices": np.zeros((1, 2), np.int32)}, items=items)
    return client._outbox.send(client._watch.channels[shard], bad)


def items(numbers: Any) -> dict[str, np.ndarray]:
    return {"x": np.asarray(numbers, np.float32)}


class Call:
    """A call that waits for its turn."""

    def __init__(self, shard: int, method: str, args: tuple[Any, ...]) -> None:
        self.shard, self.method, self.args = shard, method, args
        self.value: Any = None
        self.error: Exception | None = None
        self.done = False

    def end(self, value: Any = None, error: Exception | None = None) -> None:
        self.value, self.error, self.done = value, error, True


class FaultyTransport(Transport):
    """Calls of a shard are carried out in their order, as late as their results are asked for.

    Attributes:
        faults: what goes wrong with the next calls, one by one, None for nothing; when they are used up all is well.
        down: how many calls each dead shard refuses before it is started again.
        alive: the shards.
        deaths: how many have died.
    """

    def __init__(
        self, make: Callable[[int, bool], Shard], shards: int, limiter: Limiter | None = None, down: int = 2
    ) -> None:
        self.make, self._shards, self.limiter, self.refuses = make, shards, limiter, down
        self.alive: dict[int, Shard] = {k: make(k, False) for k in range(shards)}
        self.down: dict[int, int] = {}
        self.faults: deque[str | None] = deque()
        self.queues: dict[int, deque[Call]] = {k: deque() for k in range(shards)}
        self.belated: dict[int, deque[Call]] = {k: deque() for k in range(shards)}
        self.clock, self.deaths = 0.0, 0
        self.log: list[tuple[int, str]] = []

    @property
    def shards(self) -> int:
        return self._shards

    def call(self, shard: int, method: str, *args: Any) -> Call:
        call = Call(shard, method, args)
        if shard == LIMITER:
            call.end(getattr(self.limiter, method)(*args))
        else:
            self.queues[shard].append(call)
        return call

    def result(self, call: Call, timeout: float | None = None) -> Any:
        while not call.done:
            self._step(call.shard)
        if call.error is not None:
            raise call.error
        return call.value

    def ready(self, calls: Sequence[Call]) -> set[int]:
        for call in calls:
            while not call.done:
                self._step(call.shard)
        return set(range(len(calls)))

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def now(self) -> float:
        self.clock += 0.001
        return self.clock

    def kill(self, shard: int) -> None:
        """Let a shard die with all that was sent to it."""
        if shard in self.alive:
            self.deaths += 1
            self.settle()  # threads of this process, with which a killed one would not go on
            del self.alive[shard]
            self.down[shard] = self.refuses
        for call in self.queues[shard]:
            call.end(error=ShardDiedError(f"shard {shard} has died"))
        self.queues[shard].clear()

    def kept_answers(self, shard: int) -> list[float]:
        """The items in answers of a shard that it has not heard to have arrived; none of a dead one."""
        clients = self.alive[shard]._answers._clients.values() if shard in self.alive else ()
        answers = [drawn for _, kept in clients for drawn in kept.values() if drawn.rows]
        return [x for drawn in answers for x in blocks.unpack(drawn.block)[0].tolist()]

    def settle(self) -> None:
        """Wait for what threads of this process are still saving."""
        for thread in threading.enumerate():
            if thread.name == "functional_rb.save":
                thread.join()

    def heal(self) -> None:
        """From now on all is well."""
        self.faults.clear()
        for k in list(self.down):
            self._start_again(k)

    def _start_again(self, k: int) -> None:
        del self.down[k]
        self.alive[k] = self.make(k, True)

    def _step(self, k: int) -> None:
        """Carry out the call that is first in a shard's queue, as the next fault has it."""
        call = self.queues[k].popleft()
        if k in self.down:
            self.down[k] -= 1
            if self.down[k] <= 0:
                self._start_again(k)
            call.end(error=ShardDiedError(f"shard {k} is dead"))
            return
        fault = self.faults.popleft() if self.faults else None
        if fault is not None:
            self.log.append((k, f"{call.method} {fault}"))
        lost = ShardDiedError(f"no answer from shard {k}")
        if fault == "die_before":
            call.end(error=lost)
            self.kill(k)
        elif fault == "die_after":
            self._carry_out(call)
            call.end(error=lost)
            self.kill(k)
        elif fault == "die_saving":
            with_failing_commit(lambda: self._quietly(k))
            call.end(error=lost)
            self.kill(k)
        elif fault == "lose_call":
            call.end(error=lost)
        elif fault == "lose_answer":
            self._carry_out(call)
            call.end(error=lost)
        elif fault == "late":
            self.belated[k].append(Call(k, call.method, call.args))
            call.end(error=lost)
        else:
            self._carry_out(call)
            while self.belated[k]:
                self._carry_out(self.belated[k].popleft())

    def _quietly(self, k: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.alive[k].save()

    def _carry_out(self, call: Call) -> None:
        try:
            call.end(getattr(self.alive[call.shard], call.method)(*call.args))
        except Exception as error:
            call.end(error=error)


def with_failing_commit(work: Callable[[], None]) -> None:
    """Do something while no save gets as far as being seen: as if its process had died just before."""
    saving = checkpoints.saving
    true = saving._Save.commit

    def failing(self: Any, manifest: Any) -> int:
        raise OSError("died")

    saving._Save.commit = failing
    try:
        work()
    finally:
        saving._Save.commit = true


def stored(shard: Shard, leaf: str = "x") -> list[float]:
    """What a shard stores of a leaf, the oldest first; of a buffer that has not overwritten anything."""
    size = int(shard._rb.size(shard._state))
    found: list[float] = shard._rb.items(shard._state)[leaf][:size].tolist()
    return found
