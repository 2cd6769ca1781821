"""Writers that choose slots, as the version chain carries them out: the core's bits, and older versions stay."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from typing import Any

import hypothesis
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend as rb
from functional_rb.buffer.known import Draws
from functional_rb.core import counters
from functional_rb.core.handles import CURRENT
from functional_rb.storage.host_state import ENGINE
from functional_rb.writers import reservoir
from tests.agreement.carriers import LIBRARIES, OnTorch, content, items, noting, told
from tests.support.backends import needs_native
from tests.support.chain_programs import PRIORITIES, Noting, check_books
from tests.support.chain_programs import told as told_of
from tests.support.effort import effort
from torch_backend.arrays import random
from torch_backend.memory.library import TORCH

ITEM = {
    "id": frb.Unbounded((), "int32"),
    "image": frb.Unbounded((1030,), "uint8"),
    "rank": frb.Unbounded((5,)),
    "x": frb.Unbounded((3,), "bfloat16"),
}
BY_NUMBER = frb.MaxValue("id")
WRITERS = (
    frb.Reservoir(),
    frb.Reservoir(),
    BY_NUMBER,
    *(frb.MaxValue("rank", reduction=how) for how in ("sum", "mean", "max", "min")),
)
SAMPLERS = (
    (frb.Uniform(), Draws.CHOSEN),
    (frb.Prioritized(), Draws.CHOSEN),
    (frb.Prioritized(alpha=1.0, new_priority="ever", max_times_sampled=3), Draws.LIMITED),
    (frb.Uniform(max_times_sampled=2), Draws.LIMITED),
    (frb.Prioritized(replacement=False), Draws.ARRIVALS),
)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Equal ones, both zeros, what is no number, and what only some devices compute with.
RANKS = np.array([0.0, -0.0, 1.0, 1.0, 2.5, -3.0, 1e-45, -1e-45, 1e30, np.inf, -np.inf, np.nan], np.float32)
NUMBERS = np.array([-(2**31), 2**31 - 1, 2**31 - 2, 0, 0, 3, -7], np.int32)


# An array as NumPy has it, in the same memory.
OF: dict[Any, Any] = {on: (torch.Tensor.numpy if on is OnTorch else np.asarray) for on in LIBRARIES}


def spec_of(writer: Any, sampler: Any, capacity: int, lanes: int | None = None) -> frb.BufferSpec:
    return frb.BufferSpec(ITEM, capacity * (lanes or 1), sampler, writer, lanes=lanes)


def ranked(rng: np.random.Generator, n: int, lanes: int | None = None) -> dict[str, Any]:
    """Items with ranks of which many are alike."""
    batch, lead = items(int(rng.integers(1000)), n, lanes), (n,) if lanes is None else (n // lanes, lanes)
    batch["id"] = rng.choice(NUMBERS, lead) if rng.random() < 0.5 else rng.integers(-9, 9, lead, np.int32)
    ranks = rng.normal(0, 2, (*lead, 5)).astype(np.float32)
    batch["rank"] = np.where(rng.random(ranks.shape) < 0.3, rng.choice(RANKS, ranks.shape), ranks)
    batch["x"] = batch["x"].astype(BFLOAT16)
    return {name: batch[name] for name in ITEM}


def add(on: Any, state: Any, batch: Any, mask: Any, priorities: Any, seed: int, in_place: bool) -> Any:
    """By a key where the writer asks for one; where JAX makes of keys the random bits, by these."""
    key = rb.key(seed) if state.spec.writer.words else None
    if on is OnTorch:
        return (rb.add_ if in_place else rb.add)(state, batch, mask, priorities, key=key)
    n = batch["id"].size
    leaves = [x.reshape(n, *x.shape[1 + (state.spec.lanes is not None) :]) for x in batch.values()]
    beside = [None if x is None else x.reshape(n) for x in (mask, priorities)]
    bits = None if key is None else random.draws(key, n, 2).numpy()
    return ENGINE.add(state, leaves, n, *beside, bits, consume=in_place)


@needs_native
@hypothesis.settings(max_examples=effort(150, 3000))
@hypothesis.given(
    on=st.sampled_from(LIBRARIES),
    writer=st.sampled_from(WRITERS),
    sampler=st.sampled_from(SAMPLERS),
    capacity=st.sampled_from([1, 2, 5, 16, 17, 40, 300]),
    lanes=st.sampled_from([None, None, 2, 3]),
    late=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_kernel_gives_the_cores_bits_and_older_versions_stay(
    on: Any, writer: Any, sampler: Any, capacity: int, lanes: int | None, late: bool, seed: int
) -> None:
    rng, spec = np.random.default_rng(seed), spec_of(writer, sampler[0], capacity, lanes)
    assert spec.known.draws == sampler[1]
    assert spec.known.appends
    states = [on.init(spec), on.init(spec)]
    last = spec.plan.ring.limit - spec.capacity + np.arange(spec.capacity)
    for state in states if late else ():  # handles begin anew with the next item of each slot
        OF[on](on.memory_of(state).auxiliary[CURRENT])[:] = -2 - last
    kept: list[tuple[Any, dict[str, bytes]]] = []

    def both(function: Any, *given: Any) -> None:
        """The states become those that a function gives, which is carried out natively for the first."""
        found = []
        for k, use in enumerate((True, False)):
            with noting(on) as chain, frb.kernels(use):
                try:
                    states[k], *drawn = function(states[k], *given)
                    assert chain.done == use, chain.calls
                    found.append(told(drawn) if drawn else [])
                except ValueError as error:
                    found.append([str(error)])
        assert found[0] == found[1]

    for step in range(int(rng.integers(3, 9))):
        choice = "add" if step == 0 else str(rng.choice(["add", "add", "sample", "update", "rewrite"]))
        if choice == "add":
            n = (spec.lanes or 1) * int(rng.choice([1, 1, 2, 7, 40]))
            batch = ranked(rng, n, spec.lanes)
            mask = rng.random(batch["id"].shape) < 0.6 if rng.random() < 0.5 else None
            priorities = None
            if spec.sampler.has_priorities and rng.random() < 0.5:
                priorities = rng.choice(PRIORITIES, batch["id"].shape)
            in_place = not kept and rng.random() < 0.3
            both(
                lambda state, *given: (add(on, state, *given),),
                batch,
                mask,
                priorities,
                int(rng.integers(99)),
                in_place,
            )
        elif choice == "sample":
            batch_size, beta = int(rng.choice([1, 3, 40])), float(rng.choice([0.0, 0.7]))
            both(on.sample, int(rng.integers(9)), batch_size, None, beta if spec.sampler.has_priorities else 0.0)
        elif spec.sampler.has_priorities or writer == frb.Reservoir():
            stored = np.asarray(on.memory_of(states[0]).auxiliary[CURRENT])
            handles = np.where(rng.random(9) < 0.7, rng.choice(stored, 9), rng.integers(-1, 2**31, 9)).astype(np.int32)
            rewrites = {"x": np.ones((9, 3), BFLOAT16)} if writer == frb.Reservoir() else None
            priorities = rng.choice(PRIORITIES, 9) if spec.sampler.has_priorities else None
            both(lambda state, *given: (on.update(state, *given),), handles, priorities, rewrites)
        now = content(on, states[1])
        assert content(on, states[0]) == now
        check_books(states[0])
        if rng.random() < 0.5:
            kept.append((states[0], now))
    for k in rng.permutation(len(kept)):
        assert content(on, kept[k][0]) == kept[k][1]


@needs_native
def test_users_calls_are_the_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Noting(TORCH.chain)
    monkeypatch.setattr(TORCH, "chain", chain)
    for writer, (sampler, _) in itertools.product(WRITERS[1:4], SAMPLERS[:2]):
        chain.calls.clear()
        state = rb.init(spec_of(writer, sampler, 20))
        state = add(OnTorch, state, ranked(np.random.default_rng(0), 7), None, None, 0, False)
        _, sample = rb.sample(state, rb.key(0), 3)
        done = 2
        if sampler.has_priorities:
            rb.update(state, sample.indices, torch.ones(3))
            done = 3
        assert chain.done == done


@needs_native
@pytest.mark.parametrize(
    ("writer", "key", "message"),
    [(frb.Reservoir(), None, "key"), (BY_NUMBER, "no key", "key")],
    ids=["without a key", "with what is none"],
)
def test_keys_are_the_references_to_refuse(writer: Any, key: Any, message: str) -> None:
    state = rb.init(spec_of(writer, frb.Uniform(), 20))
    for use in (True, False):
        with frb.kernels(use), pytest.raises((TypeError, ValueError), match=message):
            rb.add(state, ranked(np.random.default_rng(0), 7), key=key)


@pytest.mark.parametrize("writer", [frb.MaxValue("rank", reduction="median"), frb.MaxValue("image")], ids=repr)
def test_other_ranks_are_left_to_the_core(writer: Any) -> None:
    assert not spec_of(writer, frb.Uniform(), 20).known.appends


@needs_native
@pytest.mark.parametrize("writer", [frb.Reservoir(), BY_NUMBER, WRITERS[3]], ids=repr)
def test_arrays_that_others_have_made_are_not_written_beyond(writer: Any) -> None:
    """Any numbers as counters, handles and ranks: something is stored, and nothing is broken."""
    rng, spec = np.random.default_rng(0), spec_of(writer, frb.Prioritized(), 20)
    extremes = np.array([-(2**31), -13, -1, 0, 15, 40, 2**31 - 1], np.int32)
    with noting(OnTorch) as chain:
        for _ in range(60):
            state = add(OnTorch, OnTorch.init(spec), ranked(rng, 20), None, None, 0, False)
            memory = OnTorch.memory_of(state)
            around = {
                n: torch.full((x.shape[0] + 128, *x.shape[1:]), -5, dtype=x.dtype) for n, x in memory.auxiliary.items()
            }
            memory.auxiliary = {name: x[64:-64] for name, x in around.items()}
            memory.take(memory.by_name)
            for array in memory.auxiliary.values():
                made = (
                    rng.integers(-(2**31), 2**31, array.shape)
                    if rng.random() < 0.5
                    else rng.choice(extremes, array.shape)
                )
                array[:] = torch.from_numpy(made.astype(np.int32))
            state._counters[:] = torch.from_numpy(rng.choice(extremes, counters.length(spec.plan)))
            older = state
            state = add(OnTorch, state, ranked(rng, int(rng.choice([1, 7, 50]))), None, None, 1, False)
            handles = torch.from_numpy(rng.choice(extremes, 6))
            state = rb.update(state, handles, torch.ones(6))
            _, leaves, *_ = TORCH.chain.draw(state, torch.tensor(int(rng.integers(9))), 6, 0.5, None)
            assert len(leaves) == len(ITEM)
            assert all((x[:64] == -5).all() and (x[-64:] == -5).all() for x in around.values())
            del older
    assert chain.done == 240


@needs_native
def test_a_reservoir_counts_no_more_items_than_an_int32_holds() -> None:
    """From then on every item goes to a slot drawn from that many."""
    spec = spec_of(frb.Reservoir(), frb.Uniform(), 3)
    place, rng = counters.place(spec.plan, reservoir.SEEN), np.random.default_rng(0)
    full = rb.add(rb.init(spec), ranked(rng, 5), key=rb.key(0))
    full._counters[place] = 2**31 - 4
    batch, found = ranked(rng, 400), []
    for use in (True, False):
        with noting(OnTorch) as chain, frb.kernels(use):
            state = rb.add(full, batch, key=rb.key(1))
            assert chain.done == use
        assert int(state._counters[place]) == 2**31 - 2
        found.append(content(OnTorch, state))
    assert found[0] == found[1]


@needs_native
def test_what_checkpoints_need_of_files_the_recorder_keeps(tmp_path: Any) -> None:
    """It alone learns which slots are chosen before they are written."""
    spec = frb.BufferSpec(ITEM, 20, frb.Uniform(), frb.Reservoir(), storage=frb.Memmap(str(tmp_path / "rows")))
    rng, done = np.random.default_rng(0), []
    state = rb.init(spec)
    for seed in range(4):
        with noting(OnTorch) as chain:
            state = rb.add(state, ranked(rng, 15), key=rb.key(seed))
        done.append(chain.done)
        if seed == 1:
            frb.save(state, tmp_path / "rows")
            saved = content(OnTorch, state)
    assert done == [1, 1, 0, 0]
    del state
    shutil.copytree(tmp_path / "rows", tmp_path / "copied")
    loaded = content(OnTorch, frb.load(tmp_path / "copied", "torch"))
    assert loaded == saved


@needs_native
@pytest.mark.parametrize("function", ["add", "sample", "update", "add_"])
def test_counters_that_a_user_has_shortened_are_not_read_behind(function: str) -> None:
    """Of lanes and of writers there are more than the first ones that all buffers have."""
    for spec in (spec_of(frb.RoundRobin(), frb.Prioritized(), 20, 3), spec_of(BY_NUMBER, frb.Prioritized(), 20)):
        state = rb.add(rb.init(spec), ranked(np.random.default_rng(0), 21, spec.lanes))
        state.counters.resize_(counters.length(spec.plan) - 1)
        given: dict[str, Any] = {
            "sample": (rb.key(0), 4),
            "update": (torch.arange(4, dtype=torch.int32), torch.ones(4)),
        }
        with noting(OnTorch) as chain, contextlib.suppress(RuntimeError, IndexError, ValueError):
            getattr(rb, function)(state, *given.get(function, (ranked(np.random.default_rng(0), 3, spec.lanes),)))
        assert chain.done == 0


@needs_native
@pytest.mark.parametrize("writer", [frb.Reservoir(), frb.MaxValue("rank", reduction="max")], ids=repr)
@pytest.mark.parametrize(("sampler", "drawn"), SAMPLERS, ids=str)
def test_steps_that_wait_are_the_cores_to_add_and_the_chains_to_draw(writer: Any, sampler: Any, drawn: Draws) -> None:
    item = {**ITEM, "done": frb.Binary(())}
    transform = frb.n_step(3, 0.9, at="add", reward_key="rank", terminated_key="done")
    spec = frb.BufferSpec(item, 20, sampler, writer, lanes=2, transforms=transform)
    assert (spec.known.draws, spec.known.appends) == (drawn, False)
    rng, found = np.random.default_rng(0), []
    batches = [ranked(rng, 14, 2) | {"done": rng.random((7, 2)) < 0.2} for _ in range(3)]
    for use in (True, False):
        state, samples = rb.init(spec), []
        with frb.kernels(use), noting(OnTorch) as chain:
            for seed, batch in enumerate(batches):
                batch["rank"] = np.nan_to_num(batch["rank"], posinf=1, neginf=-1)  # sums of NaN may have several bits
                state = rb.add(state, batch, key=rb.key(seed) if writer.words else None)
                state, sample = rb.sample(state, rb.key(seed), 6)
                samples.append(told_of(spec, sample))
                if sampler.has_priorities:
                    state = rb.update(state, sample.indices, sample.weights * 2)
        assert chain.calls["add"] == chain.calls["write"] == 0
        assert chain.done == use * (6 if sampler.has_priorities else 3)
        found.append((content(OnTorch, state), samples))
    assert found[0] == found[1]
