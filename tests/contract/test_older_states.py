"""What reading an older state costs: a copy, whatever was written since; and what it takes to be able to."""

from __future__ import annotations

import copy
import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import functional_rb as frb
from functional_rb.core.draft import Arrays
from functional_rb.ops import numpy_ops as host_ops
from functional_rb.storage.host_memory import Memory
from functional_rb.structures import sum_tree
from functional_rb.versions import memory as versioned
from functional_rb.versions import version
from functional_rb.versions.recorder import Log, Recorder
from tests.support import backends, gpu, lives
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.full_disks import fill_after
from tests.support.members import BATCH, ITEM, MEMBERS


@pytest.fixture(params=["torch", "torch-core", "jax-host", "jax-host-core"])
def variant(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Where states are versions: of tensors, and of NumPy's arrays."""
    with backends.make(request.param) as made:
        yield made


class Counting(TorchDispatchMode):
    """Counts torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return function(*args, **(kwargs or {}))


def work(monkeypatch: pytest.MonkeyPatch, read: Any) -> int:
    """How many operations on arrays reading takes: those of torch, and NumPy's that write."""
    calls = []

    def counted(function: Any) -> Any:
        return lambda *given: calls.append(function) or function(*given)

    with monkeypatch.context() as patch, Counting() as mode:
        for name in ("set_at", "set_flat", "take"):
            patch.setattr(host_ops, name, counted(getattr(host_ops, name)))
        read()
    return mode.calls + len(calls)


@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.Prioritized(), frb.Recency()], ids=repr)
def test_reading_takes_the_same_few_operations_for_each_write_since(
    variant: Backend, sampler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versioned, "LEAST", 2**40)  # nothing is copied before it is read
    counts = []
    for writes in (8, 8, 28, 48):
        spec = frb.BufferSpec(ITEM, 20_000, sampler)
        state = older = variant.add(variant.init(spec), variant.tree(lives.items_from(0)))
        for k in range(writes):
            state = variant.add(state, variant.tree(lives.items_from(BATCH * k)))
        with older._version.lock:
            counts.append(work(monkeypatch, older._version.own))
        assert variant.rb.size(older) == BATCH
    each = counts[3] - counts[2]
    most = 23 if gpu.ASKED else 9  # what launches have saved is taken apart by torch's operations
    assert counts[2] - counts[1] == each <= 20 * most, "the tree is computed once, and each array of a write put back"


def test_the_tree_is_computed_once_where_much_of_it_has_changed(
    variant: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    refresh = sum_tree.refresh

    def counted(ops: Any, tree: Any, capacity: int, leaves: Any, nodes_touched: int | None = None) -> Any:
        computed.append(len(leaves) if nodes_touched is None else -(-nodes_touched // sum_tree.FANOUT))
        return refresh(ops, tree, capacity, leaves, nodes_touched)

    spec = frb.BufferSpec({"x": frb.Unbounded((64,))}, 512, frb.Prioritized())
    items = variant.tree({"x": np.zeros((128, 64), np.float32)})
    state = older = variant.add(variant.init(spec), items)
    wanted = lives.state_bits(variant, older)
    older = state = variant.add(variant.init(spec), items)
    handles = variant.array(np.arange(128, dtype=np.int32))
    for k in range(1, 6):
        state = variant.update(state, handles, variant.array(np.full(128, float(k), np.float32)))
    monkeypatch.setattr(sum_tree, "refresh", counted)
    assert lives.state_bits(variant, older) == wanted
    assert sum(computed) <= 512 // sum_tree.FANOUT


def rows(first: int, n: int) -> dict[str, np.ndarray]:
    """Items of half a page."""
    return {"x": np.repeat(np.arange(first, first + n, dtype=np.float32)[:, None], 512, 1)}


def in_files(variant: Backend, capacity: int) -> Any:
    spec = frb.BufferSpec({"x": frb.Unbounded((512,))}, capacity, frb.Prioritized(), storage=frb.Memmap())
    return variant.rb.add(variant.rb.init(spec), rows(1, 16))


def held(variant: Backend, state: Any) -> list[float]:
    """A number for each item, all of whose elements tell it."""
    x = variant.numpy(variant.rb.items(state)["x"])
    assert (x == x[:, :1]).all()
    return x[:, 0].tolist()


def test_what_is_kept_for_an_older_state_is_bounded(variant: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versioned, "RETAINED_BYTES", 10_000)
    older = state = in_files(variant, 1000)
    for k in range(20):
        state = variant.rb.add(state, rows(100 + k, 1))
        assert state._version.own().retained <= 10_000
    assert older._version.memory is not None
    assert older._version.memory.files is not None
    assert held(variant, older)[:17] == [*range(1, 17), 0]


def test_no_room_for_the_copy_that_an_older_state_needs(variant: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = fill_after(monkeypatch, 10**9)
    monkeypatch.setattr(versioned, "RETAINED_BYTES", 5000)
    rb, older = variant.rb, in_files(variant, 16)
    state = rb.add(older, rows(20, 2))
    memory = state._version.memory
    disk[0] = 3
    for _ in range(2):
        with pytest.raises(frb.errors.StorageFullError):
            rb.add(state, rows(30, 2))
        assert state._version.memory is memory
    disk[0] = 100
    assert held(variant, state) == [20, 21, *range(3, 17)]
    after = rb.add(state, rows(30, 2))
    assert held(variant, after) == [20, 21, 30, 31, *range(5, 17)]
    assert held(variant, state) == [20, 21, *range(3, 17)]
    assert held(variant, older) == list(range(1, 17))


@pytest.mark.parametrize("name", MEMBERS)
def test_older_states_of_every_sampler_read_as_they_did(name: str) -> None:
    with backends.make("torch") as variant:
        spec = MEMBERS[name].spec
        state, states, found = lives.begin(variant, spec), [], []
        for k, given in enumerate(lives.inputs(spec)):
            state, _ = lives.step(variant, state, given, lives.keys(variant, k), look=False)
            states.append(state)
            found.append(lives.state_bits(variant, copy.deepcopy(state)))
        for k in (1, 0, -1):
            assert lives.state_bits(variant, states[k]) == found[k]


@pytest.mark.parametrize("sampler", [frb.Prioritized(), frb.WithoutReplacement(), frb.Recency()], ids=repr)
def test_an_older_state_has_its_own_arrays_alone_again(variant: Backend, sampler: Any) -> None:
    """What another spec has brought beside them is gone, and what it has left out is there."""
    ours, theirs = (frb.BufferSpec({"x": frb.Unbounded(())}, 16, x) for x in (frb.Uniform(), sampler))
    for old, new in ((ours, theirs), (theirs, ours)):
        older = variant.add(variant.init(old), variant.tree({"x": np.arange(9, dtype=np.float32)}))
        names, wanted = [*older._version.own().by_name], lives.state_bits(variant, copy.deepcopy(older))
        newer = variant.rb.with_spec(older, new)
        newer = variant.add(newer, variant.tree({"x": np.ones(9, np.float32)}))
        assert sorted(older._version.own().by_name) == sorted(names)
        assert lives.state_bits(variant, older) == wanted
        assert variant.rb.size(newer) == 16


def test_an_older_state_with_arrays_of_its_own_keeps_nothing_in_those_of_the_newer(variant: Backend) -> None:
    spec, batch = frb.BufferSpec({"x": frb.Unbounded(())}, 16), {"x": np.arange(9, dtype=np.float32)}
    older = variant.add(variant.init(spec), batch)
    newer = variant.rb.add(older, variant.tree(batch))
    memory = newer._version.own()
    assert memory.retained > 0
    older._version.own()
    branch = variant.rb.add(older, variant.tree(batch))
    assert (memory.retained, [*memory.history]) == (0, [])
    assert variant.rb.size(branch) == 16


def test_a_reader_of_an_older_state_is_spared_what_is_written_there_in_place(variant: Backend) -> None:
    spec, batch = frb.BufferSpec({"x": frb.Unbounded(())}, 16), {"x": np.arange(9, dtype=np.float32)}
    older = variant.add(variant.init(spec), batch)
    newer = variant.rb.add(older, variant.tree(batch))
    reader = older.reader()
    before = reader.read("rows", 0, 16)
    written = variant.rb.add_(older, variant.tree({"x": -batch["x"]}))
    assert reader.read("rows", 0, 16).tobytes() == before.tobytes()
    reader.close()
    assert variant.rb.size(written) == variant.rb.size(newer) == 16


def test_the_tree_of_an_older_state_where_leaves_alone_were_recorded(variant: Backend) -> None:
    """Additions with shared frames go by the core, whose kernel for leaves computes the nodes above."""
    images = {name: frb.Unbounded((4, 4), "uint8") for name in ("obs", "next_obs")}
    spec = frb.BufferSpec(images, 64, frb.Prioritized(), compact=frb.Compact())
    batch = variant.tree({name: np.zeros((20, 4, 4), np.uint8) for name in images})
    older = variant.add(variant.init(spec), batch)
    wanted = lives.state_bits(variant, copy.deepcopy(older))
    newer = variant.rb.add(older, batch, priorities=variant.array(np.full(20, 3, np.float32)))
    assert lives.state_bits(variant, older) == wanted
    assert variant.rb.size(newer) == 40


WRITES = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.lists(st.integers(0, 5), min_size=1, max_size=4)), max_size=12
)


@hypothesis.settings(max_examples=effort(25, 100))
@hypothesis.given(functions=st.lists(WRITES, min_size=1, max_size=4))
def test_rows_and_elements_of_one_array_are_taken_back_together(functions: Any) -> None:
    """Of each place what was there first, where rows and elements overlap, in one write or in several."""
    rows, kept = np.arange(18, dtype=np.int32).reshape(6, 3), {"kept": np.arange(12, dtype=np.int32).reshape(6, 2)}
    memory = Memory(Arrays(rows, (), None, None, kept))
    before = [array.copy() for array in memory.arrays]
    logs, value = [], 100
    for writes in functions:
        logs.append(Log())
        recorder = Recorder(host_ops, memory, logs[-1])
        for first, flat, where in writes:
            array = rows if first else kept["kept"]
            index = np.unique(where).astype(np.int32)
            value += 10
            new = np.arange(value, value + len(index), dtype=np.int32)
            if flat:
                recorder.set_flat(array, index, new)
            else:
                recorder.set_at(array, index, new[:, None])
    version.take_back(memory, logs)
    for array, wanted in zip(memory.arrays, before, strict=True):
        np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.Prioritized(), frb.Recency()], ids=repr)
def test_single_rows_are_kept_in_no_more_than_a_copy(sampler: Any) -> None:
    """What Python needs for each write counts too: of a row of 64 bytes it is ten times as much."""
    with backends.make("jax-host") as variant:
        spec = frb.BufferSpec({"x": frb.Unbounded((64,))}, 1_600, sampler)
        state = older = variant.add(variant.init(spec), {"x": np.zeros((1_600, 64), np.float32)})
        item = {"x": np.ones((1, 64), np.float32)}
        state = variant.add(state, item)
        copy = state._version.own().nbytes
        gc.collect()
        tracemalloc.start()
        try:
            most = 0
            for _ in range(12):
                for _ in range(100):
                    state = variant.add(state, item)
                most = max(most, tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        assert most < 2 * copy
        assert float(np.asarray(variant.rb.items(older)["x"]).max()) == 0


def test_of_a_small_buffer_a_little_is_kept_whatever_a_copy_takes() -> None:
    with backends.make("torch") as variant:
        state = variant.init(frb.BufferSpec({"x": frb.Unbounded(())}, 4, frb.Prioritized()))
        memory = state._version.own()
        for k in range(20):
            state = variant.add(state, {"x": torch.full((3,), float(k))})
            assert state._version.own() is memory
