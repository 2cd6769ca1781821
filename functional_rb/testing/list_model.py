"""A buffer as one would write it down in plain Python: lists of items, and loops over them.

A `ListModel` has a *store*, which does what the buffer's writer should do, and a *law*, which says what its sampler may
do. Both are written from the documentation alone. A model draws nothing at random: it checks what the buffer drew, and
goes on from there.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from functional_rb.buffer.spec import BufferSpec
from functional_rb.writers import Immutable, MaxValue, Reservoir, RoundRobin, StopWhenFull

Array = np.ndarray[Any, Any]
Leaves = dict[str, Array]
"""The leaves of one item, by path, such as "obs" or "next/reward"."""
Name = TypeVar("Name", bound=Hashable)

SMALLEST, LARGEST = 2.0**-100, 2.0**95
"""Between these lies what a positive priority counts, whatever it is."""
ROUNDING = 1e-6
"""The relative error of fixed-point powers, and of float32 sums of a few hundred values."""
TINY = 2.0**-124
"""Weights are normal floats, so that the least of them are larger than they should be, by this at most."""


@dataclasses.dataclass
class Step:
    """An item that was added.

    Attributes:
        id: a number that no other item has.
        lane: the lane in which it is.
        slot: where it lies.
        handle: its name.
        leaves: what it holds, by path.
        value: its priority to the power alpha.
        times: how often it was drawn, where that is counted.
        episode: the number of its trajectory in its lane, where a law numbers them.
        step_in_episode: how many steps of its trajectory came before it, likewise.
        ended: whether it is known to be its trajectory's last step, likewise.
        rank: what the best items are chosen by.
    """

    id: int
    lane: int
    slot: int
    handle: int
    leaves: Leaves
    value: float = 1.0
    times: int = 0
    episode: int = 0
    step_in_episode: int = 0
    ended: bool = False
    rank: float = 0.0


class SampleArrays(NamedTuple):
    """A `Sample` in NumPy's arrays, its items by path.

    Attributes:
        items: leaves [B, *shape], of slices [B, length, *shape].
        indices: int32 [B] or [B, length].
        weights: float32 [B].
        probabilities: float32 [B].
        mask: bool in the shape of the indices, or None.
        is_first: bool in the shape of the indices, of slices alone.
        is_last: bool in the shape of the indices, of slices alone.
        truncated: bool in the shape of the indices, of slices alone.
    """

    items: Leaves
    indices: Array
    weights: Array
    probabilities: Array
    mask: Array | None = None
    is_first: Array | None = None
    is_last: Array | None = None
    truncated: Array | None = None


def shares(weights: Mapping[Name, float]) -> dict[Name, float]:
    """What each weight is of all together, those of nothing left out.

    Example:
        >>> shares({"a": 3.0, "b": 1.0, "c": 0.0})
        {'a': 0.75, 'b': 0.25}
    """
    total = math.fsum(weights.values())
    return {name: weight / total for name, weight in weights.items() if weight}


# --- stores: what writers should do ----------------------------------------------------------------------------------


class Ring:
    """What `RoundRobin` writes: of each lane the newest `length` items."""

    def __init__(self, spec: BufferSpec, first: int = 0) -> None:
        """An empty store.

        Args:
            spec: of the buffer.
            first: the number of each lane's first item.
        """
        self.capacity, count = spec.capacity, spec.lanes or 1
        self.length = self.capacity // count
        self.lanes: list[list[Step]] = [[] for _ in range(count)]
        self.newest: list[Step | None] = [None] * count
        self.numbers = [first] * count
        self.refused = 0
        """How many items were not taken."""

    def clone(self) -> Ring:
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
        self, law: Law, rows: Sequence[Leaves], mask: Sequence[bool], bits: Any, ids: Sequence[int]
    ) -> dict[int, Step]:
        """Write the marked rows of a batch.

        Args:
            law: which is told what follows on what.
            rows: the items; row `t * lanes + e` is step t of lane e.
            mask: which of them are written.
            bits: random bits, int [B, words], for a writer that takes any.
            ids: the numbers of the items.

        Returns:
            The step of each row that is stored afterwards.
        """
        made = {}
        for row, leaves in enumerate(rows):
            lane = row % len(self.lanes)
            if not mask[row] or not self.has_room(lane):
                continue
            turn, place = divmod(self.numbers[lane] % ((2**31 - 1) // self.capacity * self.length), self.length)
            slot = lane * self.length + place
            made[row] = Step(ids[row], lane, slot, turn * self.capacity + slot, leaves)
            law.follow(self.newest[lane], made[row])
            self.newest[lane] = made[row]
            self.numbers[lane] += 1
            self.lanes[lane] = [*self.lanes[lane], made[row]][-self.length :]
        stored = {step.id for step in self.steps()}
        return {row: step for row, step in made.items() if step.id in stored}

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
        """Whether each lane has room for its marked rows."""
        count = len(self.lanes)
        return all(sum(mask[e::count]) <= self.length - len(self.lanes[e]) for e in range(count))

    def has_room(self, lane: int) -> bool:
        """Whether one more item of a lane is taken; if not, it is counted as refused."""
        room = len(self.lanes[lane]) < self.length
        self.refused += not room
        return room


class Chosen:
    """What writers write that choose slots; a slot's handle grows by the capacity whenever it is written again."""

    def __init__(self, spec: BufferSpec, first: int = 0) -> None:
        """A store of empty slots, in which numbers always begin at 0."""
        assert first == 0
        self.spec, self.capacity = spec, spec.capacity
        self.slots: list[Step | None] = [None] * spec.capacity
        self.handles: list[int | None] = [None] * spec.capacity
        self.refused = 0

    def clone(self) -> Any:
        """The same store, with items of its own."""
        new = copy.copy(self)
        new.slots = [None if step is None else copy.copy(step) for step in self.slots]
        new.handles = list(self.handles)
        return new

    def steps(self) -> list[Step]:
        """All that is stored, by slot."""
        return [step for step in self.slots if step is not None]

    def fits(self, mask: Sequence[bool]) -> bool:
        """Whether there is room for the marked rows of a batch."""
        return True

    def place(self, chosen: Mapping[int, int], rows: Sequence[Leaves], ids: Sequence[int]) -> dict[int, Step]:
        """Write rows to slots, given as {slot: row}; returns the step of each row."""
        made = {}
        for slot, row in chosen.items():
            old = self.handles[slot]
            handle = self.handles[slot] = slot if old is None else old + self.capacity
            made[row] = self.slots[slot] = Step(ids[row], 0, slot, handle, rows[row])
        return made

    def clear(self) -> None:
        """Take all items out; the handles go on."""
        self.slots = [None] * self.capacity

    def rewritten(self, steps: Sequence[Step]) -> None:
        """Take note that leaves of these items have changed."""


class Sampled(Chosen):
    """What `Reservoir` writes: J. S. Vitter, "Random Sampling with a Reservoir", 1985, algorithm R."""

    seen = 0
    """How many items were ever added."""

    def put(
        self, law: Law, rows: Sequence[Leaves], mask: Sequence[bool], bits: Any, ids: Sequence[int]
    ) -> dict[int, Step]:
        """Write the marked rows by random bits int [B, 2], each the two halves of a 62-bit fraction; see `Ring.put`."""
        chosen: dict[int, int] = {}
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
        """Take all items out: from now on nothing was ever added."""
        super().clear()
        self.seen = 0


class Best(Chosen):
    """What `MaxValue` writes: the items of the highest ranks."""

    def __init__(self, spec: BufferSpec, first: int = 0) -> None:
        """A store to which nothing was added yet."""
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
        self, law: Law, rows: Sequence[Leaves], mask: Sequence[bool], bits: Any, ids: Sequence[int]
    ) -> dict[int, Step]:
        """Write the best row over the lowest item, the second best over the second lowest, and so on, as `Ring.put`."""
        ranks = {row: self.rank(leaves) for row, leaves in enumerate(rows) if mask[row]}
        good = sorted((row for row in ranks if not math.isnan(ranks[row])), key=lambda row: (-ranks[row], row))
        self.refused += len(ranks) - len(good)
        before = {slot: -math.inf if step is None else step.rank for slot, step in enumerate(self.slots)}
        lowest = sorted(before, key=lambda slot: (self.slots[slot] is not None, before[slot], slot))
        pairs = list(zip(lowest, good, strict=False))
        chosen = {slot: row for slot, row in pairs if self.slots[slot] is None or ranks[row] > before[slot]}
        made = self.place(chosen, rows, ids)
        for row, step in made.items():
            step.rank = ranks[row]
        if self.ever is not None:  # the definition in fewer words, which holds as long as nothing was rewritten
            self.ever = sorted([*self.ever, *(ranks[row] for row in good)])
            assert sorted(step.rank for step in self.steps()) == self.ever[-self.capacity :]
        return made

    def clear(self) -> None:
        """Take all items out: from now on nothing was ever added."""
        super().clear()
        self.ever = []

    def rewritten(self, steps: Sequence[Step]) -> None:
        """Rank rewritten items anew; one that has no rank any more keeps its old one."""
        self.ever = None
        for step in steps:
            rank = self.rank(step.leaves)
            step.rank = step.rank if math.isnan(rank) else rank


STORES: dict[type, Any] = {
    RoundRobin: Ring,
    StopWhenFull: Bounded,
    Immutable: Bounded,
    Reservoir: Sampled,
    MaxValue: Best,
}
"""The store of each of the library's writers."""


# --- laws: what samplers should do -----------------------------------------------------------------------------------


class Law:
    """What a sampler may do: here, draw any stored item with equal probability."""

    passes = 0
    """How many epochs are done."""

    def __init__(self, spec: BufferSpec) -> None:
        """A law for a buffer from which nothing was drawn yet."""
        self.spec = spec
        self.sampler: Any = spec.sampler

    def clone(self) -> Any:
        """The same law, with a memory of its own."""
        new = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, set | list):
                setattr(new, name, type(value)(value))
        return new

    def follow(self, before: Step | None, step: Step) -> None:
        """Take note that a step is written after another of its lane, which may be gone."""

    def added(self, model: Any) -> None:
        """Take note that a batch was written."""

    def drawable(self, model: Any) -> list[Any]:
        """What may be drawn now."""
        return list(model.steps())

    def refuses(self, model: Any, batch: int) -> bool:
        """Whether nothing can be drawn."""
        return not self.drawable(model)

    def can(self, model: Any, n: int) -> bool:
        """What `rb.can_sample(state, n)` should say."""
        return len(model.steps()) >= n and not self.refuses(model, 1)

    def leaves(self, model: Any) -> dict[int, float] | None:
        """What the sum tree should hold by slot, zeros left out; None for samplers whose tree is their own affair."""
        return None

    def probabilities(self, model: Any) -> dict[int, float]:
        """With which probability the next draw begins with an item, by its id, zeros left out."""
        return shares({step.id: 1.0 for step in model.steps()})

    def check(self, model: Any, sample: SampleArrays, beta: float | None) -> None:
        """See that a sample is right, and remember what was drawn."""
        steps = self.drawable(model)
        assert sample.mask is None
        for step in model.real(sample):
            assert step in steps
        np.testing.assert_array_equal(sample.weights, np.ones(sample.indices.shape))
        np.testing.assert_allclose(sample.probabilities, np.full(sample.indices.shape, 1 / len(steps)), rtol=ROUNDING)


# --- the buffer ------------------------------------------------------------------------------------------------------


class ListModel:
    """A buffer as plain lists: a store, a law, and what every buffer counts.

    Args:
        spec: of the buffer.
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

    def __init__(self, spec: BufferSpec, first: int = 0, store: Any = None, law: Any = None) -> None:
        self.spec = spec
        self.store: Any = (store or STORES.get(type(spec.writer), Ring))(spec, first)
        self.law: Any = (law or Law)(spec)
        self.rejected = self.stale = self.count = 0
        self.peak = 0.0
        self.gone: list[int] = []

    def clone(self) -> Any:
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

    def expected(self, name: str, steps: Sequence[Step]) -> Array:
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
        sampler: Any = self.spec.sampler
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
        bits: Any = None,
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
        made = self.store.put(self.law, rows, [True] * len(rows) if mask is None else mask, bits, ids)
        for row, step in made.items():
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
        """The items that a sample shows, each seen to be stored and whole; what is masked has the index -1.

        Raises:
            AssertionError: if an item is gone, or is not what was added.
        """
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


def assert_same_bytes(got: Array, expected: Array, name: str) -> None:
    """Leaves are stored bit for bit: each NaN is the one that was added, and a zero has its sign."""
    assert got.shape == expected.shape, name
    assert got.tobytes() == expected.astype(got.dtype).tobytes(), f"{name}: {got} instead of {expected}"
