"""How lanes are dealt to shards, and who sends which rows of a batch to whom: in NumPy, without any device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.ops import numpy_ops as ops
from functional_rb.sharding import deal as dealing
from functional_rb.sharding import rows, shares
from functional_rb.structures.ring import RingState
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
    dealt = dealing.deal(spec, shards)
    slots = np.arange(spec.capacity, dtype=np.int32)
    owners = np.zeros_like(slots)
    firsts = dealt.first_slots()
    for shard in range(shards):
        local, own = dealing.own_slots(ops, dealt, slots, np.int32(shard))
        owners += own
        lane, place = np.divmod(slots[own], spec.plan.ring.length)
        assert (local[own] == (lane - shard * dealt.lanes_each) * spec.plan.ring.length + place).all()
        assert (local[~own] == 0).all()
        assert slots[own].tolist() == [*range(firsts[shard], firsts[shard + 1])]
        real = dealing.real_rows(ops, dealt, np.int32(shard), 3, slots).reshape(3, -1)
        assert (real.sum(1) == own.sum() // spec.plan.ring.length).all()
        assert not np.diff(real.astype(int)).max(initial=0) > 0, "the lanes that are not there come last"
    assert (owners == 1).all()
    assert dealt.is_even == (lanes % shards == 0)


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_rows_of_all_lanes(shards: int) -> None:
    """Step by step, each lane's at its place, without those that are not there."""
    dealt, steps = dealing.deal(spec_of(5), shards), 3
    lane = np.arange(shards * dealt.lanes_each).reshape(shards, 1, -1)
    numbers = (np.arange(steps)[:, None] * 100 + lane)[..., None] + np.zeros(2, int)
    found = dealing.of_all_lanes(ops, dealt, numbers.reshape(shards, -1, 2))
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
    for given, back in zip(made, rows.unpacked(ops, layout, words), strict=True):
        assert (back.dtype, back.tolist()) == (given.dtype, given.tolist())


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_sizes_of_shards(shards: int) -> None:
    dealt = dealing.deal(spec_of(5), shards)
    sizes = np.array([3, 0, 4, 1, 2], np.int32)
    ends = RingState(np.arange(5, dtype=np.int32), sizes)
    found = dealing.sizes_of_shards(ops, dealt, ends)
    masked = [dealing.ends_of_shard(ops, dealt, ends, np.int32(k)) for k in range(shards)]
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
        dealt = dealing.deal(spec_of(sampler=sampler), 2)
        assert dealt.index.plan.names == names
        assert dealt.index_leaves == tuple(dealt.spec.plan.names.index(name) for name in names)
        assert dealt.index.sampler == dealt.spec.sampler
        assert dealt.index.draw_shape(8) == dealt.spec.draw_shape(8)
    groups = dealing.deal(MEMBERS["groups"].spec, 2)
    assert groups.index.plan.names == ("episode", "id")
    bare = frb.BufferSpec(frb.Binary(()), 8, frb.Slices(2, end_keys=["the item"]), lanes=2)
    assert dealing.deal(bare, 2).index.plan.names == ("the item",)


def test_a_part_computes_what_the_buffer_does_as_it_is_sampled() -> None:
    spec = spec_of(transforms=(frb.n_step(2, 0.9), frb.map_items(double)))
    dealt = dealing.deal(spec, 2)
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
        dealing.deal(spec, 2)


@pytest.mark.parametrize("spare", [None, 0, 7])
@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_a_lane_has_as_much_room_for_frames_as_in_the_whole(spare: int | None, shards: int) -> None:
    item = {"obs": frb.Unbounded((3,)), "next_obs": frb.Unbounded((3,))}
    dealt = dealing.deal(spec_of(5, 100, item=item, compact=frb.Compact(spare=spare)), shards)
    whole, part = dealt.spec.plan.frames, dealt.part.plan.frames
    assert whole is not None
    assert part is not None
    assert (part.room, part.items.length) == (whole.room, whole.items.length)
    assert dealt.asked.plan.frames == part
    assert dealt.index.plan.frames is None


def test_batches_are_given_out_in_equal_parts() -> None:
    dealing.check_batch(12, 3)
    with pytest.raises(ValueError, match=r"multiple of the 3 shards.* got 13; 12 or 15 would do"):
        dealing.check_batch(13, 3)
    with pytest.raises(ValueError, match="got 2; 3 would do"):
        dealing.check_batch(2, 3)


def test_slots_of_lanes_that_are_not_there_have_to_be_numbers_too() -> None:
    spec = frb.BufferSpec({"x": frb.Binary(())}, 2**31 - 3, lanes=5)
    with pytest.raises(ValueError, match=r"3 lanes empty.* give a number of lanes that the shards divide"):
        dealing.deal(spec, 8)


CAPACITY, MARK = 40, -7


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
@pytest.mark.parametrize("each", [0, 1, 6])
def test_each_gets_its_share(shards: int, each: int) -> None:
    dealt = dealing.deal(frb.BufferSpec((frb.Unbounded(()),), CAPACITY, lanes=5), shards)
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
