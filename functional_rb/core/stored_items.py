"""Reading and writing items, whatever of them is stored and in which form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import frame_ring, row_layout

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft


def read(ops: Ops, draft: Draft, slots: Array, wanted: Sequence[int]) -> dict[int, Array]:
    """The leaves at some positions, [n, *shape], of the items in slots int32 [n]."""
    plan = draft.plan
    found = {}
    if plan.frames is not None and not plan.frames.leaves.isdisjoint(wanted):
        found = frame_ring.read(ops, plan.frames, draft.auxiliary, slots, wanted)
    stored = tuple(k for k, position in enumerate(plan.stored) if position in set(wanted))
    if not stored:
        return found
    leaves = row_layout.read_part(ops, plan.layout, draft.rows, draft.wide, slots, stored)
    return found | {plan.stored[k]: leaf for k, leaf in zip(stored, leaves, strict=True)}


def store(
    ops: Ops, draft: Draft, slots: Array, source: Array | None, live: Array | None, leaves: Sequence[Array]
) -> None:
    """Write rows of a batch, leaves [B, *shape] by position, to slots, those that are stored as they are."""
    plan = draft.plan
    chosen = leaves if len(plan.stored) == len(leaves) else [leaves[position] for position in plan.stored]
    draft.rows, draft.wide = row_layout.store(ops, plan.layout, draft.rows, draft.wide, slots, source, live, chosen)
