"""n-step returns computed as steps are added: what is stored are transitions over n steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from functional_rb.base import nest
from functional_rb.core import episodes, soundness
from functional_rb.core.boundaries import EpisodeBoundaries
from functional_rb.core.episodes import id_words
from functional_rb.core.plan import AuxiliaryArray
from functional_rb.core.strategy import Reader
from functional_rb.ops.protocol import Array, Ops
from functional_rb.specs import ArraySpec
from functional_rb.structures import row_layout
from functional_rb.structures.row_layout import Layout
from functional_rb.transforms.returns import DISCOUNT, STEPS, NStep, StepReturns
from functional_rb.transforms.step_queue import Line, plan_line

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found

# Counter int32 [lanes]: how many steps of each lane wait for those that follow.
PENDING = "n_step_pending"
# Auxiliary arrays: the waiting steps [lanes * (n - 1)], each lane's from its oldest on, packed as in storage.
WAITING = "n_step_waiting"


@dataclasses.dataclass(frozen=True)
class NStepOfAdded(NStep):
    """n-step returns computed as steps are added; see `n_step`."""

    # How waiting steps lie, once the transform is resolved.
    packed: Layout = dataclasses.field(init=False, repr=False, compare=False)

    delays = True

    def resolve(self, plan: Plan) -> NStepOfAdded:
        resolved = super().resolve(plan)
        assert isinstance(resolved, NStepOfAdded)
        leaves = zip(plan.structure.paths, plan.leaves, strict=True)
        packed = row_layout.plan(tuple((path, leaf.shape, leaf.dtype) for path, leaf in leaves))
        object.__setattr__(resolved, "packed", packed)
        return resolved

    def check(self, plan: Plan, boundaries: EpisodeBoundaries) -> None:
        """Items come later than they are added, and no longer follow on each other."""
        super().check(plan, boundaries)
        who = "n_step(at='add')"
        if plan.extra_words:
            raise ValueError(f"{who}: rewards are added up before her could choose goals; give n_step(at='sample')")
        if not plan.overwrites:
            raise ValueError(
                f"{who}: a trajectory's end writes up to {self.n} items at once, which {plan.writer} may have no "
                f"room for; give n_step(at='sample'), or writer=frb.RoundRobin()"
            )
        if plan.frames is not None:
            raise ValueError(
                f"{who}: an item's next observation is not the following item's own, so that BufferSpec.compact would "
                f"save nothing; give n_step(at='sample') with it"
            )
        if plan.boundaries is not None:
            raise ValueError(
                f"{who}: the items stored are transitions over {self.n} steps and make no slices; "
                f"give n_step(at='sample') with {plan.sampler}"
            )

    def columns(self, plan: Plan) -> dict[str, ArraySpec]:
        """Columns for the entries of a sample that do not follow from the transformed leaves or other columns."""
        return {name: leaf for name, leaf in self.told(plan).items() if name != DISCOUNT}

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        waiting = (plan.lanes or 1) * (self.n - 1)
        if waiting == 0:
            return {}
        auxiliary = {WAITING: AuxiliaryArray((waiting, self.packed.row_words))}
        for name, leaf in zip(self._names[1:], self.packed.wide, strict=True):
            auxiliary[name] = AuxiliaryArray((waiting, *leaf.shape), row_layout.STORED_AS.get(leaf.dtype, leaf.dtype))
        return auxiliary

    def carried(self) -> dict[str, Layout]:
        return {WAITING: self.packed} if self.n > 1 else {}

    def counters(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        return ((PENDING, plan.lanes or 1),)

    def problem(self, found: Found) -> str | None:
        # No more wait than there are places for.
        return soundness.problem_of_range(PENDING, found.numbers.more[PENDING], 0, self.n - 1)

    def rows(self, plan: Plan, batch: int) -> int:
        """All that wait may be written, and all that come."""
        return batch + (plan.lanes or 1) * (self.n - 1) if batch else 0

    def incoming(
        self, ops: Ops, draft: Draft, leaves: Sequence[Array], batch: int, mask: Array | None
    ) -> tuple[Sequence[Array], Array | None]:
        """Put new steps behind the waiting ones, and write those whose n steps, or whose trajectory, are complete."""
        plan = draft.plan
        every = ops.arange(self.rows(plan, batch), like=draft.origin[1])
        steps = row_layout.pack(ops, self.packed, leaves, like=every[:batch])
        arrays = [steps[0], *steps[1]]
        if self.n > 1:
            arrays = [ops.concat(pair, 0) for pair in zip(self._waiting(draft), arrays, strict=True)]
        read = self._reader(ops, arrays)
        # Which of the new steps end a trajectory, bool [batch], and all steps' ids int32 [rows, words], if any.
        ended = episodes.ended(ops, plan, self.end_keys, leaves) if self.end_keys else every[:batch] < 0
        position = self.trajectory(plan)
        ids = None if position is None else id_words(ops, read(every, [position])[position].reshape(-1))
        line = plan_line(ops, draft.counters.more[PENDING], ended, ids, mask, self.n)
        draft.count(**{PENDING: line.pending})
        if self.n > 1:
            places = every[: line.waiting.shape[0]]
            for name, array in zip(self._names, arrays, strict=True):
                draft.auxiliary[name] = ops.set_at(draft.auxiliary[name], places, ops.take(array, line.waiting))
        return self._complete(ops, plan, line, read)

    def interrupted(self, ops: Ops, draft: Draft) -> tuple[Sequence[Array], Array | None]:
        """All steps that wait, over the steps that there are: as if one of another trajectory followed in each lane."""
        lanes, pending = draft.plan.ring.lanes, draft.counters.more[PENDING]
        waiting = self._waiting(draft)
        arrays = [ops.concat([array, array[:lanes]], 0) for array in waiting]  # what is in that step is never read
        every = ops.arange(lanes * self.n, like=pending)
        of_others = ops.cast(every >= lanes * (self.n - 1), "int32")[:, None]
        line = plan_line(ops, pending, every[:lanes] < 0, of_others, None, self.n)
        self.cleared(ops, draft)
        return self._complete(ops, draft.plan, line, self._reader(ops, arrays))

    def ends(self, plan: Plan) -> list[int]:
        return [nest.position(plan.names, key, "n_step") for key in self.end_keys or ()]

    def trajectory(self, plan: Plan) -> int | None:
        """The position of the leaf that tells trajectories apart, if one does."""
        return None if self.trajectory_key is None else nest.position(plan.names, self.trajectory_key, "n_step")

    def cleared(self, ops: Ops, draft: Draft) -> None:
        draft.count(**{PENDING: ops.full_like(draft.counters.more[PENDING], 0)})

    def reading(
        self, ops: Ops, draft: Draft, drawn: Array, real: Array, draws: Array | None, read: Reader
    ) -> tuple[Reader, dict[str, Array]]:
        plan = draft.plan
        first = len(plan.leaves) + list(plan.columns).index(STEPS)
        places = range(first, first + len(self.positions.rewards) + 2)
        leaves = read(drawn, places)
        steps, *originals, nonterminal = (leaves[k] for k in places)
        return read, self.info(ops, plan, StepReturns(steps, tuple(originals), nonterminal))

    def _waiting(self, draft: Draft) -> list[Array]:
        return [draft.auxiliary[name] for name in self._names]

    def _reader(self, ops: Ops, arrays: Sequence[Array]) -> Reader:
        def read(rows: Array, wanted: Sequence[int]) -> dict[int, Array]:
            chosen = tuple(sorted(set(wanted)))
            leaves = row_layout.read_part(ops, self.packed, arrays[0], arrays[1:], rows.reshape(-1), chosen)
            return dict(zip(chosen, leaves, strict=True))

        return read

    # The rows over n steps that are written, and which of a line's are.
    def _complete(self, ops: Ops, plan: Plan, line: Line, read: Reader) -> tuple[Sequence[Array], Array]:
        leaves, info = self.over(ops, plan, line.window[:, :1], line.window, line.real, read)
        beside = info.steps, *info.originals, info.nonterminal
        return [*(leaves[k] for k in range(len(plan.leaves))), *beside], line.complete

    # The auxiliary arrays: the packed rows, and the leaves that lie apart.
    @property
    def _names(self) -> list[str]:
        return [WAITING, *(f"{WAITING}/{nest.show(leaf.path)}" for leaf in self.packed.wide)]
