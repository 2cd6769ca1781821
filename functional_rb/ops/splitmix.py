"""Constants of a counter-based 64-bit generator: the k-th output of a key is `mix(base + (k + 1) * GAMMA)`.

SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014, with Stafford's mixing
constants): a bijection of 64 bits, so pure, the same on every device, and ten integer operations for any number of
outputs.
"""

from typing import Final

GAMMA: Final = 0x9E3779B97F4A7C15
FACTORS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS: Final = (30, 27, 31)
SPLIT: Final = 0x5851F42D4C957F2D
DRAW: Final = 0x14057B7EF767814F
"""Added to a key before it is used, so that the keys split from it and the draws made with it are unrelated."""


def signed(value: int) -> int:
    """A number modulo 2^64 as the int64 of the same bits.

    Example:
        >>> signed(2**64 - 1), signed(-1), signed(5)
        (-1, -1, 5)
    """
    value %= 2**64
    return value - 2**64 if value >= 2**63 else value


def mix(value: int) -> int:
    """The mixing function on a Python number modulo 2^64."""
    for shift, factor in zip(SHIFTS, (*FACTORS, 1), strict=True):
        value = (value ^ (value >> shift)) * factor % 2**64
    return value
