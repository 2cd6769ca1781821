"""Tiny workloads, and contenders that do nothing, for tests of the benchmarks' harness."""

from __future__ import annotations

import time

from benchmarks import (
    floor,
    ours,
)
from benchmarks.compare import Effort
from benchmarks.contender import (
    Contender,
    Entry,
    SliceContender,
)
from benchmarks.groups import Group
from benchmarks.slices import roster
from benchmarks.workload import (
    NStepWorkload,
    ObservationWorkload,
    SliceWorkload,
    Workload,
)

TINY = Workload(capacity=100, add_size=8, sample_size=16, rotation=2, draws=4, scan_length=3)
BRIEF = Effort(rounds=2, burst=3)
STEPS = SliceWorkload(capacity=96, add_size=16, sample_size=8, length=4, longest=12, rotation=2, draws=4, additions=6)


def quiet(line: str) -> None:
    """Print nothing."""


def broken() -> Contender:
    raise RuntimeError("no compiled tree") from ImportError("undefined symbol")


class Turning(SliceContender):
    """Writes down its calls, and fails at the sample with the given number."""

    def __init__(self, name: str, calls: list[tuple[str, str]], *, fails_at: int = 1_000, pause: float = 0.0) -> None:
        super().__init__(name, "torch", "prioritized slices")
        self._calls, self._fails_at, self._pause = calls, fails_at, pause
        self.steps = 0

    def add(self) -> None:
        self._calls.append((self.name, "add"))
        time.sleep(self._pause)

    def sample(self) -> None:
        self._calls.append((self.name, "sample"))
        self.steps += 1
        if self.steps == self._fails_at:
            raise LookupError("no trajectory is long enough")

    def update(self) -> None:
        self._calls.append((self.name, "update"))


def turning(work: SliceWorkload, group: Group) -> list[Entry]:
    def build(name: str, fails_at: int) -> Entry:
        return Entry(name, group.backend, group.sampler, lambda: Turning(name, [], fails_at=fails_at))

    return [
        build(ours.NAME, 1_000),
        build("torchrl", 1_000 if work.capacity < 960 else 2),
        Entry(floor.NAME, group.backend, group.sampler, broken),
    ]


def entries_of(group: Group, name: str) -> list[Entry]:
    work = SliceWorkload(**{**vars(STEPS), "lanes": group.lanes})
    return [entry for entry in roster(work, group) if entry.name == name]


PIXELS = ObservationWorkload(
    capacity=90, sample_size=4, shape=(3, 2), stack=3, longest=9, frames=101, additions=12, draws=8
)
VECTORS = ObservationWorkload(
    capacity=90, sample_size=4, shape=(5,), dtype="float32", stack=1, action_size=2, longest=9, frames=101, draws=8
)
RETURNS = NStepWorkload(capacity=96, sample_size=8, n=3, longest=12, rotation=2, draws=4, additions=6)
