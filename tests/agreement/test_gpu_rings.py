"""Kernels for GPUs beside those of the CPU, to the bit: lanes, epochs, slices, and items that are rewritten.

Programs are carried out by emulated blocks, few of them, and in several orders; where there is a GPU, on it.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend as rb
import torch_backend.arrays.ops as torch_ops
from functional_rb.buffer import functions
from functional_rb.core import counters
from functional_rb.native import launches as declared
from tests.agreement import added_steps
from tests.agreement.added_steps import COMPACT, OF_AGENTS, WAITING, WAITING_OF_AGENTS, observations
from tests.support import chain_programs as programs
from tests.support import emulated_gpu
from tests.support.backends import needs_native
from tests.support.effort import effort
from torch_backend.kernels import launches

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
pytestmark = [needs_native, pytest.mark.usefixtures("tensors_of_the_cpu")]
ITEM = {"x": frb.Unbounded((3,)), "n": frb.Unbounded((), "int32"), "done": frb.Binary(())}
WIDE = {"image": frb.Unbounded((1040,), "uint8"), "wide": frb.Unbounded((301,), "float16")}


class Program:
    """Random calls on states that live, by numbers of a seed: the same calls whoever carries them out.

    Args:
        spec: of the buffer.
        seed: of all choices.
        device: where the states lie.
        behind: so many items before handles begin anew; None for a buffer that is.

    Attributes:
        told: the bits of all that came of the calls.
        states: those that live, the newest last.
    """

    def __init__(self, spec: frb.BufferSpec, seed: int, device: str = "cpu", behind: int | None = None) -> None:
        """One empty state."""
        self.spec, self.rng, self.device = spec, np.random.default_rng(seed), device
        self.states, self.told, self.step = list[Any]([rb.init(spec, device)]), list[Any](), 0
        if behind is not None:
            ring = spec.plan.ring
            first = counters.CURSOR if ring.lanes == 1 else counters.BASE
            self.states[0]._counters[first : first + ring.lanes] = ring.limit - behind

    def carry_out(self, calls: int) -> list[Any]:
        """So many calls, after which all states are looked at."""
        for _ in range(calls):
            name = str(self.rng.choice(["add", "add", "update", "sample", "sample"]))
            in_place = bool(self.rng.random() < 0.3)
            at = -1 if in_place or self.rng.random() < 0.8 else int(self.rng.integers(len(self.states)))
            if in_place and self.rng.random() < 0.7:  # else it is a copy that is written to
                del self.states[:-1]
            before = self.states[at]
            after = getattr(self, name)(before, in_place)
            if in_place and before._version is None:
                del self.states[at]
            self.states = [*self.states, after][-4:] if after is not before else self.states
            self.told += [programs.peek(state) for state in self.states]
        return self.told

    def array(self, leaf: Any, lead: tuple[int, ...]) -> torch.Tensor:
        return programs.as_tensor(programs.random_array(self.rng, leaf, lead)).to(self.device)

    def priorities(self, lead: tuple[int, ...]) -> torch.Tensor | None:
        if not self.spec.sampler.has_priorities or self.rng.random() < 0.3:
            return None
        numbers = np.where(
            self.rng.random(lead) < 0.3, self.rng.choice(programs.PRIORITIES, lead), self.rng.random(lead)
        )
        return torch.from_numpy(numbers.astype(np.float32)).to(self.device)

    def add(self, state: Any, in_place: bool) -> Any:
        lanes = self.spec.lanes
        n = int(self.rng.choice([1, 1, 2, 3, 7, self.spec.capacity // (lanes or 1) + 3]))
        lead = (n,) if lanes is None else (n, lanes)
        items = {name: self.array(leaf, lead) for name, leaf in self.spec.item.items()}
        if "n" in items:  # which tell steps and trajectories apart
            items["n"] = torch.from_numpy(np.sort(self.rng.integers(0, 4, lead), 0).astype(np.int32)).to(self.device)
        if "rank" in items:  # of which many are alike
            chosen = self.rng.choice(programs.PRIORITIES, (*lead, 5))
            alike = np.where(self.rng.random(chosen.shape) < 0.2, chosen, self.rng.integers(-9, 9, chosen.shape))
            items["rank"] = torch.from_numpy(alike.astype(np.float32)).to(self.device)
        if "gain" in items:  # rewards that are numbers
            made = added_steps.items(self.rng, int(self.rng.integers(1000)), n * (lanes or 1), self.spec)
            items = {name: programs.as_tensor(made[name]).to(self.device) for name in items}
        if self.spec.plan.frames is not None:
            seen = observations(self.rng, n * (lanes or 1), self.spec.plan.frames, self.spec.plan.names)
            items |= {
                name: programs.as_tensor(array.reshape(*lead, *array.shape[1:])).to(self.device)
                for name, array in seen.items()
            }
        if "done" in items and "gain" not in items:
            items["done"] = torch.from_numpy(self.rng.random(lead) < 0.2).to(self.device)
        mask = torch.from_numpy(self.rng.random(lead) < self.rng.choice([0.1, 0.6])).to(self.device)
        delays = any(transform.delays for transform in self.spec.transforms)
        given = items, mask if self.rng.random() < 0.4 else None, None if delays else self.priorities(lead)
        if self.spec.writer.words:
            self.step += 1
            given = *given, rb.key(self.step)
        if self.spec.writer.overwrites:
            return (rb.add_ if in_place else rb.add)(state, *given)
        try:
            return (rb.add_ if in_place else rb.add)(state, *given)
        except ValueError as error:
            self.told.append(str(error))
            return state

    def handles(self, state: Any) -> torch.Tensor:
        """Those of a draw, some twice, and others."""
        sample = self.drawn(state)
        known = np.full(1, -1, np.int32) if sample is None else sample.indices.reshape(-1).cpu().numpy()
        modulus = self.spec.plan.ring.limit * (self.spec.lanes or 1)
        others = self.rng.integers(-3, min(2 * self.spec.capacity, modulus), 6)
        n = int(self.rng.choice([1, 2, 5, 40]))
        return torch.from_numpy(self.rng.choice(np.concatenate([known, others]), n).astype(np.int32)).to(self.device)

    def update(self, state: Any, in_place: bool) -> Any:
        handles = self.handles(state)
        lead = tuple(handles.shape)
        priorities = self.priorities(lead)
        names = [name for name in self.spec.item if self.rng.random() < 0.6]
        items = {name: self.array(self.spec.item[name], lead) for name in names if self.rewrites}
        if priorities is None and not items:
            return state
        return (rb.update_ if in_place else rb.update)(state, handles, priorities, items or None)

    @property
    def rewrites(self) -> bool:
        """Whether items may be: those that lie in one ring, and do not tell where trajectories end."""
        return (
            self.spec.lanes is None
            and self.spec.plan.frames is None
            and self.spec.plan.boundaries is None
            and isinstance(self.spec.sampler, frb.Uniform | frb.Prioritized)
        )

    def drawn(self, state: Any) -> Any:
        """A sample; None if there is nothing, of which a GPU tells by handles alone."""
        size = int(self.rng.choice([1, 4, 33])) * self.unit
        key, self.step = rb.key(self.step), self.step + 1
        try:
            self.after, sample = rb.sample(state, key, size)
        except ValueError:
            return None
        return sample if bool((sample.indices >= 0).any()) else None

    @property
    def unit(self) -> int:
        """Steps of a draw, as sizes count them; of a queue it gives windows of all lanes."""
        sampler: Any = self.spec.sampler
        if isinstance(sampler, frb.Queue):
            return self.spec.plan.ring.lanes
        return sampler.length if getattr(sampler, "batch", "") == "steps" else 1

    def sample(self, state: Any, in_place: bool) -> Any:
        sample = self.drawn(state)
        if sample is None:
            self.told.append("nothing")
            return state
        arrays = [*sample.items.values(), *programs.told_beside(sample)]
        self.told += [(tuple(x.shape), programs.bits(x)) for x in arrays]
        return self.after if self.spec.sampler.remembers else state


seeds = st.integers(0, 2**32 - 1)
lanes_of = st.none() | st.sampled_from([1, 2, 5, 64])
# The order of turns, how many blocks there are at most, and how much one does.
ways = st.tuples(
    st.sampled_from([*emulated_gpu.ORDERS]), st.sampled_from([1, 2, 3, 1024]), st.sampled_from([2, 500, 4096])
)
priorities_or_none = st.sampled_from(
    [frb.Uniform(), frb.Prioritized(), frb.Prioritized(1.0, 1.0), frb.Prioritized(0.5, new_priority="ever")]
)


@st.composite
def one_ring(draw: st.DrawFn) -> frb.BufferSpec:
    item = ITEM | draw(st.sampled_from([{}, WIDE]))
    return frb.BufferSpec(item, draw(st.sampled_from([1, 3, 17, 40, 300])), draw(priorities_or_none))


@st.composite
def several_rings(draw: st.DrawFn) -> frb.BufferSpec:
    lanes = draw(st.sampled_from([2, 5, 64]))
    item = ITEM | draw(st.sampled_from([{}, {}, WIDE]))
    return frb.BufferSpec(item, lanes * draw(st.sampled_from([1, 2, 9])), draw(priorities_or_none), lanes=lanes)


@st.composite
def epochs(draw: st.DrawFn) -> frb.BufferSpec:
    lanes, sampler = draw(lanes_of), frb.WithoutReplacement(drop_last=draw(st.booleans()))
    return frb.BufferSpec(ITEM, (lanes or 1) * draw(st.sampled_from([1, 2, 9, 40])), sampler, lanes=lanes)


@st.composite
def by_position(draw: st.DrawFn) -> frb.BufferSpec:
    """Of newer items rather than older ones, of those that are taken out, from an end, and in epochs in order."""
    queues = st.builds(frb.Queue, st.none() | st.integers(1, 3))
    in_order = st.builds(frb.WithoutReplacement, st.booleans(), shuffle=st.just(False))
    sampler: Any = draw(
        st.builds(frb.Recency, st.integers(1, 5))
        | queues
        | in_order
        | st.builds(frb.InOrder, newest_first=st.booleans())
    )
    in_one = isinstance(sampler, frb.InOrder) or (isinstance(sampler, frb.Queue) and sampler.length is None)
    lanes, writer = None if in_one else draw(st.sampled_from([None, 2, 5])), frb.RoundRobin()
    if isinstance(sampler, frb.Queue) or draw(st.booleans(), "stops"):
        writer = frb.StopWhenFull()
    item, more = ITEM | draw(st.sampled_from([{}, {}, WIDE])), dict[str, Any]()
    match draw(st.sampled_from(["plain", "plain", "ahead", "frames"])):
        case "ahead":
            more["transforms"] = frb.n_step(3, 0.9, reward_key="x", terminated_key="done")
        case "frames" if writer.overwrites:
            leaves, given = draw(st.sampled_from(COMPACT))
            item, more["compact"] = dict(sorted((ITEM | leaves).items())), frb.Compact(**given)
    capacity = (lanes or 1) * draw(st.sampled_from([3, 4, 17, 40]))
    return frb.BufferSpec(item, capacity, sampler, writer, lanes=lanes, **more)


@st.composite
def samplers_of_slices(draw: st.DrawFn, trajectory: str = "n") -> Any:
    length, strict = draw(st.integers(1, 5), "length"), draw(st.booleans(), "strict")
    marks: Any = draw(st.sampled_from([{"end_keys": ("done",)}, {"end_keys": ()}, {"trajectory_key": trajectory}]))
    settings = marks | {"strict_length": strict, "period": draw(st.integers(1, 3))}
    span = draw(st.sampled_from([False, not strict]))
    weighting = draw(st.sampled_from(["trajectory", "window"]))
    match draw(st.sampled_from(["priority", "epochs", "plain"])):
        case "priority":
            more: Any = {"batch": draw(st.sampled_from(["slices", "steps"])), "span": (False, span)}
            return frb.PrioritizedSlices(
                length, new_priority=draw(st.sampled_from(["live", "ever"])), **more, **settings
            )
        case "epochs":
            more = {"weighting": weighting, "drop_last": draw(st.booleans()), "span": (False, span)}
            return frb.SlicesWithoutReplacement(length, **more, **settings)
        case _:
            more = {"weighting": weighting, "flat": draw(st.booleans())}
            both_sides = (0, length - 1) if span and draw(st.booleans()) else span
            return frb.Slices(length, span=both_sides, **more, **settings)


@st.composite
def slices(draw: st.DrawFn) -> frb.BufferSpec:
    lanes, sampler = draw(lanes_of), draw(samplers_of_slices())
    return frb.BufferSpec(ITEM, (lanes or 1) * draw(st.sampled_from([5, 9, 17])), sampler, lanes=lanes)


of_items = priorities_or_none | st.builds(frb.WithoutReplacement, drop_last=st.booleans())


@st.composite
def compact(draw: st.DrawFn) -> frb.BufferSpec:
    leaves, given = draw(st.sampled_from(COMPACT))
    spare: Any = draw(st.sampled_from([None, 0, 30]))
    lanes, item = draw(lanes_of), dict(sorted((ITEM | leaves).items()))
    sampler = draw(of_items | samplers_of_slices())
    capacity = (lanes or 1) * draw(st.sampled_from([5, 9, 40] if hasattr(sampler, "length") else [1, 2, 9, 40]))
    ahead = frb.n_step(3, 0.9, reward_key="x", terminated_key="done")
    more: Any = {"transforms": draw(st.sampled_from([(), ahead]))}
    return frb.BufferSpec(item, capacity, sampler, lanes=lanes, compact=frb.Compact(**given, spare=spare), **more)


@st.composite
def looking_ahead(draw: st.DrawFn) -> frb.BufferSpec:
    """Of which returns are made as items are drawn."""
    of_slices, lanes = draw(st.booleans(), "slices"), draw(lanes_of)
    item, kinds = added_steps.ITEM, WAITING
    if not of_slices and draw(st.booleans(), "agents"):
        item, kinds = item | OF_AGENTS, WAITING_OF_AGENTS
    item = item | {"x": frb.Unbounded((3,), draw(st.sampled_from(["float32", "float16", "bfloat16"])))}
    added: Any = draw(st.sampled_from(kinds))
    names = "reward_key", "terminated_key", "next_keys", *(() if of_slices else ("end_keys", "trajectory_key"))
    ahead = frb.n_step(added.n, added.gamma, **{name: getattr(added, name) for name in names})
    sampler = draw(samplers_of_slices("id") if of_slices else of_items)
    capacity = (lanes or 1) * draw(st.sampled_from([5, 9, 40]))
    return frb.BufferSpec(dict(sorted(item.items())), capacity, sampler, lanes=lanes, transforms=ahead)


def check(spec: frb.BufferSpec, seed: int, way: tuple[str, int, int], behind: int | None = None) -> set[str]:
    """Carry a program out on the CPU and by emulated kernels; tells which these were."""
    plain = Program(spec, seed, behind=behind).carry_out(10)
    with emulated_gpu.using(*way) as emulated:
        assert Program(spec, seed, behind=behind).carry_out(10) == plain
    return {name for name, _ in emulated.launched}


some = hypothesis.settings(max_examples=effort(20, 2000), deadline=None)


@some
@hypothesis.given(spec=one_ring(), seed=seeds, way=ways)
def test_items_of_one_ring(spec: frb.BufferSpec, seed: int, way: tuple[str, int, int]) -> None:
    check(spec, seed, way)


@some
@hypothesis.given(spec=several_rings(), seed=seeds, way=ways)
def test_items_of_several_lanes(spec: frb.BufferSpec, seed: int, way: tuple[str, int, int]) -> None:
    check(spec, seed, way)


@some
@hypothesis.given(spec=epochs(), seed=seeds, way=ways)
def test_epochs_of_items(spec: frb.BufferSpec, seed: int, way: tuple[str, int, int]) -> None:
    check(spec, seed, way)


@hypothesis.settings(some, max_examples=effort(8, 2000))
@hypothesis.given(spec=by_position(), seed=seeds, way=ways, behind=st.sampled_from([None, 1, 4]))
def test_draws_by_position(spec: frb.BufferSpec, seed: int, way: tuple[str, int, int], behind: int | None) -> None:
    names = check(spec, seed, way, behind)
    drawing = (
        {"sample", "sample_frames"} if isinstance(spec.sampler, frb.Recency) else {"draw_in_turn", "draw_in_order"}
    )
    reading = set() if spec.known.plain else {"read_drawn"}
    assert names <= drawing | reading | {
        "add_to_rings",
        "rank_in_rings",
        "compare_frames",
        "add_with_frames",
        "store_frames",
    }


@hypothesis.settings(some, max_examples=effort(40, 4000))
@hypothesis.given(spec=slices(), seed=seeds, way=ways)
def test_slices(spec: frb.BufferSpec, seed: int, way: tuple[str, int, int]) -> None:
    check(spec, seed, way)


@st.composite
def waiting(draw: st.DrawFn) -> frb.BufferSpec:
    """Of which some stop when they are full, and others have steps wait."""
    lanes, sampler = draw(lanes_of), draw(priorities_or_none)
    capacity = (lanes or 1) * draw(st.sampled_from([1, 2, 9, 40]))
    if draw(st.sampled_from([False, False, True]), "stops"):
        return frb.BufferSpec(ITEM, capacity, sampler, lanes=lanes, writer=frb.StopWhenFull())
    item, transform = added_steps.ITEM, draw(st.sampled_from(WAITING))
    if draw(st.booleans(), "agents"):
        item, transform = item | OF_AGENTS, draw(st.sampled_from(WAITING_OF_AGENTS))
    item = item | {"x": frb.Unbounded((3,), draw(st.sampled_from(["float32", "float16", "bfloat16"])))}
    sampler = draw(st.sampled_from([sampler, sampler, frb.WithoutReplacement()]))
    return frb.BufferSpec(dict(sorted(item.items())), capacity, sampler, lanes=lanes, transforms=transform)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@hypothesis.settings(some, max_examples=effort(40, 4000))
@hypothesis.given(spec=waiting(), seed=seeds, way=ways)
def test_steps_that_wait_and_buffers_that_stop(spec: frb.BufferSpec, seed: int, way: tuple[str, int, int]) -> None:
    check(spec, seed, way)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
@some
@hypothesis.given(spec=looking_ahead(), seed=seeds, way=ways)
def test_returns_of_drawn_items(spec: frb.BufferSpec, seed: int, way: tuple[str, int, int]) -> None:
    check(spec, seed, way)


@st.composite
def limited(draw: st.DrawFn) -> frb.BufferSpec:
    """Of which no item comes more often than so many times, or than once in a batch; some wait for others, or stop."""
    apart = frb.Prioritized(replacement=False)
    sampler = draw(st.sampled_from([frb.Uniform(), frb.Prioritized(), frb.Prioritized(1.0, 1.0, "ever"), apart]))
    limits = [1, 2, 7, 2**30 - 1, *([None] * 4 if sampler is apart else [])]
    sampler = dataclasses.replace(sampler, max_times_sampled=draw(st.sampled_from(limits), "limit"))
    names: Any = {"reward_key": "gain", "terminated_key": "done"}
    ahead, late = frb.n_step(3, 0.9, **names), frb.n_step(2, 0.9, at="add", **names)
    frames = {"compact": frb.Compact(next={}, stack={"x": 3})}
    stops = {"writer": frb.StopWhenFull()}
    more: Any = draw(st.sampled_from([{}, {}, {"transforms": ahead}, {"transforms": late}, frames, stops]))
    lanes, item = draw(lanes_of), added_steps.ITEM if "transforms" in more else dict(sorted(ITEM.items()))
    return frb.BufferSpec(item, (lanes or 1) * draw(st.sampled_from([1, 2, 9, 40])), sampler, lanes=lanes, **more)


@hypothesis.settings(some, max_examples=effort(40, 4000))
@hypothesis.given(spec=limited(), seed=seeds, way=ways)
def test_items_that_come_so_often_at_most(spec: frb.BufferSpec, seed: int, way: tuple[str, int, int]) -> None:
    check(spec, seed, way)


WRITERS = (
    frb.Reservoir(),
    frb.Reservoir(),
    frb.MaxValue("n"),
    *(frb.MaxValue("rank", reduction=how) for how in ("sum", "mean", "max", "min")),
)


@st.composite
def chosen(draw: st.DrawFn) -> frb.BufferSpec:
    """Of which a writer chooses the slots."""
    lanes, writer = draw(lanes_of), draw(st.sampled_from(WRITERS))
    limit = {"max_times_sampled": draw(st.sampled_from([None, None, 2]), "limit")}
    sampler = draw(
        st.sampled_from([frb.Uniform(**limit), frb.Prioritized(**limit), frb.Prioritized(replacement=False)])
    )
    item = ITEM | {"rank": frb.Unbounded((5,))} | draw(st.sampled_from([{}, WIDE]))
    capacity = (lanes or 1) * draw(st.sampled_from([1, 2, 9, 40, 300]))
    return frb.BufferSpec(item, capacity, sampler, writer, lanes=lanes)


@hypothesis.settings(some, max_examples=effort(40, 4000))
@hypothesis.given(spec=chosen(), seed=seeds, way=ways)
def test_slots_that_a_writer_chooses(spec: frb.BufferSpec, seed: int, way: tuple[str, int, int]) -> None:
    check(spec, seed, way)


@hypothesis.settings(some, max_examples=effort(30, 4000))
@hypothesis.given(spec=compact(), seed=seeds, way=ways)
def test_items_that_share_frames(spec: frb.BufferSpec, seed: int, way: tuple[str, int, int]) -> None:
    check(spec, seed, way)


# --- batches larger than a block ------------------------------------------------------------------

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
    "priorities of slices": frb.BufferSpec(ITEM, 4500, frb.PrioritizedSlices(4, **ENDS)),
    "epochs of slices": frb.BufferSpec(ITEM, 600 * 12, frb.SlicesWithoutReplacement(4, **ENDS), lanes=600),
    "newer items of lanes": frb.BufferSpec(ITEM, 600 * 12, frb.Recency(3), lanes=600),
    "epochs in order of lanes": frb.BufferSpec(ITEM, 600 * 12, frb.WithoutReplacement(shuffle=False), lanes=600),
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
        (frb.MaxValue("n"), frb.Prioritized(max_times_sampled=4, replacement=False), ["arrive", "read_drawn", "spend"]),
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
        (frb.Recency(3), "sample"),
        (frb.Queue(), "draw_in_turn"),
        (frb.Queue(2), "draw_in_turn"),
        (frb.InOrder(), "draw_in_turn"),
        (frb.WithoutReplacement(shuffle=False), "draw_in_order"),
    ],
    ids=repr,
)
def test_draws_by_position_are_one_launch(sampler: Any, drawing: str) -> None:
    with emulated_gpu.using("forward") as emulated:
        state = rb.add(
            rb.init(frb.BufferSpec({"n": frb.Unbounded((), "int32")}, 8, sampler)), {"n": torch.arange(5).int()}
        )
        state, sample = rb.sample(state, rb.key(0), 2)
        rb.add_(state, {"n": torch.arange(3).int()}, torch.ones(3) > 0)
    assert [name for name, _ in emulated.launched] == ["add_to_rings", drawing, "rank_in_rings", "add_to_rings"]
    if drawing != "sample":
        assert sample.items["n"].flatten().tolist() == [*range(sample.indices.numel())]


def test_what_programs_read_later_a_draw_does_not_read() -> None:
    """The slots alone are told, of which a launch of its own reads the leaves."""
    spec = frb.BufferSpec(ITEM, 8, frb.Prioritized(replacement=False))
    words = torch.full(spec.draw_shape(2), 2**30, dtype=torch.int32)
    with emulated_gpu.using("forward") as emulated:
        kernel = declared.choose(functions.init(torch_ops, spec), spec, words, torch.tensor(0.4), 2)
        assert kernel is not None
        launches.launched(kernel)
    assert [name for name, _ in emulated.launched] == ["arrive"]


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


# --- on a GPU -------------------------------------------------------------------------------------

ON_GPU = LARGE | {
    "wide": frb.BufferSpec(ITEM | WIDE, 17, frb.Prioritized(0.5, new_priority="ever")),
    "windows": frb.BufferSpec(ITEM, 17 * 5, frb.Slices(3, trajectory_key="n", weighting="window"), lanes=5),
    "short": frb.BufferSpec(ITEM, 9 * 2, frb.SlicesWithoutReplacement(2, trajectory_key="n"), lanes=2),
    "few": frb.BufferSpec(ITEM, 9 * 2, frb.WithoutReplacement(drop_last=True), lanes=2),
}


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("name", list(ON_GPU))
def test_on_a_gpu(name: str) -> None:
    spec = ON_GPU[name]
    if name in LARGE:
        assert large_life(spec, "cuda") == large_life(spec, "cpu")
    if spec.capacity < 1000:
        for seed in range(3):
            assert Program(spec, seed, "cuda").carry_out(10) == Program(spec, seed).carry_out(10)
