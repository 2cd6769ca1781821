"""Draws of each device from its own part of a buffer: run as `on_eight_devices` is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import functional_rb as frb
import jax_backend as rb
from tests.support.effort import effort
from tests.support.sharded_logs import (
    BATCH,
    LANES,
    LENGTH,
    ROWS,
    SPECS,
    assert_parts_have_what_the_index_says,
    filled,
    log,
    sharding_of,
)
from tests.support.training import assert_same_bits
from tests.support.versions import is_version


@pytest.mark.parametrize("name", effort(["prioritized", "uniform"], ["prioritized", "uniform", "recency", "slices"]))
def test_local_draws_are_of_each_devices_own(name: str) -> None:
    shards = 8
    state = filled(name, shards, turns=3 if name == "slices" else 1)
    _, sample = rb.sample(state, rb.key(3), BATCH, draw="local")
    whole = rb.shard(state, None)
    first = np.asarray(sample.indices).reshape(BATCH, -1)[:, 0]
    lanes = np.where(first >= 0, first % state.spec.capacity // LENGTH, -1)
    each = BATCH // shards
    own = np.asarray(rb.newest(whole, LENGTH))
    if name == "slices":  # a lane may have steps and none of them begin a slice
        chances = np.asarray(rb.probabilities(whole, jnp.asarray(own.reshape(-1)))).reshape(own.shape)
        own = np.where(chances > 0, own, -1)
    there = np.array([(own[:, lane] >= 0).any() if lane < LANES else False for lane in range(shards)])
    assert (lanes == np.repeat(np.where(there, np.arange(shards), -1), each)).all()
    real = first >= 0
    assert ((np.asarray(sample.weights) > 0) == real).all()
    stored = rb.get(whole, jnp.asarray(np.asarray(sample.indices).reshape(-1)))
    got = np.asarray(sample.items["reward"]).reshape(-1)
    mask = np.asarray(sample.indices).reshape(-1) >= 0
    assert (got[mask] == np.asarray(stored["reward"])[mask]).all()
    if name not in ("prioritized", "uniform"):
        return
    # The stated law: the share within the shard, over the number of shards.
    handles = np.asarray(rb.newest(whole, LENGTH)).T  # [lanes, LENGTH]
    shares = np.asarray(rb.probabilities(whole, jnp.asarray(handles.reshape(-1)))).reshape(handles.shape)
    with np.errstate(invalid="ignore"):
        law = shares / shares.sum(1, keepdims=True) / shards
    known = {int(h): float(q) for h, q in zip(handles.ravel(), law.ravel(), strict=True) if h >= 0 and q > 0}
    expected = np.array([known[h] for h in first[real]])
    np.testing.assert_allclose(np.asarray(sample.probabilities)[real], expected, rtol=1e-5)
    beta = 0.4 if name == "prioritized" else 0.0
    weights = (expected / min(known.values())) ** -beta
    np.testing.assert_allclose(np.asarray(sample.weights)[real], weights, rtol=1e-5)


@pytest.mark.parametrize("name", effort(["best, with ties"], ["reservoir", "best, with ties"]))
def test_where_slots_are_dealt_each_function_does_what_it_does_on_one_device(name: str) -> None:
    """And a local draw is among a device's own slots, of which those of five of eight are empty."""
    shards, state, whole = 8, filled(name, 8), filled(name, 1)
    assert type(whole) is frb.State
    assert_same_bits(rb.shard(state, None), whole)
    assert_same_bits(rb.shard(rb.shard(whole, sharding_of(3)), None), whole)
    handles = np.arange(2 * whole.spec.capacity, dtype=np.int32)

    def told(state: frb.State) -> Any:
        functions = (rb.get, rb.is_live, rb.probabilities)
        return rb.size(state), rb.counts(state), rb.items(state), [function(state, handles) for function in functions]

    assert_same_bits(told(state), told(whole))
    assert_same_bits(told(rb.clear_(filled(name, 8))), told(rb.clear(whole)))
    _, sample = rb.sample(state, rb.key(3), BATCH, beta=1.0, draw="local")
    drawn = np.asarray(sample.indices)
    each, size = state.dealing.slots_each, int(rb.size(whole))
    there = np.repeat(np.arange(shards) * each < size, BATCH // shards)
    assert ((drawn >= 0) == there).all()
    assert (drawn[there] % whole.spec.capacity // each == np.repeat(np.arange(shards), BATCH // shards)[there]).all()
    assert (np.asarray(sample.weights > 0) == there).all()
    assert_same_bits(rb.get(whole, drawn[there]), jax.tree.map(lambda x: np.asarray(x)[there], sample.items))
    shares = np.asarray(rb.probabilities(whole, handles)) * np.asarray(rb.is_live(whole, handles))
    totals = np.bincount(handles % whole.spec.capacity // each, shares)
    law = shares[drawn[there]] / totals[drawn[there] % whole.spec.capacity // each] / shards
    np.testing.assert_allclose(np.asarray(sample.probabilities)[there], law, rtol=1e-5)


def test_local_draws_in_the_users_shard_map_are_the_same() -> None:
    state, key = filled("prioritized", 8), rb.key(5)
    specs = rb.partition_specs(state)

    def body(state: frb.State, key: Any) -> Any:
        return rb.sample(state, key, BATCH, axis_name="d", draw="local")

    checked = is_version(jax, "0.7")
    program = jax.shard_map(
        body, mesh=sharding_of(8).mesh, in_specs=(specs, P()), out_specs=(specs, P("d")), check_vma=checked
    )
    _, got = jax.jit(program)(state, key)
    _, expected = rb.sample(state, key, BATCH, draw="local")
    assert_same_bits(got, expected)


def test_each_shard_draws_by_bits_of_its_own() -> None:
    state = rb.init(SPECS["uniform"], sharding=sharding_of(8))
    now = jax.tree.map(lambda x: x[0], log("uniform"))
    for _ in range(LENGTH // ROWS):
        state = rb.add(state, now.items)
    handles = np.asarray(rb.sample(state, rb.key(0), 8 * BATCH, draw="local")[1].indices).reshape(8, BATCH)
    assert (handles[LANES:] == -1).all()
    assert len(set(map(tuple, handles[:LANES] % LENGTH))) == LANES


def test_weights_of_a_uniform_local_draw_correct_for_uneven_shards() -> None:
    state = filled("uniform", 3)
    _, sample = rb.sample(state, rb.key(0), BATCH, beta=1.0, draw="local")
    q, w = np.asarray(sample.probabilities), np.asarray(sample.weights)
    assert len(set(q.tolist())) > 1
    np.testing.assert_allclose(w * q, np.full_like(q, (w * q)[0]), rtol=1e-5)
    assert w.max() <= 1


def test_each_device_takes_the_windows_of_its_own_lanes_out_of_a_queue() -> None:
    shards, batch = 2, 8  # two windows of each lane
    state, whole = filled("queue", shards, 3), filled("queue", 1, 3)
    for turn in range(2):  # of which the second finds fewer in some lanes
        state, got = rb.sample(state, rb.key(0), batch, draw="local")
        whole, expected = rb.sample(whole, rb.key(0), batch, draw="local")
        of_shards = jax.tree.map(
            lambda x: np.moveaxis(np.asarray(x).reshape(-1, shards, 4 // shards, *x.shape[1:]), 1, 0).reshape(x.shape),
            expected,
        )
        real = np.asarray(got.indices) >= 0
        assert real.any(), turn
        assert_same_bits(got.indices, of_shards.indices)
        assert_same_bits(got.weights, of_shards.weights)
        assert_parts_have_what_the_index_says(state)
        assert (np.asarray(got.items["reward"])[real] == of_shards.items["reward"][real]).all()
    assert_same_bits(rb.shard(state, None), whole)
