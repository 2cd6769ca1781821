"""Whether a buffer on Ray stays as fast over an hour, and with its capacity: `python -m benchmarks.service.steady hour`
and `... capacity`.

`hour` has a writer and a learner in processes of their own, which add, draw and set priorities at a fixed rate that
leaves most of the machine idle; each window of a minute tells rates, latencies, the processor's time of a turn, and the
memory that processes have of their own. `capacity` has buffers of several capacities, all full, measured in turns.

Writes `service_hour.json` after each window, or `service_capacity.json`, and of both that are there
`service_steady.md` and `service_steady.png`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.service import steady_report
from benchmarks.service.contenders import STEPS, OursPrioritized
from benchmarks.service.measuring import cpu_of, once, summed_up
from benchmarks.service.surroundings import machine, start_ray, versions

QUANTILES = (0.5, 0.99)


class Worker:
    """A process with a client, which makes a call at fixed intervals."""

    def __init__(self, connect: Any, role: str) -> None:
        self.buffer, self.batch = connect(), STEPS.batch(STEPS.add)
        self.call = self.write if role == "writer" else self.learn

    def process(self) -> int:
        return os.getpid()

    def work(self, seconds: float, rate: float) -> dict[str, Any]:
        """Calls for so long, so many a second; seconds of each call, and of the processor for each."""
        begin, cpu, taken = time.perf_counter(), time.process_time(), []
        due = begin
        while due < begin + seconds:
            time.sleep(max(due - time.perf_counter(), 0.0))
            before = time.perf_counter()
            self.call()
            taken.append(time.perf_counter() - before)
            due = max(due + 1 / rate, time.perf_counter())  # what is late is not made up for
        wall = time.perf_counter() - begin
        return {
            "calls": len(taken) / wall,
            "ms": [1e3 * float(x) for x in np.quantile(taken, QUANTILES)],
            "cpu_ms": 1e3 * (time.process_time() - cpu) / len(taken),
        }

    def write(self) -> None:
        self.buffer.add_and_wait(self.batch)

    def learn(self) -> None:
        sample = self.buffer.sample(STEPS.draw)
        self.buffer.client.update(sample.indices, sample.weights)


def own_memory(process: int) -> float:
    """Megabytes that a process has for itself, without what it shares with Ray's object store; on Linux alone."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1e3


def hour(given: argparse.Namespace) -> None:
    """Windows of a minute, written down one by one."""
    ray = start_ray(8)
    buffer = OursPrioritized(STEPS, given.capacity, given.shards)
    made = ray.remote(num_cpus=0.01)(Worker)
    writer, learner = (made.remote(buffer.connector(), role) for role in ("writer", "learner"))
    processes = {f"shard {k}": process for k, process in enumerate(buffer.shard_processes())}
    processes |= {"writer": ray.get(writer.process.remote()), "learner": ray.get(learner.process.remote())}
    shards = [process for name, process in processes.items() if name.startswith("shard")]
    ray.get(writer.work.remote(2.0, given.rate))
    ray.get(learner.work.remote(2.0, given.rate))
    found: dict[str, Any] = {
        "machine": machine(), "versions": versions(), "capacity": given.capacity, "shards": given.shards,
        "rate": given.rate, "seconds": given.seconds, "windows": [],
    }  # fmt: skip
    for _ in range(given.windows):
        before = sum(map(cpu_of, shards))
        wrote, learned = ray.get([one.work.remote(given.seconds, given.rate) for one in (writer, learner)])
        counts = buffer.client.counts()
        turns = (wrote["calls"] + learned["calls"]) / 2 * given.seconds
        found["windows"].append({
            "in": wrote["calls"] * STEPS.add, "out": learned["calls"] * STEPS.draw,
            "add_ms": wrote["ms"], "draw_ms": learned["ms"],
            "writer_ms": wrote["cpu_ms"], "learner_ms": learned["cpu_ms"],
            "shard_ms": 1e3 * (sum(map(cpu_of, shards)) - before) / turns,
            "MB": {name: own_memory(process) for name, process in processes.items()},
            "inserted": counts.inserted, "deaths": counts.deaths, "load": os.getloadavg()[0],
        })  # fmt: skip
        write(given.out, "service_hour", found)
    ray.shutdown()
    steady_report.write(given.out)


def capacities(given: argparse.Namespace) -> None:
    """Full buffers of several capacities and numbers of shards, in turns."""
    ray = start_ray(64)
    found: dict[str, Any] = {
        "machine": machine(), "versions": versions(), "rounds": given.rounds, "seconds": given.seconds, "shards": [],
    }  # fmt: skip
    load = os.getloadavg()[0]
    for shards in given.shards:
        made = {capacity: OursPrioritized(STEPS, capacity // shards * shards, shards) for capacity in given.capacities}
        for capacity, buffer in made.items():
            fill(buffer, capacity)
        figures: dict[int, list[Any]] = {capacity: [] for capacity in made}
        for turn in range(given.rounds):
            for capacity in np.roll(list(made), turn).tolist():
                figures[capacity].append(once(made[capacity], STEPS, given.seconds))
        rows = [{"capacity": capacity, **summed_up(some, STEPS)} for capacity, some in figures.items()]
        found["shards"].append({"shards": shards, "capacities": rows})
        for buffer in made.values():
            buffer.close()
    found["load"] = load
    ray.shutdown()
    write(given.out, "service_capacity", found)
    steady_report.write(given.out)


def fill(buffer: OursPrioritized, capacity: int) -> None:
    """Add until all slots are in use, and priorities differ."""
    random = np.random.default_rng(0)
    batch = STEPS.batch(4096)
    while buffer.client.size() < capacity - capacity % len(buffer.client.masses()):
        for _ in range(16):
            priorities = random.gamma(0.5, size=4096).astype(np.float32) + 1e-3
            buffer.client.add(batch, priorities=priorities)
        buffer.client.flush()


def write(out: Path, name: str, found: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service.steady", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    kinds = parser.add_subparsers(required=True)
    one = kinds.add_parser("hour")
    one.set_defaults(measure=hour)
    one.add_argument("--windows", type=int, default=60)
    one.add_argument("--seconds", type=float, default=60.0)
    one.add_argument("--rate", type=float, default=15.0, help="calls a second, of the writer and of the learner each")
    one.add_argument("--capacity", type=int, default=40_000)
    one.add_argument("--shards", type=int, default=2)
    one = kinds.add_parser("capacity")
    one.set_defaults(measure=capacities)
    one.add_argument("--capacities", nargs="*", type=int, default=[10_000, 100_000, 1_000_000])
    one.add_argument("--shards", nargs="*", type=int, default=[2, 4])
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--seconds", type=float, default=0.4)
    given = parser.parse_args()
    given.measure(given)


if __name__ == "__main__":
    main()
