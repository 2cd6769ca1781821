"""Buffers that other processes keep: ours in shards, and torchrl's actor. All have the same calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

SHAPES: dict[str, dict[str, tuple[tuple[int, ...], str]]] = {
    "steps": {
        "obs": ((17,), "float32"),
        "action": ((6,), "float32"),
        "reward": ((), "float32"),
        "next_obs": ((17,), "float32"),
        "done": ((), "bool"),
    },
    "frames": {"obs": ((4, 84, 84), "uint8"), "action": ((), "int64"), "reward": ((), "float32")},
}
"""What items are made of: 165 bytes of control, and 28 KB of pictures."""


def batch_of(kind: str, n: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        name: random.integers(0, 2, (n, *shape)).astype(dtype) for name, (shape, dtype) in SHAPES[kind].items()
    }  # fmt: skip


def item_bytes(kind: str) -> int:
    return sum(array.nbytes for array in batch_of(kind, 1).values())


class Ours:
    """`frb.ray` from a client of torch, uniform or prioritized."""

    name = "functional_rb, uniform"
    prioritized = False

    def __init__(self, kind: str, capacity: int, shards: int) -> None:
        import functional_rb as frb

        item = {name: frb.Unbounded(shape, dtype) for name, (shape, dtype) in SHAPES[kind].items()}
        sampler = frb.Prioritized(alpha=0.6, beta=0.4) if self.prioritized else frb.Uniform()
        spec = frb.BufferSpec(item, capacity, sampler=sampler)
        self.buffer_name = f"{kind}_{capacity}_{shards}_{os.urandom(3).hex()}"
        options = {"num_cpus": 0.01}
        self.client = frb.ray.start(
            spec, shards, backend="torch_backend", name=self.buffer_name, actor_options=options, in_flight=8
        )
        self.seed = 0

    def clients(self) -> Callable[[], Any]:
        name = self.buffer_name

        def connect() -> Any:
            import functional_rb as frb

            other = Ours.__new__(Ours)
            other.client, other.seed = frb.ray.connect(name, backend="torch_backend"), 0
            return other

        return connect

    def add(self, batch: dict[str, np.ndarray]) -> None:
        """Add, without waiting for more than what is in flight: as an actor does."""
        self.client.add(batch)

    def add_and_wait(self, batch: dict[str, np.ndarray]) -> None:
        self.client.add(batch).result()

    def flush(self) -> None:
        self.client.flush()

    def sample(self, n: int) -> Any:
        self.seed += 1
        return self.client.sample(self.seed, n)

    def stream(self, n: int, batches: int) -> None:
        for _ in self.client.iterate(1, n, n=batches, prefetch=8, per_call=4):
            pass

    def close(self) -> None:
        import ray

        for actor in (*self.client._transport._actors, self.client._transport._coordinator):
            ray.kill(actor)


class OursPrioritized(Ours):
    """The same, prioritized."""

    name = "functional_rb, prioritized"
    prioritized = True


class TorchRL:
    """torchrl's `RayReplayBuffer`: one actor, of TensorDicts; uniform, as prioritized needs a build of C++."""

    name = "torchrl RayReplayBuffer"

    def __init__(self, kind: str, capacity: int, shards: int) -> None:
        import functools

        from torchrl.data import LazyTensorStorage, RayReplayBuffer

        self.buffer = RayReplayBuffer(
            storage=functools.partial(LazyTensorStorage, capacity),
            remote_config={"num_cpus": 0.01},
            ray_init_config={},
        )

    def add(self, batch: dict[str, np.ndarray]) -> None:
        import torch
        from tensordict import TensorDict

        n = len(next(iter(batch.values())))
        self.buffer.extend(TensorDict({k: torch.from_numpy(x) for k, x in batch.items()}, batch_size=[n]))

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


CONTENDERS: dict[str, type] = {"functional_rb": Ours, "prioritized": OursPrioritized, "torchrl": TorchRL}
