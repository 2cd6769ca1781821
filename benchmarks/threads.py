"""Two threads that sample one state, against one thread: `python -m benchmarks.threads`, on two idle cores."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import functional_rb as frb

SIZES = ((16, 256), (16, 4096), (300, 256), (300, 1024), (2000, 256), (7056, 256))
"""Numbers float32 of an item, and items of a batch."""
SECONDS, ROUNDS, KEYS = 0.7, 3, 64


def batches_a_second(state: Any, keys: Sequence[Any], batch: int, threads: int) -> float:
    """How many batches so many threads draw together in a second."""
    import torch_backend as rb

    counts = [0] * threads
    begun = time.perf_counter()

    def draw(number: int) -> None:
        while time.perf_counter() < begun + SECONDS:
            rb.sample(state, keys[counts[number] % KEYS], batch)
            counts[number] += 1

    workers = [threading.Thread(target=draw, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - begun)


def main() -> None:
    """Measure both in turn, and print the best of each."""
    import torch

    import torch_backend as rb

    torch.set_num_threads(1)
    keys = list(rb.split(rb.key(1), KEYS))
    print("| sampler | float32 an item | items a batch | us a batch | two threads / one |\n|---|--:|--:|--:|--:|")
    for sampler in (frb.Uniform(), frb.Prioritized()):
        for width, batch in SIZES:
            spec = frb.BufferSpec({"x": frb.Unbounded((width,)), "reward": frb.Unbounded()}, 4000, sampler)
            state = rb.init(spec)
            for _ in range(4):
                state = rb.add(state, {"x": torch.randn(1000, width), "reward": torch.randn(1000)})
            turns = [[batches_a_second(state, keys, batch, threads) for threads in (1, 2)] for _ in range(ROUNDS)]
            one, two = (max(found) for found in zip(*turns, strict=True))
            print(f"| {type(sampler).__name__} | {width} | {batch} | {1e6 / one:.0f} | {two / one:.2f} |", flush=True)


if __name__ == "__main__":
    main()
