"""What is measured: one buffer of one library, which keeps its own state between calls."""

from __future__ import annotations

import abc
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Backend = Literal["jax", "torch"]
Sampler = Literal["uniform", "prioritized"]
# The samplers of the section `slices`: windows of consecutive steps, and epochs of what is stored.
Sequencing = Literal[
    "slices", "window slices", "prioritized slices", "slices without replacement", "without replacement", "queue"
]
# The groups of the sections `n_step` and `atari`: what a sample is made of.
Reading = Literal["n-step", "frames", "observations"]
# The groups of the section `specs`: values of a spec, and items checked to lie in theirs.
Checking = Literal["specs", "validate"]
# The groups of the section `storage`: what is stored where, kept on disk, drawn ahead, and shared by processes.
Storing = Literal["memmap", "checkpoint", "prefetch", "shared writer", "shared reader"]
# The groups of the section `trees`: what was met, what was seen, and trees that are read.
Growing = Literal["maps", "forests", "reading"]
# The groups of the section `items`: images that are shifted, with their channels behind or in front, and resized.
Imaging = Literal["shift", "shift_front", "resize", "nothing"]
# The groups of the section `mixture`: how buffers are drawn from, and how many there are.
Mixing = Literal["uniform 2", "uniform 4", "prioritized 2", "prioritized 4"]
# The groups of the section `datasets`: the formats that are converted.
Offline = Literal["minari", "d4rl", "d4rl gzip"]
# The groups of the section `text`: texts that become tokens, and pairs of them that are drawn and padded.
Texting = Literal["tokenizing", "batches of texts"]
Searching = Literal["search 32", "search 200", "search 800"]
# The groups of the section `gpu` beside the two samplers: items of other shapes.
Shaping = Literal["images", "motions"]
AnySampler = (
    Sampler
    | Sequencing
    | Reading
    | Checking
    | Storing
    | Growing
    | Searching
    | Imaging
    | Mixing
    | Offline
    | Texting
    | Shaping
)
Operation = Literal[
    *("add", "sample", "update", "step", "rand", "contains", "project", "save", "load"),
    *("insert", "extend", "tree", "paths", "vertices", "edges", "muzero", "gumbel", "map", "convert", "tokenize"),
]

OPERATIONS: tuple[Operation, ...] = get_args(Operation)


class Contender(abc.ABC):
    """A filled buffer; each of its operations is one complete call of a user's training loop.

    A call returns when its result is ready. `sample` remembers what it drew, and `update` goes through the
    draws in turn: the same 256 handles again and again would leave their paths of the tree in the cache.
    """

    name: str
    backend: Backend
    sampler: AnySampler
    operations: tuple[Operation, ...]
    step_length: int = 1  # steps of the loop that one call of `step` runs

    def __init__(self, name: str, backend: Backend, sampler: AnySampler) -> None:
        self.name = name
        self.backend = backend
        self.sampler = sampler
        self.operations = ("add", "sample", "update", "step") if sampler == "prioritized" else ("add", "sample", "step")
        self.drawn: deque[Any] = deque(maxlen=32)

    @abc.abstractmethod
    def add(self) -> None:
        """Add one batch."""

    @abc.abstractmethod
    def sample(self) -> None:
        """Draw one batch and remember its handles."""

    @abc.abstractmethod
    def update(self) -> None:
        """Write new priorities for a batch drawn before."""

    def step(self) -> None:
        """Add, sample and, where there are priorities, update what was just drawn."""
        self.add()
        self.sample()
        if "update" in self.operations:
            self.drawn.rotate(1)  # the newest draw comes first
            self.update()

    def next_drawn(self) -> Any:
        """Handles of the next remembered draw, in turn."""
        indices = self.drawn[0]
        self.drawn.rotate(-1)
        return indices


class Calls(Contender):
    """Operations that are given as functions, and nothing else."""

    def __init__(
        self, name: str, backend: Backend, sampler: AnySampler, calls: Mapping[Operation, Callable[[], object]]
    ) -> None:
        super().__init__(name, backend, sampler)
        self.operations = tuple(calls)
        for operation, call in calls.items():
            setattr(self, operation, call)

    def add(self) -> None:
        """Among its operations only where it is given."""

    def sample(self) -> None:
        """Among its operations only where it is given."""

    def update(self) -> None:
        """Among its operations only where it is given."""


class PartContender(Contender):
    """A contender that has some of the operations; those that it lacks do nothing, and nobody calls them."""

    def __init__(self, name: str, backend: Backend, sampler: AnySampler, *operations: Operation) -> None:
        super().__init__(name, backend, sampler)
        self.operations = operations

    def add(self) -> None:
        """Among its operations where it is overridden."""

    def sample(self) -> None:
        """Among its operations where it is overridden."""

    def update(self) -> None:
        """Among its operations where it is overridden."""


class TurnContender(Contender):
    """A contender of the sections where an add, a sample and an update follow one another."""

    def __init__(self, name: str, backend: Backend, sampler: AnySampler) -> None:
        super().__init__(name, backend, sampler)
        self.operations = ("add", "sample", "update") if sampler == "prioritized slices" else ("add", "sample")
        self.drawn = deque(maxlen=1)

    def update(self) -> None:
        """Not among its operations, unless it overrides this."""
        raise TypeError(f"{self.name} has no priorities")

    def held_bytes(self) -> int | None:
        """Bytes of what it stores; none where that is not asked."""
        return None


class SliceContender(TurnContender):
    """A contender that draws windows of steps."""

    steps: int  # how many steps the last sample held: some peers draw fewer than they were asked for


@dataclass(frozen=True)
class Entry:
    """A contender to build; imports wait until then, so that a missing peer loses its own rows only."""

    name: str
    backend: Backend
    sampler: AnySampler
    build: Callable[[], Contender]


@dataclass(frozen=True)
class Unavailable:
    """A contender that could not be built or run, and why."""

    name: str
    backend: Backend
    sampler: AnySampler
    reason: str


def assemble(entries: list[Entry]) -> tuple[list[Contender], list[Unavailable]]:
    """Build each contender and run each of its operations once; what fails is reported, not raised."""
    ready: list[Contender] = []
    failed: list[Unavailable] = []
    for entry in entries:
        try:
            contender = entry.build()
            for operation in contender.operations:
                getattr(contender, operation)()
        # Whatever a peer raises is a row of the report: the harness must outlive it.
        except Exception as error:
            failed.append(Unavailable(entry.name, entry.backend, entry.sampler, describe(error)))
        else:
            ready.append(contender)
    return ready, failed


def describe(error: BaseException) -> str:
    """One line: the error, and its cause where it names one; paths from the environment's folder on."""
    line = f"{type(error).__name__}: {' '.join(str(error).split())}".replace(f"{sys.prefix}/", "")
    if error.__cause__ is not None:
        line += f" (because {describe(error.__cause__)})"
    return line if len(line) <= 240 else line[:237] + "..."
