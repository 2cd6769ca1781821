"""Slices that begin at steps drawn by priority."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from functional_rb.core.episodes import STEP_IN_EPISODE
from functional_rb.core.plan import AuxiliaryArray
from functional_rb.core.strategy import Carried, Selection
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers.importance import Priorities, raise_peak
from functional_rb.samplers.prioritized import draw_weighed
from functional_rb.samplers.trajectories import Trajectories
from functional_rb.structures import episode_windows, sum_tree
from functional_rb.structures.duplicates import Batch
from functional_rb.structures.episode_windows import Lanes

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found
    from functional_rb.structures.ring import Removal, Write

# float32 [capacity], the priority of each step to the power alpha, also of those where no slice begins.
VALUE = "value"


@dataclasses.dataclass(frozen=True)
class PrioritizedSlices(Priorities, Trajectories):
    """Slices whose first step is drawn by priority, among the steps where a slice can begin: [B, length, *shape].

    Weights and probabilities are of slices, [B], as `Prioritized` has them for items; priorities belong to the first
    step: `rb.update(state, sample.indices[:, 0], priorities)`. A step where no slice begins keeps its priority until
    one does. See `Slices` for the other fields and for the masks of steps.

    Attributes:
        length, end_keys, trajectory_key, strict_length, span, period, batch, flat: as in `Slices`; slices may reach out
            to the right only, `span=(False, True)`.
        alpha, beta, new_priority: as in `Prioritized`; "live" is the largest among steps where a slice can begin.

    Raises:
        ValueError: as `Slices` and `Prioritized` do, and for a span to the left.

    Example:
        >>> PrioritizedSlices(length=16, alpha=0.7).alpha
        0.7
    """

    def __post_init__(self) -> None:
        Trajectories.__post_init__(self)
        Priorities.__post_init__(self)
        if self.rule.left:
            raise ValueError(
                "PrioritizedSlices: priorities belong to the first step of a slice, so none may begin before the "
                "trajectory does; give span=(False, True)"
            )

    @property
    def why_nothing(self) -> str:
        return f"begins a slice of {self.length} steps with a positive priority; add more, or update some"

    @property
    def single_law(self) -> bool:
        # Slices are drawn with replacement.
        return True

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        # Whether there is a window of positive priority: it may come again and again.
        return sum_tree.total(draft.known_tree) > 0

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        return {VALUE: AuxiliaryArray((plan.capacity,), "float32")}

    def problem(self, contents: Found) -> str | None:
        # The priorities of steps go into the tree as windows come to begin with them.
        values = contents.auxiliary[VALUE]
        wrong = np.flatnonzero(~((values >= 0) & (values < np.inf)))
        return super().problem(contents) or (f"{VALUE}: slot {wrong[0]} has {values[wrong[0]]}" if wrong.size else None)

    def draw_shape(self, plan: Plan, batch: int) -> tuple[int, int]:
        # Fresh bits at every level of the tree; a slot has but one window.
        return self.slices_of(batch), len(sum_tree.geometry(plan.capacity).levels) + 2

    def added(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], priorities: Array | None) -> None:
        # Keep the new priorities, and show the tree those of steps where a slice can begin now.
        self._put(ops, draft, write, self.initial_values(ops, draft, write, priorities))

    def rebuilt(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], carried: Carried) -> None:
        self._put(ops, draft, write, self.carried_values(ops, draft, write, carried))

    def _put(self, ops: Ops, draft: Draft, write: Write, values: Array) -> None:
        if write.live is not None:
            values = ops.where(write.live, values, ops.take(draft.auxiliary[VALUE], write.slots))
        draft.auxiliary[VALUE] = ops.set_at(draft.auxiliary[VALUE], write.slots, values)
        entries = self.changed(ops, draft, write)
        self._show(ops, draft, entries.slots, entries.numbers)
        # Read back, as in `Prioritized.added`.
        raise_peak(ops, draft, ops.take(draft.auxiliary[VALUE], write.slots), write.live)

    def values(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        # All steps have one, also those where no slice begins.
        return ops.take(draft.auxiliary[VALUE], slots)

    def removed(self, ops: Ops, draft: Draft, removal: Removal) -> None:
        entries = self.left(ops, draft, removal)
        self._show(ops, draft, entries.slots, entries.numbers)

    def updated(self, ops: Ops, draft: Draft, batch: Batch, priorities: Array) -> None:
        values, replaced = self.new_values(ops, draft, batch, priorities)
        values = ops.where(replaced, values, ops.take(draft.auxiliary[VALUE], batch.slots))
        draft.auxiliary[VALUE] = ops.set_at(draft.auxiliary[VALUE], batch.slots, values)
        lanes = Lanes(draft.plan.ring, draft.counters.ends)
        self._show(
            ops,
            draft,
            batch.slots,
            episode_windows.weights_at(ops, self.rule, lanes, draft.auxiliary[STEP_IN_EPISODE], batch.slots),
        )

    def _show(self, ops: Ops, draft: Draft, slots: Array, numbers: Array) -> None:
        values = ops.take(draft.auxiliary[VALUE], slots)
        values = ops.where(numbers > 0, values, ops.full_like(values, 0))
        draft.tree = sum_tree.set_leaves(ops, draft.known_tree, draft.plan.capacity, slots, values)

    def draw(self, ops: Ops, draft: Draft, draws: Array, beta: Array, batch: int) -> tuple[Array, Selection]:
        starts, *weighed = draw_weighed(ops, draft.known_tree, draft.plan.capacity, draws[:, :-2], beta)
        return self.cut(ops, draft, starts, draws[:, -2:], *weighed)
