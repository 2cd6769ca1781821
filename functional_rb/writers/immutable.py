"""A dataset: filled when it is made, and never written again."""

from __future__ import annotations

import dataclasses

from functional_rb.writers.round_robin import RoundRobin


@dataclasses.dataclass(frozen=True)
class Immutable(RoundRobin):
    """A dataset: `rb.init(plan, items=...)` fills it, and any later write is an error. Priorities may be updated.

    Example:
        >>> Immutable()
        Immutable()
    """

    @property
    def overwrites(self) -> bool:
        return False
