"""A reservoir by given draws, on both backends' arrays, beside a model and the algorithm."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import numpy as np
import torch

import functional_rb as frb
from functional_rb.buffer import functions
from jax_backend.arrays import ops as jax_ops
from tests.support.histories import STEP, WORD, rows_of
from tests.support.models import Model
from torch_backend.arrays import ops as torch_ops

CAPACITY, BATCH = 3, 6
RESERVOIR = frb.BufferSpec(STEP, CAPACITY, writer=frb.Reservoir())
words = st.sampled_from([0, WORD - 1, WORD // 2, WORD // 3]) | st.integers(0, WORD - 1)
batches = st.tuples(hnp.arrays(np.int32, (BATCH, 2), elements=words), hnp.arrays(bool, BATCH) | st.none())


@jax.jit
def added_on_jax(arrays: Any, leaves: Any, mask: Any, draws: Any) -> Any:
    return functions.add(jax_ops, arrays, RESERVOIR, leaves, BATCH, mask, None, draws)


@hypothesis.settings(max_examples=60)
@hypothesis.given(history=st.lists(batches, min_size=1, max_size=6))
def test_a_reservoir_by_given_draws(history: list[tuple[np.ndarray, np.ndarray | None]]) -> None:
    # Algorithm R, written out again in two lines: the model is seen to be right too.
    model, expected, seen = Model(RESERVOIR), {}, 0
    by_torch, by_jax = (functions.init(ops, RESERVOIR) for ops in (torch_ops, jax_ops))
    for turn, (draws, mask) in enumerate(history):
        ids = np.arange(BATCH * turn, BATCH * (turn + 1), dtype=np.int32)
        items = {"id": ids, "x": np.stack([ids, -ids], 1).astype(np.float32), "done": ids % 2 == 0}
        leaves = [items[name] for name in RESERVOIR.plan.names]
        tensors = [torch.from_numpy(leaf) for leaf in leaves]
        marks = None if mask is None else torch.from_numpy(mask)
        by_torch = functions.add(torch_ops, by_torch, RESERVOIR, tensors, BATCH, marks, None, torch.from_numpy(draws))
        by_jax = added_on_jax(by_jax, leaves, mask, draws)
        model.add(rows_of(items, BATCH), [True] * BATCH if mask is None else mask.tolist(), None, draws)
        for row in range(BATCH) if mask is None else np.flatnonzero(mask):
            place = seen if seen < CAPACITY else (int(draws[row, 0]) * WORD + int(draws[row, 1])) * (seen + 1) >> 62
            expected, seen = expected | ({place: int(ids[row])} if place < CAPACITY else {}), seen + 1
        assert {step.slot: step.id for step in model.steps()} == expected
        for arrays in (by_torch, by_jax):
            size = int(arrays.counters[1])
            assert size == min(seen, CAPACITY)
            handles = np.asarray(arrays.auxiliary["handle"])
            assert handles[:size].tolist() == [step.handle for step in model.steps()]
            stored = np.asarray(arrays.rows)
            assert stored.tolist() == np.asarray(by_torch.rows).tolist()
        found = functions.get(torch_ops, by_torch, RESERVOIR, by_torch.auxiliary["handle"][: len(expected)])
        assert found[RESERVOIR.plan.names.index("id")].tolist() == [expected[slot] for slot in range(len(expected))]
