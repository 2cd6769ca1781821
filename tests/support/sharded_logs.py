"""What happens to a buffer that is dealt to devices, and to the same on one device."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import functional_rb as frb
import jax_backend as rb
from functional_rb.core import counters
from functional_rb.ops import numpy_ops
from functional_rb.sharding.deal import by_shard, sizes_of_shards
from jax_backend.scale.state import ShardedState
from tests.support.training import assert_same_bits
from tests.support.xla_options import QUICKLY

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
    "staleness": frb.Staleness("episode", max_staleness=12),
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
        "half": rng.standard_normal(lead).astype(jnp.bfloat16),
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
    version = 4 * now.keys[-1].astype(np.int32) if isinstance(spec.sampler, frb.Staleness) else None
    return rb.update(state, handles, priorities, new, version), sample


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


def filled(name: str, shards: int, turns: int = 1) -> Any:
    state = rb.init(SPECS[name], sharding=sharding_of(shards))
    for turn in range(turns):
        now = jax.tree.map(lambda x, turn=turn: x[turn], log(name))
        key = rb.key(turn) if state.spec.writer.words else None
        state = rb.add(state, now.items, now.masks, now.given if takes_priorities(state.spec) else None, key=key)
    return state
