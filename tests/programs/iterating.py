"""Small buffers for `frb.iterate`, the loop that it stands for, and who must not be left behind."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import functional_rb as frb
from tests.support.backends import Backend

ROOT = Path(__file__).parents[2]
ITEM = {"x": frb.Unbounded((3,)), "done": frb.Binary()}
BATCH = 4
# Seconds that nothing here should ever take.
PATIENCE = 30.0


def items(n: int, start: int = 0) -> dict[str, Any]:
    """Items of which each says which it is."""
    steps = np.arange(start, start + n, dtype=np.float32)
    return {"x": steps[:, None].repeat(3, 1), "done": steps % 5 == 4}


def filled(library: Backend, sampler: Any = None, n: int = 32) -> Any:
    spec = frb.BufferSpec(ITEM, capacity=32, batch_size=BATCH, sampler=sampler or frb.Uniform())
    return library.rb.add(library.rb.init(spec), library.tree(items(n)))


class Told(NamedTuple):
    """A sample in NumPy."""

    x: list[Any]
    indices: list[int]
    weights: list[float]


def told(library: Backend, sample: Any) -> Told:
    x, indices, weights = (library.numpy(leaf) for leaf in (sample.items["x"], sample.indices, sample.weights))
    return Told(x.tolist(), indices.tolist(), weights.tolist())


def plain(library: Backend, state: Any, seed: int, n: int, changes: dict[int, Any] | None = None) -> list[Told]:
    """The loop that `iterate` stands for; states that are exchanged before the k-th draw."""
    key, found = library.rb.key(seed), []
    for k in range(n):
        state = (changes or {}).get(k, state)
        key, now = library.rb.split(key)
        state, sample = library.rb.sample(state, now, BATCH)
        found.append(told(library, sample))
    return found


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("frb-iterate")]


@contextlib.contextmanager
def nobody_left() -> Iterator[None]:
    """Threads end in a moment, and nobody has to wait for them."""
    if ours():
        gc.collect()  # what other tests have left in cycles
    _wait_until_nobody_is_left()
    yield
    _wait_until_nobody_is_left()


def _wait_until_nobody_is_left() -> None:
    until = time.monotonic() + PATIENCE
    while ours() and time.monotonic() < until:
        time.sleep(0.001)
    assert not ours()


def counting(library: Backend, fails_at: int = -1, error: Any = None, wait: Any = None) -> Any:
    """The backend, its samples counted; the one with a given number fails, each waits for an event if there is one."""
    calls: list[int] = []
    lock = threading.Lock()

    def sample(*arguments: Any) -> Any:
        with lock:
            calls.append(len(calls))
            mine = calls[-1]
        if wait is not None:
            assert wait.wait(PATIENCE)
        if mine == fails_at:
            raise error
        return library.rb.sample(*arguments)

    return SimpleNamespace(
        __name__=library.rb.__name__, sample=sample, split=library.rb.split, calls=calls, add=library.rb.add
    )


def a_device(library: Backend) -> Any:
    if library.library == "torch":
        return "cpu"
    import jax

    return jax.devices()[0]


SAMPLERS = [frb.Uniform(), frb.Prioritized(), frb.WithoutReplacement()]
