"""Steps by number in a buffer, of which each tells whether it is whole: for tests in which it gets another spec."""

from __future__ import annotations

from typing import Any

import numpy as np

import functional_rb as frb
from tests.support.backends import Backend

STEPS = {"id": frb.Unbounded((), "int32"), "image": frb.Unbounded((1030,), "uint8"), "done": frb.Binary()}
CORES = ["jax", "torch", "jax-host"]


def steps(first: int, count: int, every: int = 4) -> dict[str, np.ndarray]:
    """Steps by number, in episodes of a length."""
    ids = np.arange(first, first + count, dtype=np.int32)
    return {
        "id": ids,
        "image": np.broadcast_to((ids % 251)[:, None], (count, 1030)).astype(np.uint8),
        "done": ids % every == every - 1,
    }


def filled(backend: Backend, sampler: Any, capacity: int = 8, count: int = 11, **fields: Any) -> Any:
    """A buffer with its newest steps; priorities are their numbers."""
    state = backend.init(frb.BufferSpec(STEPS, capacity, sampler, **fields))
    state = backend.add(state, steps(0, count))
    if state.spec.sampler.has_priorities:
        ids = np.arange(count, dtype=np.float32)
        state = backend.update(state, backend.array(ids.astype(np.int32)), backend.array(ids))
    return state


def ids_of(backend: Backend, state: Any) -> dict[int, int]:
    """Each live item's number by its handle, whole."""
    handles = np.arange(200, dtype=np.int32)
    live = handles[backend.numpy(backend.rb.is_live(state, handles))]
    got = backend.rb.get(state, live)
    ids = backend.numpy(got["id"]).tolist()
    assert backend.numpy(got["image"])[:, 1029].tolist() == [k % 251 for k in ids]
    assert len(ids) == int(backend.rb.size(state))
    return dict(zip(live.tolist(), ids, strict=True))


def bits(backend: Backend, state: Any) -> list[bytes]:
    """All but the rows."""
    tree = [] if state.tree is None else [state.tree]
    arrays = [*tree, state.counters, *(state.auxiliary[name] for name in sorted(state.auxiliary))]
    return [backend.numpy(x).tobytes() for x in arrays]
