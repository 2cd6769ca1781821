"""What does not fit is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from functional_rb.core import counters
from functional_rb.core.counters import REFUSED
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import ring
from functional_rb.writers.base import WriterBase

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.structures.ring import Write


@dataclasses.dataclass(frozen=True)
class StopWhenFull(WriterBase):
    """A ring that never overwrites: adding more than fits is an error, and under tracing the rest is refused.

    What is refused while tracing is counted: `rb.counts`. Room comes back as a `Queue` is consumed. With lanes,
    each lane has room of its own.

    Example:
        >>> StopWhenFull()
        StopWhenFull()
    """

    @property
    def overwrites(self) -> bool:
        # What is stored stays until a sampler takes it out.
        return False

    def counters(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        return ((REFUSED, 1),)

    def plan_write(
        self, ops: Ops, draft: Draft, leaves: Sequence[Array], batch: int, mask: Array | None, draws: Array | None
    ) -> Write:
        ends, lanes = draft.counters.ends, draft.plan.ring.lanes
        room = draft.plan.ring.length - ends.sizes
        if mask is None:
            row = ops.arange(batch, like=room)
            taken = row // lanes < ring.of_lane(ops, room, row % lanes)
            wanted = ops.full_like(room[0], batch)
        else:
            rank = ring.by_time(ops.cumsum(ops.cast(ring.by_lane(lanes, mask), "int32")))
            taken = mask & (rank <= ring.of_lane(ops, room, ops.arange(batch, like=room) % lanes))
            wanted = ops.count(mask)
        write = ring.plan_write(ops, draft.plan.ring, ends, batch, taken)
        lost = wanted - counters.total(ops, write.written)
        draft.count(refused=ring.saturating_add(ops, draft.counters.more[REFUSED], lost))
        return write
