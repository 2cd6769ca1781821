"""What samplers share that treat all items alike, with or without a limit to how often each may be drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from functional_rb.core import soundness
from functional_rb.core.plan import AuxiliaryArray
from functional_rb.core.strategy import Carried
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers import draw_limits
from functional_rb.samplers.base import SamplerBase
from functional_rb.samplers.importance import clear_leaves, shares, write_leaves
from functional_rb.structures import sum_tree

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found
    from functional_rb.structures.ring import Removal, Write


@dataclasses.dataclass(frozen=True)
class Counted(SamplerBase):
    """With a limit there is a tree, whose leaves are 1 for items that may still be drawn."""

    max_times_sampled: int | None = None

    def __post_init__(self) -> None:
        """Check what can be known before any array exists."""
        draw_limits.check(self, self.max_times_sampled)

    @property
    def remembers(self) -> bool:
        """With a limit: how often each was drawn."""
        return self.max_times_sampled is not None

    @property
    def why_nothing(self) -> str:
        """The limit."""
        return f"may be drawn again (max_times_sampled={self.max_times_sampled}); add new ones"

    def tree_rows(self, capacity: int) -> int:
        """With a limit."""
        return 0 if self.max_times_sampled is None else sum_tree.geometry(capacity).rows

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        """With a limit, how often each was drawn."""
        return draw_limits.auxiliary(plan, self.max_times_sampled)

    def added(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], priorities: Array | None) -> None:
        """New items may be drawn."""
        if self.max_times_sampled is not None:
            ones = ops.cast(ops.full_like(write.slots, 1), "float32")
            write_leaves(ops, draft, write.slots, ones, write.live)
            draw_limits.renew(ops, draft, write, self.max_times_sampled)

    def carried(self, ops: Ops, draft: Draft, slots: Array) -> Carried:
        """With a limit, how often they were drawn."""
        return Carried(times=draw_limits.known(ops, draft, slots, self.max_times_sampled)[0])

    def rebuilt(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], carried: Carried) -> None:
        """Where there is a limit, they come with how often they were drawn."""
        self.added(ops, draft, write, leaves, None)
        draw_limits.carry(ops, draft, write, carried.times, self.max_times_sampled)

    def removed(self, ops: Ops, draft: Draft, removal: Removal) -> None:
        """What is gone may not be drawn."""
        if self.max_times_sampled is not None:
            clear_leaves(ops, draft, removal)

    def probabilities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        """All alike, but for those that may not be drawn any more."""
        if self.max_times_sampled is not None:
            return shares(ops, draft, slots)
        size = ops.cast(ops.maximum(draft.size(ops), ops.full_like(slots, 1)), "float32")
        return 1.0 / size

    def problem(self, found: Found) -> str | None:
        """What is not stored cannot be drawn."""
        return soundness.problem_of_weights(found)

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        """Whether so many are stored, and some may be drawn."""
        enough = draft.size(ops) >= n
        return enough if self.max_times_sampled is None else enough & (sum_tree.total(draft.known_tree) > 0)
