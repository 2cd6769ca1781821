"""States cross between JAX and torch in the same memory; neither side ever sees the other's writes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
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
from tests.agreement.bridged import address, arrays, as_bytes
from tests.support import backends, gpu
from tests.support.effort import effort
from tests.support.versions import enable_x64

ITEM = {
    "id": frb.Unbounded((), "int32"),
    "image": frb.Unbounded((1100,), "uint8"),
    "obs": {"pos": frb.Unbounded((3,)), "half": frb.Unbounded((2,), "bfloat16")},
    "done": frb.Binary(()),
}
SAMPLERS = [frb.Uniform(), frb.Prioritized(alpha=0.7, beta=0.5), frb.Prioritized(1.0, 1.0, "ever")]


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


def bits(state: Any) -> list[bytes]:
    return [as_bytes(array) for array in arrays(state)]


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


def told(side: str, state: Any) -> list[bytes]:
    """Of the newest handles: which are live, with which chance each is drawn, its priority and its item."""
    rb = BACKENDS[side]
    handles = on(side, np.maximum(int(rb.counts(state).cursor) - np.arange(1, 41, dtype=np.int32), 0))
    found = [rb.is_live(state, handles), rb.probabilities(state, handles), *jax.tree.leaves(rb.get(state, handles))]
    if state.spec.sampler.has_priorities:
        found.append(rb.priorities(state, handles))
    return [as_bytes(x) for x in found]


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
        seen.append((bits(state), told(side, state)))
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
        assert told("torch", back) == told("jax", there)
