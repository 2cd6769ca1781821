"""What the library's writers should do, in plain Python: lists of items, one class of store for each kind of writer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.buffer.spec import BufferSpec
from functional_rb.testing.laws import Law, Leaves, Step
from functional_rb.writers import Immutable, MaxValue, Reservoir, RoundRobin, StopWhenFull


class Ring:
    """What `RoundRobin` writes: of each lane the newest `length` items."""

    def __init__(self, spec: BufferSpec, first: int = 0) -> None:
        self.capacity, count = spec.capacity, spec.lanes or 1
        self.length = self.capacity // count
        self.lanes: list[list[Step]] = [[] for _ in range(count)]
        self.newest: list[Step | None] = [None] * count
        self.numbers = [first] * count
        # How many items were not taken.
        self.refused = 0

    def clone(self) -> Self:
        """The same store, with items of its own."""
        new = copy.copy(self)
        new.lanes = [[copy.copy(step) for step in lane] for lane in self.lanes]
        there = {step.id: step for step in new.steps()}
        new.newest = [step and there.get(step.id, step) for step in self.newest]
        new.numbers = list(self.numbers)
        return new

    def steps(self) -> list[Step]:
        """All that is stored, lane by lane, each from its oldest item on."""
        return [step for lane in self.lanes for step in lane]

    def fits(self, mask: Sequence[bool]) -> bool:
        """Whether there is room for the marked rows of a batch."""
        return True

    def put(
        self, law: Law, rows: Sequence[Leaves], mask: Sequence[bool], bits: NumpyArray | None, ids: Sequence[int]
    ) -> dict[int, Step]:
        """Write the marked rows of a batch, by random bits int [B, words] where a writer takes any.

        Row `t * lanes + e` is step t of lane e; the law is told what follows on what. Returns the step of each row that
        is stored afterwards.
        """
        written = {}
        for row, leaves in enumerate(rows):
            lane = row % len(self.lanes)
            if not mask[row] or not self.has_room(lane):
                continue
            turn, place = divmod(self.numbers[lane] % ((2**31 - 1) // self.capacity * self.length), self.length)
            slot = lane * self.length + place
            written[row] = Step(ids[row], lane, slot, turn * self.capacity + slot, leaves)
            law.follow(self.newest[lane], written[row])
            self.newest[lane] = written[row]
            self.numbers[lane] += 1
            self.lanes[lane] = [*self.lanes[lane], written[row]][-self.length :]
        stored = {step.id for step in self.steps()}
        return {row: step for row, step in written.items() if step.id in stored}

    def has_room(self, lane: int) -> bool:
        """Whether one more item of a lane is taken."""
        return True

    def clear(self) -> None:
        """Take all items out; the numbers go on."""
        self.lanes = [[] for _ in self.lanes]
        self.newest = [None] * len(self.lanes)

    def rewritten(self, steps: Sequence[Step]) -> None:
        """Take note that leaves of these items have changed."""


class Bounded(Ring):
    """What `StopWhenFull` writes, and `Immutable` once: items that do not fit are refused."""

    def fits(self, mask: Sequence[bool]) -> bool:
        count = len(self.lanes)
        return all(sum(mask[e::count]) <= self.length - len(self.lanes[e]) for e in range(count))

    def has_room(self, lane: int) -> bool:
        room = len(self.lanes[lane]) < self.length
        self.refused += not room
        return room


class Chosen:
    """What writers write that choose slots; a slot's handle grows by the capacity whenever it is written again."""

    def __init__(self, spec: BufferSpec, first: int = 0) -> None:
        assert first == 0
        self.spec, self.capacity = spec, spec.capacity
        self.slots: list[Step | None] = [None] * spec.capacity
        self.handles: list[int | None] = [None] * spec.capacity
        self.refused = 0

    def clone(self) -> Self:
        new = copy.copy(self)
        new.slots = [None if step is None else copy.copy(step) for step in self.slots]
        new.handles = list(self.handles)
        return new

    def steps(self) -> list[Step]:
        return [step for step in self.slots if step is not None]

    def fits(self, mask: Sequence[bool]) -> bool:
        return True

    def place(self, chosen: Mapping[int, int], rows: Sequence[Leaves], ids: Sequence[int]) -> dict[int, Step]:
        """Write rows to slots, given as {slot: row}; returns the step of each row."""
        written = {}
        for slot, row in chosen.items():
            old = self.handles[slot]
            handle = self.handles[slot] = slot if old is None else old + self.capacity
            written[row] = self.slots[slot] = Step(ids[row], 0, slot, handle, rows[row])
        return written

    def clear(self) -> None:
        self.slots = [None] * self.capacity

    def rewritten(self, steps: Sequence[Step]) -> None:
        """Take note that leaves of these items have changed."""


class Sampled(Chosen):
    """What `Reservoir` writes: J. S. Vitter, "Random Sampling with a Reservoir", 1985, algorithm R."""

    # How many items were ever added.
    seen = 0

    def put(
        self, law: Law, rows: Sequence[Leaves], mask: Sequence[bool], bits: NumpyArray | None, ids: Sequence[int]
    ) -> dict[int, Step]:
        """Write the marked rows by random bits int [B, 2], each the two halves of a 62-bit fraction; see `Ring.put`."""
        chosen: dict[int, int] = {}
        assert bits is not None
        for row in range(len(rows)):
            if not mask[row]:
                continue
            high, low = (int(word) for word in bits[row])
            slot = self.seen if self.seen < self.capacity else (high * 2**31 + low) * (self.seen + 1) // 2**62
            if slot < self.capacity:
                chosen[slot] = row
            self.seen += 1
        return self.place(chosen, rows, ids)

    def clear(self) -> None:
        # Take all items out: from now on nothing was ever added.
        super().clear()
        self.seen = 0


class Best(Chosen):
    """What `MaxValue` writes: the items of the highest ranks."""

    def __init__(self, spec: BufferSpec, first: int = 0) -> None:
        super().__init__(spec, first)
        self.ever: list[float] | None = []

    def rank(self, leaves: Leaves) -> float:
        """The leaf that counts, as one number."""
        writer: Any = self.spec.writer
        numbers = [float(x) for x in np.ravel(leaves[writer.rank_key])]
        if any(math.isnan(x) for x in numbers):
            return math.nan
        reductions: dict[str, Callable[[list[float]], float]] = {
            "sum": sum,
            "max": max,
            "min": min,
            "mean": lambda x: sum(x) / len(x),
            "median": lambda x: sorted(x)[(len(x) - 1) // 2],
        }
        return float(reductions[writer.reduction](numbers))

    def put(
        self, law: Law, rows: Sequence[Leaves], mask: Sequence[bool], bits: NumpyArray | None, ids: Sequence[int]
    ) -> dict[int, Step]:
        """Write the best row over the lowest item, the second best over the second lowest, and so on, as `Ring.put`."""
        ranks = {row: self.rank(leaves) for row, leaves in enumerate(rows) if mask[row]}
        good = sorted((row for row in ranks if not math.isnan(ranks[row])), key=lambda row: (-ranks[row], row))
        self.refused += len(ranks) - len(good)
        before = {slot: -math.inf if step is None else step.rank for slot, step in enumerate(self.slots)}
        lowest = sorted(before, key=lambda slot: (self.slots[slot] is not None, before[slot], slot))
        pairs = list(zip(lowest, good, strict=False))
        chosen = {slot: row for slot, row in pairs if self.slots[slot] is None or ranks[row] > before[slot]}
        written = self.place(chosen, rows, ids)
        for row, step in written.items():
            step.rank = ranks[row]
        if self.ever is not None:  # the definition in fewer words, which holds as long as nothing was rewritten
            self.ever = sorted([*self.ever, *(ranks[row] for row in good)])
            assert sorted(step.rank for step in self.steps()) == self.ever[-self.capacity :]
        return written

    def clear(self) -> None:
        # Take all items out: from now on nothing was ever added.
        super().clear()
        self.ever = []

    def rewritten(self, steps: Sequence[Step]) -> None:
        # Rank rewritten items anew; one that has no rank any more keeps its old one.
        self.ever = None
        for step in steps:
            rank = self.rank(step.leaves)
            step.rank = step.rank if math.isnan(rank) else rank


# The store of each of the library's writers.
STORES: dict[type, Any] = {
    RoundRobin: Ring,
    StopWhenFull: Bounded,
    Immutable: Bounded,
    Reservoir: Sampled,
    MaxValue: Best,
}
