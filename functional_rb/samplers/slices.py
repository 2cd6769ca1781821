"""Slices of trajectories: windows of consecutive steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from functional_rb.core.strategy import Selection
from functional_rb.ops import scalars
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers.importance import shares
from functional_rb.samplers.trajectories import Trajectories
from functional_rb.structures import sum_tree
from functional_rb.structures.episode_windows import Entries

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.structures.ring import Removal, Write


@dataclasses.dataclass(frozen=True)
class Slices(Trajectories):
    """Slices of `length` consecutive steps of one trajectory in one lane, with replacement: leaves [B, length, *shape].

    A slice never crosses the end of an episode nor the write cursor. It is drawn from an index kept as items are added,
    in O(log n). `sample.mask` marks real steps (a short slice is padded behind them), `slice_start` the first of each
    slice, `is_first` and `is_last` the ends of trajectories, `truncated` the last step of a slice whose trajectory goes
    on. All weights are 1; the
    probability of a step is that of the window, or of the trajectory.

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

    Raises:
        ValueError: for settings out of range, span with strict_length, a leaf that the item lacks, a length that does
            not fit into a lane (with `strict_length`), or a writer that does not keep steps in order.

    Example:
        >>> Slices(length=16).weighting
        'trajectory'
    """

    weighting: Literal["trajectory", "window"] = "trajectory"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighting not in ("trajectory", "window"):
            raise ValueError(f"Slices: expected weighting 'trajectory' or 'window', got {self.weighting!r}")

    @property
    def by_trajectory(self) -> bool:
        return self.weighting == "trajectory"

    @property
    def single_law(self) -> bool:
        # Slices are drawn with replacement.
        return True

    def least_chance(self, ops: Ops, draft: Draft) -> Array:
        # That of each window, or of each trajectory that has one.
        total = sum_tree.total(draft.known_tree)
        return scalars.reciprocal(ops, ops.maximum(total, ops.full_like(total, 1)))

    def tree_rows(self, capacity: int) -> int:
        return sum_tree.geometry(capacity).rows

    def draw_shape(self, plan: Plan, batch: int) -> tuple[int, int]:
        # Fresh bits at every level of the tree, and two words to choose among the windows found there.
        return self.slices_of(batch), len(sum_tree.geometry(plan.capacity).levels) + 2

    def added(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], priorities: Array | None) -> None:
        # Count the windows anew wherever the new steps may have changed them.
        self._count(ops, draft, self.changed(ops, draft, write))

    def removed(self, ops: Ops, draft: Draft, removal: Removal) -> None:
        self._count(ops, draft, self.left(ops, draft, removal))

    def _count(self, ops: Ops, draft: Draft, entries: Entries) -> None:
        values = ops.cast(entries.numbers, "float32")
        draft.tree = sum_tree.set_leaves(ops, draft.known_tree, draft.plan.capacity, entries.slots, values)

    def draw(self, ops: Ops, draft: Draft, draws: Array, beta: Array, batch: int) -> tuple[Array, Selection]:
        # Descend the tree, then choose among the windows found.
        tree = draft.known_tree
        starts = sum_tree.descend(ops, tree, draft.plan.capacity, draws[:, :-2])
        total = sum_tree.total(tree)
        one = ops.full_like(total, 1)
        return self.cut(ops, draft, starts, draws[:, -2:], one, scalars.reciprocal(ops, ops.maximum(total, one)))

    def probabilities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        # The chance of a window that begins there, or that of its trajectory and then of the window.
        if not self.by_trajectory:
            return shares(ops, draft, slots)
        marked, share = self.among_trajectories(ops, draft, slots)
        return shares(ops, draft, marked) * share

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        # Whether there is a window: it may come again and again.
        return sum_tree.total(draft.known_tree) > 0
