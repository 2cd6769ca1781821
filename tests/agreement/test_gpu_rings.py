"""Kernels for GPUs beside those of the CPU, to the bit: lanes, epochs, slices, and items that are rewritten.

Programs are carried out by emulated blocks, few of them, and in several orders; where there is a GPU, on it.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend as rb
from tests.support import chain_programs as programs
from tests.support import emulated_gpu
from tests.support.backends import needs_native

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
pytestmark = [needs_native, pytest.mark.usefixtures("tensors_of_the_cpu")]
ITEM = {"x": frb.Unbounded((3,)), "n": frb.Unbounded((), "int32"), "done": frb.Binary(())}
WIDE = {"image": frb.Unbounded((1040,), "uint8"), "wide": frb.Unbounded((301,), "float16")}


IMAGES = {"image": frb.Unbounded((84, 84, 4), "uint8"), "n": frb.Unbounded((), "int32"), "done": frb.Binary(())}
ENDS: Any = {"end_keys": ("done",), "strict_length": False}
RETURNS = frb.n_step(3, 0.9, at="add", reward_key="x", terminated_key="done", next_keys=["n"])
STACKS = frb.Compact(next={"image": "next_image"}, stack=4, axis=-1)
LARGE = {
    "priorities": frb.BufferSpec(ITEM, 20_000, frb.Prioritized()),
    "images": frb.BufferSpec(IMAGES, 150, frb.Prioritized()),
    "limits": frb.BufferSpec(ITEM, 4500, frb.Prioritized(max_times_sampled=2)),
    "arrivals": frb.BufferSpec(ITEM, 4500, frb.Prioritized(replacement=False)),
    "lanes": frb.BufferSpec(ITEM, 600 * 12, frb.Uniform(), lanes=600),
    "priorities of lanes": frb.BufferSpec(ITEM, 600 * 12, frb.Prioritized(), lanes=600),
    "reservoir": frb.BufferSpec(ITEM, 3000, frb.Uniform(), frb.Reservoir()),
    "best": frb.BufferSpec(ITEM, 5000, frb.Prioritized(), frb.MaxValue("x", reduction="max")),
    "epochs": frb.BufferSpec(ITEM, 6000, frb.WithoutReplacement()),
    "slices": frb.BufferSpec(ITEM, 600 * 12, frb.Slices(4, **ENDS), lanes=600),
    "fresh slices": frb.BufferSpec(ITEM, 600 * 12, frb.Slices(4, fresh_first=True, **ENDS), lanes=600),
    "priorities of slices": frb.BufferSpec(ITEM, 4500, frb.PrioritizedSlices(4, **ENDS)),
    "epochs of slices": frb.BufferSpec(ITEM, 600 * 12, frb.SlicesWithoutReplacement(4, **ENDS), lanes=600),
    "versions of lanes": frb.BufferSpec(ITEM, 600 * 12, frb.Staleness("n", power=3), lanes=600),
    "newer items of lanes": frb.BufferSpec(ITEM, 600 * 12, frb.Recency(3), lanes=600),
    "epochs in order of lanes": frb.BufferSpec(ITEM, 600 * 12, frb.WithoutReplacement(shuffle=False), lanes=600),
    "limits in order": frb.BufferSpec(ITEM, 4500, frb.InOrder(3)),
    "a queue of windows": frb.BufferSpec(ITEM, 600 * 12, frb.Queue(4), lanes=600),
    "waiting": frb.BufferSpec(ITEM, 600 * 12, frb.Prioritized(), lanes=600, transforms=RETURNS),
    "waiting images": frb.BufferSpec(IMAGES | {"x": ITEM["x"]}, 150, transforms=RETURNS),
    "frames": frb.BufferSpec(IMAGES | {"next_image": IMAGES["image"]}, 90, frb.Prioritized(), compact=STACKS),
    "frames of lanes": frb.BufferSpec(
        ITEM, 600 * 12, frb.Prioritized(), lanes=600, compact=frb.Compact(next={}, stack={"x": 3})
    ),
}


def large_life(spec: frb.BufferSpec, device: str) -> list[bytes]:
    """What is in a buffer, and in what is drawn, after batches that several blocks share, or one in several goes."""
    rng, state, told, lanes = np.random.default_rng(0), rb.init(spec, device), list[Any](), spec.lanes or 1
    takes_out = isinstance(spec.sampler, frb.Queue)
    for turn in range(3):
        lead = (min(spec.capacity, 7000) // lanes * 3 // 4,) + (() if spec.lanes is None else (lanes,))
        items = {
            name: programs.as_tensor(programs.random_array(rng, leaf, lead)).to(device)
            for name, leaf in spec.item.items()
        }
        items["done"] = torch.from_numpy(rng.random(lead) < 0.1).to(device)
        if spec.transforms:  # of sums of what is no number each processor has bits of its own
            items["x"] = torch.from_numpy(rng.standard_normal((*lead, *spec.item["x"].shape), np.float32)).to(device)
        key = rb.key(turn) if spec.writer.words else None
        state = rb.add(state, items, torch.from_numpy(rng.random(lead) < 0.9).to(device) if turn else None, key=key)
        older, (state, sample) = (
            state,
            rb.sample(state, rb.key(turn), 2 * lanes if takes_out else min(spec.capacity // 2, 2500)),
        )
        told += [*sample.items.values(), *programs.told_beside(sample)]
        if spec.sampler.has_priorities:
            handles = sample.indices.reshape(-1).repeat(3)  # of which a third block has some
            priorities = torch.from_numpy(rng.random(len(handles), np.float32) + turn).to(device)
            wide = "image" in spec.item and spec.plan.frames is None
            rewritten = {"image": sample.items["image"].repeat(3, 1, 1, 1)} if wide else None
            state = rb.update(state, handles, priorities, rewritten)
        told.append(rb.sample(older, rb.key(7), lanes if takes_out else 50)[1].indices)
    return [programs.bits(x) for x in told] + programs.peek(state)


@pytest.mark.parametrize("name", list(LARGE))
def test_large_batches(name: str) -> None:
    with emulated_gpu.using("scattered") as emulated:
        found = large_life(LARGE[name], "cpu")
    assert found == large_life(LARGE[name], "cpu")
    assert max(len(list(each)) for _, each in itertools.groupby(emulated.launched, lambda launch: launch[0])) < 3
    assert any(columns > 2 for _, (columns, _) in emulated.launched)


# --- what a GPU does not tell ---------------------------------------------------------------------

NOTHING = {
    "no items": (frb.BufferSpec(ITEM, 8, lanes=2), False),
    "none with a limit": (frb.BufferSpec(ITEM, 8, frb.Uniform(max_times_sampled=2)), False),
    "no priorities": (frb.BufferSpec(ITEM, 8, frb.Prioritized(), lanes=2), False),
    "an epoch is too short": (frb.BufferSpec(ITEM, 8, frb.WithoutReplacement(drop_last=True)), True),
    "slices are too long": (frb.BufferSpec(ITEM, 8, frb.Slices(4, end_keys=())), True),
    "slices of an epoch": (frb.BufferSpec(ITEM, 8, frb.SlicesWithoutReplacement(4, end_keys=())), True),
    "slices by priority": (frb.BufferSpec(ITEM, 8, frb.PrioritizedSlices(4, end_keys=())), True),
}


@pytest.mark.parametrize("name", list(NOTHING))
def test_where_nothing_can_be_drawn_weights_are_zero(name: str) -> None:
    spec, marked = NOTHING[name]
    lead = (1,) if spec.lanes is None else (1, spec.lanes)
    with emulated_gpu.using("forward"):
        items = {
            name: torch.ones((*lead, *leaf.shape), dtype=getattr(torch, leaf.dtype)) for name, leaf in spec.item.items()
        }
        state = rb.add(rb.init(spec), items, torch.full(lead, marked))
        after, sample = rb.sample(state, rb.key(0), 4)
    assert (sample.indices == -1).all()
    assert not sample.weights.any()
    assert not sample.probabilities.any()
    assert programs.peek(after) == programs.peek(state)


def test_a_buffer_to_which_nothing_was_added_is_refused_before_a_launch() -> None:
    with emulated_gpu.using("forward") as emulated:
        state = rb.init(frb.BufferSpec(ITEM, 8, lanes=2))
        for sample in (rb.sample, rb.sample_):
            with pytest.raises(ValueError, match="empty"):
                sample(state, rb.key(0), 4)
    assert not emulated.launched


@pytest.mark.parametrize("lanes", [None, 2])
def test_an_epoch_in_order_is_done_when_all_that_was_left_of_it_is_gone(lanes: int | None) -> None:
    item = {"n": frb.Unbounded((), "int32")}
    spec = frb.BufferSpec(item, 8, frb.WithoutReplacement(shuffle=False), lanes=lanes)
    numbers = torch.arange(8, dtype=torch.int32)

    def life() -> list[list[bytes]]:
        state, states = rb.init(spec), []
        for _ in range(3):
            state = rb.add(state, {"n": numbers if lanes is None else numbers.reshape(-1, lanes)})
            states.append(state)
            state = rb.sample(state, rb.key(0), 2)[0]
        return [programs.peek(each) for each in (*states, state)]

    with emulated_gpu.using("scattered"):
        found = life()
    with programs.using(programs.NotHere()):
        assert found == life()


def test_each_function_is_one_launch_or_two() -> None:
    spec = frb.BufferSpec(ITEM, 64, frb.PrioritizedSlices(2, **ENDS), lanes=2)
    items = {"x": torch.ones(8, 2, 3), "n": torch.ones(8, 2, dtype=torch.int32), "done": torch.zeros(8, 2) > 0}
    with emulated_gpu.using("forward") as emulated:
        state = rb.add(rb.init(spec), items)
        state = rb.add(state, items, torch.ones(8, 2) > 0)
        state, sample = rb.sample(state, rb.key(0), 16)
        rb.update_(state, sample.indices.reshape(-1), torch.ones(32))
    names = [name for name, _ in emulated.launched]
    assert names == ["add_to_rings", "rank_in_rings", "add_to_rings", "draw_slices", "update"]
    spec = frb.BufferSpec(ITEM, 64, frb.WithoutReplacement())
    with emulated_gpu.using("forward") as emulated:
        state = rb.add(rb.init(spec), {name: leaf[:, 0] for name, leaf in items.items()})
        rb.sample_(state, rb.key(0), 4)
    assert [name for name, _ in emulated.launched] == ["add_to_rings", "draw_epoch", "read_epoch"]
    spec = frb.BufferSpec(ITEM, 64, frb.Prioritized(max_times_sampled=4))
    with emulated_gpu.using("forward") as emulated:
        state = rb.add(rb.init(spec), {name: leaf[:, 0] for name, leaf in items.items()})
        state, sample = rb.sample(state, rb.key(0), 16)
        rb.update(state, sample.indices, torch.ones(16))
    assert [name for name, _ in emulated.launched] == ["add_to_rings", "sample", "spend", "update"]
    for writer, sampler, draws in (
        (frb.Reservoir(), frb.Uniform(), ["sample"]),
        (frb.MaxValue("n"), frb.Prioritized(max_times_sampled=4), ["sample", "spend"]),
        (frb.MaxValue("n"), frb.Prioritized(max_times_sampled=4, replacement=False), ["arrive", "spend", "read_drawn"]),
    ):
        key = rb.key(0) if writer.words else None
        with emulated_gpu.using("forward") as emulated:
            state = rb.init(frb.BufferSpec(ITEM, 64, sampler, writer, lanes=2))
            state = rb.add(state, items, torch.ones(8, 2) > 0, key=key)
            rb.sample(state, rb.key(0), 16)
        assert [name for name, _ in emulated.launched] == ["choose", "add_to_rings", *draws]


@pytest.mark.parametrize(
    ("sampler", "drawing"),
    [
        (frb.Recency(3), ["sample"]),
        (frb.Queue(), ["draw_in_turn"]),
        (frb.Queue(2), ["draw_in_turn"]),
        (frb.InOrder(), ["draw_in_turn"]),
        (frb.InOrder(1), ["spend", "read_drawn"]),
        (frb.WithoutReplacement(shuffle=False), ["draw_in_order"]),
    ],
    ids=repr,
)
def test_draws_by_position_are_one_launch_or_two_with_a_limit(sampler: Any, drawing: list[str]) -> None:
    with emulated_gpu.using("forward") as emulated:
        state = rb.add(
            rb.init(frb.BufferSpec({"n": frb.Unbounded((), "int32")}, 8, sampler)), {"n": torch.arange(5).int()}
        )
        state, sample = rb.sample(state, rb.key(0), 2)
        rb.add_(state, {"n": torch.arange(3).int()}, torch.ones(3) > 0)
    assert [name for name, _ in emulated.launched] == ["add_to_rings", *drawing, "rank_in_rings", "add_to_rings"]
    if drawing != ["sample"]:
        assert sample.items["n"].flatten().tolist() == [*range(sample.indices.numel())]


def test_steps_that_wait_are_added_by_three_launches() -> None:
    transform = frb.n_step(3, 0.5, at="add", reward_key="gain", terminated_key="done")
    item = {"gain": frb.Unbounded(()), "done": frb.Binary(())}
    items = {"gain": torch.tensor([1.0, 2.0, 4.0, 8.0]), "done": torch.zeros(4) > 0}
    with emulated_gpu.using("scattered") as emulated:
        state = rb.add(rb.init(frb.BufferSpec(item, 8, transforms=transform)), items, torch.tensor([1, 1, 1, 0]) > 0)
        newer = rb.add(state, items)
    names = [name for name, _ in emulated.launched]
    assert names == 2 * ["line_up", "add_waiting", "keep_waiting"]
    assert rb.items(state)["gain"].tolist() == [3.0] + [0.0] * 7
    assert rb.items(newer)["gain"].tolist() == [3.0, 4.25, 5.0, 3.0, 6.0, 0.0, 0.0, 0.0]


def test_items_that_share_frames_are_added_by_three_launches_and_drawn_by_one() -> None:
    stack = frb.Unbounded((12, 12, 4), "uint8")
    item = {"obs": stack, "next_obs": stack, "done": frb.Binary(())}
    spec = frb.BufferSpec(item, 64, frb.Prioritized(), lanes=2, compact=frb.Compact(stack=4, axis=-1))
    frames = torch.arange(10 * 2 * 144).reshape(10, 2, 12, 12).to(torch.uint8).unfold(0, 4, 1)
    items = {"obs": frames[:6], "next_obs": frames[1:], "done": torch.zeros(6, 2) > 0}
    with emulated_gpu.using("scattered") as emulated:
        state = rb.add(rb.init(spec), items, torch.ones(6, 2) > 0)
        sample = rb.sample(state, rb.key(0), 16)[1]
    names = [name for name, _ in emulated.launched]
    assert names == ["compare_frames", "add_with_frames", "store_frames", "sample_frames"]
    step, lane = sample.indices % 64 % 32, sample.indices % 64 // 32
    assert torch.equal(sample.items["obs"], frames[step, lane])
    assert torch.equal(sample.items["next_obs"], frames[step + 1, lane])


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("name", list(LARGE))
def test_on_a_gpu(name: str) -> None:
    assert large_life(LARGE[name], "cuda") == large_life(LARGE[name], "cpu")
