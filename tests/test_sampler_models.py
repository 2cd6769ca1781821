"""Samplers of single items, with every writer and with lanes, beside plain Python lists."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import functional_rb as frb
from tests import backends
from tests.backends import Backend
from tests.histories import STEP, Shapes, run

WIDE = STEP | {"image": frb.Unbounded((1030,), "uint8")}
SCORED = STEP | {"score": frb.Unbounded((2,))}
limits = st.sampled_from([None, 1, 2, 5])
prioritized = st.builds(
    frb.Prioritized,
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
    beta=st.sampled_from([0.0, 0.4, 1.0]),
    new_priority=st.sampled_from(["live", "ever"]),
    max_times_sampled=limits,
)
passes = st.builds(frb.WithoutReplacement, drop_last=st.booleans(), shuffle=st.booleans())
in_order = {
    "uniform": st.builds(frb.Uniform, max_times_sampled=limits),
    "prioritized": prioritized,
    "recency": st.builds(frb.Recency, strength=st.integers(1, 4)),
    "passes": passes,
    "queue": st.builds(frb.Queue, length=st.integers(1, 4)),
}
ordered = {
    "fifo": st.builds(frb.Fifo, max_times_sampled=limits),
    "lifo": st.builds(frb.Lifo, max_times_sampled=limits),
    "queue": st.just(frb.Queue()),
}
ON_TORCH = Shapes((0, 1, 1, 2, 3, 5, 20), (1, 2, 3, 7, 16), False)
ON_JAX = Shapes((3, 8), (4,), True)


@st.composite
def specs(draw: st.DrawFn, sampler: Any, laned: bool = True) -> frb.BufferSpec:
    """Buffers of few slots, so that histories go round many times."""
    lanes = draw(st.sampled_from([None, 1, 2, 3])) if laned else None
    length = draw(st.sampled_from([4, 5, 7, 16, 17]))
    return frb.BufferSpec(
        draw(st.sampled_from([STEP, STEP, STEP, WIDE])), length * (lanes or 1), draw(sampler), lanes=lanes
    )


@pytest.mark.parametrize("kind", [*in_order, "fifo", "lifo", "queue of items"])
@hypothesis.settings(max_examples=25)
@hypothesis.given(data=st.data())
def test_on_torch(kind: str, data: st.DataObject) -> None:
    laned = kind in in_order
    sampler = in_order[kind] if laned else ordered[kind.split()[0]]
    variant = data.draw(st.sampled_from(["torch", "torch", "torch-core", "torch-inplace"]), "variant")
    run(data, [variant], data.draw(specs(sampler, laned), "spec"), 14, ON_TORCH)


ON_BOTH = [
    frb.BufferSpec(STEP, 12, frb.Uniform(max_times_sampled=2), lanes=3),
    frb.BufferSpec(STEP, 10, frb.Prioritized(max_times_sampled=3), lanes=2),
    frb.BufferSpec(STEP, 7, frb.WithoutReplacement()),
    frb.BufferSpec(STEP, 10, frb.WithoutReplacement(drop_last=True, shuffle=False), lanes=2),
    frb.BufferSpec(STEP, 7, frb.Lifo(max_times_sampled=2)),
    frb.BufferSpec(STEP, 12, frb.Recency(3), lanes=2),
]


@pytest.mark.parametrize("spec", ON_BOTH, ids=lambda spec: repr(spec.sampler))
@hypothesis.settings(max_examples=5)
@hypothesis.given(data=st.data())
def test_from_one_backend_to_the_other(spec: frb.BufferSpec, data: st.DataObject) -> None:
    run(data, ["jax", "torch"], spec, 16, ON_JAX)


@pytest.mark.parametrize("spec", [frb.BufferSpec(STEP, 18, frb.Queue(2), lanes=3)], ids=["queue"])
@hypothesis.settings(max_examples=8)
@hypothesis.given(data=st.data())
def test_traced(spec: frb.BufferSpec, data: st.DataObject) -> None:
    # Nobody is told that a queue is full or empty: it is counted, and masked.
    run(data, ["jax-jit"], spec, 16, ON_JAX)


def filled(backend: Backend, spec: frb.BufferSpec, count: int) -> Any:
    """A buffer that has got items 0 ... count - 1."""
    ids = np.arange(count, dtype=np.int32)
    return backend.add(backend.init(spec), {"id": ids, "x": np.stack([ids] * 2, 1).astype("f4"), "done": ids > count})


@hypothesis.settings(max_examples=60)
@hypothesis.given(data=st.data())
def test_epochs(data: st.DataObject) -> None:
    capacity, count = data.draw(st.integers(1, 9), "capacity"), data.draw(st.integers(1, 20), "items")
    batch, n = data.draw(st.integers(1, 11), "batch"), data.draw(st.integers(0, 3), "passes")
    sampler = data.draw(passes, "sampler")
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
        ids = sum(drawn[k * len(sizes) : (k + 1) * len(sizes)], [])
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
    with pytest.raises(StopIteration):
        while True:
            state, sample = steps.send(state)
            assert all(len(x) == len(sample.indices) for x in (sample.weights, sample.probabilities, sample.mask))
            seen += library.numpy(sample.items["id"]).tolist()
    assert seen == [0, 1, 3, 4, 5]
    assert int(rb.passes(state)) == 1
