"""A uniform sample of all that was ever added."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from functional_rb.core import soundness
from functional_rb.ops.protocol import Array, Ops
from functional_rb.ops.random_bits import below
from functional_rb.structures import ring
from functional_rb.structures.duplicates import Duplicates
from functional_rb.structures.ring import RingState, Write
from functional_rb.writers.base import ChoosingWriter

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found

# Counter int32 [1]: how many items were ever added (stays at 2^31 - 2).
SEEN = "seen"


@dataclasses.dataclass(frozen=True)
class Reservoir(ChoosingWriter):
    """Every item ever added is stored with the same probability (Vitter, Random Sampling with a Reservoir, 1985, R).

    Item number t, counted from 0, goes to a slot drawn from 0 ... t, if the buffer has that slot. So `add` takes a key:
    `rb.add(state, items, key=key)`, a new one at every call. With lanes there is one reservoir for all.

    Example:
        >>> Reservoir()
        Reservoir()
    """

    @property
    def words(self) -> int:
        # Two, for a number below how many items there were.
        return 2

    def counters(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        return ((SEEN, 1),)

    def cleared(self, ops: Ops, draft: Draft) -> None:
        super().cleared(ops, draft)
        draft.count(seen=ops.full_like(draft.counters.more[SEEN], 0))

    def problem(self, contents: Found) -> str | None:
        # No more is stored than ever came.
        size, seen = int(contents.numbers.ends.sizes[0]), contents.numbers.more[SEEN]
        return super().problem(contents) or soundness.problem_of_range(SEEN, seen, size, ring.INT32_MAX)

    def plan_write(
        self, ops: Ops, draft: Draft, leaves: Sequence[Array], batch: int, mask: Array | None, draws: Array | None
    ) -> Write:
        # The slots drawn; the last of those rows that draw the same one stays.
        assert draws is not None
        capacity, seen = draft.plan.capacity, draft.counters.more[SEEN]
        row = ops.arange(batch, like=draws)
        rank = row if mask is None else ops.cumsum(ops.cast(mask, "int32")) - ops.cast(mask, "int32")
        # One less than the largest int32, so that one more still is an int32.
        number = ops.minimum(ring.saturating_add(ops, seen, rank), ops.full_like(rank, ring.INT32_MAX - 1))
        drawn = below(ops, draws, number + 1)
        # The first items fill the slots in their order.
        slots = ops.where(number < capacity, number, drawn)
        taken = slots < capacity if mask is None else mask & (slots < capacity)
        slots = ops.where(taken, slots, ops.full_like(slots, 0))
        source, live = Duplicates.of(ops, slots).winners(ops, taken)
        written = ops.full_like(seen, batch) if mask is None else ops.count(mask).reshape(1)
        total = ops.minimum(ring.saturating_add(ops, seen, written), ops.full_like(seen, ring.INT32_MAX - 1))
        draft.count(seen=total)
        self.renew(ops, draft, slots, live)
        sizes = ops.minimum(total, ops.full_like(total, capacity))
        return Write(slots, source, live, written, RingState(draft.counters.ends.cursors, sizes), mask)
