"""How clients reach shards: by calls of Ray, in the same process, or in tests with faults of their own."""

from __future__ import annotations

import abc
import time
from collections.abc import Sequence
from typing import Final

# In place of a shard's number: what keeps the rate limit.
LIMITER: Final = -1


class ShardDiedError(RuntimeError):
    """A shard, or what keeps the rate limit, has died or cannot be reached; the call was carried out, or was not."""


class Transport(abc.ABC):
    """Calls of shards that go on while the caller does other things."""

    @property
    @abc.abstractmethod
    def shards(self) -> int:
        """How many there are."""

    @abc.abstractmethod
    def call(self, shard: int, method: str, *args: object) -> object:
        """Begin a call; what comes back stands for its result. Calls of one caller arrive in their order.

        It raises nothing: what goes wrong is raised by `result`.
        """

    @abc.abstractmethod
    def result(self, call: object, timeout: float | None = None) -> object:
        """Wait for a result.

        Raises:
            ShardDiedError: if the shard died, or cannot be reached.
            TimeoutError: if it takes longer.
            Exception: what the method raised.
        """

    @abc.abstractmethod
    def ready(self, calls: Sequence[object]) -> set[int]:
        """The positions of calls that are done, whatever came of them; it waits for none."""

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()
