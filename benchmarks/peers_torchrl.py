"""torchrl on a LazyTensorStorage: its plain and prioritized buffers, and its samplers of slices."""

from __future__ import annotations

import importlib
import logging
from itertools import cycle
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers import samplers

from benchmarks.contender import Contender, Sampler, Sequencing, SliceContender
from benchmarks.torch_loop import synchronizer, to_tensors
from benchmarks.workload import Batch, SliceWorkload, Workload


class Torchrl(Contender):
    """A torchrl buffer fed with TensorDicts, its native batches."""

    def __init__(self, work: Workload, sampler: Sampler, device: str = "cpu") -> None:
        super().__init__("torchrl", "torch", sampler)
        logging.getLogger("torchrl").setLevel(logging.WARNING)  # it announces every storage
        storage = LazyTensorStorage(work.capacity, device=device)
        if sampler == "uniform":
            self._buffer = TensorDictReplayBuffer(storage=storage, batch_size=work.sample_size)
        else:
            _require_compiled_trees()
            self._buffer = TensorDictPrioritizedReplayBuffer(
                alpha=work.alpha, beta=work.beta, storage=storage, batch_size=work.sample_size
            )
        chunk = TensorDict(to_tensors(work.chunk(), device), batch_size=[work.chunk_size])
        priorities = torch.as_tensor(work.chunk_priorities(), device=device)
        for slots in work.slots():
            self._buffer.extend(chunk)
            if sampler == "prioritized":
                self._buffer.update_priority(torch.as_tensor(slots, device=device).long(), priorities)
        self._batches = cycle(
            [TensorDict(to_tensors(batch, device), batch_size=[work.add_size]) for batch in work.batches()]
        )
        self._priorities = cycle([torch.as_tensor(values, device=device) for values in work.priorities()])
        self._synchronize = synchronizer(device)

    def add(self) -> None:
        self._buffer.extend(next(self._batches))
        self._synchronize()

    def sample(self) -> None:
        self.drawn.append(self._buffer.sample()["index"])
        self._synchronize()

    def update(self) -> None:
        # Faster than update_tensordict_priority, which would first look the two entries up.
        self._buffer.update_priority(self.next_drawn(), next(self._priorities))
        self._synchronize()


class TorchrlSlices(SliceContender):
    """A TensorDictReplayBuffer with one of torchrl's samplers of slices, or of items without replacement."""

    def __init__(self, work: SliceWorkload, sampler: Sequencing) -> None:
        super().__init__("torchrl", "torch", sampler)
        logging.getLogger("torchrl").setLevel(logging.WARNING)  # it announces every storage
        self._length = 1 if sampler == "without replacement" else work.length
        self._buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(work.capacity),
            sampler=_slice_sampler(work, sampler),
            batch_size=work.sample_size * self._length,
        )
        self._batches = cycle([_one_lane(batch) for batch in work.adds()])
        self._priorities = cycle([torch.as_tensor(values) for values in work.priorities()])
        for chunk in work.fills():
            self._buffer.extend(_one_lane(chunk))
        if sampler == "prioritized slices":
            priorities = torch.as_tensor(work.chunk_priorities())
            for slots in work.slots():
                self._buffer.update_priority(torch.as_tensor(slots).long(), priorities)

    def add(self) -> None:
        self._buffer.extend(next(self._batches))

    def sample(self) -> None:
        index = self._buffer.sample()["index"]
        self.drawn.append(index)
        self.steps = index.numel()

    def update(self) -> None:
        # It keeps a priority for every step and draws slices by that of their first.
        starts = self.drawn[0].view(-1, self._length)[:, 0]
        self._buffer.update_priority(starts, next(self._priorities))


def _slice_sampler(work: SliceWorkload, sampler: Sequencing) -> Any:
    where = {"slice_len": work.length, "end_key": "done"}
    if sampler == "slices":
        return samplers.SliceSampler(**where)
    if sampler == "slices without replacement":
        return samplers.SliceSamplerWithoutReplacement(**where)
    if sampler == "without replacement":
        return samplers.SamplerWithoutReplacement()
    if sampler == "prioritized slices":
        _require_compiled_trees()
        return samplers.PrioritizedSliceSampler(work.capacity, work.alpha, work.beta, **where)
    raise ValueError(f"torchrl has no counterpart of {sampler!r}")


def _one_lane(batch: Batch) -> TensorDict:
    steps = {name: leaf[0] for name, leaf in batch.items()}
    return TensorDict(to_tensors(steps, "cpu"), batch_size=[len(steps["done"])])


def _require_compiled_trees() -> None:
    # The published wheel is bound to one torch release; ask for the binary by name, so that the report shows why it
    # does not load and not only that it is missing.
    importlib.import_module("torchrl._torchrl")
