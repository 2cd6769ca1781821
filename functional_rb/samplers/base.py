"""What most samplers share."""

from __future__ import annotations

from collections.abc import Sequence

from functional_rb.core.boundaries import EpisodeBoundaries
from functional_rb.core.draft import Draft
from functional_rb.core.plan import AuxiliaryArray, Plan
from functional_rb.core.soundness import Found
from functional_rb.core.strategy import Carried, Sampler
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures.duplicates import Batch
from functional_rb.structures.ring import Removal, Write

DRAW_LIMIT = 2**31
"""Draws are uniform int32 in [0, 2^31)."""
LEAST_CHANCE = 2.0**-126
"""The least probability of a sample: XLA makes zeros of subnormal floats, and a drawn item's is positive."""


class SamplerBase:
    """What most samplers share: nothing remembered, rings written round and round, items one by one."""

    @property
    def fused(self) -> bool:
        """Whether the fused kernels implement the sampler: by default they do not."""
        return False

    @property
    def remembers(self) -> bool:
        """Whether drawing changes the state: by default it does not."""
        return False

    @property
    def takes_out(self) -> bool:
        """Whether drawing takes items out: by default it does not."""
        return False

    @property
    def has_priorities(self) -> bool:
        """Whether items have priorities: by default they have none."""
        return False

    @property
    def boundaries(self) -> EpisodeBoundaries | None:
        """The episode boundaries that the sampler needs: by default none."""
        return None

    @property
    def why_nothing(self) -> str:
        """Why nothing can be drawn: by default, as nothing is stored."""
        return "can be drawn; add items first"

    def check(self, plan: Plan) -> None:
        """Refuse a plan that does not fit the sampler: by default any fits."""

    def check_batch(self, plan: Plan, batch: int) -> None:
        """Refuse a batch size that does not fit the sampler: by default any fits."""

    def resolve(self, plan: Plan) -> Sampler:
        """There is nothing to find in the plan."""
        resolved: Sampler = self  # type: ignore[assignment]  # those that inherit have the rest of the protocol
        return resolved

    def tree_rows(self, capacity: int) -> int:
        """There is no sum tree."""
        return 0

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        """It keeps no arrays."""
        return {}

    def counters(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        """It keeps no counters."""
        return ()

    def begin(self, ops: Ops, draft: Draft) -> None:
        """An empty buffer holds zeros."""

    def cleared(self, ops: Ops, draft: Draft) -> None:
        """Nothing is in the tree. What is kept of single items means nothing until they come."""
        if draft.tree is not None:
            draft.tree = ops.full_like(draft.tree, 0)

    def problem(self, found: Found) -> str | None:
        """There is nothing to check."""
        return None

    def carried(self, ops: Ops, draft: Draft, slots: Array) -> Carried:
        """Nothing is known of single items."""
        return Carried()

    def rebuilt(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], carried: Carried) -> None:
        """They are new ones."""
        self.added(ops, draft, write, leaves, None)

    def leading_shape(self, batch: int) -> tuple[int, ...]:
        """Items one by one."""
        return (batch,)

    def added(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], priorities: Array | None) -> None:
        """Note new items: by default nothing is noted."""

    def removed(self, ops: Ops, draft: Draft, removal: Removal) -> None:
        """Forget items that are removed: by default nothing was noted of them."""

    def updated(self, ops: Ops, draft: Draft, batch: Batch, priorities: Array) -> None:
        """Note new priorities: by default there are none."""

    def priorities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        """Refuse to read priorities: this sampler has none, which callers check first."""
        raise TypeError(f"{type(self).__name__} has no priorities")

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        """Whether n items can be drawn: by default, if n are stored."""
        return draft.size(ops) >= n


def check_bools(sampler: object, *names: str) -> None:
    """Refuse fields that are no bools: a batch size in the wrong place, say, would count as true."""
    for name in names:
        value = getattr(sampler, name)
        if not isinstance(value, bool):
            raise ValueError(f"{type(sampler).__name__}: expected {name} as a bool, got {value!r}")


def need_one_lane(plan: Plan, who: str, remedy: str) -> None:
    """Refuse buffers of several lanes."""
    if plan.ring.lanes > 1:
        raise ValueError(f"{who}: items of several lanes have no single order, got lanes={plan.lanes}; {remedy}")
