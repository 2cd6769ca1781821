"""Draws from a buffer on eight virtual devices beside draws of buffers on one: `python -m benchmarks.shards`.

Eight devices of the CPU share its cores, so this tells what sharding costs beside the draws themselves, and nothing of
what it gains.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

DEVICES, LANES, CAPACITY, BATCH = 8, 16, 100_000, 256
CALLS, ROUNDS = 4, 100


def spec_of(sampler: Any) -> Any:
    """The buffer."""
    import functional_rb as frb

    item = {name: frb.Unbounded((n,)) for name, n in (("obs", 17), ("action", 6), ("next_obs", 17))}
    return frb.BufferSpec(item | {"reward": frb.Unbounded(), "done": frb.Binary()}, CAPACITY, sampler, lanes=LANES)


def items(steps: int, lanes: int) -> dict[str, Any]:
    """A batch of the buffer, [steps, lanes, *shape]."""
    import numpy as np

    import functional_rb as frb

    rng = np.random.default_rng(0)
    lead, spec = (steps, lanes), spec_of(frb.Uniform())
    made: dict[str, Any] = {
        name: rng.standard_normal((*lead, *spec.item[name].shape)).astype(np.float32)
        for name in ("obs", "action", "reward", "next_obs")
    }
    return made | {"done": np.zeros(lead, bool)}


def contenders(sampler: Any) -> dict[str, Callable[[], Any]]:
    """What is measured, by name: each call draws a batch, and keeps the state that it leaves."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    import functional_rb as frb
    import jax_backend as rb

    spec = spec_of(sampler)
    sharding = NamedSharding(jax.make_mesh((DEVICES,), ("d",)), PartitionSpec("d"))
    steps = CAPACITY // LANES // 2
    key = rb.key(0)
    everywhere = jax.device_put(key, NamedSharding(sharding.mesh, PartitionSpec()))
    share = frb.BufferSpec(spec.item, CAPACITY // DEVICES, sampler, lanes=LANES // DEVICES)

    def whole(draw: str) -> Callable[[], Any]:
        state = rb.add(rb.init(spec, sharding=sharding), items(steps, LANES))
        program = rb.jit(lambda state, key: rb.sample(state, key, BATCH, draw=draw), donate_argnums=0)

        def call() -> Any:
            nonlocal state
            state, sample = program(state, everywhere)
            return jax.block_until_ready(sample)

        return call

    states = [rb.add(rb.init(share), items(steps, LANES // DEVICES)) for _ in range(DEVICES)]
    program = rb.jit(lambda state, key: rb.sample(state, key, BATCH // DEVICES), donate_argnums=0)

    def in_a_row() -> None:
        for k, state in enumerate(states):
            states[k], sample = program(state, key)
            jax.block_until_ready(sample)

    return {"local": whole("local"), "global": whole("global"), "in a row": in_a_row}


def main() -> None:
    """Take turns, and print medians."""
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES} {os.environ.get('XLA_FLAGS', '')}"
    import functional_rb as frb

    print(f"Draws of {BATCH} in all from {CAPACITY:,} items in {LANES} lanes, medians of {ROUNDS} times {CALLS}, us.\n")
    print(f"| sampler | {DEVICES} draws in a row | local | ratio | global | ratio |\n|---|--:|--:|--:|--:|--:|")
    for sampler in (frb.Uniform(), frb.Prioritized(), frb.Slices(8), frb.PrioritizedSlices(8)):
        calls = contenders(sampler)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for call in calls.values():
            call()
        for _ in range(ROUNDS):
            for name, call in calls.items():
                begun = time.perf_counter()
                for _ in range(CALLS):
                    call()
                times[name].append((time.perf_counter() - begun) / CALLS)
        row, local, whole = (1e6 * statistics.median(times[name]) for name in ("in a row", "local", "global"))
        told = f"| {row:.0f} | {local:.0f} | {local / row:.2f} | {whole:.0f} | {whole / row:.2f} |"
        print(f"| {type(sampler).__name__} {told}", flush=True)


if __name__ == "__main__":
    main()
