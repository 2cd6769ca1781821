"""When to try again, and how long to wait: exponential backoff with jitter, by a clock that tests give."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Clock:
    """What waits, and what draws the jitter.

    Attributes:
        sleep: waits for so many seconds.
        uniform: draws a number in [0, 1).
    """

    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[], float] = random.random


@dataclasses.dataclass(frozen=True)
class Backoff:
    """How often a file is tried again after failures that may pass, and how long it waits in between.

    The wait after the k-th failure in a row is drawn uniformly from [d/2, d], where d = min(first * 2^(k-1), most)
    seconds, so that many who failed at once do not come back at once. A try that got further than any before it counts
    as none.

    Attributes:
        retries: how often it is tried again.
        first: seconds, the longest first wait.
        most: seconds, the longest wait; also of one that a server asks for.

    Example:
        >>> Backoff().wait(3, 0.0, None), Backoff().wait(3, 0.0, 7.0)
        (2.0, 7.0)
    """

    retries: int = 6
    first: float = 1.0
    most: float = 60.0

    def wait(self, failures: int, uniform: float, asked: float | None) -> float:
        """Seconds to wait after so many failures in a row.

        Args:
            failures: from 1 on.
            uniform: a number in [0, 1).
            asked: seconds that the server asks for (Retry-After), None if it does not.
        """
        longest = min(self.first * 2.0 ** min(failures - 1, 60), self.most)
        drawn = longest * (1 + uniform) / 2
        return drawn if asked is None else min(max(asked, drawn), self.most)
