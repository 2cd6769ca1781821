"""The laws of the library's samplers, and what another spec makes of a model: see `functional_rb.testing`.

They are written from the documentation. A model does not choose at random: it checks what the buffer chose, and goes on
from it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import functional_rb as frb
from functional_rb.buffer import respec
from functional_rb.testing.laws import LARGEST, ROUNDING, SMALLEST, TINY, Law, Leaves, SampleArrays, Step, shares
from functional_rb.testing.list_model import ListModel
from functional_rb.testing.stores import Ring
from tests.support.window_models import FreshWindows, PrioritizedWindows, Window, Windows


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

    def check(self, model: Model, told: SampleArrays, beta: float | None) -> None:
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

    def check(self, model: Model, told: SampleArrays, beta: float | None) -> None:
        assert told.mask is None
        expected = self.probabilities(model)
        np.testing.assert_allclose(told.probabilities, [expected[x.id] for x in model.real(told)], rtol=1e-5)
        assert (told.weights == 1).all()


class InTurn(Law):
    """`InOrder`."""

    def drawable(self, model: Model) -> list[Step]:
        """The draws that are left, in their order."""
        steps, limit = model.steps(), self.sampler.max_times_sampled
        if self.sampler.newest_first:
            steps = steps[::-1]
        return [step for step in steps for _ in range(1 if limit is None else limit - step.times)]

    def probabilities(self, model: Model) -> dict[int, float]:
        return {step.id: 1.0 for step in self.drawable(model)[:1]}

    def check(self, model: Model, told: SampleArrays, beta: float | None) -> None:
        batch = len(told.indices)
        expected = self.drawable(model)[:batch]
        check_in_turn(told, [step.id for step in model.real(told)], [step.id for step in expected])
        for step in expected:
            step.times += self.sampler.max_times_sampled is not None


def check_in_turn(told: SampleArrays, got: Sequence[Any], expected: Sequence[Any]) -> None:
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

    def check(self, model: Model, told: SampleArrays, beta: float | None) -> None:
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
    """`WithoutReplacement`: what is left of an epoch is a list of names."""

    def __init__(self, spec: frb.BufferSpec) -> None:
        """No pass is under way."""
        super().__init__(spec)
        self.left: list[Any] = []

    def names(self, model: Model) -> list[Any]:
        """What an epoch goes through, in order."""
        return [step.id for step in model.steps()]

    def next(self, model: Model) -> dict[Any, float]:
        """The names that the next draw may give, and how likely."""
        names = self.left or self.names(model)
        return shares(dict.fromkeys(names if getattr(self.sampler, "shuffle", True) else names[:1], 1.0))

    def probabilities(self, model: Model) -> dict[int, float]:
        return self.next(model)

    def drawn(self, model: Model, told: SampleArrays) -> list[Any]:
        """The names of what was drawn, the first rows of a batch; the others are seen to be masked."""
        steps = model.real(told)
        count = len(steps)
        assert told.mask is not None
        np.testing.assert_array_equal(told.mask, np.arange(len(told.mask)) < count)
        return [step.id for step in steps]

    def added(self, model: Model) -> None:
        """What is gone drops out; an epoch of which nothing is left is done."""
        names = set(self.names(model))
        before, self.left = self.left, [name for name in self.left if name in names]
        self.epochs_done += bool(before) and not self.left

    def whole(self, batch: int) -> int:
        """How many there must be for a batch."""
        return batch if self.sampler.drop_last else 1

    def refuses(self, model: Model, batch: int) -> bool:
        """Too few even for a new pass."""
        return len(self.names(model)) < self.whole(batch)

    def one_by_one(self, left: int) -> list[float]:
        """Of one draw after the other, of so many that are left."""
        return [1 / (left - k) if self.sampler.shuffle else 1.0 for k in range(left)]

    def check(self, model: Model, told: SampleArrays, beta: float | None) -> None:
        """From what is left, or from all."""
        batch = len(told.weights)
        if len(self.left) < self.whole(batch):
            self.epochs_done += bool(self.left)  # too little for a batch, so that epoch is done
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
            self.left, self.epochs_done = [], self.epochs_done + 1


class PassesOfWindows(Windows, Passes):
    """`SlicesWithoutReplacement`: epochs of trajectories, or of windows by their first steps."""

    def __init__(self, spec: frb.BufferSpec) -> None:
        super().__init__(spec)
        self.last_start: dict[Any, int] = {}

    def name(self, window: Window) -> Any:
        """What is drawn once an epoch."""
        return window.trajectory if self.sampler.weighting == "trajectory" else window.steps[0].id

    def probabilities(self, model: Model) -> dict[int, float]:
        """As with replacement, of what is left."""
        return Windows.probabilities(self, model)

    def named_chances(self, model: Model, windows: Sequence[Window]) -> dict[Any, float]:
        return self.next(model)

    def names(self, model: Model) -> list[Any]:
        return list(dict.fromkeys(self.name(window) for window in self.windows(model)))

    def added(self, model: Model) -> None:
        """A trajectory of which the last window's first step is gone has lost its place, whatever has come since."""
        stored, before = {step.id for step in model.steps()}, self.left
        self.left = [name for name in before if self.last_start[name] in stored]
        self.epochs_done += bool(before) and not self.left
        Passes.added(self, model)
        self.last_start = {self.name(window): window.steps[0].id for window in self.windows(model)}

    def drawn(self, model: Model, told: SampleArrays) -> list[Any]:
        return [self.name(window) for window in self.found(model, told)]

    def refuses(self, model: Model, batch: int) -> bool:
        return Passes.refuses(self, model, batch)

    def can(self, model: Model, n: int) -> bool:
        """A short batch will do, where there are such."""
        return not self.refuses(model, n // self.sampler.length if self.sampler.batch == "steps" else n)

    def one_by_one(self, left: int) -> list[float]:
        """Of one draw after the other."""
        return [1 / (left - k) for k in range(left)]

    def check(self, model: Model, told: SampleArrays, beta: float | None) -> None:
        Passes.check(self, model, told, beta)


LAWS: dict[type, Any] = {
    frb.Uniform: Limited,
    frb.Prioritized: Limited,
    frb.Recency: Newer,
    frb.Staleness: Law,  # where nobody has told a version, so that no item is stale
    frb.InOrder: InTurn,
    frb.Queue: Consumed,
    frb.WithoutReplacement: Passes,
    frb.Slices: Windows,
    frb.PrioritizedSlices: PrioritizedWindows,
    frb.SlicesWithoutReplacement: PassesOfWindows,
}


class Model(ListModel):
    """A buffer with one of the library's samplers."""

    def __init__(self, spec: frb.BufferSpec, first: int = 0) -> None:
        """Empty; `first` is the number of each lane's first step."""
        fresh = getattr(spec.sampler, "fresh_first", False)
        super().__init__(spec, first, law=FreshWindows if fresh else LAWS[type(spec.sampler)])


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
    new.rejected, new.stale, new.count = model.rejected, model.stale, model.count
    if isinstance(model.law, FreshWindows) and isinstance(new.law, FreshWindows):
        new.law.told = model.law.passed(model)
    shared = dict(old.plan.counter_names).keys() & dict(spec.plan.counter_names).keys()
    new.law.epochs_done = model.law.epochs_done if "epochs_done" in shared else 0
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
    if not isinstance(new.law, Windows) or (
        isinstance(model.law, Windows) and model.spec.plan.boundaries == spec.plan.boundaries
    ):
        return
    for e, lane in enumerate(store.lanes):
        before = None
        for step in lane:
            step.episode = step.step_in_episode = 0
            new.law.follow(before, step)
            before = step
        store.newest[e] = before


def _chosen(new: Model, copied: Any, current: Any) -> None:
    """As if they came one after the other, a step of every lane at a time."""
    lanes = copied.lanes if isinstance(copied, Ring) else [copied.steps()]
    steps = [step for row in itertools.zip_longest(*lanes) for step in row if step is not None]
    new.store.put(new.law, [step.leaves for step in steps], [True] * len(steps), None, [step.id for step in steps])
    for slot, handle in enumerate(np.asarray(current).tolist()):
        new.store.handles[slot] = None if handle == -1 else handle if handle >= 0 else -2 - handle
        if new.store.slots[slot] is not None:
            new.store.slots[slot].handle = handle


class Shrinking(Ring):
    """A ring of which the oldest steps go before their time."""

    sizes: Sequence[int] = ()

    def put(
        self, law: Law, rows: Sequence[Leaves], mask: Sequence[bool], bits: Any, ids: Sequence[int]
    ) -> dict[int, Step]:
        """What goes as others come was there for a moment: its priority was judged."""
        made = super().put(law, rows, mask, bits, ids)
        self.lanes = [lane[len(lane) - size :] for lane, size in zip(self.lanes, self.sizes, strict=True)]
        return made
