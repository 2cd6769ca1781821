"""Every kernel, while a thread allocates and frees: run by `test_addresses` with one arena, freed memory overwritten.

A kernel that used an array after it was freed would give what another thread wrote there. So what the kernels give is
compared, bit for bit, with what array operations gave when nobody else was at work.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import itertools
import mmap
import random
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend.arrays.ops as torch_ops
from functional_rb import _native
from functional_rb.ops.part_kernels import Table, using
from functional_rb.structures import sum_tree
from functional_rb.text.padding import Padded
from tests.support import backends, lives
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.members import LANES, MEMBERS
from torch_backend.kernels import cpu_kernels
from torch_backend.memory.library import TORCH

WIDE = 64
# Even vectors of a number for each item are larger than `FENCED`.
BATCH = 516
STEPS = 2
# Less than the items of all steps: the last ones overwrite the first.
CAPACITY = 960
# Bytes from which what is freed is given back to the system, see `fenced`.
FENCED = 2048
# What glibc's mallopt is told, and what is usual: M_PERTURB, by which freed blocks are overwritten, M_TOP_PAD and
# M_MMAP_THRESHOLD.
SETTINGS = {-6: (165, 0), -2: (0, 128 * 1024), -3: (FENCED, 128 * 1024)}
PIXELS = (7, 9, 3)
Bits = list[list[Any]]

STORED: dict[str, Any] = {"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((WIDE,)), "done": frb.Binary()}
STORED |= {"episode": frb.Unbounded((), "int32"), "note": frb.Unbounded(), "image": frb.Unbounded((1100,), "uint8")}
ROWS = {"start": frb.Unbounded((2,), "int32"), "shared": frb.Unbounded((), "int32")}
ROWS |= dict.fromkeys(("prompts", "lengths"), frb.Unbounded((2,), "int32"))
"""Of pairs of texts, as `frb.text.preference` makes them."""
TOKENS, LENGTH = 4096, 16
FRAMES = {"image": frb.Unbounded((1100,), "uint8"), "next": {"image": frb.Unbounded((1100,), "uint8")}}
# Members that call every kernel; all others in `make test-all`.
USUAL = (
    *("uniform, plain", "prioritized, plain", "slices", "slices, prioritized", "without replacement, of a reservoir"),
    *("queue of windows", "sums of steps", "sums of steps, stored", "hindsight", "frames", "shifted", "texts"),
    *("sums of steps, float64", "sums of steps, float16", "prioritized, with a limit", "slices of frames", "staleness"),
)
# Members that have every handler of XLA's among them; the others take seconds each to compile.
ON_JAX = ("prioritized, plain", "slices, prioritized", "queue of windows", "without replacement, of a reservoir")
# Members that draw random words of JAX's own, and those of dtypes that it has not.
NOT_ON_JAX = ("shifted", "sums of steps, float64")


def nearness(achieved: Any, desired: Any) -> Any:
    """A reward that each backend's arrays can tell."""
    return -abs(achieved - desired)


def specs(directory: Path) -> dict[str, frb.BufferSpec]:
    """All samplers and writers, and what they have not: frames, sums of steps, and texts in a file of a directory."""
    wide = {
        name: dataclasses.replace(member.spec, item=STORED, capacity=80 * member.capacity, batch_size=BATCH)
        for name, member in MEMBERS.items()
    }
    plain = frb.BufferSpec(STORED, CAPACITY, batch_size=BATCH)
    wide["uniform, plain"] = plain
    wide["prioritized, plain"] = dataclasses.replace(plain, sampler=frb.Prioritized())
    rewarded = dataclasses.replace(plain, item=STORED | {"reward": frb.Unbounded()}, lanes=LANES)
    wide["sums of steps"] = dataclasses.replace(rewarded, transforms=frb.n_step(3, 0.9))
    doubled = dataclasses.replace(rewarded, item=STORED | {"reward": frb.Unbounded((), "float64")})
    wide["sums of steps, float64"] = dataclasses.replace(doubled, transforms=frb.n_step(3, 0.9))
    wide["sums of steps, stored"] = dataclasses.replace(rewarded, transforms=frb.n_step(3, 0.9, at="add"))
    halved = dataclasses.replace(rewarded, item=STORED | {"reward": frb.Unbounded((), "float16")})
    wide["sums of steps, float16"] = dataclasses.replace(halved, transforms=frb.n_step(3, 0.9, at="add"))
    goals = STORED | dict.fromkeys(("achieved_goal", "desired_goal", "reward"), frb.Unbounded())
    wide["hindsight"] = dataclasses.replace(
        plain, item=goals, lanes=LANES, transforms=frb.her("future", 2, reward=nearness, achieved_key="achieved_goal")
    )
    images = STORED | {"pixels": frb.Unbounded(PIXELS, "uint8")}
    wide["shifted"] = dataclasses.replace(plain, item=images, transforms=frb.map_items(frb.items.random_shift(2)))
    frames = {"id": STORED["id"], "done": STORED["done"], **FRAMES}
    wide["frames"] = dataclasses.replace(plain, item=frames, compact=frb.Compact(), lanes=LANES)
    wide["slices of frames"] = dataclasses.replace(wide["frames"], sampler=frb.SlicesWithoutReplacement(4))
    np.arange(TOKENS, dtype=np.uint16).tofile(directory / "tokens")
    padded = frb.map_items(Padded(str(directory / "tokens"), "uint16", 2, side="left", length=LENGTH))
    wide["texts"] = dataclasses.replace(plain, item=ROWS, sampler=frb.WithoutReplacement(), transforms=padded)
    return {name: wide[name] for name in effort(USUAL, (*wide,))}


def items(spec: frb.BufferSpec, start: int) -> dict[str, Any]:
    """A batch whose leaves tell the numbers of its items."""
    number = np.arange(start, start + BATCH)
    images = (number[:, None] + np.arange(1100)).astype(np.uint8)
    made = {"id": number.astype(np.int32), "x": (number[:, None] + np.arange(WIDE)).astype(np.float32)}
    made |= {"done": number % 21 > 17, "episode": (number // 5).astype(np.int32), "note": number.astype(np.float32)}
    made |= {"start": np.stack([0 * number, number * 3 % (TOKENS - 2 * LENGTH)], 1).astype(np.int32)}
    made |= {"shared": (number % 5).astype(np.int32), "prompts": np.full((BATCH, 2), 4, np.int32)}
    made |= {"lengths": np.stack([5 + number % 7, 6 + number % 11], 1).astype(np.int32)}
    made |= {
        **dict.fromkeys(("achieved_goal", "desired_goal"), number.astype(np.float32)),
        "reward": number.astype(spec.item["reward"].dtype if "reward" in spec.item else np.float32),
        "image": images,
        "pixels": images[:, : np.prod(PIXELS)].reshape(BATCH, *PIXELS),
        "next": {"image": images + np.uint8(LANES)},
    }
    lead = (BATCH // LANES, LANES) if spec.lanes else (BATCH,)
    return jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), {name: made[name] for name in spec.item})


def life(backend: Backend, spec: frb.BufferSpec) -> Bits:
    """The bits of all that a buffer's life gives."""
    rng, rb = np.random.default_rng(0), backend.rb
    dataset = isinstance(spec.writer, frb.Immutable)
    state = rb.init(spec, items=backend.tree(items(spec, 1)) if dataset else None)
    told = []
    for k in range(STEPS):
        lead = (BATCH // LANES, LANES) if spec.lanes else (BATCH,)
        mask = rng.random(lead) < (0.8 if k else 2)
        if not dataset:
            first = rng.random(lead).astype(np.float32) if spec.sampler.has_priorities else None
            batch = backend.tree(items(spec, BATCH * k))
            state = backend.add(state, batch, mask, priorities=first, key=lives.keys(backend, k)[0])
        state, sample = backend.sample(state, lives.keys(backend, k)[1], BATCH)
        handles = sample.indices.reshape(-1)
        got = rb.get(state, handles)
        given = rng.random(handles.shape[0]).astype(np.float32)
        notes = {"note": given} if "note" in spec.item and not dataset else None
        state = backend.update(state, handles, given if spec.sampler.has_priorities else None, notes)
        if spec.sampler.has_priorities:
            state = backend.update(state, handles, given[::-1].copy())
        if isinstance(spec.sampler, frb.Staleness):
            state = rb.update(state, version=k + 1)
        told.append(lives.bits(backend, (sample, got, rb.size(state), rb.can_sample(state, BATCH))))
    told.append(lives.bits(backend, rb.items(state)))
    if not dataset:
        told.append(lives.bits(backend, rb.size(rb.clear(state))))
    return told


def iterated(backend: Backend, spec: frb.BufferSpec) -> Bits:
    """What `iterate` gives, whose thread draws beside the one that allocates."""
    state = backend.add(backend.init(spec), backend.tree(items(spec, 0)))
    with frb.iterate(backend.rb, state, lives.keys(backend, 0)[0], BATCH) as batches:
        return [lives.bits(backend, sample) for sample in itertools.islice(batches, 8)]


def counted(backend: Backend) -> Bits:
    """What a map tells of keys that come again."""
    rng, rb = np.random.default_rng(1), backend.rb
    met = rb.init(frb.HashMapSpec(frb.Unbounded((WIDE,), "int32"), 10 * BATCH))
    told = []
    for _ in range(STEPS):
        keys = backend.tree(np.repeat(rng.integers(0, BATCH, (BATCH, 1), np.int32), WIDE, axis=1))
        met, found = rb.add(met, keys)
        told.append(lives.bits(backend, (found.ids, found.is_new, rb.visits(met, keys))))
    return told


def spanned(backend: Backend, table: Table) -> Bits:
    """What is drawn from one of three spans of a tree, as shards draw among their own items."""
    capacity, told = 10 * BATCH, []
    rng = np.random.default_rng(2)
    rows, levels = sum_tree.geometry(capacity).rows, len(sum_tree.geometry(capacity).levels)
    with using(table):
        for k in range(STEPS):
            tree = torch.zeros((rows, sum_tree.FANOUT))
            values = torch.from_numpy(rng.random(capacity).astype(np.float32))
            tree = sum_tree.set_leaves(torch_ops, tree, capacity, torch.arange(capacity, dtype=torch.int32), values)
            cuts = torch.tensor([0, 3 * BATCH, 5 * BATCH, capacity], dtype=torch.int32)
            words = torch.from_numpy(rng.integers(0, 2**31, (BATCH, levels + 1), np.int32))
            which = torch.tensor([k % 3], dtype=torch.int32)
            drawn = sum_tree.draw_in_span(torch_ops, tree, capacity, cuts[:-1], cuts[1:], which, words)
            told.append(lives.bits(backend, drawn))
    return told


def in_place(backend: Backend, spec: frb.BufferSpec) -> Bits:
    """The bits of a buffer that is written without a record of what was there, after each addition."""
    state, told = backend.rb.init(spec), []
    for k in range(STEPS):
        state = backend.rb.add_(state, backend.tree(items(spec, BATCH * k)))
        told.append(lives.bits(backend, backend.rb.items(state)))
    return told


def allocate(stop: threading.Event) -> None:
    """Take blocks that are too small for the fence, write to them, and free them."""
    rng = random.Random(0)
    while not stop.is_set():
        sizes = [rng.choice((64, 192, 400, 1000, 2000)) for _ in range(40)]
        for block in [np.empty(size, np.uint8) for size in sizes]:
            block.fill(0xEE)


@contextlib.contextmanager
def fenced() -> Iterator[None]:
    """Have blocks of `FENCED` bytes and more come from the system: to use one that was freed is a fault then.

    Only meanwhile, as importing and compiling would take three times as long. glibc asks the system for what no free
    block of the heap has room for: so those are used up first, and never given back.
    """
    libc, first = ctypes.CDLL(None), 16
    malloc = libc.malloc
    malloc.restype, malloc.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
    gc.collect()  # what is freed behind the fence was allocated behind it
    for parameter, (value, _) in SETTINGS.items():
        assert libc.mallopt(parameter, value)
    own = 0
    while own < 1000:
        own = own + 1 if malloc(FENCED) % mmap.PAGESIZE == first else 0
    try:
        yield
    finally:
        for parameter, (_, usual) in SETTINGS.items():
            libc.mallopt(parameter, usual)


def with_allocations(function: Callable[[], None]) -> None:
    """Call while another thread allocates, and change threads as often as can be."""
    stop = threading.Event()
    thread = threading.Thread(target=allocate, args=(stop,))
    sys.setswitchinterval(1e-5)
    with fenced():
        thread.start()
        try:
            function()
        finally:
            stop.set()
            thread.join()
            sys.setswitchinterval(0.005)


def variants(spec: frb.BufferSpec, directory: Path, everywhere: bool) -> Iterator[frb.BufferSpec]:
    """Where its items may lie."""
    storages = [frb.Device(), frb.Memmap(directory / "mapped")] if everywhere else [frb.Device()]
    if everywhere and spec.known.buffer:
        storages += [frb.Host(), frb.Memmap(directory / "shared", shared=True)]
    for storage in storages:
        yield dataclasses.replace(spec, storage=storage)


@contextlib.contextmanager
def without_chain() -> Iterator[None]:
    """As where the version chain declines a call: Python goes on with the kernels of parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TORCH, "chain", None)
        yield


def on_torch(wanted: dict[str, frb.BufferSpec], expected: dict[str, Bits], directory: Path) -> None:
    """All of them, wherever they may lie; once before, so that kernels are loaded, which leaves free blocks behind."""
    with backends.make("torch-core") as core:
        again = wanted["prioritized, plain"]
        drawn, added, numbers = iterated(core, again), in_place(core, again), counted(core)
        among = spanned(core, {})

    def run(everywhere: bool = True) -> None:
        with backends.make("torch") as kernels:
            for name, spec in wanted.items():
                for placed in variants(spec, Path(tempfile.mkdtemp(dir=directory)), everywhere):
                    compare(name, placed, expected[name], life(kernels, placed))
            with without_chain():
                for name in wanted.keys() & IN_PARTS:
                    compare(name, wanted[name], expected[name], life(kernels, wanted[name]))
                compare("in place", again, added, in_place(kernels, again))
            compare("iterate", again, drawn, iterated(kernels, again))
            assert counted(kernels) == numbers
            assert spanned(kernels, cpu_kernels.TABLE) == among

    run(everywhere=False)
    with_allocations(run)
    assert (left := unused()) == WHOLE, f"{left}, but the version chain calls {WHOLE} itself, without Python"


def on_jax(wanted: dict[str, frb.BufferSpec], expected: dict[str, Bits]) -> None:
    """Those that have every handler of XLA's, and all of them in the host's memory."""
    lives.same_draws(pytest.MonkeyPatch())
    wanted = {name: spec for name, spec in wanted.items() if name not in NOT_ON_JAX}

    def run() -> None:
        with backends.make("jax") as home:
            for name in ON_JAX:
                compare(name, wanted[name], expected[name], life(home, wanted[name]))
        with backends.make("jax-host") as host:
            for name, spec in wanted.items():
                placed = dataclasses.replace(spec, storage=frb.Host())
                compare(name, placed, expected[name], life(host, placed))

    run()
    assert unused() == WHOLE
    with_allocations(run)


CALLED: set[str] = set()
KERNELS = {
    name: kernel
    for name, kernel in vars(_native).items()
    # Not what is told of GPUs, nor what only reads the words that a program of XLA's calls a handler with.
    if isinstance(kernel, types.BuiltinFunctionType) and not name.startswith("gpu_") and name != "seal"
}
# What the version chain does whole, though the kernels of its parts are there for programs that it declines.
IN_PARTS = {"frames", "slices of frames", "sums of steps, float64", "sums of steps, stored", "slices, prioritized"}
# What Python calls in tests of their own alone.
WHOLE = {"shared_note_add"}
# Those that Python calls, and not XLA alone.
BY_XLA = {
    "add",
    "add_to_rings",
    "draw",
    "sample_mixture",
    "update",
    "update_priorities",
    "threefry",
    "barrier",
}
HANDLERS = _native.HANDLERS.keys() - BY_XLA


class Noted(dict[str, object]):
    """Handlers, of which each that Python looks up is noted; XLA is told of all at once."""

    def __getitem__(self, name: str) -> object:
        CALLED.add(f"handler {name}")
        return super().__getitem__(name)


def note_calls() -> None:
    """Have each kernel noted that Python calls from now on."""

    def noted(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            CALLED.add(name)
            return kernel(*args)

        return called

    for name, kernel in KERNELS.items():
        setattr(_native, name, noted(name, kernel))
    _native.HANDLERS = Noted(_native.HANDLERS)


def unused() -> set[str]:
    """The kernels that nothing has called so far, of those that Python calls."""
    return KERNELS.keys() - CALLED | {x for x in HANDLERS if f"handler {x}" not in CALLED}


def compare(name: str, spec: frb.BufferSpec, expected: Bits, given: Bits) -> None:
    wrong = [k for k, (a, b) in enumerate(zip(expected, given, strict=True)) if a != b]
    assert not wrong, f"{name} in {spec.storage}: other bits than the array operations give at steps {wrong}"


def main() -> None:
    """On either backend."""
    note_calls()
    with tempfile.TemporaryDirectory() as directory:
        wanted = specs(Path(directory))
        with backends.make("torch-core") as core:
            expected = {name: life(core, spec) for name, spec in wanted.items()}
        on_torch(wanted, expected, Path(directory))
        on_jax(wanted, expected)
    print("the same bits")


if __name__ == "__main__":
    main()
