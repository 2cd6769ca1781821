"""Kernels for GPUs beside those of the CPU, to the bit: lanes, epochs, slices, and items that are rewritten.

Programs are carried out by emulated blocks, few of them, and in several orders; where there is a GPU, on it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import torch

import functional_rb as frb
import torch_backend as rb
from tests.support import chain_programs as programs
from tests.support import emulated_gpu
from tests.support.effort import effort

ORDERS = st.sampled_from([*emulated_gpu.ORDERS])
BLOCKS, SHARES = st.sampled_from([1, 2, 3, 1024]), st.sampled_from([2, 500, 4096])
ITEM = {"x": frb.Unbounded((3,)), "n": frb.Unbounded((), "int32"), "done": frb.Binary(())}
WIDE = {"image": frb.Unbounded((1040,), "uint8"), "wide": frb.Unbounded((301,), "float16")}
PRIORITIES = st.sampled_from(
    [frb.Prioritized(), frb.Prioritized(alpha=1.0, beta=1.0), frb.Prioritized(alpha=0.5, new_priority="ever")]
)


class Program:
    """Random calls on states that live, by numbers of a seed: the same calls whoever carries them out.

    Args:
        spec: of the buffer.
        seed: of all choices.
        device: where the states lie.

    Attributes:
        told: the bits of all that came of the calls.
        states: those that live, the newest last.
    """

    def __init__(self, spec: frb.BufferSpec, seed: int, device: str = "cpu") -> None:
        """One empty state."""
        self.spec, self.rng, self.device = spec, np.random.default_rng(seed), device
        self.states, self.told, self.step = [rb.init(spec, device)], list[Any](), 0

    def carry_out(self, calls: int) -> list[Any]:
        """So many calls, after which all states are looked at."""
        for _ in range(calls):
            name = str(self.rng.choice(["add", "add", "update", "sample", "sample"]))
            in_place = bool(self.rng.random() < 0.3)
            at = -1 if in_place or self.rng.random() < 0.8 else int(self.rng.integers(len(self.states)))
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
        if "done" in items:
            items["done"] = torch.from_numpy(self.rng.random(lead) < 0.2).to(self.device)
        mask = torch.from_numpy(self.rng.random(lead) < self.rng.choice([0.1, 0.6])).to(self.device)
        given = items, mask if self.rng.random() < 0.4 else None, self.priorities(lead)
        return (rb.add_ if in_place else rb.add)(state, *given)

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
        """Whether items may be: those that lie in one ring."""
        return self.spec.lanes is None and isinstance(self.spec.sampler, frb.Uniform | frb.Prioritized)

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
        """Steps of a draw, as sizes count them."""
        return self.spec.sampler.length if getattr(self.spec.sampler, "batch", "") == "steps" else 1

    def sample(self, state: Any, in_place: bool) -> Any:
        sample = self.drawn(state)
        if sample is None:
            self.told.append("nothing")
            return state
        arrays = [*sample.items.values(), *programs.told_beside(sample)]
        self.told += [(tuple(x.shape), programs.bits(x)) for x in arrays]
        return self.after if self.spec.sampler.remembers else state


def by_emulated_blocks(order: str, blocks: int, share: int) -> AbstractContextManager[emulated_gpu.Emulated]:
    return emulated_gpu.using(order, blocks, share)


def check(spec: frb.BufferSpec, seed: int, order: str, blocks: int, share: int, calls: int = 12) -> set[str]:
    """Carry a program out on the CPU and by emulated kernels; returns the names of these."""
    plain = Program(spec, seed).carry_out(calls)
    with by_emulated_blocks(order, blocks, share) as emulated:
        found = Program(spec, seed).carry_out(calls)
    assert found == plain
    return {name for name, _ in emulated.launched}


seeds = st.integers(0, 2**32 - 1)
some = hypothesis.settings(max_examples=effort(40, 2000), deadline=None)


@some
@hypothesis.given(
    seeds,
    st.sampled_from([1, 3, 17, 40, 300]),
    PRIORITIES | st.just(frb.Uniform()),
    st.booleans(),
    ORDERS,
    BLOCKS,
    SHARES,
)
def test_items_of_one_ring(
    seed: int, capacity: int, sampler: Any, wide: bool, order: str, blocks: int, share: int
) -> None:
    check(frb.BufferSpec(ITEM | (WIDE if wide else {}), capacity, sampler), seed, order, blocks, share)


LANES = st.sampled_from([1, 2, 5, 64])


@some
@hypothesis.given(seeds, LANES, st.sampled_from([1, 2, 9]), PRIORITIES | st.just(frb.Uniform()), ORDERS, BLOCKS, SHARES)
def test_items_of_several_lanes(
    seed: int, lanes: int, length: int, sampler: Any, order: str, blocks: int, share: int
) -> None:
    check(frb.BufferSpec(ITEM, length * lanes, sampler, lanes=lanes), seed, order, blocks, share)


EPOCHS = st.sampled_from([frb.WithoutReplacement(), frb.WithoutReplacement(drop_last=True)])


@some
@hypothesis.given(seeds, st.none() | LANES, st.sampled_from([1, 2, 9, 40]), EPOCHS, ORDERS, BLOCKS, SHARES)
def test_epochs_of_items(
    seed: int, lanes: int | None, length: int, sampler: Any, order: str, blocks: int, share: int
) -> None:
    check(frb.BufferSpec(ITEM, length * (lanes or 1), sampler, lanes=lanes), seed, order, blocks, share)


@st.composite
def samplers_of_slices(draw: st.DrawFn) -> Any:
    length, strict = draw(st.integers(1, 5), "length"), draw(st.booleans(), "strict")
    marks: Any = draw(st.sampled_from([{"end_keys": ("done",)}, {"end_keys": ()}, {"trajectory_key": "n"}]))
    span = False if strict else draw(st.sampled_from([False, True, (0, length - 1)]))
    settings = marks | {"strict_length": strict, "period": draw(st.integers(1, 3))}
    kind, batch = (
        draw(st.sampled_from(["priority", "epochs", "plain", "plain"])),
        draw(st.sampled_from(["slices", "steps"])),
    )
    if kind == "priority":
        new_priority = draw(st.sampled_from(["live", "ever"]))
        return frb.PrioritizedSlices(
            length, span=(False, span is True), batch=batch, new_priority=new_priority, **settings
        )
    weighting = draw(st.sampled_from(["trajectory", "window"]))
    if kind == "epochs":
        drop_last = draw(st.booleans())
        return frb.SlicesWithoutReplacement(
            length, span=(False, span is True), weighting=weighting, drop_last=drop_last, **settings
        )
    return frb.Slices(length, span=span, weighting=weighting, batch=batch, **settings)


@hypothesis.settings(some, max_examples=effort(60, 3000))
@hypothesis.given(seeds, st.none() | LANES, st.sampled_from([5, 9, 17]), samplers_of_slices(), ORDERS, BLOCKS, SHARES)
def test_slices(seed: int, lanes: int | None, length: int, sampler: Any, order: str, blocks: int, share: int) -> None:
    check(frb.BufferSpec(ITEM, length * (lanes or 1), sampler, lanes=lanes), seed, order, blocks, share)
