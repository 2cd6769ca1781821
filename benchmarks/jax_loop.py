"""What all JAX contenders share: data on the device, keys, and the scanned step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.workload import Workload


@dataclass
class JaxData:
    """Endless rotations of what the operations consume, all of it on the device before the clock starts."""

    batches: Iterator[Any]
    keys: Iterator[jax.Array]
    priorities: Iterator[jax.Array]
    scans: Iterator[tuple[Any, jax.Array, jax.Array]]  # of T steps: batches, keys, priorities


def prepare(work: Workload, lead: tuple[int, ...] = ()) -> JaxData:
    """Put the workload's data on the default device; `lead` are axes the peer wants before the batch axis."""
    batches = [to_device(batch, lead) for batch in work.batches()]
    priorities = [jnp.asarray(values) for values in work.priorities()]
    keys = list(jax.random.split(jax.random.key(work.seed), work.draws))
    turns = np.arange(work.scan_length) % work.rotation
    steps = jax.tree.map(lambda *leaves: jnp.stack([leaves[turn] for turn in turns]), *batches)
    step_priorities = jnp.stack([priorities[turn] for turn in turns])
    scans = [
        (steps, jax.random.split(key, work.scan_length), step_priorities)
        for key in keys[: work.draws // work.scan_length + 1]
    ]
    jax.block_until_ready((batches, priorities, keys, scans))
    return JaxData(cycle(batches), cycle(keys), cycle(priorities), cycle(scans))


def to_device(batch: dict[str, np.ndarray], lead: tuple[int, ...] = ()) -> dict[str, jax.Array]:
    """A NumPy batch on the default device."""
    return {name: jnp.asarray(leaf.reshape(*lead, *leaf.shape)) for name, leaf in batch.items()}


def scanned_step(
    add: Callable[[Any, Any], Any],
    sample: Callable[[Any, Any], tuple[Any, Any]],
    update: Callable[[Any, Any, Any], Any] | None,
) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    """One jitted program for a whole run of steps, which takes its state over.

    The last sample is part of the carry: otherwise XLA would drop the gather, since nothing reads it.
    """

    def run(state: Any, last: Any, steps: Any) -> tuple[Any, Any]:
        def body(carry: tuple[Any, Any], step: Any) -> tuple[tuple[Any, Any], None]:
            batch, key, priorities = step
            state, drawn = sample(add(carry[0], batch), key)
            if update is not None:
                state = update(state, drawn, priorities)
            return (state, drawn), None

        return jax.lax.scan(body, (state, last), steps)[0]

    return jax.jit(run, donate_argnums=(0, 1))
