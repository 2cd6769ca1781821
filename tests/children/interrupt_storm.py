"""A program on which SIGINTs rain, while it adds, samples, saves and shares; now and then it looks at what is left.

Called with a directory, a backend, seconds, and how many signals are to hit it at least, for which it goes on longer on
a machine that is busy. It says "ready" once the rain may begin, and how many have hit.
"""

from __future__ import annotations

import faulthandler
import fcntl
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import functional_rb as frb
from functional_rb.checkpoint import background
from tests.support.interrupts import finished

ITEM = {"id": frb.Unbounded((), "int32"), "twice": frb.Unbounded((2,), "int32")}
CAPACITY = 64
# Seconds beside those of the rain after which a program that stands still shows where, and ends.
PATIENCE = 180


class Rain:
    """Lets so many signals through, and counts them."""

    def __init__(self) -> None:
        self.left, self.hits = 0, 0
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, *_: Any) -> None:
        if self.left:
            self.left, self.hits = self.left - 1, self.hits + 1
            raise KeyboardInterrupt

    def on(self, work: Callable[[], Any], drops: int) -> None:
        """Call a function again and again until it is hit; by more than one drop, where it goes on after the first."""
        try:
            try:
                self.left = drops
                while self.left:  # none, where a callback of the garbage collector took the drop: nothing raises there
                    work()
            finally:
                self.left = 0
        except KeyboardInterrupt:
            pass


class Life:
    """A buffer's, in one variable, as users have it."""

    def __init__(self, rb: Any, spec: frb.BufferSpec) -> None:
        self.rb, self.spec, self.next, self.key = rb, spec, 0, rb.key(0)
        self.begin()

    def begin(self) -> None:
        self.older = self.rb.add(self.rb.init(self.spec), self.batch())
        self.older_ids = self.ids(self.older)
        self.state = self.rb.add(self.older, self.batch())

    def batch(self) -> dict[str, np.ndarray]:
        ids = np.arange(self.next, self.next + 5, dtype=np.int32)
        self.next += 5
        return {"id": ids, "twice": np.stack([2 * ids, -2 * ids], 1)}

    def values(self) -> None:
        self.state = self.rb.add(self.state, self.batch())
        self.state, sample = self.rb.sample(self.state, self.key, 8)
        if self.spec.sampler.has_priorities:
            self.state = self.rb.update(self.state, sample.indices, np.ones(8, np.float32))

    def in_place(self) -> None:
        self.state = self.rb.add_(self.state, self.batch())
        self.state, sample = self.rb.sample_(self.state, self.key, 8)
        if self.spec.sampler.has_priorities:
            self.state = self.rb.update_(self.state, sample.indices, np.ones(8, np.float32))

    def ids(self, state: Any) -> list[int]:
        """Those of all that is stored; each leaf tells the same."""
        handles = np.asarray(self.rb.newest(state, CAPACITY))
        live = np.asarray(self.rb.is_live(state, handles))
        assert live.sum() == int(self.rb.size(state)), (live.sum(), self.rb.size(state))
        found = {name: np.asarray(leaf) for name, leaf in self.rb.get(state, handles[live]).items()}
        assert (found["twice"] == np.stack([2 * found["id"], -2 * found["id"]], 1)).all()
        return found["id"].tolist()

    def check(self) -> None:
        """The state is whole, or consumed: then a new one begins."""
        try:
            self.state.check_alive()
        except RuntimeError:
            self.begin()
        ids = self.ids(self.state)
        assert len(ids) == len(set(ids)), ids
        assert self.ids(self.older) == self.older_ids
        finished(lambda: (self.rb.size(self.state), self.rb.sample(self.state, self.key, 4)))


def check_free(path: str) -> None:
    if os.path.exists(path):
        lock = os.open(path, os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(lock)


def main(directory: str, backend: str, seconds: float, least: int) -> None:
    faulthandler.dump_traceback_later(seconds + PATIENCE, exit=True)
    rb, rain = importlib.import_module(f"{backend}_backend"), Rain()
    on_host: dict[str, Any] = {"storage": frb.Host()} if backend == "jax" else {}
    samplers = frb.Prioritized(), frb.WithoutReplacement(), frb.Recency(3)
    lives = [Life(rb, frb.BufferSpec(ITEM, CAPACITY, sampler, **on_host)) for sampler in samplers]
    shared = Life(rb, frb.BufferSpec(ITEM, CAPACITY, storage=frb.Memmap(f"{directory}/shared", shared=True)))
    saved, place = lives[0], f"{directory}/saved"
    saves: list[Any] = []

    def save() -> None:
        frb.save(saved.state, place)
        saves[:] = [frb.save(saved.state, place, incremental=True, background=True)]

    def share() -> None:
        rb.add(shared.state, shared.batch())
        rb.sample(shared.state, shared.key, 8)
        rb.update(shared.state, np.arange(4, dtype=np.int32), items={"id": np.arange(4, dtype=np.int32)})

    for life in lives:  # what is compiled and imported at first
        life.values(), life.in_place()
    save(), share()
    print("ready", flush=True)
    until, round_ = time.monotonic() + seconds, 0
    while time.monotonic() < until or rain.hits < least:
        round_ += 1
        drops = 1 + round_ % 2
        for life in lives:
            for work in (life.values, life.in_place):
                rain.on(work, drops)
                life.check()
        rain.on(share, drops)
        check_free(f"{directory}/shared/lock")
        assert shared.state.buffer.counters()[1] >= 0
        finished(lambda: rb.add(shared.state, shared.batch()))
        rain.on(save, drops)
        finished(lambda: background.wait_for(place))
        check_free(f"{place}/lock")
        loaded = saved.ids(frb.load(place, rb, storage=frb.Device()))
        assert len(loaded) == len(set(loaded)) > 0
        finished(lambda: frb.save(saved.state, place))
        assert saved.ids(frb.load(place, rb, storage=frb.Device())) == saved.ids(saved.state)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # or the interpreter would die of one as it ends
    print(rain.hits, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
