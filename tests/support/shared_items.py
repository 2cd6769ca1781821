"""Items of shared buffers with a checksum of themselves in every leaf, so that a torn one is seen; and their model."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import functional_rb as frb
from functional_rb.buffer import functions
from functional_rb.shared.buffer import SharedBuffer
from functional_rb.structures import sum_tree

ITEM = {
    "writer": frb.Unbounded((), "int32"),
    "serial": frb.Unbounded((), "int32"),
    "version": frb.Unbounded((), "int32"),
    "numbers": frb.Unbounded((9,), "float32"),
    "image": frb.Unbounded((1024,), "uint8"),
}
NAMES = frb.BufferSpec(ITEM, 1).plan.names
PRIORITIZED = frb.Prioritized(alpha=1.0)
Rng = np.random.Generator
Leaves = dict[str, np.ndarray]


def spec_at(path: str | None, capacity: int, sampler: Any = PRIORITIZED, **storage: Any) -> frb.BufferSpec:
    return frb.BufferSpec(ITEM, capacity, sampler, storage=frb.Memmap(path, shared=True, **storage))


def make(writer: Any, serial: Any, version: Any) -> list[np.ndarray]:
    """Items [B] by what names them."""
    named = [np.asarray(x, np.int32) for x in np.broadcast_arrays(writer, serial, version)]
    mixed = named[0].astype(np.int64) * 1000003 + named[1] * 7919 + named[2] * 104729
    numbers = ((mixed[:, None] * np.arange(1, 10)) >> 3 & 0xFFFF).astype(np.float32)
    first, step = (mixed >> 5).astype(np.uint8), (mixed >> 13).astype(np.uint8) | 1
    image = first[:, None] + step[:, None] * np.arange(1024, dtype=np.uint8)
    leaves = dict(zip(ITEM, [*named, numbers, image], strict=True))
    return [leaves[name] for name in NAMES]


def check_items(leaves: list[np.ndarray]) -> Leaves:
    """That every item is one that somebody made; the leaves by name."""
    found = dict(zip(NAMES, leaves, strict=True))
    for leaf, expected in zip(leaves, make(found["writer"], found["serial"], found["version"]), strict=True):
        np.testing.assert_array_equal(leaf, expected)
    return found


def rebuilt(tree: np.ndarray, capacity: int) -> np.ndarray:
    """The tree that has the same leaves."""
    levels = sum_tree.geometry(capacity).levels
    made = np.zeros_like(tree)
    made[: levels[0].groups] = tree[: levels[0].groups]
    for below, level in itertools.pairwise(levels):
        sums = [made[start : start + below.groups] for start in (below.sums, below.smallest, below.largest)]
        positive = np.where(sums[1] > 0, sums[1], np.inf).min(1)
        parts = [sum_tree.add_up(sums[0]), np.where(np.isinf(positive), 0, positive), sums[2].max(1)]
        for start, part in zip((level.sums, level.smallest, level.largest), parts, strict=True):
            made[start : start + level.groups].reshape(-1)[: level.nodes] = part
    return made


class Model:
    """What a buffer of given capacity must hold; its handles do not begin again here."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.cursor, self.lost = capacity, 0, 0
        self.items: dict[int, list[float]] = {}

    def add(self, writer: int, serials: range, priorities: np.ndarray) -> None:
        for serial, priority in zip(serials, priorities.tolist(), strict=True):
            self.items[self.cursor] = [writer, serial, 0, priority]
            self.items.pop(self.cursor - self.capacity, None)
            self.cursor += 1

    def cut_short(self, n: int) -> None:
        """An add of n items has begun, and never ended."""
        n = min(n, self.capacity)
        self.lost += n
        oldest = self.cursor - (self.capacity - n)
        self.items = {handle: item for handle, item in self.items.items() if handle >= oldest}

    def update(self, handles: np.ndarray, priorities: np.ndarray | None, version: int | None) -> None:
        for i, handle in enumerate(handles.tolist()):
            item = self.items.get(handle)
            if item is not None and priorities is not None:
                item[3] = float(priorities[i])
            if item is not None and version is not None:
                item[2] = version

    def check(self, shared: SharedBuffer, rng: Rng) -> None:
        counters = shared.counters()
        assert counters[:2].tolist() == [self.cursor, len(self.items)], (counters, self.cursor, len(self.items))
        assert shared.lost().tolist() == [self.lost], (shared.lost(), self.lost)
        handles = np.array(list(self.items), np.int32)
        expected = np.array([self.items[int(handle)][:3] for handle in handles], np.int32).reshape(-1, 3).T
        for leaf, want in zip(shared.get(handles), make(*expected), strict=True):
            np.testing.assert_array_equal(leaf, want)
        gone = np.array([h for h in range(max(0, self.cursor - 3 * self.capacity), self.cursor) if h not in self.items])
        assert not shared.look(functions.is_live, gone.astype(np.int32)).any()
        copied = shared.snapshot()
        dead = np.ones(self.capacity, bool)
        dead[handles % self.capacity] = False
        assert not copied.rows[dead].any()
        assert not any(array[dead].any() for array in copied.wide)
        if copied.tree.size:
            values = np.zeros(self.capacity, np.float32)
            values[handles % self.capacity] = [self.items[int(handle)][3] for handle in handles]
            np.testing.assert_array_equal(copied.tree.reshape(-1)[: self.capacity], values)
            np.testing.assert_array_equal(copied.tree, rebuilt(copied.tree, self.capacity))
        if any(item[3] for item in self.items.values()):
            leaves, drawn = shared.sample(numbers(rng, shared, 64), 0.4)
            check_items(leaves)
            assert set(drawn.handles.tolist()) <= set(self.items)


def numbers(rng: Rng, shared: SharedBuffer, batch: int) -> np.ndarray:
    """Draws of a batch."""
    return rng.integers(0, 2**31, shared.spec.draw_shape(batch), dtype=np.int32)
