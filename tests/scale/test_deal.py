"""How lanes and slots are dealt to shards, and who sends which rows of a batch to whom: in NumPy, without any device.

The index and the parts of a buffer that is dealt are compared with the buffer that is not.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import functional_rb as frb
from functional_rb.base import nest
from functional_rb.buffer import functions
from functional_rb.buffer.checked_items import Batch
from functional_rb.buffer.state import State
from functional_rb.core import counters
from functional_rb.core.draft import Arrays, Draft
from functional_rb.core.plan import Plan
from functional_rb.ops import numpy_ops as ops
from functional_rb.ops.protocol import Array, Ops
from functional_rb.sharding import adding, deal, place, regroup, rows, shares
from functional_rb.structures.ring import RingState, Write
from functional_rb.writers.base import ChoosingWriter
from tests.support.effort import effort
from tests.support.members import MEMBERS

ITEM = {"obs": frb.Unbounded((3,)), "next": {"done": frb.Binary(()), "reward": frb.Unbounded(())}}


def spec_of(lanes: int | None = 5, length: int = 4, **fields: Any) -> frb.BufferSpec:
    return frb.BufferSpec(fields.pop("item", ITEM), (lanes or 1) * length, lanes=lanes, **fields)


def double(items: dict[str, Any]) -> dict[str, Any]:
    return {**items, "obs": items["obs"] * 2}


@pytest.mark.parametrize("lanes", [1, 2, 5, 8])
@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_each_slot_is_one_shards_own(lanes: int, shards: int) -> None:
    """And lies there in the same lane, at the same place of its ring."""
    spec = spec_of(lanes)
    dealt = deal.deal(spec, shards)
    slots = np.arange(spec.capacity, dtype=np.int32)
    owners = np.zeros_like(slots)
    firsts = dealt.first_slots()
    for shard in range(shards):
        local, own = deal.own_slots(ops, dealt, slots, np.int32(shard))
        owners += own
        lane, place = np.divmod(slots[own], spec.plan.ring.length)
        assert (local[own] == (lane - shard * dealt.lanes_each) * spec.plan.ring.length + place).all()
        assert (local[~own] == 0).all()
        assert slots[own].tolist() == [*range(firsts[shard], firsts[shard + 1])]
        real = deal.real_rows(ops, dealt, np.int32(shard), 3, slots).reshape(3, -1)
        assert (real.sum(1) == own.sum() // spec.plan.ring.length).all()
        assert not np.diff(real.astype(int)).max(initial=0) > 0, "the lanes that are not there come last"
    assert (owners == 1).all()
    assert dealt.is_even == (lanes % shards == 0)


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_rows_of_all_lanes(shards: int) -> None:
    """Step by step, each lane's at its place, without those that are not there."""
    dealt, steps = deal.deal(spec_of(5), shards), 3
    lane = np.arange(shards * dealt.lanes_each).reshape(shards, 1, -1)
    numbers = (np.arange(steps)[:, None] * 100 + lane)[..., None] + np.zeros(2, int)
    found = deal.of_all_lanes(ops, dealt, numbers.reshape(shards, -1, 2))
    assert found[:, 0].tolist() == [100 * step + lane for step in range(steps) for lane in range(5)]
    assert (found[:, 0] == found[:, 1]).all()


@pytest.mark.parametrize(
    "dtypes", [("bool",), ("uint8", "float32"), ("int16", "bool", "float16"), ("bfloat16",)], ids=str
)
@pytest.mark.parametrize("n", [0, 5])
def test_rows_of_any_arrays_come_back(dtypes: tuple[str, ...], n: int) -> None:
    """Whichever comes first, and by primitives alone, as where there are no kernels."""
    made = [np.arange(n * 3 * (k + 1)).reshape(n, 3, k + 1).astype(ops.dtype_of(x)) for k, x in enumerate(dtypes)]
    layout = rows.layout_of(made)
    words = rows.packed(ops, layout, made)
    assert (words.shape, words.dtype) == ((n, layout.row_words), np.int32)
    for expected, back in zip(made, rows.unpacked(ops, layout, words), strict=True):
        assert (back.dtype, back.tolist()) == (expected.dtype, expected.tolist())


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_sizes_of_shards(shards: int) -> None:
    dealt = deal.deal(spec_of(5), shards)
    sizes = np.array([3, 0, 4, 1, 2], np.int32)
    ends = RingState(np.arange(5, dtype=np.int32), sizes)
    found = deal.sizes_of_shards(ops, dealt, ends)
    masked = [deal.ends_of_shard(ops, dealt, ends, np.int32(k)) for k in range(shards)]
    assert found.tolist() == [int(x.sizes.sum()) for x in masked]
    assert (np.sum([x.sizes for x in masked], 0) == sizes).all()
    assert all((x.cursors == ends.cursors).all() for x in masked)


def test_the_index_has_what_the_sampler_reads_under_the_same_names() -> None:
    for sampler, names in {
        frb.Uniform(): (),
        frb.Prioritized(): (),
        frb.Slices(2): ("next/done",),
        frb.PrioritizedSlices(2, end_keys=("next", "done")): ("next/done",),
    }.items():
        dealt = deal.deal(spec_of(sampler=sampler), 2)
        assert dealt.index.plan.names == names
        assert dealt.index_leaves == tuple(dealt.spec.plan.names.index(name) for name in names)
        assert dealt.index.sampler == dealt.spec.sampler
        assert dealt.index.draw_shape(8) == dealt.spec.draw_shape(8)
    groups = deal.deal(MEMBERS["groups"].spec, 2)
    assert groups.index.plan.names == ("episode", "id")
    bare = frb.BufferSpec(frb.Binary(()), 8, frb.Slices(2, end_keys=["the item"]), lanes=2)
    assert deal.deal(bare, 2).index.plan.names == ("the item",)


def test_the_index_has_what_a_users_own_sampler_says_that_it_reads() -> None:
    @dataclasses.dataclass(frozen=True)
    class Rewarding(frb.Uniform):
        scored_by: tuple[str, ...] = ("next", "reward")

        @property
        def reads(self) -> tuple[tuple[str, ...], ...]:
            return (self.scored_by,)

        def check(self, plan: Plan) -> None:
            nest.position(plan.names, self.scored_by, "Rewarding")

    assert deal.deal(spec_of(sampler=Rewarding()), 2).index.plan.names == ("next/reward",)


def test_a_part_computes_what_the_buffer_does_as_it_is_sampled() -> None:
    spec = spec_of(transforms=(frb.n_step(2, 0.9), frb.map_items(double)))
    dealt = deal.deal(spec, 2)
    assert dealt.part.transforms == spec.inner
    assert dealt.part.on_sample is None
    assert dealt.part.plan.layout == spec.plan.layout
    assert dealt.index.plan.boundaries is None, "Uniform reads no ends, so that no shard sends any"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"lanes": None}, r"lanes=None; give BufferSpec\(lanes=E\)"),
        ({"storage": frb.Host()}, "on devices, got storage=.*leave the storage out"),
        (
            {"writer": frb.Reservoir(), "transforms": frb.n_step(2, 0.9, at="add")},
            r"Reservoir.*chooses slots.*NStepOfAdded.*give at='sample'",
        ),
        ({"item": {"x": frb.Unbounded(()), "text": frb.specs.NonTensor()}}, "objects in leaf 'text'.*store arrays"),
    ],
)
def test_what_cannot_be_dealt_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    spec = spec_of(**fields)
    with pytest.raises(ValueError, match=rf"init: sharding: expected a buffer.*{said}"):
        deal.deal(spec, 2)


@pytest.mark.parametrize("spare", [None, 0, 7])
@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_a_lane_has_as_much_room_for_frames_as_in_the_whole(spare: int | None, shards: int) -> None:
    item = {"obs": frb.Unbounded((3,)), "next_obs": frb.Unbounded((3,))}
    dealt = deal.deal(spec_of(5, 100, item=item, compact=frb.Compact(spare=spare)), shards)
    whole, part = dealt.spec.plan.frames, dealt.part.plan.frames
    assert whole is not None
    assert part is not None
    assert (part.room, part.items.length) == (whole.room, whole.items.length)
    assert dealt.asked.plan.frames == part
    assert dealt.index.plan.frames is None


def test_batches_are_given_out_in_equal_parts() -> None:
    deal.check_batch(12, 3)
    with pytest.raises(ValueError, match=r"multiple of the 3 shards.* got 13; 12 or 15 would do"):
        deal.check_batch(13, 3)
    with pytest.raises(ValueError, match="got 2; 3 would do"):
        deal.check_batch(2, 3)


def test_slots_of_lanes_that_are_not_there_have_to_be_numbers_too() -> None:
    spec = frb.BufferSpec({"x": frb.Binary(())}, 2**31 - 3, lanes=5)
    with pytest.raises(ValueError, match=r"3 lanes empty.* give a number of lanes that the shards divide"):
        deal.deal(spec, 8)


CAPACITY, MARK = 40, -7


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
@pytest.mark.parametrize("each", [0, 1, 6])
def test_each_gets_its_share(shards: int, each: int) -> None:
    dealt = deal.deal(frb.BufferSpec((frb.Unbounded(()),), CAPACITY, lanes=5), shards)
    rng = np.random.default_rng(shards)
    handles = np.where(rng.random(shards * each) < 0.2, -1, rng.integers(0, 3 * CAPACITY, shards * each)).astype(
        np.int32
    )
    exchanges = [shares.exchange(dealt, handles, shard) for shard in range(shards)]
    messages = []  # by who sends them, to each
    for shard, exchange in enumerate(exchanges):
        assert [
            int(handles[k]) % CAPACITY - shard * dealt.slots_each for k in exchange.asked
        ] == exchange.slots.tolist()
        told = np.concatenate([[MARK], handles[exchange.asked]])[exchange.outgoing]
        assert len(told) == sum(exchange.sent)
        messages.append(np.split(told, np.cumsum(exchange.sent)[:-1]))
    for shard, exchange in enumerate(exchanges):
        found = [sent[shard] for sent in messages]
        assert list(map(len, found)) == exchange.received
        received = np.concatenate([*found, [-1]])
        assert received[exchange.marks].tolist() == [MARK] * shards
        assert received[exchange.places].tolist() == handles[shard * each : (shard + 1) * each].tolist()


# --- adding to one shard: the index against the buffer that is not dealt ----------------------------------------------

LENGTH = 8


def added(dealt: deal.Dealing, index: Any, part: Any, batch: Batch) -> Any:
    """The index and the part of the one shard with a batch."""

    def add(buffer: Any, batch: Batch) -> Any:
        return State(*functions.add(ops, buffer, buffer.spec, *batch), buffer.spec)

    def run(buffer: Any, function: Any, *given: Any) -> Any:
        return State(*function(ops, buffer, buffer.spec, *given), buffer.spec)

    shard = adding.Shard(
        ops, dealt, np.int32(0), index, part, add, run, read=NotImplemented, everyones=list, draws=NotImplemented
    )
    return adding.added(shard, batch)


def test_one_step_may_take_the_frames_of_several_items() -> None:
    """Of a run each item has a frame of its own, and a step that goes on from none takes two."""
    item = {"x": frb.Unbounded(()), "next_x": frb.Unbounded(())}
    spec = frb.BufferSpec(item, 2 * LENGTH, frb.Prioritized(), lanes=2, compact=frb.Compact(spare=0))
    dealt = deal.deal(spec, 1)
    whole = functions.init(ops, spec)
    index, part = (State(*functions.init(ops, one), one) for one in (dealt.index, dealt.part))
    run = np.arange(LENGTH, dtype=np.float32).repeat(2)
    for x in (run, run[:2] + 90, run[:2] + 100):
        leaves = [{"x": x, "next_x": x + 1}[name] for name in spec.plan.names]
        priorities = np.ones(len(x), np.float32)
        batch = Batch(leaves, len(x), None, priorities)
        whole = functions.add(ops, whole, spec, *batch)
        index, part = added(dealt, index, part, batch)
        assert index.counters.tolist()[:2] == whole.counters.tolist()[:2]
        assert index.tree.tolist() == whole.tree.tolist()
    assert whole.counters[counters.SIZE] == 2 * (LENGTH - 1), "an item more is gone than came"


# --- dealt by slots: index and parts against the buffer that is not dealt ---------------------------------------------

RANKED = {"x": frb.Unbounded((2,)), "image": frb.Bounded(0, 9, (40, 40), "uint8"), "next": {"rank": frb.Unbounded(())}}
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


def assert_bits(found: Arrays, expected: Arrays) -> None:
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
    spec = frb.BufferSpec(RANKED, capacity, sampler, writer, lanes=LANES)
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
            assert_bits(joined(dealt, index, parts), whole)
            again, moved = deal.deal(spec, 3), {}
            for k in range(3):
                given = {j: parts[j] for j in regroup.sources(dealt, again, k)}
                moved[k] = regroup.regrouped(dealt, index, given, again, k)
                assert regroup.misfit(again, index, moved[k], k) is None
            assert_bits(joined(again, index, moved), whole)
            if turn == 2 and seed % 2:
                whole = functions.clear(ops, whole, spec)
                index = functions.clear(ops, index, dealt.index)
                parts = {k: functions.clear(ops, part, dealt.part) for k, part in parts.items()}
                assert all(regroup.misfit(dealt, index, part, k) is None for k, part in parts.items())
        split_index, split_part = regroup.split(spec, whole)
        assert_bits(regroup.join(spec, split_index, split_part), whole)


def joined(dealt: deal.Dealing, index: Arrays, parts: dict[int, Arrays]) -> Arrays:
    one = deal.deal(dealt.spec, 1)
    return regroup.join(dealt.spec, index, regroup.regrouped(dealt, index, parts, one, 0))


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_each_slot_of_chosen_ones_is_one_shards_own(shards: int) -> None:
    dealt = deal.deal(frb.BufferSpec(RANKED, 19, writer=frb.Reservoir(), lanes=5), shards)
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
    spec = frb.BufferSpec(RANKED, 19, writer=frb.Reservoir(), lanes=LANES)
    dealt, rng = deal.deal(spec, 2), np.random.default_rng(0)
    leaves, n, _, _, draws = step(spec, rng)
    index, _ = place.choose(ops, functions.init(ops, dealt.index), dealt, leaves, n, None, None, draws)
    assert int(index.counters[counters.SIZE]) == n
    said = regroup.misfit(dealt, index, functions.init(ops, dealt.part), 0)
    assert said is not None
    assert "its slots hold [0] items, and by the index" in said
