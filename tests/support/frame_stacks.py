"""Items that are stacks of frames, and steps of one episode, whose stacks have all but one frame in common."""

from __future__ import annotations

from typing import Any

import numpy as np

import functional_rb as frb
from functional_rb.structures import frame_ring

WIDE, SMALL = frb.Bounded(0, 255, (30, 40, 4), "uint8"), frb.Unbounded((3, 2))
STACKS: dict[str, tuple[dict[str, Any], frb.Compact]] = {
    "wide, and next": ({"obs": WIDE, "next_obs": WIDE}, frb.Compact(stack=4, axis=-1)),
    "of numbers": ({"obs": SMALL}, frb.Compact(stack={"obs": 3})),
    "two depths": (
        {"obs": frb.Bounded(0, 255, (4, 30, 40), "uint8"), "low": SMALL},
        frb.Compact(stack={"obs": 4, "low": 3}),
    ),
}


def steps_of_stacks(item: dict[str, Any], axis: int, count: int) -> dict[str, np.ndarray]:
    """Steps of one episode, with rewards; leaves whose names begin with "next" are one frame ahead."""
    found = {"reward": np.arange(count, dtype=np.float32)}
    for name, leaf in item.items():
        begin = int(name.startswith("next"))
        numbers = np.arange(begin, begin + count)[:, None] + np.arange(leaf.shape[axis])
        shape = [1] * len(leaf.shape)
        shape[axis] = leaf.shape[axis]
        stacks = np.broadcast_to(numbers.reshape(count, *shape), (count, *leaf.shape))
        found[name] = np.ascontiguousarray(stacks.astype(leaf.dtype))
    return found


def chain_of(item: Any, compact: frb.Compact, capacity: int = 64, **others: Any) -> frame_ring.Chain:
    chain = frb.BufferSpec(item, capacity, compact=compact, **others).plan.frames
    assert chain is not None
    return chain
