"""How items are drawn. A sampler is a frozen dataclass; what it remembers is one array of the state.

The methods here are pure functions over a backend's `ops`; users construct samplers and leave the methods to the
buffer.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, NamedTuple, Protocol

from functional_rb import power, ring, sum_tree
from functional_rb.ops import Array, Ops
from functional_rb.ring import Counters

DRAW_LIMIT = 2**31
"""Draws are uniform int32 in [0, 2^31)."""
LEAST_CHANCE = 2.0**-126
"""Probabilities are told as normal floats: XLA makes zeros of smaller ones, and what was drawn had some chance."""


class Drawn(NamedTuple):
    """What a sampler chose.

    Attributes:
        handles: int32 [B]; -1 where nothing could be drawn.
        weights: float32 [B], 0 where nothing could be drawn.
        probabilities: float32 [B], likewise.
    """

    handles: Array
    weights: Array
    probabilities: Array


class Sampler(Protocol):
    """What the buffer asks of a sampler."""

    def words(self, capacity: int) -> int:
        """Random 31-bit words that one draw takes."""
        ...

    def tree_rows(self, capacity: int) -> int:
        """Rows of the array float32 [rows, FANOUT] in which it remembers priorities; 0 for none."""
        ...

    def draw(
        self, ops: Ops, tree: Array | None, counters: Counters, capacity: int, draws: Array, beta: Array
    ) -> tuple[Array, Drawn]:
        """Choose items by draws int32 [B, words]: the slots where they lie, int32 [B], and what is told of them."""
        ...


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Every stored item is equally likely, with replacement. All weights are 1.

    Example:
        >>> Uniform().words(1_000_000)
        2
    """

    def words(self, capacity: int) -> int:
        """Two words: at a million items one alone would prefer some items by a part in 2000."""
        return 2

    def tree_rows(self, capacity: int) -> int:
        """Nothing is remembered."""
        return 0

    def draw(
        self, ops: Ops, tree: Array | None, counters: Counters, capacity: int, draws: Array, beta: Array
    ) -> tuple[Array, Drawn]:
        """`floor(size * u)` for a 62-bit uniform u names the position from the oldest item."""
        high, low = ops.mul_wide(draws[:, 0], counters.size)
        carry = low > ring.INT32_MAX - power.mul_high(ops, draws[:, 1], counters.size)
        position = high + ops.cast(carry, "int32")
        handles = ring.handle_at(ops, counters, position, capacity)
        stored = counters.size > 0
        one = ops.cast(ops.full_like(handles, 1), "float32")
        weights = ops.where(stored, one, ops.full_like(one, 0))
        size = ops.cast(ops.maximum(counters.size, ops.full_like(counters.size, 1)), "float32")
        drawn = Drawn(ops.where(stored, handles, ops.full_like(handles, -1)), weights, weights * (1.0 / size))
        return handles % capacity, drawn


@dataclasses.dataclass(frozen=True)
class Prioritized:
    """Items are drawn in proportion to `priority ** alpha` (Schaul et al., Prioritized Experience Replay, 2016, 3.3).

    The importance weights are `(p_i / p_min) ** -beta` over the stored items that can be drawn, where p includes
    alpha: in (0, 1], and 1 for the least likely item.

    Attributes:
        alpha: 0 draws all items of positive priority alike, 1 in proportion to their priorities.
        beta: 0 makes all weights 1, 1 corrects the bias fully; `sample(..., beta=...)` overrides it.
        new_priority: what an item gets that is added without a priority: the largest among those stored ("live", after
            alpha; 1 where none is positive), so that one early outlier does not rule for ever, or the largest
            ever stored ("ever", torchrl's and flashbax's rule).

    Raises:
        ValueError: if alpha or beta is negative, not finite or above 100, or `new_priority` is another word.

    Example:
        >>> Prioritized(alpha=0.6, beta=0.4)
        Prioritized(alpha=0.6, beta=0.4, new_priority='live')
    """

    alpha: float = 0.6
    beta: float = 0.4
    new_priority: Literal["live", "ever"] = "live"

    def __post_init__(self) -> None:
        """Check what can be known before any array exists."""
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and math.isfinite(value) and 0 <= value <= 100):
                raise ValueError(f"Prioritized: expected {name} as a number in [0, 100], got {value!r}")
            object.__setattr__(self, name, float(value))
        if self.new_priority not in ("live", "ever"):
            raise ValueError(f"Prioritized: expected new_priority 'live' or 'ever', got {self.new_priority!r}")

    def words(self, capacity: int) -> int:
        """Fresh bits at every level of the tree."""
        return len(sum_tree.geometry(capacity).levels)

    def tree_rows(self, capacity: int) -> int:
        """The sum tree."""
        return sum_tree.geometry(capacity).rows

    def stored_value(self, ops: Ops, priorities: Array) -> tuple[Array, Array]:
        """`priorities ** alpha` as the tree holds it, and whether each priority is good.

        Zero stays zero; other powers are held within 2^-100 and 2^95, so that no sum can overflow.
        """
        bits = ops.bitcast(priorities[:, None], "int32")[:, 0]
        positive = (bits > 0) & (bits < 0x7F800000)
        zero = (bits & 0x7FFFFFFF) == 0
        # A subnormal priority counts as the smallest normal one: some devices flush it to zero, others do not.
        bits = ops.minimum(ops.maximum(bits, ops.full_like(bits, 0x00800000)), ops.full_like(bits, 0x7F7FFFFF))
        value = power_of(ops, bits, self.alpha)
        return ops.where(positive, value, ops.full_like(value, 0)), positive | zero

    def new_value(self, ops: Ops, tree: Array, counters: Counters) -> Array:
        """What an item without a priority gets, float32 scalar, after alpha."""
        if self.new_priority == "ever":
            value = ops.bitcast(counters.peak.reshape(1), "float32")[0]
        else:
            value = sum_tree.largest(ops, tree)
        return ops.where(value > 0, value, ops.full_like(value, 1))

    def draw(
        self, ops: Ops, tree: Array | None, counters: Counters, capacity: int, draws: Array, beta: Array
    ) -> tuple[Array, Drawn]:
        """Descend the tree; weights by the distance of logarithms, so that no ratio overflows."""
        assert tree is not None
        slots = sum_tree.descend(ops, tree, capacity, draws)
        values = sum_tree.get_leaves(ops, tree, slots)
        total = sum_tree.total(tree)
        drawable = total > 0
        handles = ring.handle_of_slot(ops, counters, slots, capacity)
        nothing = ops.full_like(values, 0)
        weights = importance_weights(ops, values, sum_tree.smallest(ops, tree), beta)
        # Times the reciprocal, as XLA would make of a division by a scalar anyway: the same bits everywhere.
        scale = 1.0 / ops.where(drawable, total, ops.full_like(total, 1))
        drawn = Drawn(
            ops.where(drawable, handles, ops.full_like(handles, -1)),
            ops.where(drawable, weights, nothing),
            ops.where(drawable, ops.maximum(values * scale, ops.full_like(values, LEAST_CHANCE)), nothing),
        )
        return slots, drawn


def power_of(ops: Ops, bits: Array, alpha: float) -> Array:
    """`x ** alpha` for positive normal float32 x given by their bits int32 [n], held within 2^-100 and 2^95."""
    if alpha == 1.0:
        value = ops.bitcast(bits[:, None], "float32")[:, 0]
    else:
        factor = power.fixed_constant(alpha)
        bias = power.fixed_constant(alpha, power.BIAS)
        log = power.log2_biased(ops, bits)
        y = power.times(ops, log, power.Fixed(*(ops.full_like(bits, part) for part in factor)))
        y = power.minus(ops, y, power.Fixed(*(ops.full_like(bits, part) for part in bias)))
        value = power.exp2(ops, power.Fixed(_clip(ops, y.whole), y.fraction))
    value = ops.maximum(value, ops.full_like(value, power.SMALLEST))
    return ops.minimum(value, ops.full_like(value, power.LARGEST))


def importance_weights(ops: Ops, values: Array, smallest: Array, beta: Array) -> Array:
    """`(values / smallest) ** -beta` in (0, 1], for float32 [B], a scalar, and a float32 scalar beta.

    Values are positive and at least the smallest; where they are not (nothing could be drawn), the result is
    meaningless but finite. A beta beyond [0, 2^20], or NaN, counts as the nearest bound, NaN as 0.
    """
    floor = ops.full_like(values, power.SMALLEST)
    log = power.log2_biased(ops, ops.bitcast(ops.maximum(values, floor)[:, None], "int32")[:, 0])
    base = ops.maximum(smallest + ops.full_like(values, 0), floor)
    distance = power.minus(ops, log, power.log2_biased(ops, ops.bitcast(base[:, None], "int32")[:, 0]))
    beta = beta + ops.full_like(values, 0)
    beta = ops.where(beta > 0, ops.minimum(beta, ops.full_like(beta, 2.0**20)), ops.full_like(beta, 0))
    whole = ops.cast(beta, "int32")
    rest = ops.cast((beta - ops.cast(whole, "float32")) * float(2**power.FRACTION), "int32")
    y = power.times(ops, distance, power.Fixed(whole, rest))
    zero = ops.full_like(y.whole, 0)
    y = power.minus(ops, power.Fixed(zero, zero), y)
    return power.exp2(ops, power.Fixed(_clip(ops, y.whole), y.fraction))


def _clip(ops: Ops, whole: Array) -> Array:
    return ops.maximum(ops.minimum(whole, ops.full_like(whole, 126)), ops.full_like(whole, -126))
