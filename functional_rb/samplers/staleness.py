"""Items are drawn by how old the policy was that made them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from functional_rb.base import nest
from functional_rb.base.nest import Key
from functional_rb.core import soundness
from functional_rb.core.plan import AuxiliaryArray
from functional_rb.core.sample import Items, Sample
from functional_rb.core.strategy import Selection
from functional_rb.ops import scalars
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers import draw_limits
from functional_rb.samplers.base import SamplerBase, check_count
from functional_rb.samplers.importance import clear_leaves, least_share, shares, write_leaves
from functional_rb.samplers.prioritized import draw_weighed
from functional_rb.structures import row_layout, sum_tree

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.plan import Plan
    from functional_rb.core.soundness import Found
    from functional_rb.structures.ring import Removal, Write

# The counter that holds the version of the policy that learns, int32.
VERSION = "policy_version"
# int32 [capacity], the version of the policy that made the item in each slot.
MADE_BY = "made_by_version"
# Beyond this staleness items are alike: float32 tells whole numbers apart up to here.
STALEST = 2**24 - 1
# Up to here the powers of such numbers are normal float32.
HIGHEST_POWER = 5


@dataclasses.dataclass(frozen=True)
class Staleness(SamplerBase):
    """Fresh items more often than stale ones, and those too stale never, for learners beside their actors.

    An item was made by a version of the policy, which a leaf of it tells. The policy that learns has a version too,
    which `rb.update(state, version=...)` sets; at first it is 0. An item's staleness is the second less the first, and
    0 where it is newer. It is drawn in proportion to `(staleness + 1) ** -power`, with replacement. All weights are 1.

    A draw takes O(log n). Only a new version takes a pass over all items. Versions are compared modulo 2^32.

    Attributes:
        version_key: path of an integer leaf, one number an item.
        max_staleness: items more versions old than this are never drawn; they stay stored. None for no limit.
        power: an int from 0 to 5. 0 draws all items alike that are not too stale, 1 one of staleness 1 half as often as
            a fresh one, 2 a quarter as often.

    Raises:
        ValueError: if `max_staleness` is negative or no int, the power is no int from 0 to 5, or the leaf is missing or
            no single integer.

    Example:
        >>> Staleness(max_staleness=4)
        Staleness(version_key='policy_version', max_staleness=4, power=1)
    """

    version_key: Key = "policy_version"
    max_staleness: int | None = None
    power: int = 1

    if TYPE_CHECKING:

        def _gives(self, items: Items, /) -> Sample[Items]: ...

    def __post_init__(self) -> None:
        if self.max_staleness is not None and (self.max_staleness != 0 or isinstance(self.max_staleness, bool)):
            check_count(self, "max_staleness", "an int from 0 to 2^24 - 1, or None", STALEST)
        if self.power != 0 or isinstance(self.power, bool):
            check_count(self, "power", f"an int from 0 to {HIGHEST_POWER}", HIGHEST_POWER)

    @property
    def single_law(self) -> bool:
        # Draws are with replacement.
        return True

    @property
    def compares_versions(self) -> bool:
        return True

    @property
    def reads(self) -> tuple[Key, ...]:
        return (self.version_key,)

    @property
    def why_nothing(self) -> str:
        return f"has a staleness of at most {self.max_staleness}; add items that a newer policy has made"

    def position(self, plan: Plan) -> int:
        """The position of the leaf that tells versions."""
        return nest.position(plan.outline.names, self.version_key, type(self).__name__)

    def check(self, plan: Plan) -> None:
        leaf = plan.outline.leaves[self.position(plan)]
        if "int" not in leaf.dtype or math.prod(leaf.shape) != 1:
            raise ValueError(
                f"Staleness: version key {self.version_key!r}: expected one integer an item, got {leaf.dtype} of shape "
                f"{leaf.shape}; name another leaf"
            )

    def known_leaves(self, plan: Plan) -> tuple[int, ...]:
        return (self.position(plan),)

    def tree_rows(self, capacity: int) -> int:
        return sum_tree.geometry(capacity).rows

    def counters(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        return ((VERSION, 1),)

    def problem(self, contents: Found) -> str | None:
        # What is not stored cannot be drawn.
        return soundness.problem_of_weights(contents)

    def draw_shape(self, plan: Plan, batch: int) -> tuple[int, int]:
        # Fresh bits at every level of the tree.
        return batch, len(sum_tree.geometry(plan.capacity).levels)

    def auxiliary(self, plan: Plan) -> dict[str, AuxiliaryArray]:
        # Beside the rows, so that a new version reads 4 bytes of each.
        return {MADE_BY: AuxiliaryArray((plan.capacity,))}

    def added(self, ops: Ops, draft: Draft, write: Write, leaves: Sequence[Array], priorities: Array | None) -> None:
        n, all_made_by = write.slots.shape[0], draft.auxiliary[MADE_BY]
        versions = row_layout.pick(ops, leaves[self.position(draft.plan)], write.source, n)
        made_by = ops.cast(versions.reshape(n), "int32")
        if write.live is not None:
            made_by = ops.where(write.live, made_by, ops.take(all_made_by, write.slots))
        draft.auxiliary[MADE_BY] = ops.set_at(all_made_by, write.slots, made_by)
        in_order = draft.plan.in_order and draft.plan.ring.lanes == 1
        write_leaves(ops, draft, write.slots, self._values(ops, draft, made_by), write.live, consecutive=in_order)

    def removed(self, ops: Ops, draft: Draft, removal: Removal) -> None:
        clear_leaves(ops, draft, removal)

    def advanced(self, ops: Ops, draft: Draft, version: Array) -> None:
        # What is fresh changes for all items at once, so every leaf of the tree is set.
        draft.count(**{VERSION: version.reshape(1)})
        values = self._values(ops, draft, draft.auxiliary[MADE_BY])
        values = ops.where(draft.stored(ops), values, ops.full_like(values, 0))
        write_leaves(ops, draft, ops.arange(draft.plan.capacity, like=version), values, None, consecutive=True)

    def _values(self, ops: Ops, draft: Draft, made_by: Array) -> Array:
        return freshness(ops, draft.counters.more[VERSION], made_by, self.max_staleness, self.power)

    def draw(self, ops: Ops, draft: Draft, draws: Array, beta: Array, batch: int) -> tuple[Array, Selection]:
        tree, nothing = draft.known_tree, ops.full_like(beta, 0)
        slots, weights, probabilities, live = draw_weighed(ops, tree, draft.plan.capacity, draws, nothing)
        selection = draw_limits.masked(ops, Selection(draft.handles_of(ops, slots), weights, probabilities), live)
        return slots, selection._replace(mask=None)  # all are real or none is

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        return (draft.size(ops) >= n) & (sum_tree.total(draft.known_tree) > 0)

    def least_chance(self, ops: Ops, draft: Draft) -> Array:
        return least_share(ops, draft.known_tree)

    def probabilities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        return shares(ops, draft, slots)


@replaceable
def freshness(ops: Ops, version: Array, made_by: Array, max_staleness: int | None, power: int) -> Array:
    """The values in the tree, float32 [n], of items by the versions that made them.

    Args:
        version: int32 [1], of the policy that learns.
        made_by: int32 [n].
        max_staleness: as `Staleness` has it.
        power: likewise.
    """
    none = ops.full_like(made_by, 0)
    staleness = ops.maximum(version - made_by, none)
    counted = ops.minimum(staleness, ops.full_like(none, STALEST))
    fresh = scalars.reciprocal(ops, ops.cast(counted + 1, "float32"))
    values = ops.full_like(fresh, 1)
    for _ in range(power):
        values = values * fresh
    if max_staleness is None:
        return values
    return ops.where(staleness <= max_staleness, values, ops.full_like(values, 0))
