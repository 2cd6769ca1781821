"""What samplers of slices share: where trajectories begin and end, and the index of their windows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from functional_rb.base import nest
from functional_rb.base.nest import Key, Keys
from functional_rb.core import soundness
from functional_rb.core.boundaries import NO_KEYS, EpisodeBoundaries
from functional_rb.core.episodes import NEXT_STEP_IN_EPISODE, STEP_IN_EPISODE
from functional_rb.core.sample import Items, SliceSample
from functional_rb.core.strategy import Selection, need_order
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers.base import SamplerBase, check_bools, check_count, even_chance
from functional_rb.structures import episode_windows
from functional_rb.structures.episode_windows import Entries, Lanes, Rule

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found
    from functional_rb.structures.ring import Removal, Write

LARGEST_SETTING = 2**28


@dataclasses.dataclass(frozen=True)
class Trajectories(SamplerBase):
    """The fields that samplers of slices have in common; see `Slices`."""

    length: int
    end_keys: Key | Sequence[Key] | None = None
    trajectory_key: Key | None = None
    strict_length: bool = True
    # What it means is compared in its place: 1 equals True, but is less.
    span: bool | int | tuple[bool | int, bool | int] = dataclasses.field(default=False, compare=False)
    period: int = 1
    batch: Literal["slices", "steps"] = "slices"
    flat: bool = False
    # How many steps slices may reach out at either end: what the span says.
    reaches: tuple[int, int] = dataclasses.field(default=(0, 0), init=False, repr=False)

    if TYPE_CHECKING:

        def _gives(self, items: Items, /) -> SliceSample[Items]: ...

    def __post_init__(self) -> None:
        kind = type(self).__name__
        for name in ("length", "period"):
            check_count(self, name, "a positive int", LARGEST_SETTING)
        check_bools(self, "strict_length", "flat")
        self._plan_span()
        if any(self.reaches) and self.strict_length:
            raise ValueError(
                f"{kind}: span={self.span} gives slices shorter than {self.length} steps, which strict_length refuses; "
                f"give strict_length=False"
            )
        if self.batch not in ("slices", "steps"):
            raise ValueError(f"{kind}: expected batch 'slices' or 'steps', got {self.batch!r}")
        object.__setattr__(self, "end_keys", nest.checked_keys(self.end_keys, "end_keys", kind))

    # Set `span` to a pair of (left, right), where False stands for no steps and True for length - 1 steps.
    def _plan_span(self) -> None:
        setting: object = self.span
        pair = tuple(setting) if isinstance(setting, tuple | list) else (setting, setting)
        most = self.length - 1
        numbers = [side for side in pair if not isinstance(side, bool)]
        if len(pair) != 2 or not all(isinstance(side, int | np.integer) and 0 <= side <= most for side in numbers):
            raise ValueError(
                f"{type(self).__name__}: expected span as a bool, a number of steps from 0 to length - 1 = {most}, or "
                f"a pair of such (left, right), got {self.span!r}"
            )
        reaches = tuple((most if side else 0) if isinstance(side, bool) else int(side) for side in pair)
        object.__setattr__(self, "reaches", reaches)
        span = tuple({most: True, 0: False}.get(side, side) for side in reaches)  # of a single step, there is no span
        object.__setattr__(self, "span", span)

    @property
    def rule(self) -> Rule:
        """Which windows there are."""
        return Rule(self.length, self.period, self.strict_length, *self.reaches)

    @property
    def by_trajectory(self) -> bool:
        """Whether trajectories are equally likely, rather than windows."""
        return False

    @property
    def why_nothing(self) -> str:
        return f"begins a slice of {self.length} steps; add more, or give strict_length=False"

    def resolve(self, plan: Plan) -> Trajectories:
        # Find the leaves that mark ends, if none were named.
        boundaries = EpisodeBoundaries.find(self._end_keys, self.trajectory_key, plan.names, type(self).__name__)
        return self if self.end_keys is not None else dataclasses.replace(self, end_keys=boundaries.end_keys_as_given)

    @property
    def boundaries(self) -> EpisodeBoundaries:
        return EpisodeBoundaries(self._end_keys or NO_KEYS, self.trajectory_key)

    @property
    def _end_keys(self) -> Keys | None:
        return nest.checked_keys(self.end_keys, "end_keys", type(self).__name__)  # as `__post_init__` has left them

    def check(self, plan: Plan) -> None:
        # Windows are read off rings, and their leaves exist.
        need_order(plan, type(self).__name__)
        kind = type(self).__name__
        if self.length > plan.ring.length and self.strict_length:
            raise ValueError(
                f"{kind}: a slice of {self.length} steps never fits into the {plan.ring.length} of a lane; "
                f"give a larger BufferSpec.capacity, or strict_length=False, for shorter slices"
            )
        self.boundaries.check(plan.outline, kind)

    def check_batch(self, plan: Plan, batch: int) -> None:
        if self.batch == "steps" and batch % self.length:
            raise ValueError(
                f"sample: expected batch_size as a multiple of the slices' length {self.length}, as it counts steps "
                f"(batch='steps'), got {batch}"
            )

    def problem(self, contents: Found) -> str | None:
        # No window begins where nothing is stored.
        return soundness.problem_of_weights(contents)

    def slices_of(self, batch: int) -> int:
        """How many slices a batch has."""
        return batch // self.length if self.batch == "steps" else batch

    def leading_shape(self, batch: int) -> tuple[int, ...]:
        slices = self.slices_of(batch)
        return (slices * self.length,) if self.flat else (slices, self.length)

    @property
    def steps_in_a_row(self) -> int | None:
        return self.length if self.flat else None

    def changed(self, ops: Ops, draft: Draft, write: Write) -> Entries:
        """The entries of the index that a write may have changed, now that its steps in their episodes are known."""
        ring = draft.plan.ring
        lanes, n = Lanes(ring, write.after), write.slots.shape[0] // ring.lanes
        return episode_windows.changed(ops, self.rule, lanes, draft.auxiliary[STEP_IN_EPISODE], n, self.by_trajectory)

    def left(self, ops: Ops, draft: Draft, removal: Removal) -> Entries:
        """The entries of the index that change where steps go."""
        lanes = Lanes(draft.plan.ring, removal.after)
        return episode_windows.left(
            ops, self.rule, lanes, draft.auxiliary[STEP_IN_EPISODE], removal.slots, self.by_trajectory
        )

    def among_trajectories(self, ops: Ops, draft: Draft, slots: Array) -> tuple[Array, Array]:
        """The slots of the last starts of steps' trajectories, and which share of their windows begin with the steps.

        int32 [n] and float32 [n] for slots int32 [n].
        """
        lanes, in_episode = Lanes(draft.plan.ring, draft.counters.ends), draft.auxiliary[STEP_IN_EPISODE]
        windows = episode_windows.weights_at(ops, self.rule, lanes, in_episode, slots)
        count, last_starts = episode_windows.of_trajectories(ops, self.rule, lanes, in_episode, slots)
        return last_starts, ops.cast(windows, "float32") * even_chance(ops, count)

    def cut(
        self,
        ops: Ops,
        draft: Draft,
        starts: Array,
        draws: Array,
        weights: Array,
        probabilities: Array,
        live: Array | None = None,
    ) -> tuple[Array, Selection]:
        """Windows of drawn slots int32 [S]; weights and probabilities are [S], or one for all, as in `Selection`.

        Live, bool [S], marks the slots that were drawn; without it those count that begin a window.
        """
        lanes = Lanes(draft.plan.ring, draft.counters.ends)
        in_episode, following = draft.auxiliary[STEP_IN_EPISODE], draft.counters.more[NEXT_STEP_IN_EPISODE]
        slots, handles, mask, is_first, is_last, truncated = episode_windows.expand(
            ops, self.rule, lanes, in_episode, following, starts, draws, live, self.by_trajectory
        )
        real = mask[:, 0]
        weights, probabilities = (ops.where(real, x, ops.full_like(x, 0)) for x in (weights, probabilities))
        if self.flat:
            handles, mask, is_first, is_last, truncated = (
                x.reshape(-1) for x in (handles, mask, is_first, is_last, truncated)
            )
        return slots.reshape(-1), Selection(handles, weights, probabilities, mask, is_first, is_last, truncated)
