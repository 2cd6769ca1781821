"""The usual training loop, for any sampler and writer of the table in `tests.support.members`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import functional_rb as frb
import jax_backend as rb
from tests.support.members import BATCH
from tests.support.xla_options import QUICKLY

STEPS = 5
# How many items there must be before anything is learned.
ENOUGH = 4


class Given(NamedTuple):
    """What chance gives one seed, drawn beforehand, as XLA takes long to compile that; leaves [STEPS, ...].

    Attributes:
        numbers: int32, of the step.
        keys: two for each step.
        masks: bool, in the shape of the items' rows.
        priorities: float32, one for each item of a sample.
    """

    numbers: Any
    keys: Any
    masks: Any
    priorities: Any


def rows(spec: frb.BufferSpec) -> tuple[int, ...]:
    """The shape of a batch that is added."""
    return (BATCH,) if spec.lanes is None else (BATCH // spec.lanes, spec.lanes)


def given(spec: frb.BufferSpec, seed: int) -> Given:
    """For a training from a seed; in the first step only some of the seeds get enough."""
    rng = np.random.default_rng(seed)
    masks = rng.random((STEPS, *rows(spec))) < 0.6
    masks[0] = seed % 2
    keys = np.stack([np.asarray(jax.random.key_data(rb.key(1000 * seed + k))) for k in range(2 * STEPS)])
    drawn = math.prod(spec.sampler.leading_shape(BATCH))
    priorities = rng.random((STEPS, drawn), np.float32)
    return Given(np.arange(STEPS, dtype=np.int32), keys.reshape(STEPS, 2, -1), masks, priorities)


def items(spec: frb.BufferSpec, start: Any = 0) -> dict[str, jax.Array]:
    """A batch whose leaves tell the items' numbers."""
    number = jnp.arange(BATCH, dtype=jnp.int32) + start
    leaves = {
        "id": number,
        "x": jnp.stack([number, -number], 1).astype(jnp.float32),
        "done": number % 7 == 3,
        "episode": number // 5,
        "note": jnp.zeros(BATCH, jnp.float32),
    }
    return {name: leaf.reshape(*rows(spec), *leaf.shape[1:]) for name, leaf in leaves.items()}


def begin(spec: frb.BufferSpec) -> frb.State:
    """Empty, unless it is a dataset."""
    return rb.init(spec, items=items(spec)) if isinstance(spec.writer, frb.Immutable) else rb.init(spec)


def collect(state: frb.State, now: Given) -> frb.State:
    """Add some rows of a batch."""
    if isinstance(state.spec.writer, frb.Immutable):
        return state
    return rb.add(state, items(state.spec, BATCH * now.numbers), now.masks, key=now.keys[0])


def learn(state: frb.State, now: Given) -> tuple[frb.State, Any]:
    """Sample, set priorities, and rewrite a leaf."""
    spec = state.spec
    state, sample = rb.sample(state, now.keys[1], BATCH)
    handles = sample.indices.reshape(-1)
    priorities = now.priorities if spec.sampler.has_priorities else None
    notes = None if isinstance(spec.writer, frb.Immutable) else {"note": sample.items["x"].reshape(-1, 2)[:, 0]}
    return rb.update(state, handles, priorities, notes), sample


def step(state: frb.State, now: Given) -> tuple[frb.State, Any]:
    """Collect, and learn once there is enough: a branch that is taken or not."""
    state = collect(state, now)
    nothing = jax.eval_shape(learn, state, now)[1]

    def skip(state: frb.State, now: Given) -> tuple[frb.State, Any]:
        zero = now.numbers * 0  # of this device, inside of shard_map: both branches have to be
        return state, jax.tree.map(lambda x: jnp.broadcast_to(zero.astype(x.dtype), x.shape), nothing)

    return lax.cond(rb.can_sample(state, ENOUGH), learn, skip, state, now)


def train(state: frb.State, given: Given) -> Any:
    """A whole training: the last state, and what was drawn at each step."""
    return lax.scan(step, state, given)


def jit(function: Callable[..., Any]) -> Any:
    """Compiled, quickly rather than well: of XLA's own time a quarter, and the tests are many."""
    return jax.jit(function, compiler_options=QUICKLY)


def assert_same_bits(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


SAMPLERS = {
    "uniform": frb.Uniform(),
    "prioritized": frb.Prioritized(alpha=1.0),
    "slices": frb.Slices(2),
    "prioritized slices": frb.PrioritizedSlices(2, alpha=1.0),
    "without replacement": frb.WithoutReplacement(),
    "slices without replacement": frb.SlicesWithoutReplacement(2),
    "recency": frb.Recency(),
    "fifo": frb.InOrder(),
    "lifo": frb.InOrder(newest_first=True),
    "queue": frb.Queue(),
}
