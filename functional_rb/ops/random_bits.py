"""Random bits: SplitMix64, a counter-based generator of 64 bits, and whole numbers made of random bits exactly.

SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014, with Stafford's mixing constants):
the k-th output of a key is `mix(base + (k + 1) * GAMMA)`, where `mix` is a bijection of 64 bits. So it is pure, the
same on every device, and takes ten integer operations for any number of outputs.
"""

from __future__ import annotations

from typing import Final, TypeVar

from functional_rb.base.arrays import NumpyArray
from functional_rb.ops.fixed_point import MASK, mul_high
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, CommonOps, Ops

T = TypeVar("T", int, NumpyArray)
ALL: Final = 2**64 - 1
GAMMA: Final = 0x9E3779B97F4A7C15
FACTORS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS: Final = (30, 27, 31)
SPLIT: Final = 0x5851F42D4C957F2D
DRAW: Final = 0x14057B7EF767814F
# Added to a key before it is used, so that keys split from it, draws made with it, and the key of `map_items` are
# unrelated.
MAP: Final = 0x2545F4914F6CDD1D


def signed(value: int) -> int:
    """A number modulo 2^64 as the int64 of the same bits.

    Example:
        >>> signed(2**64 - 1), signed(-1), signed(5)
        (-1, -1, 5)
    """
    value %= 2**64
    return value - 2**64 if value >= 2**63 else value


def mix(value: T) -> T:
    """The mixing function on a Python number modulo 2^64, or numbers uint64 of NumPy."""
    for shift, factor in zip(SHIFTS, (*FACTORS, 1), strict=True):
        value = (value ^ (value >> shift)) * factor & ALL
    return value


def outputs(key: int, purpose: int, n: int) -> list[int]:
    """The first n outputs of a key, an int64, for a purpose, as numbers of int64.

    Example:
        >>> outputs(0, SPLIT, 3)[:2] == outputs(0, SPLIT, 2), outputs(0, DRAW, 1) == outputs(0, MAP, 1)
        (True, False)
    """
    base = mix((key + purpose) % 2**64)
    return [signed(mix((base + k * GAMMA) % 2**64)) for k in range(1, n + 1)]


@replaceable
def below(ops: Ops, draws: Array, n: Array) -> Array:
    """`floor(n * u)` for a 62-bit uniform u: one word alone would prefer some of a million numbers by a part in 2000.

    Args:
        draws: int32 [B, 2], uniform in [0, 2^31): the high and the low half of u.
        n: int32 [B] or scalar, not negative.

    Returns:
        int32 [B], each in [0, n), and 0 where n is 0.
    """
    high, low = ops.mul_wide(draws[:, 0], n)
    carry = low > MASK - mul_high(ops, draws[:, 1], n)
    return high + ops.cast(carry, "int32")


def fraction(ops: CommonOps, words: Array, dtype: str = "float32") -> Array:
    """Random words int32 in [0, 2^31) as fractions in [0, 1), multiples of 2^-24 (float32) or 2^-31 (float64)."""
    if dtype == "float64":
        return ops.cast(words, dtype) * 2.0**-31
    return ops.cast(words >> 7, dtype) * 2.0**-24
