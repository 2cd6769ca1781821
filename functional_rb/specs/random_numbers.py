"""Random numbers from words of 31 random bits: whole numbers exactly, real ones as finely as their dtype needs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from functional_rb.base.arrays import Array, DType, NumpyArray
from functional_rb.base.dtypes import ITEMSIZE
from functional_rb.ops.fixed_point import MASK
from functional_rb.ops.protocol import SpecOps
from functional_rb.ops.random_bits import fraction

BITS = 31
F16_MAX = float(np.finfo(np.float16).max)


def whole_words(counts: NumpyArray) -> int:
    """How many words of random bits a whole number below each of some counts takes.

    If all counts are powers of two, one word, whose upper bits are the number. Else one word more than the largest
    count fills, so that no number is preferred by more than a part in 2^31.
    """
    largest = int(counts.max(initial=1))
    if largest <= 2**BITS and all(int(n) & (int(n) - 1) == 0 for n in np.unique(counts)):
        return 1
    return -(-largest.bit_length() // BITS) + 1


class Whole:
    """Whole numbers of an integer dtype, uniform over `low ... low + counts - 1`; counts go up to 2^64.

    Both are Python ints, so that none overflows, in arrays that broadcast to the shape.
    """

    def __init__(self, low: NumpyArray, counts: NumpyArray, dtype: str) -> None:
        self.words = whole_words(counts)
        self._low = Low(low, dtype)
        limb = np.frompyfunc(lambda n, j: (int(n) >> BITS * j) & MASK, 2, 1)
        self._limbs = [np.asarray(limb(counts, j), np.int32) for j in range(self.words - 1)]
        # n * u / 2^31 for a power of two n is a shift; 2^31 has no int32, and is shifted by 0.
        shifts = np.frompyfunc(lambda n: BITS + 1 - int(n).bit_length(), 1, 1)(counts)
        self._shifts = np.asarray(shifts, np.int32)

    def draw(self, ops: SpecOps, bits: Array) -> Array:
        """Numbers [N, *shape] of the dtype, from random bits int32 [N, *shape, words], uniform in [0, 2^31)."""
        u = [bits[..., i] for i in range(self.words)]
        limbs = [ops.table(limb, "int32", bits) for limb in self._limbs]
        if self.words == 1:
            digits = [u[0] >> ops.table(self._shifts, "int32", bits)]
        elif self.words == 2:
            digits = [ops.scale(u[0], u[1], limbs[0])]
        else:
            digits = _scaled(ops, u, limbs)
        return self._low.behind(ops, digits)


def between(low: int, high: int) -> Whole:
    """Numbers int32 from `low` to `high`."""
    return Whole(np.asarray(low, object), np.asarray(high - low + 1, object), "int32")


class Cut:
    """Cuts pieces off random bits [N, words], one after the other."""

    def __init__(self, bits: Array) -> None:
        self.bits, self.start = bits, 0

    def __call__(self, count: int) -> Array:
        self.start += count
        return self.bits[:, self.start - count : self.start]

    def numbers(self, ops: SpecOps, numbers: Whole, lead: tuple[int, ...]) -> Array:
        """Numbers int32 [N, *lead], drawn from the next bits."""
        bits = self(math.prod(lead) * numbers.words)
        return numbers.draw(ops, bits.reshape(bits.shape[0], *lead, numbers.words))


class Low:
    """The lowest of some whole numbers, Python ints that broadcast to the shape."""

    def __init__(self, low: NumpyArray, dtype: str) -> None:
        self._dtype, self._wide = dtype, ITEMSIZE[dtype] == 8
        self._wrapped = _wrapped(low, 64, np.int64) if self._wide else _wrapped(low, 32, np.int32)
        self._any = bool(self._wrapped.any())

    def behind(self, ops: SpecOps, digits: Sequence[Array]) -> Array:
        """`low + offset`, where the offset has int32 digits in base 2^31, the lowest first."""
        work = "int64" if self._wide else "int32"
        if self._wide:
            digits = [ops.cast(digit, work) for digit in digits]
        # Modulo 2^32 or 2^64: what higher digits would add is a multiple of that.
        value = digits[0]
        for k, digit in enumerate(digits[1 : 3 if self._wide else 2], 1):
            value = value + (digit << k * BITS)
        if self._any:
            value = value + ops.table(self._wrapped, work, digits[0])
        if self._dtype in ("uint32", "uint64"):
            return ops.bitcast(value[..., None], self._dtype)[..., 0]
        return value if self._dtype == work else ops.cast(value, self._dtype)


def _scaled(ops: SpecOps, u: Sequence[Array], n: Sequence[Array]) -> list[Array]:
    # `floor(n * 0.u)` in base 2^31: u begins with its highest word, n and the result with their lowest digit.
    columns: list[list[Array]] = [[] for _ in range(len(u) + len(n))]
    for i, word in enumerate(reversed(u)):
        for j, digit in enumerate(n):
            high, low = ops.mul_wide(word, digit)
            columns[i + j].append(low)
            columns[i + j + 1].append(high)
    digits = []
    carried: Array | None = None
    for column in columns:
        total, *rest = column if carried is None else [carried, *column]
        carried = total * 0
        for number in rest:
            # That the sum takes more than 31 bits is asked before it is made, as int32 would wrap around.
            carried = carried + ops.cast(total > MASK - number, "int32")
            total = (total + number) & MASK
        digits.append(total)
    return digits[len(u) :]


def _wrapped(low: NumpyArray, bits: int, dtype: DType) -> NumpyArray:
    half = 2 ** (bits - 1)
    # In Python ints, as no dtype holds both signed and unsigned numbers of 64 bits.
    return np.asarray(np.frompyfunc(lambda n: (int(n) + half) % (2 * half) - half, 1, 1)(low), dtype)


def real_words(low: NumpyArray, high: NumpyArray, dtype: str) -> int:
    """How many words of random bits a real number between two bounds takes."""
    return 1 if dtype != "float64" and np.isfinite(low).all() and np.isfinite(high).all() else 2


class Real:
    """Real numbers: uniform between two bounds, exponential (of mean 1) away from a single bound, else normal.

    The bounds are floats that broadcast to the shape. Numbers of float16 and bfloat16 are rounded from float32.
    """

    def __init__(self, low: NumpyArray, high: NumpyArray, dtype: str) -> None:
        self.words = real_words(low, high, dtype)
        self._dtype, self._work = dtype, "float64" if dtype == "float64" else "float32"
        self._below, self._above = np.isfinite(low), np.isfinite(high)
        self._low, self._high = (np.where(np.isfinite(x), x, 0).astype(self._work) for x in (low, high))
        with np.errstate(over="ignore"):  # an infinite width is dealt with in `_between`
            self._width = np.asarray(self._high - self._low)
        self._bounded = bool((self._below & self._above).all())
        self._free = not (self._below | self._above).any()
        self._narrow = bool(np.isfinite(self._width).all())

    def draw(self, ops: SpecOps, bits: Array) -> Array:
        """Numbers [N, *shape] of the dtype, never outside of the bounds, from random bits int32 [N, *shape, words]."""
        work = self._work
        fractions = fraction(ops, bits, work)
        u = [fractions[..., i] for i in range(self.words)]
        if self._bounded:
            # A float64 has 53 bits: behind the 31 of the first word go the upper 21 of the second.
            fine = u[0] if work != "float64" else u[0] + ops.cast(bits[..., 1] >> 10, work) * 2.0**-52
            value = self._between(ops, fine)
        elif self._free:
            value = _normal(ops, u)
        else:
            value = self._mixed(ops, u)
            if self._dtype == "float16":  # of which so few are finite that the distance to a bound may not fit
                for limit in (-F16_MAX, F16_MAX):
                    beyond = value < limit if limit < 0 else value > limit
                    value = ops.where(beyond, value * 0 + limit, value)
        return value if work == self._dtype else ops.cast(value, self._dtype)

    def _between(self, ops: SpecOps, u: Array) -> Array:
        bottom, top = self._bounds(ops, u)
        if self._narrow:
            return ops.clamp(u * ops.table(self._width, self._work, u) + bottom, bottom, top)
        # A weighted mean, as the width overflows the dtype.
        return ops.clamp(bottom * (1 - u) + top * u, bottom, top)

    def _mixed(self, ops: SpecOps, u: Sequence[Array]) -> Array:
        below, above = self._below, self._above
        bottom, top = self._bounds(ops, u[0])
        away = -ops.log(1 - u[0])
        value = _normal(ops, u)
        for chosen, drawn in (
            (below & ~above, bottom + away),
            (above & ~below, top - away),
            (below & above, self._between(ops, u[0])),
        ):
            if chosen.any():
                value = ops.where(ops.table(np.asarray(chosen), "bool", u[0]), drawn, value)
        return value

    def _bounds(self, ops: SpecOps, like: Array) -> tuple[Array, Array]:
        return ops.table(self._low, self._work, like), ops.table(self._high, self._work, like)


def _normal(ops: SpecOps, u: Sequence[Array]) -> Array:
    # Box, Muller: A note on the generation of random normal deviates (1958).
    return (-2 * ops.log(1 - u[0])) ** 0.5 * ops.cos(u[1] * (2 * math.pi))
