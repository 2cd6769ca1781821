"""Runs programs by an extension built with a sanitizer: python -m tests.children.sanitized FILE WHAT=ARGUMENT ...

WHAT is "threads" or "few_threads", with the number of a fault to plant (0: none); "faults", with several of these that
are planted in "threads"; "chain", with how often the version chain of torch is written to while threads draw from it;
"programs", with how many random ones to carry out on that chain beside the plain engine, or "kinds", by itself on
buffers of all kinds; "agreement", with arguments for pytest; "grids", with the emulator of GPUs, for short lives of
buffers by its kernels; or "careless", with the emulator, a kernel and the number of a wait that this leaves out. All
are carried out in one process, as to import torch under a sanitizer takes longer than most.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shlex
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tests.support.gpu_life import Life


def use(path: str) -> None:
    """Let the library find this file in place of its own extension."""
    spec = importlib.util.spec_from_file_location("functional_rb._native", path)
    assert spec is not None
    assert spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    sys.modules[spec.name] = native
    import functional_rb

    functional_rb._native = native  # type: ignore[attr-defined]  # as importing it does


def threads(fault: str) -> None:
    """Two threads at a time add to, draw from and update a buffer each, and draw from one that they share.

    Each also draws from one of several lanes, adds steps that wait for others and stacks that share frames, and writes
    to one in shared memory, of which a batch is so large that the GIL is let go of: only the buffer's own lock keeps
    the two apart. Nobody reads that without the lock meanwhile: who does finds out later that a writer came between,
    which is a race to the sanitizer.
    """
    import functional_rb as frb
    from functional_rb import _native
    from functional_rb.buffer.checked_items import Batch
    from functional_rb.core.draft import Arrays
    from functional_rb.native import kernels, launches
    from functional_rb.shared.buffer import SharedBuffer
    from functional_rb.storage import host_kernels, host_state

    item = {"x": frb.Unbounded((3,)), "image": frb.Bounded(0, 255, (70,), "uint8"), "done": frb.Binary()}
    spec = frb.BufferSpec(item, 300, frb.Prioritized())
    layout, batch = spec.plan.layout, 40

    def made() -> Arrays:
        rows, wide = (
            np.zeros((300, layout.row_words), np.int32),
            [np.zeros((300, x.nbytes), np.uint8) for x in layout.wide],
        )
        tree, counters = np.zeros(spec.plan.tree_shape or (), np.float32), np.zeros(6, np.int32)
        return Arrays(rows, tuple(wide), tree, counters, {})

    def add(arrays: Arrays) -> Arrays:
        given = [np.ones((batch, leaf.nbytes), np.uint8) for leaf in layout.leaves]
        after: Arrays = host_kernels.call(kernels.add(arrays, spec, given, batch, None, None))
        return after

    def sample(arrays: Arrays, key: int) -> np.ndarray:
        words = host_kernels.call(kernels.fill_draws(np.array([key]), *spec.draw_shape(batch)))
        kernel = launches.draw(arrays, spec, words, None, np.full(1, 0.4, np.float32), batch)
        handles: np.ndarray = host_kernels.call(kernel)[2].handles
        return handles

    def write(shared: SharedBuffer) -> None:
        with contextlib.suppress(*[Exception] if int(fault) else []):  # what two writers at once make of the files
            shared.add([np.ones((batch, 1700), np.uint8)], batch, None, None)
            shared.update(np.arange(batch, dtype=np.int32), np.ones(batch, np.float32), {})

    def add_any(state: host_state.HostState, rng: np.random.Generator) -> host_state.HostState:
        leaves = [rng.integers(2, size=(30, *leaf.shape)).astype(leaf.dtype) for leaf in state.spec.plan.leaves]
        return host_state.ENGINE.add(state, Batch(leaves, 30, rng.random(30) < 0.7, None), None)

    step = {"done": frb.Binary(), "image": frb.Unbounded((1030,), "uint8"), "reward": frb.Unbounded()}
    waiting = frb.BufferSpec(step, 51, lanes=3, transforms=frb.n_step(3, 0.9, at="add"))
    stack = {"obs": frb.Unbounded((2, 2), "uint8"), "next_obs": frb.Unbounded((2, 2), "uint8")}
    sharing = frb.BufferSpec(stack, 50, frb.Prioritized(), lanes=2, compact=frb.Compact(stack=2, spare=0))
    common, lanes = made(), host_state.init(frb.BufferSpec({"x": frb.Unbounded(())}, 99, lanes=3), None)
    for _ in range(3):
        common = add(common)
        lanes = host_state.ENGINE.add(lanes, Batch([np.ones(12, np.float32)], 12, None, None), None)
    _native.plant(int(fault))

    def work(seed: int) -> None:
        own, rng = made(), np.random.default_rng(seed)
        others = [host_state.init(spec, None) for spec in (waiting, sharing)]
        other = host_state.Bits(rng.integers(2**31, size=lanes.spec.draw_shape(batch), dtype=np.int32))
        for turn in range(20):
            own = add(own)
            handles, priorities = sample(own, seed + turn), rng.random(batch, np.float32)
            own = host_kernels.call(kernels.update(own, spec, handles, priorities, {}))
            others = [add_any(state, rng) for state in others]
            assert (sample(common, turn) < 120).all()
            assert (sample(own, turn) >= 0).all()
            assert (host_state.ENGINE.sample(lanes, other, batch, 0.0)[1][0] == 1).all()
            write(shared)

    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(2) as pool:
        storage = frb.Memmap(f"{directory}/buffer", shared=True)
        large = {"image": frb.Unbounded((1700,), "uint8")}
        shared = SharedBuffer.open(frb.BufferSpec(large, 50, frb.Prioritized(), storage=storage))
        list(pool.map(work, range(2)))


def faults(numbers: str) -> None:
    """One fault after the other, each in a copy of this process, which may end by it."""
    for number in numbers.split(","):
        print("begin fault", number, file=sys.stderr, flush=True)
        copy = os.fork()
        if not copy:
            threads(number)
            os._exit(0)
        assert os.waitpid(copy, 0)[1] != 0


def chain(times: str) -> None:
    """Two threads draw from all states of a buffer in turn, while this one makes them, by writes of every kind."""
    import torch

    import functional_rb as frb
    import torch_backend as rb

    torch.set_num_threads(1)
    item = {"x": frb.Unbounded((64,)), "image": frb.Bounded(0, 255, (1100,), "uint8"), "n": frb.Unbounded((), "int32")}
    newest = oldest = rb.init(frb.BufferSpec(item, 300, frb.Prioritized()))
    numbers, done = torch.arange(90, dtype=torch.int32), False

    def batch(start: int) -> dict[str, torch.Tensor]:
        own = numbers + start
        image = (own % 251).to(torch.uint8)[:, None].repeat(1, 1100)
        return {"x": own[:, None].repeat(1, 64).float(), "image": image, "n": own}

    def draw(seed: int) -> None:
        key, turn = rb.key(seed), 0
        while not done:
            turn += 1
            items = rb.sample(newest if turn % 2 else oldest, key + turn, 90)[1].items
            assert torch.equal(items["x"][:, 7], items["n"].float())

    newest = oldest = rb.add(newest, batch(0))
    with ThreadPoolExecutor(2) as pool:
        drawing = [pool.submit(draw, seed) for seed in range(2)]
        try:
            for turn in range(int(times)):
                newest = rb.add(newest, batch(turn), torch.rand(90) < 0.9)
                newest = rb.add(newest, {"x": np.ones(64, np.float32), "image": batch(1)["image"][0], "n": 1})
                newest = rb.update(newest, numbers + turn, torch.rand(90))
                own = rb.update_(rb.add_(rb.add(oldest, batch(turn)), batch(turn)), numbers, torch.rand(90))
                rb.sample(own, rb.key(turn), 90)
        finally:
            done = True
        for each in drawing:
            each.result()


def few_threads(fault: str) -> None:
    """Rows are drawn to given arrays by several threads, of which the system gives one; whoever asks draws the rest."""
    import torch

    import torch_backend as rb
    from functional_rb import _native
    from tests.agreement.given_arrays import filled, room
    from torch_backend.memory.library import TORCH

    state, key, count = filled("prioritized"), rb.key(1), 130
    given, bits = room(state.spec, count), TORCH.kernels.draws(key, *state.spec.draw_shape(count))
    expected = TORCH.chain.draw(state, key, count, 0.4, None, None, True)
    _native.plant(int(fault))
    found = TORCH.chain.draw(state, bits, count, 0.4, given, None, True)
    _native.plant(0)
    assert found[1] is given
    for ours, theirs in zip([*given, *found[4:]], [*expected[1], *expected[4:]], strict=True):
        assert torch.equal(ours, theirs)


def programs(examples: str) -> None:
    """Random programs on the version chain of torch, and beside it on the plain engine."""
    import hypothesis
    from hypothesis import stateful

    from tests.agreement.chain_machine import CHAINS, Programs
    from tests.support.chain_programs import Noting

    class OfTheChain(Programs):
        chain = Noting(CHAINS["exchange"])

    settings = hypothesis.settings(max_examples=int(examples), stateful_step_count=20, derandomize=True, deadline=None)
    everything = list(hypothesis.HealthCheck)
    stateful.run_state_machine_as_test(
        OfTheChain, settings=hypothesis.settings(settings, suppress_health_check=everything)
    )
    assert OfTheChain.chain.done > int(examples)


def kinds(examples: str) -> None:
    """Random programs on torch's buffers of all kinds that the version chain knows."""
    import warnings

    import hypothesis
    import hypothesis.strategies as st

    import functional_rb as frb
    from tests.agreement.random_programs import Program
    from tests.agreement.random_specs import KINDS
    from tests.support import backends

    @hypothesis.settings(max_examples=int(examples), derandomize=True, deadline=None, database=None)
    @hypothesis.given(spec=st.one_of(*KINDS.values()), seed=st.integers(0, 2**32 - 1))
    def carry_out(spec: frb.BufferSpec, seed: int) -> None:
        with backends.make("torch") as torch, warnings.catch_warnings(action="ignore"):  # of sums that overflow
            Program(torch, spec, seed, behind=seed % 5).carry_out(20)

    carry_out()


def agreement(arguments: str) -> None:
    """Tests of the kernels beside the reference."""
    import pytest

    assert pytest.main(shlex.split(arguments)) == 0


def grids(emulator: str) -> None:
    """Short lives of buffers by emulated kernels for GPUs, each of which is launched."""
    from functional_rb import _native
    from tests.support.gpu_life import LIVES

    _emulate(emulator)
    launched = set[str]().union(*(_live(life) for life in LIVES if life.spec.capacity < 1000))
    assert launched == set(_native.GPU_KERNELS) - {"pack_keys"}  # which programs of JAX alone launch


def careless(emulator_and_wait: str) -> None:
    """The life of a small prioritized buffer, in which one kernel leaves the wait of a number out."""
    from functional_rb import _native
    from tests.support.gpu_life import LIVES

    emulator, kernel, wait = emulator_and_wait.split(",")
    _emulate(emulator).frb_leave_out(*(ctypes.c_int64(n) for n in (_native.GPU_KERNELS.index(kernel), int(wait))))
    with contextlib.suppress(Exception):  # whatever comes of it
        _live(next(life for life in LIVES if life.spec.capacity == 12))


def _emulate(file: str) -> ctypes.CDLL:
    """Let kernels for GPUs be carried out by an emulator that a sanitizer watches."""
    from tests.support import emulated_gpu

    loaded = emulated_gpu.declared(ctypes.CDLL(file))
    emulated_gpu.library = lambda: loaded  # type: ignore[assignment]  # in place of its own
    return loaded


def _live(life: Life) -> set[str]:
    """The kernels that a life launches, on grids of several columns and lines."""
    from tests.support import emulated_gpu
    from tests.support.gpu_life import carried_out

    with emulated_gpu.using("forward", blocks=3, share=60) as emulated:
        carried_out(life, "cpu")
    return {name for name, _ in emulated.launched}


WAYS = threads, faults, few_threads, chain, programs, kinds, agreement, grids, careless
PROGRAMS = {program.__name__: program for program in WAYS}

if __name__ == "__main__":
    use(sys.argv[1])
    for each in sys.argv[2:]:
        name, _, argument = each.partition("=")
        print("begin", name, file=sys.stderr, flush=True)
        PROGRAMS[name](argument)
        print("done", name, flush=True)
