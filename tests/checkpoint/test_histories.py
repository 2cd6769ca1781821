"""Any history of saves: with branches, loads, states that know nothing of their past, all to one directory."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend
from tests.support import backends
from tests.support.backends import Backend
from tests.support.checkpoints import SPEC, advanced, bits, numpy_state, small_blocks, stored_bits
from tests.support.histories import beginning_at

STEP = {"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((2,)), "done": frb.Binary()}
IMAGES = {"image": frb.Unbounded((32, 32), "bfloat16"), "flags": frb.Binary((1024,)), "done": frb.Binary()}
COMPACT = {"obs": frb.Unbounded((3,)), "next": {"obs": frb.Unbounded((3,))}, "done": frb.Binary()}

LIVES = {
    "prioritized": frb.BufferSpec(STEP, 24, frb.Prioritized()),
    "slices": frb.BufferSpec(STEP, 24, frb.Slices(2, strict_length=False), lanes=3),
    "reservoir": frb.BufferSpec(STEP, 24, frb.WithoutReplacement(), writer=frb.Reservoir()),
    "best": frb.BufferSpec(STEP, 24, writer=frb.MaxValue("id")),
    "queue": frb.BufferSpec(STEP, 24, frb.Queue()),
    "n-step": frb.BufferSpec(
        STEP | {"reward": frb.Unbounded(()), "next": {"x": frb.Unbounded((2,))}},
        24,
        transforms=(),
        lanes=2,
        writer=frb.RoundRobin(),
    ),
    "images": frb.BufferSpec(IMAGES, 7),
    "compact": frb.BufferSpec(COMPACT, 24, compact=frb.Compact()),
}


class Life:
    """A buffer that is written, branched, saved and loaded; every save must read as the state that was saved."""

    def __init__(self, rng: np.random.Generator, spec: frb.BufferSpec, path: Path, backend: Backend) -> None:
        self.rng, self.spec, self.path, self.backend = rng, spec, path, backend
        state = torch_backend.init(spec)
        if spec.writer.in_order and rng.random() < 0.5:
            back = int(rng.integers(1, 2 * spec.ring.length))
            state = beginning_at(backend, state, spec.ring.limit - back)
        self.states = [state]
        self.newest: Any = None
        self.handles: list[Any] = []

    def pick(self) -> Any:
        """Mostly the newest state."""
        return self.states[-1 if self.rng.random() < 0.7 else int(self.rng.integers(len(self.states)))]

    def leaf(self, spec: Any, lead: tuple[int, ...]) -> torch.Tensor:
        """Few values, so that siblings often agree by chance."""
        numbers = self.rng.integers(0, 2, (*lead, *([1] * len(spec.shape))))
        dtype = getattr(torch, spec.dtype)
        return torch.from_numpy(np.broadcast_to(numbers, (*lead, *spec.shape)).copy()).to(dtype)

    def batch(self, lead: tuple[int, ...]) -> Any:
        """Random items."""
        return {
            name: {n: self.leaf(s, lead) for n, s in spec.items()} if hasattr(spec, "items") else self.leaf(spec, lead)
            for name, spec in self.spec.item.items()
        }

    def add(self) -> None:
        state, rng = self.pick(), self.rng
        steps = int(rng.choice([1, 1, 2, 3, 9, 30]))
        if not self.spec.writer.overwrites:
            steps = min(steps, self.spec.capacity - int(torch_backend.size(state)))
            if steps == 0:
                return
        lead = (steps,) if self.spec.lanes is None else (steps, self.spec.lanes)
        mask = torch.from_numpy(rng.random(lead) < 0.7) if rng.random() < 0.3 and self.spec.compact is None else None
        key = torch_backend.key(int(rng.integers(1000))) if self.spec.writer.words else None
        self.states.append(torch_backend.add(state, self.batch(lead), mask, key=key))

    def sample(self) -> None:
        state = self.pick()
        if int(torch_backend.size(state)) < 4 or not bool(torch_backend.can_sample(state, 4)):
            return
        state, sample = torch_backend.sample(state, torch_backend.key(int(self.rng.integers(1000))), 4)
        if self.rng.random() < 0.5:
            self.states.append(state)
            return
        handles = sample.indices.reshape(-1)
        priorities = torch.rand(len(handles)) if self.spec.sampler.has_priorities else None
        new = None
        if self.spec.compact is None and self.rng.random() < 0.5:
            name = next(iter(self.spec.item)) if "id" not in self.spec.item else "x"
            new = {name: self.leaf(self.spec.item[name], (len(handles),))}
        if priorities is not None or new is not None:
            self.states.append(torch_backend.update(state, handles, priorities, new))

    def in_place(self) -> None:
        """What comes of a state that is consumed, with a copy of it left."""
        state = copy.deepcopy(self.pick()) if self.rng.random() < 0.5 else torch_backend.own_(self.states.pop())
        lead = (2,) if self.spec.lanes is None else (2, self.spec.lanes)
        if self.spec.writer.overwrites and not self.spec.writer.words:
            state = torch_backend.add_(state, self.batch(lead))
        self.states.append(state)

    def save(self) -> None:
        state = self.pick()
        incremental, keep = bool(self.rng.random() < 0.8), int(self.rng.integers(1, 4))
        expected = bits(state)
        if self.rng.random() < 0.3:
            self.handles.append(frb.save_async(state, self.path, incremental=incremental, keep=keep))
        else:
            frb.save(state, self.path, incremental=incremental, keep=keep)
            assert stored_bits(self.path) == expected
        self.newest = expected

    def load(self) -> None:
        """What is saved in the background comes before; everything that is kept must still be whole."""
        for handle in self.handles:
            handle.result(60)
        if self.newest is None:
            return
        mmap = bool(self.rng.random() < 0.5)
        state = frb.load(self.path, torch_backend, mmap=mmap)
        assert bits(state) == self.newest
        assert all(found.problem is None for found in frb.checkpoints(self.path))
        self.states.append(state)

    def other_library(self) -> None:
        """As a state that knows nothing of its past: NumPy's."""
        state = self.pick()
        auxiliary = {name: x.numpy().copy() for name, x in state.auxiliary.items()}
        tree = None if state.tree is None else state.tree.numpy().copy()
        wide = tuple(x.numpy().copy() for x in state.wide)
        plain = frb.State(state.rows.numpy().copy(), wide, tree, state.counters.numpy().copy(), auxiliary, self.spec)
        frb.save(plain, self.path, incremental=True)
        assert stored_bits(self.path) == bits(plain) == bits(state)
        self.newest = bits(state)


@pytest.mark.parametrize("name", LIVES)
@hypothesis.settings(max_examples=8, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
@hypothesis.given(seed=st.integers(0, 2**32))
def test_histories_with_branches_and_saves_to_one_place(
    name: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch, backends.make("torch") as backend:
        small_blocks(patch)
        life = Life(rng, LIVES[name], tmp_path_factory.mktemp("life"), backend)
        does = [life.add] * 5 + [life.sample] * 2 + [life.in_place, life.load, life.other_library] + [life.save] * 5
        for _ in range(25):
            do = does[int(rng.integers(len(does)))]
            hypothesis.note(do.__name__)
            do()
        life.load()


@hypothesis.settings(max_examples=12, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
@hypothesis.given(seed=st.integers(0, 2**32))
def test_any_change_of_plain_arrays_is_seen(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng, path = np.random.default_rng(seed), tmp_path_factory.mktemp("plain")
    with pytest.MonkeyPatch.context() as patch:
        small_blocks(patch)
        state = numpy_state(SPEC)
        for _ in range(8):
            state = advanced(state, rng, int(rng.integers(0, 8)))
            size = int(state.counters[1])
            if size and rng.random() < 0.5:  # a rewritten leaf
                state.rows[rng.integers(size), rng.integers(2)] = rng.integers(2**31)
            frb.save(state, path, incremental=bool(rng.random() < 0.9), keep=1)
            assert stored_bits(path) == stored_bits(path, mmap=True) == bits(state)
