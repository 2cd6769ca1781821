"""Sharded buffers on eight devices: run by `tests.programs.test_meshes` in a process that was told to have so many."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import pickle
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import functional_rb as frb
import jax_backend as rb
from functional_rb.core import counters
from functional_rb.ops import numpy_ops
from functional_rb.sharding.deal import by_shard, sizes_of_shards
from jax_backend import compat
from jax_backend.scale.state import ShardedState
from tests.support.effort import effort
from tests.support.training import assert_same_bits
from tests.support.versions import is_version
from tests.support.xla_options import AS_USERS, QUICKLY

# Five lanes are uneven on 2 and 3 shards, and on 8 three shards are empty.
LANES, LENGTH, ROWS, STEPS, BATCH = 5, 8, 2, 5, 24
ITEM = {
    "x": frb.Unbounded((2,)),
    "image": frb.Bounded(0, 255, (3,), "uint8"),
    "half": frb.Unbounded((), "bfloat16"),
    "reward": frb.Unbounded(()),
    "next": {"x": frb.Unbounded((2,)), "done": frb.Binary(())},
    "episode": frb.Unbounded((), "int32"),
}
SAMPLERS = {
    "uniform": frb.Uniform(),
    "uniform, with a limit": frb.Uniform(max_times_sampled=3),
    "prioritized": frb.Prioritized(),
    "prioritized, with a limit": frb.Prioritized(alpha=1.0, new_priority="ever", max_times_sampled=2),
    "prioritized, distinct": frb.Prioritized(replacement=False),
    "recency": frb.Recency(3),
    "without replacement": frb.WithoutReplacement(),
    "without replacement, in order": frb.WithoutReplacement(shuffle=False),
    "slices": frb.Slices(3),
    "slices, by windows": frb.Slices(3, weighting="window", strict_length=False, span=True, period=2),
    "slices, flat": frb.Slices(2, trajectory_key="episode", flat=True),
    "slices, prioritized": frb.PrioritizedSlices(2),
    "slices without replacement": frb.SlicesWithoutReplacement(2, strict_length=False),
    "groups": frb.Groups(2, "episode", "reward", whole=False),
}
N_STEP = frb.n_step(3, 0.5)
OTHERS: dict[str, dict[str, Any]] = {
    "n-step": {"sampler": frb.Prioritized(), "transforms": N_STEP},
    "n-step slices": {"sampler": frb.Slices(2), "transforms": N_STEP},
    "stopping when full": {"writer": frb.StopWhenFull()},
    "n-step of added": {"sampler": frb.Prioritized(), "transforms": frb.n_step(3, 0.5, at="add")},
    "n-step of added, groups": {
        "sampler": frb.Groups(2, "episode", "reward", whole=False, interleaved=True),
        "transforms": frb.n_step(4, 0.5, at="add"),
    },
    "compact": {"sampler": frb.Prioritized(), "compact": frb.Compact(spare=0), "transforms": N_STEP},
    "compact slices": {"sampler": frb.Slices(2), "compact": frb.Compact(spare=0)},
    "compact, without replacement": {"sampler": frb.WithoutReplacement(), "compact": frb.Compact(spare=0)},
    "queue": {"sampler": frb.Queue(2), "lanes": 4, "capacity": 4 * LENGTH},
    "queue of one lane": {"sampler": frb.Queue(), "lanes": 1},
    "in order": {"sampler": frb.InOrder(2, newest_first=True), "lanes": 1},
    "reservoir": {"sampler": frb.Prioritized(), "writer": frb.Reservoir(), "capacity": 19},
    "reservoir, without replacement": {"sampler": frb.WithoutReplacement(), "writer": frb.Reservoir(), "capacity": 5},
    "best": {"writer": frb.MaxValue("x"), "capacity": 20},
    "best, with ties": {"sampler": frb.Prioritized(), "writer": frb.MaxValue("episode"), "capacity": 19},
}
SPECS = {name: frb.BufferSpec(ITEM, LANES * LENGTH, sampler, lanes=LANES) for name, sampler in SAMPLERS.items()} | {
    name: frb.BufferSpec(**{"item": ITEM, "capacity": LANES * LENGTH, "lanes": LANES, **fields})
    for name, fields in OTHERS.items()
}
# On each number of shards; the others on one.
ALL = ("prioritized",)
# In `make test`, beside those; `make test-all` has the others too. Slices, prioritized and of n steps, are dealt to
# devices in tests of their own below.
SOME = ("prioritized, with a limit", "n-step of added, groups", "compact slices", "queue", "reservoir", "best")


class Log(NamedTuple):
    """What happens to a buffer, leaves [STEPS, ...]."""

    items: Any
    masks: Any
    # Priorities of what is added.
    given: Any
    priorities: Any
    keys: Any


@functools.cache
def log(name: str) -> Log:
    rng, spec = np.random.default_rng(7), SPECS[name]
    lead = (STEPS, ROWS, spec.lanes)
    done = rng.random(lead) < 0.2
    x = rng.standard_normal((*lead, 2)).astype(np.float32)
    x[0, 0, 0] = [-0.0, np.nan]
    x[1, 0, 1] = np.nan
    following = np.roll(x.reshape(-1, spec.lanes, 2), -1, 0).reshape(x.shape)  # as compact storage shares it
    following = np.where(done[..., None], x + 1, following)
    items = {
        "x": x,
        "image": rng.integers(0, 256, (*lead, 3), np.uint8),
        "half": jnp.asarray(rng.standard_normal(lead), jnp.bfloat16),
        "reward": rng.standard_normal(lead).astype(np.float32),
        "next": {"x": following, "done": done},
        "episode": np.cumsum(rng.random(lead) < 0.3, 0, np.int32) * 8,
    }
    masks = rng.random(lead) < 0.8
    drawn = int(np.prod(spec.sampler.leading_shape(BATCH)))
    priorities = np.exp(rng.standard_normal((STEPS, drawn)) * 3).astype(np.float32)
    priorities[0, :2] = np.nan, -1
    keys = np.stack([np.asarray(jax.random.key_data(rb.key(k))) for k in range(STEPS)])
    given = rng.random(lead).astype(np.float32)
    return Log(items, masks, given, priorities, keys)


def takes_priorities(spec: frb.BufferSpec) -> bool:
    """Whether `add` may be given any."""
    return spec.sampler.has_priorities and not any(transform.delays for transform in spec.transforms)


def step(state: frb.State, now: Log, draw: Any = "global", axis_name: str | None = None) -> Any:
    spec = state.spec
    key = now.keys if spec.writer.words else None
    state = rb.add(state, now.items, now.masks, now.given if takes_priorities(spec) else None, key=key)
    state, sample = rb.sample(state, now.keys, BATCH, draw=draw, axis_name=axis_name)
    handles = sample.indices.reshape(-1)
    priorities = now.priorities if spec.sampler.has_priorities else None
    name = "x" if spec.compact is None else "image"  # frames are not rewritten
    new = {name: (sample.items[name] * 2).reshape(-1, *ITEM[name].shape)}
    return rb.update(state, handles, priorities, new), sample


def run(state: frb.State, log: Log) -> Any:
    return lax.scan(step, state, log)


@functools.cache
def alone(name: str) -> Any:
    """What becomes of the buffer on one device, and the samples."""
    return jax.device_get(jax.jit(run, compiler_options=QUICKLY)(rb.init(SPECS[name]), log(name)))


def sharding_of(shards: int, kind: AxisType = AxisType.Auto) -> NamedSharding:
    mesh = jax.make_mesh((shards,), ("d",), axis_types=(kind,), devices=jax.devices()[:shards])
    return NamedSharding(mesh, P("d"))


def assert_parts_have_what_the_index_says(state: ShardedState) -> None:
    """Each lane, or part, as many items, which `rb.size` of a part tells and checkpoints ask for."""
    dealing = state.dealing
    ends = counters.read(dealing.index.plan, np.asarray(state.counters)).ends
    vectors = np.asarray(state.part.counters).reshape(dealing.shards, -1)
    found = [counters.read(dealing.part.plan, vector).ends.sizes.tolist() for vector in vectors]
    if dealing.by_slots:
        assert [size for (size,) in found] == sizes_of_shards(numpy_ops, dealing, ends).tolist()
    else:
        assert found == by_shard(numpy_ops, dealing, ends.sizes).tolist()


def check(after: Any, name: str) -> None:
    state, samples = after
    expected, drawn = alone(name)
    assert_same_bits(samples, drawn)
    assert_same_bits(rb.shard(state, None), expected)
    if isinstance(state, ShardedState):
        assert_parts_have_what_the_index_says(state)
        assert not np.asarray(state.part.rows)[state.spec.capacity :].any(), "lanes that are not there are not written"


def jitted(function: Any) -> Any:
    return rb.jit(function, compiler_options=QUICKLY)


CASES = [
    (name, shards)
    for k, name in enumerate(SPECS)
    if name in (*ALL, *effort(SOME, [*SPECS]))
    for shards in (effort((3,), (2, 3, 8)) if name in effort(ALL, [*SPECS]) else ((2, 3, 8)[k % 3],))
]


@pytest.mark.parametrize(("name", "shards"), CASES)
def test_the_same_log_gives_the_same_state_and_samples(name: str, shards: int) -> None:
    """On any number of shards, under plain jit, donated, in a scan."""
    state = rb.init(SPECS[name], sharding=sharding_of(shards))
    assert isinstance(state, ShardedState)
    check(jitted(run)(state, log(name)), name)


@pytest.mark.parametrize("name", effort(["uniform"], ["uniform", "prioritized"]))
def test_without_kernels_as_on_accelerators(name: str) -> None:
    """The mask of the uniform buffer goes alone, one byte a row, packed by primitives."""
    with frb.kernels(False):
        state = rb.init(SPECS[name], sharding=sharding_of(3))
        check(jitted(run)(state, log(name)), name)


@pytest.mark.skipif(not compat.IS_EXPLICIT, reason="explicit axes are for JAX 0.7.2 on")
def test_explicit_axes() -> None:
    state = rb.init(SPECS["prioritized"], sharding=sharding_of(8, AxisType.Explicit))
    after = jitted(run)(state, log("prioritized"))
    check(after, "prioritized")
    assert after[0].part.rows.sharding.spec[0] == "d"
    assert after[0].tree.sharding.is_fully_replicated
    assert after[1].indices.sharding.spec == P(None, "d")
    uneven = rb.init(SPECS["prioritized"], sharding=sharding_of(3, AxisType.Explicit))
    assert rb.items(uneven)["x"].shape == (LANES * LENGTH, 2), "which three devices do not divide"


# --- inside of the user's own shard_map ------------------------------------------------------------------------------


def mapped(shards: int, state: Any, draw: Any = "global") -> Any:
    """The same program, in which each device collects from the lanes of its own."""

    def body(state: frb.State, log: Log) -> Any:
        return lax.scan(functools.partial(step, draw=draw, axis_name="d"), state, log)

    lanes = P(None, None, "d")
    specs = rb.partition_specs(state)
    of_log = Log(lanes, lanes, lanes, P(None, "d"), P())
    checked = is_version(jax, "0.7")  # JAX 0.6 checks its own `searchsorted` wrongly
    mesh = sharding_of(shards).mesh
    return jax.shard_map(body, mesh=mesh, in_specs=(specs, of_log), out_specs=(specs, P(None, "d")), check_vma=checked)


def padded(log: Log, shards: int) -> Log:
    """With lanes that the buffer does not have, so that each device gets as many."""
    missing = -LANES % shards

    def more(x: Any) -> Any:
        return np.pad(np.asarray(x), [(0, missing if k == 2 else 0) for k in range(x.ndim)], mode="edge")

    return jax.tree.map(more, log._replace(priorities=None, keys=None))._replace(
        priorities=log.priorities, keys=log.keys
    )


@pytest.mark.parametrize(("name", "shards"), [("prioritized", 8), ("n-step slices", 3)])
def test_in_the_users_shard_map(name: str, shards: int) -> None:
    state = rb.init(SPECS[name], sharding=sharding_of(shards))
    check(jitted(mapped(shards, state))(state, padded(log(name), shards)), name)


def test_a_writer_that_draws_needs_one_key() -> None:
    if not is_version(jax, "0.7"):
        pytest.skip("JAX 0.6 checks its own searchsorted wrongly, so that nothing tells where keys differ")
    state = rb.init(SPECS["reservoir"], sharding=sharding_of(5))
    item = jax.tree.map(lambda x: x[0], log("reservoir").items)

    def body(state: frb.State, keys: Any, item: Any) -> Any:
        return rb.add(state, item, key=keys[0])

    specs = rb.partition_specs(state)
    given = (specs, P("d"), P(None, "d"))
    program = jax.shard_map(body, mesh=sharding_of(5).mesh, in_specs=given, out_specs=specs)
    with pytest.raises(ValueError, match=r"add: expected the same key on each device, as Reservoir\(\) chooses slots"):
        jax.eval_shape(program, state, rb.split(rb.key(0), 5), item)


def test_a_draw_of_all_needs_one_key() -> None:
    if not is_version(jax, "0.7"):
        pytest.skip("JAX 0.6 checks its own searchsorted wrongly, so that nothing tells where keys differ")
    state = rb.init(SPECS["prioritized"], sharding=sharding_of(2))

    def body(state: frb.State, keys: Any) -> Any:
        return rb.sample(state, keys[0], BATCH, axis_name="d")[1].indices

    mesh = sharding_of(2).mesh
    program = jax.shard_map(body, mesh=mesh, in_specs=(rb.partition_specs(state), P("d")), out_specs=P("d"))
    with pytest.raises(ValueError, match=r"the same key on each device.* give one key to all, or draw='local'"):
        jax.eval_shape(program, state, rb.split(rb.key(0), 2))


# --- local draws -----------------------------------------------------------------------------------------------------


def filled(name: str, shards: int, turns: int = 1) -> Any:
    state = rb.init(SPECS[name], sharding=sharding_of(shards))
    for turn in range(turns):
        now = jax.tree.map(lambda x, turn=turn: x[turn], log(name))
        key = rb.key(turn) if state.spec.writer.words else None
        state = rb.add(state, now.items, now.masks, now.given if takes_priorities(state.spec) else None, key=key)
    return state


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
    assert_same_bits(rb.get(whole, drawn[there]), jax.tree.map(lambda x: x[there], sample.items))
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


# --- what is compiled ------------------------------------------------------------------------------------------------

COLLECTIVE = r"= (\S+) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
# Slots of a lane, so that no array of a program has a shard's size by chance.
LARGE = 1250


def numbers(shape: str) -> int:
    """How many there are in an array, as XLA shows its shape."""
    return int(np.prod([int(n) for n in re.findall(r"\d+", shape.split("[")[1].split("]")[0])] or [1]))


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("prioritized", "global"),
        ("prioritized", "local"),
        ("reservoir", "global"),
        *effort([], [("best", "local")]),
        *effort([], [(name, "global") for name in ("compact", "n-step of added", "queue")]),
    ],
)
def test_only_what_is_drawn_goes_between_devices_and_nothing_is_copied(name: str, draw: str) -> None:
    """Where a part tells how many items its lanes got and have, these numbers go too, fewer than those of a batch.

    Where a writer chooses slots of all shards, what is added goes to all of them.
    """
    spec = dataclasses.replace(SPECS[name], lanes=16, capacity=16 * LARGE)
    batch = 2 * BATCH if name == "queue" else BATCH  # of each lane as many
    sharding = sharding_of(8)
    state = rb.init(spec, sharding=sharding)
    row = jax.tree.map(lambda x: jnp.zeros((16, *x.shape), x.dtype), jax.eval_shape(lambda: rb.zeros(spec.item)))
    row = jax.device_put(row, sharding)

    def program(state: frb.State, keys: Any, row: Any) -> Any:
        def one(state: frb.State, key: Any) -> Any:
            state = rb.add(state, row, key=key if spec.writer.words else None)
            state, sample = rb.sample(state, key, batch, draw=draw)  # type: ignore[arg-type]  # one of both
            return state, sample.items["reward"].sum()

        return lax.scan(one, state, keys)

    compiled = rb.jit(program).lower(state, rb.split(rb.key(0), 3), row).compile(AS_USERS)
    text = compiled.as_text()
    found = [(kind, numbers(shape)) for shape, kind in re.findall(COLLECTIVE, text)]
    words = spec.item_bytes // 4 + 8  # and what transforms tell
    rows_moved = [(kind, n) for kind, n in found if n > 1]
    if state.dealing.by_slots:
        added = [n for kind, n in rows_moved if kind != "reduce-scatter"]
        assert len(added) == 1, found
        assert added[0] <= 16 * words
        rows_moved = [(kind, n) for kind, n in rows_moved if kind == "reduce-scatter"]
    if draw == "global":
        assert [kind for kind, _ in rows_moved if kind == "reduce-scatter"] == ["reduce-scatter"], found
        numbers_told = [n for kind, n in rows_moved if kind != "reduce-scatter"]
        assert len(numbers_told) == int(state.dealing.part_tells), found
        assert sum(numbers_told) <= 2 * 16
        assert max(n for _, n in rows_moved) <= np.prod(spec.sampler.leading_shape(batch // 8)) * words
    else:
        assert not rows_moved, found
    large = [shape for shape in re.findall(r"= (\S+) copy\(", text) if numbers(shape) >= 2 * LARGE]
    assert not large
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * 2 * LARGE * state.part.rows.shape[1] / 2


# --- all other functions, at once -------------------------------------------------------------------------------------


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

    assert_same_bits(told(dealt), told(plain))
    plain, expected = rb.sample(plain, rb.key(1), 6)
    dealt, got = rb.sample_(dealt, rb.key(1), 6)
    assert_same_bits(got, expected)
    new = np.ones(6, np.float32)
    plain = rb.update(plain, expected.indices[:, 0], new)
    dealt = rb.update_(dealt, got.indices[:, 0], new)
    dealt_before = dealt
    dealt = rb.update(dealt, got.indices[:, 0], new * 2)
    plain = rb.update(plain, expected.indices[:, 0], new * 2)
    assert_same_bits(told(dealt), told(plain))
    assert (np.asarray(rb.priorities(dealt_before, got.indices[:, 0]))[np.asarray(got.mask)[:, 0]] == 1).all()
    for _ in range(LENGTH // ROWS):  # all that has been drawn goes
        plain, dealt = (rb.add(x, now.items) for x in (plain, dealt))
    plain, dealt = (rb.update(x, expected.indices[:, 0], new, {"reward": new}) for x in (plain, dealt))
    assert_same_bits(told(dealt), told(plain))
    assert int(rb.counts(plain).stale) > 0
    assert_same_bits(rb.shard(rb.shard(plain, sharding_of(8)), None), plain)
    assert_same_bits(rb.shard(dealt, None), plain)
    sizes = jax.checkpoint(lambda w: (w, rb.size(rb.clear_(dealt))))  # a program, which runs again with the same arrays
    assert [int(sizes(1.0)[1]), int(sizes(1.0)[1])] == [0, 0]
    assert_same_bits(told(rb.clear_(dealt)), told(rb.clear(plain)))


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


def test_checkpoints_are_of_the_whole_and_are_dealt_anew(tmp_path: Any) -> None:
    state = filled("n-step", 8)
    frb.save(state, tmp_path / "run")
    loaded = rb.shard(frb.load(tmp_path / "run", rb), sharding_of(3))
    assert_same_bits(rb.shard(loaded, None), rb.shard(state, None))
    assert_same_bits(rb.sample(loaded, rb.key(0), BATCH)[1], rb.sample(state, rb.key(0), BATCH)[1])
    now = jax.tree.map(lambda x: x[1], log("n-step"))
    loaded, state = (rb.add(x, now.items, now.masks) for x in (loaded, state))
    assert_same_bits(rb.shard(loaded, None), rb.shard(state, None))


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
    _, got = rb.sample_(state, rb.key(1), BATCH)
    assert_same_bits(got, rb.sample(plain, rb.key(1), BATCH)[1])
    assert frb.save(frb.load(tmp_path / "dealt", rb, sharding=sharding_of(3)), tmp_path / "dealt").generation == 2
    with pytest.raises(ValueError, match="device and sharding were given"):
        frb.load(tmp_path / "dealt", rb, device=jax.devices()[0], sharding=sharding_of(3))


# --- what is refused -------------------------------------------------------------------------------------------------


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


def test_the_page_runs_on_all_of_them() -> None:
    page = Path(__file__).parents[2] / "docs" / "scale.md"
    namespace: dict[str, Any] = {"rb": rb}
    blocks = re.findall(r"^```python jax\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == page.read_text().count("```python jax")
    for source in blocks:
        exec(compile(source, str(page), "exec", dont_inherit=True), namespace)


def test_the_example_runs(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optax")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import cartpole_spec
    import mesh_dqn

    config = dataclasses.replace(cartpole_spec.QUICK, eval_every=20, capacity=100)
    result = mesh_dqn.main(config, tmp_path / "curve.png")
    assert [row.iteration for row in result.rows] == [20, 40]
    assert np.isfinite([(row.loss, row.greedy_return) for row in result.rows]).all()
    assert result.stored == 96, "12 of each of 8 lanes"
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
