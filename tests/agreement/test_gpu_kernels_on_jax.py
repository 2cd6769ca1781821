"""Launches of kernels for GPUs as custom calls of JAX beside the core, to the bit: emulated, and on a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import functional_rb as frb
import jax_backend as rb
from functional_rb import _native
from jax_backend.kernels import gpus
from tests.agreement import gpu_on_xla
from tests.agreement.jax_programs import (
    ITEM,
    agreeing,
    bits,
    cuda,
    items,
    mask,
    otherwise,
    priorities,
    stacked,
)
from tests.support import emulated_gpu
from tests.support.backends import needs_native
from tests.support.effort import effort
from tests.support.emulated_gpu import Emulated

pytestmark = needs_native

SAMPLERS = {
    "uniform": frb.Uniform(),
    "prioritized": frb.Prioritized(alpha=0.7, beta=0.5),
    "prioritized, as they are": frb.Prioritized(alpha=1.0, new_priority="ever"),
}
CAPACITY, FEW, MANY, DRAWN = 17, 6, 40, 9


def of(sampler: str, capacity: int = CAPACITY) -> frb.BufferSpec:
    return frb.BufferSpec(ITEM, capacity, SAMPLERS[sampler])


def step(state: frb.State, given: Any, key: jax.Array) -> Any:
    """A batch, draws, and new priorities of these, with duplicates and of what is gone."""
    batch, marked, numbers = given
    old = state
    state = rb.add(state, batch, marked)
    state, sample = rb.sample(state, key, DRAWN)
    if state.spec.sampler.has_priorities:
        handles = jnp.concatenate([sample.indices, sample.indices[:3], jnp.array([-1, 10**6, 0], jnp.int32)])
        state = rb.update(state, handles, jnp.resize(numbers, handles.shape))
    return state, (sample.items, sample.indices, sample.weights, sample.probabilities, rb.size(old))


def given(k: int, n: int = FEW) -> Any:
    return items(k, n), mask(k, n), priorities(k, n)


# --- programs: of a spec, each gives arrays -------------------------------------------------------------------------


def eager(spec: frb.BufferSpec) -> Any:
    """Calls one by one, in place and not: batches of all sizes, with masks and priorities or not."""
    state, told = rb.init(spec), []
    for k in range(5):
        n = MANY if k == 2 else FEW
        own = {"priorities": priorities(k, n)} if spec.sampler.has_priorities and k % 3 == 1 else {}
        add = rb.add_ if k % 2 else rb.add
        state = add(state, items(k, n), mask(k, n) if k in (1, 2) else None, **own)
        state, sample = rb.sample(state, rb.key(k), DRAWN)
        told.append((sample.items, sample.indices, sample.weights, sample.probabilities))
        if spec.sampler.has_priorities:
            update = rb.update_ if k % 2 else rb.update
            state = update(state, sample.indices, priorities(k, DRAWN))
    beta = jnp.float32(0.9) if spec.sampler.has_priorities else None
    return state, told, rb.sample(state, rb.key(9), DRAWN, beta)[1].weights


def scanned(spec: frb.BufferSpec) -> Any:
    turns = stacked(*(given(k) for k in range(4)))
    return jax.jit(lambda s, x, k: lax.scan(lambda s, xs: step(s, *xs), s, (x, k)))(
        rb.init(spec), turns, rb.split(rb.key(3), 4)
    )


def donated(spec: frb.BufferSpec) -> Any:
    """By rb.jit, which donates; the last batch is larger than the buffer."""
    run, state, told = rb.jit(step), rb.init(spec), []
    for k in range(3):
        state, seen = run(state, given(k, MANY if k == 2 else FEW), rb.key(k))
        told.append(seen)
    return state, told


def branched(spec: frb.BufferSpec) -> Any:
    def run(state: Any, k: Any) -> Any:
        state = lax.cond(k % 2 == 0, lambda s: rb.add(s, items(1, FEW)), lambda s: s, state)
        return lax.while_loop(lambda s: rb.size(s) < 8, lambda s: rb.add(s, items(2, FEW), mask(2, FEW)), state)

    state = rb.init(spec)
    return [jax.jit(run)(state, jnp.int32(k)) for k in (0, 1)]


def several(spec: frb.BufferSpec) -> Any:
    """Stacked buffers, each with its own batch, and two keys for each."""
    states = jax.vmap(lambda _: rb.init(spec))(jnp.arange(3))
    turns = stacked(*(given(k) for k in range(3)))
    states, _ = jax.jit(jax.vmap(step))(states, turns, rb.split(rb.key(0), 3))
    keys = rb.split(rb.key(1), 6).reshape(3, 2)

    def drawn(state: Any, keys: Any) -> Any:
        return jax.vmap(lambda key: rb.sample(state, key, DRAWN)[1].items)(keys)

    return states, jax.jit(jax.vmap(drawn))(states, keys)


def shared(spec: frb.BufferSpec) -> Any:
    """Many keys, and several sets of priorities, of one buffer."""
    state = rb.add(rb.init(spec), items(0, FEW))
    drawn = jax.jit(jax.vmap(lambda s, key: rb.sample(s, key, DRAWN), (None, 0)))(state, rb.split(rb.key(5), 4))
    if not spec.sampler.has_priorities:
        return drawn
    handles = jnp.arange(FEW, dtype=jnp.int32)
    updated = jax.jit(jax.vmap(rb.update, (None, None, 0)))(state, handles, priorities(1, 2, FEW))
    return drawn, updated


def divided(spec: frb.BufferSpec) -> Any:
    """Inside of `jax.shard_map`, where each device has a buffer of its own."""
    device = next(iter(jnp.zeros(()).devices()))
    mesh, whole = jax.make_mesh((1,), ("d",), devices=[device]), jax.sharding.PartitionSpec()
    run = jax.shard_map(step, mesh=mesh, in_specs=(whole, whole, whole), out_specs=whole, check_vma=False)
    return jax.jit(run)(rb.init(spec), given(0), rb.key(0))


def at_the_end(spec: frb.BufferSpec) -> Any:
    """The sequence numbers begin again."""
    state = rb.add(rb.init(spec), items(0, FEW))
    last = 2**31 // spec.capacity * spec.capacity - 4
    state = dataclasses.replace(state, counters=state.counters.at[0].set(last).at[1].set(0))
    return [step(state, given(k), rb.key(k)) for k in range(2)]


def rewritten(spec: frb.BufferSpec) -> Any:
    """Leaves and priorities of items, some of them named twice, some gone, and of many."""
    state = rb.add(rb.init(spec), items(0, MANY))
    handles = jnp.asarray(np.random.default_rng(0).integers(MANY - CAPACITY - 3, MANY + 2, MANY), "int32")
    given = {"x": items(1, MANY)["x"], "image": items(2, MANY)["image"]}
    told = [rb.update(state, handles, None, given)]
    if spec.sampler.has_priorities:
        told.append(jax.jit(rb.update)(told[-1], handles, priorities(1, MANY), {"n": items(3, MANY)["n"]}))
    return told


PROGRAMS: dict[str, Callable[[frb.BufferSpec], Any]] = {
    program.__name__: program
    for program in (eager, scanned, donated, branched, several, shared, divided, at_the_end, rewritten)
}


def agree(program: str, sampler: str, kernels: AbstractContextManager[Any]) -> Any:
    """That of one of the programs here."""
    return agreeing(PROGRAMS[program], of(sampler), kernels)


@pytest.mark.few(2, by="sampler")
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program: str, sampler: str) -> None:
    order = [*emulated_gpu.ORDERS][len(program) % 3]
    told = agree(program, sampler, gpu_on_xla.using(order, blocks=4, share=500))
    names = {name for name, _ in told.launched}
    assert "add" in names
    assert ("sample" in names) == (program not in ("branched", "rewritten"))
    assert ("update" in names) == (program == "rewritten" or (sampler != "uniform" and program != "branched"))


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_on_a_gpu(program: str, sampler: str) -> None:
    assert gpus.ready()
    agree(program, sampler, contextlib.nullcontext())


def large_life(spec: frb.BufferSpec) -> Any:
    """Batches of many blocks."""
    state, told = rb.init(spec), []
    for k in range(3):
        state = rb.add_(state, items(k, 3000), mask(k, 3000) if k == 1 else None)
        state, sample = rb.sample(state, rb.key(k), 2000)
        if spec.sampler.has_priorities:
            state = rb.update_(state, sample.indices, priorities(k, 2000))
        told.append((sample.items, sample.indices, sample.weights, sample.probabilities))
    return state, told


@pytest.mark.parametrize("sampler", effort(["prioritized"], SAMPLERS))
def test_large_batches(sampler: str) -> None:
    spec = of(sampler, 7000)
    with gpu_on_xla.using("scattered"):
        found = bits(large_life(spec))
    with otherwise():
        assert found == bits(large_life(spec))


@pytest.mark.gpu
@cuda
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_large_batches_on_a_gpu(sampler: str) -> None:
    spec = of(sampler, 7000)
    found = bits(large_life(spec))
    with otherwise():
        assert found == bits(large_life(spec))


# --- what is launched -----------------------------------------------------------------------------------------------


@pytest.fixture
def emulated() -> Iterator[Emulated]:
    with gpu_on_xla.using("forward") as told:
        yield told


def test_each_function_is_one_launch(emulated: Emulated) -> None:
    state = rb.add(rb.init(of("prioritized")), items(0, FEW))
    state, sample = rb.sample(state, rb.key(0), 8)
    state = rb.update_(state, sample.indices, sample.weights)
    state = rb.add_(state, items(1, FEW), mask(1, FEW))
    jax.block_until_ready(state)
    emulated.note()
    assert [name for name, _ in emulated.launched] == ["add", "sample", "update", "rank", "add"]


def test_nothing_else_is_left_in_a_program(emulated: Emulated) -> None:
    spec = of("prioritized")
    state, key = jax.eval_shape(lambda: rb.init(spec)), jax.eval_shape(lambda: rb.key(0))
    drawn = str(jax.jit(lambda s, k: rb.sample(s, k, 8)).lower(state, key).as_text())
    assert drawn.count("custom_call @functional_rb_gpu_draw") == 1
    assert not any(word in drawn for word in ("threefry", "optimization_barrier", "stablehlo.gather"))
    added = str(jax.jit(rb.add).lower(state, jax.eval_shape(lambda: items(0, FEW))).as_text())
    assert added.count("custom_call @functional_rb_gpu_add") == 1
    assert "scatter" not in added


DRAWN_BY_XLA: dict[str, tuple[Any, Any]] = {
    "a limit": (frb.Uniform(max_times_sampled=2), frb.RoundRobin()),
    "a reservoir": (frb.Uniform(), frb.Reservoir()),
    "the best": (frb.Prioritized(), frb.MaxValue("n")),
    "each once": (frb.Prioritized(replacement=False), frb.RoundRobin()),
    "newer ones": (frb.Recency(), frb.RoundRobin()),
}


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("kind", DRAWN_BY_XLA)
def test_xla_draws_what_no_launch_does(kind: str) -> None:
    spec = frb.BufferSpec(ITEM, CAPACITY, *DRAWN_BY_XLA[kind])
    drawn = jax.eval_shape(lambda key: rb.sample(rb.init(spec), key, DRAWN)[1].items, rb.key(0))
    assert {name: leaf.shape for name, leaf in drawn.items()} == {
        name: (DRAWN, *leaf.shape) for name, leaf in spec.item.items()
    }


def test_a_limit_is_kept_where_items_come_in_order(emulated: Emulated) -> None:
    state = rb.init(frb.BufferSpec({"n": frb.Unbounded((), "int32")}, 8, frb.InOrder(1)))
    state, first = rb.sample(rb.add(state, {"n": jnp.arange(4, dtype=jnp.int32)}), rb.key(0), 2)
    _, second = rb.sample(state, rb.key(0), 3)
    assert first.items["n"].tolist() == [0, 1]
    assert second.items["n"][:2].tolist() == [2, 3]
    assert second.mask is not None
    assert second.mask.tolist() == [True, True, False]
    emulated.note()
    assert [name for name, _ in emulated.launched] == ["add_to_rings", *["spend", "read_drawn"] * 2]


def test_the_core_does_what_no_launch_can_name() -> None:
    names = [f"x{k}" for k in range(_native.GPU_ROOM[0] + 1)]
    spec = frb.BufferSpec({name: frb.Unbounded(()) for name in names}, 8)

    def life() -> Any:
        state = rb.add(rb.init(spec), {name: jnp.ones(3) for name in names})
        return rb.sample(state, rb.key(0), 4)

    with gpu_on_xla.using("forward") as told:
        found = bits(life())
    assert found == bits(life())
    assert told.launched == []


@pytest.mark.parametrize("program", effort(["scanned"], ["eager", "scanned", "rewritten"]))
def test_a_program_on_the_cpu_beside_a_gpu(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is traced for the GPU, and compiled for the CPU."""
    spec = of("prioritized")
    with gpu_on_xla.by_the_cpu():
        expected = bits(PROGRAMS[program](spec))
        with gpu_on_xla.found_by("traced for a GPU"):
            monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
            monkeypatch.setattr(gpus, "ready", lambda: True)
            assert bits(PROGRAMS[program](spec)) == expected


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_xla_does_what_it_makes_few_operations_of(sampler: str) -> None:
    """Adds and draws of uniform buffers; not where there is a mask, or leaves are rewritten."""

    def life() -> Any:
        state = rb.add(rb.init(of(sampler)), items(0, FEW))
        state, sample = rb.sample(state, rb.key(0), 8)
        state = rb.add(state, items(1, FEW), mask(1, FEW))
        state = rb.update(state, sample.indices, None, {"n": sample.items["n"] + 1})
        return state, sample

    with gpu_on_xla.using("forward", all_of_them=False) as told:
        found = bits(life())
    with otherwise():
        assert found == bits(life())
    names = [name for name, _ in told.launched]
    assert names == [*(["add", "sample"] if sampler == "prioritized" else []), "rank", "add", "update", "finish_update"]


def test_keys_of_other_kinds() -> None:
    """Whose random bits XLA makes."""

    def life() -> Any:
        state = rb.add(rb.init(of("prioritized")), items(0, FEW))
        return rb.sample(state, jax.random.key(0, impl="rbg"), 8)

    with gpu_on_xla.using("forward") as told:
        found = bits(life())
    with otherwise():
        assert found == bits(life())
    assert [name for name, _ in told.launched] == ["add", "sample"]


# --- XLA's interface ------------------------------------------------------------------------------------------------


class Version(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("next", ctypes.c_void_p), ("major", ctypes.c_int), ("minor", ctypes.c_int))


class Metadata(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("version", Version), ("traits", ctypes.c_uint32))


class Extension(ctypes.Structure):
    _fields_ = (
        *(("size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p)),
        ("metadata", ctypes.POINTER(Metadata)),
    )


class Frame(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("extensions", ctypes.POINTER(Extension)))


def traits(handler: object) -> tuple[int, int, int]:
    """What a handler tells XLA of itself: the version of the interface, and its traits."""
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    metadata = Metadata()
    extension = Extension(ctypes.sizeof(Extension), 1, None, ctypes.pointer(metadata))
    frame = Frame(ctypes.sizeof(Frame), ctypes.pointer(extension))
    assert ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address(handler, None))(ctypes.addressof(frame)) is None
    return metadata.version.major, metadata.version.minor, metadata.traits


def test_launches_may_be_recorded_in_command_buffers() -> None:
    assert {traits(handler) for handler in _native.GPU_HANDLERS.values()} == {(0, 1, 1)}
    assert {traits(handler) for handler in _native.HANDLERS.values()} == {(0, 1, 0)}


def added_once(spec: frb.BufferSpec) -> Any:
    return jax.block_until_ready(jax.jit(rb.add)(rb.init(spec), items(0, FEW)))


def test_a_device_without_kernels_is_an_error(emulated: Emulated) -> None:
    _native.gpu_device(0, 1, tuple(range(1, len(_native.GPU_KERNELS) + 1)))  # in another context
    with pytest.raises(Exception, match="no kernels were loaded for this device"):
        added_once(of("uniform"))


def test_a_launch_that_is_refused_is_an_error(emulated: Emulated) -> None:
    refuse = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 719)
    _native.gpu_driver((ctypes.cast(refuse, ctypes.c_void_p).value or 0, 0, 0, 0, 0), 4, 500)
    with pytest.raises(Exception, match="CUDA refused a launch"):
        added_once(of("uniform"))


def test_the_stream_is_asked_of_xla(emulated: Emulated) -> None:
    """Which has none on a CPU, and says so."""
    none = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda place: 0)
    _native.gpu_driver((1, ctypes.cast(none, ctypes.c_void_p).value or 0, 0, 0, 0), 4, 500)
    with pytest.raises(Exception, match=r"(?i)stream|GPU"):
        added_once(of("uniform"))


@pytest.mark.parametrize("name", _native.GPU_HANDLERS)
def test_launches_refuse_what_they_were_not_compiled_for(name: str) -> None:
    """Programs may have been kept from another version of the library; see `test_kept_programs`."""
    jax.ffi.register_ffi_target(f"forged_{name}", _native.GPU_HANDLERS[name], platform="cpu")
    call = jax.ffi.ffi_call(f"forged_{name}", [jax.ShapeDtypeStruct((4,), np.float32)])
    with pytest.raises(jax.errors.JaxRuntimeError, match="compiled by another version of functional_rb, or for arrays"):
        jax.block_until_ready(call(np.zeros(4, np.float32), batch=np.arange(3)))
