"""The draws of `functional_rb.splitmix` as a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb import splitmix
from functional_rb.native.cache import compiled

GAMMA = np.uint64(splitmix.GAMMA)
DRAW = np.uint64(splitmix.DRAW)
FACTOR_1, FACTOR_2 = (np.uint64(factor) for factor in splitmix.FACTORS)
SHIFT_1, SHIFT_2, SHIFT_3 = (np.uint64(shift) for shift in splitmix.SHIFTS)
TOP = np.uint64(33)


@compiled
def mix(value: Any) -> Any:
    """`splitmix.mix`."""
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
