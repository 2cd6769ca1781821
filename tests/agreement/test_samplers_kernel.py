"""Samplers whose draws the version chain alone carries out: histories give the core's bits, and older versions stay."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend as rb
from functional_rb.buffer.known import Draws
from functional_rb.core import counters
from tests.agreement import added_steps
from tests.agreement.carriers import LIBRARIES, OnTorch, content, items, noting, told
from tests.support import chain_programs as programs
from tests.support.backends import needs_native
from tests.support.chain_programs import PRIORITIES, Noting
from tests.support.effort import effort
from torch_backend.memory.library import TORCH

ITEM = {"id": frb.Unbounded((), "int32"), "image": frb.Unbounded((1030,), "uint8"), "x": frb.Unbounded((3,))}
SAMPLERS = (
    (frb.Prioritized(replacement=False), Draws.ARRIVALS),
    (frb.Prioritized(replacement=False, alpha=1.0, new_priority="ever", max_times_sampled=2), Draws.ARRIVALS),
    (frb.Prioritized(max_times_sampled=3), Draws.LIMITED),
    (frb.Uniform(max_times_sampled=1), Draws.LIMITED),
    (frb.Uniform(max_times_sampled=4), Draws.LIMITED),
    (frb.WithoutReplacement(shuffle=False), Draws.IN_TURN),
    (frb.WithoutReplacement(shuffle=False, drop_last=True), Draws.IN_TURN),
    (frb.Queue(), Draws.QUEUE),
    (frb.Queue(2), Draws.QUEUE),
    (frb.Recency(), Draws.RECENT),
    (frb.Recency(5), Draws.RECENT),
    (frb.InOrder(newest_first=True), Draws.FROM_AN_END),
    (frb.InOrder(1), Draws.FROM_AN_END),
    (frb.InOrder(3, newest_first=True), Draws.FROM_AN_END),
)


def spec_of(sampler: Any, capacity: int, lanes: int | None, stops: bool) -> frb.BufferSpec:
    if isinstance(sampler, frb.Queue):
        capacity, lanes, stops = max(capacity, 2), lanes if sampler.length else None, True
    lanes = None if isinstance(sampler, frb.InOrder) else lanes  # which has one order
    writer = frb.StopWhenFull() if stops else frb.RoundRobin()
    return frb.BufferSpec(ITEM, capacity * (lanes or 1), sampler, writer, lanes=lanes)


def attempt(function: Any, *given: Any) -> Any:
    """What a function returns, and the words of the error in place of that."""
    try:
        return function(*given)
    except ValueError as error:
        return str(error)


@hypothesis.settings(max_examples=effort(120, 2000))
@hypothesis.given(
    on=st.sampled_from(LIBRARIES),
    sampler=st.sampled_from(SAMPLERS),
    capacity=st.sampled_from([1, 2, 5, 17, 40]),
    lanes=st.sampled_from([None, None, 1, 2, 3]),
    stops=st.booleans(),
    behind=st.sampled_from([0, 1, 4]),
    seed=st.integers(0, 2**32 - 1),
)
def test_draws_give_the_cores_bits_and_older_versions_stay(
    on: Any, sampler: Any, capacity: int, lanes: int | None, stops: bool, behind: int, seed: int
) -> None:
    rng, spec = np.random.default_rng(seed), spec_of(sampler[0], capacity, lanes, stops)
    assert spec.known.draws == sampler[1]
    states = [on.init(spec), on.init(spec)]
    for state in states:  # handles begin anew soon
        first = counters.CURSOR if spec.plan.ring.lanes == 1 else counters.BASE
        state._counters[first : first + spec.plan.ring.lanes] = (spec.plan.ring.limit - behind) % spec.plan.ring.limit
    kept: list[tuple[Any, dict[str, bytes]]] = []

    def both(function: Any, *given: Any) -> Any:
        """The states become those that a function gives, which is carried out natively for the first."""
        found = []
        for k, use in enumerate((True, False)):
            with frb.kernels(use):
                made = attempt(function, states[k], *given)
            if not isinstance(made, str):
                states[k], *drawn = made
                made = told(drawn) if drawn else []
            found.append(made)
        assert found[0] == found[1]

    for step in range(int(rng.integers(3, 9))):
        choice = "add" if step == 0 else str(rng.choice(["add", "sample", "sample", "update"]))
        if choice == "add":
            n = (spec.lanes or 1) * int(rng.integers(1, 7))
            lead = (n,) if spec.lanes is None else (-1, spec.lanes)
            mask = (rng.random(n) < 0.6).reshape(lead) if rng.random() < 0.5 else None
            priorities = None
            if spec.sampler.has_priorities and rng.random() < 0.5:
                priorities = rng.choice(PRIORITIES, n).reshape(lead)
            given = items(int(rng.integers(1000)), n, spec.lanes), mask, priorities
            both(lambda state, *given: (on.add(state, *given),), *given)
        elif choice == "sample":
            batch, beta = int(rng.choice([1, 2, 3, 8, 40])), float(rng.choice([0.0, 0.7]))
            both(on.sample, int(rng.integers(9)), batch, None, beta if spec.sampler.has_priorities else 0.0)
        elif spec.sampler.has_priorities:
            handles = rng.integers(-1, 2 * spec.capacity, 9).astype(np.int32)
            both(lambda state, *given: (on.update(state, *given),), handles, rng.choice(PRIORITIES, 9))
        now = content(on, states[1])
        assert content(on, states[0]) == now
        if rng.random() < 0.5:
            kept.append((states[0], now))
    for k in rng.permutation(len(kept)):
        assert content(on, kept[k][0]) == kept[k][1]


@pytest.mark.parametrize("size", [1, 300, 1100])
def test_a_race_in_a_deep_tree_has_the_cores_order(size: int) -> None:
    """Of values over all of the range, so that some arrive much later than most, and some never."""
    rng = np.random.default_rng(size)
    spec = frb.BufferSpec({"id": frb.Unbounded((), "int32")}, 5000, frb.Prioritized(replacement=False, alpha=1.0))
    state = rb.add(rb.init(spec), {"id": np.arange(5000, dtype=np.int32)})
    priorities = np.exp(rng.normal(0, 20, 5000)).astype(np.float32)
    priorities[rng.random(5000) < 0.8] = 0
    state = rb.update(state, np.arange(5000, dtype=np.int32), priorities)
    found = []
    for use in (True, False):
        with frb.kernels(use):
            found.append(told(OnTorch.sample(state, 3, size, None, 0.5)[1:]))
    assert found[0] == found[1]


@needs_native
@pytest.mark.parametrize("on", LIBRARIES, ids=["torch", "numpy"])
@pytest.mark.parametrize("sampler", [sampler for sampler, _ in SAMPLERS], ids=repr)
def test_the_chain_adds_draws_and_updates_itself(sampler: Any, on: Any) -> None:
    spec = spec_of(sampler, 40, 2, True)
    with noting(on) as chain:
        state = on.add(on.init(spec), items(0, 12, spec.lanes))
        state, _, selection = on.sample(state, 0, 4)
        if spec.sampler.has_priorities:
            on.update(state, selection.handles, np.ones(4, np.float32))
    assert chain.done == 2 + spec.sampler.has_priorities


@needs_native
def test_users_calls_are_the_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Noting(TORCH.chain)
    monkeypatch.setattr(TORCH, "chain", chain)
    for sampler, _ in SAMPLERS:
        chain.calls.clear()
        spec = spec_of(sampler, 40, None, False)
        state = rb.add(rb.init(spec), items(0, 12))
        state, drawn = rb.sample(state, rb.key(0), 3)
        assert drawn.items["image"].shape == (*spec.sampler.leading_shape(3), 1030)
        rb.sample_(state, rb.key(0), 3)
        assert chain.done == 3, sampler


@needs_native
def test_arrays_that_others_have_made_are_not_written_beyond() -> None:
    """Trees whose sums are none of their leaves, counts and counters of any numbers: nothing is broken."""
    rng = np.random.default_rng(0)
    extremes = np.array([-(2**31), -13, -1, 0, 15, 40, 2**31 - 1], np.int32)
    for (sampler, _), lanes in itertools.product(SAMPLERS, (None, 2)):
        spec = spec_of(sampler, 20, lanes, False)
        for trial in range(8):
            state = OnTorch.add(OnTorch.init(spec), items(0, 20, spec.lanes))
            memory = OnTorch.memory_of(state)
            if memory.tree is not None:
                memory.tree[:] = torch.from_numpy(
                    rng.choice([0, 1, 1e-30, 1e30, -1, np.inf, np.nan], memory.tree.shape)
                )
            for array in memory.auxiliary.values():
                array[:] = torch.from_numpy(rng.integers(-(2**31), 2**31, array.shape).astype(np.int32))
            first = counters.BASE if trial % 2 else 0
            state._counters[first:] = torch.from_numpy(rng.choice(extremes, counters.length(spec.plan) - first))
            draw = TORCH.chain.draw  # the core alone is not asked: torch refuses what is out of bounds
            made = draw(state, torch.tensor(int(rng.integers(9))), 6, 0.5, None)
            assert made is NotImplemented or set(made[1][0].reshape(-1).tolist()) <= set(range(20))


ADDED_UP = [(transform, added_steps.ITEM) for transform in added_steps.WAITING]
ADDED_UP += [(transform, added_steps.ITEM | added_steps.OF_AGENTS) for transform in added_steps.WAITING_OF_AGENTS]


@needs_native
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@pytest.mark.parametrize("k", range(len(ADDED_UP)))
@pytest.mark.parametrize(
    "sampler",
    [frb.Uniform(), frb.Prioritized(), frb.WithoutReplacement(), frb.Prioritized(replacement=False)],
    ids=repr,
)
def test_what_was_added_up_is_told_beside_the_items(sampler: Any, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chain, (transform, item) = Noting(TORCH.chain), ADDED_UP[k]
    monkeypatch.setattr(TORCH, "chain", chain)
    spec = frb.BufferSpec(item, 40, sampler, lanes=2, transforms=transform)
    state, rng, found = rb.init(spec), np.random.default_rng(k), []
    for _ in range(3):
        state = rb.add(state, added_steps.items(rng, 0, 14, spec))
    for name, use in (("sample", True), ("sample", False), ("sample_", True)):
        before = chain.calls[name]
        with frb.kernels(use):
            found.append(programs.told(spec, getattr(rb, name)(state, rb.key(5), 16)[1]))
        assert chain.calls[name] == before + use
    assert found[0] == found[1] == found[2]
