"""Writers of a shared buffer that die at each step of the protocol, before, after and amid it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import functional_rb as frb
from functional_rb import _native
from functional_rb.native import shared_control as control
from functional_rb.shared import files
from functional_rb.shared.buffer import SharedBuffer
from functional_rb.structures import sum_tree
from tests.support.children import die, ended, forked
from tests.support.shared_items import PRIORITIZED, Model, make, spec_at


def dies_after(module: Any, name: str, after: bool) -> None:
    """In this process, a step of the protocol is the last, or is not reached."""
    step = getattr(module, name)

    def last(*args: Any) -> None:
        if after:
            step(*args)
        die()

    setattr(module, name, last)


def dies_within(shared: SharedBuffer, module: Any, name: str, slots: np.ndarray, rows: bool, seed: int) -> None:
    """A step is left half done: of all that it may write, some has been written, in part."""
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

    setattr(module, name, half)


ADD_STEPS = [
    (files.SharedFiles, "reserve"),
    (_native, "shared_note_add"),
    (_native, "shared_begin"),
    (_native, "add"),
    (_native, "shared_commit"),
]
UPDATE_STEPS = [
    (_native, "shared_note_update"),
    (_native, "shared_begin"),
    (_native, "update"),
    (_native, "shared_commit"),
]


class Deaths:
    """A buffer and its model; children die at each step of the protocol in turn."""

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

    def steps(self, kinds: list[tuple[Any, str]], torn: str) -> Iterator[tuple[str, bool, Callable[..., None]]]:
        """Name, whether the write has begun (and not ended), and what makes it the last."""
        for module, name in kinds:
            for after in (False, True):
                begun = (name == "shared_begin" and after) or name in (torn, "shared_commit")
                ended = name == "shared_commit" and after
                yield f"{name} {after}", begun and not ended, lambda *_, m=module, n=name, a=after: dies_after(m, n, a)
        for seed in range(3):
            yield (
                f"torn {seed}",
                True,
                lambda slots, rows, s=seed: dies_within(self.shared, _native, torn, slots, rows, s),
            )

    def follow(self, seed: int, slots: np.ndarray, rows: bool) -> None:
        """Others die while they repair, then the survivors go on: now a reader comes first, now a writer."""
        for turn in range(seed % 3):

            def repair(turn: int = turn) -> None:
                dies_within(self.shared, _native, "shared_repair", slots, rows, seed + turn)
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
        for name, begun, arm in self.steps(ADD_STEPS, "add"):
            self.live_add(before)
            batch = self.add(count)
            skipped = max(count - self.capacity, 0)
            slots = np.arange(self.model.cursor + skipped, self.model.cursor + count) % self.capacity
            cut = self.model.items.copy()

            def work(arm: Any = arm, slots: np.ndarray = slots, batch: Any = batch) -> None:
                arm(slots, True)
                self.write(*batch)

            ended(forked(work), killed=True)
            if begun:
                self.model.cut_short(count)
            elif name == "shared_commit True":
                self.model.add(0, *batch)
            else:
                assert cut == self.model.items
            cases += 1
            self.follow(cases if begun else 0, slots, True)
        return cases

    def updates(self, rows: bool, values: bool) -> int:
        """Every death of an update."""
        cases = 0
        for name, begun, arm in self.steps(UPDATE_STEPS, "update"):
            self.live_add(self.capacity)
            live = np.array(list(self.model.items), np.int32)
            handles = np.concatenate([self.rng.choice(live, 5), live[:1], [-1, 0, self.model.cursor + 3]]).astype(
                np.int32
            )
            new = self.rng.choice(np.array([0, 3, 7], np.float32), handles.size) if values else None
            items = dict(enumerate(self.renamed(handles, 50 + cases))) if rows else {}
            slots = handles[:6] % self.capacity

            def work(arm: Any = arm, args: Any = (handles, new, items), slots: np.ndarray = slots) -> None:
                arm(slots, rows)
                self.shared.update(*args)

            ended(forked(work), killed=True)
            if name == "shared_commit True":
                self.model.update(handles, new, 50 + cases if rows else None)
            cases += 1
            self.follow(cases if begun else 0, slots, rows)
        return cases

    def renamed(self, handles: np.ndarray, version: int) -> list[np.ndarray]:
        """The items of handles, of another version; any for those that are gone."""
        serials = [self.model.items.get(handle, [0, 0])[1] for handle in handles.tolist()]
        return make(0, np.array(serials), version)


def protocol(path: str) -> dict[str, Any]:
    """A writer dies before and after each step, and within those that write."""
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
