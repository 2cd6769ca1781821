"""The small numbers of a state, kept together in one vector int32 that every function makes anew."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from functional_rb.base.arrays import BackendArray
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures.ring import RingState, saturating_add

if TYPE_CHECKING:
    from functional_rb.core.plan import Plan

CURSOR, SIZE, REJECTED, STALE, PEAK, INVALID = range(6)
# How many numbers every state has; those of lanes, samplers and writers follow.
BASE = 6
# The counter of items that a writer did not take, int32 [1].
REFUSED = "refused"


@dataclasses.dataclass(frozen=True)
class Counters:
    """What a state counts.

    Attributes:
        ends: where the lanes' rings are.
        rejected: bad priorities refused so far, int32 scalar (stays at 2^31 - 1, as the others do).
        stale: handles of overwritten items given to `update` so far.
        peak: the bits of the largest float32 priority ever stored, after alpha.
        invalid: items outside of their specs that `add(validate=True)` masked out so far.
        more: what the sampler and the writer count, by name, int32 [n] each.
    """

    ends: RingState
    rejected: Array
    stale: Array
    peak: Array
    invalid: Array
    more: dict[str, Array]

    def replace(self, **fields: Any) -> Counters:
        """These counters with some fields exchanged."""
        return dataclasses.replace(self, **fields)

    def with_more(self, **numbers: Array) -> Counters:
        """These counters with some of the sampler's or the writer's numbers exchanged."""
        return dataclasses.replace(self, more=self.more | numbers)


def total(ops: Ops, sizes: Array) -> Array:
    """How many items all lanes hold, an int32 scalar."""
    return sizes[0] if sizes.shape[0] == 1 else ops.cumsum(sizes)[-1]


def read(plan: Plan, vector: Array) -> Counters:
    """The counters by name."""
    lanes = plan.ring.lanes
    start = BASE
    if lanes == 1:
        # With one lane its cursor and size are those of the buffer, and stand in the vector once.
        ends = RingState(vector[CURSOR : CURSOR + 1], vector[SIZE : SIZE + 1])
    else:
        ends = RingState(vector[start : start + lanes], vector[start + lanes : start + 2 * lanes])
        start += 2 * lanes
    more = {}
    for name, length in plan.counter_names:
        more[name] = vector[start : start + length]
        start += length
    return Counters(ends, vector[REJECTED], vector[STALE], vector[PEAK], vector[INVALID], more)


def cursors(plan: Plan, vector: Array) -> Array:
    """The cursors of the lanes int32 [..., lanes], of a vector or a stack of them."""
    lanes = plan.ring.lanes
    start = CURSOR if lanes == 1 else BASE
    return vector[..., start : start + lanes]


def place(plan: Plan, name: str) -> int | None:
    """Where in the vector the first number of a name of the sampler's or the writer's is; None if they have none."""
    lanes = plan.ring.lanes
    start = BASE + (2 * lanes if lanes > 1 else 0)
    for known, length in plan.counter_names:
        if known == name:
            return start
        start += length
    return None


def write(ops: Ops, plan: Plan, counters: Counters) -> Array:
    """The vector int32 that holds counters."""
    ends = counters.ends
    size = total(ops, ends.sizes)
    # Several lanes have cursors of their own behind, and there is none of the whole.
    cursor = ends.cursors[0] if plan.ring.lanes == 1 else ops.full_like(size, 0)
    pieces = [ops.stack([cursor, size, counters.rejected, counters.stale, counters.peak, counters.invalid])]
    if plan.ring.lanes > 1:
        pieces += [ends.cursors, ends.sizes]
    pieces += [counters.more[name] for name, _ in plan.counter_names]
    return pieces[0] if len(pieces) == 1 else ops.concat(pieces, 0)


def with_invalid(ops: Ops, vector: Array, outside: Array) -> BackendArray:
    """A vector with the items counted that bool [B] marks."""
    counted = saturating_add(ops, vector[INVALID : INVALID + 1], ops.count(outside))
    return ops.concat([vector[:INVALID], counted, vector[INVALID + 1 :]], 0)


def length(plan: Plan) -> int:
    """How many numbers a state of this spec has."""
    lanes = plan.ring.lanes
    return BASE + (2 * lanes if lanes > 1 else 0) + sum(count for _, count in plan.counter_names)
