"""Frames whose sequence numbers begin again, and kernels that find and plan as the core does."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend.arrays.ops as torch_ops
from functional_rb.core import counters, frame_store
from functional_rb.structures import frame_ring
from functional_rb.structures.ring import RingState
from tests.support.backends import Backend, _torch_array, _torch_numpy
from tests.support.frame_stacks import chain_of
from tests.support.part_kernels import Jax, Numpy, Torch

X, DONE = frb.Unbounded((4, 3)), frb.Binary(())
TORCH = torch_ops, _torch_array, _torch_numpy
PAIR = {"obs": X, "next_obs": X, "done": DONE}
STACK = {"obs": X, "reward": frb.Unbounded(())}


@pytest.mark.parametrize("on", [Jax, Torch, Numpy], ids=["jax", "torch", "numpy"])
def test_kernels_find_the_same_places(on: Any) -> None:
    chain = chain_of(PAIR | {"y": X, "next_y": X}, frb.Compact(stack={"obs": 4, "y": 3}, axis={"y": 1}), 60, lanes=3)
    rng = np.random.default_rng(0)
    at = rng.integers(0, 2 * chain.limit, 60)
    at[::7], at[1::7], at[2::7] = 0, 2 * chain.limit - 1, 2 * chain.limit - 2  # at both ends of the sequence numbers
    slots = np.arange(60).astype(np.int32)
    for depth, following in itertools.product((1, 3, 4), (False, True)):
        expected = []
        for slot, code in zip(slots.tolist(), at.tolist(), strict=True):
            last = code // 2 + (0 if not following else 4 if code % 2 else 1)
            expected += [slot // 20 * chain.room + (last - depth + 1 + k) % chain.room for k in range(depth)]
        for form in (on.plain, on.kernels):
            places = form(lambda ops, *args, how=(depth, following): frame_ring.places(ops, chain, *args, *how))
            found = places(on.array(at.astype(np.int32)), on.array(slots))
            assert on.numpy(found).tolist() == expected


WRITES: dict[str, tuple[Any, frb.Compact, int, int, int]] = {
    "states": (PAIR, frb.Compact(), 30, 3, 4),
    "stacks": (PAIR, frb.Compact(stack=4), 24, 2, 3),
    "stacks alone": (STACK, frb.Compact(stack=4), 8, 1, 5),
    "more than there is room for": (PAIR, frb.Compact(stack=4, spare=0), 4, 2, 9),
}


@pytest.mark.parametrize("name", WRITES)
def test_kernels_plan_the_same_writes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    item, compact, capacity, lanes, steps = WRITES[name]
    monkeypatch.setattr(frame_ring, "SEQUENCE_NUMBERS", 200)
    chain = chain_of(item, compact, capacity, lanes=lanes)
    rng = np.random.default_rng(0)
    for _ in range(50):
        cursor, after = (rng.integers(0, chain.limit, lanes).astype(np.int32) for _ in range(2))
        written = rng.integers(0, steps + 1, lanes).astype(np.int32)
        shares, moves = (rng.random(lanes * steps) < rng.random() for _ in range(2))
        marks = torch.from_numpy(shares), torch.from_numpy(moves) if chain.paired and chain.depth > 1 else None
        at = torch.from_numpy(rng.integers(0, 2 * chain.limit, capacity).astype(np.int32))
        sizes = rng.integers(0, capacity // lanes + 1, lanes).astype(np.int32)
        cursors = rng.integers(0, chain.items.limit, lanes).astype(np.int32)
        ends = RingState(torch.from_numpy(cursors), torch.from_numpy(sizes))
        plans, removals = [], []
        for form in (Torch.plain, Torch.kernels):
            where = torch.from_numpy(cursor), torch.from_numpy(written)
            plans.append(form(frame_store.plan_frames)(chain, *where, *marks))
            removals.append(form(frame_store.overwritten)(chain, at, ends, torch.from_numpy(after), steps))
        for by_core, by_kernel in zip(*plans, strict=True):
            assert by_core.dtype == by_kernel.dtype
            assert by_core.tolist() == by_kernel.tolist()
        assert [x.tolist() for x in removals[0][:2]] == [x.tolist() for x in removals[1][:2]]
        assert [x.tolist() for x in removals[0].after] == [x.tolist() for x in removals[1].after]


def test_sequence_numbers_begin_again(library: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few of them, they do so every few steps: nothing is to be seen of it."""
    monkeypatch.setattr(frame_ring, "SEQUENCE_NUMBERS", 64)
    rb, item = library.rb, {"obs": frb.Unbounded(()), "next_obs": frb.Unbounded(()), "done": DONE}
    spec = frb.BufferSpec(item, 11, compact=frb.Compact(spare=4))
    assert spec.plan.frames is not None
    assert spec.plan.frames.limit == 60
    state, total = rb.init(spec), 0
    for _ in range(40):
        new = np.arange(total, total + 3, dtype=np.float32)
        batch = {"obs": 2 * new, "next_obs": 2 * new + 1, "done": np.ones(3, bool)}  # two observations a step
        state, total = rb.add(state, library.tree(batch)), total + 3
        stored = min(total, 7)  # of 15 observations
        assert int(rb.size(state)) == stored
        numbers = np.arange(total - stored, total, dtype=np.int32)
        found = rb.get(state, library.array(numbers))
        assert library.numpy(found["obs"]).tolist() == (2.0 * numbers).tolist()
        assert library.numpy(found["next_obs"]).tolist() == (2.0 * numbers + 1).tolist()


def test_bytes_are_compared(library: Backend) -> None:
    """Equal numbers of other bytes are not shared, and NaNs of the same bytes are."""
    rb, item = library.rb, {"obs": frb.Unbounded(()), "next_obs": frb.Unbounded(())}
    one, two, plus, minus, nan, other = 0x3F800000, 0x40000000, 0, 0x80000000, 0x7FC00000, 0x7FC00001
    obs = np.array([one, nan, other, plus, plus], np.uint32).view(np.float32)
    following = np.array([nan, nan, minus, plus, two], np.uint32).view(np.float32)
    state = rb.add(rb.init(frb.BufferSpec(item, 8, compact=frb.Compact())), {"obs": obs, "next_obs": following})
    found = rb.get(state, library.array(np.arange(5, dtype=np.int32)))
    for name, expected in (("obs", obs), ("next_obs", following)):
        assert library.numpy(found[name]).tobytes() == expected.tobytes()
    # Two for the first step, one for the second; two each for the third and fourth, and one for the fifth.
    assert int(counters.read(state.spec.plan, state.counters).more[frame_ring.CURSOR][0]) == 8
