"""n-step returns of stored single steps, computed as they are sampled."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from functional_rb.core.boundaries import NO_KEYS, EpisodeBoundaries
from functional_rb.core.episodes import STEP_IN_EPISODE
from functional_rb.core.strategy import Reader, need_order
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import episode_windows
from functional_rb.structures.episode_windows import Lanes
from functional_rb.transforms.returns import NStep

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan


@dataclasses.dataclass(frozen=True)
class NStepOfStored(NStep):
    """n-step returns of stored single steps, computed as they are sampled; see `n_step`."""

    @property
    def boundaries(self) -> EpisodeBoundaries:
        return EpisodeBoundaries(self.end_keys or NO_KEYS, self.trajectory_key)

    def check(self, plan: Plan, boundaries: EpisodeBoundaries) -> None:
        super().check(plan, boundaries)
        need_order(plan, "n_step(at='sample')")

    def reading(
        self, ops: Ops, draft: Draft, drawn: Array, real: Array, draws: Array | None, read: Reader
    ) -> tuple[Reader, dict[str, Array]]:
        """Look ahead from each step, add rewards up, and take what follows from the last step found."""
        lanes = Lanes(draft.plan.ring, draft.origin[0].ends)
        window, there = episode_windows.following(ops, lanes, draft.auxiliary[STEP_IN_EPISODE], drawn[:, 0], self.n)
        leaves, info = self.over(ops, draft.plan, drawn, window, there, read)

        def with_returns(_: Array, wanted: Sequence[int]) -> dict[int, Array]:
            return {k: leaves[k] for k in wanted}

        return with_returns, self.info(ops, draft.plan, info)
