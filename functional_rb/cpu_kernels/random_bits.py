"""The random numbers of both backends as kernels: those of `functional_rb.ops.random_bits`, and JAX's Threefry."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels.cache import compiled, entry_point
from functional_rb.cpu_kernels.raw_memory import INT32, ints, table
from functional_rb.ops import random_bits

GAMMA = np.uint64(random_bits.GAMMA)
DRAW = np.uint64(random_bits.DRAW)
FACTOR_1, FACTOR_2 = (np.uint64(factor) for factor in random_bits.FACTORS)
SHIFT_1, SHIFT_2, SHIFT_3 = (np.uint64(shift) for shift in random_bits.SHIFTS)
TOP = np.uint64(33)


@compiled
def mix(value: Any) -> Any:
    """Mix the bits of a uint64 as `random_bits.mix` does: thrice x ^= x >> shift, with two multiplications between."""
    value = (value ^ (value >> SHIFT_1)) * FACTOR_1
    value = (value ^ (value >> SHIFT_2)) * FACTOR_2
    return value ^ (value >> SHIFT_3)


@compiled
def fill(key: Any, words: Any) -> None:
    """Fill int32 [B, W] with uniform numbers in [0, 2^31)."""
    value = mix(np.uint64(key) + DRAW)
    flat = words.reshape(-1)
    for k in range(flat.size):
        value += GAMMA
        flat[k] = np.int32(mix(value) >> TOP)


@entry_point
def below(words: Any, n: Any, chosen: Any, counts: Any, size: Any) -> None:
    """Do what `random_bits.below` does by words int32 [size, 2]; n is int32 [counts], of one for each, or for all."""
    words, n, chosen = table(words, INT32, (size, 2)), ints(n, counts), ints(chosen, size)
    for i in range(size):
        count = np.int64(n[i if n.size > 1 else 0])
        chosen[i] = (np.int64(words[i, 0]) * count + ((np.int64(words[i, 1]) * count) >> 31)) >> 31


@compiled
def rounds(x0: Any, x1: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Four rounds of Threefry-2x32 with the given rotations."""
    for turn in (np.uint32(a), np.uint32(b), np.uint32(c), np.uint32(d)):
        x0 = np.uint32(x0 + x1)
        x1 = np.uint32(np.uint32(x1 << turn) | np.uint32(x1 >> np.uint32(np.uint32(32) - turn))) ^ x0
    return x0, x1


@compiled
def fill_threefry(first: Any, second: Any, words: Any) -> None:
    """Fill int32 [n] with what `jax.random.bits(key, (n,)) >> 1` gives for a key of two words.

    Threefry-2x32 with 20 rounds (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011) of a 64-bit counter,
    its two outputs combined by exclusive or, as JAX has it when `jax_threefry_partitionable` is on.
    """
    k0, k1 = np.uint32(first), np.uint32(second)
    k2 = np.uint32(k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    for i in range(words.size):
        x0, x1 = k0, np.uint32(np.uint32(i) + k1)
        x0, x1 = rounds(x0, x1, 13, 15, 26, 6)
        x0, x1 = np.uint32(x0 + k1), np.uint32(x1 + k2 + np.uint32(1))
        x0, x1 = rounds(x0, x1, 17, 29, 16, 24)
        x0, x1 = np.uint32(x0 + k2), np.uint32(x1 + k0 + np.uint32(2))
        x0, x1 = rounds(x0, x1, 13, 15, 26, 6)
        x0, x1 = np.uint32(x0 + k0), np.uint32(x1 + k1 + np.uint32(3))
        x0, x1 = rounds(x0, x1, 17, 29, 16, 24)
        x0, x1 = np.uint32(x0 + k1), np.uint32(x1 + k2 + np.uint32(4))
        x0, x1 = rounds(x0, x1, 13, 15, 26, 6)
        x0, x1 = np.uint32(x0 + k2), np.uint32(x1 + k0 + np.uint32(5))
        words[i] = np.int32(np.uint32(x0 ^ x1) >> np.uint32(1))
