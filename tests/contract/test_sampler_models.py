"""Samplers of single items, with every writer and with lanes, beside plain Python lists."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import functional_rb as frb
from tests.support import backends
from tests.support.backends import Backend
from tests.support.histories import STEP, Rng, histories, pick, run, seeds
from tests.support.random_members import ON_JAX, ON_TORCH, ONE_LANE, SAMPLERS, VARIANTS
from tests.support.spec_pool import OF_ALL_DTYPES, WIDE_DTYPES

WIDE = STEP | {"image": frb.Unbounded((1030,), "uint8")}
EVERY_DTYPE = STEP | OF_ALL_DTYPES | WIDE_DTYPES
BYTES = {name: OF_ALL_DTYPES[name] for name in ("bytes", "wide", "complex", "half")}
"""Without bfloat16, whose NaNs XLA changes where it compiles quickly (see `conftest`)."""


@pytest.mark.parametrize("kind", SAMPLERS)
@histories(20)
@hypothesis.given(rng=seeds)
def test_on_torch(kind: str, rng: Rng) -> None:
    # Few slots, so that histories go round many times.
    lanes = None if kind in ONE_LANE else pick(rng, [None, 1, 2, 3])
    capacity = pick(rng, [1, 4, 5, 7, 16, 17, 33]) * (lanes or 1)
    spec = frb.BufferSpec(pick(rng, [STEP, STEP, WIDE, EVERY_DTYPE]), capacity, SAMPLERS[kind](rng), lanes=lanes)
    run(rng, [pick(rng, VARIANTS)], spec, 30, ON_TORCH)


ON_BOTH = [
    frb.BufferSpec(STEP, 10, frb.Prioritized(max_times_sampled=3), lanes=2),
    frb.BufferSpec(STEP, 7, frb.WithoutReplacement()),
    frb.BufferSpec(STEP, 10, frb.WithoutReplacement(drop_last=True, shuffle=False), lanes=2),
    frb.BufferSpec(STEP, 7, frb.Lifo(max_times_sampled=2)),
    frb.BufferSpec(STEP | OF_ALL_DTYPES, 17, frb.Prioritized(alpha=0.6)),
]


@pytest.mark.parametrize("spec", ON_BOTH, ids=lambda spec: repr(spec.sampler))
@histories(5)
@hypothesis.given(rng=seeds)
def test_from_one_backend_to_the_other(spec: frb.BufferSpec, rng: Rng) -> None:
    run(rng, ["jax", "torch"], spec, 20, ON_JAX)


@histories(8)
@hypothesis.given(rng=seeds)
def test_array_operations_from_one_backend_to_the_other(rng: Rng) -> None:
    spec = frb.BufferSpec(STEP | BYTES, 4, frb.Prioritized(alpha=1.0, new_priority="ever"))
    run(rng, ["jax-core", "torch-core"], spec, 20, ON_JAX)


TRACED = [
    frb.BufferSpec(STEP, 18, frb.Queue(2), lanes=3),
    frb.BufferSpec(STEP | BYTES, 17, frb.Prioritized(alpha=1.0, beta=1.0)),
]


@pytest.mark.parametrize("spec", TRACED, ids=["queue", "prioritized"])
@histories(8)
@hypothesis.given(rng=seeds)
def test_traced(spec: frb.BufferSpec, rng: Rng) -> None:
    # Nobody is told that a queue is full or empty: it is counted, and masked.
    run(rng, ["jax-jit"], spec, 20, ON_JAX)


def filled(backend: Backend, spec: frb.BufferSpec, count: int) -> Any:
    """A buffer that has got items 0 ... count - 1."""
    ids = np.arange(count, dtype=np.int32)
    return backend.add(backend.init(spec), {"id": ids, "x": np.stack([ids] * 2, 1).astype("f4"), "done": ids > count})


@hypothesis.settings(max_examples=60)
@hypothesis.given(data=st.data())
def test_epochs(data: st.DataObject) -> None:
    capacity, count = data.draw(st.integers(1, 9), "capacity"), data.draw(st.integers(1, 20), "items")
    batch, n = data.draw(st.integers(1, 11), "batch"), data.draw(st.integers(0, 3), "passes")
    shuffle, drop_last = data.draw(st.booleans(), "shuffle"), data.draw(st.booleans(), "drop_last")
    sampler = frb.WithoutReplacement(drop_last=drop_last, shuffle=shuffle)
    stored = list(range(max(0, count - capacity), count))
    with backends.make("torch") as backend:
        rb, spec = backend.rb, frb.BufferSpec(STEP, capacity, sampler)
        state = filled(backend, spec, count)
        if sampler.drop_last and batch > len(stored):
            with pytest.raises(ValueError, match="full batch"):
                list(rb.epochs(state, rb.key(1), batch, 1))
            return
        drawn = [backend.numpy(sample.items["id"]).tolist() for _, sample in rb.epochs(state, rb.key(1), batch, n)]
    full, rest = divmod(len(stored), batch)
    sizes = [batch] * full + [rest] * (rest > 0 and not sampler.drop_last)
    assert [len(ids) for ids in drawn] == sizes * n
    for k in range(n):
        ids = list(itertools.chain(*drawn[k * len(sizes) : (k + 1) * len(sizes)]))
        assert len(set(ids)) == len(ids)
        assert set(ids) <= set(stored)
        assert sampler.drop_last or sorted(ids) == stored
        assert sampler.shuffle or ids == stored[: len(ids)]


def test_an_epoch_goes_on_with_the_state_that_is_sent(library: Backend) -> None:
    rb = library.rb
    state = filled(library, frb.BufferSpec(STEP, 6, frb.WithoutReplacement(shuffle=False)), 6)
    one = {"id": np.array([9], np.int32), "x": np.zeros((1, 2), np.float32), "done": np.array([True])}
    steps = rb.epochs(state, rb.key(0), 2)
    state, sample = next(steps)
    seen = library.numpy(sample.items["id"]).tolist()
    for _ in range(3):  # overwrites 0, 1 and 2: the pass loses what it has not shown yet
        state = rb.add(state, one)
    state, sample = steps.send(state)
    seen += library.numpy(sample.items["id"]).tolist()
    for state, sample in steps:  # noqa: B007  # the last one is looked at
        assert all(len(x) == len(sample.indices) for x in (sample.weights, sample.probabilities, sample.mask))
        seen += library.numpy(sample.items["id"]).tolist()
    assert seen == [0, 1, 3, 4, 5]
    assert int(rb.epochs_done(state)) == 1


@pytest.mark.parametrize(
    "sampler",
    [
        frb.Fifo(2),
        frb.Queue(),
        frb.Uniform(2),
        frb.Slices(2),
        frb.SlicesWithoutReplacement(2),
        frb.WithoutReplacement(),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
@pytest.mark.parametrize("name", ["jax-core", "torch-core", "torch-inplace"])
def test_nothing_asked_for_changes_nothing(name: str, sampler: Any) -> None:
    with backends.make(name) as backend:
        state = filled(backend, frb.BufferSpec(STEP, 6, sampler), 5)
        before = backend.numpy(state.counters).tolist()
        state, sample = backend.sample(state, backend.rb.key(0), 0)
        assert backend.numpy(state.counters).tolist() == before
        assert sample.indices.shape[0] == sample.weights.shape[0] == 0


def test_an_epoch_that_is_dropped_counts(library: Backend) -> None:
    rb = library.rb
    sampler = frb.WithoutReplacement(drop_last=True, shuffle=False)
    state = library.init(frb.BufferSpec({"id": frb.Unbounded((), "int32")}, 5, sampler))
    state = library.add(state, {"id": np.arange(5, dtype=np.int32)})
    state, _ = rb.sample(state, rb.key(0), 2)
    assert int(rb.epochs_done(state)) == 0
    # Of the 3 items that are left no full batch can be made; and of the epoch that begins 1 is left after this one.
    state, _ = rb.sample(state, rb.key(1), 4)
    assert int(rb.epochs_done(state)) == 2
