"""cpprb: ReplayBuffer and PrioritizedReplayBuffer, NumPy in and NumPy out."""

from __future__ import annotations

from itertools import cycle

import cpprb

from benchmarks.contender import Contender, Sampler
from benchmarks.workload import ITEM, Workload


class Cpprb(Contender):
    """A cpprb buffer. It knows neither torch nor JAX, and is compared with torch eager."""

    def __init__(self, work: Workload, sampler: Sampler) -> None:
        super().__init__("cpprb", "torch", sampler)
        leaves = {name: {"shape": shape or 1, "dtype": dtype} for name, (shape, dtype) in ITEM.items()}
        chunk = work.chunk()
        if sampler == "uniform":
            self._buffer = cpprb.ReplayBuffer(work.capacity, leaves)
            for _ in range(work.chunks):
                self._buffer.add(**chunk)
        else:
            self._buffer = cpprb.PrioritizedReplayBuffer(work.capacity, leaves, alpha=work.alpha)
            for _ in range(work.chunks):
                self._buffer.add(**chunk, priorities=work.chunk_priorities())
        self._sample_size = work.sample_size
        self._sample_options = {"beta": work.beta} if sampler == "prioritized" else {}
        self._batches = cycle(work.batches())
        self._priorities = cycle(work.priorities())

    def add(self) -> None:
        self._buffer.add(**next(self._batches))

    def sample(self) -> None:
        drawn = self._buffer.sample(self._sample_size, **self._sample_options)
        if self.sampler == "prioritized":
            self.drawn.append(drawn["indexes"])

    def update(self) -> None:
        self._buffer.update_priorities(self.next_drawn(), next(self._priorities))
