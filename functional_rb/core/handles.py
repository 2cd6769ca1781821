"""Which slot a handle names, for writers that fill rings and for those that choose slots.

In a ring the handle follows from the slot and the cursor. Where a writer chooses slots, each slot's current handle is
kept: it grows by the capacity whenever the slot is written again, so that `slot = handle % capacity` here too. Where
item h was taken out there is `-2 - h`, from which the next one goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from functional_rb.base.arrays import BackendArray
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import ring
from functional_rb.structures.ring import RingState

if TYPE_CHECKING:
    from functional_rb.core.plan import Plan

# The array int32 [capacity] of a writer that chooses slots; -1 where nothing was ever written, -2 - h where h was.
CURRENT = "handle"


# Stands for integers that no int32 is: it names nothing either, as handles lie below `ring.modulus`.
NO_HANDLE = ring.INT32_MAX


def locate(ops: Ops, plan: Plan, ends: RingState, auxiliary: Mapping[str, Array], wanted: Array) -> tuple[Array, Array]:
    """The slot of each handle int32 [B], in bounds whatever it is, and whether its item is still there."""
    if plan.in_order:
        return ring.locate(ops, plan.ring, ends, wanted)
    return locate_current(ops, ends, auxiliary[CURRENT], wanted)


@replaceable
def locate_current(ops: Ops, ends: RingState, current: Array, wanted: Array) -> tuple[BackendArray, BackendArray]:
    """What `locate` returns where the current handles are kept; the rings have no part in it."""
    slots = ops.maximum(wanted, ops.full_like(wanted, 0)) % current.shape[0]
    return slots, (wanted >= 0) & (ops.take(current, slots) == wanted)


def of_slots(ops: Ops, plan: Plan, ends: RingState, auxiliary: Mapping[str, Array], slots: Array) -> Array:
    """The handles of the items that lie in slots int32 [B] now."""
    if plan.in_order:
        return ring.handle_of_slot(ops, plan.ring, ends, slots)
    return ops.take(auxiliary[CURRENT], slots)


def stored(ops: Ops, plan: Plan, ends: RingState, auxiliary: Mapping[str, Array]) -> Array:
    """In which slots an item lies, bool [capacity]."""
    in_slots: Array = ring.stored(ops, plan.ring, ends) if plan.in_order else auxiliary[CURRENT] >= 0
    return in_slots


def renewed(ops: Ops, capacity: int, current: Array, slots: Array) -> Array:
    """The handles of new items in slots int32 [B], by the current ones."""
    old = ops.take(current, slots)
    # At least 0, for slots that were never written: their result is not taken, but has to be computed without overflow.
    last = ops.maximum(ops.where(old < -1, -2 - old, old), ops.full_like(old, 0))
    following = ring.advance(ops, last, capacity, ring.modulus(capacity))
    # The first item of a slot has the slot itself as its handle.
    return ops.where(old == -1, slots, following)


def vacated(ops: Ops, current: Array) -> Array:
    """The current handles once all items are taken out."""
    # The last handle of each slot stays known, as the next item must not get one that somebody may still hold.
    return ops.where(current < 0, current, -2 - current)
