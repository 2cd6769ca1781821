"""Lives of mapped buffers that are saved into their own directory, beside NumPy's picture of them."""

from __future__ import annotations

import copy
import dataclasses
import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import torch

import functional_rb as frb
import torch_backend
from functional_rb.buffer.checked_items import Batch
from functional_rb.checkpoint import loading
from functional_rb.checkpoint.opened import generations, read_manifest
from functional_rb.core.counters import CURSOR
from functional_rb.storage import undo_log
from functional_rb.storage.host_state import ENGINE, HostState
from tests.support.backends import Backend
from tests.support.checkpoints import Bits, bits, on_host, stored_bits
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
            back = int(rng.integers(1, 2 * spec.plan.ring.length))
            state = beginning_at(backend, state, spec.plan.ring.limit - back)
        self.states = [state]
        self.newest: Any = None
        self.handles: list[Any] = []

    def pick(self) -> Any:
        return self.states[-1 if self.rng.random() < 0.7 else int(self.rng.integers(len(self.states)))]

    def leaf(self, spec: Any, lead: tuple[int, ...]) -> torch.Tensor:
        """Few values, so that siblings often agree by chance."""
        numbers = self.rng.integers(0, 2, (*lead, *([1] * len(spec.shape))))
        dtype = getattr(torch, spec.dtype)
        return torch.from_numpy(np.broadcast_to(numbers, (*lead, *spec.shape)).copy()).to(dtype)

    def batch(self, lead: tuple[int, ...]) -> Any:
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
            self.handles.append(frb.save(state, self.path, incremental=incremental, keep=keep, background=True))
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
        state = frb.load(self.path, torch_backend, frb.checkpoint.LoadOptions(mmap=mmap))
        assert bits(state) == self.newest
        assert all(found.problem is None for found in frb.checkpoint.checkpoints(self.path))
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


IMAGE = frb.Unbounded((32, 32), "uint8")
MEMBERS = {
    "uniform": frb.BufferSpec(STEP, 24),
    "lanes": LIVES["slices"],
    "prioritized": LIVES["prioritized"],
    "reservoir": LIVES["reservoir"],
    "best": LIVES["best"],
    "queue": LIVES["queue"],
    "images": frb.BufferSpec(IMAGES, 7, frb.Prioritized()),
    "compact": dataclasses.replace(LIVES["compact"], lanes=2),
    "compact images": frb.BufferSpec(
        {"obs": IMAGE, "next": {"obs": IMAGE}, "done": frb.Binary()}, 12, compact=frb.Compact()
    ),
    "n-step": frb.BufferSpec(
        STEP | {"reward": frb.Unbounded(()), "terminated": frb.Binary(), "next": {"x": frb.Unbounded((2,))}},
        24,
        lanes=2,
        transforms=frb.n_step(3, 0.9, at="add"),
    ),
}


def read_back(path: Path, generation: int) -> Bits:
    """Of a checkpoint in a directory, read without writing."""
    found = loading.read(path, wanted=loading.Wanted(number=generation))
    return bits(frb.State(*found.arrays, found.spec))


class MappedLife(Life):
    """A buffer in mapped files that is saved where these are, with branches that are not."""

    def __init__(self, rng: np.random.Generator, spec: frb.BufferSpec, path: Path, backend: Backend) -> None:
        self.rng, self.path, self.backend = rng, path, backend
        self.spec = dataclasses.replace(spec, storage=frb.Memmap(path))
        self.states = [torch_backend.init(self.spec)]
        self.newest: Any = None
        self.handles: list[Any] = []
        self.saved: dict[int, Bits] = {}
        self.anew = False

    def pick(self) -> Any:
        """The newest state nearly always: it alone lies in the files."""
        return self.states[-1 if self.rng.random() < 0.9 else int(self.rng.integers(len(self.states)))]

    def finish(self) -> None:
        for handle, expected in self.handles:
            self.saved[handle.result(60).generation] = expected
        self.handles = []

    def save(self) -> None:
        state, rng = self.pick(), self.rng
        incremental, keep = bool(rng.random() < 0.7), int(rng.integers(2, 4))
        expected = self.newest = bits(state)
        if rng.random() < 0.4:
            self.handles.append(
                (frb.save(state, self.path, incremental=incremental, keep=keep, background=True), expected)
            )
            return
        self.finish()
        self.saved[frb.save(state, self.path, incremental=incremental, keep=keep).generation] = expected

    def same(self, found: Bits, expected: Bits) -> None:
        """Rows that the buffer has never written are not copied; what another has left in the files is among them."""
        newest = generations(str(self.path))
        copied = [g for g in newest if read_manifest(str(self.path), g).undo == 0]
        told = [name for name in expected if not (self.anew and copied and name in ("rows", "wide_0", "wide_1"))]
        assert {name: found[name] for name in told} == {name: expected[name] for name in told}

    def check(self) -> None:
        """All that is kept is whole, while the states go on."""
        self.finish()
        there = generations(str(self.path))
        for generation in there:
            self.same(read_back(self.path, generation), self.saved[generation])
        assert all(found.problem is None for found in frb.checkpoint.checkpoints(self.path))
        needed = [read_manifest(str(self.path), generation).undo for generation in there]
        if any(needed):
            assert undo_log.numbers(str(self.path))[0] >= min(number for number in needed if number)

    def load(self) -> None:
        """The process begins anew, and goes on in the same files."""
        self.finish()
        if self.newest is None:
            return
        self.states = []
        gc.collect()
        state = frb.load(self.path, torch_backend)
        assert state._version.memory.files.directory == str(self.path)
        self.same(bits(state), self.newest)
        self.states = [state]

    def load_copy(self) -> None:
        """In memory, while the states go on."""
        self.finish()
        if self.newest is not None:
            state = frb.load(self.path, torch_backend, storage=frb.Host())
            self.same(bits(state), self.newest)

    def begin_anew(self) -> None:
        """Another buffer takes the files, and the checkpoints stay."""
        self.finish()
        self.states = []
        gc.collect()
        self.anew = True
        self.states = [torch_backend.init(dataclasses.replace(self.spec, storage=frb.Memmap(self.path, existsok=True)))]


def walk(does: Sequence[Callable[[], None]], steps: int, rng: np.random.Generator) -> None:
    """So many steps of those that there are."""
    for _ in range(steps):
        do = does[int(rng.integers(len(does)))]
        hypothesis.note(do.__name__)
        do()


def walk_through(life: MappedLife, does: Sequence[Callable[[], None]], steps: int, rng: np.random.Generator) -> None:
    """So many steps of those that there are, and what is left at the end."""
    walk(does, steps, rng)
    life.check()
    life.load()
    life.check()


ROWS, STEP_ROWS = 160, 24
KILLED = frb.BufferSpec({"x": frb.Unbounded((40,)), "image": frb.Unbounded((32, 32), "uint8")}, ROWS, frb.Prioritized())


def written(step: int) -> tuple[np.ndarray, np.ndarray]:
    """The leaves after so many steps, each of which adds rows and rewrites one of them."""
    x, image = np.zeros((ROWS, 40), np.float32), np.zeros((ROWS, 32, 32), np.uint8)
    for k in range(1, step + 1):
        slots, new, number = step_of(k)
        x[slots], image[slots] = new["x"], new["image"]
        x[number % ROWS] = -k
    return x, image


def step_of(k: int) -> tuple[np.ndarray, dict[str, np.ndarray], int]:
    numbers = np.arange((k - 1) * STEP_ROWS, k * STEP_ROWS)
    x = np.repeat(numbers[:, None] + 1, 40, 1).astype(np.float32)
    image = np.broadcast_to((numbers % 255 + 1)[:, None, None], (STEP_ROWS, 32, 32)).astype(np.uint8)
    return numbers % ROWS, {"x": x, "image": image}, max(0, k * STEP_ROWS - 1 - 7 * k % min(ROWS, k * STEP_ROWS))


def stepped(state: HostState, k: int) -> HostState:
    _, new, number = step_of(k)
    leaves = [np.ascontiguousarray(new[name]) for name in state.spec.plan.names]
    state = ENGINE.add(state, Batch(leaves, STEP_ROWS, None, None), None)
    place = state.spec.plan.names.index("x")
    rewritten = {place: np.full((1, 40), -k, np.float32)}
    priorities = np.array([k], np.float32)
    return ENGINE.update(state, np.array([number], np.int32), priorities, rewritten)


def open_here(path: Path) -> tuple[HostState, int]:
    """What a process does that begins anew: the state, and how many steps it has taken."""
    spec = dataclasses.replace(KILLED, storage=frb.Memmap(path, existsok=True))
    try:
        found = loading.read(path, wanted=loading.Wanted(spec.storage, here=True))
    except FileNotFoundError:
        return on_host(spec), 0
    made = HostState.of_arrays(found.arrays, found.spec, pinned=False, files=found.files)
    return made, int(found.arrays.counters[CURSOR]) // STEP_ROWS


def agree(path: Path, generation: int | None = None) -> int:
    """What is there is the state after some steps: how many."""
    arrays = loading.read(path, wanted=loading.Wanted(number=generation)).arrays
    k = int(arrays.counters[CURSOR]) // STEP_ROWS
    x, image = written(k)
    assert arrays.rows.tobytes() == x.view(np.int32).tobytes()
    assert arrays.wide[0].tobytes() == image.tobytes()
    return k
