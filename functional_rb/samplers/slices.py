"""Slices of trajectories: windows of consecutive steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from functional_rb.core.strategy import Carried, Selection
from functional_rb.ops import scalars
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers import fresh
from functional_rb.samplers.base import check_bools
from functional_rb.samplers.importance import shares
from functional_rb.samplers.trajectories import Trajectories
from functional_rb.structures import sum_tree
from functional_rb.structures.episode_windows import Entries

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import AuxiliaryArray, Plan
    from functional_rb.core.soundness import Found
    from functional_rb.structures.ring import Removal, Write


@dataclasses.dataclass(frozen=True)
class Slices(Trajectories):
    """Slices of `length` consecutive steps of one trajectory in one lane, with replacement: leaves [B, length, *shape].

    A slice never crosses the end of an episode nor the write cursor. It is drawn from an index kept as items are added,
    in O(log n). `sample.mask` marks real steps (a short slice is padded behind them), `slice_start` the first of each
    slice, `is_first` and `is_last` the ends of trajectories, `truncated` the last step of a slice whose trajectory goes
    on. All weights are 1; the probability of a step is that of the window, or of the trajectory.

    With `fresh_first=True` new steps come once before anything is replayed (the online queue of DreamerV3, Hafner et
    al., 2025): each trajectory is cut into windows of `length` steps, one behind the other, and a batch begins with as
    many of these as are complete and were not given yet, the oldest first. Their probability is 1. The rest is drawn as
    ever. What is overwritten before its turn drops out, and so does what is left at the end of a trajectory.

    Attributes:
        length: steps in a slice.
        end_keys: paths of bool leaves, one value an item, that mark a trajectory's last step; any of them does. By
            default what the item has of "next/done", "done", or "terminated" and "truncated". `()` for none: without a
            trajectory key either, each lane is one trajectory that never ends.
        trajectory_key: path of an integer leaf that is another in every trajectory than in the one before.
        strict_length: whether trajectories with fewer stored steps than `length` are left out; else they come whole.
        span: whether slices may reach out before the first and past the last stored step of a trajectory, so that
            they are shorter: a bool, or by how many steps at most, or a pair of such (left, right). Needs
            `strict_length=False`.
        period: slices begin at every so many-th step of a trajectory, counted from its true start.
        batch: whether a batch size counts "slices", or "steps" (then it is a multiple of `length`).
        flat: whether the steps come in one row, leaves [B * length, *shape].
        weighting: whether each "trajectory" that has a window is equally likely, and then each of its windows; or each
            "window".
        fresh_first: whether windows of new steps come first, once each; the sampler then remembers which were given.

    Raises:
        ValueError: for settings out of range, span with strict_length, a leaf that the item lacks, a length that does
            not fit into a lane (with `strict_length`), a writer that does not keep steps in order, or, with
            `fresh_first`, a period that does not divide the length.

    Example:
        >>> Slices(length=16).weighting
        'trajectory'
    """

    weighting: Literal["trajectory", "window"] = "trajectory"
    fresh_first: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighting not in ("trajectory", "window"):
            raise ValueError(f"Slices: expected weighting 'trajectory' or 'window', got {self.weighting!r}")
        check_bools(self, "fresh_first")
        if self.fresh_first and self.length % self.period:
            raise ValueError(
                f"Slices: fresh_first cuts trajectories at every {self.length} steps, which must be multiples of the "
                f"period {self.period}; give a period that divides the length"
            )

    @property
    def remembers(self) -> bool:
        return self.fresh_first

    @property
    def heeds_wanted(self) -> bool:
        # No more are given than count.
        return True

    @property
    def by_trajectory(self) -> bool:
        return self.weighting == "trajectory"

    @property
    def single_law(self) -> bool:
        # Slices are drawn with replacement, but those that come first.
        return not self.fresh_first

    def least_chance(self, ops: Ops, draft: Draft) -> Array:
        # That of each window, or of each trajectory that has one.
        total = sum_tree.total(draft.known_tree)
        return scalars.reciprocal(ops, ops.maximum(total, ops.full_like(total, 1)))

    # The sampler that cuts the windows that come first.
    @property
    def _pieces(self) -> Slices:
        ends = self.end_keys, self.trajectory_key
        return Slices(self.length, *ends, period=self.length, flat=self.flat, weighting="window")

    def check(self, plan: Plan) -> None:
        super().check(plan)
        if self.fresh_first:
            fresh.check(plan, self.length, type(self).__name__)

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        return fresh.auxiliary(plan) if self.fresh_first else {}

    def counters(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        return fresh.counters(plan) if self.fresh_first else ()

    def tree_rows(self, capacity: int) -> int:
        return sum_tree.geometry(capacity).rows

    def draw_shape(self, plan: Plan, batch: int) -> tuple[int, int]:
        # Fresh bits at every level of the tree, and two words to choose among the windows found there.
        return self.slices_of(batch), len(sum_tree.geometry(plan.capacity).levels) + 2

    def added(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], priorities: Array | None) -> None:
        # Count the windows anew wherever the new steps may have changed them.
        self._count(ops, draft, self.changed(ops, draft, write))
        if self.fresh_first:
            fresh.note(ops, draft, write, self.length)

    def removed(self, ops: Ops, draft: Draft, removal: Removal) -> None:
        self._count(ops, draft, self.left(ops, draft, removal))

    def cleared(self, ops: Ops, draft: Draft) -> None:
        super().cleared(ops, draft)
        if self.fresh_first:
            fresh.forget(draft)

    def carried(self, ops: Ops, draft: Draft, slots: Array) -> Carried:
        return Carried(given=fresh.given(ops, draft, slots, self.length) if self.fresh_first else None)

    def rebuilt(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], carried: Carried) -> None:
        # With another length other steps complete windows. Up to what the old sampler gave these count as given.
        self.added(ops, draft, write, leaves, None)
        if self.fresh_first:
            fresh.carry(ops, draft, write, carried.given, self.length)

    def problem(self, contents: Found) -> str | None:
        return super().problem(contents) or (fresh.problem(contents, self.length) if self.fresh_first else None)

    def _count(self, ops: Ops, draft: Draft, entries: Entries) -> None:
        values = ops.cast(entries.numbers, "float32")
        draft.tree = sum_tree.set_leaves(ops, draft.known_tree, draft.plan.capacity, entries.slots, values)

    def draw(self, ops: Ops, draft: Draft, draws: Array, beta: Array, batch: int) -> tuple[Array, Selection]:
        # Descend the tree, then choose among the windows found; those that come first take the place of the others.
        tree = draft.known_tree
        starts = sum_tree.descend(ops, tree, draft.plan.capacity, draws[:, :-2])
        total = sum_tree.total(tree)
        one = ops.full_like(total, 1)
        slots, drawn = self.cut(
            ops, draft, starts, draws[:, -2:], one, scalars.reciprocal(ops, ops.maximum(total, one))
        )
        if not self.fresh_first:
            return slots, drawn
        starts, live = fresh.take(ops, draft, self.length, self.slices_of(batch))
        fresh_slots, pieces = self._pieces.cut(ops, draft, starts, draws[:, -2:], one, one, live)
        return fresh.merged(ops, live, (fresh_slots, pieces), (slots, drawn), self.length)

    def probabilities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        # The chance of a window that begins there, or that of its trajectory and then of the window; 1 or 0 where a
        # fresh one comes.
        usual = self._probabilities_of_draws(ops, draft, slots)
        if not self.fresh_first:
            return usual
        start, live = fresh.peek(ops, draft, self.length)
        return ops.where(live, ops.cast(slots == start, "float32"), usual)

    def _probabilities_of_draws(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        if not self.by_trajectory:
            return shares(ops, draft, slots)
        marked, share = self.among_trajectories(ops, draft, slots)
        return shares(ops, draft, marked) * share

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        # Whether there is a window: it may come again and again.
        return sum_tree.total(draft.known_tree) > 0
