"""torchrl on a LazyMemmapStorage: sampled from, saved and loaded, and shared by processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import cycle
from typing import TYPE_CHECKING

from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import RandomSampler

from benchmarks.contender import Backend, PartContender, Storing
from benchmarks.shared import Partner, Sharing
from benchmarks.torch_loop import to_tensors
from benchmarks.workload import Batch, Workload

if TYPE_CHECKING:
    from benchmarks.storage import Place


class TorchrlInFiles(PartContender):
    """Adds and samples of a buffer over memory-mapped files."""

    def __init__(self, name: str, backend: Backend, group: Storing, work: Workload, place: Place) -> None:
        super().__init__(name, backend, group, "add", "sample")
        storage = LazyMemmapStorage(work.capacity, scratch_dir=str(place.folder / "torchrl"), existsok=True)
        self._buffer = _filled(TensorDictReplayBuffer, storage, work)
        self._batches = cycle([_stored(batch) for batch in work.batches()])

    def add(self) -> None:
        self._buffer.extend(next(self._batches))

    def sample(self) -> None:
        self.drawn.append(self._buffer.sample()["index"])


class TorchrlSaving(PartContender):
    """`dumps` to a folder, in place of what is there, and `loads`."""

    def __init__(self, name: str, backend: Backend, group: Storing, work: Workload, place: Place) -> None:
        super().__init__(name, backend, group, "save", "load")
        self._buffer = _filled(TensorDictReplayBuffer, LazyTensorStorage(work.capacity), work)
        self._other = _filled(TensorDictReplayBuffer, LazyTensorStorage(work.capacity), work)
        self._folder = place.folder / "torchrl"

    def save(self) -> None:
        self._buffer.dumps(self._folder)

    def load(self) -> None:
        self._other.loads(self._folder)


class TorchrlShared(Sharing):
    """A buffer that is sent to the other process: `ReplayBuffer(shared=True)`."""

    def __init__(self, name: str, backend: Backend, group: Storing, work: Workload, place: Place) -> None:
        super().__init__(name, backend, group)
        storage = LazyMemmapStorage(work.capacity, scratch_dir=str(place.folder / "torchrl_shared"), existsok=True)
        buffer = _filled(ReplayBuffer, storage, work, shared=True)
        self._call = torchrl_calls(buffer, work, self.writes)
        self.partner = Partner(torchrl_calls, buffer, work, not self.writes)
        place.ends.callback(self.partner.end)

    def add(self) -> None:
        self._call()

    def sample(self) -> None:
        self._call()


def torchrl_calls(buffer: ReplayBuffer, work: Workload, writes: bool) -> Callable[[], object]:
    """What each process calls."""
    batches = cycle([_stored(batch) for batch in work.batches()])
    return (lambda: buffer.extend(next(batches))) if writes else buffer.sample


def _filled(kind: type[ReplayBuffer], storage: LazyTensorStorage, work: Workload, shared: bool = False) -> ReplayBuffer:
    logging.getLogger("torchrl").setLevel(logging.WARNING)  # it announces every storage
    buffer = kind(storage=storage, sampler=RandomSampler(), batch_size=work.sample_size, shared=shared)
    chunk = _stored(work.chunk())
    for _ in range(work.chunks):
        buffer.extend(chunk)
    return buffer


def _stored(batch: Batch) -> TensorDict:
    return TensorDict(to_tensors(batch, "cpu"), batch_size=[len(batch["done"])])
