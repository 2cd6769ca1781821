"""The fused kernel of epochs: the core's bits, and older versions that it has written over."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend
from functional_rb.buffer.known import Draws
from functional_rb.core import counters
from functional_rb.samplers.epochs import EPOCHS_DONE, ORDER, PLACE, REMAINING
from functional_rb.structures.stored_arrays import auxiliary_name
from tests.agreement.carriers import LIBRARIES, OnTorch, content, items, told
from tests.support.backends import needs_native
from tests.support.chain_programs import Noting
from tests.support.effort import effort
from torch_backend.memory.library import TORCH

ITEM = {"id": frb.Unbounded((), "int32"), "image": frb.Unbounded((1030,), "uint8"), "x": frb.Unbounded((3,))}


@pytest.fixture(params=LIBRARIES, ids=["torch", "numpy"])
def on(request: pytest.FixtureRequest) -> Any:
    return request.param


def number(state: Any, name: str) -> int:
    return int(state._counters[counters.place(state.spec.plan, name)])


specs = st.builds(
    lambda capacity, lanes, drop_last, writer, sampler: frb.BufferSpec(
        ITEM, capacity * (lanes or 1), dataclasses.replace(sampler, drop_last=drop_last), writer, lanes=lanes
    ),
    st.sampled_from([1, 2, 5, 17]),
    st.sampled_from([None, 2, 3]),
    st.booleans(),
    st.sampled_from([frb.RoundRobin(), frb.StopWhenFull()]),
    st.sampled_from(
        [
            frb.WithoutReplacement(),
            frb.SlicesWithoutReplacement(2, trajectory_key="id", strict_length=False),
            frb.SlicesWithoutReplacement(3, end_keys=(), strict_length=False, span=True, period=2),
            frb.SlicesWithoutReplacement(2, end_keys=(), strict_length=False, weighting="window", flat=True),
        ]
    ),
)


@hypothesis.settings(max_examples=effort(60, 1000))
@hypothesis.given(data=st.data())
def test_the_kernel_gives_the_cores_bits_and_older_versions_stay(data: st.DataObject) -> None:
    """Whole histories of short batches, of batches of which some rows count, of epochs that end, and of additions."""
    on, spec = data.draw(st.sampled_from(LIBRARIES), "library"), data.draw(specs, "spec")
    assert spec.known.draws in (Draws.EPOCH, Draws.EPOCH_OF_SLICES)
    states, behind = [on.init(spec), on.init(spec)], data.draw(st.sampled_from([0, 1, 4]), "behind")
    for state in states:  # handles begin anew soon
        first = counters.CURSOR if spec.plan.ring.lanes == 1 else counters.BASE
        state._counters[first : first + spec.plan.ring.lanes] = (spec.plan.ring.limit - behind) % spec.plan.ring.limit
    kept: list[tuple[Any, dict[str, bytes]]] = []
    stored = lanes = spec.lanes or 1
    for step in range(data.draw(st.integers(2, 7), "steps")):
        if data.draw(st.booleans(), "add") or step == 0:
            n = lanes * data.draw(st.integers(1, 4), "rows")
            if not spec.writer.overwrites and stored - lanes + n > spec.capacity:
                continue
            mask = None  # with it lanes go on by different numbers of items
            if data.draw(st.booleans(), "masked"):
                mask = np.random.default_rng(data.draw(st.integers(0, 99), "mask")).random(n) < 0.6
                mask = mask if spec.lanes is None else mask.reshape(-1, lanes)
            states = [on.add(state, items(stored, n, spec.lanes), mask) for state in states]
            stored += n
        else:
            batch, seed = data.draw(st.sampled_from([1, 2, 3, 8, 40]), "batch"), data.draw(st.integers(0, 9), "seed")
            wanted = data.draw(st.none() | st.integers(0, batch), "wanted")
            drawn = []
            for k, use in enumerate((True, False)):
                with frb.kernels(use):
                    try:
                        states[k], *found = on.sample(states[k], seed, batch, wanted)
                        drawn.append(told(found))
                    except ValueError as error:
                        drawn.append([str(error)])
            assert drawn[0] == drawn[1]
        now = content(on, states[1])
        assert content(on, states[0]) == now
        if data.draw(st.booleans(), "keep"):
            kept.append((states[0], now))
    for state, expected in data.draw(st.permutations(kept), "order"):
        assert content(on, state) == expected


def test_an_older_version_is_drawn_from_again(on: Any) -> None:
    """From the one before the newest, and from those before it; each time the same comes."""
    spec = frb.BufferSpec(ITEM, 12, frb.WithoutReplacement())
    state = on.add(on.init(spec), items(0, 12))
    states, batches = [state], []
    for seed in range(5):
        state, *drawn = on.sample(state, seed, 5)
        states.append(state)
        batches.append(told(drawn))
    assert [number(state, REMAINING) for state in states] == [0, 7, 2, 0, 7, 2]
    assert [number(state, EPOCHS_DONE) for state in states] == [0, 0, 0, 1, 1, 1]
    before = [content(on, state) for state in states]
    for k in (2, 0, 4, 1, 3):
        again, *drawn = on.sample(states[k], k, 5)
        assert told(drawn) == batches[k]
        assert content(on, again) == before[k + 1]
    assert [content(on, state) for state in states] == before


def test_an_older_version_is_saved_while_newer_ones_are_drawn(tmp_path: Path) -> None:
    rb = torch_backend
    spec = frb.BufferSpec(ITEM, 30, frb.WithoutReplacement(drop_last=True), batch_size=4)
    older, _ = rb.sample(rb.add(rb.init(spec), items(0, 30)), rb.key(0))
    expected, reader, newer = content(OnTorch, older), older.reader(), older
    for seed in range(3):
        newer, _ = rb.sample(newer, rb.key(seed))
    for name in map(auxiliary_name, (ORDER, PLACE)):
        assert b"".join(reader.read(name, k, k + 10).tobytes() for k in (0, 10, 20)) == expected[name]
    reader.close()
    frb.save(older, tmp_path / "older")
    assert content(OnTorch, frb.load(tmp_path / "older", rb)) == expected


def test_the_count_of_epochs_stays_at_its_largest(on: Any) -> None:
    spec = frb.BufferSpec(ITEM, 4, frb.WithoutReplacement())
    state = on.add(on.init(spec), items(0, 4))
    state._counters[counters.place(spec.plan, EPOCHS_DONE)] = 2**31 - 2
    for expected in (2**31 - 1, 2**31 - 1):
        state, *_ = on.sample(state, 0, 9)
        assert number(state, EPOCHS_DONE) == expected


def test_an_epoch_whose_rest_is_dropped_counts_too(on: Any) -> None:
    spec = frb.BufferSpec(ITEM, 5, frb.WithoutReplacement(drop_last=True))
    state = on.add(on.init(spec), items(0, 5))
    for batch, expected in ((2, (3, 0)), (4, (0, 2)), (1, (4, 2)), (4, (0, 3)), (5, (0, 4))):
        state, *_ = on.sample(state, batch, batch)
        assert (number(state, REMAINING), number(state, EPOCHS_DONE)) == expected


def test_nothing_to_draw_leaves_everything_as_it_was(on: Any) -> None:
    spec = frb.BufferSpec(ITEM, 9, frb.WithoutReplacement(drop_last=True))
    state, *_ = on.sample(on.add(on.init(spec), items(0, 5)), 0, 3)
    before = content(on, state)
    with pytest.raises(ValueError, match="drop_last drops smaller ones"):
        on.sample(state, 0, 6)
    assert content(on, state) == before
    memory = on.memory_of(state)
    with pytest.raises(ValueError, match="add items first"):
        on.sample(on.init(spec), 0, 3)
    state, *_ = on.sample(state, 1, 3)
    assert on.memory_of(state) is memory, "the next draw writes to the same memory"


def test_a_function_that_fails_leaves_a_state_as_it_was() -> None:
    """What `sample_` has drawn is taken back."""
    rb, calls = torch_backend, [0]

    def sometimes(batch: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise RuntimeError("the second batch")
        return batch

    spec = frb.BufferSpec(ITEM, 9, frb.WithoutReplacement(), transforms=frb.map_items(sometimes))
    state, _ = rb.sample_(rb.own_(rb.add(rb.init(spec), items(0, 9))), rb.key(0), 4)
    before = content(OnTorch, state)
    with pytest.raises(ValueError, match="the second batch"):
        rb.sample_(state, rb.key(1), 4)
    assert content(OnTorch, state) == before
    rest = torch_backend.sample_(state, rb.key(1), 5)[1].items["id"]
    assert len(set(rest.tolist())) == 5


@needs_native
def test_arrays_that_others_have_made_are_not_written_beyond() -> None:
    """A sparse set of wrong slots, and counts beyond its capacity: something comes, and nothing is broken."""
    spec = frb.BufferSpec({"id": frb.Unbounded((), "int32")}, 7, frb.WithoutReplacement())
    state = OnTorch.add(OnTorch.init(spec), {"id": np.arange(7, dtype=np.int32)})
    memory, rng = OnTorch.memory_of(state), np.random.default_rng(0)
    around = {name: torch.full((3 * 64,), -5, dtype=torch.int32) for name in (ORDER, PLACE)}
    memory.auxiliary = {name: x[64:71] for name, x in around.items()}
    memory.take(memory.by_name)
    for _ in range(20):
        for name in (ORDER, PLACE):
            memory.auxiliary[name][:] = torch.from_numpy(rng.integers(-(2**31), 2**31, 7).astype(np.int32))
        for name in (REMAINING, EPOCHS_DONE):
            state._counters[counters.place(spec.plan, name)] = int(rng.integers(-9, 2**31 - 1))
        state._counters[counters.SIZE] = int(rng.integers(7, 2**31 - 1))
        state, leaves, _ = OnTorch.sample(state, int(rng.integers(9)), int(rng.choice([3, 16])))
        assert set(leaves[0].tolist()) <= set(range(7))
        assert all((x[:64] == -5).all() and (x[71:] == -5).all() for x in around.values())


def test_threads_draw_each_item_once() -> None:
    """From one state after the other, which each thread takes from the one before."""
    rb, lock, seen = torch_backend, threading.Lock(), []
    spec = frb.BufferSpec(ITEM, 300, frb.WithoutReplacement(drop_last=True))
    states = [rb.add(rb.init(spec), items(0, 300))]

    def draw() -> None:
        for _ in range(10):
            with lock:
                states.append(rb.sample(states[-1], rb.key(len(states)), 10)[0])
            older = states[len(states) // 2]
            rb.sample(older, rb.key(0), 10)

    threads = [threading.Thread(target=draw) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(30):
        seen += rb.sample(states[k], rb.key(k + 1), 10)[1].items["id"].tolist()
    assert sorted(seen) == list(range(300))


@needs_native
def test_which_buffers_the_kernel_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Noting(TORCH.chain)
    monkeypatch.setattr(TORCH, "chain", chain)
    item = {"x": frb.Unbounded(()), "done": frb.Binary()}
    known = frb.BufferSpec(item, 6, frb.WithoutReplacement())
    others = (
        {"writer": frb.Reservoir()},
        {"transforms": frb.n_step(2, 0.9, reward_key="x", terminated_key="done", end_keys=("done",))},
    )
    batch = {"x": np.arange(6, dtype=np.float32), "done": np.zeros(6, bool)}
    for spec, expected in [(known, 3), *((dataclasses.replace(known, **other), 0) for other in others)]:
        chain.calls.clear()
        key = torch_backend.key(1) if spec.writer.words else None
        state = torch_backend.add(torch_backend.init(spec), batch, key=key)
        state, _ = torch_backend.sample(state, torch_backend.key(0), 2)
        state, _ = torch_backend.sample_(state, torch_backend.key(0), 2)
        with frb.kernels(False):
            state, _ = torch_backend.sample(state, torch_backend.key(0), 2)
        state, _ = torch_backend.sample(state, torch_backend.key(0), 2)
        assert chain.calls["sample"] + chain.calls["sample_"] == expected, spec
