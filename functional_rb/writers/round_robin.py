"""The newest item replaces the oldest."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import ring
from functional_rb.writers.base import WriterBase

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.structures.ring import Write


@dataclasses.dataclass(frozen=True)
class RoundRobin(WriterBase):
    """A ring: the newest item replaces the oldest once the buffer is full. With lanes, a ring for each.

    Example:
        >>> RoundRobin()
        RoundRobin()
    """

    def plan_write(
        self, ops: Ops, draft: Draft, leaves: Sequence[Array], batch: int, mask: Array | None, draws: Array | None
    ) -> Write:
        return ring.plan_write(ops, draft.plan.ring, draft.counters.ends, batch, mask)
