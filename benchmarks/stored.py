"""functional_rb in the section `storage`: in files, on disk, and ahead of a training loop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

import functional_rb as frb
from benchmarks import ours
from benchmarks.contender import Backend, PartContender, Storing
from benchmarks.workload import Batch, Workload

if TYPE_CHECKING:
    from benchmarks.storage import Place

FRAMES = "64 observations of 84 x 84 x 4 bytes"
FRAME_ITEM = {"obs": frb.Unbounded((84, 84, 4), "uint8"), "action": frb.Categorical(18)}
FRAME_BATCH = 64


class OursInMemory(PartContender):
    """The public functions, as a buffer on a device is used: on JAX an add is jitted, and the state donated."""

    def __init__(self, name: str, backend: Backend, group: Storing, work: Workload, place: Place) -> None:
        super().__init__(name, backend, group, "add", "sample")
        self._rb, put, self._wait = library(backend)
        self._sample_size = work.sample_size
        self._batches = cycle([put(batch) for batch in work.batches()])
        self._keys = cycle(list(self._rb.split(self._rb.key(work.seed), min(work.draws, 256))))
        self.state = filled(
            self._rb, put, replace(ours.buffer_spec(work, "uniform"), storage=self._storage(place)), work
        )
        self._add = self._adding(backend)

    def _storage(self, place: Place) -> Any:
        return frb.Device()

    def _adding(self, backend: Backend) -> Callable[[Any, Any], Any]:
        if backend == "torch":
            return self._rb.add
        import jax

        add, wait = jax.jit(self._rb.add, donate_argnums=0), self._wait
        return lambda state, items: wait(add(state, items))

    def add(self) -> None:
        self.state = self._add(self.state, next(self._batches))

    def sample(self) -> None:
        _, drawn = self._rb.sample(self.state, next(self._keys), self._sample_size)
        self.drawn.append(self._wait(drawn).indices)


class OursInFiles(OursInMemory):
    """The same over memory-mapped files, outside of jit. An add is over when it returns: nothing is waited for."""

    def _storage(self, place: Place) -> Any:
        return frb.Memmap(str(place.folder / "memmap"))

    def _adding(self, backend: Backend) -> Callable[[Any, Any], Any]:
        return self._rb.add


class Saving(PartContender):
    """Whole checkpoints, each with what lies in it waited for."""

    incremental = False

    def __init__(self, name: str, backend: Backend, group: Storing, work: Workload, place: Place) -> None:
        super().__init__(name, backend, group, "add", "save", "load")
        self._rb, put, _ = library(backend)
        self._folder = place.folder / name.replace(" ", "_")
        self._changes = put(work._items(np.random.default_rng(work.seed + 4), max(1, work.capacity // 100)))
        self.state = filled(self._rb, put, ours.buffer_spec(work, "uniform"), work)
        frb.save(self.state, self._folder)

    def add(self) -> None:
        self.state = self._rb.add(self.state, self._changes)

    def save(self) -> None:
        frb.save(self.state, self._folder, incremental=self.incremental)

    def load(self) -> None:
        frb.load(self._folder, self._rb)


class SavingChanges(Saving):
    """Checkpoints of a hundredth that is new."""

    incremental = True


class BareFile(PartContender):
    """As many bytes by NumPy to a new file, which then takes the place of the old one; and back."""

    def __init__(self, name: str, backend: Backend, group: Storing, work: Workload, place: Place) -> None:
        super().__init__(name, backend, group, "save", "load")
        self._array = np.random.default_rng(work.seed).integers(
            0, 2**31, (work.capacity, ours.buffer_spec(work, "uniform").plan.layout.row_words), np.int32
        )
        self._path = place.folder / "bare"

    def save(self) -> None:
        aside = self._path.with_suffix(".new")
        with aside.open("wb") as file:
            self._array.tofile(file)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(self._path)

    def load(self) -> None:
        np.fromfile(self._path, np.int32)


class Training(PartContender):
    """A loop that draws a batch and trains on it."""

    step_length = 20

    def __init__(self, name: str, backend: Backend, group: Storing, work: Workload, place: Place) -> None:
        super().__init__(name, backend, group, "step")
        self._rb, put, self._wait = library(backend)
        capacity = max(FRAME_BATCH, work.capacity // 200)
        self._state = self._rb.init(frb.BufferSpec(FRAME_ITEM, capacity, batch_size=FRAME_BATCH))
        rng = np.random.default_rng(work.seed)
        frames = {
            "obs": rng.integers(0, 255, (FRAME_BATCH, 84, 84, 4), np.uint8),
            "action": np.zeros(FRAME_BATCH, np.int32),
        }
        for _ in range(capacity // FRAME_BATCH):
            self._state = self._rb.add(self._state, put(frames))
        self._key = self._rb.key(work.seed)
        self._pause = self._seconds_of_a_sample()

    def _seconds_of_a_sample(self) -> float:
        taken = []
        for _ in range(10):
            start = time.perf_counter()
            self._wait(self._rb.sample(self._state, self._key)[1])
            taken.append(time.perf_counter() - start)
        return sorted(taken)[len(taken) // 2]

    def step(self) -> None:
        for sample in self._samples():
            self._wait(sample)
            time.sleep(self._pause)  # an accelerator works, and the host waits

    def _samples(self) -> Any:
        for _ in range(self.step_length):
            self._key, now = self._rb.split(self._key)
            yield self._rb.sample(self._state, now)[1]


class TrainingAhead(Training):
    """The same with the next batches drawn meanwhile."""

    def _samples(self) -> Any:
        self._key, key = self._rb.split(self._key)
        return frb.iterate(self._rb, self._state, key, n=self.step_length)


def filled(rb: Any, put: Callable[[Batch], Any], spec: frb.BufferSpec, work: Workload) -> Any:
    """A full buffer."""
    state, chunk = rb.init(spec), put(work.chunk())
    for _ in range(work.chunks):
        state = rb.add(state, chunk)
    return state


def library(backend: Backend) -> tuple[Any, Callable[[Batch], Any], Callable[[Any], Any]]:
    """The backend; what makes its arrays of a NumPy batch; what waits for a result."""
    if backend == "torch":
        import torch_backend
        from benchmarks.torch_loop import to_tensors

        return torch_backend, lambda batch: to_tensors(batch, "cpu"), lambda result: result
    import jax

    import jax_backend
    from benchmarks.jax_loop import to_device

    return jax_backend, to_device, jax.block_until_ready
