"""A buffer as one would write it down in plain Python: lists of items, and loops over them.

A `ListModel` has a *store*, which does what the buffer's writer should do (`stores`), and a *law*, which says what its
sampler may do (`laws`). Both are written from the documentation alone. A model draws nothing at random: it checks what
the buffer drew, and goes on from there.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.buffer.spec import BufferSpec
from functional_rb.testing.laws import (
    LARGEST,
    SMALLEST,
    Law,
    Leaves,
    SampleArrays,
    Step,
    assert_same_bytes,
)
from functional_rb.testing.stores import STORES, Ring


class ListModel:
    """A buffer as plain lists: a store, a law, and what every buffer counts.

    Args:
        spec: the spec of the buffer.
        first: the number of each lane's first item.
        store: the class of what the writer should do; by default that of the library's writer in the spec, and of
            another writer that keeps items in order, a `Ring`.
        law: the class of what the sampler may do; by default any item with equal probability.

    Attributes:
        rejected: how many bad priorities were refused.
        stale: how many handles of items that are gone were given to `update`.
        peak: the largest priority to the power alpha that was ever stored.
        gone: the handles of items that were taken out.

    Example:
        >>> import numpy as np
        >>> from functional_rb import BufferSpec, Unbounded
        >>> model = ListModel(BufferSpec({"x": Unbounded(())}, capacity=2))
        >>> model.add([{"x": np.float32(k)} for k in range(3)])
        >>> [(step.handle, step.slot, float(step.leaves["x"])) for step in model.steps()]
        [(1, 1, 1.0), (2, 0, 2.0)]
    """

    def __init__(
        self,
        spec: BufferSpec,
        first: int = 0,
        store: Callable[[BufferSpec, int], object] | None = None,
        law: Callable[[BufferSpec], object] | None = None,
    ) -> None:
        self.spec = spec
        self.store: Any = (store or STORES.get(type(spec.writer), Ring))(spec, first)
        self.law: Any = (law or Law)(spec)
        self.rejected = self.stale = self.count = 0
        self.peak = 0.0
        self.gone: list[int] = []

    def clone(self) -> Self:
        """The same model, for a history that goes another way from here."""
        new = copy.copy(self)
        new.store, new.law, new.gone = self.store.clone(), self.law.clone(), list(self.gone)
        return new

    def steps(self) -> list[Step]:
        """All that is stored."""
        return list(self.store.steps())

    def by_handle(self) -> dict[int, Step]:
        """All that is stored, by handle."""
        return {step.handle: step for step in self.steps()}

    def expected(self, name: str, steps: Sequence[Step]) -> NumpyArray:
        """A leaf of some items, [n, *shape]."""
        return np.stack([step.leaves[name] for step in steps])

    def value_of(self, priority: float) -> float | None:
        """What a priority counts: itself to the power alpha, within bounds; None if it is bad."""
        if not math.isfinite(priority) or priority < 0:
            return None
        power = max(priority, 2.0**-126) ** getattr(self.spec.sampler, "alpha", 1.0)
        return float(min(max(power, SMALLEST), LARGEST)) if priority > 0 else 0.0

    def default_value(self) -> float:
        """What a new item counts that comes without a priority."""
        sampler = self.spec.sampler
        if not sampler.has_priorities:
            return 1.0
        if getattr(sampler, "new_priority", "live") == "ever":
            return self.peak or 1.0
        leaves = self.law.leaves(self)
        values = [step.value for step in self.steps()] if leaves is None else leaves.values()
        return max(values, default=0.0) or 1.0

    def add(
        self,
        rows: Sequence[Leaves],
        mask: Sequence[bool] | None = None,
        priorities: Sequence[float] | None = None,
        bits: NumpyArray | None = None,
    ) -> None:
        """Write items.

        Args:
            rows: the items; row `t * lanes + e` is step t of lane e.
            mask: which of them are written; None for all.
            priorities: one for each row, or None.
            bits: random bits, int [B, words], for a writer that takes any.
        """
        default = self.default_value()
        ids = range(self.count, self.count + len(rows))
        self.count += len(rows)
        written = self.store.put(self.law, rows, [True] * len(rows) if mask is None else mask, bits, ids)
        for row, step in written.items():
            value = default if priorities is None else self.value_of(priorities[row])
            self.rejected += value is None
            step.value = default if value is None else value
            self.peak = max(self.peak, step.value)
        self.law.added(self)

    def clear(self) -> None:
        """Take all items out; the handles, and what was counted, go on."""
        self.gone += [step.handle for step in self.steps()]
        self.store.clear()
        self.law.added(self)
        self.peak = 0.0

    def update(
        self, handles: Sequence[int], priorities: Sequence[float] | None = None, items: Leaves | None = None
    ) -> None:
        """Set priorities and exchange leaves of the items that handles name, one after the other: the last one wins.

        Args:
            handles: one for each row.
            priorities: one for each row, or None.
            items: leaves [B, *shape] by path, some of them.
        """
        named = self.by_handle()
        for row, handle in enumerate(handles):
            if handle not in named:
                self.stale += handle != -1
                continue
            step = named[handle]
            step.leaves = step.leaves | {name: leaf[row] for name, leaf in (items or {}).items()}
            if priorities is not None:
                value = self.value_of(priorities[row])
                self.rejected += value is None
                step.value = step.value if value is None else value
                self.peak = max(self.peak, value or 0.0)
        if items:
            self.store.rewritten([named[handle] for handle in dict.fromkeys(handles) if handle in named])

    def real(self, sample: SampleArrays) -> list[Step]:
        """The items that a sample shows, each seen to be stored and whole; what is masked has the index -1."""
        mask = np.ones(sample.indices.shape, bool) if sample.mask is None else sample.mask
        assert mask.shape == sample.indices.shape
        assert mask.dtype == bool
        assert (sample.indices[~mask] == -1).all()
        named = self.by_handle()
        steps = [named[handle] for handle in sample.indices[mask].tolist()]
        for name, leaf in sample.items.items():
            assert leaf.shape[: mask.ndim] == mask.shape
            if steps:
                assert_same_bytes(leaf[mask], self.expected(name, steps), name)
        return steps
