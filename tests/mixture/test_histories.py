"""Histories of mixtures against a plain list of lists: adds, updates, older mixtures, copies, checkpoints."""

from __future__ import annotations

import copy
import pickle
import tempfile
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import functional_rb as frb
import torch_backend as rb
from tests.mixture.mixtures import ITEM
from tests.support.effort import effort

CAPACITY = 4
SPECS = [frb.BufferSpec(ITEM, CAPACITY), frb.BufferSpec(ITEM, CAPACITY, frb.Prioritized(alpha=1.0))]
KINDS = ("add", "add_", "update", "update_", "older", "pickle", "copy", "save", "load")
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 2**16)),
    max_size=12,
)


class Model:
    """Of each buffer the items by their handles, the oldest first, and priorities beside."""

    def __init__(self) -> None:
        self.items: list[dict[int, float]] = [{}, {}]
        self.priorities: dict[int, float] = {}
        self.added = [0, 0]

    def add(self, k: int, values: list[float]) -> None:
        for value in values:
            default = max((self.priorities[h] for h in self.items[1]), default=0.0) or 1.0
            self.items[k][self.added[k]] = value
            if k == 1:
                self.priorities[self.added[k]] = default
            self.added[k] += 1
            if len(self.items[k]) > CAPACITY:
                del self.items[k][next(iter(self.items[k]))]

    def update(self, handles: np.ndarray, priorities: np.ndarray, values: np.ndarray) -> None:
        for (k, handle), priority, value in zip(handles.tolist(), priorities.tolist(), values.tolist(), strict=True):
            if k in (0, 1) and handle in self.items[k]:
                self.items[k][handle] = value
                if k == 1:
                    self.priorities[handle] = priority


def check(mixture: Any, model: Model) -> None:
    """What is stored is what the lists have, and only that is drawn."""
    assert rb.size(mixture, each=True).tolist() == [len(items) for items in model.items]
    handles = [(k, h) for k, items in enumerate(model.items) for h in items]
    if not handles:
        return
    named = np.array(handles, np.int32)
    assert rb.get(mixture, named)["x"].tolist() == [model.items[k][h] for k, h in handles]
    assert rb.priorities(mixture, named).tolist() == [model.priorities[h] if k else 0 for k, h in handles]
    _, sample = rb.sample(mixture, rb.key(len(handles)), 6)
    drawn = zip(sample.indices.tolist(), sample.items["x"].tolist(), strict=True)
    assert all(model.items[k][h] == x for (k, h), x in drawn)


@settings(max_examples=effort(25, 1000))
@given(STEPS)
def test_a_history_is_that_of_lists(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as path:
        go_through(steps, path)


def go_through(steps: list[tuple[str, int]], path: str) -> None:
    mixture, model = frb.Mixture([rb.init(spec) for spec in SPECS]), Model()
    older: list[tuple[Any, Model]] = []
    saved: Model | None = None
    for step, seed in steps:
        rng = np.random.default_rng(seed)
        if step.startswith("add"):
            values = rng.integers(0, 100, rng.integers(1, 4)).astype(np.float32)
            k = int(rng.integers(0, 2))
            older = older if step == "add" else []
            mixture = getattr(rb, step)(mixture, {"x": values}, to=k)
            # All of a batch that comes without priorities gets the largest of those before.
            model.add(k, values.tolist())
        elif step.startswith("update"):
            handles = rng.integers(-1, [3, 8], (5, 2)).astype(np.int32)
            priorities, values = (rng.integers(1, 100, 5).astype(np.float32) for _ in range(2))
            older = older if step == "update" else []
            mixture = getattr(rb, step)(mixture, handles, priorities, items={"x": values})
            model.update(handles, priorities, values)
        elif step == "older":
            older.append((mixture, copy.deepcopy(model)))
        elif step == "save":
            frb.save(mixture, path, incremental=bool(seed % 4))
            saved = copy.deepcopy(model)
        elif step == "load" and saved is not None:
            mixture, model = frb.load(path, rb), copy.deepcopy(saved)
        else:
            mixture = pickle.loads(pickle.dumps(mixture)) if step == "pickle" else copy.deepcopy(mixture)
        check(mixture, model)
    for before, then in older:
        check(before, then)
