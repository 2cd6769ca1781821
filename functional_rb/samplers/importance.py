"""Priorities to the power alpha and importance weights, the same bits on every backend; samplers with priorities."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Literal

from functional_rb.core import soundness
from functional_rb.core.strategy import Carried
from functional_rb.ops import fixed_point, scalars
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops
from functional_rb.samplers.base import LEAST_CHANCE, SamplerBase
from functional_rb.structures import ring, row_layout, sum_tree
from functional_rb.structures.duplicates import Batch, Duplicates, single

if TYPE_CHECKING:
    from functional_rb.core.draft import Draft
    from functional_rb.core.soundness import Found
    from functional_rb.structures.ring import Removal, Write

# Logarithms are multiplied by no more. What is stored of priorities to a power below 2^-23 tells little of them.
LARGEST_FACTOR = 2.0**23
# The bits of the smallest and of the largest normal float32.
SMALLEST_BITS, LARGEST_BITS = 0x00800000, 0x7F7FFFFF
# One more in the exponent of a float32, in its bits.
EXPONENT = 2**23
# How far, in steps of float32, a priority may lie from the root that is computed: what is found last, counts.
NEIGHBOURS = (-2, 2, -1, 1, 0)


@replaceable
def stored_value(ops: Ops, priorities: Array, alpha: float) -> tuple[Array, Array]:
    """`priorities ** alpha` as the tree holds it, and whether each priority is good.

    Zero stays zero; other powers are held within 2^-100 and 2^95, so that no sum can overflow.
    """
    bits = ops.bitcast(priorities[:, None], "int32")[:, 0]
    positive = (bits > 0) & (bits < 0x7F800000)
    zero = (bits & 0x7FFFFFFF) == 0
    # A subnormal priority counts as the smallest normal one: some devices flush it to zero, others do not.
    bits = ops.minimum(ops.maximum(bits, ops.full_like(bits, SMALLEST_BITS)), ops.full_like(bits, LARGEST_BITS))
    value = power_of(ops, bits, alpha)
    return ops.where(positive, value, ops.full_like(value, 0)), positive | zero


NewPriority = Literal["live", "ever"]


def priority_of(ops: Ops, values: Array, alpha: float) -> Array:
    """The priorities float32 [n] of which `stored_value` makes given values, 0 or what it has made of some.

    Of several such the one in the middle or next to it. Where alpha is 0 nothing is known of them: 1 where positive.
    """
    positive = values > 0
    if alpha == 1.0 or alpha == 0.0:
        return values if alpha else ops.cast(positive, "float32")
    center = best = _root(ops, values, alpha)
    lowest, highest = ops.full_like(center, SMALLEST_BITS), ops.full_like(center, LARGEST_BITS)
    for step in NEIGHBOURS:
        near = ops.minimum(ops.maximum(center + step, lowest), highest)
        power, _ = stored_value(ops, ops.bitcast(near[:, None], "float32")[:, 0], alpha)
        best = ops.where(power == values, near, best)
    priorities = ops.bitcast(best[:, None], "float32")[:, 0]
    return ops.where(positive, priorities, ops.full_like(priorities, 0))


def raised(ops: Ops, values: Array, alpha: float, other: float) -> Array:
    """Priorities to one power, as the tree holds them, float32 [n], as those to another: `value ** (other / alpha)`.

    Alpha is positive. It goes by way of numbers near the priorities, because not every number is a power of one: what
    the tree holds has to be, or reading priorities and giving them back would change it. The result is within
    1.5 + other / min(alpha, 1) units in the last place of what would be stored of the priorities themselves.
    """
    if other == alpha:
        return values
    if alpha == 1.0:
        return stored_value(ops, values, other)[0]
    root = ops.bitcast(_root(ops, values, alpha)[:, None], "float32")[:, 0]
    return stored_value(ops, ops.where(values > 0, root, ops.full_like(root, 0)), other)[0]


# The bits, int32 [n], of the normal float32 next to `value ** (1 / alpha)`, or one beside it; of 0 those of 1.
def _root(ops: Ops, values: Array, alpha: float) -> Array:
    bits = ops.bitcast(ops.where(values > 0, values, ops.full_like(values, 1))[:, None], "int32")[:, 0]
    y = _scaled_log(ops, bits, min(1 / alpha, LARGEST_FACTOR))
    lowest, highest = ops.full_like(bits, SMALLEST_BITS), ops.full_like(bits, LARGEST_BITS)
    root = fixed_point.exp2(ops, fixed_point.Fixed(_clip(ops, y.whole), y.fraction))
    center = ops.bitcast(root[:, None], "int32")[:, 0]
    # A whole part of 127 is one more in the exponent.
    center = ops.where(y.whole == 127, ops.minimum(center, highest - EXPONENT) + EXPONENT, center)
    return ops.where(y.whole > 127, highest, ops.where(y.whole < -126, lowest, center))


def power_of(ops: Ops, bits: Array, alpha: float) -> Array:
    """`x ** alpha` for positive normal float32 x given by their bits int32 [n], held within 2^-100 and 2^95."""
    if alpha == 1.0:
        value = ops.bitcast(bits[:, None], "float32")[:, 0]
    else:
        y = _scaled_log(ops, bits, alpha)
        value = fixed_point.exp2(ops, fixed_point.Fixed(_clip(ops, y.whole), y.fraction))
    value = ops.maximum(value, ops.full_like(value, fixed_point.SMALLEST))
    return ops.minimum(value, ops.full_like(value, fixed_point.LARGEST))


# `factor * log2(x)` for x as in `power_of`; the fraction is never negative.
def _scaled_log(ops: Ops, bits: Array, factor: float) -> fixed_point.Fixed:
    constant, bias = fixed_point.fixed_constant(factor), fixed_point.fixed_constant(factor, fixed_point.BIAS)
    log = fixed_point.log2_biased(ops, bits)
    y = fixed_point.times(ops, log, fixed_point.Fixed(*(ops.full_like(bits, number) for number in constant)))
    return fixed_point.minus(ops, y, fixed_point.Fixed(*(ops.full_like(bits, number) for number in bias)))


@replaceable
def importance_weights(ops: Ops, values: Array, smallest: Array, beta: Array) -> Array:
    """`(values / smallest) ** -beta` in (0, 1], for float32 [B], a scalar, and a float32 scalar beta.

    Values are positive and at least the smallest; where they are not (nothing could be drawn), the result is
    meaningless but finite. A beta beyond 2^20 counts as 2^20. With one that is negative or NaN there are no weights,
    and NaN says so: to take it for 0 would switch the correction off without a word.
    """
    floor = ops.full_like(values, fixed_point.SMALLEST)
    log = fixed_point.log2_biased(ops, ops.bitcast(ops.maximum(values, floor)[:, None], "int32")[:, 0])
    base = ops.maximum(smallest + ops.full_like(values, 0), floor)
    distance = fixed_point.minus(ops, log, fixed_point.log2_biased(ops, ops.bitcast(base[:, None], "int32")[:, 0]))
    beta = beta + ops.full_like(values, 0)
    is_power = beta >= 0
    beta = ops.where(is_power, ops.minimum(beta, ops.full_like(beta, 2.0**20)), ops.full_like(beta, 0))
    whole = ops.cast(beta, "int32")
    rest = ops.cast((beta - ops.cast(whole, "float32")) * float(2**fixed_point.FRACTION), "int32")
    y = fixed_point.times(ops, distance, fixed_point.Fixed(whole, rest))
    zero = ops.full_like(y.whole, 0)
    y = fixed_point.minus(ops, fixed_point.Fixed(zero, zero), y)
    weights = fixed_point.exp2(ops, fixed_point.Fixed(_clip(ops, y.whole), y.fraction))
    return ops.where(is_power, weights, ops.full_like(weights, math.nan))


def _clip(ops: Ops, whole: Array) -> Array:
    return ops.maximum(ops.minimum(whole, ops.full_like(whole, 126)), ops.full_like(whole, -126))


@dataclasses.dataclass(frozen=True)
class Priorities(SamplerBase):
    """Items with priorities; see `Prioritized` for the fields."""

    alpha: float = 0.6
    beta: float = 0.4
    new_priority: NewPriority = "live"

    def __post_init__(self) -> None:
        kind = type(self).__name__
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and math.isfinite(value) and 0 <= value <= 100):
                raise ValueError(f"{kind}: expected {name} as a number in [0, 100], got {value!r}")
            object.__setattr__(self, name, float(value))
        if self.new_priority not in ("live", "ever"):
            raise ValueError(f"{kind}: expected new_priority 'live' or 'ever', got {self.new_priority!r}")

    @property
    def has_priorities(self) -> bool:
        return True

    @property
    def why_nothing(self) -> str:
        return "has a positive priority; update some first"

    def tree_rows(self, capacity: int) -> int:
        return sum_tree.geometry(capacity).rows

    def drawable(self, ops: Ops, draft: Draft, n: int) -> Array:
        return (draft.size(ops) >= n) & (sum_tree.total(draft.known_tree) > 0)

    def least_chance(self, ops: Ops, draft: Draft) -> Array:
        # That of the smallest positive priority.
        return least_share(ops, draft.known_tree)

    def new_value(self, ops: Ops, draft: Draft) -> Array:
        """What an item without a priority gets, float32 scalar, after alpha."""
        if self.new_priority == "ever":
            value = ops.bitcast(draft.counters.peak.reshape(1), "float32")[0]
        else:
            value = sum_tree.largest(ops, draft.known_tree)
        return ops.where(value > 0, value, ops.full_like(value, 1))

    def probabilities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        return shares(ops, draft, slots)

    def priorities(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        return priority_of(ops, self.values(ops, draft, slots), self.alpha)

    def values(self, ops: Ops, draft: Draft, slots: Array) -> Array:
        """The priorities of stored items to the power alpha, as they are kept, float32 [n] for slots int32 [n]."""
        return sum_tree.get_leaves(ops, draft.known_tree, slots)

    def problem(self, contents: Found) -> str | None:
        # What is not stored cannot be drawn.
        return soundness.problem_of_weights(contents)

    def initial_values(self, ops: Ops, draft: Draft, write: Write, priorities: Array | None) -> Array:
        """The values of the items that go to `write.slots`, float32 [n]; bad priorities count and get the default."""
        default = self.new_value(ops, draft)
        default = default + ops.cast(ops.full_like(write.slots, 0), "float32")
        if priorities is None:
            return default
        chosen = row_layout.pick(ops, priorities, write.source, write.slots.shape[0])
        values, good = stored_value(ops, chosen, self.alpha)
        bad = ~good if write.live is None else ~good & write.live
        if not draft.plan.in_order:  # several rows may stand for one slot
            bad = bad & single(ops, write.slots)
        reject(ops, draft, bad)
        return ops.where(good, values, default)

    def carried(self, ops: Ops, draft: Draft, slots: Array) -> Carried:
        return Carried(self.values(ops, draft, slots))

    def carried_values(self, ops: Ops, draft: Draft, write: Write, carried: Carried) -> Array:
        """The values of items that come from another buffer, float32 [n]; those without one get what new items do."""
        if carried.values is None:
            return self.initial_values(ops, draft, write, None)
        n = write.slots.shape[0]
        values = row_layout.pick(ops, carried.values, write.source, n)
        if carried.known is None:
            return values
        known = row_layout.pick(ops, carried.known, write.source, n)
        there = known if write.live is None else known & write.live
        largest = ops.cummax(ops.where(there, values, ops.full_like(values, 0)))[-1]
        if self.new_priority == "ever":
            largest = ops.bitcast(draft.counters.peak.reshape(1), "float32")[0]
        return ops.where(known, values, ops.where(largest > 0, largest, ops.full_like(largest, 1)))

    def new_values(self, ops: Ops, draft: Draft, batch: Batch, priorities: Array) -> tuple[Array, Array]:
        """What an update sets, float32 [B], equal where slots are, and where it sets anything, bool [B]."""
        values, replaced, bad, peak = updated_values(ops, batch.slots, batch.live, priorities, self.alpha)
        counters = draft.counters
        rejected, peak = ring.saturating_add(ops, counters.rejected, bad), ops.maximum(counters.peak, peak)
        draft.counters = counters.replace(rejected=rejected, peak=peak)
        return values, replaced


@replaceable
def updated_values(
    ops: Ops, slots: Array, live: Array, priorities: Array, alpha: float
) -> tuple[Array, Array, Array, Array]:
    """What priorities of a batch set; of equal slots the last counts that is live and has a good priority.

    Args:
        slots: int32 [B], not negative.
        live: bool [B], whether the item is still there.
        priorities: float32 [B].
        alpha: the power to which they are stored.

    Returns:
        Their powers float32 [B], equal where slots are; where anything is set, bool [B]; how many of the live have bad
        priorities, an int32 scalar; and the bits of the largest power that is good, an int32 scalar, 0 for none.
    """
    values, good = stored_value(ops, priorities, alpha)
    winner, replaced = Duplicates.of(ops, slots).winners(ops, live & good)
    return ops.take(values, winner), replaced, ops.count(live & ~good), _largest_bits(ops, values, live & good)


def reject(ops: Ops, draft: Draft, bad: Array) -> None:
    """Count bad priorities, marked in bool [n]."""
    count = ring.saturating_add(ops, draft.counters.rejected, ops.count(bad))
    draft.counters = draft.counters.replace(rejected=count)


@replaceable
def written_values(ops: Ops, tree: Array, slots: Array, values: Array) -> Array:
    """The values float32 [n] that were written to the leaves of slots int32 [n], of those that are live.

    They are read back from the new tree: XLA would fuse what they came from, a read of the old one, into what is done
    with them, and to serve that it would copy the tree.
    """
    return sum_tree.get_leaves(ops, tree, slots)


def raise_peak(ops: Ops, draft: Draft, values: Array, live: Array | None) -> None:
    """Remember the largest value ever stored by its bits."""
    peak = ops.maximum(draft.counters.peak, _largest_bits(ops, values, live))
    draft.counters = draft.counters.replace(peak=peak)


# The bits of the largest of values float32 [n], or of the live ones: they are ordered as the values are.
def _largest_bits(ops: Ops, values: Array, live: Array | None) -> Array:
    bits = ops.bitcast(values[:, None], "int32")[:, 0]
    if live is not None:
        bits = ops.where(live, bits, ops.full_like(bits, 0))
    return ops.largest(bits)


@replaceable
def clear_leaves(ops: Ops, draft: Draft, removal: Removal) -> None:
    """Let leaves of the tree be zero where items go."""
    nothing = ops.cast(ops.full_like(removal.slots, 0), "float32")
    write_leaves(ops, draft, removal.slots, nothing, removal.gone)


def shares(ops: Ops, draft: Draft, slots: Array) -> Array:
    """The share that leaves of the tree have in its sum, float32 [n] for slots int32 [n]."""
    total = sum_tree.total(draft.known_tree)
    scale = scalars.reciprocal(ops, ops.where(total > 0, total, ops.full_like(total, 1)))
    return sum_tree.get_leaves(ops, draft.known_tree, slots) * scale


def least_share(ops: Ops, tree: Array) -> Array:
    """The share that the smallest positive leaf of a tree has in its sum, float32 scalar, as a draw tells it."""
    total, smallest = sum_tree.total(tree), sum_tree.smallest(ops, tree)
    chance = smallest * scalars.reciprocal(ops, ops.where(total > 0, total, ops.full_like(total, 1)))
    return ops.maximum(chance, ops.full_like(chance, LEAST_CHANCE))


def write_leaves(
    ops: Ops, draft: Draft, slots: Array, values: Array, live: Array | None, consecutive: bool = False
) -> None:
    """Set leaves of the tree; where not live, write back what is there."""
    tree = draft.known_tree
    if live is not None:
        values = ops.where(live, values, sum_tree.get_leaves(ops, tree, slots))
    draft.tree = sum_tree.set_leaves(ops, tree, draft.plan.capacity, slots, values, consecutive)
