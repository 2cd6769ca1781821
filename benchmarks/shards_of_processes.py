"""A buffer whose lanes are dealt to processes of torch (gloo): `python -m benchmarks.shards_of_processes`, or with 4.

Beside each function stands what an all-reduce of one number takes, without which no function can be that tells others
anything; on a machine that others use, it is that which takes longest.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import functional_rb as frb
from benchmarks.shards import BATCH, CAPACITY, LANES, items, spec_of

# Calls that are measured, and that are not, before them.
ROUNDS, BEFORE = 200, 20


def calls(group: Any, sampler: Any, writer: Any) -> dict[str, Callable[[], Any]]:
    """What a process calls, by name."""
    import torch
    import torch.distributed as dist

    import torch_backend as rb

    own = LANES // dist.get_world_size(group)
    filled, batch = ({name: torch.from_numpy(x) for name, x in items(n, own).items()} for n in (3000, 4))
    key = rb.key(0)
    drawn = {"key": key} if writer.words else {}
    state = rb.init(dataclasses.replace(spec_of(sampler), writer=writer), sharding=group)
    state = rb.add_(state, filled, **drawn)
    state, first = rb.sample_(state, key, BATCH)
    priorities, number = torch.rand(first.indices.numel()), torch.zeros(1)

    def keep(made: Any) -> None:
        nonlocal state
        state = made[0] if isinstance(made, tuple) else made

    made = {
        "all-reduce": lambda: dist.all_reduce(number, group=group),
        "add": lambda: keep(rb.add_(state, batch, **drawn)),
        "sample": lambda: keep(rb.sample_(state, key, BATCH)),
        "sample, local": lambda: keep(rb.sample_(state, key, BATCH, draw="local")),
    }
    if state.spec.sampler.has_priorities:
        made["update"] = lambda: keep(rb.update_(state, first.indices.reshape(-1), priorities))
    return made


def measured(rank: int, shards: int, store: str) -> None:
    """Print what one process, the first, has measured of all in turns."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=shards)
    choosing = ((frb.Uniform(), frb.Reservoir()), (frb.Uniform(), frb.MaxValue("reward")))
    in_order = ((sampler, frb.RoundRobin()) for sampler in (frb.Uniform(), frb.Prioritized(), frb.Slices(8)))
    for sampler, writer in (*in_order, *choosing):
        for name, call in calls(dist.group.WORLD, sampler, writer).items():
            taken = []
            for _ in range(BEFORE + ROUNDS):
                begun = time.perf_counter()
                call()
                taken.append((time.perf_counter() - begun) * 1e6)
            if rank == 0:
                low, middle = min(taken[BEFORE:]), statistics.median(taken[BEFORE:])
                print(
                    f"| {type(sampler).__name__} | {type(writer).__name__} | {name} | {middle:.0f} | {low:.0f} |",
                    flush=True,
                )
    dist.destroy_process_group()


def main() -> None:
    """Fork the processes, which print a table."""
    import multiprocessing

    shards = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    print(f"{CAPACITY:,} items in {LANES} lanes on {shards} processes, draws of {BATCH}; {ROUNDS} calls, us.\n")
    print("| sampler | writer | function | median | least |\n|---|---|---|--:|--:|", flush=True)
    context, store = multiprocessing.get_context("spawn"), f"{tempfile.mkdtemp()}/store"
    processes = [context.Process(target=measured, args=(rank, shards, store)) for rank in range(shards)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print(f"\nLoad of the machine, of {os.cpu_count()} cores: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
