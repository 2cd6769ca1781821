"""What a buffer must do at any capacity, on every variant of both backends."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.children import life_of_a_buffer
from tests.support import backends
from tests.support.backends import Backend
from tests.support.children import program
from tests.support.effort import effort

SAMPLERS = [frb.Uniform(), frb.Prioritized(), frb.Prioritized(alpha=1.0, beta=1.0, new_priority="ever")]
CAPACITIES = [1, 3, 16, 17, 257]  # around a row of the tree
BRIEFLY = {
    ("jax-core", SAMPLERS[1]): (257,),
    ("jax-jit", SAMPLERS[1]): (3,),
    **{("jax-core", sampler): (17,) for sampler in SAMPLERS[::2]},
}
CASES = [
    (variant, sampler, capacity)
    for variant in backends.VARIANTS
    for sampler in SAMPLERS
    for capacity in CAPACITIES
    # XLA's operations take a second to compile, and the user's jit half of one: few capacities, with few samplers.
    if variant not in ("jax-core", "jax-jit") or capacity in effort(BRIEFLY.get((variant, sampler), ()), CAPACITIES)
]
ITEM = {"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((2,)), "done": frb.Binary(())}


def batch(backend: Backend, start: int, n: int) -> dict[str, Any]:
    """Items that tell their number in every leaf."""
    number = np.arange(start, start + n, dtype=np.int32)
    x = np.stack([number, -number], 1).astype(np.float32)
    return backend.tree({"id": number, "x": x, "done": number % 3 == 0})


def stored(backend: Backend, state: Any) -> dict[str, np.ndarray]:
    return {k: backend.numpy(v) for k, v in backend.rb.items(state).items()}


def check_item(items: dict[str, np.ndarray], row: int, number: int) -> None:
    assert items["id"][row] == number
    np.testing.assert_array_equal(items["x"][row], np.float32([number, -number]))
    assert items["done"][row] == (number % 3 == 0)


@pytest.mark.few_on_jax(4)
@pytest.mark.parametrize(("backend", "sampler", "capacity"), CASES, ids=str, indirect=["backend"])
def test_newest_items_are_kept_and_drawn(backend: Backend, sampler: Any, capacity: int) -> None:
    state = backend.init(frb.BufferSpec(ITEM, capacity, sampler))
    added = 0
    for n in (1, 0, 2 * capacity + 1, 1):
        state = backend.add(state, batch(backend, added, n))
        added += n
    assert int(backend.rb.size(state)) == min(added, capacity)
    live = range(added - min(added, capacity), added)
    state, sample = backend.sample(state, backend.rb.key(capacity), 64)
    handles = backend.numpy(sample.indices)
    items = {k: backend.numpy(v) for k, v in sample.items.items()}
    assert handles.dtype == np.int32
    for row, handle in enumerate(handles):
        assert handle in live
        check_item(items, row, handle)
    everything = stored(backend, state)
    for number in live:
        check_item(everything, number % capacity, number)


@pytest.mark.few_on_jax(2)
@pytest.mark.few_on_jax(2)
@pytest.mark.parametrize("capacity", [1, 3, 16, 33])
def test_masked_rows_are_not_written(backend: Backend, capacity: int) -> None:
    state = backend.init(frb.BufferSpec(ITEM, capacity, frb.Prioritized()))
    rng = np.random.default_rng(0)
    expected: list[int] = []
    # Of any size, on JAX of three, as each is compiled.
    sizes = [1, capacity, 2 * capacity + 2] if backend.library == "jax" else range(1, 2 * capacity + 3)
    for step in range(12):
        n = int(rng.choice(sizes))
        mask = rng.random(n) < (0.0 if step == 3 else 0.6)
        state = backend.add(state, batch(backend, 1000 * step, n), backend.array(mask))
        expected += (1000 * step + np.flatnonzero(mask)).tolist()
        items = stored(backend, state)
        assert int(backend.rb.size(state)) == min(len(expected), capacity)
        for serial in range(max(0, len(expected) - capacity), len(expected)):
            check_item(items, serial % capacity, expected[serial])


def test_last_duplicate_wins(backend: Backend) -> None:
    state = backend.init(frb.BufferSpec(ITEM, 40, frb.Prioritized(alpha=1.0)))
    state = backend.add(state, batch(backend, 0, 40))
    handles = backend.array(np.array([7, 3, 7, 3, 7, 20], np.int32))
    priorities = backend.array(np.array([1, 2, 3, np.nan, 5, 6], np.float32))
    ids = backend.array(np.array([100, 101, 102, 103, 104, 105], np.int32))
    state = backend.update(state, handles, priorities, {"id": ids})
    items = stored(backend, state)
    # A bad priority is dropped, though its row is rewritten: the good one before it stays.
    assert items["id"][[7, 3, 20]].tolist() == [104, 103, 105]
    leaves = backend.numpy(state.tree).reshape(-1)[:40]
    assert leaves[[7, 3, 20, 0]].tolist() == [5.0, 2.0, 6.0, 1.0]
    assert int(backend.rb.counts(state).rejected) == 1
    np.testing.assert_array_equal(items["x"][:, 0], np.arange(40, dtype=np.float32))


def test_stale_handles_are_dropped(backend: Backend) -> None:
    state = backend.init(frb.BufferSpec(ITEM, 8, frb.Prioritized(alpha=1.0)))
    state = backend.add(state, batch(backend, 0, 8))
    state = backend.add(state, batch(backend, 8, 3))
    handles = backend.array(np.array([0, 2, 3, 8, 10, 11, -1, 2**31 - 1], np.int32))
    assert backend.numpy(backend.rb.is_live(state, handles)).tolist() == [False, False, True, True, True] + [False] * 3
    state = backend.update(state, handles, backend.array(np.full(8, 9, np.float32)))
    assert int(backend.rb.counts(state).stale) == 4  # -1 names nothing that was ever there
    assert backend.numpy(state.tree).reshape(-1)[:8].tolist() == [9, 1, 9, 9, 1, 1, 1, 1]
    got = backend.rb.get(state, handles)
    assert backend.numpy(got["id"]).tolist() == [0, 0, 3, 8, 10, 0, 0, 0]


@pytest.mark.parametrize("name", ["jax", "torch", "torch-inplace"])
@pytest.mark.parametrize(
    "sampler", [frb.Uniform(), frb.Prioritized(alpha=1.0, beta=1.0)], ids=["uniform", "prioritized"]
)
def test_a_million_and_three(name: str, sampler: Any) -> None:
    capacity, chunk = 1_000_003, 250_001
    with backends.make(name) as backend:
        state = backend.init(frb.BufferSpec({"n": frb.Unbounded((), "int32")}, capacity, sampler))
        for start in range(0, 5 * chunk, chunk):
            older, state = state, backend.add(state, {"n": np.arange(start, start + chunk, dtype=np.int32)})
        added = 5 * chunk
        assert int(backend.rb.size(state)) == capacity
        state, sample = backend.sample(state, backend.rb.key(3), 512)
        handles = backend.numpy(sample.indices)
        assert handles.min() >= added - capacity
        assert handles.max() < added
        np.testing.assert_array_equal(backend.numpy(sample.items["n"]), handles)
        gone = np.array([0, added - capacity - 1, added], np.int32)
        mixed = np.concatenate([handles, gone])
        companions = [] if isinstance(sampler, frb.Uniform) else [np.full(mixed.size, 2, np.float32)]
        state = backend.update(state, mixed, *companions, items={"n": -mixed})
        assert int(backend.rb.counts(state).stale) == gone.size
        got = backend.numpy(backend.rb.get(state, mixed)["n"])
        np.testing.assert_array_equal(got, [*-handles, 0, 0, 0])
        serials = np.arange(added - capacity, added)
        expected = np.zeros(capacity, np.int64)
        expected[serials % capacity] = np.where(np.isin(serials, handles), -serials, serials)
        np.testing.assert_array_equal(backend.numpy(backend.rb.items(state)["n"]), expected)
        if not backend.consumes:
            before = np.arange(4 * chunk - capacity if 4 * chunk > capacity else 0, 4 * chunk)
            stored = backend.numpy(backend.rb.items(older)["n"])
            np.testing.assert_array_equal(stored[before % capacity], before)


@pytest.mark.parametrize("name", ["jax", "jax-core", "torch"])
def test_what_the_caller_writes_to_his_arrays_afterwards_is_not_seen(name: str) -> None:
    # On JAX numbers are read in the background: an environment that writes its next observation into the same
    # array would have got into the buffer.
    spec = frb.BufferSpec({"x": frb.Unbounded((16_384,))}, 64)
    with backends.make(name) as backend:
        for k in range(effort(20, 60)):
            x = np.full((64, 16_384), k, np.float32)
            state = backend.add(backend.init(spec), {"x": x})
            x[...] = -1
            assert (backend.numpy(backend.rb.items(state)["x"]) == k).all()


def test_windows_of_one_lane_do_not_count_for_another(library: Backend) -> None:
    rb, number = library.rb, np.arange(10, dtype=np.int32).reshape(5, 2)
    state = library.init(frb.BufferSpec({"id": ITEM["id"]}, 16, frb.Queue(2), lanes=2))
    state = library.add(state, {"id": number}, library.array(np.array([[True, k < 1] for k in range(5)])))
    # Two windows in the first lane, none in the second; a batch takes from the lanes in turn.
    assert [bool(rb.can_sample(state, n)) for n in (1, 2, 3)] == [True, False, False]
    state, sample = library.sample(state, rb.key(0), 2)
    assert library.numpy(sample.mask).all(1).tolist() == [True, False]
    assert library.numpy(sample.items["id"])[0].tolist() == [0, 2]


def test_a_new_priority_gives_no_more_draws(library: Backend) -> None:
    rb = library.rb
    state = library.init(frb.BufferSpec(frb.Unbounded(()), 4, frb.Prioritized(1.0, max_times_sampled=1)))
    state = library.add(state, np.arange(4, dtype=np.float32))
    state = rb.update(state, library.array(np.arange(4)), library.array(np.float32([1, 0, 0, 0])))
    state, _ = library.sample(state, rb.key(0), 1)
    state = rb.update(state, library.array(np.arange(2)), library.array(np.float32([5, 3])))
    assert library.numpy(rb.probabilities(state, library.array(np.arange(4)))).tolist() == [0, 1, 0, 0]


def test_without_native_code_the_bits_are_the_same(library: Backend) -> None:
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        program("life_of_a_buffer", library.library),
        env=os.environ | {"PYTHONPATH": root, "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "error"},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 10_000
    assert done.stdout == life_of_a_buffer.bits(library.rb)
