"""Epochs: whole passes without replacement, of items and of slices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import functional_rb as frb
from tests.support import backends
from tests.support.backends import Backend
from tests.support.histories import STEP


def filled(backend: Backend, spec: frb.BufferSpec, count: int) -> Any:
    """A buffer that has got items 0 ... count - 1."""
    ids = np.arange(count, dtype=np.int32)
    return backend.add(backend.init(spec), {"id": ids, "x": np.stack([ids] * 2, 1).astype("f4"), "done": ids > count})


@hypothesis.settings(max_examples=60)
@hypothesis.given(data=st.data())
def test_torch_epochs(data: st.DataObject) -> None:
    capacity, count = data.draw(st.integers(1, 9), "capacity"), data.draw(st.integers(1, 20), "items")
    batch, n = data.draw(st.integers(1, 11), "batch"), data.draw(st.integers(0, 3), "epochs")
    shuffle, drop_last = data.draw(st.booleans(), "shuffle"), data.draw(st.booleans(), "drop_last")
    sampler = frb.WithoutReplacement(drop_last=drop_last, shuffle=shuffle)
    stored = list(range(max(0, count - capacity), count))
    with backends.make("torch") as backend:
        rb, spec = backend.rb, frb.BufferSpec(STEP, capacity, sampler)
        state = filled(backend, spec, count)
        if sampler.drop_last and batch > len(stored):
            with pytest.raises(ValueError, match="full batch"):
                list(frb.iterate(rb, state, rb.key(1), batch, epochs=1))
            return
        ahead = data.draw(st.integers(0, 3), "ahead")
        with frb.iterate(rb, state, rb.key(1), batch, epochs=n, prefetch=ahead) as batches:
            drawn = [backend.numpy(sample.items["id"]).tolist() for sample in batches]
        assert int(rb.counts(batches.state).epochs_done) == n
    full, rest = divmod(len(stored), batch)
    sizes = [batch] * full + [rest] * (rest > 0 and not sampler.drop_last)
    assert [len(ids) for ids in drawn] == sizes * n
    for k in range(n):
        ids = list(itertools.chain(*drawn[k * len(sizes) : (k + 1) * len(sizes)]))
        assert len(set(ids)) == len(ids)
        assert set(ids) <= set(stored)
        assert sampler.drop_last or sorted(ids) == stored
        assert sampler.shuffle or ids == stored[: len(ids)]


def once(rb: Any, *args: Any) -> Any:
    return frb.iterate(rb, *args, epochs=1, prefetch=0)


ARGUMENTS: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "a number for a key": (lambda rb, state: once(rb, state, 2), TypeError, "key: expected .* got int"),
    "in another order": (lambda rb, state: once(rb, state, 2, rb.key(0)), TypeError, "key: expected .* got int"),
    "no batch size": (lambda rb, state: once(rb, state, rb.key(0)), ValueError, "batch_size is missing"),
    "a batch of half": (lambda rb, state: once(rb, state, rb.key(0), 0.5), TypeError, "expected batch_size as"),
    "less than nothing": (lambda rb, state: once(rb, state, rb.key(0), -1), ValueError, "expected batch_size"),
    "nothing": (
        lambda rb, state: once(rb, state, rb.key(0), 0),
        ValueError,
        "iterate: expected batch_size >= 1 with epochs",
    ),
    "a text of epochs": (
        lambda rb, state: frb.iterate(rb, state, rb.key(0), 2, epochs="3"),
        TypeError,
        "iterate: expected epochs as",
    ),
    "another sampler": (
        lambda rb, state: once(rb, rb.with_spec(state, frb.BufferSpec(STEP, 6)), rb.key(0), 2),
        ValueError,
        r"iterate: the sampler Uniform\(.*\) draws with replacement and has no epochs; use BufferSpec",
    ),
    "a cell": (lambda rb, state: once(rb, frb.Cell(state), rb.key(0), 2), ValueError, "not a Cell, .* give cell.state"),
}


@pytest.mark.parametrize("case", ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_that_are_none_are_named(
    case: tuple[Callable[[Any, Any], Any], type[Exception], str], library: Backend
) -> None:
    called, kind, message = case
    state = filled(library, frb.BufferSpec(STEP, 6, frb.WithoutReplacement()), 6)
    with pytest.raises(kind, match=message):
        next(called(library.rb, state))


def test_an_epoch_goes_on_with_the_state_that_is_sent(library: Backend) -> None:
    rb = library.rb
    state = filled(library, frb.BufferSpec(STEP, 6, frb.WithoutReplacement(shuffle=False)), 6)
    one = {"id": np.array([9], np.int32), "x": np.zeros((1, 2), np.float32), "done": np.array([True])}
    steps = frb.iterate(rb, state, rb.key(0), 2, epochs=1)
    seen = library.numpy(next(steps).items["id"]).tolist()
    for _ in range(3):  # overwrites 0, 1 and 2: the epoch loses what it has not shown yet
        steps.state = rb.add(steps.state, one)
    for sample in steps:
        assert all(len(x) == len(sample.indices) for x in (sample.weights, sample.probabilities, sample.mask))
        seen += library.numpy(sample.items["id"]).tolist()
    assert seen == [0, 1, 3, 4, 5]
    assert int(rb.counts(steps.state).epochs_done) == 1


def test_threads_and_a_device_change_nothing_of_epochs(library: Backend) -> None:
    rb = library.rb
    state = filled(library, frb.BufferSpec(STEP, 7, frb.WithoutReplacement()), 7)
    state, _ = rb.sample(state, rb.key(5), 3)  # an epoch that is under way counts as the first
    plain = [sample.items["id"].tolist() for sample in frb.iterate(rb, state, rb.key(0), 3, epochs=2, prefetch=0)]
    assert [len(ids) for ids in plain] == [3, 1, 3, 3, 1]
    device = "cpu" if library.library == "torch" else __import__("jax").devices()[0]
    for how in (2, frb.Prefetch(9, threads=3)):
        with frb.iterate(rb, state, rb.key(0), 3, epochs=2, prefetch=how, device=device) as batches:
            ahead = [sample.items["id"].tolist() for sample in batches]
            assert next(batches, None) is None
        assert ahead == plain
        assert int(rb.counts(batches.state).epochs_done) == 2
    assert [sample.items["id"].tolist() for sample in frb.iterate(rb, state, rb.key(0), 3, n=3, epochs=2)] == plain[:3]


@pytest.mark.few_on_jax(2)
@pytest.mark.parametrize(
    "sampler",
    [
        frb.InOrder(2),
        frb.Queue(),
        frb.Uniform(2),
        frb.Slices(2),
        frb.SlicesWithoutReplacement(2),
        frb.WithoutReplacement(),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
@pytest.mark.parametrize("backend", ["jax-core", "torch-core", "torch-inplace"], indirect=True)
def test_nothing_asked_for_changes_nothing(backend: Backend, sampler: Any) -> None:
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
    assert int(rb.counts(state).epochs_done) == 0
    # Of the 3 items that are left no full batch can be made; and of the epoch that begins 1 is left after this one.
    state, _ = rb.sample(state, rb.key(1), 4)
    assert int(rb.counts(state).epochs_done) == 2


@hypothesis.settings(max_examples=40)
@hypothesis.given(data=st.data())
def test_torch_epochs_of_windows(data: st.DataObject) -> None:
    length, batch = data.draw(st.integers(1, 3), "length"), data.draw(st.integers(1, 5), "batch")
    steps, flat = data.draw(st.booleans(), "batch counts steps"), data.draw(st.booleans(), "flat")
    drop_last = data.draw(st.booleans(), "drop_last")
    ends = np.array(data.draw(st.lists(st.booleans(), min_size=1, max_size=20), "ends"))
    ids = np.arange(len(ends), dtype=np.int32)
    starts = [k for k in range(len(ends) - length + 1) if not ends[k : k + length - 1].any()]
    with backends.make("torch") as backend:
        rb, form = backend.rb, {"batch": "steps" if steps else "slices", "flat": flat, "drop_last": drop_last}
        sampler = frb.SlicesWithoutReplacement(length, weighting="window", **form)
        state = rb.init(frb.BufferSpec({"id": frb.Unbounded((), "int32"), "done": frb.Binary()}, 20, sampler))
        state = rb.add(state, {"id": ids, "done": ends})
        if not starts or (drop_last and len(starts) < batch):
            with pytest.raises(ValueError, match="none of"):
                list(once(rb, state, rb.key(2), batch * length if steps else batch))
            return
        samples = list(frb.iterate(rb, state, rb.key(2), batch * length if steps else batch, epochs=2))
        drawn = []
        for sample in samples:
            rows = len(sample.weights)
            lead = (rows * length,) if flat else (rows, length)
            assert all(tuple(x.shape) == lead for x in (sample.items["id"], sample.indices, *sample[4:-1]))
            assert len(sample.probabilities) == rows <= batch
            assert sample.mask.all()
            drawn.append(backend.numpy(sample.items["id"]).reshape(rows, length))
    full, rest = divmod(len(starts), batch)
    assert [len(x) for x in drawn] == ([batch] * full + [rest] * (rest > 0 and not drop_last)) * 2
    for half in (drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]):
        rows = np.concatenate(half).tolist()
        assert len({row[0] for row in rows}) == len(rows)
        assert all(row == list(range(row[0], row[0] + length)) and row[0] in starts for row in rows)
        assert drop_last or len(rows) == len(starts)


@pytest.mark.parametrize("traced", ["state", "key", "nothing", "mapped"])
def test_epochs_that_are_traced_are_refused_in_words(traced: str) -> None:
    """Nothing is known there that could tell when they end; JAX said so in words of its own."""
    import jax

    import jax_backend as rb

    spec = frb.BufferSpec(frb.Unbounded(()), 4, frb.WithoutReplacement())
    state, key = rb.add(rb.init(spec), np.ones(3, np.float32)), rb.key(0)
    calls: dict[str, Callable[[], Any]] = {
        "state": lambda: jax.jit(lambda state: list(once(rb, state, key, 2)))(state),
        "key": lambda: jax.jit(lambda key: list(once(rb, state, key, 2)))(key),
        "nothing": lambda: jax.jit(lambda: list(once(rb, state, key, 2)))(),
        "mapped": lambda: jax.vmap(lambda key: list(once(rb, state, key, 2)))(rb.split(key, 2)),
    }
    with pytest.raises(TypeError, match=r"^iterate: expected a state and a key .* outside of jax\.jit and vmap"):
        calls[traced]()
