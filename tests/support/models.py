"""Buffers as one would write them down in plain Python: lists of steps, and loops over them.

A `Model` is a writer's `Store`, which holds the steps, and a sampler's `Law`, which says what may be drawn. Both are
written from the documentation. A model does not choose at random: it checks what the buffer chose, and goes on from it.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import functional_rb as frb
from functional_rb.buffer import respec

Leaves = dict[str, np.ndarray]
"""The leaves of one item, by name."""
SMALLEST, LARGEST = 2.0**-100, 2.0**95
ROUNDING = 1e-6
"""Of fixed-point powers, and of float32 sums of a few hundred values."""
TINY = 2.0**-124
"""Weights are told as normal floats, so that the least are larger than they should be."""


@dataclasses.dataclass
class Step:
    """An item that was added.

    Attributes:
        id: that no other has.
        lane: in which it is.
        slot: where it lies.
        handle: its name.
        leaves: what it holds.
        value: its priority to the power alpha.
        times: how often it was drawn, where that is counted.
        episode: the trajectory it is of, as a number of its lane.
        age: how many steps of its trajectory came before it.
        ended: whether it is known to be its trajectory's last step.
        rank: what the best are chosen by.
    """

    id: int
    lane: int
    slot: int
    handle: int
    leaves: Leaves
    value: float = 1.0
    times: int = 0
    episode: int = 0
    age: int = 0
    ended: bool = False
    rank: float = 0.0


class Told(NamedTuple):
    """A `Sample` in NumPy's arrays."""

    items: Leaves
    indices: np.ndarray
    weights: np.ndarray
    probabilities: np.ndarray
    mask: np.ndarray | None
    is_first: np.ndarray | None
    is_last: np.ndarray | None
    truncated: np.ndarray | None


class Ring:
    """What `RoundRobin` writes: of each lane the newest `length` steps."""

    def __init__(self, spec: frb.BufferSpec, first: int) -> None:
        """Each lane's first step gets the number `first`."""
        self.capacity, count = spec.capacity, spec.lanes or 1
        self.length = self.capacity // count
        self.lanes: list[list[Step]] = [[] for _ in range(count)]
        self.newest: list[Step | None] = [None] * count
        self.numbers = [first] * count
        self.refused = 0
        """How many were not taken."""

    def clone(self) -> Ring:
        """With steps of its own."""
        new = copy.copy(self)
        new.lanes = [[copy.copy(step) for step in lane] for lane in self.lanes]
        there = {step.id: step for step in new.steps()}
        new.newest = [step and there.get(step.id, step) for step in self.newest]
        new.numbers = list(self.numbers)
        return new

    def steps(self) -> list[Step]:
        """All that is stored, lane by lane, each from its oldest on."""
        return [step for lane in self.lanes for step in lane]

    def fits(self, mask: Sequence[bool]) -> bool:
        """Whether there is room for these rows."""
        return True

    def put(self, law: Law, rows: Sequence[Leaves], mask: Sequence[bool], words: Any) -> dict[int, Step]:
        """Write rows; returns the step of each row that is stored afterwards."""
        made = {}
        for row, leaves in enumerate(rows):
            lane = row % len(self.lanes)
            if not mask[row] or not self.has_room(lane):
                continue
            turn, place = divmod(self.numbers[lane] % ((2**31 - 1) // self.capacity * self.length), self.length)
            slot = lane * self.length + place
            made[row] = Step(int(leaves["id"]), lane, slot, turn * self.capacity + slot, leaves)
            law.follow(self.newest[lane], made[row])
            self.newest[lane] = made[row]
            self.numbers[lane] += 1
            self.lanes[lane] = [*self.lanes[lane], made[row]][-self.length :]
        stored = {step.id for step in self.steps()}
        return {row: step for row, step in made.items() if step.id in stored}

    def has_room(self, lane: int) -> bool:
        """Whether one more may come."""
        return True

    def clear(self) -> None:
        """The numbers go on."""
        self.lanes = [[] for _ in self.lanes]
        self.newest = [None] * len(self.lanes)

    def rewritten(self, steps: Sequence[Step]) -> None:
        """What these hold has changed."""


class Bounded(Ring):
    """What `StopWhenFull` writes, and `Immutable` once: what does not fit is refused."""

    def fits(self, mask: Sequence[bool]) -> bool:
        """Each lane for itself."""
        count = len(self.lanes)
        return all(sum(mask[e::count]) <= self.length - len(self.lanes[e]) for e in range(count))

    def has_room(self, lane: int) -> bool:
        """Where nobody is told, it is counted."""
        room = len(self.lanes[lane]) < self.length
        self.refused += not room
        return room


class Chosen:
    """What writers write that choose slots; a slot's handle grows by the capacity whenever it is written again."""

    def __init__(self, spec: frb.BufferSpec, first: int) -> None:
        """All slots are empty."""
        assert first == 0
        self.spec, self.capacity = spec, spec.capacity
        self.slots: list[Step | None] = [None] * spec.capacity
        self.handles: list[int | None] = [None] * spec.capacity
        self.refused = 0

    def clone(self) -> Any:
        """With steps of its own."""
        new = copy.copy(self)
        new.slots = [None if step is None else copy.copy(step) for step in self.slots]
        new.handles = list(self.handles)
        return new

    def steps(self) -> list[Step]:
        """All that is stored."""
        return [step for step in self.slots if step is not None]

    def fits(self, mask: Sequence[bool]) -> bool:
        """Always."""
        return True

    def place(self, chosen: dict[int, int], rows: Sequence[Leaves]) -> dict[int, Step]:
        """Write rows by slot: {slot: row}."""
        made = {}
        for slot, row in chosen.items():
            old = self.handles[slot]
            handle = self.handles[slot] = slot if old is None else old + self.capacity
            made[row] = self.slots[slot] = Step(int(rows[row]["id"]), 0, slot, handle, rows[row])
        return made

    def clear(self) -> None:
        """The handles go on."""
        self.slots = [None] * self.capacity

    def rewritten(self, steps: Sequence[Step]) -> None:
        """Where they lie does not depend on it."""


class Sampled(Chosen):
    """What `Reservoir` writes: algorithm R."""

    seen = 0

    def put(self, law: Law, rows: Sequence[Leaves], mask: Sequence[bool], words: Any) -> dict[int, Step]:
        """Words int [B, 2], each the two halves of a 62-bit fraction."""
        chosen: dict[int, int] = {}
        for row in range(len(rows)):
            if not mask[row]:
                continue
            high, low = (int(word) for word in words[row])
            slot = self.seen if self.seen < self.capacity else (high * 2**31 + low) * (self.seen + 1) // 2**62
            if slot < self.capacity:
                chosen[slot] = row
            self.seen += 1
        return self.place(chosen, rows)

    def clear(self) -> None:
        """Nothing was ever added."""
        super().clear()
        self.seen = 0


class Best(Chosen):
    """What `MaxValue` writes: the highest ranks."""

    def __init__(self, spec: frb.BufferSpec, first: int) -> None:
        """Nothing was added yet."""
        super().__init__(spec, first)
        self.ever: list[float] | None = []

    def rank(self, leaves: Leaves) -> float:
        """The leaf as one number."""
        writer: Any = self.spec.writer
        numbers = [float(x) for x in np.ravel(leaves[writer.rank_key])]
        if any(math.isnan(x) for x in numbers):
            return math.nan
        reductions = {"sum": sum, "max": max, "min": min, "mean": lambda x: sum(x) / len(x)}
        reductions["median"] = lambda x: sorted(x)[(len(x) - 1) // 2]
        return float(reductions[writer.reduction](numbers))

    def put(self, law: Law, rows: Sequence[Leaves], mask: Sequence[bool], words: Any) -> dict[int, Step]:
        """The best row against the lowest slot, the second best against the second lowest, and so on."""
        ranks = {row: self.rank(leaves) for row, leaves in enumerate(rows) if mask[row]}
        good = sorted((row for row in ranks if not math.isnan(ranks[row])), key=lambda row: (-ranks[row], row))
        self.refused += len(ranks) - len(good)
        before = {slot: -math.inf if step is None else step.rank for slot, step in enumerate(self.slots)}
        lowest = sorted(before, key=lambda slot: (self.slots[slot] is not None, before[slot], slot))
        pairs = list(zip(lowest, good, strict=False))
        chosen = {slot: row for slot, row in pairs if self.slots[slot] is None or ranks[row] > before[slot]}
        made = self.place(chosen, rows)
        for row, step in made.items():
            step.rank = ranks[row]
        if self.ever is not None:  # the same in fewer words, as long as nothing was rewritten
            self.ever = sorted([*self.ever, *(ranks[row] for row in good)])
            assert sorted(step.rank for step in self.steps()) == self.ever[-self.capacity :]
        return made

    def clear(self) -> None:
        """Nothing was ever added."""
        super().clear()
        self.ever = []

    def rewritten(self, steps: Sequence[Step]) -> None:
        """One that has no rank any more keeps its old one."""
        self.ever = None
        for step in steps:
            rank = self.rank(step.leaves)
            step.rank = step.rank if math.isnan(rank) else rank


class Law:
    """What a sampler may do. Here: anything with equal chances."""

    passes = 0

    def __init__(self, spec: frb.BufferSpec) -> None:
        """Nothing is remembered at first."""
        self.spec = spec
        self.sampler: Any = spec.sampler

    def clone(self) -> Any:
        """With a memory of its own."""
        new = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, set | list):
                setattr(new, name, type(value)(value))
        return new

    def follow(self, before: Step | None, step: Step) -> None:
        """A step is written after another of its lane, which may be gone."""

    def added(self, model: Model) -> None:
        """A batch was written."""

    def drawable(self, model: Model) -> list[Any]:
        """What may be drawn now."""
        return model.steps()

    def refuses(self, model: Model, batch: int) -> bool:
        """Whether nothing can be drawn."""
        return not self.drawable(model)

    def can(self, model: Model, n: int) -> bool:
        """What `can_sample` says of a batch of n."""
        return len(model.steps()) >= n and not self.refuses(model, 1)

    def leaves(self, model: Model) -> dict[int, float] | None:
        """What the tree should hold by slot, zeros left out; None for samplers whose tree is their own affair."""
        return None

    def probabilities(self, model: Model) -> dict[int, float]:
        """With which probability the next draw begins with a step, by id, zeros left out."""
        return shares({step.id: 1.0 for step in model.steps()})

    def check(self, model: Model, told: Told, beta: float | None) -> None:
        """See that a sample of a batch is right, and remember it."""
        steps = self.drawable(model)
        assert told.mask is None
        for step in model.real(told):
            assert step in steps
        np.testing.assert_array_equal(told.weights, np.ones(told.indices.shape))
        np.testing.assert_allclose(told.probabilities, np.full(told.indices.shape, 1 / len(steps)), rtol=ROUNDING)


def shares(weights: dict[Any, float]) -> dict[Any, float]:
    """Of all together."""
    total = math.fsum(weights.values())
    return {name: weight / total for name, weight in weights.items() if total}


class Limited(Law):
    """`Uniform` and `Prioritized`, with and without `max_times_sampled`."""

    @property
    def limit(self) -> float:
        """How often an item may be drawn."""
        return self.sampler.max_times_sampled or math.inf

    def drawable(self, model: Model) -> list[Step]:
        """Those with some chance, and draws left."""
        return [step for step in model.steps() if self.chance(step) > 0]

    def probabilities(self, model: Model) -> dict[int, float]:
        """In proportion."""
        return shares({step.id: self.chance(step) for step in model.steps()})

    def chance(self, step: Step) -> float:
        """How likely, up to a factor."""
        value = step.value if self.sampler.has_priorities else 1.0
        return value if step.times < self.limit else 0.0

    def leaves(self, model: Model) -> dict[int, float] | None:
        """The chances, where there is a tree."""
        if not self.sampler.has_priorities and self.limit == math.inf:
            return None
        return {step.slot: self.chance(step) for step in model.steps()}

    def check(self, model: Model, told: Told, beta: float | None) -> None:
        """One draw after the other."""
        probabilities = {step.id: self.chance(step) for step in self.drawable(model)}
        total, least = math.fsum(probabilities.values()), min(probabilities.values())
        assert (told.mask is None) == (self.limit == math.inf)
        mask = np.ones(told.indices.shape, bool) if told.mask is None else told.mask
        beta = getattr(self.sampler, "beta", 0.0) if beta is None else beta
        drawn = iter(model.real(told))
        for row, real in enumerate(mask):
            if not real:  # somebody who has no draws left since this batch began
                assert any(step.id in probabilities for step in model.steps() if step.times == self.limit)
                continue
            step = next(drawn)
            assert step.times < self.limit
            step.times += 1
            np.testing.assert_allclose(told.probabilities[row], probabilities[step.id] / total, rtol=ROUNDING)
            weight = (probabilities[step.id] / least) ** -beta if self.sampler.has_priorities else 1.0
            np.testing.assert_allclose(told.weights[row], weight, rtol=1e-5, atol=TINY)
        for told_of in (told.weights, told.probabilities):
            assert (told_of[~mask] == 0).all()
        assert mask[0]


class Newer(Law):
    """`Recency`: of the newest of s draws; how new a step is, is counted within its lane."""

    def probabilities(self, model: Model) -> dict[int, float]:
        """The chance of all steps as new, divided among them."""
        backs = {step.id: len(lane) - k for lane in model.store.lanes for k, step in enumerate(lane)}
        count, strength, found = len(backs), self.sampler.strength, {}
        for name, back in backs.items():
            as_old, alike = (sum(test(x) for x in backs.values()) for test in (back.__le__, back.__eq__))
            found[name] = ((as_old / count) ** strength - ((as_old - alike) / count) ** strength) / alike
        return found

    def check(self, model: Model, told: Told, beta: float | None) -> None:
        """As these say."""
        assert told.mask is None
        expected = self.probabilities(model)
        np.testing.assert_allclose(told.probabilities, [expected[x.id] for x in model.real(told)], rtol=1e-5)
        assert (told.weights == 1).all()


class InTurn(Law):
    """`Fifo` and `Lifo`."""

    def drawable(self, model: Model) -> list[Step]:
        """The draws that are left, in their order."""
        steps, limit = model.steps(), self.sampler.max_times_sampled
        if isinstance(self.sampler, frb.Lifo):
            steps = steps[::-1]
        return [step for step in steps for _ in range(1 if limit is None else limit - step.times)]

    def probabilities(self, model: Model) -> dict[int, float]:
        """The first one comes."""
        return {step.id: 1.0 for step in self.drawable(model)[:1]}

    def check(self, model: Model, told: Told, beta: float | None) -> None:
        """Exactly these."""
        batch = len(told.indices)
        expected = self.drawable(model)[:batch]
        check_in_turn(told, [step.id for step in model.real(told)], [step.id for step in expected])
        for step in expected:
            step.times += self.sampler.max_times_sampled is not None


def check_in_turn(told: Told, got: Sequence[Any], expected: Sequence[Any]) -> None:
    """First what is expected, then padding; all weights and probabilities are 1."""
    assert list(got) == list(expected)
    one = np.arange(len(told.weights)) < len(expected)
    assert told.mask is not None
    np.testing.assert_array_equal(told.mask.reshape(len(one), -1).all(1), one)
    np.testing.assert_array_equal(told.weights, one)
    np.testing.assert_array_equal(told.probabilities, one)


class Consumed(Law):
    """`Queue`: what is drawn is gone."""

    def refuses(self, model: Model, batch: int) -> bool:
        """No lane has a window."""
        return all(len(lane) < (self.sampler.length or 1) for lane in model.store.lanes)

    def probabilities(self, model: Model) -> dict[int, float]:
        """The first step of each lane with a window comes."""
        return {lane[0].id: 1.0 for lane in model.store.lanes if len(lane) >= (self.sampler.length or 1)}

    def can(self, model: Model, n: int) -> bool:
        """So many windows are there, taken from the lanes in turn."""
        lanes = model.store.lanes
        rounds = math.ceil(n / len(lanes))
        return sum(min(len(lane) // (self.sampler.length or 1), rounds) for lane in lanes) >= n

    def check(self, model: Model, told: Told, beta: float | None) -> None:
        """Window w * lanes + e is the w-th of lane e."""
        length, lanes = self.sampler.length or 1, model.store.lanes
        steps = model.real(told)
        assert told.mask is not None
        expected: list[Step] = []
        for number, marks in enumerate(told.mask.reshape(-1, length)):
            lane = number % len(lanes)
            assert marks.all() == (len(lanes[lane]) >= length)
            assert marks.all() == marks.any() == told.weights[number] == told.probabilities[number]
            if marks.all():
                expected += lanes[lane][:length]
                lanes[lane] = lanes[lane][length:]
        assert [step.id for step in steps] == [step.id for step in expected]


class Passes(Law):
    """`WithoutReplacement`: what is left of a pass is a list of names."""

    def __init__(self, spec: frb.BufferSpec) -> None:
        """No pass is under way."""
        super().__init__(spec)
        self.left: list[Any] = []

    def names(self, model: Model) -> list[Any]:
        """What a pass goes through, in order."""
        return [step.id for step in model.steps()]

    def next(self, model: Model) -> dict[Any, float]:
        """The names that the next draw may give, and how likely."""
        names = self.left or self.names(model)
        return shares(dict.fromkeys(names if getattr(self.sampler, "shuffle", True) else names[:1], 1.0))

    def probabilities(self, model: Model) -> dict[int, float]:
        """Of steps alone."""
        return self.next(model)

    def drawn(self, model: Model, told: Told) -> list[Any]:
        """The names of what was drawn, the first rows of a batch; the others are seen to be masked."""
        steps = model.real(told)
        count = len(steps)
        assert told.mask is not None
        np.testing.assert_array_equal(told.mask, np.arange(len(told.mask)) < count)
        return [step.id for step in steps]

    def added(self, model: Model) -> None:
        """What is gone drops out; a pass of which nothing is left is done."""
        names = set(self.names(model))
        before, self.left = self.left, [name for name in self.left if name in names]
        self.passes += bool(before) and not self.left

    def whole(self, batch: int) -> int:
        """How many there must be for a batch."""
        return batch if self.sampler.drop_last else 1

    def refuses(self, model: Model, batch: int) -> bool:
        """Too few even for a new pass."""
        return len(self.names(model)) < self.whole(batch)

    def one_by_one(self, left: int) -> list[float]:
        """Of one draw after the other, of so many that are left."""
        return [1 / (left - k) if self.sampler.shuffle else 1.0 for k in range(left)]

    def check(self, model: Model, told: Told, beta: float | None) -> None:
        """From what is left, or from all."""
        batch = len(told.weights)
        if len(self.left) < self.whole(batch):
            self.passes += bool(self.left)  # too little for a batch, so that pass is done
            self.left = self.names(model)
        names = self.drawn(model, told)
        count = min(batch, len(self.left))
        assert len(names) == len(set(names)) == count
        assert set(names) <= set(self.left)
        assert getattr(self.sampler, "shuffle", True) or names == self.left[:count]
        probabilities = self.one_by_one(len(self.left))[:count] + [0.0] * (batch - count)
        np.testing.assert_allclose(told.probabilities, probabilities, rtol=ROUNDING)
        np.testing.assert_array_equal(told.weights, np.arange(batch) < count)
        self.left = [name for name in self.left if name not in names]
        if len(self.left) < self.whole(batch):
            self.left, self.passes = [], self.passes + 1


class Window(NamedTuple):
    """A window: its steps, its trajectory, and the age at which it begins, which may be before its first step's."""

    steps: tuple[Step, ...]
    trajectory: tuple[int, int]
    begins: int

    @property
    def ids(self) -> tuple[int, ...]:
        """Of its steps."""
        return tuple(step.id for step in self.steps)


class Windows(Law):
    """What all samplers of slices share."""

    def follow(self, before: Step | None, step: Step) -> None:
        """Number the trajectories and the steps in them."""
        sampler, key = self.sampler, self.sampler.trajectory_key
        another = key is not None and before is not None and before.leaves[key] != step.leaves[key]
        if before is not None:
            before.ended = before.ended or another
            goes_on = not before.ended
            step.episode, step.age = (before.episode, before.age + 1) if goes_on else (before.episode + 1, 0)
        step.ended = any(bool(step.leaves[name]) for name in sampler.end_keys or ())

    def windows(self, model: Model) -> list[Window]:
        """All there are."""
        return [window for lane in model.store.lanes for window in self.windows_of(lane)]

    def windows_of(self, lane: Sequence[Step]) -> Iterator[Window]:
        """Those of a lane, by the definition."""
        length, (left, right) = self.sampler.length, self.sampler.reaches
        for episode in sorted({step.episode for step in lane}):
            steps = [step for step in lane if step.episode == episode]
            first, last = steps[0].age, steps[-1].age
            for begins in range(first - length + 1, last + 1):
                inside = tuple(step for step in steps if begins <= step.age < begins + length)
                whole = len(inside) == length
                early, late = begins < first, begins + length - 1 > last
                cut = begins == first or begins + length - 1 <= last + right
                allowed = whole or (
                    not self.sampler.strict_length and (begins >= first - left if early else cut if late else True)
                )
                if allowed and begins % self.sampler.period == 0:
                    yield Window(inside, (steps[0].lane, episode), begins)

    def drawable(self, model: Model) -> list[Any]:
        """By default all."""
        return self.windows(model)

    def probabilities(self, model: Model) -> dict[int, float]:
        """Of what is drawn, and then of its windows."""
        windows = self.windows(model)
        named = self.named_chances(model, windows)
        counts = collections.Counter(self.name(window) for window in windows)
        found: collections.Counter[int] = collections.Counter()
        for window in windows:
            found[window.steps[0].id] += named.get(self.name(window), 0.0) / counts[self.name(window)]  # type: ignore[assignment]  # floats are counted
        return dict(found)

    def name(self, window: Window) -> Any:
        """What is drawn before a window of it is."""
        return window.trajectory if self.sampler.weighting == "trajectory" else (window.ids, window.begins)

    def named_chances(self, model: Model, windows: Sequence[Window]) -> dict[Any, float]:
        """With replacement all are alike."""
        return shares(dict.fromkeys(map(self.name, windows), 1.0))

    def can(self, model: Model, n: int) -> bool:
        """They may come again."""
        return bool(self.drawable(model))

    def found(self, model: Model, told: Told) -> list[Window]:
        """The windows that were drawn, one for each row that is not all padding; what is told of them is right."""
        length = self.sampler.length
        rows = len(told.weights)
        assert all(x is not None for x in told[4:])
        shape = (rows * length,) if self.sampler.flat else (rows, length)
        assert all(x.shape == shape for x in (told.indices, *told[4:]))
        mask, is_first, is_last, truncated = (x.reshape(rows, length) for x in told[4:])
        steps = iter(model.real(told))
        known = {window.ids: window for window in self.windows(model)}
        found = []
        for row in range(rows):
            count = int(mask[row].sum())
            assert mask[row, :count].all()
            ids = tuple(next(steps).id for _ in range(count))
            if not count:
                assert not (is_first[row] | is_last[row] | truncated[row]).any()
                continue
            assert len(found) == row, "padding comes last"
            window = known[ids]
            found.append(window)
            ended = window.steps[-1].ended
            assert is_first[row].tolist() == [step.age == 0 for step in window.steps] + [False] * (length - count)
            for marks, there in ((is_last[row], ended), (truncated[row], not ended)):
                assert marks.tolist() == [there and k == count - 1 for k in range(length)]
        return found

    def check(self, model: Model, told: Told, beta: float | None) -> None:
        """With replacement."""
        found = self.found(model, told)
        assert len(found) == len(told.weights)
        windows = self.windows(model)
        count = len(windows)
        if self.sampler.weighting == "trajectory":
            count = len({window.trajectory for window in windows})
        assert (told.weights == 1).all()
        np.testing.assert_allclose(told.probabilities, np.full(len(found), 1 / count), rtol=ROUNDING)

    def least_chance(self, model: Model) -> float:
        """Of any window."""
        windows = self.windows(model)
        if getattr(self.sampler, "weighting", "window") == "window":
            return 1 / len(windows)
        counts = collections.Counter(window.trajectory for window in windows)
        return 1 / len(counts) / max(counts.values())


class PrioritizedWindows(Windows):
    """`PrioritizedSlices`: the first step's priority."""

    def starts(self, model: Model) -> dict[int, Step]:
        """The steps where a window begins, by id."""
        return {window.steps[0].id: window.steps[0] for window in self.windows(model)}

    def drawable(self, model: Model) -> list[Step]:
        """Those with some chance."""
        return [step for step in self.starts(model).values() if step.value > 0]

    def probabilities(self, model: Model) -> dict[int, float]:
        """By their priorities."""
        return shares({step.id: step.value for step in self.drawable(model)})

    def leaves(self, model: Model) -> dict[int, float]:
        """The values of starts."""
        return {step.slot: step.value for step in self.starts(model).values()}

    def check(self, model: Model, told: Told, beta: float | None) -> None:
        """As for items."""
        found = self.found(model, told)
        assert len(found) == len(told.weights)
        values = {step.id: step.value for step in self.drawable(model)}
        total, least = math.fsum(values.values()), min(values.values())
        beta = self.sampler.beta if beta is None else beta
        for row, window in enumerate(found):
            value = values[window.steps[0].id]
            np.testing.assert_allclose(told.probabilities[row], value / total, rtol=ROUNDING)
            np.testing.assert_allclose(told.weights[row], (value / least) ** -beta, rtol=1e-5, atol=TINY)

    def least_chance(self, model: Model) -> float:
        """Of any start with some."""
        values = [step.value for step in self.drawable(model)]
        return min(values) / math.fsum(values)


class PassesOfWindows(Windows, Passes):
    """`SlicesWithoutReplacement`: passes through trajectories, or through windows by their first steps."""

    def __init__(self, spec: frb.BufferSpec) -> None:
        """No windows yet."""
        super().__init__(spec)
        self.last_start: dict[Any, int] = {}

    def name(self, window: Window) -> Any:
        """What is drawn once a pass."""
        return window.trajectory if self.sampler.weighting == "trajectory" else window.steps[0].id

    def probabilities(self, model: Model) -> dict[int, float]:
        """As with replacement, of what is left."""
        return Windows.probabilities(self, model)

    def named_chances(self, model: Model, windows: Sequence[Window]) -> dict[Any, float]:
        """Of what is left."""
        return self.next(model)

    def names(self, model: Model) -> list[Any]:
        """Of all windows."""
        return list(dict.fromkeys(self.name(window) for window in self.windows(model)))

    def added(self, model: Model) -> None:
        """A trajectory of which the last window's first step is gone has lost its place, whatever has come since."""
        stored, before = {step.id for step in model.steps()}, self.left
        self.left = [name for name in before if self.last_start[name] in stored]
        self.passes += bool(before) and not self.left
        Passes.added(self, model)
        self.last_start = {self.name(window): window.steps[0].id for window in self.windows(model)}

    def drawn(self, model: Model, told: Told) -> list[Any]:
        """Of those drawn."""
        return [self.name(window) for window in self.found(model, told)]

    def refuses(self, model: Model, batch: int) -> bool:
        """As for items."""
        return Passes.refuses(self, model, batch)

    def can(self, model: Model, n: int) -> bool:
        """A short batch will do, where there are such."""
        return not self.refuses(model, n // self.sampler.length if self.sampler.batch == "steps" else n)

    def one_by_one(self, left: int) -> list[float]:
        """Of one draw after the other."""
        return [1 / (left - k) for k in range(left)]

    def check(self, model: Model, told: Told, beta: float | None) -> None:
        """As for items."""
        Passes.check(self, model, told, beta)


STORES: dict[type, Any] = {
    frb.RoundRobin: Ring,
    frb.StopWhenFull: Bounded,
    frb.Immutable: Bounded,
    frb.Reservoir: Sampled,
    frb.MaxValue: Best,
}
LAWS: dict[type, Any] = {
    frb.Uniform: Limited,
    frb.Prioritized: Limited,
    frb.Recency: Newer,
    frb.Fifo: InTurn,
    frb.Lifo: InTurn,
    frb.Queue: Consumed,
    frb.WithoutReplacement: Passes,
    frb.Slices: Windows,
    frb.PrioritizedSlices: PrioritizedWindows,
    frb.SlicesWithoutReplacement: PassesOfWindows,
}


class Model:
    """A buffer: a store, a law, and what every buffer counts."""

    def __init__(self, spec: frb.BufferSpec, first: int = 0) -> None:
        """Empty; `first` is the number of each lane's first step."""
        self.spec = spec
        self.store: Any = STORES[type(spec.writer)](spec, first)
        self.law: Any = LAWS[type(spec.sampler)](spec)
        self.rejected = self.stale = 0
        self.peak = 0.0
        self.gone: list[int] = []

    def clone(self) -> Model:
        """For a history that goes another way from here."""
        new = copy.copy(self)
        new.store, new.law, new.gone = self.store.clone(), self.law.clone(), list(self.gone)
        return new

    def steps(self) -> list[Step]:
        """All that is stored."""
        return self.store.steps()

    def expected(self, name: str, steps: Sequence[Step]) -> np.ndarray:
        """A leaf of some steps."""
        return np.stack([step.leaves[name] for step in steps])

    def value_of(self, priority: float) -> float | None:
        """What a priority counts, None if it is bad."""
        sampler: Any = self.spec.sampler
        if not math.isfinite(priority) or priority < 0:
            return None
        power = max(priority, 2.0**-126) ** sampler.alpha
        return min(max(power, SMALLEST), LARGEST) if priority > 0 else 0.0

    def default_value(self) -> float:
        """What a new step gets without a priority."""
        sampler: Any = self.spec.sampler
        if not sampler.has_priorities:
            return 1.0
        if sampler.new_priority == "ever":
            return self.peak or 1.0
        return max((self.law.leaves(self) or {}).values(), default=0.0) or 1.0

    def add(self, rows: Sequence[Leaves], mask: Sequence[bool], priorities: Sequence[float] | None, words: Any) -> None:
        """Write the marked rows; row t * lanes + e is step t of lane e."""
        default = self.default_value()
        for row, step in self.store.put(self.law, rows, mask, words).items():
            value = default if priorities is None else self.value_of(priorities[row])
            self.rejected += value is None
            step.value = default if value is None else value
            self.peak = max(self.peak, step.value)
        self.law.added(self)

    def clear(self) -> None:
        """Everything anew, but for the handles and what was counted."""
        self.gone += [step.handle for step in self.steps()]
        self.store.clear()
        self.law.added(self)
        self.peak = 0.0

    def update(
        self, handles: Sequence[int], priorities: Sequence[float] | None, items: dict[str, np.ndarray] | None
    ) -> None:
        """One after the other, so that the last one wins."""
        named = {step.handle: step for step in self.steps()}
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

    def real(self, told: Told) -> list[Step]:
        """The steps that a sample shows, each seen to be stored and whole; behind the mask there are none."""
        mask = np.ones(told.indices.shape, bool) if told.mask is None else told.mask
        assert mask.shape == told.indices.shape
        assert mask.dtype == bool
        assert (told.indices[~mask] == -1).all()
        named = {step.handle: step for step in self.steps()}
        steps = [named[handle] for handle in told.indices[mask].tolist()]
        for name, leaf in told.items.items():
            assert leaf.shape[: mask.ndim] == mask.shape
            if steps:
                np.testing.assert_array_equal(leaf[mask], self.expected(name, steps))
        return steps


def with_spec(model: Model, spec: frb.BufferSpec, newest: np.ndarray, cursors: Sequence[int], current: Any) -> Model:
    """The same steps under another spec, as if they had been added to it.

    Args:
        model: of the buffer.
        spec: the new one.
        newest: the handles that its lanes' last steps have now, [lanes, n], where it has lanes.
        cursors: of its lanes.
        current: the handles in its slots, where slots are chosen.
    """
    if respec.is_label(model.spec, spec):
        new = model.clone()
        new.spec = new.law.spec = spec
        new.law.sampler = spec.sampler
        return new
    old, new = model.spec, Model(spec)
    new.rejected, new.stale = model.rejected, model.stale
    shared = dict(old.counter_names).keys() & dict(spec.counter_names).keys()
    new.law.passes = model.law.passes if "passes" in shared else 0
    copied = model.store.clone()
    before = {step.id: step.handle for step in copied.steps()}
    if spec.writer.in_order:
        _in_rings(model, new, copied, newest, cursors)
    elif old.writer == spec.writer and old.capacity == spec.capacity:
        new.store = copied
    else:
        _chosen(new, copied, current)
    if new.store is not copied:
        new.store.refused += model.store.refused if "refused" in shared else 0
    _convert(model, new, {step.id: step for step in copied.steps()})
    now = {step.id: step.handle for step in new.steps()}
    new.gone = model.gone + [handle for name, handle in before.items() if now.get(name) != handle]
    assert not set(now.values()) & set(new.gone), "a handle names another item"
    new.law.added(new)
    return new


def _convert(model: Model, new: Model, before: dict[int, Step]) -> None:
    """Priorities to the new power, and how often steps were drawn."""
    ours: Any = model.spec.sampler
    theirs: Any = new.spec.sampler
    limit, most = (getattr(x, "max_times_sampled", None) for x in (ours, theirs))
    both = ours.has_priorities and theirs.has_priorities

    def raised(value: float) -> float:
        if ours.alpha == theirs.alpha:
            return value
        return min(max(value ** (theirs.alpha / ours.alpha), SMALLEST), LARGEST) if value else 0.0

    values = {}
    if both:
        new.peak = raised(model.peak)
        values = {x.id: raised(before[x.id].value) for x in new.steps() if not limit or before[x.id].times < limit}
    default = new.peak if getattr(theirs, "new_priority", "") == "ever" else max(values.values(), default=0.0)
    for step in new.steps():
        step.value = values.get(step.id, default or 1.0)
        step.times = min(before[step.id].times, most) if limit and most else 0
        new.peak = max(new.peak, step.value)


def _in_rings(model: Model, new: Model, copied: Any, newest: np.ndarray, cursors: Sequence[int]) -> None:
    """The newest of each lane, with the handles that they have now."""
    store, spec = new.store, new.spec
    store.lanes = [lane[-store.length :] for lane in copied.lanes]
    store.newest = list(copied.newest)
    for e, lane in enumerate(store.lanes):
        turn, slot = divmod(int(cursors[e]), spec.capacity)
        store.numbers[e] = turn * store.length + slot % store.length
        early = len(store.lanes) == 1 and max((step.handle for step in lane), default=0) < 2**30
        for step, handle in zip(lane, newest[e][len(newest[e]) - len(lane) :].tolist(), strict=True):
            if model.spec.capacity == spec.capacity or early:  # long before numbers begin again
                assert handle == step.handle, "handles go on"
            step.handle, step.slot = handle, handle % spec.capacity
    if not isinstance(new.law, Windows) or (isinstance(model.law, Windows) and model.spec.marks == spec.marks):
        return
    for e, lane in enumerate(store.lanes):
        before = None
        for step in lane:
            step.episode = step.age = 0
            new.law.follow(before, step)
            before = step
        store.newest[e] = before


def _chosen(new: Model, copied: Any, current: Any) -> None:
    """As if they came one after the other, a step of every lane at a time."""
    lanes = copied.lanes if isinstance(copied, Ring) else [copied.steps()]
    steps = [step for row in itertools.zip_longest(*lanes) for step in row if step is not None]
    new.store.put(new.law, [step.leaves for step in steps], [True] * len(steps), None)
    for slot, handle in enumerate(np.asarray(current).tolist()):
        new.store.handles[slot] = None if handle == -1 else handle if handle >= 0 else -2 - handle
        if new.store.slots[slot] is not None:
            new.store.slots[slot].handle = handle
