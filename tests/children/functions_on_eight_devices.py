"""All other functions of sharded buffers, and what is refused: run as `on_eight_devices` is."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import functional_rb as frb
import jax_backend as rb
from jax_backend.scale.state import ShardedState
from tests.support.effort import effort
from tests.support.sharded_logs import BATCH, ITEM, LENGTH, ROWS, SPECS, filled, jitted, log, sharding_of
from tests.support.training import assert_same_bits


def test_each_function_does_what_it_does_on_one_device() -> None:
    shards, spec = 3, SPECS["slices, prioritized"]
    plain, dealt = rb.init(spec), rb.init(spec, sharding=sharding_of(shards))
    history = log("slices, prioritized")
    for k in range(2):
        now = jax.tree.map(lambda x, k=k: np.asarray(x[k]), history._replace(keys=None))
        turned = jax.tree.map(lambda x: x.swapaxes(0, 1), (now.items, now.masks, now.given))
        plain = rb.add(plain, now.items, now.masks, now.given)
        dealt = rb.add_(dealt, *turned, time_major=False) if k else rb.add(dealt, now.items, now.masks, now.given)
    one = jax.tree.map(lambda x: x[0], now.items)
    plain, dealt = rb.add(plain, one), rb.add(dealt, one)
    handles = np.asarray(rb.newest(plain, 3)).reshape(-1)

    def told(state: frb.State) -> Any:
        return (
            rb.size(state),
            rb.counts(state),
            rb.can_sample(state, 4),
            rb.newest(state, 3),
            rb.get(state, handles),
            rb.items(state),
            rb.is_live(state, handles),
            rb.priorities(state, handles),
            rb.probabilities(state, handles),
        )

    of_plain = jitted(told)  # one program, as these functions by themselves are not what is tested
    assert_same_bits(told(dealt), of_plain(plain))
    plain, expected = rb.sample(plain, rb.key(1), 6)
    dealt, got = rb.sample_(dealt, rb.key(1), 6)
    assert_same_bits(got, expected)
    new = np.ones(6, np.float32)
    plain = rb.update(plain, expected.indices[:, 0], new)
    dealt = rb.update_(dealt, got.indices[:, 0], new)
    dealt_before = dealt
    dealt = rb.update(dealt, got.indices[:, 0], new * 2)
    plain = rb.update(plain, expected.indices[:, 0], new * 2)
    assert_same_bits(told(dealt), of_plain(plain))
    assert (np.asarray(rb.priorities(dealt_before, got.indices[:, 0]))[np.asarray(got.mask)[:, 0]] == 1).all()
    for _ in range(LENGTH // ROWS):  # all that has been drawn goes
        plain, dealt = (rb.add(x, now.items) for x in (plain, dealt))
    plain, dealt = (rb.update(x, expected.indices[:, 0], new, {"reward": new}) for x in (plain, dealt))
    assert_same_bits(told(dealt), of_plain(plain))
    assert int(rb.counts(plain).stale) > 0
    assert_same_bits(rb.shard(rb.shard(plain, sharding_of(8)), None), plain)
    assert_same_bits(rb.shard(dealt, None), plain)
    assert_same_bits(told(rb.clear_(dealt)), of_plain(rb.clear(plain)))


def donates(function: Callable[[], Any]) -> bool:
    """Whether a program takes the memory of arrays from outside, which `jax.checkpoint` runs it with again."""
    return any(any(step.params.get("donated_invars", ())) for step in jax.make_jaxpr(function)().eqns)


def test_a_program_that_runs_again_leaves_a_state_from_outside() -> None:
    state = filled("prioritized", 8)
    assert donates(lambda: jax.jit(lambda x: x + 1, donate_argnums=0)(state.counters))
    assert not donates(lambda: rb.clear_(state))


def test_functions_of_items_and_invalid_ones() -> None:
    double = frb.map_items(lambda items: {**items, "reward": items["reward"] * 2})
    spec = dataclasses.replace(SPECS["uniform"], transforms=double)
    now = jax.tree.map(lambda x: x[0], log("uniform"))
    found = []
    for state in (rb.init(spec), rb.init(spec, sharding=sharding_of(2))):
        state = jax.jit(functools.partial(rb.add, validate=True))(state, now.items)
        found.append((rb.sample(state, rb.key(0), BATCH)[1], rb.counts(state)))
    assert_same_bits(*found)
    assert found[0][1].invalid == 1, "a NaN"
    with pytest.raises(ValueError, match="leaf 'x'"):
        rb.add(state, now.items, validate=True)


def test_on_one_device_it_is_an_ordinary_buffer() -> None:
    sharding = sharding_of(1)
    state = rb.init(SPECS["prioritized"], sharding=sharding)
    assert type(state) is frb.State

    def body(state: frb.State, key: Any) -> Any:
        state = rb.add(state, now.items)
        return rb.sample(state, key, BATCH, axis_name="d", draw="local")[1]

    now = jax.tree.map(lambda x: x[0], log("prioritized"))
    specs = rb.partition_specs(state)
    program = jax.shard_map(body, mesh=sharding.mesh, in_specs=(specs, P()), out_specs=P("d"), check_vma=False)
    expected = rb.sample(rb.add(rb.init(state.spec), now.items), rb.key(0), BATCH)[1]
    assert_same_bits(jax.jit(program)(state, rb.key(0)), expected)


@pytest.mark.parametrize("name", effort(["n-step slices"], [*SPECS]))
def test_a_checkpoint_is_dealt_to_any_number_of_devices(name: str, tmp_path: Path) -> None:
    dealt = filled(name, 3, turns=3)  # as slices need some steps
    plain = rb.shard(dealt, None)
    assert plain.rows.devices() == {dealt.sharding.mesh.devices.flat[0]}
    info = frb.save(dealt, tmp_path / "dealt")
    assert (info.items, len(os.listdir(tmp_path / "dealt" / "shards"))) == (int(rb.size(plain)), 3)
    frb.save(plain, tmp_path / "whole")
    for place in ("dealt", "whole"):
        assert_same_bits(frb.load(tmp_path / place, rb), plain)
        for shards in (1, 2, 3, 8):
            state = frb.load(tmp_path / place, rb, sharding=sharding_of(shards))
            assert isinstance(state, ShardedState) == (shards > 1)
            assert_same_bits(rb.shard(state, None), plain)
    now = jax.tree.map(lambda x: x[1], log(name)._replace(keys=None))
    key = rb.key(2) if plain.spec.writer.words else None
    state, plain = (rb.add(x, now.items, now.masks, key=key) for x in (state, plain))
    assert_same_bits(rb.shard(state, None), plain)
    _, got = rb.sample_(state, rb.key(1), BATCH)
    assert_same_bits(got, rb.sample(plain, rb.key(1), BATCH)[1])
    assert frb.save(frb.load(tmp_path / "dealt", rb, sharding=sharding_of(3)), tmp_path / "dealt").generation == 2
    with pytest.raises(ValueError, match="device and sharding were given"):
        frb.load(tmp_path / "dealt", rb, device=jax.devices()[0], sharding=sharding_of(3))


def test_datasets_and_epochs() -> None:
    now = jax.tree.map(lambda x: x[0], log("without replacement"))
    spec = dataclasses.replace(SPECS["without replacement"], writer=frb.Immutable())
    plain, dealt = (rb.init(spec, items=now.items, **given) for given in ({}, {"sharding": sharding_of(2)}))
    expected, got = (list(frb.iterate(rb, state, rb.key(0), 4, epochs=1)) for state in (plain, dealt))
    assert len(got) == 3
    assert_same_bits(got, expected)
    with pytest.raises(ValueError, match="Immutable"):
        rb.add(dealt, now.items)


def test_what_does_not_fit_is_refused() -> None:
    spec, sharding = SPECS["prioritized"], sharding_of(8)
    state = filled("prioritized", 8)
    now = jax.tree.map(lambda x: x[0], log("prioritized"))
    refused = pytest.raises
    with refused(TypeError, match="expected a jax.sharding.NamedSharding such as"):
        rb.init(spec, sharding=sharding.mesh)
    with refused(ValueError, match="names the axis of the mesh"):
        rb.init(spec, sharding=NamedSharding(sharding.mesh, P()))
    with refused(ValueError, match="device and sharding were given"):
        rb.init(spec, jax.devices()[0], sharding=sharding)
    with refused(ValueError, match="give BufferSpec"):
        rb.init(frb.BufferSpec(ITEM, 8), sharding=sharding)
    with refused(ValueError, match="multiple of the 8 shards.* got 12; 8 or 16 would do"):
        rb.sample(state, rb.key(0), 12)
    with refused(ValueError, match="expected draw as one of"):
        rb.sample(state, rb.key(0), 8, draw="all")  # type: ignore[arg-type]  # refused
    with refused(ValueError, match="axis_name='d', along which"):
        rb.sample(state, rb.key(0), 8, axis_name="e")
    with refused(ValueError, match="whose draws are independent"):
        rb.sample(rb.init(SPECS["without replacement"], sharding=sharding), rb.key(0), 8, draw="local")
    with refused(ValueError, match="a number of lanes that the shards divide.* got 4 lanes on 8 shards"):
        rb.sample(rb.init(SPECS["queue"], sharding=sharding), rb.key(0), 8, draw="local")
    with refused(ValueError, match="leaf 'reward'"):
        rb.add(state, now.items | {"reward": now.items["reward"][:, :2]})
    with refused(ValueError, match="mask"):
        rb.add(state, now.items, now.masks[:1])
    with refused(TypeError, match="leaf 'episode'"):
        rb.add(state, now.items | {"episode": now.items["reward"]})
    with refused(ValueError, match="none of the|hold|stored|empty"):
        rb.sample(rb.init(spec, sharding=sharding), rb.key(0), 8)
    with refused(TypeError, match="shard: expected a state on one device, got tuple"):
        rb.shard((state, None), None)  # type: ignore[arg-type]  # refused
    with refused(ValueError, match=r"rb.shard\(rb.with_spec"):
        rb.with_spec(state, dataclasses.replace(spec, capacity=80))
    for function in (frb.Mixture, rb.from_dlpack, rb.state_dict):
        with refused(ValueError, match=r"over several; give rb.shard\(state, None\)"):
            function([state] if function is frb.Mixture else state)  # type: ignore[operator]  # of any type
    with refused(TypeError, match=r"cannot be pickled; send rb.shard\(state, None\)"):
        pickle.dumps(state)
    for copied in (copy.copy(state), copy.deepcopy(state)):
        assert_same_bits(rb.shard(copied, None), rb.shard(state, None))
    with refused(RuntimeError, match="consumed"):
        rb.add_(state, now.items)
        rb.size(state)
