"""Newer items are likelier."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from functional_rb.core.sample import Items, Sample
from functional_rb.core.strategy import Selection, need_order
from functional_rb.ops import scalars
from functional_rb.ops.protocol import Array, Ops
from functional_rb.ops.random_bits import below
from functional_rb.samplers.base import LEAST_CHANCE, SamplerBase, check_count, even_chance
from functional_rb.samplers.uniform import alike
from functional_rb.structures import episode_windows, ring
from functional_rb.structures.episode_windows import Lanes

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan


@dataclasses.dataclass(frozen=True)
class Recency(SamplerBase):
    """The newest of `strength` uniform draws: the k-th oldest of n items has probability `(k^s - (k-1)^s) / n^s`.

    Strength 1 is uniform; with 2 the chance of an item grows linearly with its rank; any higher strength favours the
    newest more. Exact, in O(strength) a draw, whatever the size. Ages are compared within lanes. All weights are 1.

    Attributes:
        strength: how many draws, 1 to 64.

    Raises:
        ValueError: if the strength is out of range, or the writer does not keep items in order.

    Example:
        >>> Recency(strength=3)
        Recency(strength=3)
    """

    strength: int = 2

    if TYPE_CHECKING:

        def _gives(self, items: Items, /) -> Sample[Items]: ...

    def __post_init__(self) -> None:
        check_count(self, "strength", "an int from 1 to 64", 64)

    def check(self, plan: Plan) -> None:
        # Ages are read off a ring.
        need_order(plan, type(self).__name__)

    @property
    def single_law(self) -> bool:
        # Draws are with replacement.
        return True

    def least_chance(self, ops: Ops, draft: Draft) -> Array:
        # That of the item of which most are newer, in the fullest lane.
        sizes = draft.counters.ends.sizes
        back = ops.cummax(sizes)[-1:]
        chance = even_chance(ops, draft.size(ops)) * self._preference(ops, sizes, back)[0]
        return ops.maximum(chance, ops.full_like(chance, LEAST_CHANCE))

    def draw_shape(self, plan: Plan, batch: int) -> tuple[int, int]:
        # Two words for each of the uniform draws.
        return batch, 2 * self.strength

    def draw(self, ops: Ops, draft: Draft, draws: Array, beta: Array, batch: int) -> tuple[Array, Selection]:
        # Each draw replaces the one before if it is newer.
        size, ends = draft.size(ops), draft.counters.ends
        lane, position = ring.lane_at(ops, ends.sizes, below(ops, draws[:, :2], size))
        back = ring.of_lane(ops, ends.sizes, lane) - position
        for k in range(1, self.strength):
            other, at = ring.lane_at(ops, ends.sizes, below(ops, draws[:, 2 * k : 2 * k + 2], size))
            distance = ring.of_lane(ops, ends.sizes, other) - at
            newer = distance < back
            lane, position = ops.where(newer, other, lane), ops.where(newer, at, position)
            back = ops.where(newer, distance, back)
        slots, handles = ring.item_at(ops, draft.plan.ring, ends, lane, position)
        selection = alike(ops, handles, size)
        return slots, selection._replace(
            probabilities=selection.probabilities * self._preference(ops, ends.sizes, back)
        )

    def probabilities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        ends = draft.counters.ends
        _, back = episode_windows.step_at(ops, Lanes(draft.plan.ring, ends), slots)
        chance: Array = alike(ops, slots, draft.size(ops)).probabilities
        return chance * self._preference(ops, ends.sizes, back)

    # The factor by which an item is likelier than under a uniform sampler: `sum_j a^j b^(s-1-j)`.
    #
    # Here a is the share of items that are at least as old, b that of the older ones. The difference of powers
    # `a^s - b^s` itself would lose its digits.
    def _preference(self, ops: Ops, sizes: Array, back: Array) -> Array:
        as_old = ops.maximum(sizes[None, :] - back[:, None] + 1, ops.full_like(sizes, 0)[None, :])
        older = ops.maximum(as_old - 1, ops.full_like(as_old, 0))
        total = ops.cast(ops.maximum(ops.cumsum(sizes)[-1], ops.full_like(sizes[0], 1)), "float32")
        scale = scalars.reciprocal(ops, total)
        a = ops.cast(ops.cumsum(as_old)[:, -1], "float32") * scale
        b = ops.cast(ops.cumsum(older)[:, -1], "float32") * scale
        factor, power_of_a, nothing = ops.full_like(a, 1), ops.full_like(a, 1), ops.full_like(a, 0)
        for _ in range(1, self.strength):
            # The maxima change nothing, but keep compilers from rounding a product and a sum as one.
            power_of_a = ops.maximum(power_of_a * a, nothing)
            factor = ops.maximum(factor * b, nothing) + power_of_a
        return factor
