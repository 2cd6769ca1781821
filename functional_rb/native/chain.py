"""The twin of `frames.places`, on raw memory."""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

from functional_rb.frames import Chain
from functional_rb.native.cache import compiled
from functional_rb.native.plan import Vector

LENGTH: Final = 0
ROOM: Final = 1
LIMIT: Final = 2
DEPTH: Final = 3
STEP: Final = 4
JUMP: Final = 5
"""How far on the newest frame is that is asked for: usually, and after a jump."""


def encode(chain: Chain, depth: int, following: bool) -> Vector:
    """What the kernel knows of a chain and of the stacks that are asked for, read-only."""
    step, jump = (1, chain.depth) if following else (0, 0)
    return _encode(chain.items.length, chain.room, chain.limit, depth, step, jump)


@functools.lru_cache(maxsize=1024)
def _encode(*values: int) -> Vector:
    encoded = np.asarray(values, np.int32)
    encoded.flags.writeable = False
    return encoded


@compiled
def places(plan: Any, at: Any, slots: Any, found: Any) -> None:
    """`frames.places`, to found int32 [n * depth]."""
    length, room, limit = np.int64(plan[LENGTH]), np.int64(plan[ROOM]), np.int64(plan[LIMIT])
    depth = np.int64(plan[DEPTH])
    for i in range(slots.size):
        first = np.int64(slots[i]) // length * room
        code = np.int64(at[slots[i]])
        newest = (code >> 1) + (np.int64(plan[JUMP]) if code & 1 else np.int64(plan[STEP]))
        for j in range(depth):
            coordinate = newest - depth + 1 + j
            if coordinate < 0:
                coordinate += limit
            elif coordinate >= limit:
                coordinate -= limit
            found[i * depth + j] = first + np.int64(np.uint32(coordinate) % np.uint32(room))
