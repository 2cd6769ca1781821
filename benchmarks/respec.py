"""What another spec costs, beside a new buffer to which all is added again: `python -m benchmarks.respec`.

Each figure is of a process of its own, in which the buffer is full: the first call, the fastest of some more, and by
how much the process's memory rose above what it held before. (Linux alone tells that.)
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import functional_rb as frb
from benchmarks.machine import OtherWork, machine
from benchmarks.ours import buffer_spec
from benchmarks.workload import Workload

CHANGES = {
    "uniform to prioritized": ("uniform", lambda spec: {"sampler": frb.Prioritized(alpha=0.6)}),
    "another alpha": ("prioritized", lambda spec: {"sampler": frb.Prioritized(alpha=0.5)}),
    "twice the capacity": ("prioritized", lambda spec: {"capacity": 2 * spec.capacity}),
    "half the capacity": ("prioritized", lambda spec: {"capacity": spec.capacity // 2}),
    "another batch size": ("prioritized", lambda spec: {"batch_size": 512}),
}


def filled(rb: Any, work: Workload, sampler: Any) -> Any:
    """A full buffer, with priorities that differ."""
    state = rb.init(buffer_spec(work, sampler))
    given = {"priorities": work.chunk_priorities()} if sampler == "prioritized" else {}
    for _ in range(work.chunks):
        state = rb.add_(state, work.chunk(), **given)
    return state


def added_again(rb: Any, state: Any, spec: frb.BufferSpec) -> Any:
    """What one writes without `with_spec`: read the items with their priorities, some at a time, and add them."""
    new, count, step = rb.init(spec), int(rb.size(state)), 50_000
    handles = np.asarray(rb.newest(state, count))
    for start in range(0, count, step):
        some = handles[start : start + step]
        both = state.spec.sampler.has_priorities and spec.sampler.has_priorities
        new = rb.add_(new, rb.get(state, some), priorities=rb.priorities(state, some) if both else None)
    return new


WAYS: dict[str, Callable[[Any, Any, frb.BufferSpec], Any]] = {
    "`rb.with_spec`": lambda rb, state, spec: rb.with_spec(state, spec),
    "added again": added_again,
}
# Those whose result shares memory with what they were given.
TAKING = ("`rb.with_spec`",)


def held(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most since `forget`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def forget() -> None:
    """What was held at most is what is held now."""
    Path("/proc/self/clear_refs").write_text("5")


def done(library: str, state: Any) -> None:
    """Wait until it is all there."""
    if library == "jax":
        importlib.import_module("jax").block_until_ready(state)


def measured(library: str, change: str, way: str, capacity: int, rounds: int, results: Any) -> None:
    """The first call's seconds, the fastest later one's, and the bytes that it took at most."""
    rb = importlib.import_module(f"{library}_backend")
    before, change_of = CHANGES[change]
    work = Workload(capacity=capacity)
    state = filled(rb, work, before)
    done(library, state)
    old = state.spec
    spec = dataclasses.replace(old, **change_of(old))
    seconds, rise = [], 0
    for _ in range(rounds):
        gc.collect()
        forget()
        at = held("VmRSS")
        start = time.perf_counter()
        new = WAYS[way](rb, state, spec)
        done(library, new)
        seconds.append(time.perf_counter() - start)
        rise = held("VmHWM") - at
        if way in TAKING:  # as in the usual loop, where nobody holds the older state
            del state
            state = rb.with_spec(new, old)
            done(library, state)
        del new
    results.put((seconds[0], min(seconds[1:]), rise))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--capacity", type=int, default=1_000_000)
    options = parser.parse_args()
    others, context = OtherWork(), multiprocessing.get_context("spawn")
    lines = []
    for library in ("torch", "jax"):
        for change in CHANGES:
            cells = []
            for way in WAYS:
                results = context.Queue()
                given = (library, change, way, options.capacity, options.rounds, results)
                process = context.Process(target=measured, args=given)
                process.start()
                first, later, rise = results.get()
                process.join()
                cells += [f"{first:,.2f}", f"{1e3 * later:,.1f}", f"{rise / 1e6:,.0f}"]
            lines.append(f"| {library} | {change} | {' | '.join(cells)} |")
    share = others.share()
    print(f"{machine()}; other processes took {'?' if share is None else f'{share:.2f}'} cores")
    print(f"{options.capacity:,} items; the first call in seconds, later ones in ms, the most memory in MB\n")
    titles = [f"{way}: {what}" for way in WAYS for what in ("first", "later", "memory")]
    print(f"| | | {' | '.join(titles)} |\n|---|---|{'---|' * len(titles)}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
