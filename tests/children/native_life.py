"""Random lives of buffers on NumPy's arrays: processes with other native code, or none, repeat them bit for bit."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

import functional_rb as frb
from functional_rb.buffer.checked_items import Batch
from functional_rb.storage import host_state
from functional_rb.storage.host_state import ENGINE, Bits

ITEM = {"done": frb.Binary(), "id": frb.Unbounded((), "int32"), "image": frb.Unbounded((1030,), "uint8")}
ITEM |= {"reward": frb.Unbounded(), "x": frb.Unbounded((3,))}
RETURNS = frb.n_step(2, 0.9, reward_key="reward", terminated_key="done", end_keys=("done",))
SPECS = (
    frb.BufferSpec(ITEM, 300),
    frb.BufferSpec(ITEM, 300, frb.Prioritized(alpha=0.7, beta=0.5)),
    frb.BufferSpec(ITEM, 300, frb.Prioritized(), lanes=3),
    frb.BufferSpec(ITEM, 300, frb.WithoutReplacement()),
    frb.BufferSpec(ITEM, 300, frb.Slices(4, strict_length=False, end_keys=("done",)), lanes=2, transforms=RETURNS),
    frb.BufferSpec(ITEM, 300, frb.PrioritizedSlices(3, end_keys=("done",))),
)


def batch_of(rng: np.random.Generator, n: int) -> list[np.ndarray]:
    """Items that are told apart."""
    parts = rng.random(n) < 0.2, rng.integers(0, 2**31, n, np.int32), rng.integers(0, 256, (n, 1030), np.uint8)
    return [*parts, rng.normal(size=n).astype(np.float32), rng.normal(size=(n, 3)).astype(np.float32)]


def life(spec: frb.BufferSpec, seed: int) -> Iterator[Any]:
    """All arrays that a buffer gives out on the way, and those that it holds in the end."""
    state, rng = host_state.init(spec, None), np.random.default_rng(seed)
    prioritized = hasattr(spec.sampler, "alpha")
    for _ in range(4):
        priorities = rng.lognormal(0, 4, 120).astype(np.float32) if prioritized and spec.known.buffer else None
        state = ENGINE.add(state, Batch(batch_of(rng, 120), 120, rng.random(120) < 0.8, priorities), None)
        bits = Bits(rng.integers(0, 2**31, spec.draw_shape(40), np.int32))
        state, leaves, drawn = ENGINE.sample(state, bits, 40, np.float32(0.5))
        yield from leaves
        yield from (x for x in drawn if isinstance(x, np.ndarray))
        if prioritized:
            handles = drawn.handles.reshape(-1)
            new = rng.choice([0.0, 1e-40, 0.3, 7.0, 1e30, np.nan, -1.0], handles.size).astype(np.float32)
            state = ENGINE.update(state, handles, new, {})
    yield from state._version.own().by_name.values()
    yield state._counters


@functools.cache
def digest() -> str:
    """Of the bytes of all of that, with dtypes and shapes."""
    found = hashlib.sha256()
    for seed, spec in enumerate(SPECS):
        for array in life(spec, seed):
            found.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    print(digest(), getattr(sys.modules.get("functional_rb._native"), "INSTRUCTIONS", None))
