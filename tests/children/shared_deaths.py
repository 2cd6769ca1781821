"""Writers of a shared buffer that die at each step of the protocol, and amid it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import functional_rb as frb
from functional_rb import _native
from functional_rb.native import shared_control as control
from functional_rb.shared import files
from functional_rb.shared.buffer import SharedBuffer
from functional_rb.structures import sum_tree
from tests.support.children import die, ended, forked
from tests.support.shared_items import PRIORITIZED, Model, make, spec_at
from tests.support.touched import before_writing


def dies_after(module: Any, name: str, after: bool) -> None:
    """In this process, a step of the protocol is the last, or is not reached."""
    step = getattr(module, name)

    def last(*args: Any) -> None:
        if after:
            step(*args)
        die()

    setattr(module, name, last)


def torn(shared: SharedBuffer, slots: np.ndarray, rows: bool, seed: int) -> Callable[..., None]:
    """Leaves a step half done: of all that it may write, some has been written, in part."""
    rng, mapped = np.random.default_rng(seed), shared.files

    def half(*args: Any) -> None:
        for slot in slots[rng.random(slots.size) < 0.7].tolist():
            for array in (mapped.rows, *mapped.wide) if rows else ():
                own = array[slot].view(np.uint8)
                some = rng.random(own.size) < rng.random()
                own[some] = rng.integers(0, 256, int(some.sum()))
            nodes = slot
            for level in sum_tree.geometry(shared.spec.capacity).levels if mapped.tree.size else ():
                for start in {level.sums, level.smallest, level.largest}:
                    if rng.random() < 0.7:
                        mapped.tree[start + nodes // 16, nodes % 16] = rng.random() * 100
                nodes //= 16
        first = int(mapped.control[control.SEQUENCE]) + 1 >> 1 & 1
        vector = mapped.control[control.COUNTERS + control.SLOT_WORDS * first :][: control.SLOT_WORDS]
        vector.view(np.int32)[rng.random(control.SLOT) < 0.5] = rng.integers(0, 2**31 - 1)
        die()

    return half


class Moment(NamedTuple):
    """When a writer dies.

    Attributes:
        name: of the moment.
        begun: whether the write has begun by then, and not ended.
        arm: called before the write with the slots that it writes, in the process that is to die.
    """

    name: str
    begun: bool
    arm: Callable[[np.ndarray], object]


class Deaths:
    """A buffer and its model; children die at each moment of a write in turn."""

    def __init__(self, path: str, sampler: Any, capacity: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.shared = SharedBuffer.open(spec_at(path, capacity, sampler))
        self.model, self.serial, self.capacity = Model(capacity), 0, capacity
        self.prioritized = bool(self.shared.files.tree.size)
        self.slowest = 0.0

    def add(self, count: int) -> tuple[range, np.ndarray]:
        serials = range(self.serial, self.serial + count)
        self.serial += count
        return serials, self.rng.choice(np.array([0, 1, 2, 5, 0.25], np.float32), count)

    def write(self, serials: range, priorities: np.ndarray) -> None:
        leaves = make(0, np.arange(serials.start, serials.stop), 0)
        self.shared.add(leaves, len(serials), None, priorities if self.prioritized else None)

    def live_add(self, count: int) -> None:
        batch = self.add(count)
        self.write(*batch)
        self.model.add(0, *batch)

    def moments(self, adds: bool, rows: bool = True, values: bool = True) -> Iterator[Moment]:
        """Before a write and amid it, as each file is first written to, and at its end.

        Args:
            adds: whether rows are added, else items updated.
            rows: whether rows are written, else priorities alone.
            values: whether priorities are written, if the buffer has any.
        """
        mapped = self.shared.files
        first = [mapped.rows, *mapped.wide] if rows else [mapped.tree]
        for after in (False, True) if adds else ():
            yield Moment("reserve", False, lambda _, a=after: dies_after(files.SharedFiles, "reserve", a))
        if not adds:
            yield Moment("journal", False, lambda _: before_writing(mapped.journal, die))
        yield Moment("control", False, lambda _: before_writing([mapped.control], die))
        yield Moment("first", True, lambda _: before_writing(first, die))
        if rows and values and self.prioritized:
            yield Moment("tree", True, lambda _: before_writing([mapped.tree], die))
        for seed in range(3):
            yield Moment("torn", True, lambda slots, s=seed: before_writing(first, torn(self.shared, slots, rows, s)))
        yield Moment("last", True, lambda _: None)
        yield Moment("ended", False, lambda _: None)

    def dies(self, moment: Moment, slots: np.ndarray, write: Callable[[], None]) -> None:
        """Let a child write that dies then."""

        def work() -> None:
            moment.arm(slots)
            write()
            if moment.name == "last":  # all that a write does after that is to count on by one
                self.shared.files.control[control.SEQUENCE] -= 1
            if moment.name in ("last", "ended"):
                die()

        ended(forked(work), killed=True)

    def follow(self, seed: int, slots: np.ndarray, rows: bool) -> None:
        """Others die while they repair, then the survivors go on: now a reader comes first, now a writer."""
        for turn in range(seed % 3):

            def repair(turn: int = turn) -> None:
                _native.shared_repair = torn(self.shared, slots, rows, seed + turn)  # type: ignore[assignment]  # to be seen at work
                self.shared.exclusively(lambda: None)

            ended(forked(repair), killed=True)
        start = time.monotonic()
        if seed % 2:
            self.live_add(1)
        else:
            self.shared.counters()
        self.slowest = max(self.slowest, time.monotonic() - start)
        self.model.check(self.shared, self.rng)

    def adds(self, before: int, count: int) -> int:
        """Every death of an add of so many items, after so many others."""
        cases = 0
        for moment in self.moments(adds=True):
            self.live_add(before)
            batch = self.add(count)
            skipped = max(count - self.capacity, 0)
            slots = np.arange(self.model.cursor + skipped, self.model.cursor + count) % self.capacity
            cut = self.model.items.copy()

            self.dies(moment, slots, lambda batch=batch: self.write(*batch))  # type: ignore[misc]  # of this turn
            if moment.begun:
                self.model.cut_short(count)
            elif moment.name == "ended":
                self.model.add(0, *batch)
            else:
                assert cut == self.model.items
            cases += 1
            self.follow(cases if moment.begun else 0, slots, True)
        return cases

    def updates(self, rows: bool, values: bool) -> int:
        """Every death of an update."""
        cases = 0
        for moment in self.moments(False, rows, values):
            self.live_add(self.capacity)
            live = np.array(list(self.model.items), np.int32)
            handles = np.concatenate([self.rng.choice(live, 5), live[:1], [-1, 0, self.model.cursor + 3]]).astype(
                np.int32
            )
            new = self.rng.choice(np.array([0, 3, 7], np.float32), handles.size) if values else None
            items = dict(enumerate(self.renamed(handles, 50 + cases))) if rows else {}
            slots = handles[:6] % self.capacity
            self.dies(moment, slots, lambda given=(handles, new, items): self.shared.update(*given))  # type: ignore[misc]  # of this turn
            if moment.name == "ended":
                self.model.update(handles, new, 50 + cases if rows else None)
            cases += 1
            self.follow(cases if moment.begun else 0, slots, rows)
        return cases

    def renamed(self, handles: np.ndarray, version: int) -> list[np.ndarray]:
        """The items of handles, of another version; any for those that are gone."""
        serials = [self.model.items.get(handle, [0, 0])[1] for handle in handles.tolist()]
        return make(0, np.array(serials), version)


def protocol(path: str) -> dict[str, Any]:
    """A writer dies at each moment of a write."""
    cases, slowest = 0, 0.0
    for k, sampler in enumerate((PRIORITIZED, frb.Uniform())):
        deaths = Deaths(f"{path}/adds{k}", sampler, 37, k)
        cases += deaths.adds(1, 4)  # from empty to around
        cases += deaths.adds(40, 5) + deaths.adds(3, 37) + deaths.adds(7, 90)
        slowest = max(slowest, deaths.slowest)
        deaths = Deaths(f"{path}/updates{k}", sampler, 300, k)
        for rows, values in ((True, True), (False, True), (True, False)) if k == 0 else ((True, False),):
            cases += deaths.updates(rows, values)
        slowest = max(slowest, deaths.slowest)
    return {"cases": cases, "slowest": slowest}
