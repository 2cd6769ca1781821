"""Programs of users who have JAX check theirs: leaked tracers, promoted ranks, transfers that nobody asked for."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functional_rb as frb
import jax_backend as rb
from tests.support import training
from tests.support.members import MEMBERS, USUAL, Member


@pytest.mark.few(4, by="kernels")
@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "core"])
@pytest.mark.parametrize("member", USUAL.values(), ids=USUAL)
def test_programs_are_traced_under_all_checks(member: Member, kernels: bool) -> None:
    begun, given = training.begin(member.spec), training.given(member.spec, 1)
    with frb.kernels(kernels), jax.checking_leaks(), jax.numpy_rank_promotion("raise"):
        state, _ = jax.eval_shape(training.train, begun, given)
    assert state.spec == member.spec


@pytest.mark.parametrize("name", ["prioritized", "slices, prioritized"])
def test_the_core_promotes_ranks_where_a_kernel_is_lowered_to_it(name: str) -> None:
    spec = MEMBERS[name].spec
    traced = jax.jit(training.train).trace(training.begin(spec), training.given(spec, 1))
    with jax.numpy_rank_promotion("raise"):
        lowered = traced.lower(lowering_platforms=("cuda",))
    assert "functional_rb" not in lowered.as_text()


def test_functions_of_the_users_go_by_the_users_rule() -> None:
    def reward(achieved: Any, goal: Any) -> Any:
        return (achieved - goal[0]).sum(-1)  # [n, 2] and [2]

    leaves = {"position": frb.Unbounded((2,)), "goal": frb.Unbounded((2,))}
    item = {"reward": frb.Unbounded(()), "done": frb.Binary(()), **leaves}
    transform = frb.her("future", 4, reward=reward, achieved_key="position", goal_keys=["goal"])
    spec = frb.BufferSpec(item, 8, transforms=(transform,), batch_size=4)

    def draw(key: jax.Array) -> Any:
        return rb.sample(rb.init(spec), key)[1].items

    jax.eval_shape(draw, rb.key(0))
    with jax.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="rank"):
        jax.eval_shape(draw, rb.key(0))


# --- transfers ------------------------------------------------------------------------------------------------------

ITEM = {"x": frb.Bounded(-1.0, 1.0, (2,)), "note": frb.Unbounded(())}
HANDLES = np.array([0, 2, 1], np.int32)
PRIORITIES = np.array([0.5, 2.0, 1.0], np.float32)
MAP = frb.HashMapSpec(frb.Unbounded((), "int32"), capacity=8)
KEYS = np.array([4, 7, 4], np.int32)


def batch() -> dict[str, Any]:
    return {"x": np.zeros((3, 2), np.float32), "note": np.arange(3, dtype=np.float32)}


def one_pass(state: frb.State, passing: frb.State, key: Any) -> Any:
    return [list(frb.iterate(rb, passing, key, 2, epochs=1, prefetch=ahead)) for ahead in (0, 2)]


def one_device() -> tuple[frb.BufferSpec, jax.sharding.NamedSharding]:
    """A buffer with lanes, and a mesh for it."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    return frb.BufferSpec(ITEM, 8, lanes=2), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))


Call = Callable[[frb.State, frb.State, Any], Any]
CALLS: dict[str, Call] = {
    "add": lambda s, _, key: (
        rb.add(s, batch(), np.array([True, False, True]), PRIORITIES, key, validate=True),
        rb.add(rb.init(MAP), KEYS),
    ),
    "add_": lambda s, _, key: (
        rb.add_(rb.init(s.spec), {"x": np.ones(2, np.float32), "note": 0.5}),
        rb.add_(rb.init(MAP), KEYS),
    ),
    "can_sample": lambda s, _, key: rb.can_sample(s, 3),
    "clear": lambda s, _, key: rb.clear(s),
    "clear_": lambda s, _, key: rb.clear_(rb.init(s.spec)),
    "contains": lambda s, _, key: rb.contains(ITEM, batch()),
    "counts": lambda s, passing, key: (rb.counts(s), rb.counts(passing)),
    "decode": lambda s, _, key: rb.decode(frb.specs.OneHot(3), np.array([False, True, False])),
    "encode": lambda s, _, key: rb.encode(frb.specs.OneHot(3), 1),
    "enumerate": lambda s, _, key: rb.enumerate(frb.Categorical(3)),
    "from_dlpack": lambda s, _, key: rb.from_dlpack(np.zeros(16, np.float32), copy=True),
    "get": lambda s, _, key: rb.get(s, HANDLES),
    "init": lambda s, _, key: rb.init(s.spec, items=batch()),
    "is_live": lambda s, _, key: rb.is_live(s, HANDLES),
    "items": lambda s, _, key: rb.items(s),
    "jit": lambda s, _, key: rb.jit(rb.add)(rb.init(s.spec), jax.device_put(batch())),
    "key": lambda s, _, key: (rb.key(7), rb.key(2**63)),
    "load_state_dict": lambda s, _, key: rb.load_state_dict(s, rb.state_dict(s)),
    "lookup": lambda s, _, key: rb.lookup(rb.add(rb.init(MAP), KEYS)[0], KEYS),
    "moments": lambda s, _, key: rb.moments(PRIORITIES).merge(rb.moments(PRIORITIES)),
    "newest": lambda s, _, key: rb.newest(s, 2),
    "priorities": lambda s, _, key: rb.priorities(s, HANDLES),
    "probabilities": lambda s, _, key: rb.probabilities(s, HANDLES),
    "project": lambda s, _, key: rb.project(ITEM, batch()),
    "rand": lambda s, _, key: rb.rand(ITEM, key, 2),
    "sample": lambda s, _, key: (rb.sample(s, key, 2), rb.sample(s, key, 2, beta=np.float32(0.3))),
    "sample_": lambda s, _, key: rb.sample_(rb.init(s.spec, items=batch()), key, 2, beta=1),
    "shard": lambda s, _, key: (
        rb.shard(rb.init(one_device()[0]), one_device()[1]),
        rb.shard(rb.init(one_device()[0], sharding=one_device()[1]), None),
    ),
    "size": lambda s, _, key: rb.size(s),
    "split": lambda s, _, key: (rb.split(key, 3), rb.split(np.array([0, 1], np.uint32))),
    "state_dict": lambda s, _, key: rb.state_dict(s),
    "update": lambda s, _, key: rb.update(s, HANDLES, PRIORITIES, {"note": PRIORITIES}),
    "update_": lambda s, _, key: rb.update_(rb.init(s.spec, items=batch()), HANDLES, PRIORITIES),
    "visits": lambda s, _, key: rb.visits(rb.add(rb.init(MAP), KEYS)[0], KEYS),
    "with_spec": lambda s, _, key: rb.with_spec(
        s, dataclasses.replace(s.spec, capacity=9, sampler=frb.Slices(2, end_keys=()))
    ),
    "zeros": lambda s, _, key: rb.zeros(ITEM, 2),
}


# Functions that give descriptions, and no arrays.
DESCRIBING = {"map_spec", "partition_specs", "sample_spec"}


def states(storage: Any) -> tuple[frb.State, frb.State]:
    """A prioritized buffer, and one that goes through its items; for all the functions."""
    made = (frb.BufferSpec(ITEM, 8, x, storage=storage) for x in (frb.Prioritized(), frb.WithoutReplacement()))
    first, second = (rb.add(rb.init(spec), batch()) for spec in made)
    return first, second


def test_all_functions_are_called() -> None:
    functions = {name for name in rb.__all__ if callable(getattr(rb, name))}
    assert set(CALLS) == functions - DESCRIBING


@pytest.mark.parametrize("storage", [frb.Device(), frb.Host()], ids=["device", "host"])
def test_no_function_transfers_what_it_was_not_asked_for(storage: Any) -> None:
    """What the library is given may be NumPy's, and numbers of its own are not the user's concern."""
    state, passing = states(storage)
    for name, call in {**CALLS, "iterate": one_pass}.items():
        if isinstance(storage, frb.Host) and name == "jit":
            continue  # such a buffer is out of its reach
        expected = call(state, passing, rb.key(1))
        with jax.transfer_guard("disallow"):
            got = call(state, passing, rb.key(1))
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            assert np.asarray(shown(one)).tobytes() == np.asarray(shown(other)).tobytes(), name


def shown(leaf: Any) -> Any:
    """The numbers of a key."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def test_the_guard_holds_for_what_the_user_does() -> None:
    state, passing = states(frb.Device())
    with jax.transfer_guard("disallow"):
        rb.size(state)
        for _ in frb.iterate(rb, passing, rb.key(0), 2, epochs=1, prefetch=0):
            with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device"):
                jnp.zeros(3)
        with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device"):
            jnp.zeros(3)


@pytest.mark.parametrize("guard", [jax.transfer_guard, jax.transfer_guard_host_to_device])
def test_transfers_are_explicit(guard: Callable[[str], contextlib.AbstractContextManager[None]]) -> None:
    """Whoever forbids also these is told of each."""
    state, _ = states(frb.Device())
    with guard("disallow_explicit"), pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device"):
        rb.add(state, batch())
    with guard("disallow"):
        size = rb.size(rb.add(state, batch()))
    assert int(size) == 6
