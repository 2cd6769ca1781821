"""Buffers on a GPU of items in other shapes: images, whose bytes are what takes time, and a robot's motions.

The motions are those of amp-rsl-rl's replay buffer, in the sizes of its benchmark_replay_buffer.py: states of 60
numbers before and after a step, 200,000 of them, 50 times 4,096 inserted and 20 mini-batches of 1,024 drawn before the
GPU is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch

import functional_rb as frb
import torch_backend as rb
from benchmarks import ours
from benchmarks.contender import AnySampler, Backend, Contender, Entry, Shaping
from benchmarks.goals import COPY, TENSORS
from benchmarks.torch_loop import synchronizer

# Different ones in turn, so that no draw finds its rows in the cache.
KEYS = 1024


@dataclass(frozen=True)
class Shape:
    """Items, and how many of them one call takes.

    Attributes:
        name: of the group.
        item: specs of the leaves.
        capacity: items that a buffer holds.
        add_size: items of a batch that is added.
        sample_size: items of a batch that is drawn.
        adds: batches that are added before the GPU is waited for.
        samples: batches that are drawn before it is.
    """

    name: Shaping
    item: dict[str, Any]
    capacity: int
    add_size: int
    sample_size: int
    adds: int = 1
    samples: int = 1

    @property
    def item_bytes(self) -> int:
        """Bytes of an item."""
        return sum(leaf.nbytes for leaf in self.spec.plan.layout.leaves)

    @property
    def spec(self) -> frb.BufferSpec:
        """Of a buffer."""
        return frb.BufferSpec(self.item, self.capacity)

    def batches(self, device: str) -> Iterator[dict[str, torch.Tensor]]:
        """Random batches to add in turn."""
        generator = torch.Generator(device).manual_seed(0)

        def leaf(spec: Any) -> torch.Tensor:
            shape = (self.add_size, *spec.shape)
            if spec.dtype == "uint8":
                return torch.randint(256, shape, generator=generator, dtype=torch.uint8, device=device)
            return torch.randn(shape, generator=generator, device=device)

        return cycle([{name: leaf(spec) for name, spec in self.item.items()} for _ in range(4)])


def images(add_size: int) -> Shape:
    """Stacks of four frames of Atari, so many of which are added at a time."""
    item = {"image": frb.Bounded(0, 255, (84, 84, 4), "uint8")}
    return Shape("images", item, capacity=100_000, add_size=add_size, sample_size=256)


MOTIONS = Shape(
    "motions", {"states": frb.Unbounded((60,)), "next_states": frb.Unbounded((60,))}, 200_000, 4096, 1024, 50, 20
)


class _Shaped(Contender):
    """A contender whose call is made several times before the GPU is waited for."""

    def __init__(self, name: str, shape: Shape, device: str, waits: bool) -> None:
        super().__init__(name, "torch", shape.name)
        self.operations = ("add", "sample")
        self.shape, self._device = shape, device
        self._wait = synchronizer(device if waits else "cpu")
        self._batches = shape.batches(device)

    def update(self) -> None:
        """Not among its operations."""


class OursShaped(_Shaped):
    """torch_backend: the pure functions, or the ones with a trailing underscore."""

    def __init__(self, shape: Shape, device: str, *, in_place: bool = False, waits: bool = True) -> None:
        super().__init__(ours.IN_PLACE if in_place else ours.NAME, shape, device, waits)
        self._add, self._sample = (rb.add_, rb.sample_) if in_place else (rb.add, rb.sample)
        self._keys = cycle(list(rb.split(rb.key(0).to(device), KEYS)))
        self._state = rb.init(shape.spec, device)
        for _ in range(-(-shape.capacity // shape.add_size)):
            self._state = rb.add_(self._state, next(self._batches))

    def add(self) -> None:
        for _ in range(self.shape.adds):
            self._state = self._add(self._state, next(self._batches))
        self._wait()

    def sample(self) -> None:
        for _ in range(self.shape.samples):
            self._state, _ = self._sample(self._state, next(self._keys), self.shape.sample_size)
        self._wait()


class PlainTensors(_Shaped):
    """What a buffer comes to by hand: a tensor for each leaf, written at a place that goes round.

    All mini-batches that are drawn together are of one permutation, so that none of them has an item twice, and no
    handles or weights come with them.
    """

    def __init__(self, shape: Shape, device: str) -> None:
        super().__init__(TENSORS, shape, device, waits=True)
        batch = next(self._batches)
        self._held = {name: leaf.new_zeros(shape.capacity, *leaf.shape[1:]) for name, leaf in batch.items()}
        self._next = 0

    def add(self) -> None:
        capacity = self.shape.capacity
        for _ in range(self.shape.adds):
            room = min(self.shape.add_size, capacity - self._next)
            for name, leaf in next(self._batches).items():
                self._held[name][self._next : self._next + room] = leaf[:room]
                if room < self.shape.add_size:
                    self._held[name][: self.shape.add_size - room] = leaf[room:]
            self._next = (self._next + self.shape.add_size) % capacity
        self._wait()

    def sample(self) -> None:
        places = torch.randperm(self.shape.capacity, device=self._device)
        for turn in range(self.shape.samples):
            chosen = places[turn * self.shape.sample_size : (turn + 1) * self.shape.sample_size]
            for held in self._held.values():
                held[chosen]
        self._wait()


class Copies(_Shaped):
    """A copy on the device of as many bytes as come in or go out."""

    def __init__(self, shape: Shape, device: str) -> None:
        super().__init__(COPY, shape, device, waits=True)
        many = max(shape.add_size, shape.sample_size) * shape.item_bytes
        self._from, self._to = (torch.ones(many, dtype=torch.uint8, device=device) for _ in range(2))

    def add(self) -> None:
        self._copy(self.shape.add_size)

    def sample(self) -> None:
        self._copy(self.shape.sample_size)

    def _copy(self, items: int) -> None:
        many = items * self.shape.item_bytes
        self._to[:many].copy_(self._from[:many])
        self._wait()


def group(shape: Shape, device: str) -> dict[tuple[Backend, AnySampler], Callable[[], list[Entry]]]:
    """Ours as values and in place, and what they are compared with, as `compare.measure` takes them."""
    builders: dict[str, Callable[[], Contender]] = {
        ours.NAME: lambda: OursShaped(shape, device),
        ours.IN_PLACE: lambda: OursShaped(shape, device, in_place=True),
    }
    if shape.name == "motions":
        builders[TENSORS] = lambda: PlainTensors(shape, device)
    else:
        builders[COPY] = lambda: Copies(shape, device)
    entries = [Entry(name, "torch", shape.name, build) for name, build in builders.items()]
    return {("torch", shape.name): lambda: entries}


def bandwidth(device: str, nbytes: int = 2**30, copies: int = 10) -> float:
    """Bytes read and written in a second by copies on the device."""
    one, other = (torch.ones(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
    wait = synchronizer(device)
    for timed in (False, True):
        wait()
        began = time.perf_counter()
        for _ in range(copies if timed else 1):
            other.copy_(one)
        wait()
    return 2 * nbytes * copies / (time.perf_counter() - began)
