"""What a sharding over one device, or one process, costs: `python -m benchmarks.shards_of_one`.

The same calls, in turns, on a buffer that was made without a sharding and on one that was made with a sharding of one.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import functional_rb as frb
from benchmarks.shards import BATCH, CAPACITY, LANES, items, spec_of

CALLS, ROUNDS = 4, 300
Program = Callable[[], Any]


def on_jax() -> dict[str, tuple[Program, Program]]:
    """Each function of a buffer without a sharding, and of one that is sharded over a device."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    import jax_backend as rb

    sharding = NamedSharding(jax.make_mesh((1,), ("d",), devices=jax.devices()[:1]), PartitionSpec("d"))
    add = rb.jit(lambda state, batch: rb.add(state, batch))
    sample = rb.jit(lambda state, key: rb.sample(state, key, BATCH))
    update = rb.jit(lambda state, handles, priorities: rb.update(state, handles, priorities))

    def programs(given: Any) -> dict[str, Program]:
        state = rb.add_(rb.init(spec_of(frb.Prioritized()), **given), items(CAPACITY // LANES // 2, LANES))
        batch, key = jax.tree.map(jax.numpy.asarray, items(4, LANES)), rb.key(0)
        state, first = sample(state, key)

        def keep(made: Any) -> Any:
            nonlocal state
            state = made[0] if isinstance(made, tuple) else made
            return jax.block_until_ready(made)

        return {
            "add": lambda: keep(add(state, batch)),
            "sample": lambda: keep(sample(state, key)),
            "update": lambda: keep(update(state, first.indices, first.weights)),
        }

    return _in_pairs(programs({}), programs({"sharding": sharding}))


def on_torch(group: Any) -> dict[str, tuple[Program, Program]]:
    """Each function of a buffer without a sharding, and of one whose lanes are dealt to a group of one process."""
    import torch

    import torch_backend as rb

    def programs(given: Any, drawing: Any) -> dict[str, Program]:
        filled = {name: torch.from_numpy(x) for name, x in items(CAPACITY // LANES // 2, LANES).items()}
        batch = {name: torch.from_numpy(x) for name, x in items(4, LANES).items()}
        state, key = rb.add_(rb.init(spec_of(frb.Prioritized()), **given), filled), rb.key(0)
        state, first = rb.sample_(state, key, BATCH, **drawing)

        def keep(made: Any) -> None:
            nonlocal state
            state = made[0] if isinstance(made, tuple) else made

        return {
            "add": lambda: keep(rb.add_(state, batch)),
            "sample": lambda: keep(rb.sample_(state, key, BATCH, **drawing)),
            "update": lambda: keep(rb.update_(state, first.indices, first.weights)),
        }

    return _in_pairs(programs({}, {}), programs({"sharding": group}, {"group": group}))


def _in_pairs(plain: dict[str, Program], sharded: dict[str, Program]) -> dict[str, tuple[Program, Program]]:
    return {name: (plain[name], sharded[name]) for name in plain}


def main() -> None:
    """Take turns, and print medians."""
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
    print(
        f"{CAPACITY:,} items in {LANES} lanes, prioritized, draws of {BATCH}; medians of {ROUNDS} times {CALLS}, us.\n"
    )
    print("| backend | function | without a sharding | with one of one | ratio |\n|---|---|--:|--:|--:|")
    found = {"JAX": on_jax(), "torch": on_torch(dist.group.WORLD)}
    for backend, (function, pair) in itertools.chain(
        *([(name, one) for one in x.items()] for name, x in found.items())
    ):
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(ROUNDS + 10):
            for call, taken in zip(pair, times, strict=True):
                begun = time.perf_counter()
                for _ in range(CALLS):
                    call()
                if turn >= 10:  # what is compiled first
                    taken.append((time.perf_counter() - begun) / CALLS * 1e6)
        plain, sharded = map(statistics.median, times)
        print(f"| {backend} | {function} | {plain:.1f} | {sharded:.1f} | {sharded / plain:.2f} |", flush=True)
    print(f"\nLoad of the machine, of {os.cpu_count()} cores: {os.getloadavg()[0]:.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
