"""The workload that every contender runs: items, batches and priorities as NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

Batch = dict[str, np.ndarray]

# One transition of a continuous-control task: shape and dtype of each leaf.
ITEM: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {
    "obs": ((17,), np.float32),
    "action": ((6,), np.float32),
    "reward": ((), np.float32),
    "next_obs": ((17,), np.float32),
    "done": ((), np.bool_),
}

ITEM_BYTES = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in ITEM.values())

# 32-bit words of one item when each leaf is rounded up to whole words: the row that the bare gather reads.
ROW_WORDS = sum(-(-int(np.prod(shape)) * np.dtype(dtype).itemsize // 4) for shape, dtype in ITEM.values())


@dataclass(frozen=True)
class Workload:
    """Sizes of the measured loop, and the data it rotates over."""

    capacity: int = 1_000_000
    add_size: int = 64
    sample_size: int = 256
    alpha: float = 0.6
    beta: float = 0.4
    rotation: int = 16  # different batches and priorities in turn, so that none of them stays in L1
    draws: int = 4096  # different keys in turn: fewer would draw rows that are still in the cache
    scan_length: int = 32  # steps that one call of a scanned step runs
    seed: int = 0

    @property
    def chunk_size(self) -> int:
        """Items that one call adds while a buffer is filled."""
        return min(self.capacity, 65_536)

    @property
    def chunks(self) -> int:
        """Calls that fill the buffer; the last one may wrap around, so that one shape serves them all."""
        return -(-self.capacity // self.chunk_size)

    def chunk(self) -> Batch:
        """The items that fill a buffer, [chunk_size, ...]."""
        return self._items(np.random.default_rng(self.seed), self.chunk_size)

    def chunk_priorities(self) -> np.ndarray:
        """Priorities of the filled items, float32 [chunk_size]: lognormal, so that the tree is uneven."""
        return np.random.default_rng(self.seed + 1).lognormal(size=self.chunk_size).astype(np.float32)

    def batches(self) -> list[Batch]:
        """Batches to add in turn, each [add_size, ...]."""
        rng = np.random.default_rng(self.seed + 2)
        return [self._items(rng, self.add_size) for _ in range(self.rotation)]

    def priorities(self) -> list[np.ndarray]:
        """Priorities to write in turn, each float32 [sample_size]."""
        rng = np.random.default_rng(self.seed + 3)
        return [rng.lognormal(size=self.sample_size).astype(np.float32) for _ in range(self.rotation)]

    def slots(self) -> Iterator[np.ndarray]:
        """Slots that the chunks fill, each int32 [chunk_size]: for peers that take priorities afterwards."""
        for number in range(self.chunks):
            yield ((np.arange(self.chunk_size) + number * self.chunk_size) % self.capacity).astype(np.int32)

    @staticmethod
    def _items(rng: np.random.Generator, count: int) -> Batch:
        batch: Batch = {}
        for name, (shape, dtype) in ITEM.items():
            values = rng.standard_normal((count, *shape), dtype=np.float32)
            batch[name] = values > 1.5 if dtype is np.bool_ else np.clip(values, -1.0, 1.0).astype(dtype)
        return batch


@dataclass(frozen=True)
class SliceWorkload(Workload):
    """The same items as steps of episodes, stored in lanes: one lane for each environment.

    Every batch is [lanes, steps, ...]. What changes from batch to batch is where the episodes end.
    """

    add_size: int = 16  # steps of all lanes together
    length: int = 16  # steps of a slice; `sample_size` counts slices
    lanes: int = 1
    longest: int = 1000  # episodes are 1 to so many steps long, each length equally likely
    additions: int = 1024  # different batches to add in turn

    def __post_init__(self) -> None:
        if self.capacity % self.lanes or self.add_size % self.lanes:
            raise ValueError(
                f"{self.capacity} steps, {self.add_size} at a time, are not the same in {self.lanes} lanes"
            )

    @property
    def lane_capacity(self) -> int:
        """Steps that one lane holds."""
        return self.capacity // self.lanes

    def fills(self) -> Iterator[Batch]:
        """Batches that fill the buffer; the last one may wrap around."""
        steps = self._in_lanes(self.chunk())
        width = self.chunk_size // self.lanes
        ends = self._ends()
        for number in range(self.chunks):
            yield {**steps, "done": ends[:, number * width : (number + 1) * width]}

    def adds(self) -> list[Batch]:
        """Batches to add in turn, each [lanes, add_size / lanes, ...]; the episodes go on from `fills`."""
        steps = [self._in_lanes(batch) for batch in self.batches()]
        width = self.add_size // self.lanes
        ends = self._ends()[:, self.chunks * self.chunk_size // self.lanes :]
        return [
            {**steps[number % self.rotation], "done": ends[:, number * width : (number + 1) * width]}
            for number in range(self.additions)
        ]

    def _ends(self) -> np.ndarray:
        """The last steps of episodes among all steps that are ever added, bool [lanes, steps]."""
        rng = np.random.default_rng(self.seed + 4)
        steps = (self.chunks * self.chunk_size + self.additions * self.add_size) // self.lanes
        ends = np.zeros((self.lanes, steps), np.bool_)
        for lane in ends:
            # Twice as many episodes as the steps have room for on average.
            lengths = rng.integers(1, self.longest + 1, size=4 * steps // self.longest + 64)
            last = np.cumsum(lengths) - 1
            lane[last[last < steps]] = True
        return ends

    def _in_lanes(self, batch: Batch) -> Batch:
        return {name: leaf.reshape(self.lanes, -1, *leaf.shape[1:]) for name, leaf in batch.items()}
