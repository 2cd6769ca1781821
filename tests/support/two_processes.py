"""A sharded buffer over the devices of two processes: run twice by `tests.scale.test_sharded`, with number and port."""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np
import pytest

jax.config.update("jax_cpu_collectives_implementation", "gloo")
# Else XLA may begin two programs at once, and in each process another one first: then both wait for ever.
jax.config.update("jax_cpu_enable_async_dispatch", False)
jax.distributed.initialize(f"localhost:{sys.argv[2]}", num_processes=2, process_id=int(sys.argv[1]))

import functional_rb as frb  # noqa: E402  # once the processes know each other
import jax_backend as rb  # noqa: E402
from tests.support.on_eight_devices import BATCH, SPECS, alone, jitted, log, run, sharding_of  # noqa: E402

NAME = "prioritized"
SHARDS = 2
"""One in each process: several in one wait for each other in threads, of which two cores have too few."""


def check_own(x: Any, expected: Any) -> None:
    """That what this process has of an array is what one device has there."""
    for part in x.addressable_shards:
        assert np.asarray(part.data).tobytes() == np.asarray(expected)[part.index].tobytes()


def own_places(x: Any) -> list[int]:
    """Which of the shards' parts of an array this process has."""
    return [(part.index[0].start or 0) * SHARDS // x.shape[0] for part in x.addressable_shards]


def main() -> None:
    assert (jax.process_count(), len(jax.devices()), len(jax.local_devices())) == (2, SHARDS, 1)
    expected, drawn = alone(NAME)
    state = rb.init(SPECS[NAME], sharding=sharding_of(SHARDS))
    after, samples = jitted(run)(state, log(NAME))
    jax.tree.map(check_own, samples, drawn)
    for name in ("tree", "counters"):
        check_own(getattr(after, name), getattr(expected, name))
    rows = np.zeros(after.part.rows.shape, np.int32)
    rows[: len(expected.rows)] = expected.rows
    check_own(after.part.rows, rows)

    # And by single calls, with arrays of NumPy that each process has, or each its own part of.
    now = jax.tree.map(lambda x: np.asarray(x[0]), log(NAME))
    plain = rb.add(rb.init(SPECS[NAME]), now.items, now.masks, now.given)
    state = rb.add_(rb.init(SPECS[NAME], sharding=sharding_of(SHARDS)), now.items, now.masks, now.given)
    assert int(rb.size(state)) == int(rb.size(plain))
    _, want = rb.sample(plain, rb.key(1), BATCH)
    state, got = rb.sample(state, rb.key(1), BATCH)
    jax.tree.map(check_own, got, want)
    handles = np.arange(8, dtype=np.int32)
    check_own(rb.get(state, handles)["reward"], rb.get(plain, handles)["reward"])
    _, local = rb.sample(state, rb.key(2), BATCH, draw="local")
    for place, part in zip(own_places(local.indices), local.indices.addressable_shards, strict=True):
        handles = np.asarray(part.data)
        slots = handles[handles >= 0] % state.spec.capacity
        assert (slots // state.dealing.slots_each == place).all()
    with pytest.raises(ValueError, match="several processes"):  # neither has all of the arrays
        frb.save(state, "never written")
    print("done", sys.argv[1], flush=True)


main()
