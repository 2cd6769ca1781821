"""Each trajectory, or each window, at most once an epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from functional_rb.core import soundness
from functional_rb.core.episodes import STEP_IN_EPISODE
from functional_rb.core.plan import AuxiliaryArray
from functional_rb.core.strategy import Selection
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers.base import check_bools
from functional_rb.samplers.epochs import (
    EPOCHS_DONE,
    REMAINING,
    EpochKeeper,
    abandon,
    problem_of_sparse_set,
    sparse_set_arrays,
)
from functional_rb.samplers.trajectories import Trajectories
from functional_rb.samplers.without_replacement import once
from functional_rb.structures import sparse_set as sparse_sets
from functional_rb.structures.duplicates import single
from functional_rb.structures.episode_windows import Entries

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found
    from functional_rb.structures.ring import Removal, Write

# Counter int32 [1]: how many trajectories, or windows, there are.
COUNT = "count"


class Changes(NamedTuple):
    """How the index changes where a batch was written: distinct slots int32 [lanes * m].

    Attributes:
        slots: the slots.
        leaving: bool, which are no starts any more, or are those of other steps now.
        coming: bool, which are starts now, of steps that were none.
    """

    slots: Array
    leaving: Array
    coming: Array


class Moves(NamedTuple):
    """Trajectories that keep their places in the sparse set as their last starts move to new slots.

    Attributes:
        old: int32 [lanes], the slots of the last starts.
        new: int32 [lanes], their new slots. Before, there may have been that of a trajectory overwritten now.
        marked: bool [lanes], where there is such a trajectory.
        others: the changes that are no moves.
    """

    old: Array
    new: Array
    marked: Array
    others: Changes


@dataclasses.dataclass(frozen=True)
class SlicesWithoutReplacement(Trajectories):
    """One slice of each trajectory an epoch (or each window once an epoch), in random order: [B, length, *shape].

    Epochs are those of `WithoutReplacement`: new trajectories and windows join the next one, a short last batch is
    masked, and `rb.counts` tells how many are done. A trajectory that grows keeps its place in the epoch,
    as long as the step with which its last window began is stored. See `Slices` for the other fields and for the
    masks of steps.

    Attributes:
        length, end_keys, trajectory_key, strict_length, span, period, batch, flat: as in `Slices`; windows (not
            trajectories) may reach out to the right only, `span=(False, True)`.
        weighting: whether each "trajectory" comes once an epoch, with one of its windows at random, or each "window".
        drop_last: give no short batches: an epoch ends when less than a batch is left.

    Raises:
        ValueError: as `Slices` does.

    Example:
        >>> SlicesWithoutReplacement(length=16).drop_last
        False
    """

    weighting: Literal["trajectory", "window"] = "trajectory"
    drop_last: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bools(self, "drop_last")
        kind = type(self).__name__
        if self.weighting not in ("trajectory", "window"):
            raise ValueError(f"{kind}: expected weighting 'trajectory' or 'window', got {self.weighting!r}")
        if self.rule.left and not self.by_trajectory:
            raise ValueError(
                f"{kind}: windows that reach out before a trajectory all begin with the same step, which comes once "
                f"an epoch; give span=(False, True), or weighting='trajectory'"
            )

    @property
    def remembers(self) -> bool:
        return True

    @property
    def by_trajectory(self) -> bool:
        return self.weighting == "trajectory"

    @property
    def heeds_wanted(self) -> bool:
        # What does not count is not drawn.
        return True

    @property
    def why_nothing(self) -> str:
        extra = "; drop_last drops batches that are not full" if self.drop_last else ""
        return super().why_nothing + extra

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        return sparse_set_arrays(plan)

    def counters(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        return (EPOCHS_DONE, 1), (REMAINING, 1), (COUNT, 1)

    def draw_shape(self, plan: Plan, batch: int) -> tuple[int, int]:
        # Two words for the slot, and two to choose among the windows found there.
        return self.slices_of(batch), 4

    def added(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], priorities: Array | None) -> None:
        # Take out of the sparse set what is gone, and put in what has come, wherever the new steps changed that.
        keeper = EpochKeeper.of(draft, draft.counters.more[COUNT][0])
        entries = self.changed(ops, draft, write)
        slots = entries.slots
        # In slots that have been written lie other steps than those that the sparse set knows; and a slot may be named
        # twice.
        old = sparse_sets.contains(ops, keeper.sparse_set, keeper.members, slots)
        new, fresh = entries.numbers > 0, entries.back <= ops.take(write.written, entries.lane)
        first = single(ops, slots)
        changes = Changes(slots, first & old & (fresh | ~new), first & new & (fresh | ~old))
        moves = self._moves(ops, draft, changes, entries, fresh) if self.by_trajectory else None
        changes = changes if moves is None else moves.others
        sparse_set, remaining, count = sparse_sets.remove(
            ops, keeper.sparse_set, keeper.remaining, keeper.members, slots, changes.leaving
        )
        if moves is not None:  # now that what lay in the new slot has left it
            sparse_set = sparse_sets.rename(ops, sparse_set, moves.old, moves.new, moves.marked)
        sparse_set, count = sparse_sets.insert(ops, sparse_set, count, slots, changes.coming)
        EpochKeeper(sparse_set, remaining, count).keep(ops, draft)
        draft.count(count=count.reshape(1))

    def removed(self, ops: Ops, draft: Draft, removal: Removal) -> None:
        # Take out of the sparse set what is gone; with its oldest step a trajectory may come that had no windows.
        keeper = EpochKeeper.of(draft, draft.counters.more[COUNT][0])
        slots, numbers = self.left(ops, draft, removal)[2:]
        old = sparse_sets.contains(ops, keeper.sparse_set, keeper.members, slots)
        new, first = numbers > 0, single(ops, slots)
        sparse_set, remaining, count = sparse_sets.remove(ops, *keeper, slots, first & old & ~new)
        sparse_set, count = sparse_sets.insert(ops, sparse_set, count, slots, first & new & ~old)
        EpochKeeper(sparse_set, remaining, count).keep(ops, draft)
        draft.count(count=count.reshape(1))

    def cleared(self, ops: Ops, draft: Draft) -> None:
        # An epoch under way is done, and the sparse set is empty.
        abandon(ops, draft)
        draft.count(count=ops.full_like(draft.counters.more[COUNT], 0))

    def problem(self, contents: Found) -> str | None:
        count = contents.numbers.more[COUNT]
        problem = soundness.problem_of_range(COUNT, count, 0, contents.plan.capacity)
        return problem or problem_of_sparse_set(contents, int(count[0]))

    def _moves(self, ops: Ops, draft: Draft, changes: Changes, entries: Entries, fresh: Array) -> Moves:
        """The trajectory that goes on in each lane, whose last start moves forward, and what else changes.

        Only there a last start leaves a step that is still stored; it comes back as many steps further on.
        """
        lanes = draft.plan.ring.lanes
        steps, lane, back = ops.take(draft.auxiliary[STEP_IN_EPISODE], changes.slots), entries.lane, entries.back

        def only(marked: Array) -> tuple[Array, Array]:
            """The one marked entry of each lane, int32 [lanes], and whether there is one."""
            place = ops.arange(marked.shape[0], like=back)
            last = ops.cummax(ops.where(marked, place, ops.full_like(place, -1)).reshape(lanes, -1))[:, -1]
            return ops.maximum(last, ops.full_like(last, 0)), last >= 0

        source, moves = only(changes.leaving & ~fresh)
        at = ops.take(source, lane)
        # As far apart as their steps in the episode: of one trajectory, whose last start never moves back.
        same_trajectory = steps - ops.take(steps, at) == ops.take(back, at) - back
        target, arrives = only(changes.coming & same_trajectory)
        moves = moves & arrives
        moved = ops.take(moves, lane)
        place = ops.arange(back.shape[0], like=back)
        leaving = changes.leaving & ~(moved & (place == at))
        coming = changes.coming & ~(moved & (place == ops.take(target, lane)))
        others = Changes(changes.slots, leaving, coming)
        return Moves(ops.take(changes.slots, source), ops.take(changes.slots, target), moves, others)

    def draw(self, ops: Ops, draft: Draft, draws: Array, beta: Array, batch: int) -> tuple[Array, Selection]:
        # Draw from what is left of the epoch, or from all if that is nothing.
        keeper = EpochKeeper.of(draft, draft.counters.more[COUNT][0])
        starts, live, left = keeper.draw(ops, draft, draws[:, :2], self.slices_of(batch), self.drop_last)
        selection = once(ops, starts, live, left)
        return self.cut(ops, draft, starts, draws[:, 2:], selection.weights, selection.probabilities, live)

    def probabilities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        # What is left of the epoch, or what the next one begins with; of a trajectory any of its windows.
        keeper = EpochKeeper.of(draft, draft.counters.more[COUNT][0])
        if not self.by_trajectory:
            return keeper.probabilities(ops, slots)
        marked, share = self.among_trajectories(ops, draft, slots)
        return keeper.probabilities(ops, marked) * share

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        return draft.counters.more[COUNT][0] >= (self.slices_of(n) if self.drop_last else 1)
