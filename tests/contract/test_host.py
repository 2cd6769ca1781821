"""Buffers in the host's memory on JAX: the same values as on a device, bit for bit, called outside of jit."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend as rb
import torch_backend
from tests.support import backends, lives

STORAGES = [frb.Host(), frb.Memmap()]
ITEM = {
    "id": frb.Unbounded((), "int32"),
    "half": frb.Unbounded((3,), "bfloat16"),
    "image": frb.Unbounded((600,), "bfloat16"),
    "done": frb.Binary(()),
}


def on(spec: frb.BufferSpec, storage: Any) -> frb.BufferSpec:
    return dataclasses.replace(spec, storage=storage)


def items(first: int, n: int = 4) -> dict[str, np.ndarray]:
    """Items all of whose leaves tell their number."""
    ids = np.arange(first, first + n, dtype=np.int32)
    half = np.repeat(ids[:, None], 3, 1).astype(jnp.bfloat16)
    return {"id": ids, "half": half, "image": np.repeat(half[:, :1], 600, 1), "done": ids % 3 == 0}


# ---------------------------------------------------------------- the same bits


GOAL = frb.Unbounded((2,))
HINDSIGHT = {"next": {"achieved_goal": GOAL, "reward": frb.Unbounded(())}, "desired_goal": GOAL, "done": frb.Binary(())}


def distance(achieved: Any, goal: Any) -> Any:
    """Written for JAX's arrays alone."""
    return jnp.zeros(achieved.shape[:-1]).at[:].add(-jnp.abs(achieved - goal).sum(-1))


CASES = {
    "uniform": frb.BufferSpec(ITEM, 9),
    "prioritized": frb.BufferSpec(ITEM, 9, frb.Prioritized()),
    "hindsight": frb.BufferSpec(HINDSIGHT, 12, transforms=frb.her("future", reward=distance)),
    "reservoir": frb.BufferSpec({"id": ITEM["id"], "done": ITEM["done"]}, 9, writer=frb.Reservoir()),
}


def given_to(spec: frb.BufferSpec, first: int) -> Any:
    if "id" in spec.item:
        made = items(first, 6)
        return {name: made[name] for name in spec.item}
    goal = np.arange(12, dtype=np.float32).reshape(6, 2) + first
    done = np.arange(6) == 3
    return {"next": {"achieved_goal": goal, "reward": goal[:, 0]}, "desired_goal": -goal, "done": done}


def life(spec: frb.BufferSpec, add: Any, sample: Any, update: Any) -> list[Any]:
    """A few steps, and all that they give."""
    state, seen = rb.init(spec), []
    for k in range(3):
        mask = jnp.arange(6) % 5 != k
        state = add(state, given_to(spec, 6 * k), mask, None, rb.key(k))
        state, drawn = sample(state, rb.key(10 + k))
        handles = drawn.indices
        if spec.sampler.has_priorities:
            state = update(state, handles, jnp.float32([k, np.nan, 2, 3, 5, 8]))
        counters = [
            rb.size(state),
            rb.counts(state).stale,
            rb.counts(state).rejected,
            rb.counts(state).epochs_done,
            rb.can_sample(state, 2),
        ]
        seen.append([drawn, rb.get(state, handles), rb.is_live(state, handles), counters, rb.items(state)])
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(seen))
    return seen


@pytest.mark.parametrize("name", CASES)
def test_a_key_gives_what_it_gives_on_a_device(name: str) -> None:
    spec = CASES[name]
    sample = jax.jit(lambda state, key: rb.sample(state, key, 6))
    expected = life(spec, jax.jit(rb.add), sample, jax.jit(rb.update))
    eager = rb.add, lambda state, key: rb.sample(state, key, 6), rb.update
    for kernels, storage in ((True, frb.Host()), (False, frb.Host()), (True, frb.Memmap())):
        with frb.kernels(kernels):
            found = life(on(spec, storage), *eager)
        with backends.make("jax") as backend:
            assert lives.bits(backend, found) == lives.bits(backend, expected)
        assert jax.tree.structure(found) == jax.tree.structure(expected)


# ---------------------------------------------------------------- values


@pytest.fixture(params=STORAGES, ids=lambda storage: type(storage).__name__)
def filled(request: pytest.FixtureRequest) -> Any:
    """Twelve items in nine slots."""
    state = rb.init(frb.BufferSpec(ITEM, 9, frb.Prioritized(), storage=request.param))
    return rb.add(rb.add(state, items(0, 6)), items(6, 6))


def content(state: Any) -> list[Any]:
    """The bits of all that can be read."""
    with backends.make("jax") as backend:
        return lives.bits(backend, [rb.items(state), rb.size(state), rb.get(state, jnp.arange(12, dtype=jnp.int32))])


def test_what_is_returned_never_changes(filled: Any) -> None:
    """JAX may have NumPy's memory for its own, of large arrays (`shipping.sent`): then nobody else may write to it."""
    item = {"id": frb.Unbounded((), "int32"), "image": frb.Unbounded((2**14,), "uint8")}
    state = rb.init(frb.BufferSpec(item, 9, frb.Prioritized(), storage=filled.spec.storage))
    rows = [{"id": np.int32([k] * 4), "image": np.full((4, 2**14), k, np.uint8)} for k in range(8)]
    state = rb.add(rb.add(state, rows[0]), rows[1])
    _, drawn = rb.sample(state, rb.key(0), 20)
    seen = [drawn, rb.items(state), rb.get(state, jnp.arange(9, dtype=jnp.int32))]
    before = [np.array(x) for x in jax.tree.leaves(seen)]
    for row in rows[2:]:
        state = rb.add(state, row)
    for now, then in zip(jax.tree.leaves(seen), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_writing_goes_on_in_place() -> None:
    state = rb.init(frb.BufferSpec(ITEM, 9, storage=frb.Host()))
    memory = state._version.memory
    for k in range(5):
        state = rb.add(state, items(4 * k))
        assert state._version.memory is memory
        assert len(memory.history) == 1  # the state before this one, which is gone


def test_states_go_from_device_to_host_between_libraries() -> None:
    spec = frb.BufferSpec(ITEM, 9, frb.Prioritized(), storage=frb.Host())
    here = rb.add(rb.init(spec), items(0, 6))
    there = torch_backend.from_dlpack(here)
    back = rb.from_dlpack(there)
    assert back.spec.storage == frb.Host()
    assert there.rows.data_ptr() == back.rows.ctypes.data
    assert content(back) == content(here)
    copied = rb.from_dlpack(there, copy=True)
    assert there.rows.data_ptr() != copied.rows.ctypes.data
    assert content(copied) == content(rb.from_dlpack({"state": here})["state"]) == content(here)
    again = rb.add(back, items(6))
    other = torch_backend.add(there, {k: torch_backend.from_dlpack(jnp.asarray(x)) for k, x in items(6).items()})
    assert torch_backend.items(other)["id"].tolist() == np.asarray(rb.items(again)["id"]).tolist()


def test_a_pytree_of_arrays(filled: Any) -> None:
    leaves, outline = jax.tree.flatten(filled)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(filled)]
    assert paths == [".rows", ".wide_0", ".tree", ".counters"]
    assert outline == jax.tree.structure(rb.add(filled, items(0)))
    assert content(jax.tree.unflatten(outline, leaves)) == content(filled)
    shapes = jax.tree.map(jnp.shape, filled)
    assert shapes.counters == (6,)


def test_where_samples_go(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, places = jax.devices()[0], []
    put = jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda x, device=None: [places.append(device), put(x, device)][1])
    for device in (cpu, "cpu", "cpu:0"):
        state = rb.init(frb.BufferSpec(ITEM, 9, storage=frb.Host()), device=device)
        state = copy.deepcopy(rb.add(state, items(0)))
        rb.sample(rb.sample(state, rb.key(0), 2)[0], rb.key(0), 2)
        assert rb.size(state) == 4
    assert places == [cpu] * 9
    by_name = rb.init(frb.BufferSpec(ITEM, 9, storage=frb.Device("cpu:0")))
    assert by_name.rows.devices() == {cpu}
    with pytest.raises(ValueError, match=r"device: expected one of JAX's devices, \['cpu:0'.*\], got 'cpu:99'"):
        rb.init(frb.BufferSpec(ITEM, 9, storage=frb.Host()), device="cpu:99")


# ---------------------------------------------------------------- errors


OUTSIDE = r"lies in the memory of the host \(BufferSpec.storage\).* outside of them, or use storage=frb.Device\(\)"
TRACED = {
    "add": lambda state: jax.jit(rb.add)(state, items(0)),
    "add, of the state alone": lambda state: jax.jit(lambda s: rb.add(s, items(0)))(state),
    "add, closed over": lambda state: jax.jit(lambda x: rb.add(state, x))(items(0)),
    "add, of nothing traced": lambda state: jax.jit(lambda: rb.size(rb.add(state, items(0))))(),
    "add_, of nothing traced": lambda state: jax.jit(lambda: rb.size(rb.add_(state, items(0))))(),
    "clear_, of nothing traced": lambda state: jax.eval_shape(lambda: rb.size(rb.clear_(state))),
    "a traced mask": lambda state: jax.jit(lambda mask: rb.add(state, items(0), mask))(np.ones(4, bool)),
    "sample": lambda state: jax.jit(rb.sample, static_argnums=2)(state, rb.key(0), 2),
    "sample, of the key alone": lambda state: jax.jit(lambda key: rb.sample(state, key, 2)[1])(rb.key(0)),
    "sample, closed over": lambda state: jax.jit(functools.partial(rb.sample, state, rb.key(0), 2))(),
    "sample_, closed over": lambda state: jax.jit(functools.partial(rb.sample_, state, rb.key(0), 2))(),
    "sample, beta": lambda state: jax.jit(lambda beta: rb.sample(state, rb.key(0), 2, beta)[1])(0.5),
    "vmap": lambda state: jax.vmap(lambda key: rb.sample(state, key, 2)[1])(rb.split(rb.key(0), 3)),
    "update": lambda state: jax.jit(rb.update)(state, np.arange(3, dtype=np.int32), np.ones(3, np.float32)),
    "size": lambda state: jax.jit(rb.size)(state),
    "scan": lambda state: jax.lax.scan(
        lambda s, x: (rb.add(s, x), None), state, jax.tree.map(lambda x: x[None], items(0))
    ),
}


@pytest.mark.parametrize("how", TRACED)
def test_tracing_is_refused(filled: Any, how: str) -> None:
    before = content(filled)
    with pytest.raises(TypeError, match=OUTSIDE):
        TRACED[how](filled)
    assert content(filled) == before


def test_what_is_refused() -> None:
    spec = frb.BufferSpec({"id": frb.Unbounded((), "int32")}, 4, storage=frb.Host())
    state = rb.init(spec)
    with pytest.raises(ValueError, match="the buffer is empty"):
        rb.sample(state, rb.key(0), 2)
    with pytest.raises(TypeError, match="leaf 'id': expected dtype int32, got float32"):
        rb.add(state, {"id": np.zeros(2, np.float32)})
    with pytest.raises(TypeError, match="leaf 'id': expected a JAX or NumPy array, got a torch tensor"):
        rb.add(state, {"id": torch.zeros(2, dtype=torch.int32)})
    with pytest.raises(TypeError, match="mask: expected a JAX or NumPy array, got a torch tensor"):
        rb.add(state, {"id": np.zeros(2, np.int32)}, mask=torch.ones(2, dtype=torch.bool))
    with pytest.raises(TypeError, match="indices: expected dtype int32, got uint32"):
        rb.get(state, np.arange(3, dtype=np.uint32))
    with pytest.raises(TypeError, match="sample: expected a key, got the number 7"):
        rb.sample(rb.add(state, {"id": 1}), 7, 2)
    with pytest.raises(TypeError, match="expected a state of torch_backend, got one of JAX"):
        torch_backend.size(state)
    with pytest.raises(TypeError, match="leaf 'x': dtype float64 needs JAX's 64-bit mode"):
        rb.init(frb.BufferSpec({"x": frb.Unbounded((), "float64")}, 4, storage=frb.Host()))
    spec = frb.BufferSpec({"id": frb.Unbounded((), "int32")}, 4, frb.Queue(), frb.StopWhenFull(), storage=frb.Host())
    state = rb.add(rb.init(spec), {"id": np.arange(3, dtype=np.int32)})
    with pytest.raises(ValueError, match="the buffer is full"):
        rb.add(state, {"id": np.arange(3, dtype=np.int32)})
    assert int(rb.size(state)) == 3


def test_what_lies_outside_of_its_spec() -> None:
    state = rb.init(frb.BufferSpec({"x": frb.Bounded(-1, 1, ())}, 4, storage=frb.Host()))
    with pytest.raises(ValueError, match="leaf 'x': row 1 lies outside"):
        rb.add(state, {"x": np.float32([0, 2])}, validate=True)
    state = rb.add(state, {"x": np.float32([0, 2])}, mask=np.array([True, False]), validate=True)
    assert int(rb.size(state)) == 1


def test_a_function_that_fails_takes_nothing_with_it() -> None:
    def fails(achieved: Any, goal: Any) -> Any:
        raise RuntimeError("no reward")

    sampler = frb.WithoutReplacement()
    spec = frb.BufferSpec(HINDSIGHT, 12, sampler, transforms=frb.her("final", k=4, reward=fails), storage=frb.Host())
    state = rb.add(rb.init(spec), given_to(spec, 0))
    before, memory = lives.leaves(copy.deepcopy(state)), state._version.memory
    with pytest.raises(RuntimeError, match="no reward"):
        rb.sample(state, rb.key(0), 3)
    assert state._version.memory is memory  # taken back, so that nothing has to be copied
    for now, then in zip(lives.leaves(state), before, strict=True):
        np.testing.assert_array_equal(now, then)
