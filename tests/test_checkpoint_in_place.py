"""Saves of mapped buffers into their own directory: nothing is copied, and every checkpoint comes back."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend
import torch_backend
from functional_rb import mapped, undo
from functional_rb.checkpoint import in_place, loading
from functional_rb.checkpoint.opened import generations, read_manifest
from functional_rb.counters import CURSOR
from functional_rb.draft import Arrays
from functional_rb.host import engine, memory
from functional_rb.host import ops as host_ops
from functional_rb.host.state import HostState
from tests import backends
from tests.backends import Backend
from tests.checkpoints import Bits, bits, small_blocks
from tests.test_checkpoint_histories import COMPACT, IMAGES, LIVES, STEP, Life

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
    "compact images": frb.BufferSpec({"obs": IMAGE, "next": {"obs": IMAGE}, "done": frb.Binary()}, 12, compact=frb.Compact()),
    "n-step": frb.BufferSpec(
        STEP | {"reward": frb.Unbounded(()), "terminated": frb.Binary(), "next": {"x": frb.Unbounded((2,))}},
        24,
        lanes=2,
        transforms=frb.n_step(3, 0.9, at="add"),
    ),
}


def read_back(path: Path, generation: int) -> Bits:
    """Of a checkpoint in a directory, read without writing."""
    with contextlib.ExitStack() as stack:
        reading = loading._Loading(str(path), (), False, False, stack, None, False)
        found = reading.content(read_manifest(str(path), generation))
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
            self.handles.append((frb.save_async(state, self.path, incremental=incremental, keep=keep), expected))
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
        assert all(found.problem is None for found in frb.checkpoints(self.path))
        needed = [read_manifest(str(self.path), generation).undo for generation in there]
        if any(needed):
            assert undo.numbers(str(self.path))[0] >= min(number for number in needed if number)

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


@pytest.mark.parametrize("name", MEMBERS)
@hypothesis.settings(max_examples=2, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
@hypothesis.given(seed=st.integers(0, 2**32))
def test_every_kept_checkpoint_comes_back(name: str, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch, backends.make("torch") as backend:
        small_blocks(patch)
        life = MappedLife(rng, MEMBERS[name], tmp_path_factory.mktemp("life"), backend)
        does = [life.add] * 5 + [life.sample] * 2 + [life.in_place, life.load, life.load_copy] + [life.save] * 5
        does += [life.check, life.begin_anew]
        for _ in range(20):
            do = does[int(rng.integers(len(does)))]
            hypothesis.note(do.__name__)
            do()
        life.check()
        life.load()
        life.check()


# ------------------------------------------------------------ kills

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
    """On NumPy alone."""
    _, new, number = step_of(k)
    leaves = [np.ascontiguousarray(new[name]) for name in state.spec.names]
    state = engine.add(host_ops, state, leaves, STEP_ROWS, None, None, None)
    place = state.spec.names.index("x")
    rewritten = {place: np.full((1, 40), -k, np.float32)}
    priorities = np.array([k], np.float32)
    return engine.update(host_ops, state, np.array([number], np.int32), priorities, rewritten)


def open_here(path: Path) -> tuple[HostState, int]:
    """What a process does that begins anew: the state, and how many steps it has taken."""
    spec = dataclasses.replace(KILLED, storage=frb.Memmap(path, existsok=True))
    try:
        found = loading.read(path, storage=spec.storage, here=True)
    except frb.NoCheckpointError:
        return engine.init(spec), 0
    made = memory.fresh(found.arrays, found.spec, files=found.files)
    return HostState(made, found.arrays.counters, found.spec), int(found.arrays.counters[CURSOR]) // STEP_ROWS


def live(path: Path, told: int, way: int) -> None:
    """The child: go on, save every other step, and tell; never come back."""
    state, k = open_here(path)
    os.write(told, bytes([k]))
    while k < 250:
        k += 1
        state = stepped(state, k)
        if k % 2:
            continue
        if way == 2:
            saving = frb.save_async(state, path, incremental=True, keep=2)
            _, k = (state := stepped(state, k + 1)), k + 1  # while it is written
            saving.result()
            os.write(told, bytes([k - 1]))
        else:
            frb.save(state, path, incremental=way == 1, keep=2)
            os.write(told, bytes([k]))
    signal.pause()


def agree(path: Path, generation: int | None = None) -> int:
    """What is there is the state after some steps: how many."""
    if generation is None:
        arrays = loading.read(path).arrays
    else:
        with contextlib.ExitStack() as stack:
            reading = loading._Loading(str(path), (), False, False, stack, None, False)
            arrays = reading.content(read_manifest(str(path), generation)).arrays
    k = int(arrays.counters[CURSOR]) // STEP_ROWS
    x, image = written(k)
    assert arrays.rows.tobytes() == x.view(np.int32).tobytes()
    assert arrays.wide[0].tobytes() == image.tobytes()
    return k


@pytest.mark.parametrize("way", range(3))
def test_a_killed_process_leaves_the_old_or_the_new_checkpoint(way: int, tmp_path: Path) -> None:
    chance = random.Random(way)
    stepped(engine.init(KILLED), 1)  # what is compiled, is so before the children begin
    done = 0
    for _ in range(20):
        if done > 200:
            shutil.rmtree(tmp_path)
            done = 0
        done = kill_one(tmp_path, way, chance, done)


def kill_one(path: Path, way: int, chance: random.Random, done: int) -> int:
    reading, telling = os.pipe()
    child = os.fork()
    if not child:
        try:
            live(path, telling, way)
        finally:
            os._exit(1)
    os.close(telling)
    for _ in range(chance.randrange(5)):
        done = os.read(reading, 1)[0]
    time.sleep(chance.random() * 0.012)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reading, 64):
        done = more[-1]
    os.close(reading)
    try:
        found = agree(path)
    except frb.NoCheckpointError:
        assert done == 0
        return 0
    assert found in (done, *range(done + 1, done + 4)), f"expected step {done} or the next save, found {found}"
    for generation in generations(str(path)):
        agree(path, generation)
    return found
