"""Arrays and states cross between JAX and torch in the same memory; neither side ever sees the other's writes."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from tensordict import TensorDict

import functional_rb as frb
import jax_backend as jrb
import torch_backend as trb
from functional_rb.base import dtypes
from functional_rb.buffer import functions
from functional_rb.ops import numpy_ops
from tests.support import backends, gpu
from tests.support.effort import effort
from tests.support.versions import enable_x64, is_version

SHARED = [name for name in dtypes.ITEMSIZE if name not in ("int64", "uint64", "float64")]
WITH_64_BITS = ["int64", "uint64", "float64"]
ITEM = {
    "id": frb.Unbounded((), "int32"),
    "image": frb.Unbounded((1100,), "uint8"),
    "obs": {"pos": frb.Unbounded((3,)), "half": frb.Unbounded((2,), "bfloat16")},
    "done": frb.Binary(()),
}
SAMPLERS = [frb.Uniform(), frb.Prioritized(alpha=0.7, beta=0.5), frb.Prioritized(1.0, 1.0, "ever")]
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(params=["kernels", "core"])
def twins(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both backends with their kernels, and both without."""
    core = "-core" if request.param == "core" else ""
    with backends.make("jax" + core), backends.make("torch" + core):
        yield request.param


def numbers(start: int, n: int) -> dict[str, Any]:
    """NumPy items whose every leaf tells their number."""
    number = np.arange(start, start + n, dtype=np.int32)
    return {
        "id": number,
        "image": np.repeat((number % 251).astype(np.uint8)[:, None], 1100, 1),
        "obs": {
            "pos": np.stack([number, -number, number + 0.5], 1).astype(np.float32),
            "half": np.stack([number % 100, -number % 100], 1).astype(jnp.bfloat16),
        },
        "done": number % 3 == 0,
    }


def address(array: Any) -> int:
    return array.data_ptr() if isinstance(array, torch.Tensor) else array.unsafe_buffer_pointer()


def as_bytes(array: Any) -> bytes:
    if isinstance(array, torch.Tensor):
        array = array.contiguous().reshape(-1).view(torch.uint8).numpy() if array.numel() else np.empty(0)
    return np.asarray(array).tobytes()


def arrays(state: Any) -> list[Any]:
    return [state.rows, *state.wide, *([] if state.tree is None else [state.tree]), state.counters]


def bits(state: Any) -> list[bytes]:
    return [as_bytes(array) for array in arrays(state)]


def aligned(n: int, dtype: str) -> torch.Tensor:
    """n elements of random bytes at an address that JAX takes."""
    if dtype == "bool":
        return torch.from_numpy(np.random.default_rng(0).random(n) < 0.5).clone()
    raw = np.random.default_rng(0).integers(0, 100, n * dtypes.ITEMSIZE[dtype], np.uint8)
    return torch.from_numpy(raw).clone().view(getattr(torch, dtype))


# ---------------------------------------------------------------- arrays


@pytest.mark.parametrize("dtype", [*SHARED, *WITH_64_BITS])
@pytest.mark.parametrize("shape", [(24,), (2, 3, 4), (1,), ()])
def test_arrays_share_memory(dtype: str, shape: tuple[int, ...]) -> None:
    with enable_x64(dtype in WITH_64_BITS):
        given = aligned(int(np.prod(shape)), dtype).reshape(shape)
        on_jax = jrb.from_dlpack(given)
        assert isinstance(on_jax, jax.Array)
        assert (on_jax.dtype.name, on_jax.shape) == (dtype, shape)
        assert address(on_jax) == address(given)
        assert as_bytes(on_jax) == as_bytes(given)
        back = trb.from_dlpack(on_jax)
        assert (back.dtype, tuple(back.shape)) == (given.dtype, shape)
        assert address(back) == address(given)
        own = jnp.array(np.asarray(on_jax))
        there = trb.from_dlpack(own)
        assert address(there) == address(own)
        assert as_bytes(there) == as_bytes(given)
        # Memory outlives the array that it came from.
        del given, own, on_jax
        assert as_bytes(back) == as_bytes(there)


@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16"])
def test_empty_arrays(dtype: str) -> None:
    assert jrb.from_dlpack(torch.zeros((3, 0), dtype=getattr(torch, dtype))).shape == (3, 0)
    assert tuple(trb.from_dlpack(jnp.zeros((3, 0), dtype)).shape) == (3, 0)


def test_copies_are_copies() -> None:
    given = aligned(32, "float32")
    copied = jrb.from_dlpack({"x": given}, copy=True)["x"]
    assert address(copied) != address(given)
    assert as_bytes(copied) == as_bytes(given)
    wanted = as_bytes(given)
    given += 1
    assert as_bytes(copied) == wanted
    on_jax = jnp.arange(32.0)
    back = trb.from_dlpack((on_jax,), copy=True)[0]
    assert address(back) != address(on_jax)
    back += 1  # a copy may be written to
    assert on_jax.tolist() == list(range(32))
    for rb, own in ((trb, back), (jrb, on_jax)):
        assert address(rb.from_dlpack([own])[0]) == address(own)
        assert address(rb.from_dlpack([own], copy=True)[0]) != address(own)


class Point(dict[str, Any]):
    """A mapping of another type comes back as a dict."""


def test_nests_by_key_path() -> None:
    def x(k: int) -> torch.Tensor:
        return torch.full((16,), float(k))

    nest = {"z": x(0), "a": ({"b": x(1)}, [x(2), x(3)]), "empty": {}, "point": Point(y=x(4), x=x(5))}
    on_jax = jrb.from_dlpack(nest)
    assert list(on_jax) == ["z", "a", "empty", "point"]
    assert type(on_jax["a"]) is tuple
    assert type(on_jax["a"][1]) is list
    assert on_jax["empty"] == {}
    found = [on_jax["z"], on_jax["a"][0]["b"], *on_jax["a"][1], on_jax["point"]["y"], on_jax["point"]["x"]]
    assert [float(a[0]) for a in found] == [0, 1, 2, 3, 4, 5]
    back = trb.from_dlpack(jax.tree.map(lambda a: a, on_jax))  # JAX has sorted the keys
    assert address(back["a"][0]["b"]) == address(nest["a"][0]["b"])
    assert address(back["point"]["x"]) == address(nest["point"]["x"])


def test_tensordict_to_dict_and_back() -> None:
    td = TensorDict({"x": torch.arange(16.0), "n": {"y": torch.arange(32).reshape(16, 2).int()}}, [16])
    on_jax = jrb.from_dlpack(td)
    assert type(on_jax) is dict
    assert type(on_jax["n"]) is dict
    assert address(on_jax["n"]["y"]) == address(td["n", "y"])
    assert type(trb.from_dlpack(on_jax)) is dict
    back = trb.from_dlpack(on_jax, into=TensorDict)
    assert type(back) is TensorDict
    assert back.batch_size == back["n"].batch_size == (16,)
    assert address(back["n", "y"]) == address(td["n", "y"])
    with pytest.raises(TypeError, match=r"'a'.*holds tensors and TensorDicts, not a list"):
        trb.from_dlpack({"a": [jnp.zeros(3)]}, into=TensorDict)


# ---------------------------------------------------------------- errors


def misaligned() -> torch.Tensor:
    return torch.arange(33.0)[1:]


def conjugated() -> torch.Tensor:
    return torch.tensor([1 + 2j, 3 - 4j] * 8).conj()


def deleted() -> jax.Array:
    array = jnp.arange(16.0)
    array.delete()
    return array


def complex32() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the dtype experimental
        return torch.zeros(16, dtype=torch.complex32)


TO_JAX: dict[str, tuple[Callable[[], Any], str, type | None, Any]] = {
    # what: (array, what the refusal says, what copy=True raises (None: it works), the values then)
    "misaligned": (misaligned, r"aligned.*copy=True", None, np.arange(1, 33)),
    "strided": (lambda: torch.arange(64.0)[::2], r"strided view.*contiguous\(\).*copy=True", None, np.arange(0, 64, 2)),
    "transposed": (lambda: torch.eye(8).T[:, :4], r"strided view", None, np.eye(8)[:, :4]),
    "expanded": (lambda: torch.ones(1).expand(16), r"strided view", None, np.ones(16)),
    "grad": (lambda: torch.ones(16, requires_grad=True), r"requires grad.*detach\(\).*copy=True", None, np.ones(16)),
    "conjugated": (conjugated, r"resolve_conj.*copy=True", None, np.array([1 - 2j, 3 + 4j] * 8)),
    "negated": (lambda: torch._neg_view(torch.ones(16)), r"resolve_neg.*copy=True", None, -np.ones(16)),
    "int64": (lambda: torch.arange(16), r"dtype int64 needs.*jax_enable_x64", TypeError, None),
    "float64": (lambda: torch.ones(16).double(), r"dtype float64 needs.*jax_enable_x64", TypeError, None),
    "NumPy's int64": (lambda: np.arange(16), r"dtype int64 needs.*jax_enable_x64", TypeError, None),
    "complex32": (complex32, r"complex32.*cannot be shared", ValueError, None),
    "meta": (lambda: torch.zeros(16, device="meta"), r"device meta.*cannot be shared", ValueError, None),
    "NumPy strided": (lambda: np.arange(32, dtype=np.float32)[::2], r"strided view", None, np.arange(0, 32, 2)),
    "NumPy backwards": (lambda: np.arange(16, dtype=np.float32)[::-1], r"strided", None, np.arange(16)[::-1]),
    "number": (lambda: 3.0, r"expected an array that has __dlpack__, got float", TypeError, None),
}
TO_TORCH: dict[str, tuple[Callable[[], Any], str, type | None, Any]] = {
    "int4": (lambda: jnp.zeros(16, jnp.int4), r"int4.*cannot be shared", ValueError, None),
    "float8": (lambda: jnp.zeros(16, jnp.float8_e4m3), r"float8_e4m3.*cannot be shared", ValueError, None),
    "deleted": (deleted, r"float32.*cannot be shared", ValueError, None),
    "key": (lambda: jax.random.key(0), r"expected an array that has __dlpack__", TypeError, None),
    "NumPy strided": (lambda: np.arange(32, dtype=np.float32)[::2], r"strided view", None, np.arange(0, 32, 2)),
    "string": (lambda: "x", r"expected an array that has __dlpack__, got str", TypeError, None),
}


@pytest.mark.parametrize(("side", "what"), [("jax", what) for what in TO_JAX] + [("torch", what) for what in TO_TORCH])
def test_what_cannot_be_shared(side: str, what: str) -> None:
    rb = jrb if side == "jax" else trb
    make, message, copy_raises, values = (TO_JAX if side == "jax" else TO_TORCH)[what]
    tree = {"fine": np.ones(16, np.float32).copy(), "deep": [{"leaf": make()}]}
    path = r"from_dlpack: leaf 'deep/0/leaf'.*"
    with pytest.raises((TypeError, ValueError), match=path + message):
        rb.from_dlpack({"deep": tree["deep"]})
    if copy_raises is not None:
        with pytest.raises(copy_raises, match=path):
            rb.from_dlpack(tree, copy=True)
    else:
        np.testing.assert_array_equal(np.asarray(rb.from_dlpack(tree, copy=True)["deep"][0]["leaf"]), values)


def test_read_only_arrays_of_numpy_are_shared_or_refused() -> None:
    """Nobody writes to arrays of JAX, which from 0.12 on asks NumPy for such ones."""
    array = numpy_ops.aligned(np.zeros, (16,), np.dtype("float32"))
    array.flags.writeable = False
    if is_version(jax, "0.12"):
        assert jrb.from_dlpack([array])[0].unsafe_buffer_pointer() == array.ctypes.data
    else:
        with pytest.raises(ValueError, match=r"leaf '0'.*readonly.*copy=True"):
            jrb.from_dlpack([array])
    assert np.asarray(jrb.from_dlpack([array], copy=True)[0]).tolist() == [0] * 16


@pytest.mark.parametrize("sampler", [frb.Uniform(), frb.Slices(2)], ids=["uniform", "slices"])
def test_samples_cross_with_what_they_leave_out(sampler: Any) -> None:
    spec = frb.BufferSpec({"x": frb.Unbounded((4,)), "done": frb.Binary()}, 4, sampler)
    state = jrb.add(jrb.init(spec), {"x": np.ones((4, 4), np.float32), "done": np.zeros(4, bool)})
    _, sample = jrb.sample(state, jrb.key(0), 16)
    taken = trb.from_dlpack({"sample": sample})["sample"]
    assert type(taken) is type(sample)
    assert (taken.mask is None) == (sample.mask is None)
    assert taken.items["x"].tolist() == sample.items["x"].tolist()
    assert taken.indices.tolist() == sample.indices.tolist()
    assert trb.from_dlpack(sample._replace(indices=None)).indices is None
    with pytest.raises(TypeError, match="leaf 'indices': expected an array that has __dlpack__, got int"):
        trb.from_dlpack(sample._replace(indices=3))


def test_tracers_are_refused_by_torch() -> None:
    def inside(x: jax.Array) -> jax.Array:
        with pytest.raises((TypeError, ValueError), match=r"leaf 'x'.*Tracer"):
            trb.from_dlpack({"x": x})
        with pytest.raises((TypeError, ValueError), match=r"leaf 'x'.*traced"):
            trb.from_dlpack({"x": x}, copy=True)
        return x

    jax.jit(inside)(jnp.zeros(3))


@pytest.mark.gpu
@cuda
def test_another_device() -> None:
    given = torch.arange(32.0, device="cuda")
    if jax.default_backend() == "cpu":
        with pytest.raises(ValueError, match=r"leaf 'x' .*device cuda.*copy=True"):
            jrb.from_dlpack({"x": given})
        assert jrb.from_dlpack({"x": given}, copy=True)["x"].tolist() == list(range(32))
    else:
        assert address(jrb.from_dlpack({"x": given})["x"]) == given.data_ptr()
        state = trb.add(
            trb.init(frb.BufferSpec((frb.Unbounded((16,)),), 64), "cuda"), (torch.ones(3, 16, device="cuda"),)
        )
        assert address(jrb.from_dlpack(state).rows) == state.rows.data_ptr()


def test_a_state_with_64_bit_leaves_needs_x64() -> None:
    state = trb.init(frb.BufferSpec({"a": {"n": frb.Unbounded((), "int64")}}, 4))
    with pytest.raises(TypeError, match=r"leaf 'a/n': dtype int64 needs JAX's 64-bit mode.*jax_enable_x64"):
        jrb.from_dlpack({"state": state})


def test_a_consumed_or_donated_state_cannot_cross() -> None:
    state = trb.init(frb.BufferSpec({"x": frb.Unbounded((16,))}, 64))
    trb.own_(state)
    with pytest.raises(RuntimeError, match="consumed"):
        jrb.from_dlpack(state)
    state = jrb.init(frb.BufferSpec({"x": frb.Unbounded((16,))}, 64))
    for array in arrays(state):
        array.delete()
    with pytest.raises(RuntimeError, match="this state was consumed"):
        trb.from_dlpack(state)


# ---------------------------------------------------------------- states

BACKENDS = {"jax": jrb, "torch": trb}


def on(side: str, nest: Any) -> Any:
    """A nest of NumPy arrays on a side, bfloat16 too."""
    if isinstance(nest, dict):
        return {k: on(side, v) for k, v in nest.items()}
    if side == "jax":
        return jnp.asarray(nest)
    return backends._torch_array(nest)


def cross(side: str, state: Any) -> Any:
    """A state on a side, in the memory that it had."""
    taken = BACKENDS[side].from_dlpack(state)
    assert [address(a) for a in arrays(taken)] == [address(a) for a in arrays(state)]
    assert taken.spec == state.spec
    return taken


def add(side: str, state: Any, start: int, n: int, mask: Any = None, priorities: Any = None) -> Any:
    given = [None if x is None else on(side, np.asarray(x)) for x in (mask, priorities)]
    return BACKENDS[side].add(state, on(side, numbers(start, n)), *given)


def update(side: str, state: Any, handles: Any, priorities: Any, items: Any = None) -> Any:
    priorities = None if state.spec.plan.tree_shape is None else on(side, np.asarray(priorities, np.float32))
    items = None if items is None else on(side, items)
    return BACKENDS[side].update(state, on(side, np.asarray(handles, np.int32)), priorities, items)


def core_draw(side: str, state: Any, draws: Any, beta: Any) -> list[Any]:
    ops = importlib.import_module(f"{side}_backend.arrays.ops")
    _, leaves, drawn = functions.draw(ops, state, state.spec, draws, beta, 40)
    return [*leaves, *drawn[:3]]


jitted_core_draw = jax.jit(core_draw, static_argnums=0)  # eagerly JAX would compile a hundred small programs


def draw(side: str, state: Any) -> list[bytes]:
    """What the core draws by given draws: the backends' keys differ."""
    spec = state.spec
    draws = np.random.default_rng(1).integers(0, 2**31, spec.draw_shape(40), np.int64)
    call = jitted_core_draw if side == "jax" else core_draw
    return [as_bytes(x) for x in call(side, state, on(side, draws.astype(np.int32)), on(side, np.float32(0.6)))]


def history(state: Any, sides: Iterator[str], prioritized: bool) -> tuple[Any, list[Any]]:
    """Adds, masked adds, updates with bad priorities and stale handles, around the ring, each on the next side."""
    seen = []
    number = 0
    for k in range(10):
        side = next(sides)
        if type(state) is not type(BACKENDS[side].init(state.spec)):
            state = cross(side, state)
        n = (5, 40)[k % 2]  # few shapes, as JAX compiles for each
        mask = np.arange(n) % 3 != k % 3 if k % 2 else None
        priorities = np.array([2, np.nan, 0.5, 0, -1] * 8, np.float32)[:n] if prioritized and k % 3 == 1 else None
        state = add(side, state, number, n, mask, priorities)
        number = int(np.asarray(state.counters)[0])
        handles = np.array([number - 1, number - 2, number - 2, number - 30, number], np.int32)
        rewritten = numbers(5000 + 10 * k, 5) if k % 2 else {"obs": {"half": numbers(k, 5)["obs"]["half"]}}
        state = update(side, state, handles, [1, 2, 3, 4, np.inf], rewritten)
        seen.append((bits(state), draw(side, state)))
    return state, seen


def alternating(*sides: str) -> Iterator[str]:
    while True:
        yield from sides


@pytest.mark.parametrize("sampler", effort(SAMPLERS[1:2], SAMPLERS), ids=repr)
@pytest.mark.parametrize("start", ["jax", "torch"])
def test_a_state_goes_on_as_if_it_had_never_left(twins: str, start: str, sampler: Any) -> None:
    if twins != effort("kernels", twins):  # `test_histories` has states go on between the cores
        pytest.skip("a long search: make test-all")
    spec, prioritized = frb.BufferSpec(ITEM, 19, sampler), isinstance(sampler, frb.Prioritized)
    other = "torch" if start == "jax" else "jax"
    _, at_home = history(BACKENDS[start].init(spec), alternating(start), prioritized)
    _, each_step = history(BACKENDS[start].init(spec), alternating(start, other), prioritized)
    _, now_and_then = history(BACKENDS[start].init(spec), alternating(start, start, other, other, other), prioritized)
    for k in range(len(at_home)):
        assert each_step[k] == at_home[k], k
        assert now_and_then[k] == at_home[k], k


@pytest.mark.parametrize("sampler", SAMPLERS[:2], ids=repr)
def test_samples_are_those_of_the_side_it_is_on(sampler: Any) -> None:
    state = add("torch", trb.init(frb.BufferSpec(ITEM, 19, sampler)), 0, 30)
    round_trip = cross("torch", cross("jax", state))
    for one, two in zip(
        jax.tree.leaves(trb.sample(state, trb.key(3), 50)[1]._asdict()),
        jax.tree.leaves(trb.sample(round_trip, trb.key(3), 50)[1]._asdict()),
        strict=True,
    ):
        assert as_bytes(one) == as_bytes(two)
    on_jax = cross("jax", state)
    sample = jrb.sample(on_jax, jrb.key(3), 50)[1]
    np.testing.assert_array_equal(sample.items["id"], sample.indices)
    assert int(jrb.size(on_jax)) == 19
    assert bool(jrb.can_sample(on_jax, 19))


def test_nested_states_and_copies_of_states() -> None:
    spec = frb.BufferSpec(ITEM, 19, SAMPLERS[1])
    states = [add("jax", jrb.init(spec), 0, k) for k in (3, 30)]
    tree = {"states": states, "step": jnp.arange(16)}
    on_torch = trb.from_dlpack(tree)
    assert [bits(s) for s in on_torch["states"]] == [bits(s) for s in states]
    copied = trb.from_dlpack(tree, copy=True)["states"][1]
    assert bits(copied) == bits(states[1])
    assert {address(a) for a in arrays(copied)}.isdisjoint(address(a) for a in arrays(states[1]))
    copied = jrb.from_dlpack(on_torch["states"][1], copy=True)
    assert bits(copied) == bits(states[1])
    assert {address(a) for a in arrays(copied)}.isdisjoint(address(a) for a in arrays(states[1]))


def test_items_with_a_tensordict_spec() -> None:
    example = TensorDict({"x": torch.zeros(3), "n": {"y": torch.zeros(2, dtype=torch.int32)}}, [])
    batch = TensorDict({"x": torch.rand(5, 3), "n": {"y": torch.arange(10).int().reshape(5, 2)}}, [5])
    state = trb.add(trb.init(frb.BufferSpec(frb.specs.spec_of(example), 8)), batch)
    on_jax = cross("jax", state)
    got = jrb.items(on_jax)
    assert type(got) is dict
    assert type(got["n"]) is dict
    np.testing.assert_array_equal(got["n"]["y"][:5], batch["n", "y"].cpu())
    on_jax = jrb.add(on_jax, {"n": {"y": jnp.full((2, 2), 7)}, "x": jnp.ones((2, 3))})
    back = trb.get(cross("torch", on_jax), torch.tensor([4, 6], dtype=torch.int32))
    assert type(back) is TensorDict
    assert type(back["n"]) is TensorDict
    assert back.batch_size == (2,)
    assert back["n", "y"].tolist() == [[8, 9], [7, 7]]


@pytest.mark.parametrize(
    "item", [{}, {"nothing": frb.Unbounded((0,), "float32")}, {"wide": frb.Unbounded((1100,), "bool")}]
)
def test_states_without_rows(item: Any) -> None:
    def items(side: str) -> Any:
        return {k: on(side, np.ones((2, *v.shape), v.dtype)) for k, v in item.items()}

    for sampler in SAMPLERS[:2]:
        here = trb.add(trb.init(frb.BufferSpec(item, 5, sampler)), items("torch"), torch.ones(2, dtype=torch.bool))
        there = jrb.from_dlpack(here)
        there = jrb.add(there, items("jax"), jnp.ones(2, bool))
        back = trb.from_dlpack(there)
        wanted = trb.add(here, items("torch"), torch.ones(2, dtype=torch.bool))
        assert bits(back) == bits(wanted)
        assert int(trb.size(back)) == 4


# ---------------------------------------------------------------- writes


def donating(function: Any, *shared: Any) -> Any:
    """A function compiled by `jax.jit` that donates its first argument; of memory that torch has too a GPU refuses."""
    jitted = jax.jit(function, donate_argnums=0)
    if not gpu.ASKED:
        return jitted
    with pytest.raises(jax.errors.JaxRuntimeError, match="Donation requested for buffer with external reference"):
        jitted(*shared)
    return jrb.jit(function)


@pytest.mark.parametrize("sampler", SAMPLERS[:2], ids=repr)
def test_jax_writes_are_never_seen_by_torch(twins: str, sampler: Any) -> None:
    here = add("torch", trb.init(frb.BufferSpec(ITEM, 64, sampler)), 0, 70)
    before = bits(here)
    there = cross("jax", here)
    jitted = donating(jrb.add, there, on("jax", numbers(500, 30)))
    later = jitted(there, on("jax", numbers(500, 30)))
    for step in range(3):
        later = jitted(later, on("jax", numbers(600 + step, 30)))
    rewrite = jax.jit(jrb.update, donate_argnums=0)
    handles = on("jax", np.arange(130, 150, dtype=np.int32))
    priorities = None if sampler == frb.Uniform() else jnp.full(20, 9.0)
    later = rewrite(later, handles, priorities, on("jax", numbers(900, 20)))
    jax.block_until_ready(later)
    assert bits(here) == before
    # Torch goes on from what it has, and JAX's results are not disturbed by that either.
    after = bits(later)
    moved = add("torch", here, 800, 50)
    trb.add_(moved, on("torch", numbers(800, 50)))
    assert bits(here) == before
    assert bits(later) == after


@pytest.mark.parametrize("sampler", SAMPLERS[:2], ids=repr)
def test_torch_writes_are_never_seen_by_jax(twins: str, sampler: Any) -> None:
    there = add("jax", jrb.init(frb.BufferSpec(ITEM, 64, sampler)), 0, 70)
    before = bits(there)
    place = [address(a) for a in arrays(there)]
    here = cross("torch", there)
    branch = add("torch", here, 300, 9)
    state = trb.add_(copy.copy(here), on("torch", numbers(500, 30)))
    state = trb.update_(state, torch.arange(60, 100, dtype=torch.int32), None, on("torch", numbers(0, 40)))
    state = trb.add_(cross("torch", there), on("torch", numbers(700, 64)))
    assert bits(there) == before
    assert bits(here) == before
    # The copy is paid once: then torch writes in its own memory, which is not JAX's.
    assert address(state._version.memory.rows) not in place
    own = address(branch._version.memory.rows)
    branch = add("torch", branch, 400, 9)
    assert address(branch._version.memory.rows) == own
    # JAX goes on, by donation too, while torch still looks at the old memory.
    shared = bits(here)
    given = on("jax", numbers(900, 64))
    jax.block_until_ready(donating(jrb.add, there, given)(there, given))
    assert bits(here) == shared


def test_arrays_given_to_jax_never_change() -> None:
    state = add("torch", trb.init(frb.BufferSpec(ITEM, 64, SAMPLERS[1])), 0, 70)
    given = jrb.from_dlpack(trb.items(state), copy=True)
    rows = jrb.from_dlpack(state.rows)
    before = as_bytes(rows)
    assert address(rows) == address(state.rows)
    state = trb.add_(state, on("torch", numbers(500, 64)))
    assert as_bytes(rows) == before
    np.testing.assert_array_equal(given["id"], np.where(np.arange(64) < 6, np.arange(64) + 64, np.arange(64)))


def test_branches_on_both_sides() -> None:
    origin = add("torch", trb.init(frb.BufferSpec(ITEM, 30, SAMPLERS[1])), 0, 20)
    states = [("torch", origin, bits(origin))]
    for k in range(12):
        side, start, _ = states[(5 * k) % len(states)]
        target = ("jax", "torch")[k % 2]
        state = start if side == target else cross(target, start)
        state = add(target, state, 100 * k, 1 + k)
        states.append((target, state, bits(state)))
        for _, each, wanted in states:
            assert bits(each) == wanted


# ---------------------------------------------------------------- 64 bits


def test_states_with_64_bit_leaves() -> None:
    item = {"n": frb.Unbounded((), "int64"), "x": frb.Unbounded((2,), "float64"), "b": frb.Binary(())}
    spec = frb.BufferSpec(item, 5, SAMPLERS[1])
    n = np.array([2**62, -(2**62), 3, 4], np.int64)
    x = np.random.default_rng(0).random((4, 2))
    given = {"n": n, "x": x, "b": n > 0}
    with enable_x64(True):
        here = trb.add(trb.init(spec), on("torch", given))
        there = jrb.add(cross("jax", here), on("jax", given))
        back = cross("torch", there)
        assert bits(back) == bits(trb.add(here, on("torch", given)))
        got = jrb.items(there)
        assert got["n"].dtype == jnp.int64
        assert got["n"].tolist() == [n[1], n[2], n[3], n[3], n[0]]
        assert got["x"].tolist() == x[[1, 2, 3, 3, 0]].tolist()
        assert draw("torch", back) == draw("jax", there)
