"""Buffers that are dealt by slots, in NumPy: index and parts against the buffer that is not sharded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import functional_rb as frb
from functional_rb.buffer import functions
from functional_rb.core import counters
from functional_rb.core.draft import Arrays, Draft
from functional_rb.ops import numpy_ops as ops
from functional_rb.ops.protocol import Array, Ops
from functional_rb.sharding import deal, place, regroup
from functional_rb.structures.ring import RingState, Write
from functional_rb.writers.base import ChoosingWriter
from tests.support.effort import effort

ITEM = {"x": frb.Unbounded((2,)), "image": frb.Bounded(0, 9, (40, 40), "uint8"), "next": {"rank": frb.Unbounded(())}}
LANES = 3


class Backwards(ChoosingWriter):
    """One of a user's own: each batch goes to the slots from the first on, the last row first; no source, no live."""

    def plan_write(
        self, ops: Ops, draft: Draft, leaves: Any, batch: int, mask: Array | None, draws: Array | None
    ) -> Write:
        n = min(batch, draft.plan.capacity)
        slots = n - 1 - ops.arange(n, like=draft.counters.ends.sizes)
        self.renew(ops, draft, slots, slots >= 0)
        sizes = ops.maximum(draft.counters.ends.sizes, ops.full_like(draft.counters.ends.sizes, n))
        written = ops.full_like(sizes, batch)
        return Write(slots, None, None, written, RingState(draft.counters.ends.cursors, sizes))


def step(spec: frb.BufferSpec, rng: np.random.Generator) -> tuple[list[Any], int, Any, Any, Any]:
    """Leaves of a batch of all lanes, how many rows, a mask, priorities and draws."""
    n = LANES * int(rng.integers(1, 5))
    made = {
        "x": rng.standard_normal((n, 2)).astype(np.float32),
        "image": rng.integers(0, 10, (n, 40, 40), np.uint8),
        "next/rank": rng.integers(0, 4, n).astype(np.float32),  # so that there are ties
    }
    made["next/rank"][rng.random(n) < 0.1] = np.nan
    mask = None if isinstance(spec.writer, Backwards) or rng.random() < 0.3 else rng.random(n) < 0.6
    priorities = rng.random(n).astype(np.float32) if spec.sampler.has_priorities else None
    draws = rng.integers(0, 2**31, (n, spec.writer.words), np.int32) if spec.writer.words else None
    return [made[name] for name in spec.plan.names], n, mask, priorities, draws


def assert_same(found: Arrays, expected: Arrays) -> None:
    for one, other in zip(flat(found), flat(expected), strict=True):
        assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())


def flat(arrays: Arrays) -> list[Any]:
    tree = [] if arrays.tree is None else [arrays.tree]
    return [arrays.rows, *arrays.wide, *tree, arrays.counters, *(x for _, x in sorted(arrays.auxiliary.items()))]


@settings(max_examples=effort(12, 200), deadline=None)
@given(
    writer=st.sampled_from([frb.Reservoir(), frb.MaxValue(("next", "rank")), Backwards()]),
    sampler=st.sampled_from([frb.Uniform(), frb.Prioritized(), frb.WithoutReplacement()]),
    capacity=st.sampled_from([3, 5, 16, 19]),
    seed=st.integers(0, 2**32 - 1),
)
def test_index_and_parts_are_the_whole(writer: Any, sampler: Any, capacity: int, seed: int) -> None:
    """After each batch, on any number of shards, which may have fewer slots than others, or none."""
    spec = frb.BufferSpec(ITEM, capacity, sampler, writer, lanes=LANES)
    for shards in (1, 2, 3, 8):
        rng, dealt = np.random.default_rng(seed), deal.deal(spec, shards)
        assert dealt.index.plan.names == (("next/rank",) if writer.reads else ())
        whole, index = functions.init(ops, spec), functions.init(ops, dealt.index)
        parts = {k: functions.init(ops, dealt.part) for k in range(shards)}
        for turn in range(5):
            leaves, n, mask, priorities, draws = step(spec, rng)
            whole = functions.add(ops, whole, spec, leaves, n, mask, priorities, draws)
            index, write = place.choose(ops, index, dealt, leaves, n, mask, priorities, draws)
            for k, part in parts.items():
                parts[k] = place.place(ops, part, dealt.part, dealt, leaves, write, np.int32(k))
                assert regroup.misfit(dealt, index, parts[k], k) is None
            assert_same(joined(dealt, index, parts), whole)
            again, moved = deal.deal(spec, 3), {}
            for k in range(3):
                given = {j: parts[j] for j in regroup.sources(dealt, again, k)}
                moved[k] = regroup.regrouped(dealt, index, given, again, k)
                assert regroup.misfit(again, index, moved[k], k) is None
            assert_same(joined(again, index, moved), whole)
            if turn == 2 and seed % 2:
                whole = functions.clear(ops, whole, spec)
                index = functions.clear(ops, index, dealt.index)
                parts = {k: functions.clear(ops, part, dealt.part) for k, part in parts.items()}
                assert all(regroup.misfit(dealt, index, part, k) is None for k, part in parts.items())
        split_index, split_part = regroup.split(spec, whole)
        assert_same(regroup.join(spec, split_index, split_part), whole)


def joined(dealt: deal.Dealing, index: Arrays, parts: dict[int, Arrays]) -> Arrays:
    one = deal.deal(dealt.spec, 1)
    return regroup.join(dealt.spec, index, regroup.regrouped(dealt, index, parts, one, 0))


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_each_slot_is_one_shards_own(shards: int) -> None:
    dealt = deal.deal(frb.BufferSpec(ITEM, 19, writer=frb.Reservoir(), lanes=5), shards)
    slots, firsts = np.arange(19, dtype=np.int32), dealt.first_slots()
    assert (dealt.part.lanes, dealt.part.capacity, dealt.asked.lanes) == (None, -(-19 // shards), -(-5 // shards))
    for size in (0, 1, 7, 19):
        sizes = deal.sizes_of_shards(ops, dealt, RingState(np.zeros(1, np.int32), np.array([size], np.int32)))
        assert sizes.tolist() == [
            ((firsts[k] <= slots) & (slots < min(firsts[k + 1], size))).sum() for k in range(shards)
        ]
    for shard in range(shards):
        local, own = deal.own_slots(ops, dealt, slots, np.int32(shard))
        assert slots[own].tolist() == [*range(firsts[shard], firsts[shard + 1])]
        assert local[own].tolist() == [*range(own.sum())]


def test_a_part_that_has_other_items_than_the_index_says_is_refused() -> None:
    spec = frb.BufferSpec(ITEM, 19, writer=frb.Reservoir(), lanes=LANES)
    dealt, rng = deal.deal(spec, 2), np.random.default_rng(0)
    leaves, n, _, _, draws = step(spec, rng)
    index, _ = place.choose(ops, functions.init(ops, dealt.index), dealt, leaves, n, None, None, draws)
    assert int(index.counters[counters.SIZE]) == n
    said = regroup.misfit(dealt, index, functions.init(ops, dealt.part), 0)
    assert said is not None
    assert "its slots hold [0] items, and by the index" in said
