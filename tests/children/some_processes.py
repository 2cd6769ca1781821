"""A sharded buffer over the devices of several processes: run by `tests.scale.test_sharded` for each of them.

Its arguments are the number of the process, the port where they meet, a folder, and how many they are.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

jax.config.update("jax_cpu_collectives_implementation", "gloo")
# Else XLA may begin two programs at once, and in each process another one first: then both wait for ever.
jax.config.update("jax_cpu_enable_async_dispatch", False)
jax.distributed.initialize(f"localhost:{sys.argv[2]}", num_processes=int(sys.argv[4]), process_id=int(sys.argv[1]))

import functional_rb as frb  # noqa: E402  # once the processes know each other
import jax_backend as rb  # noqa: E402
from functional_rb.core import counters  # noqa: E402
from tests.support.effort import effort  # noqa: E402
from tests.support.sharded_logs import BATCH, SPECS, alone, jitted, log, run, sharding_of  # noqa: E402
from tests.support.training import assert_same_bits  # noqa: E402

NAME = "prioritized"
# In one program: XLA takes long to compile a scan, which other tests make on one process.
SCANNED = effort((), (NAME, "n-step of added", "compact slices", "queue", "reservoir"))
# One in each process: several in one wait for each other in threads, of which two cores have too few.
SHARDS = int(sys.argv[4])


def check_own(x: Any, expected: Any) -> None:
    """That what this process has of an array is what one device has there."""
    for part in x.addressable_shards:
        assert np.asarray(part.data).tobytes() == np.asarray(expected)[part.index].tobytes()


def own_places(x: Any) -> list[int]:
    """Which of the shards' parts of an array this process has."""
    return [(part.index[0].start or 0) * SHARDS // x.shape[0] for part in x.addressable_shards]


def sync() -> None:
    """Wait for the other processes."""
    multihost_utils.sync_global_devices("here")


def check_program(name: str) -> None:
    """That the processes draw what one device does, and that each has its part of the buffer that that has."""
    expected, drawn = alone(name)
    state = rb.init(SPECS[name], sharding=sharding_of(SHARDS))
    after, samples = jitted(run)(state, log(name))
    jax.tree.map(check_own, samples, drawn)
    lanes = 2 * after.spec.plan.ring.lanes
    check_own(after.counters[: counters.BASE + lanes], expected.counters[: counters.BASE + lanes])
    if after.tree is not None:
        check_own(after.tree, expected.tree)
    rows = np.zeros(after.part.rows.shape, np.int32)
    rows[: len(expected.rows)] = expected.rows
    check_own(after.part.rows, rows)


def main() -> None:
    assert (jax.process_count(), len(jax.devices()), len(jax.local_devices())) == (SHARDS, SHARDS, 1)
    for name in SCANNED:
        check_program(name)
    # With arrays of NumPy that each process has, or each its own part of.
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
        rb.shard(state, None)

    # Each process writes its own shard, and reads it.
    folder = sys.argv[3]
    state = rb.add(rb.init(SPECS[NAME], sharding=sharding_of(SHARDS)), now.items, now.masks, now.given)
    info = frb.save(state, folder)
    assert info.items == int(rb.size(plain))
    assert sorted(os.listdir(f"{folder}/shards")) == [str(k) for k in range(SHARDS)]
    _, want = rb.sample(plain, rb.key(1), BATCH)
    again = frb.load(folder, rb, sharding=sharding_of(SHARDS))
    again, got = rb.sample(again, rb.key(1), BATCH)
    jax.tree.map(check_own, got, want)
    assert_same_bits(frb.load(folder, rb), plain)
    sync()  # all have read it
    if jax.process_index() == 1:
        os.truncate(f"{folder}/shards/1/0000000001.safetensors", 50)
    sync()
    with pytest.raises(frb.errors.CheckpointError, match=r"shards/1/0000000001\.safetensors") as raised:
        frb.load(folder, rb, sharding=sharding_of(SHARDS))
    assert ("process 1 of" in str(raised.value)) == (jax.process_index() != 1)
    print("done", sys.argv[1], flush=True)


main()
