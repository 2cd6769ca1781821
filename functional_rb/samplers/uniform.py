"""Every stored item is equally likely."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Generic, overload

from functional_rb.core.sample import Items, Mask, MaskedSample, Sample
from functional_rb.core.strategy import Selection
from functional_rb.ops.protocol import Array, Ops
from functional_rb.ops.random_bits import below
from functional_rb.samplers import draw_limits
from functional_rb.samplers.base import even_chance
from functional_rb.samplers.draw_limits import LimitedSampler
from functional_rb.structures import ring, sum_tree

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan


@dataclasses.dataclass(frozen=True)
class Uniform(LimitedSampler, Generic[Mask]):
    """Every stored item is equally likely, with replacement. All weights are 1.

    Attributes:
        max_times_sampled: how often an item may be drawn at all; then it stays stored, but is never drawn again.
            A draw of the same batch beyond that is masked. None for no limit.

    Raises:
        ValueError: if the limit is not positive.

    Example:
        >>> Uniform()
        Uniform(max_times_sampled=None)
    """

    if TYPE_CHECKING:

        @overload
        def __init__(self: Uniform[None], max_times_sampled: None = None) -> None: ...
        @overload
        def __init__(self: Uniform[Array], max_times_sampled: int) -> None: ...
        @overload
        def __init__(self: Uniform[Array | None], max_times_sampled: int | None) -> None: ...
        def __init__(self, max_times_sampled: int | None = None) -> None: ...

        @overload
        def _gives(self: Uniform[None], items: Items, /) -> Sample[Items]: ...
        @overload
        def _gives(self: Uniform[Array], items: Items, /) -> MaskedSample[Items]: ...
        @overload
        def _gives(self, items: Items, /) -> Sample[Items] | MaskedSample[Items]: ...
        def _gives(self, items: Items, /) -> Sample[Items] | MaskedSample[Items]: ...

    @property
    def single_law(self) -> bool:
        # Draws are with replacement.
        return True

    def least_chance(self, ops: Ops, draft: Draft) -> Array:
        # That of all: among those stored, or, with a limit, among those that may still be drawn.
        if self.max_times_sampled is None:
            return even_chance(ops, draft.size(ops))
        return even_chance(ops, ops.cast(sum_tree.total(draft.known_tree), "int32"))

    def draw_shape(self, plan: Plan, batch: int) -> tuple[int, int]:
        # Two words: at a million items one alone would prefer some items by a part in 2000. For a tree, see there.
        if self.max_times_sampled is not None:
            return batch, len(sum_tree.geometry(plan.capacity).levels)
        return batch, 2

    def draw(self, ops: Ops, draft: Draft, draws: Array, beta: Array, batch: int) -> tuple[Array, Selection]:
        # `floor(size * u)` for a 62-bit uniform u names the position, from the oldest item of the first lane on.
        if self.max_times_sampled is not None:
            slots = sum_tree.descend(ops, draft.known_tree, draft.plan.capacity, draws)
            left = ops.cast(sum_tree.total(draft.known_tree), "int32")
            selection = alike(ops, draft.handles_of(ops, slots), left)
            return slots, draw_limits.spend(ops, draft, slots, selection, self.max_times_sampled)
        size = draft.size(ops)
        slots, handles = item_at(ops, draft, below(ops, draws, size))
        return slots, alike(ops, handles, size)


def item_at(ops: Ops, draft: Draft, position: Array) -> tuple[Array, Array]:
    """The slots and handles of stored items by their position int32 [B], lane by lane, each from its oldest on."""
    if not draft.plan.in_order:
        slots = ops.minimum(position, ops.full_like(position, draft.plan.capacity - 1))
        return slots, draft.handles_of(ops, slots)
    ends = draft.counters.ends
    lane, position = ring.lane_at(ops, ends.sizes, position)
    return ring.item_at(ops, draft.plan.ring, ends, lane, position)


def alike(ops: Ops, handles: Array, candidates: Array) -> Selection:
    """Draws with replacement, each with the same chance, among a number of candidates (int32 scalar); maybe none."""
    stored = candidates > 0
    one = ops.cast(ops.full_like(handles, 1), "float32")
    weights = ops.where(stored, one, ops.full_like(one, 0))
    handles = ops.where(stored, handles, ops.full_like(handles, -1))
    return Selection(handles, weights, weights * even_chance(ops, candidates))
