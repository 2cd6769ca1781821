"""The first program that one writes on JAX, and those that consume their states: `python -m benchmarks.natural`.

A training step (add 64, sample 256, update their priorities) on a full buffer, called from Python again and again.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from itertools import cycle
from typing import Any

import jax
import numpy as np

import functional_rb as frb
import jax_backend as rb
from benchmarks.machine import OtherWork, machine
from benchmarks.ours import buffer_spec
from benchmarks.workload import Workload

OPERATIONS = ("add", "sample", "update", "step")


class Program:
    """One way to write the loop: its operations on states."""

    def __init__(self, compiled: Callable[[Any], Any], add: Any, sample: Any, update: Any) -> None:
        def step(state: Any, items: Any, key: Any, priorities: Any) -> Any:
            state, drawn = sample(add(state, items), key, 256)
            return update(state, drawn.indices, priorities), drawn

        def draw(state: Any, key: Any) -> Any:
            return sample(state, key, 256)

        self.add, self.sample, self.update, self.step = map(compiled, (add, draw, update, step))


PROGRAMS = {
    "eager: `rb.add` ...": lambda: Program(lambda f: f, rb.add, rb.sample, rb.update),
    "`jax.jit` without donation": lambda: Program(jax.jit, rb.add, rb.sample, rb.update),
    "eager, in place: `rb.add_` ...": lambda: Program(lambda f: f, rb.add_, rb.sample_, rb.update_),
    "`rb.jit`": lambda: Program(rb.jit, rb.add, rb.sample, rb.update),
}


def measure(work: Workload, rounds: int, burst: int) -> dict[tuple[str, str], float]:
    """Median microseconds of each operation in each program, one at a time, in turns."""
    programs = {name: make() for name, make in PROGRAMS.items()}
    batches = cycle([jax.tree.map(jax.numpy.asarray, batch) for batch in work.batches()])
    priorities = cycle([jax.numpy.asarray(values) for values in work.priorities()])
    keys = cycle(list(rb.split(rb.key(0), work.draws)))
    chunk = jax.tree.map(jax.numpy.asarray, work.chunk())
    state = rb.init(buffer_spec(work, "prioritized"))
    for _ in range(work.chunks):
        state = rb.add_(state, chunk)
    state, drawn = rb.sample_(state, next(keys), work.sample_size)
    spent: dict[tuple[str, str], list[float]] = {(name, op): [] for name in programs for op in OPERATIONS}
    for number in range(rounds + 1):
        for (name, operation), seconds in spent.items():
            call = getattr(programs[name], operation)
            for _ in range(burst if "place" in name or "rb.jit" in name else 2):
                given = {
                    "add": lambda: (next(batches),),
                    "sample": lambda: (next(keys),),
                    "update": lambda: (drawn.indices, next(priorities)),  # noqa: B023  # called at once
                    "step": lambda: (next(batches), next(keys), next(priorities)),
                }[operation]()
                start = time.perf_counter()
                result = jax.block_until_ready(call(state, *given))
                took = time.perf_counter() - start
                state, drawn = result if isinstance(result, tuple) else (result, drawn)
                if number:
                    seconds.append(took)
    return {at: 1e6 * float(np.median(seconds)) for at, seconds in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--capacity", type=int, default=1_000_000)
    options = parser.parse_args()
    others = OtherWork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", frb.errors.LargeCopyWarning)
        found = measure(Workload(capacity=options.capacity), options.rounds, 25)
    share = others.share()
    print(f"{machine()}; other processes took {'?' if share is None else f'{share:.2f}'} cores")
    print(f"{options.capacity:,} items; medians in microseconds\n")
    print(f"| | {' | '.join(OPERATIONS)} |\n|---|{'---|' * len(OPERATIONS)}")
    for name in PROGRAMS:
        print(f"| {name} | {' | '.join(f'{found[name, operation]:,.0f}' for operation in OPERATIONS)} |")


if __name__ == "__main__":
    main()
