"""Programs whose buffers get another sampler, capacity or alpha while they are trained on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support import backends
from tests.support.backends import Backend
from tests.support.training import SAMPLERS

ITEM = {"number": frb.Unbounded((), "int32"), "done": frb.Binary()}


def steps(first: int, count: int) -> dict[str, np.ndarray]:
    """Steps by number, in episodes of five."""
    number = np.arange(first, first + count, dtype=np.int32)
    return {"number": number, "done": number % 5 == 4}


def errors_of(sample: Any) -> Any:
    """What a critic is wrong by, as arrays of the backend: so much that they can be told from new ones."""
    return sample.items["number"] % 7 + 2.0


# ---------------------------------------------------------------- another sampler, from a checkpoint


@pytest.mark.parametrize("kind", ["prioritized", "prioritized slices", "without replacement"])
def test_a_run_goes_on_with_another_sampler(library: Backend, kind: str, tmp_path: Path) -> None:
    """A run with uniform draws is saved; from what it left the next one goes on, and on the other library too."""
    rb = library.rb
    state = rb.init(frb.BufferSpec(ITEM, 32, batch_size=8))
    for k in range(5):
        state = rb.add(state, steps(8 * k, 8))
        state, _ = rb.sample(state, rb.key(k))
    frb.save(state, tmp_path)
    spec = dataclasses.replace(state.spec, sampler=SAMPLERS[kind])
    for name in ("torch", "jax-host"):
        with backends.make(name) as other:
            go_on(other, tmp_path, spec if name == "torch" else dataclasses.replace(spec, storage=frb.Host()))


def go_on(backend: Backend, path: Path, spec: frb.BufferSpec) -> None:
    """With all items that there were, known by the handles that there were, and priorities of new ones."""
    rb = backend.rb
    state = frb.load(path, rb, spec=spec)
    handles = np.arange(8, 40)
    assert backend.numpy(rb.get(state, handles)["number"]).tolist() == list(range(8, 40))
    if spec.sampler.has_priorities:
        assert backend.numpy(rb.priorities(state, handles)).tolist() == [1.0] * 32
    seen: set[int] = set()
    for k in range(4):
        state, sample = rb.sample(state, rb.key(k))
        seen |= set(backend.numpy(sample.items["number"]).reshape(-1).tolist())
        if spec.sampler.has_priorities:
            state = rb.update(state, sample.indices.reshape(-1), errors_of(sample).reshape(-1))
            live = backend.numpy(rb.is_live(state, sample.indices.reshape(-1)))
            told = backend.numpy(rb.priorities(state, sample.indices.reshape(-1)))
            wanted = backend.numpy(errors_of(sample)).reshape(-1)
            np.testing.assert_allclose(told[live], wanted[live], rtol=1e-6)
    if not spec.sampler.has_priorities:
        assert len(seen) == 32  # an epoch
    state = rb.add(state, steps(40, 2))
    assert backend.numpy(rb.get(state, np.array([10, 41]))["number"]).tolist() == [10, 41]
    assert int(rb.counts(state).stale) == 0


# ---------------------------------------------------------------- a buffer that grows


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("name", ["torch", "jax-host"])
def test_a_buffer_that_grows(name: str, kind: str) -> None:
    """It has twice the room whenever it is full, up to a most. Handles go on: what is late finds its item, or none."""
    with backends.make(name) as backend:
        rb, sampler, most = backend.rb, SAMPLERS[kind], 32
        state: Any = backend.init(frb.BufferSpec(ITEM, 8, sampler))
        late: list[tuple[np.ndarray, np.ndarray]] = []
        for k in range(12):
            if int(rb.size(state)) + 4 > state.spec.capacity and state.spec.capacity < most:
                state = rb.with_spec(state, dataclasses.replace(state.spec, capacity=2 * state.spec.capacity))
            state = rb.add(state, steps(4 * k, 4))
            for handles, numbers in late:
                live = backend.numpy(rb.is_live(state, handles))
                assert backend.numpy(rb.get(state, handles[live])["number"]).tolist() == numbers[live].tolist()
            state, sample = rb.sample(state, rb.key(k), 2)
            numbers = backend.numpy(sample.items["number"]).reshape(-1)
            late.append((backend.numpy(sample.indices).reshape(-1), numbers))
        assert state.spec.capacity == most
        newest = np.arange(48 - int(rb.size(state)), 48)
        assert len(newest) == (24 if kind == "queue" else most)  # nothing was lost while there was room
        assert backend.numpy(rb.get(state, newest)["number"]).tolist() == newest.tolist()


def test_a_compiled_step_of_a_buffer_that_grows(library: Backend) -> None:
    """One shape is compiled for each capacity, and the priorities come along."""
    rb, shapes = library.rb, list[int]()

    @rb.jit
    def step(state: Any, batch: Any, key: Any) -> tuple[Any, Any]:
        shapes.append(state.spec.capacity)
        state = rb.add(state, batch)
        state, sample = rb.sample(state, key, 4)
        return rb.update(state, sample.indices, errors_of(sample)), sample

    state = rb.init(frb.BufferSpec(ITEM, 16, frb.Prioritized(alpha=1.0)))
    known: dict[int, float] = {}
    for k in range(10):
        if int(rb.size(state)) == 16 == state.spec.capacity:
            state = rb.with_spec(state, dataclasses.replace(state.spec, capacity=40))
        state, sample = step(state, library.tree(steps(4 * k, 4)), rb.key(k))
        numbers = library.numpy(sample.items["number"]).tolist()
        known |= {n: n % 7 + 2.0 for n in numbers}
    assert sorted(set(shapes)) == [16, 40]
    assert len(shapes) == (2 if library.library == "jax" else 10)
    told = library.numpy(rb.priorities(state, np.arange(40)))
    assert len(known) > 10
    assert {n: told[n] for n in known} == known
    assert int(rb.size(state)) == 40


# ---------------------------------------------------------------- alpha that is annealed


def annealed(k: int) -> float:
    """From 1 to 0.25."""
    return 1.0 - 0.25 * k


def test_alpha_is_annealed_by_other_specs(library: Backend) -> None:
    """Between epochs, say: what no update reaches has the new power too."""
    rb = library.rb
    state = rb.init(frb.BufferSpec(ITEM, 8, frb.Prioritized(alpha=annealed(0))))
    state = rb.add(state, steps(0, 8), priorities=library.array(np.arange(1, 9, dtype=np.float32)))
    auxiliary = np.arange(1.0, 9.0)
    for k in range(0, 4, 2):
        sampler = dataclasses.replace(state.spec.sampler, alpha=annealed(k))
        state = rb.with_spec(state, dataclasses.replace(state.spec, sampler=sampler))
        probabilities = library.numpy(rb.probabilities(state, np.arange(8)))
        np.testing.assert_allclose(
            probabilities, auxiliary ** annealed(k) / (auxiliary ** annealed(k)).sum(), rtol=3e-6
        )
        state = rb.update(state, np.array([k]), library.array(np.array([10.0 * (k + 1)], np.float32)))
        auxiliary[k] = 10.0 * (k + 1)
    np.testing.assert_allclose(library.numpy(rb.priorities(state, np.arange(8))), auxiliary, rtol=3e-6)


def test_alpha_is_annealed_within_one_compiled_step(library: Backend) -> None:
    """The spec has alpha 1, and what is given are priorities to a power that may be traced."""
    rb, traced = library.rb, list[None]()

    @rb.jit
    def step(state: Any, handles: Any, errors: Any, alpha: Any) -> Any:
        traced.append(None)
        return rb.update(state, handles, errors**alpha)

    state = rb.init(frb.BufferSpec(ITEM, 8, frb.Prioritized(alpha=1.0)))
    state = rb.add(state, steps(0, 8))
    errors = np.arange(1, 9, dtype=np.float32)
    for k in range(4):
        alpha = library.array(np.array(annealed(k), np.float32))
        state = step(state, library.array(np.arange(8, dtype=np.int32)), library.array(errors), alpha)
        probabilities = library.numpy(rb.probabilities(state, np.arange(8)))
        np.testing.assert_allclose(probabilities, errors ** annealed(k) / (errors ** annealed(k)).sum(), rtol=3e-6)
    assert len(traced) == (1 if library.library == "jax" else 4)
