"""Measure: `python -m benchmarks.service`; the figures go to the terminal, as lines of a table of Markdown."""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.service.contenders import CONTENDERS, Ours, batch_of, item_bytes


def seconds_of(call: Callable[[], Any], seconds: float, least: int = 5) -> list[float]:
    """How long each of as many calls took as there is time for."""
    found: list[float] = []
    until = time.perf_counter() + seconds
    while len(found) < least or time.perf_counter() < until:
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return found


def measure(contender: Any, kind: str, add: int, draw: int, seconds: float) -> dict[str, float]:
    """Items a second in and out, of calls that need not wait for each other, and quantiles of single calls that do."""
    batch, size = batch_of(kind, add), item_bytes(kind)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        contender.add(batch)
        count += add
    contender.flush()
    into = count / (time.perf_counter() - begin)
    begin, batches = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        contender.stream(draw, 20)
        batches += 20
    out = batches * draw / (time.perf_counter() - begin)
    adds = np.quantile(seconds_of(lambda: contender.add_and_wait(batch), seconds), [0.5, 0.99]) * 1e3
    draws = np.quantile(seconds_of(lambda: contender.sample(draw), seconds), [0.5, 0.99]) * 1e3
    return {
        "in": into, "in GB/s": into * size / 1e9, "out": out, "out GB/s": out * size / 1e9,
        "add p50": adds[0], "add p99": adds[1], "sample p50": draws[0], "sample p99": draws[1],
    }  # fmt: skip


def several(made: Ours, kind: str, clients: int, add: int, draw: int, seconds: float) -> tuple[float, float]:
    """Items a second in and out of several clients at once, each a process, half of which draw."""
    import ray

    connect = made.clients()

    @ray.remote(num_cpus=0.01)
    class Worker:
        def __init__(self) -> None:
            self.own = connect()

        def ready(self) -> None:
            pass

        def work(self, draws: bool) -> float:
            begin, count, batch = time.perf_counter(), 0, batch_of(kind, add)
            while time.perf_counter() - begin < seconds:
                if draws:
                    self.own.stream(draw, 4)
                    count += 4 * draw
                else:
                    self.own.add(batch)
                    count += add
            self.own.flush()
            return count / (time.perf_counter() - begin)

    workers = [Worker.remote() for _ in range(clients)]
    ray.get([worker.ready.remote() for worker in workers])
    rates = ray.get([worker.work.remote(k % 2 == 1) for k, worker in enumerate(workers)])
    for worker in workers:
        ray.kill(worker)
    return sum(rates[::2]), sum(rates[1::2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contenders", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--kinds", nargs="*", default=["steps", "frames"])
    parser.add_argument("--shards", nargs="*", type=int, default=[1, 2, 4])
    parser.add_argument("--capacities", nargs="*", type=int, default=[100_000, 1_000_000])
    parser.add_argument("--clients", nargs="*", type=int, default=[])
    parser.add_argument("--add", type=int, default=64)
    parser.add_argument("--draw", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    import torch

    torch.set_num_threads(1)
    ray.init(
        num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])}},
    )  # fmt: skip
    print(f"{os.cpu_count()} cores; an add has {given.add} items, a sample {given.draw}; times in ms")
    print("| buffer | items | shards | capacity | in/s | GB/s | out/s | GB/s | add p50, p99 | sample p50, p99 |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for kind in given.kinds:
        for name in given.contenders:
            for shards in given.shards if name != "torchrl" else [1]:
                for capacity in given.capacities:
                    if capacity * item_bytes(kind) > 4e9:
                        continue
                    made = CONTENDERS[name](kind, capacity, shards)
                    made.add(batch_of(kind, given.add))
                    made.flush()
                    made.sample(given.draw)
                    found = measure(made, kind, given.add, given.draw, given.seconds)
                    print(
                        f"| {made.name} | {kind} | {shards} | {capacity:,} "
                        f"| {found['in']:,.0f} | {found['in GB/s']:.3f} "
                        f"| {found['out']:,.0f} | {found['out GB/s']:.3f} | {found['add p50']:.2f}, "
                        f"{found['add p99']:.2f} | {found['sample p50']:.2f}, {found['sample p99']:.2f} |",
                        flush=True,
                    )
                    if isinstance(made, Ours):
                        for clients in given.clients:
                            into, out = several(made, kind, clients, given.add, given.draw, given.seconds)
                            print(f"|   {clients} clients | {kind} | {shards} | {capacity:,} | {into:,.0f} | "
                                  f"| {out:,.0f} | | | |", flush=True)  # fmt: skip
                    made.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
