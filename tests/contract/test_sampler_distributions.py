"""The law of each sampler, by going through all draws instead of drawing.

Whatever is left to chance is a number below some n, from two words, or a leaf of a sum tree, from one word a level. The
draws that lead to each number, or leaf, are an interval whose ends are known (see `test_distribution`), so its
probability is known too. All joint choices are then fed to the core by the first draws of their intervals and by the
last ones, and what comes out is held against the documented law, computed from plain lists.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch

import functional_rb as frb
import jax_backend
import torch_backend
from functional_rb.buffer import functions
from functional_rb.core.draft import Arrays
from functional_rb.ops.part_kernels import NONE, Table, using
from jax_backend.arrays import ops as jax_ops
from tests.support.effort import effort
from tests.support.laws import edge_draws, intervals, probabilities
from torch_backend.arrays import ops as torch_ops
from torch_backend.kernels import cpu_kernels

WORD = 2**31
Ints = np.ndarray[Any, np.dtype[np.int32]]
Law = Mapping[Hashable, float]


def on_torch(table: Table, function: Callable[..., Any], spec: Any, *args: Any) -> Any:
    """With NumPy arrays in and out, which stay as they are."""
    with using(table), torch.device("cpu") if table else contextlib.nullcontext():
        tensors = jax.tree.map(lambda x: torch.from_numpy(np.array(x)), args)
        return jax.tree.map(lambda x: x.numpy(), function(torch_ops, spec, *tensors))


@functools.cache
def compiled(function: Callable[..., Any], spec: Any) -> Callable[..., Any]:
    return jax.jit(functools.partial(function, jax_ops, spec))


def on_jax(function: Callable[..., Any], spec: Any, *args: Any) -> Any:
    return jax.device_get(compiled(function, spec)(*args))


# How the core is carried out: functions of a function over ops, a spec, and NumPy arrays.
WAYS: dict[str, Callable[..., Any]] = {
    "jax": on_jax,
    "torch": functools.partial(on_torch, NONE),
    "kernels": functools.partial(on_torch, cpu_kernels.TABLE),
}
every_way = pytest.mark.parametrize("way", list(WAYS))
# For samplers without a tree: kernels do nothing of what is left to chance.
each_library = pytest.mark.parametrize("way", ["jax", "torch"])


def added(ops: Any, spec: Any, arrays: Any, leaves: Any, mask: Any, priorities: Any, draws: Any) -> Any:
    return functions.add(ops, arrays, spec, leaves, leaves[0].shape[0], mask, priorities, draws)


def drawn(ops: Any, spec: Any, arrays: Any, draws: Any, beta: Any) -> Any:
    return functions.draw(ops, arrays, spec, draws, beta, draws.shape[0])


def updated(ops: Any, spec: Any, arrays: Any, handles: Any, priorities: Any) -> Any:
    return functions.update(ops, arrays, spec, handles, priorities, {})


class Step(NamedTuple):
    """A stored step: its number, its trajectory and its place in it, and its priority."""

    id: int
    trajectory: int
    age: int
    priority: float


class Story:
    """What was added to a buffer: its arrays, and for each lane a list of what it holds, the oldest first.

    Step t of lane e has the number 100 e + t and the priority 1 + (7 t + 5 e) % 11.
    """

    def __init__(self, capacity: int, sampler: Any, lanes: Sequence[str], masked: int = 0) -> None:
        """A lane is told as a string: "." for a step, "|" for one that ends its trajectory.

        Args:
            capacity: of the buffer.
            sampler: of the buffer.
            lanes: what each lane gets.
            masked: rows that are not written, put before each of the steps.
        """
        item = {"id": frb.Unbounded((), "int32"), "done": frb.Binary(())}
        self.spec = frb.BufferSpec(item, capacity, sampler, lanes=len(lanes))
        self.arrays: Arrays = on_torch(NONE, lambda ops, spec: functions.init(ops, spec), self.spec)
        self.lanes: list[list[Step]] = []
        ids = np.full((max(map(len, lanes)), len(lanes)), -1, np.int32)
        done = np.ones_like(ids, np.bool_)
        priorities = np.full_like(ids, 99, np.float32)
        for e, lane in enumerate(lanes):
            steps, trajectory, age = [], 0, 0
            for t, mark in enumerate(lane):
                ids[t, e], done[t, e], priorities[t, e] = 100 * e + t, mark == "|", 1 + (7 * t + 5 * e) % 11
                steps.append(Step(100 * e + t, 100 * e + trajectory, age, priorities[t, e]))
                trajectory, age = (trajectory + 1, 0) if mark == "|" else (trajectory, age + 1)
            self.lanes.append(steps[-self.spec.plan.ring.length :])
        for t in range(len(ids)):  # one by one, so that rows that are not written come between
            self.add(ids[t], done[t], ids[t] >= 0, priorities[t])
            for _ in range(masked):
                self.add(ids[t], done[t], np.zeros_like(done[t]), priorities[t])

    def add(self, ids: Any, done: Any, mask: Any = None, priorities: Any = None) -> None:
        leaves = {"id": np.asarray(ids, np.int32), "done": np.asarray(done, np.bool_)}
        priorities = priorities if self.spec.sampler.has_priorities else None
        args = [leaves[name] for name in self.spec.plan.names], mask, priorities, None
        self.arrays = on_torch(NONE, added, self.spec, self.arrays, *args)

    @property
    def steps(self) -> list[Step]:
        return [step for lane in self.lanes for step in lane]

    def draw(self, way: str, draws: Ints, beta: float = 0.4) -> tuple[Arrays, Ints, Any]:
        """The arrays afterwards, the numbers of the steps, and what is told of them."""
        found = WAYS[way](drawn, self.spec, self.arrays, draws, np.float32(beta))
        return found[0], found[1][self.spec.plan.names.index("id")], found[2]


class Choices(NamedTuple):
    """The ways in which something can fall out, each by an interval of draws for every word.

    Attributes:
        low: int32 [n, words], the first draws of each.
        high: int32 [n, words], the last ones.
        chances: float64 [n].
    """

    low: Ints
    high: Ints
    probabilities: np.ndarray[Any, np.dtype[np.float64]]


def numbers(n: int) -> Choices:
    """Below n; these are parts of the numbers below any divisor of n, too."""
    bounds = [-(-k * WORD**2 // n) for k in range(n + 1)]
    low = np.array([divmod(u, WORD) for u in bounds[:-1]], np.int32)
    high = np.array([divmod(u - 1, WORD) for u in bounds[1:]], np.int32)
    return Choices(low, high, np.diff(np.array(bounds, np.float64)) / WORD**2)


def leaves_of(story: Story) -> Choices:
    """Those of the tree that are positive, by their slots."""
    found = intervals(story.arrays.tree, story.spec.capacity)
    slots = np.arange(story.spec.capacity, dtype=np.int32)
    slots = slots[story.arrays.tree.reshape(-1)[slots] > 0]
    return Choices(*(edge_draws(found, slots, last) for last in (False, True)), probabilities(found, slots))


def jointly(*choices: Choices) -> Choices:
    """All combinations, the words side by side."""
    each = [np.ravel(x) for x in np.meshgrid(*(np.arange(len(c.low)) for c in choices), indexing="ij")]
    low, high = (np.concatenate([c[end][k] for c, k in zip(choices, each, strict=True)], 1) for end in (0, 1))
    return Choices(low, high, math.prod(c.probabilities[k] for c, k in zip(choices, each, strict=True)))


def law_of(outcomes: Sequence[Hashable], choices: Choices) -> Law:
    """The probability of each outcome; they are given for the first draws and, behind these, for the last ones."""
    n = len(choices.low)
    assert outcomes[:n] == outcomes[n:], "an interval of draws has one outcome"
    found: dict[Hashable, float] = defaultdict(float)
    for outcome, chance in zip(outcomes, choices.probabilities.tolist()):  # noqa: B905  # the second half is the same
        found[outcome] += chance
    return found


def both_ends(choices: Choices) -> Ints:
    return np.concatenate([choices.low, choices.high])


def check_law(found: Law, expected: Law) -> None:
    assert sum(expected.values()) == pytest.approx(1, abs=1e-12)
    assert found.keys() == expected.keys()
    assert sum(abs(found[k] - expected[k]) for k in expected) / 2 <= 1e-6


def check_told(told: Any, outcomes: Sequence[Hashable], probabilities: Law, weights: Law | None = None) -> None:
    """The probability, and the weight, of each outcome; by default weights are 1."""
    np.testing.assert_allclose(told.probabilities, [probabilities[x] for x in outcomes], rtol=2e-6)
    np.testing.assert_allclose(told.weights, [weights[x] if weights else 1 for x in outcomes], rtol=2e-6)


# Four lanes, of which one has been overwritten in part, if it holds four steps, and one is empty.
RAGGED = ("." * 6, ".", "", "..")


@each_library
def test_uniform_over_lanes(way: str) -> None:
    story = Story(16, frb.Uniform(), RAGGED, masked=1)
    choices = numbers(7)
    _, ids, told = story.draw(way, both_ends(choices))
    truth = {step.id: 1 / 7 for step in story.steps}
    check_law(law_of(ids.tolist(), choices), truth)
    check_told(told, ids.tolist(), truth)
    assert len(set(told.handles.tolist())) == 7


@every_way
def test_prioritized_over_lanes(way: str) -> None:
    story = Story(16, frb.Prioritized(alpha=0.7), RAGGED, masked=1)
    choices = leaves_of(story)
    _, ids, told = story.draw(way, both_ends(choices), beta=0.3)
    check_by_priority(ids.tolist(), told, choices, story.steps, 0.7, 0.3)


def check_by_priority(
    ids: list[int], told: Any, choices: Choices, candidates: list[Step], alpha: float, beta: float
) -> None:
    values = {step.id: float(step.priority) ** alpha for step in candidates}
    total, smallest = sum(values.values()), min(values.values())
    truth = {k: value / total for k, value in values.items()}
    check_law(law_of(ids, choices), truth)
    check_told(told, ids, truth, {k: (value / smallest) ** -beta for k, value in values.items()})


def advanced(ops: Any, spec: Any, arrays: Any, version: Any) -> Any:
    return functions.advance(ops, arrays, spec, version)


@every_way
@pytest.mark.parametrize("power", [1, 3])
def test_staleness_over_lanes(way: str, power: int) -> None:
    story = Story(16, frb.Staleness("id", max_staleness=202, power=power), RAGGED, masked=1)
    story.arrays = on_torch(NONE, advanced, story.spec, story.arrays, np.int32(302))
    choices = leaves_of(story)
    _, ids, told = story.draw(way, both_ends(choices))
    staleness = {step.id: 302 - step.id for step in story.steps}
    values = {k: (s + 1) ** -power for k, s in staleness.items() if s <= 202}  # all but those of the first lane
    truth = {k: value / sum(values.values()) for k, value in values.items()}
    assert len(truth) == 3
    check_law(law_of(ids.tolist(), choices), truth)
    check_told(told, ids.tolist(), truth)


@pytest.mark.few_on_jax(1, by="way")
@every_way
@pytest.mark.parametrize("sampler", [frb.Uniform(max_times_sampled=2), frb.Prioritized(0.7, max_times_sampled=2)])
def test_limits(way: str, sampler: Any) -> None:
    # Eighteen items, so that the tree has two levels. All but four are used up, one of these has one draw left.
    story = Story(18, sampler, ["." * 21])
    left = [story.lanes[0][k] for k in (0, 5, 15, 17)]
    slots = {step.id: step.id % 18 for step in story.steps}
    found = intervals(story.arrays.tree, 18)
    gone = [slots[step.id] for step in story.steps if step not in left] * 2 + [slots[left[1].id]]
    story.arrays, _, told = story.draw("torch", edge_draws(found, np.array(gone, np.int32), last=False))
    assert told.mask.all()
    check_limited(way, story, left, {step.id: 1 if step is left[1] else 2 for step in left}, batch=2)


def check_limited(way: str, story: Story, left: list[Step], rights: dict[int, int], batch: int) -> None:
    """What can be drawn has its priority's chance each time; what a batch draws too often is masked."""
    alpha = getattr(story.spec.sampler, "alpha", 0)
    values = {step.id: float(step.priority) ** alpha for step in left}
    total, smallest = sum(values.values()), min(values.values())
    each = leaves_of(story)
    choices = jointly(*[each] * batch)
    outcomes = []
    for k, draws in enumerate(both_ends(choices)):
        after, ids, told = story.draw(way, draws.reshape(batch, -1), beta=0.3)
        expected = [ids[:i].tolist().count(x) < rights[x] for i, x in enumerate(ids.tolist())]
        assert told.mask.tolist() == expected
        assert ((told.handles >= 0) == told.mask).all()
        probabilities = [values[x] / total * real for x, real in zip(ids.tolist(), expected, strict=True)]
        weights = [(values[x] / smallest) ** -0.3 * real for x, real in zip(ids.tolist(), expected, strict=True)]
        np.testing.assert_allclose(told.probabilities, probabilities, rtol=2e-6)
        np.testing.assert_allclose(told.weights, weights, rtol=2e-6)
        outcomes.append(tuple(ids.tolist()))
        if k in (0, 1):  # twice the same item, and two that differ: what is used up now is not drawn again
            now = {x: n - ids.tolist().count(x) for x, n in rights.items()}
            remaining = [step for step in left if now[step.id] > 0]
            following = Story.__new__(Story)
            following.__dict__.update(story.__dict__, arrays=after)
            if len(remaining) > 1:
                check_limited(way, following, remaining, now, batch=1)
    pairs = itertools.product(values, repeat=batch)
    check_law(law_of(outcomes, choices), {pair: math.prod(values[x] / total for x in pair) for pair in pairs})


@pytest.mark.parametrize(
    ("way", "strength"),
    [*(("torch", strength) for strength in (1, 2, 3, 4)), *(("jax", x) for x in effort((4,), (1, 4)))],
)
def test_recency(way: str, strength: int) -> None:
    for lanes in (RAGGED, ["." * 6]):
        story = Story(4 * len(lanes), frb.Recency(strength), lanes, masked=1)
        backs = {step.id: len(lane) - k for lane in story.lanes for k, step in enumerate(lane)}
        n, truth = len(backs), {}
        for x, back in backs.items():
            as_old, older = (sum(other >= back + k for other in backs.values()) for k in (0, 1))
            # Steps of several lanes may be as old as each other: they share alike.
            truth[x] = (as_old**strength - older**strength) / n**strength / (as_old - older)
        choices = jointly(*[numbers(n)] * strength)
        _, ids, told = story.draw(way, both_ends(choices))
        check_law(law_of(ids.tolist(), choices), truth)
        check_told(told, ids.tolist(), truth)


Ended = tuple[Arrays, list[Any]]


def law_in_turn(way: str, story: Story, rows: Sequence[Choices], left: int, batch: int) -> tuple[Law, Ended]:
    """The law of the next draws of an epoch of which so many are left, given the choices at each.

    They are drawn batch by batch; the last one is padded by rows whose draws must not matter. The arrays after the last
    of all these ways, and what came on it, are returned too.
    """
    choices = jointly(*rows)
    padding = np.full((-len(rows) % batch, rows[0].low.shape[1]), WORD - 1, np.int32)
    begin, outcomes = story.arrays, []
    for draws in both_ends(choices):
        story.arrays, come = begin, []
        for part in np.concatenate([draws.reshape(len(rows), -1), padding]).reshape(-1, batch, padding.shape[1]):
            counts = [max(left - len(come) - i, 0) for i in range(batch)]
            story.arrays, ids, told = story.draw(way, part)
            real = told.mask.reshape(batch, -1)
            assert real[:, 0].tolist() == told.weights.tolist() == [n > 0 for n in counts]
            np.testing.assert_allclose(told.probabilities, [1 / n if n else 0 for n in counts], rtol=2e-7)
            come += [tuple(x[m].tolist()) for x, m in zip(ids.reshape(batch, -1), real, strict=True) if m[0]]
        outcomes.append(tuple(come))
    ended, story.arrays = story.arrays, begin
    return law_of(outcomes, choices), (ended, come)


def orders(groups: Sequence[Sequence[Any]], n: int) -> Law:
    """So many of the groups in any order, each by any of its members."""
    probabilities: dict[Hashable, float] = defaultdict(float)
    permutations = list(itertools.permutations(groups, n))
    for order in permutations:
        for chosen in itertools.product(*order):
            probabilities[chosen] += 1 / len(permutations) / math.prod(map(len, order))
    return probabilities


@pytest.mark.parametrize(
    ("way", "batch"), effort([("jax", 1), ("torch", 3)], [*itertools.product(("jax", "torch"), (1, 3))])
)
def test_without_replacement(way: str, batch: int) -> None:
    story = Story(8, frb.WithoutReplacement(), ["..", "....."], masked=1)
    law, (story.arrays, come) = law_in_turn(way, story, [numbers(6), numbers(5), numbers(4)], 6, batch)
    check_law(law, orders([[(x,)] for x in (0, 1, 101, 102, 103, 104)], 3))
    # Items join, and overwrite one that was still to come and two others; then an epoch of all begins.
    assert {(101,), (102,), (103,)} - set(come) == {(103,)}
    for x in (901, 902, 903):
        story.add([900, x], [False, False], np.array([False, True]))
    law, (story.arrays, _) = law_in_turn(way, story, [numbers(2), numbers(1)], 2, batch)
    check_law(law, orders([[(0,)], [(1,)]], 2))
    law, _ = law_in_turn(way, story, [numbers(6), numbers(5), numbers(4)], 6, batch)
    check_law(law, orders([[(x,)] for x in (0, 1, 104, 901, 902, 903)], 3))


@each_library
def test_without_replacement_in_order(way: str) -> None:
    story = Story(8, frb.WithoutReplacement(shuffle=False), ["..", "....."], masked=1)
    for expected in ([0, 1, 101, 102], [103, 104], [0, 1, 101, 102]):
        story.arrays, ids, told = story.draw(way, np.zeros((4, 0), np.int32))
        assert ids[told.mask].tolist() == expected
        assert told.probabilities.tolist() == told.weights.tolist() == told.mask.tolist()


# In lanes of nine: the end of a trajectory, one of one step, one of two, and three of one that is under way; two and
# five steps in another lane; none in the third.
EPISODES = ("...|.....||.|...", ".|.....", "")


def windows_of(sampler: Any, lane: list[Step]) -> list[list[tuple[int, ...]]]:
    """The windows of each trajectory of a lane, as the numbers of their steps, by the definition of `windows`."""
    left, right = sampler.reaches
    found = []
    for _, group in itertools.groupby(lane, lambda step: step.trajectory):
        steps = list(group)
        first, last = steps[0].age, steps[-1].age
        begin = first - left
        end = last - sampler.length + 1 + right
        end = end if sampler.strict_length else max(end, first)
        starts = [v for v in range(begin, end + 1) if v % sampler.period == 0]
        found.append([tuple(s.id for s in steps if v <= s.age < v + sampler.length) for v in starts])
    return [windows for windows in found if windows]


def law_of_slices(story: Story) -> Law:
    """Each trajectory that has a window alike, and then each of its windows; or each window alike."""
    sampler: Any = story.spec.sampler
    trajectories = [windows for lane in story.lanes for windows in windows_of(sampler, lane)]
    number = sum(map(len, trajectories))
    probabilities: dict[Hashable, float] = defaultdict(float)
    for windows in trajectories:
        for window in windows:
            by_trajectory = sampler.weighting == "trajectory"
            probabilities[window] += 1 / len(trajectories) / len(windows) if by_trajectory else 1 / number
    return probabilities


def with_settings(kind: type, ways: Sequence[str], *settings: dict[str, Any]) -> Any:
    """Every setting in every way, but on JAX, where each takes long to compile, only the first and the last.

    By kernels, which give the same bits as the core does, every third.
    """
    every = {"jax": effort(len(settings), len(settings) - 1), "kernels": effort(3, 1), "torch": 1}
    cases = [(way, kind(3, **each)) for way in ways for each in settings[:: every[way]]]
    return pytest.mark.parametrize(("way", "sampler"), cases)


LOOSE = {"strict_length": False}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"period": 2},
    LOOSE,
    LOOSE | {"period": 2},
    LOOSE | {"span": (True, False), "period": 2},
    LOOSE | {"span": (False, True)},
    LOOSE | {"span": (False, True), "period": 3},
    LOOSE | {"span": (False, 1)},
    LOOSE | {"span": 1},
    LOOSE | {"span": True, "period": 2},
    LOOSE | {"span": True},
]


def shown(ids: Ints, told: Any) -> list[tuple[int, ...]]:
    """The numbers of the real steps of each slice."""
    return [tuple(x[m].tolist()) for x, m in zip(ids, told.mask, strict=True)]


@with_settings(
    frb.Slices, list(WAYS), *({"weighting": by} | each for each in SETTINGS for by in ("trajectory", "window"))
)
def test_slices(way: str, sampler: frb.Slices) -> None:
    weighting = sampler.weighting
    story = Story(27, sampler, EPISODES, masked=1)
    trajectories = [windows for lane in story.lanes for windows in windows_of(sampler, lane)]
    number = len(trajectories) if weighting == "trajectory" else sum(map(len, trajectories))
    # A slot has all windows of its trajectory, or those that begin with its step.
    shares = Counter(k if weighting == "trajectory" else x[0] for k, xs in enumerate(trajectories) for x in xs)
    choices = jointly(leaves_of(story), numbers(math.lcm(*shares.values())))
    _, ids, told = story.draw(way, both_ends(choices))
    check_law(law_of(shown(ids, told), choices), law_of_slices(story))
    np.testing.assert_allclose(told.probabilities, 1 / number, rtol=2e-7)
    assert (told.weights == 1).all()


@with_settings(
    frb.PrioritizedSlices, list(WAYS), *(each for each in SETTINGS if each.get("span") not in (1, (True, False)))
)
def test_prioritized_slices(way: str, sampler: frb.PrioritizedSlices) -> None:
    sampler = dataclasses.replace(sampler, alpha=0.7)
    story = Story(27, sampler, EPISODES, masked=1)
    # A start has no chance any more, one is likelier, and so would be a step in which no slice can begin.
    changed = {7: 0.0, 13: 20.5, 15: 30.0, 103: 0.25}
    lanes = [[step._replace(priority=changed.get(step.id, step.priority)) for step in lane] for lane in story.lanes]
    slots = np.array([slot_in(story, x) for x in changed], np.int32)
    handles = slots + np.where(slots < 7, 27, 0).astype(np.int32)
    priorities = np.float32(list(changed.values()))
    story.arrays = WAYS["torch"](updated, story.spec, story.arrays, handles, priorities)
    windows = [window for lane in lanes for found in windows_of(sampler, lane) for window in found]
    by_id = {step.id: step for lane in lanes for step in lane}
    starts = [by_id[window[0]] for window in windows if by_id[window[0]].priority > 0]
    choices = jointly(leaves_of(story), numbers(6))
    _, ids, told = story.draw(way, both_ends(choices), beta=0.3)
    outcomes = shown(ids, told)
    assert set(outcomes) <= set(windows)
    check_by_priority([x[0] for x in outcomes], told, choices, starts, 0.7, 0.3)


def slot_in(story: Story, x: int) -> int:
    """Where a step lies."""
    return x // 100 * story.spec.plan.ring.length + x % 100 % story.spec.plan.ring.length


@each_library
def test_trajectories_without_replacement(way: str) -> None:
    sampler = frb.SlicesWithoutReplacement(2)
    story = Story(12, sampler, ["..|...", "..|", ".."], masked=1)
    groups = [[(3, 4), (4, 5)], [(100, 101), (101, 102)], [(200, 201)]]
    assert groups == [windows for lane in story.lanes for windows in windows_of(sampler, lane)]
    law, (story.arrays, come) = law_in_turn(way, story, [jointly(numbers(3), numbers(2))], 3, 1)
    check_law(law, orders(groups, 1))
    # All that can grow do, and keep their places; one more comes, which is of the next pass.
    story.add([6, 103, 202], [False] * 3)
    story.add([7, 104, 203], [False] * 3)
    grown = [[(4, 5), (5, 6), (6, 7)], [(101, 102)], [(200, 201), (201, 202), (202, 203)]]
    left = [new for old, new in zip(groups, grown, strict=True) if come[0] not in old]
    law, (story.arrays, _) = law_in_turn(way, story, [jointly(numbers(n), numbers(3)) for n in (2, 1)], 2, 1)
    check_law(law, orders(left, 2))
    law, _ = law_in_turn(way, story, [jointly(numbers(4), numbers(3))], 4, 1)
    check_law(law, orders([*grown, [(103, 104)]], 1))


@each_library
def test_a_mark_that_moves_to_where_another_was(way: str) -> None:
    # The trajectory of the second lane overwrites the one before it as it grows, mark upon mark.
    story = Story(8, frb.SlicesWithoutReplacement(1), ["|", ".|...."])
    for x in (106, 107):
        law, _ = law_in_turn(way, story, [jointly(numbers(n), numbers(4)) for n in (2, 1)], 2, 3)
        check_law(law, orders([[(0,)], [(k,) for k in range(x - 4, x)]], 2))
        story.add([900, x], [False, False], np.array([False, True]))


@each_library
def test_windows_without_replacement(way: str) -> None:
    story = Story(12, frb.SlicesWithoutReplacement(2, weighting="window"), ["..|...", "..|", ".."], masked=1)
    windows = [[x] for x in [(3, 4), (4, 5), (100, 101), (101, 102), (200, 201)]]
    rows = [jointly(numbers(n), numbers(1)) for n in range(7, 0, -1)]
    law, (story.arrays, come) = law_in_turn(way, story, rows[2:4], 5, 2)
    check_law(law, orders(windows, 2))
    story.add([6, 103, 202], [False] * 3)
    law, (story.arrays, _) = law_in_turn(way, story, rows[4:], 3, 2)
    check_law(law, orders([x for x in windows if x[0] not in come], 3))
    law, _ = law_in_turn(way, story, rows[:2], 7, 2)
    check_law(law, orders([*windows, [(5, 6)], [(201, 202)]], 2))


RESERVOIR = frb.BufferSpec({"id": frb.Unbounded((), "int32")}, 2, writer=frb.Reservoir())
# The items of each batch; -1 is masked.
BATCHES: dict[str, list[list[int]]] = {
    "at once": [[0, 1, 2, 3, 4]],
    "masked": [[-1, 0, 1, 2, -1, 3, 4, -1]],
    "one by one": [[0], [1], [2], [3], [4]],
    "in parts": [[0], [1, -1, 2], [3, 4]],
}


@pytest.mark.parametrize(
    ("way", "batches"),
    [("torch", name) for name in BATCHES] + [("jax", name) for name in effort(["masked"], ["at once", "masked"])],
)
def test_reservoir(way: str, batches: str) -> None:
    empty = on_torch(NONE, lambda ops, spec: functions.init(ops, spec), RESERVOIR)
    choices = jointly(numbers(3), numbers(4), numbers(5))
    outcomes = []
    for draws in both_ends(choices):
        words = np.concatenate([np.full((2, 2), WORD - 1), draws.reshape(3, 2), [[0, 0]]]).astype(np.int32)
        arrays = empty
        for batch in BATCHES[batches]:
            ids = np.array(batch, np.int32)
            arrays = WAYS[way](added, RESERVOIR, arrays, [ids], ids >= 0, None, words[ids])
        _, (held,), told = on_torch(NONE, drawn, RESERVOIR, arrays, numbers(2).low, np.float32(0))
        assert told.probabilities.tolist() == [0.5, 0.5]
        outcomes.append(tuple(sorted(held.tolist())))
    check_law(law_of(outcomes, choices), dict.fromkeys(itertools.combinations(range(5), 2), 1 / 10))


def check_counts(outcomes: Sequence[Hashable], law: Law) -> None:
    """Pearson's chi-square, below a bound that it exceeds with probability 1e-9 if the law is right.

    The bound is that of Laurent and Massart (2000): P(X > k + 2 sqrt(k x) + 2 x) <= exp(-x) for k degrees of freedom.
    """
    n, counts = len(outcomes), Counter(outcomes)
    assert counts.keys() <= law.keys()
    statistic = sum((counts[key] - n * chance) ** 2 / (n * chance) for key, chance in law.items())
    freedom, x = len(law) - 1, math.log(1e9)
    assert statistic < freedom + 2 * math.sqrt(freedom * x) + 2 * x


def check_independent(outcomes: list[list[Any]], law: Law) -> None:
    """Outcomes [keys, rows]: alone, two rows of a key, and a row of two keys."""
    check_counts([x for row in outcomes for x in row], law)
    pairs = {(x, y): p * q for x, p in law.items() for y, q in law.items()}
    check_counts([pair for row in outcomes for pair in zip(row[::2], row[1::2], strict=True)], pairs)
    following = zip(outcomes[::2], outcomes[1::2], strict=True)
    check_counts([pair for one, other in following for pair in zip(one, other, strict=True)], pairs)


def for_keys(way: str, function: Callable[..., Any], n: int) -> Any:
    """The results of a function of keys, one below the other in NumPy arrays; on JAX many keys go in at once."""
    if way == "torch":
        results = [function(key) for key in torch_backend.split(torch_backend.key(0), n)]
        return jax.tree.map(lambda *x: np.stack([y.numpy() for y in x]), *results)
    keys = jax_backend.split(jax_backend.key(0), n)
    if n > 64:
        return jax.device_get(jax.jit(jax.vmap(function))(keys))
    one = jax.jit(function)
    return jax.tree.map(lambda *x: np.stack(x), *jax.device_get([one(key) for key in keys]))


def by_keys(way: str, story: Story, keys: int, batch: int) -> list[list[Any]]:
    """What the public function draws: tuples of the numbers of the real steps, [keys, rows]."""
    rb = jax_backend if way == "jax" else torch_backend
    arrays = jax.tree.map(lambda x: torch.from_numpy(np.array(x)), story.arrays)
    state: Any = torch_backend.memory.state.State.of_arrays(arrays, story.spec)
    state = rb.from_dlpack(state, copy=True) if way == "jax" else state

    def numbers_of(key: Any) -> Any:
        sample = rb.sample(state, key, batch)[1]
        return sample.items["id"], sample.indices >= 0

    ids, real = (x.reshape(keys, batch, -1) for x in for_keys(way, numbers_of, keys))
    return [[tuple(y[m].tolist()) for y, m in zip(x, r, strict=True)] for x, r in zip(ids, real, strict=True)]


def law_by_priority(steps: Sequence[Step], alpha: float) -> Law:
    total = sum(step.priority**alpha for step in steps)
    return {(step.id,): step.priority**alpha / total for step in steps}


@pytest.mark.few_on_jax(2, by="way")
@pytest.mark.parametrize(
    ("way", "sampler", "alpha", "lanes"),
    [
        (way, sampler, alpha, lanes)
        for way in ("jax", "torch")
        for k, (sampler, alpha) in enumerate(
            [
                (frb.Uniform(), 0),
                (frb.Uniform(max_times_sampled=2**29), 0),
                (frb.Prioritized(1.0), 1),
                (frb.Prioritized(1.0, max_times_sampled=2**29), 1),
            ]
        )
        for lanes in (1, 2)
        if way == "torch" or lanes == 1 + k % 2  # on JAX, where it is compiled, each with one number of lanes
    ],
)
def test_keys_reach_the_draws_of_items(way: str, sampler: Any, alpha: float, lanes: int) -> None:
    story = Story(6, sampler, ["........", ".."][:lanes])
    check_independent(by_keys(way, story, 64, 512), law_by_priority(story.steps, alpha))


@each_library
def test_keys_reach_the_draws_of_recency(way: str) -> None:
    story = Story(6, frb.Recency(2), ["........"])
    law = {(step.id,): ((k + 1) ** 2 - k**2) / 36 for k, step in enumerate(story.steps)}
    check_independent(by_keys(way, story, 64, 512), law)


@each_library
def test_keys_reach_the_draws_of_slices(way: str) -> None:
    story = Story(12, frb.Slices(3, strict_length=False, span=(False, True)), [".......", "..|"])
    law = law_of_slices(story)
    assert len(set(law.values())) > 1
    check_independent(by_keys(way, story, 64, 512), law)
    story = Story(12, frb.PrioritizedSlices(3, alpha=1.0), [".......", "...|"])
    starts = [story.lanes[0][k] for k in range(4)] + [story.lanes[1][k] for k in range(2)]
    law = {tuple(range(x, x + 3)): chance for (x,), chance in law_by_priority(starts, 1).items()}
    check_independent(by_keys(way, story, 64, 512), law)


@each_library
@pytest.mark.parametrize("kind", ["items", "trajectories"])
def test_keys_reach_the_draws_without_replacement(way: str, kind: str) -> None:
    sampler = frb.WithoutReplacement() if kind == "items" else frb.SlicesWithoutReplacement(1)
    story = Story(12, sampler, ["........", "..|.|"])
    groups = [[(step.id,)] for step in story.steps]
    if kind == "trajectories":
        groups = [windows for lane in story.lanes for windows in windows_of(sampler, lane)]
    outcomes = [[tuple(rows)] for rows in by_keys(way, story, 1000, 2)]
    check_counts([x for (x,) in outcomes], orders(groups, 2))


@each_library
def test_keys_reach_the_draws_of_a_reservoir(way: str) -> None:
    rb = jax_backend if way == "jax" else torch_backend
    empty = rb.init(RESERVOIR)
    items = {"id": np.arange(5, dtype=np.int32)}
    stored = for_keys(way, lambda key: rb.items(rb.add(empty, items, key=key))["id"], 1000)
    law = dict.fromkeys(itertools.combinations(range(5), 2), 1 / 10)
    check_counts([tuple(sorted(x)) for x in stored.tolist()], law)
