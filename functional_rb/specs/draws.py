"""Numbers by chance, from words of 31 random bits: whole ones exactly, real ones as finely as their dtype needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from functional_rb.dtypes import ITEMSIZE
from functional_rb.ops import Array
from functional_rb.power import MASK
from functional_rb.specs.ops import SpecOps

BITS = 31


def whole_words(counts: np.ndarray[Any, Any]) -> int:
    """How many words a whole number below each of these counts takes.

    One, if all are powers of two: then its upper bits are the number. Else one more than the count has, so that no
    number is preferred by more than a part in 2^31.
    """
    largest = int(counts.max(initial=1))
    if largest <= 2**BITS and all(int(n) & (int(n) - 1) == 0 for n in np.unique(counts)):
        return 1
    return -(-largest.bit_length() // BITS) + 1


def whole(ops: SpecOps, draws: Array, low: np.ndarray[Any, Any], counts: np.ndarray[Any, Any], dtype: str) -> Array:
    """Whole numbers, each of `low ... low + counts - 1` equally likely.

    Args:
        ops: the arrays' library.
        draws: int32 [N, *shape, words], uniform in [0, 2^31); `whole_words` says how many.
        low: Python's numbers, so that none overflows, as an array that broadcasts to the shape.
        counts: likewise, from 1 to 2^64.
        dtype: an integer one.

    Returns:
        [N, *shape] of the dtype.
    """
    words = whole_words(counts)
    u = [draws[..., i] for i in range(words)]
    limbs = [ops.table(_limb(counts, j), "int32", draws) for j in range(max(words - 1, 1))]
    if words == 1:
        # n * u / 2^31 of a power of two; 2^31 itself has no int32, and takes the word as it is.
        shifts = np.frompyfunc(lambda n: BITS + 1 - int(n).bit_length(), 1, 1)(counts)
        digits = [u[0] >> ops.table(np.asarray(shifts, np.int32), "int32", draws)]
    elif words == 2:
        digits = [ops.scale(u[0], u[1], limbs[0])]
    else:
        digits = _scaled(ops, u, limbs)
    return numbered(ops, digits, low, dtype)


def numbered(ops: SpecOps, digits: Sequence[Array], low: np.ndarray[Any, Any], dtype: str) -> Array:
    """Numbers by how far they lie behind low, told in base 2^31: int32 digits, the lowest first; else as `whole`."""
    if ITEMSIZE[dtype] < 8:
        value = _sum(digits, [0, BITS]) + ops.table(_wrapped(low, 32, np.int32), "int32", digits[0])
        return ops.bitcast(value[..., None], dtype)[..., 0] if dtype == "uint32" else ops.cast(value, dtype)
    wide = [ops.cast(digit, "int64") for digit in digits]
    value = _sum(wide, [0, BITS, 2 * BITS]) + ops.table(_wrapped(low, 64, np.int64), "int64", digits[0])
    return ops.bitcast(value[..., None], dtype)[..., 0] if dtype == "uint64" else value


def below(ops: SpecOps, draws: Array, counts: Array) -> Array:
    """Whole numbers int32 [...], each of `0 ... counts - 1` equally likely, where the counts are arrays themselves.

    Args:
        ops: the arrays' library.
        draws: int32 [..., 2], uniform in [0, 2^31).
        counts: int32 [...], from 1 on.
    """
    return ops.scale(draws[..., 0], draws[..., 1], counts)


def _sum(digits: Sequence[Array], shifts: Sequence[int]) -> Array:
    """Digits in base 2^31, the lowest first, as one number modulo what their dtype holds."""
    value = digits[0]
    for digit, shift in zip(digits[1:], shifts[1:], strict=False):
        value = value + (digit << shift)
    return value


def _scaled(ops: SpecOps, u: Sequence[Array], n: Sequence[Array]) -> list[Array]:
    """`floor(n * 0.u)` in base 2^31: words u from the highest on, digits of n and of the result from the lowest on."""
    columns: list[list[Array]] = [[] for _ in range(len(u) + len(n))]
    for i, word in enumerate(reversed(u)):
        for j, digit in enumerate(n):
            high, low = ops.mul_wide(word, digit)
            columns[i + j].append(low)
            columns[i + j + 1].append(high)
    digits = []
    carried: Array = None
    for column in columns:
        total, *rest = column if carried is None else [carried, *column]
        carried = total * 0
        for number in rest:
            carried = carried + ops.cast(total > MASK - number, "int32")
            total = (total + number) & MASK
        digits.append(total)
    return digits[len(u) :]


def _limb(counts: np.ndarray[Any, Any], j: int) -> np.ndarray[Any, Any]:
    digit = np.frompyfunc(lambda n: (int(n) >> BITS * j) & MASK, 1, 1)(counts)
    return np.asarray(digit, np.int32)


def _wrapped(low: np.ndarray[Any, Any], bits: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Numbers modulo 2^bits, as a signed dtype has them."""
    half = 2 ** (bits - 1)
    return np.asarray(np.frompyfunc(lambda n: (int(n) + half) % (2 * half) - half, 1, 1)(low), dtype)


def real_words(low: np.ndarray[Any, Any], high: np.ndarray[Any, Any], dtype: str) -> int:
    """How many words a real number between these bounds takes."""
    return 1 if dtype != "float64" and np.isfinite(low).all() and np.isfinite(high).all() else 2


def real(ops: SpecOps, draws: Array, low: np.ndarray[Any, Any], high: np.ndarray[Any, Any], dtype: str) -> Array:
    """Real numbers: uniform between two bounds, exponential (of mean 1) away from a single one, else normal.

    The normal ones are Box's and Muller's (A note on the generation of random normal deviates, 1958).

    Args:
        ops: the arrays' library.
        draws: int32 [N, *shape, words]; `real_words` says how many.
        low: floats that broadcast to the shape.
        high: likewise.
        dtype: a real one. float16 and bfloat16 are rounded from float32.

    Returns:
        [N, *shape] of the dtype, never outside of the bounds.
    """
    work = "float64" if dtype == "float64" else "float32"
    u = [_fraction(ops, draws[..., i], work) for i in range(real_words(low, high, dtype))]
    below, above = np.isfinite(low), np.isfinite(high)
    only = (low == np.inf) | (high == -np.inf)  # an infinite number is all that is left
    if only.any():
        rest = real(ops, draws, np.where(only, -np.inf, low), np.where(only, np.inf, high), dtype)
        one = ops.table(np.where(low == np.inf, low, high), dtype, rest)
        return ops.where(ops.table(only, "bool", rest), rest * 0 + one, rest)
    low, high = (np.where(np.isfinite(x), x, x.dtype.type(0)) for x in (low, high))
    if (below & above).all():
        fine = u[0] if dtype != "float64" else u[0] + ops.cast(draws[..., 1] >> 10, work) * 2.0**-52
        value = _between(ops, fine, low, high, work)
    elif not (below | above).any():
        return _as(ops, _normal(ops, u), work, dtype)
    else:
        value = _mixed(ops, u, low, high, below, above, work)
    return _as(ops, value, work, dtype)


def _between(ops: SpecOps, u: Array, low: np.ndarray[Any, Any], high: np.ndarray[Any, Any], work: str) -> Array:
    """Uniform between finite bounds."""
    bottom, top = (ops.table(bound.astype(work), work, u) for bound in (low, high))
    with np.errstate(over="ignore"):
        width = np.subtract(high, low, dtype=work)
    if np.isfinite(width).all():
        return ops.clamp(u * ops.table(np.asarray(width), work, u) + bottom, bottom, top)
    # Weighed, as the width is more than the dtype has.
    return ops.clamp(bottom * (1 - u) + top * u, bottom, top)


def _mixed(
    ops: SpecOps,
    u: Sequence[Array],
    low: np.ndarray[Any, Any],
    high: np.ndarray[Any, Any],
    below: np.ndarray[Any, Any],
    above: np.ndarray[Any, Any],
    work: str,
) -> Array:
    """Elements some of which lack a bound (0 stands there): `below` and `above` tell which have which."""
    bottom, top = (ops.table(np.asarray(bound, work), work, u[0]) for bound in (low, high))
    away = -ops.log(1 - u[0])
    value = _normal(ops, u)
    for chosen, drawn in (
        (below & ~above, bottom + away),
        (above & ~below, top - away),
        (below & above, _between(ops, u[0], low, high, work)),
    ):
        if chosen.any():
            value = ops.where(ops.table(np.asarray(chosen), "bool", u[0]), drawn, value)
    return value


def _normal(ops: SpecOps, u: Sequence[Array]) -> Array:
    return (-2 * ops.log(1 - u[0])) ** 0.5 * ops.cos(u[1] * (2 * math.pi))


def _as(ops: SpecOps, value: Array, work: str, dtype: str) -> Array:
    return value if work == dtype else ops.cast(value, dtype)


def _fraction(ops: SpecOps, word: Array, dtype: str) -> Array:
    """A word as a multiple of 2^-24 or 2^-31 in [0, 1)."""
    if dtype == "float64":
        return ops.cast(word, dtype) * 2.0**-BITS
    return ops.cast(word >> 7, dtype) * 2.0**-24
