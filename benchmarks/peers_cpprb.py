"""cpprb: its plain and prioritized buffers, n-step returns and compact storage, NumPy in and NumPy out."""

from __future__ import annotations

import tracemalloc
from itertools import cycle
from typing import Any

import cpprb
import numpy as np

from benchmarks.contender import AnySampler, Contender, Sampler, TurnContender
from benchmarks.workload import ITEM, Batch, NStepWorkload, ObservationWorkload, Workload


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


class CpprbNStep(TurnContender):
    """A cpprb buffer that makes n-step returns when steps are added. It is told where each episode ends."""

    def __init__(self, work: NStepWorkload) -> None:
        super().__init__("cpprb", "torch", "n-step")
        leaves = {name: {"shape": shape or 1, "dtype": dtype} for name, (shape, dtype) in ITEM.items()}
        n_step = {"size": work.n, "gamma": work.gamma, "rew": "reward", "next": "next_obs"}
        self._buffer = cpprb.ReplayBuffer(work.capacity, leaves, Nstep=n_step)
        for chunk in work.fills():
            _add_episodes(self._buffer, work.in_time(chunk))
        self._sample_size = work.sample_size
        self._batches = cycle([work.in_time(batch) for batch in work.adds()])

    def add(self) -> None:
        _add_episodes(self._buffer, next(self._batches))

    def sample(self) -> None:
        self._buffer.sample(self._sample_size)


class CpprbObservations(TurnContender):
    """A cpprb buffer that stores no observation twice (`next_of`), and no frame of a stack (`stack_compress`).

    It wants the stack as the last axis, and is told where each episode ends.
    """

    def __init__(self, work: ObservationWorkload, sampler: AnySampler) -> None:
        super().__init__("cpprb", "torch", sampler)
        stacked = work.stack > 1
        shape = (*work.shape, work.stack) if stacked else work.shape
        leaves = {
            "obs": {"shape": shape, "dtype": work.dtype},
            "action": {"shape": work.action_size or 1, "dtype": np.float32 if work.action_size else np.int32},
            "reward": {"dtype": np.float32},
            "done": {"dtype": np.bool_},
        }
        # Its arrays are hidden; NumPy tells tracemalloc what it allocates.
        tracemalloc.start()
        self._buffer = cpprb.ReplayBuffer(
            work.capacity, leaves, next_of="obs", stack_compress="obs" if stacked else None
        )
        for chunk in work.fills():
            _add_episodes(self._buffer, _stack_last(chunk) if stacked else chunk)
        del chunk
        self._held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        self._sample_size = work.sample_size
        self._batches = cycle([_stack_last(batch) if stacked else batch for batch in work.adds()])

    def add(self) -> None:
        _add_episodes(self._buffer, next(self._batches))

    def sample(self) -> None:
        self._buffer.sample(self._sample_size)

    def held_bytes(self) -> int:
        return self._held


def _add_episodes(buffer: Any, steps: Batch) -> None:
    """Add consecutive steps [steps, ...], closing every episode that ends among them."""
    done = steps["done"]
    start = 0
    for end in np.flatnonzero(done) + 1:
        buffer.add(**{name: leaf[start:end] for name, leaf in steps.items()})
        buffer.on_episode_end()
        start = end
    if start < len(done):
        buffer.add(**{name: leaf[start:] for name, leaf in steps.items()})


def _stack_last(batch: Batch) -> Batch:
    """The batch with its stacks [steps, stack, ...] as [steps, ..., stack]."""
    moved = {name: np.ascontiguousarray(np.moveaxis(batch[name], 1, -1)) for name in ("obs", "next_obs")}
    return {**batch, **moved}
