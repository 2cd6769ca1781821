"""Two threads that sample one state, against one thread: `python -m benchmarks.threads [minutes]`, on Linux.

Counted are short rounds in which no thread had to wait for a core, as the kernel's scheduler tells it. So a machine on
which others work too does; it takes longer. The first row is work that needs no Python at all, and says what two cores
give; the second makes and drops as many tensors as a sample of two leaves has, and nothing else.
"""

from __future__ import annotations

import hashlib
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import functional_rb as frb

SIZES = ((16, 64), (16, 256), (16, 512), (16, 1024), (16, 2048), (16, 4096), (300, 64), (300, 256), (300, 1024))
SIZES += (2000, 64), (2000, 256), (7056, 256)
"""Numbers float32 of an item, and items of a batch."""
SECONDS, PAUSE, CALLS = 0.02, 0.07, 16
WAITED = 0.04
"""The share of a round that threads may have waited for a core."""


def waited() -> int:
    """How long this thread has waited for a core so far, in nanoseconds."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def calls_a_second(call: Callable[[], Any], threads: int) -> float | None:
    """How many calls so many threads make together in a second; None if they had to wait for cores."""
    counts, waits, stop = [0] * threads, [0] * threads, threading.Event()
    begin = threading.Barrier(threads + 1)

    def work(number: int) -> None:
        begin.wait()
        before = waited()
        while not stop.is_set():
            for _ in range(CALLS):
                call()
            counts[number] += CALLS
        waits[number] = waited() - before

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    begin.wait()
    begun = time.perf_counter()
    time.sleep(SECONDS)
    stop.set()
    for worker in workers:
        worker.join()
    elapsed = time.perf_counter() - begun
    return sum(counts) / elapsed if sum(waits) < WAITED * 1e9 * elapsed * threads else None


def cases() -> dict[str, Callable[[], Any]]:
    """What is called, by the first columns of its row."""
    import torch

    import torch_backend as rb

    torch.set_num_threads(1)
    text, key = b"x" * 100_000, rb.key(3)

    def tensors() -> None:
        _ = torch.empty(4), torch.empty(4), torch.empty(4), torch.empty(4), torch.empty(4)

    found: dict[str, Callable[[], Any]] = {
        "a digest | |": lambda: hashlib.sha256(text).digest(),
        "five tensors | |": tensors,
    }
    for sampler, (width, batch) in itertools.product((frb.Uniform(), frb.Prioritized()), SIZES):
        spec = frb.BufferSpec({"x": frb.Unbounded((width,)), "reward": frb.Unbounded()}, 4000, sampler)
        state = rb.init(spec)
        for _ in range(4):
            state = rb.add(state, {"x": torch.randn(1000, width), "reward": torch.randn(1000)})
        name = f"{type(sampler).__name__} | {width} | {batch}"
        found[name] = lambda state=state, batch=batch: rb.sample(state, key, batch)
    return found


def main(minutes: float) -> None:
    """Measure what was measured least, as long as there is time, and print the medians."""
    named = cases()
    rates: dict[tuple[str, int], list[float]] = {(name, n): [] for name in named for n in (1, 2)}
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        if calls_a_second(named["a digest | |"], 2) is None:
            time.sleep(PAUSE)
            continue
        for name, n in sorted(rates, key=lambda case: len(rates[case]))[:8]:
            found = calls_a_second(named[name], n)
            if found is not None:
                rates[name, n].append(found)
    print("| sampler | float32 an item | items a batch | us a call | two threads / one | rounds |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in named:
        one, two = rates[name, 1], rates[name, 2]
        if one and two:
            ratio = statistics.median(two) / statistics.median(one)
            print(f"| {name} | {1e6 / max(one):.1f} | {ratio:.2f} | {min(len(one), len(two))} |", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5)
