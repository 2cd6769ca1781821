"""Programs in which a buffer is emptied, or gets another spec, while others still hold handles of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.backends import Backend

ITEM = {"task": frb.Unbounded((), "int32"), "step": frb.Unbounded((), "int32"), "done": frb.Binary()}
BATCH = 6
SAMPLERS = {
    "uniform": frb.Uniform(),
    "prioritized": frb.Prioritized(alpha=1.0),
    "slices": frb.Slices(2),
    "prioritized slices": frb.PrioritizedSlices(2, alpha=1.0),
    "without replacement": frb.WithoutReplacement(),
    "slices without replacement": frb.SlicesWithoutReplacement(2),
    "recency": frb.Recency(),
    "fifo": frb.Fifo(),
    "lifo": frb.Lifo(),
    "queue": frb.Queue(),
}


def episode(task: int, first: int) -> dict[str, np.ndarray]:
    """Steps of a task."""
    number = np.arange(first, first + BATCH, dtype=np.int32)
    return {"task": np.full(BATCH, task, np.int32), "step": number, "done": number % 3 == 2}


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
    assert int(rb.stale(state)) == sum(len(handles) * (3 - k) for k, handles in enumerate(late[:3]))
