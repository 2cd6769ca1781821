"""torchrl on a LazyTensorStorage: its plain and prioritized buffers, samplers of slices, n-step and stacked frames."""

from __future__ import annotations

import importlib
import logging
from itertools import cycle
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers import samplers
from torchrl.envs.transforms import CatFrames, MultiStepTransform

from benchmarks.contender import AnySampler, Contender, Sampler, Sequencing, SliceContender, TurnContender
from benchmarks.torch_loop import synchronizer, to_tensors
from benchmarks.workload import Batch, NStepWorkload, ObservationWorkload, SliceWorkload, Workload


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


class TorchrlNStep(TurnContender):
    """A buffer whose MultiStepTransform makes n-step returns when steps are added, [environments, time] at a time.

    It holds each step back until n further ones have come, and stores steps, discount and the first reward beside it.
    """

    def __init__(self, work: NStepWorkload) -> None:
        super().__init__("torchrl", "torch", "n-step")
        logging.getLogger("torchrl").setLevel(logging.WARNING)  # it announces every storage
        self._buffer = ReplayBuffer(
            storage=LazyTensorStorage(work.capacity, ndim=2),
            transform=MultiStepTransform(n_steps=work.n, gamma=work.gamma),
            batch_size=work.sample_size,
        )
        for chunk in work.fills():
            self._buffer.extend(_transitions(chunk))
        self._batches = cycle([_transitions(batch) for batch in work.adds()])

    def add(self) -> None:
        self._buffer.extend(next(self._batches))

    def sample(self) -> None:
        self._buffer.sample()


class TorchrlObservations(TurnContender):
    """A buffer that stores both observations of every transition, whole stacks where there are any."""

    def __init__(self, work: ObservationWorkload, sampler: AnySampler, name: str) -> None:
        super().__init__(name, "torch", sampler)
        logging.getLogger("torchrl").setLevel(logging.WARNING)  # it announces every storage
        self._storage = LazyTensorStorage(work.capacity)
        self._buffer = self._make_buffer(work)
        for chunk in work.fills():
            self._buffer.extend(self._stored(chunk))
        self._batches = cycle([self._stored(batch) for batch in work.adds()])

    def _make_buffer(self, work: ObservationWorkload) -> ReplayBuffer:
        return ReplayBuffer(storage=self._storage, sampler=samplers.RandomSampler(), batch_size=work.sample_size)

    def _stored(self, batch: Batch) -> TensorDict:
        return _transitions(batch)

    def add(self) -> None:
        self._buffer.extend(next(self._batches))

    def sample(self) -> None:
        self._buffer.sample()

    def held_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in self._storage[:].values(include_nested=True, leaves_only=True))


class TorchrlCatFrames(TorchrlObservations):
    """A buffer of single frames, which CatFrames stacks over slices: what its documentation recommends.

    The frame after a step is stored too. Episodes shorter than a stack, and steps with fewer steps before them in
    their episode than a stack has, are never drawn.
    """

    def _make_buffer(self, work: ObservationWorkload) -> ReplayBuffer:
        # Outside an environment it has to be told a reset key, which it does not use here.
        frames = CatFrames(N=work.stack, dim=-3, in_keys=["frame"], out_keys=["obs"], reset_key="_reset")
        transform, sampler = frames.make_rb_transform_and_sampler(work.sample_size, end_key=("next", "done"))
        return ReplayBuffer(storage=self._storage, sampler=sampler, transform=transform, batch_size=work.sample_size)

    def _stored(self, batch: Batch) -> TensorDict:
        stored = _transitions(batch)
        frame, after = stored.pop("obs"), stored.pop(("next", "obs"))
        stored["frame"] = frame[:, -1:].clone()
        stored["next", "frame"] = after[:, -1:].clone()
        return stored


def _transitions(batch: Batch) -> TensorDict:
    """A batch in the format that its transforms read; a reward and a flag have an axis of their own there."""
    steps = to_tensors(batch, "cpu")
    after = {
        "obs": steps["next_obs"],
        "reward": steps["reward"].unsqueeze(-1),
        "done": steps["done"].unsqueeze(-1),
    }
    return TensorDict({"obs": steps["obs"], "action": steps["action"], "next": after}, batch_size=steps["done"].shape)


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
