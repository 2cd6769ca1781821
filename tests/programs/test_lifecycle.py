"""Programs in which a buffer is emptied, or gets another spec, while others still hold handles of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support.backends import Backend
from tests.support.training import SAMPLERS

ITEM = {"task": frb.Unbounded((), "int32"), "step": frb.Unbounded((), "int32"), "done": frb.Binary()}
BATCH = 6


def episode(task: int, first: int) -> dict[str, np.ndarray]:
    """Steps of a task."""
    number = np.arange(first, first + BATCH, dtype=np.int32)
    return {"task": np.full(BATCH, task, np.int32), "step": number, "done": number % 3 == 2}


@pytest.mark.few_on_jax(4)
@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_late_update_after_the_task_has_changed(library: Backend, kind: str) -> None:
    """A learner sends priorities and new states of its network back, while the actor has gone on to another task."""
    rb, sampler = library.rb, SAMPLERS[kind]
    state: Any = rb.init(frb.BufferSpec(ITEM, 12, sampler))
    late: list[np.ndarray] = []
    for task in range(4):
        for k in range(2):
            state = rb.add(state, episode(task, BATCH * k))
        state, sample = rb.sample(state, rb.key(task), 4)
        for handles in late:  # those of all tasks before
            priorities = np.full(len(handles), 100, np.float32) if sampler.has_priorities else None
            items = {"task": np.full(len(handles), -1, np.int32)}
            state = rb.update(state, handles, priorities, items)
        late.append(library.numpy(sample.indices).reshape(-1))
        everything = np.arange(rb.size(state) + 200, dtype=np.int32)
        there = everything[library.numpy(rb.is_live(state, everything))]
        assert set(library.numpy(rb.get(state, there)["task"]).tolist()) <= {task}
        if sampler.has_priorities:
            assert library.numpy(state.tree).max() < 100
        state = rb.clear(state)
    assert int(rb.counts(state).stale) == sum(len(handles) * (3 - k) for k, handles in enumerate(late[:3]))


@pytest.mark.parametrize("kind", ["prioritized", "prioritized slices"])
def test_a_vectorised_collector_that_gives_environments_first(library: Backend, kind: str) -> None:
    """Batches [E, T] as collectors give them; the priorities of what has come are set at once, and looked at."""
    rb, sampler = library.rb, SAMPLERS[kind]
    lanes, steps = 3, 4
    state: Any = rb.init(frb.BufferSpec(ITEM, 24, sampler, lanes=lanes))
    for k in range(5):
        number = np.arange(steps * k, steps * (k + 1), dtype=np.int32)
        task = np.arange(lanes, dtype=np.int32)
        rows = {
            "task": np.broadcast_to(task[:, None], (lanes, steps)).copy(),
            "step": np.broadcast_to(number, (lanes, steps)).copy(),
            "done": np.broadcast_to(number % 5 == 4, (lanes, steps)).copy(),
        }
        state = rb.add(state, rows, time_major=False)
        handles = rb.newest(state, steps)  # [T, E]
        got = rb.get(state, handles.reshape(-1))
        assert library.numpy(got["task"]).reshape(steps, lanes).tolist() == rows["task"].T.tolist()
        assert library.numpy(got["step"]).reshape(steps, lanes).tolist() == rows["step"].T.tolist()
        errors = (rows["step"].T + 1.0 + rows["task"].T).reshape(-1, 1)  # a critic's, float64 [B, 1]
        state = rb.update(state, handles.reshape(-1), errors)
        assert library.numpy(rb.priorities(state, handles.reshape(-1))).tolist() == errors.reshape(-1).tolist()
    everything = rb.newest(state, 8).reshape(-1)
    probabilities = library.numpy(rb.probabilities(state, everything))
    np.testing.assert_allclose(probabilities.sum(), 1, rtol=1e-6)
    state, sample = rb.sample(state, rb.key(0), 64)
    first = library.numpy(sample.indices).reshape(64, -1)[:, 0]
    told = dict(zip(library.numpy(everything).tolist(), probabilities.tolist(), strict=True))
    np.testing.assert_allclose(library.numpy(sample.probabilities), [told[h] for h in first.tolist()], rtol=1e-6)
