"""What the buffer asks of a writer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from functional_rb.core import handles, soundness
from functional_rb.core.plan import AuxiliaryArray
from functional_rb.ops.protocol import Array, Ops

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found
    from functional_rb.structures.duplicates import Batch


class WriterBase:
    """What most writers share: a ring for each lane, and nothing remembered but where they are."""

    @property
    def fused(self) -> bool:
        """The fused kernels do not know it."""
        return False

    @property
    def in_order(self) -> bool:
        """Items lie in the order of their adding."""
        return True

    @property
    def overwrites(self) -> bool:
        """New items take the place of the oldest."""
        return True

    @property
    def words(self) -> int:
        """Nothing is left to chance."""
        return 0

    def check(self, plan: Plan) -> None:
        """Refuse a plan that does not fit the writer: by default any fits."""

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        """It keeps no arrays."""
        return {}

    def counters(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        """It keeps no counters."""
        return ()

    def begin(self, ops: Ops, draft: Draft) -> None:
        """An empty buffer holds zeros."""

    def rewritten(self, ops: Ops, draft: Draft, batch: Batch, leaves: Sequence[Array], replaced: Array) -> None:
        """Where items lie does not depend on what they hold."""

    def cleared(self, ops: Ops, draft: Draft) -> None:
        """There is nothing to forget but the items."""

    def problem(self, found: Found) -> str | None:
        """There is nothing to check."""
        return None


class ChoosingWriter(WriterBase):
    """What writers share that choose slots: each slot's current handle is kept."""

    @property
    def in_order(self) -> bool:
        """Items lie wherever the writer has chosen."""
        return False

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        """The auxiliary arrays of writers that choose slots: the handle of the item in each."""
        return {handles.CURRENT: AuxiliaryArray((plan.capacity,), fill=-1)}

    def cleared(self, ops: Ops, draft: Draft) -> None:
        """The handles go on."""
        draft.auxiliary[handles.CURRENT] = handles.vacated(ops, draft.auxiliary[handles.CURRENT])

    def problem(self, found: Found) -> str | None:
        """Each slot has a handle of its own, or had."""
        return soundness.problem_of_handles(found)

    def renew(self, ops: Ops, draft: Draft, slots: Array, live: Array) -> None:
        """Give the items that go to live slots new handles; equal slots are equally live."""
        current = draft.auxiliary[handles.CURRENT]
        new = handles.renewed(ops, draft.plan.capacity, current, slots)
        draft.auxiliary[handles.CURRENT] = ops.set_at(current, slots, ops.where(live, new, ops.take(current, slots)))
