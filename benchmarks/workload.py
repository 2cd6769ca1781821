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
    def item_bytes(self) -> int:
        """Bytes of one step."""
        return ITEM_BYTES

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

    def in_time(self, batch: Batch) -> Batch:
        """A batch [lanes, steps, ...] as ours takes it: [steps, ...] of one lane, else [steps, lanes, ...]."""
        if self.lanes == 1:
            return {name: leaf[0] for name, leaf in batch.items()}
        return {name: np.ascontiguousarray(leaf.swapaxes(0, 1)) for name, leaf in batch.items()}

    def _in_lanes(self, batch: Batch) -> Batch:
        return {name: leaf.reshape(self.lanes, -1, *leaf.shape[1:]) for name, leaf in batch.items()}


@dataclass(frozen=True)
class NStepWorkload(SliceWorkload):
    """The same steps, from which returns over `n` of them are made; `sample_size` counts transitions."""

    n: int = 3
    gamma: float = 0.99


@dataclass(frozen=True)
class ObservationWorkload:
    """Transitions of one environment in which every observation comes twice: as such and as the next one.

    Where `stack` is more than 1, an observation is a stack of the episode's last frames, [stack, *shape], newest last;
    the frame that begins an episode stands in for those before it. The default is the layout of Atari agents.
    """

    capacity: int = 100_000
    lanes: int = 1
    sample_size: int = 32
    shape: tuple[int, ...] = (84, 84)
    dtype: str = "uint8"
    stack: int = 4
    action_size: int = 0  # 0: one of several actions, int32; else a vector of so many float32
    longest: int = 1000  # episodes are 1 to so many steps long, each length equally likely
    frames: int = 997  # different frames in turn: no two near each other are equal
    additions: int = 256  # different steps to add in turn
    draws: int = 1024  # different keys in turn
    seed: int = 0

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one observation: a frame, or a stack of them."""
        return self.shape if self.stack == 1 else (self.stack, *self.shape)

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    @property
    def other_bytes(self) -> int:
        """Bytes of an item without its two observations: action, reward and done."""
        return 4 * max(1, self.action_size) + 4 + 1

    @property
    def item_bytes(self) -> int:
        """Bytes of an item as it is added and sampled."""
        return 2 * self.stack * self.frame_bytes + self.other_bytes

    def fills(self) -> Iterator[Batch]:
        """Batches [steps, ...] that together fill the buffer; the last step ends an episode."""
        frame, first, ends = self._steps(self.seed, self.capacity)
        chunk = max(1, 2**26 // self.item_bytes)  # some 64 MiB at a time
        for start in range(0, self.capacity, chunk):
            part = slice(start, start + chunk)
            yield self._batch(frame[part], first[part], ends[part])

    def adds(self) -> list[Batch]:
        """Steps to add in turn, each [1, ...]: whole episodes, so that they can come round again."""
        frame, first, ends = self._steps(self.seed + 1, self.additions)
        batch = self._batch(frame, first, ends)
        return [{name: leaf[i : i + 1] for name, leaf in batch.items()} for i in range(self.additions)]

    def in_time(self, batch: Batch) -> Batch:
        """A batch as ours takes it, which is how it is."""
        return batch

    def table(self) -> np.ndarray:
        """As many frames as there are steps, [capacity, elements of a frame], for the bare gather."""
        return self._pool().reshape(self.frames, -1)[np.arange(self.capacity) % self.frames]

    def rows(self, *, distinct: bool = False) -> list[np.ndarray]:
        """Rows of `table` that one batch is made of, in turn, each int32 [sample_size * frames of an item].

        An item has `2 * stack` frames, of which `stack + 1` are distinct.
        """
        rng = np.random.default_rng(self.seed)
        newest = rng.integers(self.stack - 1, self.capacity - 1, size=(self.draws, self.sample_size, 1), dtype=np.int32)
        stack = np.arange(1 - self.stack, 1, dtype=np.int32)
        offsets = np.append(stack, np.int32(1)) if distinct else np.concatenate((stack, stack + np.int32(1)))
        return list((newest + offsets).reshape(self.draws, -1))

    def _pool(self) -> np.ndarray:
        rng = np.random.default_rng(self.seed + 2)
        if self.dtype == "uint8":
            return rng.integers(256, size=(self.frames, *self.shape), dtype=np.uint8)
        return rng.standard_normal((self.frames, *self.shape), dtype=np.float32).astype(self.dtype)

    def _steps(self, seed: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers of each step's frame and of its episode's first, and where episodes end, each [count].

        An episode of n steps has n + 1 frames.
        """
        lengths = np.random.default_rng(seed).integers(1, self.longest + 1, size=count)
        last = np.cumsum(lengths) - 1
        ends = np.zeros(count, np.bool_)
        ends[last[last < count]] = True
        ends[-1] = True
        frame = np.arange(count) + np.cumsum(ends) - ends
        begins = np.append(True, ends[:-1])
        return frame, np.maximum.accumulate(np.where(begins, frame, 0)), ends

    def _batch(self, frame: np.ndarray, first: np.ndarray, ends: np.ndarray) -> Batch:
        pool = self._pool()
        rng = np.random.default_rng(self.seed + 3)
        count = len(frame)
        action = (
            rng.uniform(-1, 1, (count, self.action_size)).astype(np.float32)
            if self.action_size
            else rng.integers(18, size=count, dtype=np.int32)
        )

        def observation(newest: np.ndarray) -> np.ndarray:
            numbers = np.maximum(newest[:, None] + np.arange(1 - self.stack, 1), first[:, None])
            return pool[(numbers if self.stack > 1 else numbers[:, 0]) % self.frames]

        return {
            "obs": observation(frame),
            "action": action,
            "reward": rng.standard_normal(count, dtype=np.float32),
            "next_obs": observation(frame + 1),
            "done": ends,
        }


ATARI = ObservationWorkload()

# A large state of continuous control, that of MuJoCo's Humanoid.
HUMANOID = ObservationWorkload(sample_size=256, shape=(376,), dtype="float32", stack=1, action_size=17)
