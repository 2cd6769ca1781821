"""Shards in this very process, without Ray: for trying things out, and for tests of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from functional_rb.scale.ray.limits import Limiter
from functional_rb.scale.ray.shard import Shard
from functional_rb.scale.ray.transport import LIMITER, Transport


class _Result(NamedTuple):
    value: object
    error: Exception | None


class LocalTransport(Transport):
    """Calls are carried out at once, by the caller's thread.

    Attributes:
        places: the shards by number, and what keeps the rate limit, if there is one.
    """

    def __init__(self, make: Callable[[int, bool], Shard], shards: int, limiter: Limiter | None) -> None:
        """Make the shards; `make` takes the number of one, and whether it takes the place of one that died."""
        self.places: dict[int, object] = {k: make(k, False) for k in range(shards)} | {LIMITER: limiter}
        self._shards = shards

    @property
    def shards(self) -> int:
        return self._shards

    def call(self, shard: int, method: str, *args: object) -> object:
        try:
            return _Result(getattr(self.places[shard], method)(*args), None)
        except Exception as error:
            return _Result(None, error)

    def result(self, call: object, timeout: float | None = None) -> object:
        assert isinstance(call, _Result)
        if call.error is not None:
            raise call.error
        return call.value

    def ready(self, calls: Sequence[object]) -> set[int]:
        return set(range(len(calls)))
