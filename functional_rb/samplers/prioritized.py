"""Items are drawn in proportion to a power of their priorities."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, Literal, overload

from functional_rb.core.plan import AuxiliaryArray
from functional_rb.core.sample import Items, Mask, MaskedSample, Sample
from functional_rb.core.strategy import Carried, Selection
from functional_rb.ops import scalars
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers import draw_limits
from functional_rb.samplers.base import LEAST_CHANCE, check_bools
from functional_rb.samplers.importance import (
    NewPriority,
    Priorities,
    clear_leaves,
    importance_weights,
    raise_peak,
    write_leaves,
    written_values,
)
from functional_rb.structures import exponential_race, sum_tree
from functional_rb.structures.duplicates import Batch

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.structures.ring import Removal, Write


@dataclasses.dataclass(frozen=True)
class Prioritized(Priorities, Generic[Mask]):
    """Items are drawn in proportion to `priority ** alpha` (Schaul et al., Prioritized Experience Replay, 2016, 3.3).

    The importance weights are `(p_i / p_min) ** -beta` over the stored items that can be drawn, where p includes
    alpha: in (0, 1], and 1 for the least likely item.

    Attributes:
        alpha: 0 draws all items of positive priority alike, 1 in proportion to their priorities.
        beta: 0 makes all weights 1, 1 corrects the bias fully; `sample(..., beta=...)` overrides it.
        new_priority: what an item gets that is added without a priority: the largest among those stored that may be
            drawn ("live", after alpha; 1 where none is positive), so that one early outlier does not rule for ever,
            or the largest ever stored ("ever", torchrl's and flashbax's rule).
        max_times_sampled: how often an item may be drawn at all; then it stays stored, but is never drawn again.
            A draw of the same batch beyond that is masked. None for no limit.
        replacement: whether an item may come several times in a batch. Without, the batch is a successive sample: each
            item is drawn in proportion to what is left (Gumbel top-k; Efraimidis and Spirakis, Weighted random sampling
            with a reservoir, 2006). Fewer drawable items than the batch size are masked at its end. The sample's
            probability is then that of being in the batch, given when the next item would have arrived (Kool et al.,
            Stochastic Beams and Where to Find Them, 2019), and the weights are `(q_i / q_min) ** -beta` for these q,
            where q_min is that of the lowest priority: all are 1 if the batch holds every item.

    Raises:
        ValueError: if alpha or beta is negative, not finite or above 100, `new_priority` is another word, or the limit
            is not positive.

    Example:
        >>> Prioritized(alpha=0.6, beta=0.4)
        Prioritized(alpha=0.6, beta=0.4, new_priority='live', max_times_sampled=None, replacement=True)
    """

    max_times_sampled: int | None = None
    replacement: bool = True

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: Prioritized[None],
            alpha: float = 0.6,
            beta: float = 0.4,
            new_priority: NewPriority = "live",
            max_times_sampled: None = None,
            replacement: Literal[True] = True,
        ) -> None: ...
        @overload
        def __init__(
            self: Prioritized[Array],
            alpha: float = 0.6,
            beta: float = 0.4,
            new_priority: NewPriority = "live",
            max_times_sampled: int | None = None,
            *,
            replacement: Literal[False],
        ) -> None: ...
        @overload
        def __init__(
            self: Prioritized[Array],
            alpha: float = 0.6,
            beta: float = 0.4,
            new_priority: NewPriority = "live",
            *,
            max_times_sampled: int,
            replacement: bool = True,
        ) -> None: ...
        @overload
        def __init__(
            self: Prioritized[Array | None],
            alpha: float = 0.6,
            beta: float = 0.4,
            new_priority: NewPriority = "live",
            max_times_sampled: int | None = None,
            replacement: bool = True,
        ) -> None: ...
        def __init__(
            self,
            alpha: float = 0.6,
            beta: float = 0.4,
            new_priority: NewPriority = "live",
            max_times_sampled: int | None = None,
            replacement: bool = True,
        ) -> None: ...

        @overload
        def _gives(self: Prioritized[None], items: Items, /) -> Sample[Items]: ...
        @overload
        def _gives(self: Prioritized[Array], items: Items, /) -> MaskedSample[Items]: ...
        @overload
        def _gives(self, items: Items, /) -> Sample[Items] | MaskedSample[Items]: ...
        def _gives(self, items: Items, /) -> Sample[Items] | MaskedSample[Items]: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        draw_limits.check(self, self.max_times_sampled)
        check_bools(self, "replacement")

    @property
    def single_law(self) -> bool:
        # With replacement; without, a draw depends on those before.
        return self.replacement

    @property
    def heeds_wanted(self) -> bool:
        # `draw_limits.spend` takes back what does not count.
        return True

    @property
    def remembers(self) -> bool:
        return self.max_times_sampled is not None

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        return draw_limits.auxiliary(plan, self.max_times_sampled)

    def draw_shape(self, plan: Plan, batch: int) -> tuple[int, int]:
        # Fresh bits at every level of the tree; without replacement, see `arrivals`.
        if not self.replacement:
            return batch + 1, exponential_race.words(plan.capacity)
        return batch, len(sum_tree.geometry(plan.capacity).levels)

    def added(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], priorities: Array | None) -> None:
        self._put(ops, draft, write, self.initial_values(ops, draft, write, priorities))

    def carried(self, ops: Ops, draft: Draft, slots: Array) -> Carried:
        times, known = draw_limits.known(ops, draft, slots, self.max_times_sampled)
        return Carried(self.values(ops, draft, slots), known, times)

    def rebuilt(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], carried: Carried) -> None:
        self._put(ops, draft, write, self.carried_values(ops, draft, write, carried))
        draw_limits.carry(ops, draft, write, carried.times, self.max_times_sampled)

    def _put(self, ops: Ops, draft: Draft, write: Write, values: Array) -> None:
        in_order = draft.plan.in_order and draft.plan.ring.lanes == 1
        write_leaves(ops, draft, write.slots, values, write.live, consecutive=in_order)
        raise_peak(ops, draft, written_values(ops, draft.known_tree, write.slots, values), write.live)
        draw_limits.renew(ops, draft, write, self.max_times_sampled)

    def removed(self, ops: Ops, draft: Draft, removal: Removal) -> None:
        # What is gone has no priority.
        clear_leaves(ops, draft, removal)

    def updated(self, ops: Ops, draft: Draft, batch: Batch, priorities: Array) -> None:
        values, replaced = self.new_values(ops, draft, batch, priorities)
        values = draw_limits.silence(ops, draft, batch.slots, values, self.max_times_sampled)
        write_leaves(ops, draft, batch.slots, values, replaced)

    def draw(self, ops: Ops, draft: Draft, draws: Array, beta: Array, batch: int) -> tuple[Array, Selection]:
        # Descend the tree; weights by the distance of logarithms, so that no ratio overflows.
        tree = draft.known_tree
        if not self.replacement:
            slots, live, threshold = exponential_race.first(ops, tree, draft.plan.capacity, draws)
            selection = arrived(ops, draft, slots, live, threshold, beta)
            return slots, draw_limits.spend(ops, draft, slots, selection, self.max_times_sampled)
        slots, weights, probabilities, live = draw_weighed(ops, tree, draft.plan.capacity, draws, beta)
        selection = draw_limits.masked(ops, Selection(draft.handles_of(ops, slots), weights, probabilities), live)
        selection = selection._replace(mask=None)  # with replacement, all are real or none is
        return slots, draw_limits.spend(ops, draft, slots, selection, self.max_times_sampled)


@replaceable
def draw_weighed(ops: Ops, tree: Array, capacity: int, draws: Array, beta: Array) -> tuple[Array, Array, Array, Array]:
    """Draw from the tree with replacement by draws int32 [B, levels].

    Returns:
        Slots int32 [B], weights float32 [B], probabilities float32 [B], and whether they are draws, bool [B]: they are
        unless the tree has nothing to draw; then the numbers are meaningless.
    """
    slots = sum_tree.descend(ops, tree, capacity, draws)
    values, total = sum_tree.get_leaves(ops, tree, slots), sum_tree.total(tree)
    return slots, *weighed(ops, values, total, sum_tree.smallest(ops, tree), beta)


def weighed(ops: Ops, values: Array, total: Array, smallest: Array, beta: Array) -> tuple[Array, Array, Array]:
    """Weights and probabilities of draws, float32 [B], and whether they are draws, as `draw_weighed` has them.

    Args:
        values: of the leaves that were drawn, float32 [B].
        total: of all leaves, a float32 scalar, as those that follow; or [B], all alike.
        smallest: the smallest positive leaf.
        beta: the power of the weights.
    """
    weights = importance_weights(ops, values, smallest, beta)
    # Times the reciprocal, as XLA would make of a division by a scalar anyway: the same bits everywhere.
    scale = scalars.reciprocal(ops, ops.where(total > 0, total, ops.full_like(total, 1)))
    return weights, ops.maximum(values * scale, ops.full_like(values, LEAST_CHANCE)), values > 0


def arrived(ops: Ops, draft: Draft, slots: Array, live: Array, threshold: Array, beta: Array) -> Selection:
    """The selection of a batch without replacement, of which live bool [B] are real; see `arrivals`."""
    tree = draft.known_tree
    probabilities = exponential_race.inclusion(ops, sum_tree.get_leaves(ops, tree, slots), threshold)
    least = exponential_race.inclusion(ops, sum_tree.smallest(ops, tree).reshape(1), threshold)[0]
    weights = importance_weights(ops, probabilities, least, beta)
    return draw_limits.masked(ops, Selection(draft.handles_of(ops, slots), weights, probabilities), live)
