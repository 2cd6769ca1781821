"""The law by which a token is drawn from logits: temperature, then top-k, then top-p.

Probabilities become integers of two words by operations that round the same everywhere, their running sums are exact,
and a draw is 62 random bits. So the same logits and the same bits give the same token on every backend and device. A
probability differs from that of exact arithmetic by less than 2^-18 of itself and 2^-39 of the largest one, up to a
vocabulary of a million; measured, all of them together by less than 1e-7 (total variation).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from functional_rb.ops.fixed_point import FRACTION, MASK, Fixed, plus
from functional_rb.ops.protocol import Array, TextOps

# Binary digits of a logarithm after the point.
_UNITS: Final = 24
_HALF: Final = _UNITS // 2
# Powers 2^-x of the digits of x: before the point, and the two halves of those after it. Products of float32 are the
# same everywhere, powers are not.
_POWERS: Final = {
    "whole": 2.0 ** -np.arange(65.0),
    "high": 2.0 ** (-np.arange(2.0**_HALF) / 2**_HALF),
    "low": 2.0 ** (-np.arange(2.0**_HALF) / 2**_UNITS),
}
# The lower bound of temperatures, so that nothing is divided by zero.
_COLDEST: Final = 1e-30


class Law(NamedTuple):
    """How tokens are drawn."""

    temperature: Array  # float32 scalar, by which logits are divided; 0 takes the most likely token, of equal the first
    # Int32 scalar, how many of the most likely tokens may be drawn, equal ones in their order; None for all.
    top_k: Array | None = None
    # Float32 scalar: after that the fewest of the most likely tokens may be drawn whose probabilities sum to this at
    # least, equal ones in their order; None for all.
    top_p: Array | None = None


class Choice(NamedTuple):
    """The tokens that were drawn."""

    token: Array  # int32 [N]
    log_prob: Array  # float32 [N], by the model: what the logits say, whatever the law
    law_log_prob: Array  # float32 [N], by the law: after temperature, top-k and top-p; 0 at temperature 0
    drawn: Array  # bool [N], whether there was a law to draw by; if not, the others mean nothing


def log_probs_of(ops: TextOps, logits: Array, tokens: Array) -> Array:
    """Log-probabilities float32 [...] of tokens int32 [...] by logits [..., V]; minus infinity where a logit is.

    NaN where one of the V logits is NaN or infinite.
    """
    logits = ops.cast(logits, "float32")
    picked = _pick(ops, logits, tokens)
    total = _log_total(ops, logits)
    # Where all logits are minus infinity, so is their total, and the difference would be NaN.
    never = (picked == -math.inf) & (total == total)
    return ops.where(never, ops.full_like(picked, -math.inf), picked - total)


def log_prob_slopes(ops: TextOps, logits: Array, tokens: Array) -> Array:
    """The derivatives float32 [..., V] of `log_probs_of` by logits [..., V]; 0 where there is no probability."""
    logits = ops.cast(logits, "float32")
    total = _log_total(ops, logits)
    may = ((_pick(ops, logits, tokens) != -math.inf) | (total != total))[..., None]
    share = ops.exp(logits - ops.where(total == -math.inf, ops.full_like(total, 0), total)[..., None])
    place = ops.arange(logits.shape[-1], like=tokens)
    return ops.where(may, ops.cast(place == tokens[..., None], "float32") - share, ops.full_like(logits, 0))


def choose(ops: TextOps, logits: Array, bits: Array, law: Law) -> Choice:
    """Draw a token of each row of logits [N, V], by bits int32 [N, 2], uniform in [0, 2^31).

    Minus infinity is never drawn. From a row that is nothing else, or in which one is NaN or infinite, nothing is
    drawn, nor by a temperature that is NaN, infinite or negative, a top_k below 1, or a top_p that is NaN or not above
    0.
    """
    logits = ops.cast(logits, "float32")
    law, is_law = _usable(ops, law)
    top = ops.largest(logits)
    may = (top > -math.inf) & (top < math.inf) & is_law
    # Tokens are sorted by probability only if the law cuts the less likely ones off.
    count = logits.shape[1]
    place = ops.arange(count, like=bits)[None] + ops.full_like(bits[:, :1], 0)
    order, ranked = place, logits
    if law.top_k is not None or law.top_p is not None:
        order = ops.argsort(-logits)
        ranked = ops.take_along(logits, order)
    # Running sums of exact weights: the draw is a share of the last sum, and falls behind the tokens that it exceeds.
    kept = place >= 0 if law.top_k is None else place < law.top_k
    temperature = ops.maximum(law.temperature, ops.full_like(law.temperature, _COLDEST))
    weights = _weights(ops, ranked, may[:, None] & (ranked > -math.inf), temperature)
    sums = _running(ops, *(ops.where(kept, x, ops.full_like(x, 0)) for x in weights))
    total = _at(ops, sums, place[:, -1])
    if law.top_p is not None:
        kept = kept & _within(ops, sums, total, law.top_p)
        last = ops.total(kept) - 1
        total = _at(ops, sums, ops.maximum(last, ops.full_like(last, 0)))
    chosen, _ = _share(ops, Fixed(bits[:, 0], bits[:, 1]), total)
    drawn = ops.minimum(ops.total(~_less(_column(chosen), sums)), place[:, -1])

    # At temperature 0 the most likely token is certain, whatever was drawn.
    scaled = (ranked - _finite_top(ops, ranked)[:, None]) / temperature
    scaled = ops.where(kept, scaled, ops.full_like(scaled, -math.inf))
    by_law = _pick(ops, scaled, drawn) - _log_total(ops, scaled)
    greedy = (law.temperature <= 0) | (drawn < 0)
    token = ops.where(greedy, ops.argmax(logits), _pick(ops, order, drawn))
    by_law = ops.where(greedy, ops.full_like(by_law, 0), by_law)
    return Choice(token, log_probs_of(ops, logits, token), by_law, may)


def _usable(ops: TextOps, law: Law) -> tuple[Law, Array]:
    is_law = (law.temperature >= 0) & (law.temperature < math.inf)
    temperature = ops.where(is_law, law.temperature, ops.full_like(law.temperature, 1))
    top_k, top_p = law.top_k, law.top_p
    if top_k is not None:
        is_law = is_law & (top_k >= 1)
        top_k = ops.maximum(top_k, ops.full_like(top_k, 1))
    if top_p is not None:
        is_law = is_law & (top_p > 0)
        top_p = ops.where(top_p > 0, top_p, ops.full_like(top_p, 1))
    return Law(temperature, top_k, top_p), is_law


def _pick(ops: TextOps, x: Array, index: Array) -> Array:
    return ops.take_along(x, index[..., None])[..., 0]


def _finite_top(ops: TextOps, x: Array) -> Array:
    # The largest number along the last axis; 0 where all are minus infinity, so that none becomes NaN.
    top = ops.largest(x)
    return ops.where(top > -math.inf, top, ops.full_like(top, 0))


def _log_total(ops: TextOps, x: Array) -> Array:
    top = _finite_top(ops, x)
    total = ops.total(ops.exp(x - top[..., None]))
    # Where all are minus infinity, the logarithm of 0 would make the gradient NaN.
    logarithm = ops.log(ops.where(total == 0, ops.full_like(total, 1), total))
    return ops.where(total == 0, ops.full_like(total, -math.inf), top + logarithm)


def _weights(ops: TextOps, logits: Array, may: Array, temperature: Array) -> tuple[Array, Array]:
    # Numbers in proportion to probabilities, as a whole part and 31 bits after the point; each int32 [N, V].
    # The largest is 2^r with 2^r V < 2^30, so that whole parts sum to an int32. Those that may not be drawn have 0.
    scale = ops.full_like(temperature, 2.0**_UNITS / math.log(2)) / temperature
    below = ops.where(may, _finite_top(ops, logits)[:, None] - logits, ops.full_like(logits, math.inf))
    # One product, and an integer of it at once: nothing that a compiler could join to what it rounds otherwise.
    units = ops.cast(ops.minimum(below * scale, ops.full_like(below, 2.0**30)), "int32")
    high, low = (ops.table(_POWERS[k], "float32", units) for k in ("high", "low"))
    power = ops.take(high, (units >> _HALF) & (2**_HALF - 1)) * ops.take(low, units & (2**_HALF - 1))
    largest = 2.0 ** (30 - logits.shape[1].bit_length())
    weight = power * ops.take(ops.table(_POWERS["whole"] * largest, "float32", units), units >> _UNITS)
    whole = ops.cast(weight, "int32")
    return whole, ops.cast((weight - ops.cast(whole, "float32")) * 2.0**FRACTION, "int32")


def _running(ops: TextOps, whole: Array, fraction: Array) -> Fixed:
    # Sums of fractions wrap around modulo 2^32, of which the low 31 bits are right; where these fall, one is carried.
    fraction = ops.cumsum(fraction) & MASK
    before = ops.concat([ops.full_like(fraction[:, :1], 0), fraction[:, :-1]], 1)
    return Fixed(ops.cumsum(whole + ops.cast(fraction < before, "int32")), fraction)


def _at(ops: TextOps, sums: Fixed, index: Array) -> Fixed:
    return Fixed(_pick(ops, sums.whole, index), _pick(ops, sums.fraction, index))


def _column(x: Fixed) -> Fixed:
    return Fixed(x.whole[:, None], x.fraction[:, None])


def _less(x: Fixed, y: Fixed) -> Array:
    return (x.whole < y.whole) | ((x.whole == y.whole) & (x.fraction < y.fraction))


def _share(ops: TextOps, u: Fixed, total: Fixed) -> tuple[Fixed, Array]:
    # `u / 2^31 * total`, rounded down to 2^-31, and whether that is exact.
    zero = ops.full_like(total.whole, 0)
    first = Fixed(*ops.mul_wide(u.whole, total.whole))
    (b, below_b), (c, below_c) = ops.mul_wide(u.whole, total.fraction), ops.mul_wide(u.fraction, total.whole)
    d, lost = ops.mul_wide(u.fraction, total.fraction)
    below = plus(ops, plus(ops, Fixed(zero, below_b), Fixed(zero, below_c)), Fixed(zero, d))
    for term in (b, c, below.whole):
        first = plus(ops, first, Fixed(zero, term))
    return first, (below.fraction | lost) == 0


def _within(ops: TextOps, sums: Fixed, total: Fixed, top_p: Array) -> Array:
    # Which tokens, in the order of their probabilities, belong to the fewest that sum to top_p; the first one always.
    # Those are the tokens before which there is less than top_p.
    zero = ops.full_like(total.whole, 0)
    # The largest float32 below 1, so that the whole part is an int32; a top_p of 1 keeps all in the end.
    scaled = ops.minimum(top_p, ops.full_like(top_p, 1 - 2.0**-24)) * 2.0**FRACTION
    whole = ops.cast(scaled, "int32")
    fraction = ops.cast((scaled - ops.cast(whole, "float32")) * 2.0**FRACTION, "int32")
    bound, exact = _share(ops, Fixed(whole + zero, fraction + zero), total)
    before = Fixed(*(ops.concat([zero[:, None], x[:, :-1]], 1) for x in sums))
    less = _less(before, _column(bound))
    equal = ~less & ~_less(_column(bound), before)
    return less | (equal & ~exact[:, None]) | (top_p >= 1)
