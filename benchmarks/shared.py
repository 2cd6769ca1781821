"""A buffer that two processes use at once: one is measured, the other works all the while."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from itertools import cycle
from typing import TYPE_CHECKING, Any

import functional_rb as frb
from benchmarks.contender import Backend, PartContender, Storing
from benchmarks.stored import filled, library
from benchmarks.workload import Batch, Workload

if TYPE_CHECKING:
    from benchmarks.storage import Place

PATIENCE = 60.0  # seconds in which another process should have begun


class Partner:
    """A process that makes calls while it is told to."""

    def __init__(self, make: Callable[..., Callable[[], object]], *arguments: Any) -> None:
        """`make` is called over there, and returns what to call."""
        context = multiprocessing.get_context("spawn")
        self._go, self._stop, self._count = context.Event(), context.Event(), context.Value("q", 0)
        self._process = context.Process(
            target=_calls, args=(make, arguments, self._go, self._stop, self._count), daemon=True
        )
        self._process.start()

    def __enter__(self) -> None:
        """Let it work, and wait until it does."""
        before, until = self.done, time.monotonic() + PATIENCE
        self._go.set()
        while self.done == before:
            if not self.is_alive() or time.monotonic() > until:
                raise RuntimeError("the other process does not work")
            time.sleep(0.001)

    def __exit__(self, *error: object) -> None:
        """Let it rest."""
        self._go.clear()

    @property
    def done(self) -> int:
        """Calls that it made."""
        count: int = self._count.value
        return count

    def is_alive(self) -> bool:
        """Whether the process is there."""
        return self._process.is_alive()

    def end(self) -> None:
        """End the process."""
        self._stop.set()
        self._process.join(PATIENCE)
        self._process.kill()


def _calls(make: Callable[..., Callable[[], object]], arguments: Any, go: Any, stop: Any, done: Any) -> None:
    call = make(*arguments)
    while not stop.is_set():
        if go.wait(0.05):
            call()
            with done.get_lock():
                done.value += 1


class Sharing(PartContender):
    """A step is an add or a sample, as the group says, while another process does the other."""

    def __init__(self, name: str, backend: Backend, group: Storing) -> None:
        from benchmarks.storage import STEPS

        super().__init__(name, backend, group, "step")
        self.step_length = STEPS
        self.writes = group == "shared writer"
        self.partner: Partner | None = None

    def step(self) -> None:
        assert self.partner is not None
        call = self.add if self.writes else self.sample
        with self.partner:
            for _ in range(self.step_length):
                call()


class OursShared(Sharing):
    """Files that are mapped by both, `Memmap(shared=True)`."""

    def __init__(self, name: str, backend: Backend, group: Storing, work: Workload, place: Place) -> None:
        super().__init__(name, backend, group)
        spec = shared_spec(work, str(place.folder / "shared"))
        rb, put, _ = library(backend)
        state = filled(rb, put, spec, work)
        self._write, self._read = writing(rb, put, state, work), reading(rb, state, work)
        self.partner = Partner(ours_calls, backend, spec, work, not self.writes)
        place.ends.callback(self.partner.end)

    def add(self) -> None:
        self._write()

    def sample(self) -> None:
        self._read()


def shared_spec(work: Workload, path: str) -> frb.BufferSpec:
    """The workload's items in shared files."""
    from dataclasses import replace

    from benchmarks.ours import buffer_spec

    return replace(buffer_spec(work, "uniform"), storage=frb.Memmap(path, shared=True))


def ours_calls(backend: Backend, spec: frb.BufferSpec, work: Workload, writes: bool) -> Callable[[], object]:
    """What the other process calls."""
    rb, put, _ = library(backend)
    state = rb.init(spec)
    return writing(rb, put, state, work) if writes else reading(rb, state, work)


def writing(rb: Any, put: Callable[[Batch], Any], state: Any, work: Workload) -> Callable[[], object]:
    """Adds of the workload's batches in turn."""
    batches = cycle([put(batch) for batch in work.batches()])
    return lambda: rb.add(state, next(batches))


def reading(rb: Any, state: Any, work: Workload) -> Callable[[], object]:
    """Samples by different keys in turn."""
    keys = cycle(list(rb.split(rb.key(work.seed), 256)))
    return lambda: rb.sample(state, next(keys), work.sample_size)
