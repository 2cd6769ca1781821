"""Rounds in which contenders take turns, so that what else a machine does meets all of them alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.service.contenders import Kind, Ours, Reverb


class Figures(NamedTuple):
    """Of one contender in one round.

    Attributes:
        into: items a second that go in, of adds that need not wait for each other.
        out: items a second that come out, as a learner takes them that wants many.
        adds: seconds of each add that is waited for.
        draws: seconds of each single draw.
    """

    into: float
    out: float
    adds: list[float]
    draws: list[float]


def timed(contender: Any, call: Callable[[], Any], seconds: float, least: int = 3) -> list[float]:
    """How long each of as many calls took as there is time for, without what the contender does not count."""
    found: list[float] = []
    until = time.perf_counter() + seconds
    while len(found) < least or time.perf_counter() < until:
        before, begin = getattr(contender, "uncounted", 0.0), time.perf_counter()
        call()
        found.append(time.perf_counter() - begin - (getattr(contender, "uncounted", 0.0) - before))
    return found


def once(contender: Any, kind: Kind, seconds: float) -> Figures:
    """One round of one contender."""
    if isinstance(contender, Reverb):
        found = contender.asked("measure", seconds=seconds, draw=kind.draw)
        return Figures(found["in"], found["out"], found["adds"], found["draws"])
    batch = kind.batch(kind.add)
    before, begin, count = getattr(contender, "uncounted", 0.0), time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        contender.add(batch)
        count += kind.add
    contender.flush()
    into = count / (time.perf_counter() - begin - (getattr(contender, "uncounted", 0.0) - before))
    streams = timed(contender, lambda: contender.stream(kind.draw, 8), seconds, 1)
    out = 8 * kind.draw * len(streams) / sum(streams)
    adds = timed(contender, lambda: contender.add_and_wait(batch), seconds / 2)
    draws = timed(contender, lambda: contender.sample(kind.draw), seconds / 2)
    return Figures(into, out, adds, draws)


def compare(made: dict[str, Any], kind: Kind, rounds: int, seconds: float) -> dict[str, Any]:
    """Medians over rounds of each contender, and quantiles of all its single calls, in milliseconds."""
    for contender in made.values():  # what is done once, and something to draw
        if not isinstance(contender, Reverb):
            for _ in range(max(2 * kind.draw // kind.add, 2)):
                contender.add_and_wait(kind.batch(kind.add))
            contender.stream(kind.draw, 8)
            contender.sample(kind.draw)
    found: dict[str, list[Figures]] = {name: [] for name in made}
    for turn in range(rounds):
        names = list(made)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(once(made[name], kind, seconds))
    return {name: summed_up(figures, kind) for name, figures in found.items()}


def summed_up(figures: Sequence[Figures], kind: Kind) -> dict[str, Any]:
    into, out = (statistics.median(of) for of in ([f.into for f in figures], [f.out for f in figures]))
    adds, draws = (np.concatenate(of) * 1e3 for of in ([f.adds for f in figures], [f.draws for f in figures]))
    return {
        "in": into,
        "in_GB/s": into * kind.item_bytes / 1e9,
        "out": out,
        "out_GB/s": out * kind.item_bytes / 1e9,
        "add_ms": np.quantile(adds, [0.5, 0.99]).tolist(),
        "draw_ms": np.quantile(draws, [0.5, 0.99]).tolist(),
        "rounds_in": [f.into for f in figures],
        "rounds_out": [f.out for f in figures],
    }


class Crowd:
    """Processes that have clients, which take turns: each adds a batch, then draws one."""

    def __init__(self, processes: int, kind: Kind) -> None:
        import ray

        @ray.remote(num_cpus=0.01)
        class Worker:
            def __init__(self) -> None:
                self.clients: list[Any] = []

            def connect(self, connect: Callable[[], Any], count: int) -> None:
                self.clients = [connect() for _ in range(count)]

            def work(self, seconds: float) -> tuple[int, float, float]:
                batch, turns = kind.batch(kind.add), 0
                for client in self.clients:
                    client.add_and_wait(batch)
                    client.sample(kind.draw)
                idle = sum(getattr(client, "uncounted", 0.0) for client in self.clients)
                begin, cpu = time.perf_counter(), time.process_time()
                while time.perf_counter() - begin < seconds:
                    for client in self.clients:
                        client.add(batch)
                        client.sample(kind.draw)
                        turns += 1
                for client in self.clients:
                    client.flush()
                idle = sum(getattr(client, "uncounted", 0.0) for client in self.clients) - idle
                return turns, time.perf_counter() - begin - idle, time.process_time() - cpu

        self._workers, self._kind = [Worker.remote() for _ in range(processes)], kind

    def measure(self, made: Any, clients: int, seconds: float) -> dict[str, float]:
        """Items a second in and out of so many clients, and the processor's time of a turn."""
        import ray

        workers = self._workers[: min(clients, len(self._workers))]
        counts = [clients // len(workers) + (k < clients % len(workers)) for k in range(len(workers))]
        connect = made.connector()
        ray.get([worker.connect.remote(connect, n) for worker, n in zip(workers, counts, strict=True)])
        shards = made.shard_processes() if isinstance(made, Ours) else []
        before = sum(map(cpu_of, shards))
        found = ray.get([worker.work.remote(seconds) for worker in workers])
        turns = sum(turns for turns, _, _ in found)
        rate = sum(turns / wall for turns, wall, _ in found)
        return {
            "in": rate * self._kind.add,
            "out": rate * self._kind.draw,
            "client_ms": sum(cpu for _, _, cpu in found) / turns * 1e3,
            "shard_ms": (sum(map(cpu_of, shards)) - before) / turns * 1e3,
        }

    def close(self) -> None:
        import ray

        for worker in self._workers:
            ray.kill(worker)


def cpu_of(process: int) -> float:
    """Seconds of the processor that a process has had; on Linux alone."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
