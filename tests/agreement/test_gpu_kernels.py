"""The kernels for GPUs beside the plain engine, to the bit: emulated in several orders, and on a GPU where one is."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import stateful

import functional_rb as frb
import torch_backend as rb
from functional_rb import _native
from functional_rb.native import gpu
from tests.agreement.chain_machine import KINDS, SAMPLERS, Kept, Programs
from tests.support import chain_programs as programs
from tests.support import emulated_gpu, gpu_life
from tests.support.backends import needs_native
from tests.support.effort import effort
from torch_backend.kernels import custom_ops, launches
from torch_backend.kernels.chain import CHAIN

ORDERS = list(emulated_gpu.ORDERS)
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
pytestmark = [needs_native, pytest.mark.usefixtures("tensors_of_the_cpu")]


class OnGpu(Programs):
    """Every call is made twice, by kernels for GPUs and on the plain engine on the CPU."""

    @stateful.initialize(
        kind=st.sampled_from(KINDS),
        names=st.lists(st.sampled_from([*programs.LEAVES]), min_size=1, max_size=5, unique=True),
        capacity=st.sampled_from([1, 2, 3, 7, 17]),
        sampler=st.sampled_from(SAMPLERS),
        mapped=st.sampled_from([False, False, True]),
        core=st.booleans(),
        empty=st.sampled_from([False, False, False, True]),
    )
    def begin(self, **given: Any) -> None:
        """With samplers that there are kernels for."""
        super().begin(**given, lanes=None, batch_size=3)

    def with_kernels(self) -> AbstractContextManager[Any]:
        """Within which states are worked on by kernels for GPUs."""
        return contextlib.nullcontext()

    def both(self, name: str, at: Kept, *given: Any) -> tuple[Any, Any]:
        """What each way returns. Both raise the same, but where nothing can be drawn, of which a GPU does not tell."""
        with programs.using(programs.NotHere()), frb.kernels(not self.core):
            plain, other = programs.outcome(getattr(rb, name), at.plain, *given)
        is_empty = name in ("sample", "sample_") and other is not None and "empty" in other[1]
        with self.with_kernels():
            native, error = programs.outcome(getattr(rb, "sample" if is_empty else name), at.native, *given)
        if is_empty and error is None:
            assert (native[1].indices == -1).all()
            return None, None
        if error is not None:
            error = error[0], error[1].replace("cuda:0", "cpu").replace("cuda", "cpu")
        if is_empty:  # another function was called
            error, other = ((each[0], each[1].partition(": ")[2]) for each in (error, other))
        assert error == other
        return native, plain


class Emulated(OnGpu):
    """On the CPU, by emulated kernels."""

    order: ClassVar[str]
    blocks: ClassVar[int]
    launched: ClassVar[set[str]]

    @contextlib.contextmanager
    def with_kernels(self) -> Iterator[None]:
        """Those that are emulated."""
        with emulated_gpu.using(self.order, self.blocks, 500) as emulated:
            yield
        self.launched.update(name for name, _ in emulated.launched)


@pytest.mark.few(2)
@pytest.mark.parametrize(("order", "blocks"), [*((order, 2) for order in ORDERS), ("scattered", gpu.BLOCKS)])
def test_random_programs(order: str, blocks: int) -> None:
    names = set[str]()

    class InThisOrder(Emulated):
        pass

    InThisOrder.order, InThisOrder.blocks, InThisOrder.launched = order, blocks, names  # of few each has several rows
    settings = hypothesis.settings(max_examples=effort(10, 300), stateful_step_count=effort(20, 60), deadline=None)
    stateful.run_state_machine_as_test(InThisOrder, settings=settings)
    # By the last one rows are read that the core asks for.
    assert names - {"read_drawn"} == {"rank", "add", "update", "finish_update", "sample"}


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("blocks", [2, gpu.BLOCKS])
def test_random_programs_on_a_gpu(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "BLOCKS", blocks)
    monkeypatch.setattr(gpu, "SHARE", 500)
    gpu.tell()

    class OnCuda(OnGpu):
        def fresh(self) -> tuple[Any, Any]:
            return rb.init(self.spec, "cuda"), rb.init(self.spec, "cpu")

    settings = hypothesis.settings(max_examples=effort(3, 200), stateful_step_count=effort(8, 60), deadline=None)
    stateful.run_state_machine_as_test(OnCuda, settings=settings)


SPECS = {
    "scalars": {"x": frb.Unbounded((4,)), "n": frb.Unbounded((), "int32"), "done": frb.Binary(())},
    "images": {"image": frb.Unbounded((84, 84, 4), "uint8"), "n": frb.Unbounded((), "int32")},
}


def large_life(spec: frb.BufferSpec, device: str, sizes: tuple[int, int]) -> list[bytes]:
    """What is in a buffer, and was in samples, after batches larger than a block's, some of them masked.

    The largest priority was that of the first item, which is overwritten before priorities are chosen by default.
    """
    state, told, (batch, drawn) = rb.init(spec, device), [], sizes
    for turn in range(4):
        rng = np.random.default_rng(turn)
        items = {
            name: torch.from_numpy(programs.random_array(rng, leaf, (batch,))).to(device)
            for name, leaf in spec.item.items()
        }
        mask = torch.from_numpy(rng.random(batch) < 0.7).to(device) if turn == 1 else None
        numbers = rng.random(batch, np.float32)
        numbers[0] = 50.0 if turn == 0 else 0.5
        given = spec.sampler.has_priorities and turn < 3
        priorities = torch.from_numpy(numbers).to(device) if given else None
        state = rb.add(state, items, mask, priorities)
        older, (state, sample) = state, rb.sample(state, rb.key(turn), drawn)
        if spec.sampler.has_priorities:
            state = rb.update(state, sample.indices, torch.from_numpy(rng.random(drawn, np.float32)).to(device))
        told += [*sample.items.values(), sample.indices, sample.weights, sample.probabilities]
        told += [array for each in (older, state) for array in rb.sample(each, rb.key(7), 50)[1].items.values()]
    return [programs.bits(x) for x in told] + programs.peek(state)


LARGE = [("scalars", 20_000, (7000, 5000)), ("images", 600, (300, 200))]
LIVES = [(*large, sampler) for large in LARGE for sampler in SAMPLERS]


@pytest.mark.parametrize(("item", "capacity", "sizes", "sampler"), LIVES)
def test_large_batches(item: str, capacity: int, sizes: tuple[int, int], sampler: Any) -> None:
    spec = frb.BufferSpec(SPECS[item], capacity, sampler)
    with emulated_gpu.using("scattered") as emulated:
        found = large_life(spec, "cpu", sizes)
    assert found == large_life(spec, "cpu", sizes)
    assert any(grid[0] > 1 for _, grid in emulated.launched)


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize(("item", "capacity", "sizes", "sampler"), LIVES)
def test_large_batches_on_a_gpu(item: str, capacity: int, sizes: tuple[int, int], sampler: Any) -> None:
    spec = frb.BufferSpec(SPECS[item], capacity, sampler)
    assert large_life(spec, "cuda", sizes) == large_life(spec, "cpu", sizes)


@pytest.fixture
def no_old_memory() -> Iterator[None]:
    """What is taken and was not written to yet holds no sensible number."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_older_states_are_found_while_room_is_made_to_save(no_old_memory: None) -> None:
    """More is kept for them than the memory has bytes, so that they get copies amid a write."""
    spec = frb.BufferSpec({"x": frb.Unbounded((64,))}, 100, frb.Prioritized())
    with emulated_gpu.using("scattered"):
        states = [rb.add(rb.init(spec), {"x": torch.ones(60, 64)})]
        for turn in range(2, 6):
            states.append(rb.add(states[-1], {"x": torch.full((60, 64), float(turn))}))
            states.append(rb.update(states[-1], torch.arange(60, dtype=torch.int32), torch.full((60,), float(turn))))
    for state in states:
        newest = rb.get(state, rb.newest(state, 1))["x"]
        assert (newest == newest[0, 0]).all()
        assert float(newest[0, 0]) == (states.index(state) + 1) // 2 + 1


UNUSUAL = {
    "negated": lambda x: torch._neg_view(-x),
    "zeros without memory": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
}


@pytest.mark.parametrize("unusual", list(UNUSUAL))
def test_unusual_tensors_are_what_they_say(unusual: str) -> None:
    spec, form = frb.BufferSpec({"x": frb.Unbounded((3,))}, 8, frb.Prioritized()), UNUSUAL[unusual]

    def life() -> list[list[bytes]]:
        state = rb.add(rb.init(spec), {"x": form(torch.rand(5, 3, generator=torch.Generator().manual_seed(0)))})
        states = [state, rb.add(state, {"x": torch.ones(5, 3)}, None, form(torch.arange(1.0, 6)))]
        states.append(rb.update(states[-1], torch.arange(5, dtype=torch.int32), form(torch.arange(1.0, 6))))
        if unusual != "negated":  # which numbers that are not real cannot be
            states.append(rb.add(state, {"x": torch.ones(5, 3)}, form(torch.arange(5) % 2 == 0)))
            states.append(rb.update(states[-1], form(torch.arange(5, dtype=torch.int32)), torch.full((5,), 7.0)))
        return [programs.peek(each) for each in states]

    with emulated_gpu.using("forward"):
        found = life()
    with programs.using(programs.NotHere()):
        assert found == life()


def test_each_function_is_one_launch() -> None:
    spec = frb.BufferSpec(SPECS["scalars"], 64, frb.Prioritized())
    items = {"x": torch.ones(8, 4), "n": torch.ones(8, dtype=torch.int32), "done": torch.zeros(8, dtype=torch.bool)}
    with emulated_gpu.using("forward") as emulated:
        state = rb.add(rb.init(spec), items)
        state, sample = rb.sample(state, rb.key(0), 16)
        state = rb.update_(state, sample.indices, sample.weights)
        rb.add_(state, items, torch.ones(8, dtype=torch.bool))
    assert [name for name, _ in emulated.launched] == ["add", "sample", "update", "rank", "add"]


class Twice:
    """The version chain, by which operations of torch.compile are carried out, and as launches too; compares them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def call(self, handler: object, records: Any, operands: Any, results: Any) -> None:
        names = [name for name in custom_ops.LAUNCHED if _native.HANDLERS.get(name) is handler]
        copies = {id(x): x.clone() for x in (*operands, *results) if x is not None}
        CHAIN.call(handler, records, operands, results)
        for name in names:
            self.names.append(name)
            given = [[copies.get(id(x)) for x in part] for part in (operands, results)]
            with emulated_gpu.using("scattered", 2, 500):
                launches.launch(name, records, *given)
            for x in (*operands, *results):
                assert x is None or programs.bits(x) == programs.bits(copies[id(x)])


@pytest.mark.parametrize("sampler", [frb.Prioritized(), "lanes"])
def test_operations_of_torch_compile_are_launches_on_a_gpu(sampler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = {"lanes": 3} if sampler == "lanes" else {}
    spec = frb.BufferSpec(SPECS["scalars"], 48, frb.Uniform() if lanes else sampler, **lanes)
    lead = (7, 3) if lanes else (21,)
    items = {"x": torch.rand(*lead, 4), "n": torch.ones(lead, dtype=torch.int32), "done": torch.zeros(lead).bool()}
    twice = Twice()
    monkeypatch.setattr(custom_ops, "CHAIN", twice)
    mask = None if lanes else torch.rand(lead) < 0.5

    def step(state: Any, items: Any, key: Any) -> Any:
        state, sample = rb.sample_(rb.add_(state, items, mask), key, 8)
        if spec.sampler.has_priorities:
            state = rb.update_(state, sample.indices, sample.weights)
        return state, sample

    torch.compile(step, backend="eager", fullgraph=True)(rb.init(spec), items, rb.key(0))
    assert twice.names == (["draw"] if lanes else ["add", "draw", "update_priorities"])


def test_a_state_that_is_made_in_inference_mode_is_written_to_outside_of_it() -> None:
    spec, items = frb.BufferSpec({"n": frb.Unbounded((), "int32")}, 8, frb.Prioritized()), {"n": torch.arange(3).int()}
    with emulated_gpu.using("forward") as emulated:
        with torch.inference_mode():
            older = rb.add(rb.init(spec), items)
            state = rb.add(older, items)
        states = older, rb.update_(state, torch.arange(3, dtype=torch.int32), torch.full((3,), 2.0))
        with frb.kernels(False):
            states = *states, rb.add_(rb.add(states[1], items), items)
    assert [int(rb.size(each)) for each in states] == [3, 6, 8]
    assert not any(each._counters.is_inference() for each in states)
    assert [name for name, _ in emulated.launched] == ["add", "add", "update"]


@pytest.mark.filterwarnings("ignore:.*ynchroniz")
@pytest.mark.gpu
@cuda
def test_nobody_waits_for_a_gpu() -> None:
    spec = frb.BufferSpec(SPECS["scalars"], 1000, frb.Prioritized())
    items = {"x": torch.ones(8, 4), "n": torch.ones(8, dtype=torch.int32), "done": torch.zeros(8, dtype=torch.bool)}
    items, mask = {name: leaf.cuda() for name, leaf in items.items()}, torch.ones(8, dtype=torch.bool, device="cuda")
    state = rb.add(rb.init(spec, "cuda"), items)
    state, sample = rb.sample(state, rb.key(0), 16)
    state = rb.update(state, sample.indices, sample.weights)
    try:
        torch.cuda.set_sync_debug_mode("error")
        for turn in range(3):
            state = rb.add_(rb.add(state, items, mask), items)
            state, sample = rb.sample(state, rb.key(turn), 16)
            state = rb.update_(rb.update(state, sample.indices, sample.weights), sample.indices, sample.weights)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@cuda
def test_other_threads_and_streams() -> None:
    spec = frb.BufferSpec({"n": frb.Unbounded((), "int32")}, 1000, frb.Prioritized())

    def life(seed: int) -> list[bytes]:
        with torch.cuda.stream(torch.cuda.Stream()):
            state = rb.init(spec, "cuda")
            for turn in range(20):
                state = rb.add(state, {"n": torch.arange(50, dtype=torch.int32, device="cuda") + turn + seed})
                state, sample = rb.sample(state, rb.key(seed + turn), 64)
                state = rb.update(state, sample.indices, sample.items["n"].float())
            torch.cuda.current_stream().synchronize()
            return programs.peek(state)

    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(life, range(8))]
    assert found == [life(seed) for seed in range(8)]


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("first", ["sample", "add"])
def test_streams_that_use_one_memory_wait_for_each_other(first: str) -> None:
    """Though their users, who have different states, know nothing of that."""
    spec, numbers = frb.BufferSpec({"n": frb.Unbounded((), "int32")}, 8), torch.arange(8).int().cuda()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    state = rb.add(rb.init(spec, "cuda"), {"n": numbers})
    rb.sample(state, rb.key(0), 100), rb.add(state, {"n": numbers})  # so that everything has been compiled
    state = rb.add(rb.init(spec, "cuda"), {"n": numbers})
    torch.cuda.synchronize()
    functions: dict[str, Any] = {
        "sample": lambda: rb.sample(state, rb.key(0), 100)[1].items["n"],
        "add": lambda: rb.add(state, {"n": numbers + 100}),
    }
    if first == "add":
        functions["sample"] = lambda: rb.sample(made["add"], rb.key(0), 100)[1].items["n"]
    made: dict[str, Any] = {}
    for name, stream in zip((first, *functions.keys() - {first}), streams, strict=True):
        with torch.cuda.stream(stream):
            if name == first:
                torch.cuda._sleep(100_000_000)  # so it is late
            made[name] = functions[name]()
    torch.cuda.synchronize()
    assert bool((made["sample"] < 8).all()) == (first == "sample")
    assert int(rb.get(made["add"], rb.newest(made["add"], 1))["n"]) == 107


@pytest.mark.gpu
@cuda
def test_a_graph_of_cuda() -> None:
    spec = frb.BufferSpec({"n": frb.Unbounded((), "int32")}, 64, frb.Prioritized())
    numbers = torch.arange(8, dtype=torch.int32, device="cuda")
    state = rb.add(rb.init(spec, "cuda"), {"n": numbers})
    state, _ = rb.sample(rb.update(state, numbers, numbers.float()), rb.key(0), 4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        after, sample = rb.sample(rb.add(state, {"n": numbers + 8}), rb.key(1), 32)
    graph.replay()
    torch.cuda.synchronize()
    other = rb.add(
        rb.update(rb.add(rb.init(spec, "cuda"), {"n": numbers}), numbers, numbers.float()), {"n": numbers + 8}
    )
    assert int(rb.size(after)) == 16
    assert programs.bits(sample.indices) == programs.bits(rb.sample(other, rb.key(1), 32)[1].indices)


def test_where_nothing_can_be_compiled_that_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(device: int) -> Any:
        raise OSError(f"no library for cuda:{device}")

    monkeypatch.setattr(gpu, "loaded", missing)
    monkeypatch.setattr(gpu, "_ready", {})
    with pytest.warns(RuntimeWarning, match=r"no library for cuda:0; functional_rb\.kernels\(False\)") as told:
        found = [gpu.ready(0, "torch") for _ in range(2)]
    assert len(told) == 1
    assert found == [False, False]


def test_what_was_compiled_is_kept_for_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And made anew of other sources; a folder that others may write to holds nothing that would be carried out."""
    made: list[str] = []

    class Compiler:
        def nvrtcVersion(self, *places: Any) -> int:
            return 0

    def compile_it(compiler: Any, sources: dict[str, bytes], architecture: str) -> bytes:
        made.append(architecture)
        return architecture.encode()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gpu, "_compiler", lambda newest: Compiler())
    monkeypatch.setattr(gpu, "_compile", compile_it)
    assert [gpu.compiled(x) for x in ("sm_90", "sm_90", "sm_80")] == [b"sm_90", b"sm_90", b"sm_80"]
    assert made == ["sm_90", "sm_80"]
    monkeypatch.setattr(gpu, "FLAGS", ())
    gpu.compiled("sm_90")
    assert made == ["sm_90", "sm_80", "sm_90"]
    (tmp_path / "functional_rb" / "kernels").chmod(0o777)
    gpu.compiled("sm_90")
    assert made == ["sm_90", "sm_80", "sm_90", "sm_90"]


@functools.cache
def short_lives() -> list[tuple[gpu_life.Life, Any]]:
    """Those of the sanitizers' program, and what comes of them by the kernels of the CPU."""
    return [(life, gpu_life.carried_out(life, "cpu")) for life in gpu_life.LIVES if life.spec.capacity < 100]


@pytest.mark.parametrize("order", ORDERS)
def test_the_sanitizers_program_launches_every_kernel(order: str) -> None:
    launched = set[str]()
    for life, expected in short_lives():
        with emulated_gpu.using(order, 2, 500) as emulated:
            found = gpu_life.carried_out(life, "cpu")
        launched |= {name for name, _ in emulated.launched}
        assert found == expected, life.spec
    assert launched == set(_native.GPU_KERNELS) - {"pack_keys"}  # which programs of JAX alone launch
