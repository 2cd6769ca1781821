"""Buffers that other processes keep, all with the same calls: ours, torchrl's, TransferQueue's, Reverb's."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np


class Kind(NamedTuple):
    """What items are made of, and how many go in one call.

    Attributes:
        name: as the tables have it.
        leaves: shape and dtype of each.
        add: items of an add.
        draw: items of a sample.
    """

    name: str
    leaves: dict[str, tuple[tuple[int, ...], str]]
    add: int
    draw: int

    @property
    def item_bytes(self) -> int:
        return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in self.leaves.values())

    def batch(self, n: int) -> dict[str, np.ndarray]:
        """The same items at every run."""
        random = np.random.default_rng(0)
        return {name: random.integers(0, 2, (n, *shape)).astype(dtype) for name, (shape, dtype) in self.leaves.items()}

    def capacity(self, most: int) -> int:
        """So many items as fit into that many bytes, at most 100,000, in multiples of what 8 shards have."""
        return max(min(most // self.item_bytes, 100_000) // 64 * 64, 2 * self.add * 64)


STEPS = Kind(
    "steps, 165 B",
    {
        "obs": ((17,), "float32"),
        "action": ((6,), "float32"),
        "reward": ((), "float32"),
        "next_obs": ((17,), "float32"),
        "done": ((), "bool"),
    },
    64,
    256,
)
FRAMES = Kind(
    "frames, 28 KB",
    {"obs": ((4, 84, 84), "uint8"), "action": ((), "int64"), "reward": ((), "float32")},
    16,
    64,
)


def blob(name: str, size: int, add: int, draw: int) -> Kind:
    return Kind(name, {"data": ((size,), "uint8")}, add, draw)


KINDS = {
    "steps": STEPS,
    "frames": FRAMES,
    "100B": blob("100 B", 100, 64, 256),
    "1KB": blob("1 KB", 1000, 64, 256),
    "10KB": blob("10 KB", 10_000, 64, 64),
    "100KB": blob("100 KB", 100_000, 8, 16),
    "1MB": blob("1 MB", 1_000_000, 2, 4),
}


class Contender(Protocol):
    """One client of a buffer that lies in other processes."""

    def add(self, batch: dict[str, np.ndarray]) -> Any:
        """Add; need not wait."""

    def add_and_wait(self, batch: dict[str, np.ndarray]) -> Any:
        """Add, and wait until it is there."""

    def flush(self) -> Any:
        """Wait until all is there."""

    def sample(self, n: int) -> Any:
        """Draw a batch."""

    def stream(self, n: int, batches: int) -> Any:
        """Draw some batches, as a learner would that wants many."""


class Ours:
    """`frb.ray` from a client of torch, uniform."""

    name = "functional_rb"
    prioritized = False

    def __init__(self, kind: Kind, capacity: int, shards: int = 1) -> None:
        import functional_rb as frb

        item = {name: frb.Unbounded(shape, dtype) for name, (shape, dtype) in kind.leaves.items()}
        sampler = frb.Prioritized(alpha=0.6, beta=0.4) if self.prioritized else frb.Uniform()
        spec = frb.BufferSpec(item, capacity, sampler=sampler)
        self.buffer_name = f"buffer_{os.urandom(4).hex()}"
        self.client = frb.ray.start(
            spec,
            shards,
            backend="torch_backend",
            options=frb.ray.Options(self.buffer_name, actors={"num_cpus": 0.01}, in_flight=8, per_call=4),
        )
        self.seed = 0

    def connector(self) -> Callable[[], Any]:
        """What gives another client in another process."""
        name = self.buffer_name

        def connect() -> Any:
            import functional_rb as frb

            other = Ours.__new__(Ours)
            other.client, other.seed = frb.ray.connect(name, backend="torch_backend"), 0
            return other

        return connect

    def add(self, batch: dict[str, np.ndarray]) -> None:
        self.client.add(batch)

    def add_and_wait(self, batch: dict[str, np.ndarray]) -> None:
        self.client.add(batch).result()

    def flush(self) -> None:
        self.client.flush()

    def sample(self, n: int) -> Any:
        self.seed += 1
        return self.client.sample(self.seed, n)

    def stream(self, n: int, batches: int) -> None:
        self.seed += 1
        for _ in self.client.iterate(self.seed, n, n=batches, prefetch=8, per_call=4):
            pass

    def shard_processes(self) -> list[int]:
        import ray

        return list(ray.get([actor.process.remote() for actor in self.client._watch.transport._actors]))

    def close(self) -> None:
        import ray

        for actor in (*self.client._watch.transport._actors, self.client._watch.transport._coordinator):
            ray.kill(actor)


class OursPrioritized(Ours):
    """The same, prioritized."""

    name = "functional_rb, prioritized"
    prioritized = True


class TorchRL:
    """torchrl's `RayReplayBuffer`: one actor, of TensorDicts; uniform, as prioritized needs a build of C++."""

    name = "torchrl"

    def __init__(self, kind: Kind, capacity: int, shards: int = 1) -> None:
        import functools

        from torchrl.data import LazyTensorStorage, RayReplayBuffer

        self.buffer = RayReplayBuffer(
            storage=functools.partial(LazyTensorStorage, capacity),
            remote_config={"num_cpus": 0.01},
            ray_init_config={},
        )

    def connector(self) -> Callable[[], Any]:
        actor = self.buffer._rb

        def connect() -> Any:
            from torchrl.data.replay_buffers import ray_buffer

            other = TorchRL.__new__(TorchRL)
            other.buffer = ray_buffer._RayReplayBufferClient(actor, has_gpu=False)
            return other

        return connect

    def add(self, batch: dict[str, np.ndarray]) -> None:
        self.buffer.extend(_tensordict(batch))

    add_and_wait = add

    def flush(self) -> None:
        """All calls wait already."""

    def sample(self, n: int) -> Any:
        return self.buffer.sample(n)

    def stream(self, n: int, batches: int) -> None:
        for _ in range(batches):
            self.buffer.sample(n)

    def close(self) -> None:
        self.buffer.close()


class TransferQueue:
    """TransferQueue's put and get: rows into a partition, and each out once, in their order.

    What it holds would grow without end, so that rows are cleared, and marks of what was consumed taken back, whenever
    a partition is full or used up: the time of that is not counted.
    """

    name = "TransferQueue"
    started = False
    partitions = 0

    def __init__(self, kind: Kind, capacity: int, shards: int = 1) -> None:
        import transfer_queue
        from omegaconf import OmegaConf

        if not TransferQueue.started:
            storage = {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}
            transfer_queue.init(OmegaConf.create(storage))
            TransferQueue.started = True
        TransferQueue.partitions += 1
        self._begin(f"partition_{TransferQueue.partitions}", kind, capacity)

    def _begin(self, partition: str, kind: Kind, capacity: int) -> None:
        import transfer_queue

        self.client = transfer_queue.get_client()
        self.partition, self.kind = partition, kind
        # Its controller looks through all rows at each call, so that a smaller partition is to its advantage.
        self.rows, self.full = 0, min(capacity, 8192, 64 * kind.draw)
        self.left, self.uncounted, self.task = 0, 0.0, f"task_{os.urandom(3).hex()}"

    def connector(self) -> Callable[[], Any]:
        partition, kind, full = self.partition, self.kind, self.full

        def connect() -> Any:
            import transfer_queue

            transfer_queue.init()
            other = TransferQueue.__new__(TransferQueue)
            # Rows that one client clears another may be reading: each has a partition of its own.
            other._begin(f"{partition}_{os.urandom(3).hex()}", kind, full)
            return other

        return connect

    def add(self, batch: dict[str, np.ndarray]) -> None:
        import time

        data = _tensordict(batch)
        if self.rows + len(data) > self.full:
            begin = time.perf_counter()
            self.client.clear_partition(self.partition)
            self.rows = self.left = 0
            self.uncounted += time.perf_counter() - begin
        self.client.put(data, partition_id=self.partition)
        self.rows += len(data)
        self.left += len(data)

    add_and_wait = add

    def flush(self) -> None:
        """All calls wait already."""

    def sample(self, n: int) -> Any:
        import time

        while self.left < n:
            begin = time.perf_counter()
            if self.rows >= n:
                self.client.reset_consumption(self.partition, self.task)
                self.left = self.rows
            else:
                self.add(self.kind.batch(self.kind.add))
            self.uncounted += time.perf_counter() - begin
        self.left -= n
        meta = self.client.get_meta(
            data_fields=list(self.kind.leaves), batch_size=n, partition_id=self.partition, task_name=self.task
        )
        return self.client.get_data(meta)

    def stream(self, n: int, batches: int) -> None:
        for _ in range(batches):
            self.sample(n)

    def close(self) -> None:
        self.client.clear_partition(self.partition)


class Reverb:
    """Reverb's server and client, in an interpreter of their own, as it needs an older TensorFlow and NumPy 1."""

    name = "Reverb"
    python = ""

    def __init__(self, kind: Kind, capacity: int, shards: int = 1) -> None:
        told = {"leaves": kind.leaves, "capacity": capacity, "add": kind.add}
        worker = Path(__file__).with_name("reverb_worker.py")
        self._process = subprocess.Popen(
            [self.python, str(worker), json.dumps(told)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env={"PATH": os.environ["PATH"], "TF_CPP_MIN_LOG_LEVEL": "3"},
        )  # fmt: skip
        self.asked("ready")

    def asked(self, what: str, **more: Any) -> Any:
        """What the worker answers: it measures by itself, so that no time of this process is in it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, **more}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"Reverb's process ended with {self._process.wait()}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _tensordict(batch: dict[str, np.ndarray]) -> Any:
    import torch
    from tensordict import TensorDict

    n = len(next(iter(batch.values())))
    return TensorDict({k: torch.from_numpy(x) for k, x in batch.items()}, batch_size=[n])


CONTENDERS: dict[str, Any] = {
    "functional_rb": Ours, "prioritized": OursPrioritized, "torchrl": TorchRL, "TransferQueue": TransferQueue,
    "Reverb": Reverb,
}  # fmt: skip
