"""torchrl: TensorDictReplayBuffer and TensorDictPrioritizedReplayBuffer on a LazyTensorStorage."""

from __future__ import annotations

import importlib
import logging
from itertools import cycle

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

from benchmarks.contender import Contender, Sampler
from benchmarks.torch_loop import synchronizer, to_tensors
from benchmarks.workload import Workload


class Torchrl(Contender):
    """A torchrl buffer fed with TensorDicts, its native batches."""

    def __init__(self, work: Workload, sampler: Sampler, device: str = "cpu") -> None:
        super().__init__("torchrl", "torch", sampler)
        logging.getLogger("torchrl").setLevel(logging.WARNING)  # it announces every storage
        storage = LazyTensorStorage(work.capacity, device=device)
        if sampler == "uniform":
            self._buffer = TensorDictReplayBuffer(storage=storage, batch_size=work.sample_size)
        else:
            # The published wheel is bound to one torch release; ask for the binary by name, so that the
            # report shows why it does not load and not only that it is missing.
            importlib.import_module("torchrl._torchrl")
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
