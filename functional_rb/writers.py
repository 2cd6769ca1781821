"""Where new items go. A writer is a frozen dataclass, like a sampler."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class RoundRobin:
    """A ring: the newest item replaces the oldest once the buffer is full.

    Example:
        >>> RoundRobin()
        RoundRobin()
    """
