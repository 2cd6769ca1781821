"""Sharded buffers on eight devices: run by `tests.scale.test_sharded` in a process that was told to have so many."""

from __future__ import annotations

import functools
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
from jax_backend.sharded_state import ShardedState
from tests.support.effort import effort
from tests.support.training import assert_same_bits
from tests.support.xla_options import QUICKLY

LANES, LENGTH, ROWS, STEPS, BATCH = 5, 8, 2, 5, 24
"""Five lanes are uneven on 2 and 3 shards, and on 8 three shards are empty."""
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
GOALS = frb.her
OTHERS: dict[str, dict[str, Any]] = {
    "n-step": {"sampler": frb.Prioritized(), "transforms": N_STEP},
    "n-step slices": {"sampler": frb.Slices(2), "transforms": N_STEP},
    "stopping when full": {"writer": frb.StopWhenFull()},
}
SPECS = {name: frb.BufferSpec(ITEM, LANES * LENGTH, sampler, lanes=LANES) for name, sampler in SAMPLERS.items()} | {
    name: frb.BufferSpec(ITEM, LANES * LENGTH, lanes=LANES, **fields) for name, fields in OTHERS.items()
}
ALL = ("prioritized", "slices, prioritized", "n-step")
"""Those that are tried on each number of shards; the others on one."""


class Log(NamedTuple):
    """What happens to a buffer, leaves [STEPS, ...]."""

    items: Any
    masks: Any
    given: Any
    """Priorities of what is added."""
    priorities: Any
    keys: Any


@functools.cache
def log(name: str) -> Log:
    rng, spec = np.random.default_rng(7), SPECS[name]
    lead = (STEPS, ROWS, spec.lanes)
    x = rng.standard_normal((*lead, 2)).astype(np.float32)
    x[0, 0, 0] = [-0.0, np.nan]
    items = {
        "x": x,
        "image": rng.integers(0, 256, (*lead, 3), np.uint8),
        "half": jnp.asarray(rng.standard_normal(lead), jnp.bfloat16),
        "reward": rng.standard_normal(lead).astype(np.float32),
        "next": {"x": x + 1, "done": rng.random(lead) < 0.2},
        "episode": np.cumsum(rng.random(lead) < 0.3, 0, np.int32) * 8,
    }
    masks = rng.random(lead) < 0.8
    drawn = int(np.prod(spec.sampler.leading_shape(BATCH)))
    priorities = np.exp(rng.standard_normal((STEPS, drawn)) * 3).astype(np.float32)
    priorities[0, :2] = np.nan, -1
    keys = np.stack([np.asarray(jax.random.key_data(rb.key(k))) for k in range(STEPS)])
    given = rng.random(lead).astype(np.float32)
    return Log(items, masks, given, priorities, keys)


def step(state: frb.State, now: Log, draw: Any = "global") -> Any:
    spec = state.spec
    state = rb.add(state, now.items, now.masks, now.given if spec.sampler.has_priorities else None)
    state, sample = rb.sample(state, now.keys, BATCH, draw=draw)
    handles = sample.indices.reshape(-1)
    priorities = now.priorities if spec.sampler.has_priorities else None
    new = {"x": sample.items["x"].reshape(-1, 2) * 2}
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


def check(after: Any, name: str) -> None:
    state, samples = after
    expected, drawn = alone(name)
    assert_same_bits(samples, drawn)
    assert_same_bits(rb.unshard(state), expected)


def jitted(function: Any) -> Any:
    return rb.jit(function, compiler_options=QUICKLY)


CASES = [
    (name, shards)
    for k, name in enumerate(SPECS)
    for shards in ((1, 2, 3, 8) if name in effort(ALL, [*SPECS]) else ((2, 3, 8)[k % 3],))
]


@pytest.mark.parametrize(("name", "shards"), CASES)
def test_the_same_log_gives_the_same_state_and_samples(name: str, shards: int) -> None:
    """On any number of shards, under plain jit, donated, in a scan."""
    state = rb.init(SPECS[name], sharding=sharding_of(shards))
    assert isinstance(state, ShardedState) == (shards > 1)
    check(jitted(run)(state, log(name)), name)
