"""What the buffer asks of a writer, and what most writers answer."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING

from functional_rb.base import nest
from functional_rb.core import handles, soundness
from functional_rb.core.plan import AuxiliaryArray
from functional_rb.ops.protocol import Array, Ops

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found
    from functional_rb.structures.duplicates import Batch
    from functional_rb.structures.ring import Write


class WriterBase(abc.ABC):
    """A way of choosing slots for new items: a frozen dataclass whose methods are pure functions over `ops`.

    Users construct writers and leave the methods to the buffer. A writer has `plan_write` of its own; the other methods
    do by default what fits one that writes around a ring for each lane and remembers nothing else.
    """

    @property
    def in_order(self) -> bool:
        """Whether items lie in the order of their adding, around a ring for each lane."""
        return True

    @property
    def overwrites(self) -> bool:
        """Whether a new item may take the place of an old one."""
        return True

    @property
    def words(self) -> int:
        """Random 31-bit words that each row of a batch takes; 0 for a writer that needs no key."""
        return 0

    @property
    def reads(self) -> tuple[nest.Key, ...]:
        """The leaves that it looks at to choose slots, a name each or the names on the way to it.

        Of a sharded buffer that is dealt by its slots, a writer is shown these alone, and has to find them by name.
        """
        return ()

    def check(self, plan: Plan) -> None:
        """Refuse a plan that does not fit the writer."""

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        """The arrays that it keeps, by name."""
        return {}

    def counters(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        """The numbers that it keeps: names, and how many int32 each."""
        return ()

    def begin(self, ops: Ops, draft: Draft) -> None:
        """Prepare what an empty buffer holds, beyond zeros."""

    @abc.abstractmethod
    def plan_write(
        self, ops: Ops, draft: Draft, leaves: Sequence[Array], batch: int, mask: Array | None, draws: Array | None
    ) -> Write:
        """Choose where the rows of a batch go, and take note of it."""

    def rewritten(self, ops: Ops, draft: Draft, batch: Batch, leaves: Sequence[Array], replaced: Array) -> None:
        """Take note of stored items, named by a batch, of which leaves [B, *shape] have been exchanged."""

    def cleared(self, ops: Ops, draft: Draft) -> None:
        """Forget all items, in new arrays, but not which handles there were."""

    def problem(self, contents: Found) -> str | None:
        """Why what it keeps, read from a file, cannot be of such a buffer; or None."""
        return None


class ChoosingWriter(WriterBase):
    """What writers share that choose slots: each slot's current handle is kept."""

    @property
    def in_order(self) -> bool:
        return False

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        return {handles.CURRENT: AuxiliaryArray((plan.capacity,), fill=-1)}

    def cleared(self, ops: Ops, draft: Draft) -> None:
        # The handles go on.
        draft.auxiliary[handles.CURRENT] = handles.vacated(ops, draft.auxiliary[handles.CURRENT])

    def problem(self, contents: Found) -> str | None:
        # Each slot has a handle of its own, or had.
        return soundness.problem_of_handles(contents)

    def renew(self, ops: Ops, draft: Draft, slots: Array, live: Array) -> None:
        """Give the items that go to live slots new handles; equal slots are equally live."""
        current = draft.auxiliary[handles.CURRENT]
        new = handles.renewed(ops, draft.plan.capacity, current, slots)
        draft.auxiliary[handles.CURRENT] = ops.set_at(current, slots, ops.where(live, new, ops.take(current, slots)))
