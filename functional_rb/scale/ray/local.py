"""Shards in this very process, without Ray: for trying things out, and for tests of one's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from functional_rb.scale.ray.limits import Limiter
from functional_rb.scale.ray.shard import Shard
from functional_rb.scale.ray.transport import LIMITER


class LocalTransport:
    """Calls are carried out at once, by the caller's thread."""

    def __init__(self, make: Callable[[int, bool], Shard], shards: int, limiter: Limiter | None) -> None:
        """Make the shards.

        Args:
            make: makes one by its number, and whether it takes the place of one that died.
            shards: how many.
            limiter: what keeps the rate limit, if there is one.
        """
        self.places: dict[int, object] = {k: make(k, False) for k in range(shards)} | {LIMITER: limiter}
        self._shards = shards

    @property
    def shards(self) -> int:
        """How many there are."""
        return self._shards

    def call(self, shard: int, method: str, *args: Any) -> tuple[Any, Exception | None]:
        """Carry a call out."""
        try:
            return getattr(self.places[shard], method)(*args), None
        except Exception as error:
            return None, error

    def result(self, call: Any, timeout: float | None = None) -> Any:
        """What came of it."""
        value, error = call
        if error is not None:
            raise error
        return value

    def ready(self, calls: Sequence[object]) -> set[int]:
        """All of them."""
        return set(range(len(calls)))

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def now(self) -> float:
        """The clock of this machine."""
        return time.monotonic()
