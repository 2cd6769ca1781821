"""Windows: after any history, what was updated at the touched slots is what the whole history gives everywhere."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
import torch

from functional_rb.ops import random_bits
from functional_rb.structures import episode_windows
from functional_rb.structures.episode_windows import Lanes, Rule
from functional_rb.structures.ring import Ring, RingState
from jax_backend.arrays import ops as jax_ops
from tests.support.effort import effort
from torch_backend.arrays import ops as torch_ops

Ints = np.ndarray[Any, np.dtype[np.int32]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


class Step(NamedTuple):
    """A stored step: a number that no other step has, where it lies, its episode and its place in it."""

    id: int
    slot: int
    episode: int
    in_episode: int


Window = tuple[Step, ...]


@dataclasses.dataclass
class Lane:
    """One environment's steps, as a plain list of the last `length` of them."""

    number: int
    length: int
    steps: list[Step] = dataclasses.field(default_factory=list)
    written: int = 0
    episode: int = 0
    # Of the next step.
    in_episode: int = 0
    # Whether it is known that the next step begins an episode.
    ended: bool = True

    def write(self, begins: bool, ends: bool) -> None:
        if begins or self.ended:
            self.episode, self.in_episode = self.episode + 1, 0
        slot = self.number * self.length + self.written % self.length
        step = Step(self.number * 10**6 + self.written, slot, self.episode, self.in_episode)
        self.steps = [*self.steps, step][-self.length :]
        self.written, self.in_episode, self.ended = self.written + 1, self.in_episode + 1, ends

    def trajectories(self) -> list[list[Step]]:
        episodes = sorted({step.episode for step in self.steps})
        return [[step for step in self.steps if step.episode == episode] for episode in episodes]

    def is_last(self, step: Step) -> bool:
        """Whether the step is known to be the last of its episode."""
        after = [other for other in self.steps if other.id == step.id + 1]
        return after[0].episode != step.episode if after else self.ended


def windows_of(rule: Rule, trajectory: list[Step]) -> list[Window]:
    """By the definition."""
    first, last = trajectory[0].in_episode, trajectory[-1].in_episode
    low, high = first, last - rule.length + 1
    if not rule.strict:
        low = first - rule.left
        high = max(first, high + rule.right)
    starts = [v for v in range(low, high + 1) if v % rule.period == 0]
    return [tuple(step for step in trajectory if v <= step.in_episode < v + rule.length) for v in starts]


def expected_leaves(rule: Rule, lanes: list[Lane], by_trajectory: bool) -> Ints:
    """The number of every slot."""
    leaves = np.zeros(len(lanes) * lanes[0].length, np.int32)
    for lane in lanes:
        for trajectory in lane.trajectories():
            starts = [window[0] for window in windows_of(rule, trajectory)]
            if by_trajectory and starts:
                leaves[max(starts).slot] = 1
            elif not by_trajectory:
                for step in starts:
                    leaves[step.slot] += 1
    return leaves


def expected_choices(rule: Rule, lanes: list[Lane], by_trajectory: bool) -> list[tuple[int, list[Window]]]:
    """Each slot that can be drawn, with the windows that are equally likely once it is."""
    choices: list[tuple[int, list[Window]]] = []
    for lane in lanes:
        for trajectory in lane.trajectories():
            found = windows_of(rule, trajectory)
            starts = sorted({window[0] for window in found})
            if by_trajectory and found:
                choices.append((starts[-1].slot, found))
            elif not by_trajectory:
                choices += [(step.slot, [window for window in found if window[0] == step]) for step in starts]
    return choices


def extreme_draws(n: int) -> list[tuple[int, int]]:
    """For each k below n the smallest and the largest 62-bit u with floor(u * n / 2^62) = k, in 31-bit words."""
    bounds = [-(-k * 2**62 // n) for k in range(n + 1)]
    return [divmod(u, 2**31) for k in range(n) for u in (bounds[k], bounds[k + 1] - 1)]


class Index(NamedTuple):
    """What a buffer would keep."""

    cursor: Any
    size: Any
    next_in_episode: Any
    in_episode: Any


def empty(lanes: int, length: int) -> Index:
    return Index(*(np.zeros(n, np.int32) for n in (lanes, lanes, lanes, lanes * length)))


def write(ops: Any, length: int, index: Index, written: Any, begins: Any, ends: Any) -> Index:
    """As a buffer would: their numbers to the slots after the head of each lane."""
    new, next_in_episode = episode_windows.steps_in_episodes(
        ops, index.next_in_episode, written, begins=begins, ends=ends
    )
    lane, column = ops.arange(new.shape[0], like=new)[:, None], ops.arange(new.shape[1], like=new)[None, :]
    slots = lane * length + (index.cursor[:, None] + column) % length
    new = ops.where(column < written[:, None], new, ops.take(index.in_episode, slots))
    size = ops.minimum(index.size + written, ops.full_like(written, length))
    in_episode = ops.set_at(index.in_episode, slots.reshape(-1), new.reshape(-1))
    cursor = (index.cursor + written) % lanes_of(length, index).ring.limit
    return Index(cursor, size, next_in_episode, in_episode)


def lanes_of(length: int, index: Index) -> Lanes:
    return Lanes(Ring(length * index.size.shape[0], index.size.shape[0]), RingState(index.cursor, index.size))


def leaves_touched(ops: Any, rule: Rule, length: int, index: Index, n: int, by_trajectory: bool) -> tuple[Any, Any]:
    entries = episode_windows.changed(ops, rule, lanes_of(length, index), index.in_episode, n, by_trajectory)
    return entries.slots, entries.numbers


def weights_at(ops: Any, rule: Rule, length: int, index: Index, slots: Any) -> Any:
    return episode_windows.weights_at(ops, rule, lanes_of(length, index), index.in_episode, slots)


def expand(
    ops: Any, rule: Rule, length: int, index: Index, slots: Any, draws: Any, live: Any, by_trajectory: bool
) -> episode_windows.Slices:
    rings = lanes_of(length, index)
    return episode_windows.expand(
        ops, rule, rings, index.in_episode, index.next_in_episode, slots, draws, live, by_trajectory
    )


def on_torch(function: Callable[..., Any], *args: Any) -> Any:
    """With NumPy arrays in and out."""

    def convert(x: Any) -> Any:
        if isinstance(x, Index):
            return Index(*map(convert, x))
        return torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x

    return jax.tree.map(lambda x: x.numpy(), function(torch_ops, *map(convert, args)))


@functools.cache
def compiled(function: Callable[..., Any], static: tuple[int, ...]) -> Callable[..., Any]:
    return jax.jit(functools.partial(function, jax_ops), static_argnums=static)


def on_jax(function: Callable[..., Any], *args: Any) -> Any:
    static = tuple(k for k, x in enumerate(args) if isinstance(x, int | bool | Rule))
    return jax.tree.map(np.asarray, compiled(function, static)(*args))


class Batch(NamedTuple):
    """Steps for each lane; only the first `written` of a row are real. Either of the marks may be missing."""

    written: Ints
    begins: Bools | None
    ends: Bools | None


class Checked:
    """An index, the leaves that follow from updating it at touched slots only, and the lists that it should equal."""

    def __init__(self, run: Callable[..., Any], rule: Rule, lanes: int, length: int) -> None:
        self.run, self.rule, self.length = run, rule, length
        self.lanes = [Lane(e, length) for e in range(lanes)]
        self.index = empty(lanes, length)
        self.leaves = {by_trajectory: np.zeros(lanes * length, np.int32) for by_trajectory in (False, True)}
        self.ids = np.full(lanes * length, -1, np.int32)

    def write(self, batch: Batch, n: int) -> None:
        for lane, written in zip(self.lanes, batch.written.tolist(), strict=True):
            for t in range(written):
                begins = batch.begins is not None and bool(batch.begins[lane.number, t])
                lane.write(begins, batch.ends is not None and bool(batch.ends[lane.number, t]))
            for step in lane.steps:
                self.ids[step.slot] = step.id
        self.index = self.run(write, self.length, self.index, *batch)
        for by_trajectory, leaves in self.leaves.items():
            slots, values = self.run(leaves_touched, self.rule, self.length, self.index, n, by_trajectory)
            order = np.random.default_rng(0).permutation(slots.size)  # equal slots have equal values
            leaves[slots[order]] = values[order]
            np.testing.assert_array_equal(leaves, expected_leaves(self.rule, self.lanes, by_trajectory))
        everywhere = self.run(weights_at, self.rule, self.length, self.index, np.arange(self.ids.size, dtype=np.int32))
        np.testing.assert_array_equal(everywhere, self.leaves[False])

    def check_slices(self, by_trajectory: bool, pad_to: int) -> None:
        """Each way of choosing gives another window, and all of them come."""
        choices = expected_choices(self.rule, self.lanes, by_trajectory)
        cases = [(slot, draw) for slot, found in choices for draw in extreme_draws(len(found))]
        drawable = {slot for slot, _ in choices}
        cases += [(slot, (2**31 - 1, 5)) for slot in range(self.ids.size) if slot not in drawable]
        real = len(cases)
        cases += cases[:2]  # these are not live
        count = len(cases)
        cases += [(0, (0, 0))] * (-count % pad_to)
        slots = np.array([slot for slot, _ in cases], np.int32)
        draws = np.array([draw for _, draw in cases], np.int32)
        live = np.arange(slots.size) < real
        got = self.run(expand, self.rule, self.length, self.index, slots, draws, live, by_trajectory)
        assert got.slots.shape == got.mask.shape == (slots.size, self.rule.length)
        assert ((got.slots >= 0) & (got.slots < self.ids.size)).all()
        drawn: dict[int, Counter[Any]] = {slot: Counter() for slot, _ in choices}
        for row in range(count):
            assert (got.mask[row] == (got.handles[row] >= 0)).all()
            if live[row] and slots[row] in drawable:
                drawn[int(slots[row])][self.told(got, row)] += 1
            else:
                assert not (got.mask[row] | got.is_first[row] | got.is_last[row] | got.truncated[row]).any()
        for slot, found in choices:
            truth = Counter(self.truth(slot, window) for window in found)
            assert drawn[slot] == truth + truth  # by the smallest draw and by the largest

    def told(self, got: episode_windows.Slices, row: int) -> Any:
        """What a slice says: ids, and where each of the marks is set."""
        steps = int(got.mask[row].sum())
        assert got.mask[row, :steps].all(), "padding comes last"
        assert got.handles[row, :steps].tolist() == [self.handle(k) for k in self.ids[got.slots[row, :steps]]]
        assert (got.slots[row, steps:] == got.slots[row, steps - 1]).all()
        marks = [tuple(np.flatnonzero(x[row]).tolist()) for x in (got.is_first, got.is_last, got.truncated)]
        return tuple(self.ids[got.slots[row, :steps]].tolist()), *marks

    def handle(self, id: int) -> int:
        """Slots of all lanes are counted once each time a lane has been filled."""
        lane, written = divmod(int(id), 10**6)
        return written // self.length * self.ids.size + lane * self.length + written % self.length

    def truth(self, slot: int, window: Window) -> Any:
        lane = self.lanes[slot // self.length]
        is_first = tuple(k for k, step in enumerate(window) if step.in_episode == 0)
        is_last = tuple(k for k, step in enumerate(window) if lane.is_last(step))
        truncated = () if is_last else (len(window) - 1,)
        return tuple(step.id for step in window), is_first, is_last, truncated


sides = st.sampled_from([0, 1, 2, 9, 9])
rules = st.builds(
    lambda k, p, strict, *sides: Rule(k, p, strict, *(0 if strict else min(side, k - 1) for side in sides)),
    st.integers(1, 5),
    st.integers(1, 3),
    st.booleans(),
    sides,
    sides,
)


@st.composite
def batches(draw: st.DrawFn, lanes: int, length: int, likely: float) -> Batch:
    """A batch in which an episode's end has about the given chance at each step."""
    steps = draw(st.integers(1, length))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    written = draw(st.lists(st.integers(0, steps) | st.just(steps), min_size=lanes, max_size=lanes))
    begins, ends = rng.random((2, lanes, steps)) < likely
    which = draw(st.sampled_from(["ends", "begins", "both"]))
    return Batch(np.array(written, np.int32), None if which == "ends" else begins, None if which == "begins" else ends)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Rule, int, int, list[Batch]]:
    lanes, length = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    likely = draw(st.sampled_from([0.0, 0.05, 0.2, 0.5, 1.0]))
    return draw(rules), lanes, length, draw(st.lists(batches(lanes, length, likely), min_size=1, max_size=8))


@hypothesis.settings(max_examples=effort(60, 240))
@hypothesis.given(history=histories())
def test_any_history(history: tuple[Rule, int, int, list[Batch]]) -> None:
    rule, lanes, length, writes = history
    checked = Checked(on_torch, rule, lanes, length)
    for batch in writes:
        marks = batch.begins if batch.ends is None else batch.ends
        assert marks is not None
        checked.write(batch, n=marks.shape[1])
        for by_trajectory in (False, True):
            checked.check_slices(by_trajectory, pad_to=1)


@pytest.mark.parametrize(
    ("rule", "lanes", "length", "steps"),
    [
        (Rule(4, 1, True, 0, 0), 2, 11, 3),
        (Rule(5, 2, False, 4, 1), 2, 9, 4),
        *effort(
            [],
            [
                (Rule(3, 2, False, 0, 0), 3, 7, 7),
                (Rule(4, 3, False, 2, 0), 1, 10, 2),
                (Rule(1, 1, False, 0, 0), 1, 1, 1),
            ],
        ),
    ],
)
def test_compiled_on_jax(rule: Rule, lanes: int, length: int, steps: int) -> None:
    rng = np.random.default_rng(length)
    checked = Checked(on_jax, rule, lanes, length)
    for k in range(24):
        written = rng.integers(0, steps + 1, lanes, dtype=np.int32)
        begins, ends = rng.random((2, lanes, steps)) < [0.0, 0.1, 0.5][k % 3]
        checked.write(Batch(written, begins, ends), n=steps)
        for by_trajectory in (False, True):
            checked.check_slices(by_trajectory, pad_to=128)


RUN = pytest.mark.parametrize("run", [on_torch, on_jax], ids=["torch", "jax"])


@RUN
def test_a_trajectory_that_never_ends(run: Callable[..., Any]) -> None:
    # No number overflows: at the limit the trajectory is taken as ended, and the next step begins another.
    index = empty(2, 4)._replace(next_in_episode=np.array([episode_windows.LONGEST - 3, 5], np.int32))
    written, goes_on = np.array([3, 0], np.int32), np.zeros((2, 3), np.bool_)
    index = run(write, 4, index, written, None, goes_on)
    assert index.in_episode[:3].tolist() == [
        episode_windows.LONGEST - 3,
        episode_windows.LONGEST - 2,
        episode_windows.LONGEST - 1,
    ]
    assert index.next_in_episode.tolist() == [0, 5]
    index = run(write, 4, index, written, None, goes_on)
    assert index.in_episode.tolist() == [1, 2, episode_windows.LONGEST - 1, 0, 0, 0, 0, 0]


@RUN
@pytest.mark.parametrize("length", [1, 1000, 2**28])
@pytest.mark.parametrize("period", [1, 7, 2**28])
def test_ages_and_rules_at_their_limits(run: Callable[..., Any], length: int, period: int) -> None:
    rule = Rule(length, period, False, length - 1, length - 1)
    for oldest in (0, period, episode_windows.LONGEST - 2):
        index = empty(1, 4)._replace(next_in_episode=np.array([oldest], np.int32))
        index = run(write, 4, index, np.array([2], np.int32), None, np.zeros((1, 2), np.bool_))
        slots, values = run(leaves_touched, rule, 4, index, 4, False)
        # Python's integers do not overflow. All multiples up to the first live step count for it.
        low = oldest - length + 1
        truth = [len(range(-(-low // period) * period, oldest + 1, period)), int((oldest + 1) % period == 0), 0, 0]
        assert dict(zip(slots.tolist(), values.tolist(), strict=True)) == dict(enumerate(truth))


def slots_and_weights(ops: Any, rule: Rule, length: int, index: Index, lane: Any, back: Any) -> tuple[Any, Any, Any]:
    rings = lanes_of(length, index)
    at = lane, back
    return (
        episode_windows.slot_of(ops, rings, *at),
        episode_windows.weights(ops, rule, rings, index.in_episode, *at),
        episode_windows.last_starts(ops, rule, rings, index.in_episode, *at),
    )


@RUN
def test_steps_that_are_not_stored(run: Callable[..., Any]) -> None:
    index = run(write, 4, empty(2, 4), np.array([3, 0], np.int32), None, np.array([[0, 0, 1], [0, 0, 0]], np.bool_))
    back = np.array([-(2**30), -1, 0, 1, 2, 3, 4, 5, 2**30], np.int32)
    for lane, weights, marks in ((0, [1, 1, 1], [1, 0, 0]), (1, [0, 0, 0], [0, 0, 0])):
        rule = Rule(2, 1, False, 0, 1)
        slots, *got = run(slots_and_weights, rule, 4, index, np.full_like(back, lane), back)
        assert ((slots >= 4 * lane) & (slots < 4 * lane + 4)).all()
        assert [x.tolist() for x in got] == [[0, 0, 0, *x, 0, 0, 0] for x in (weights, marks)]


@pytest.mark.parametrize("by_trajectory", [False, True])
@pytest.mark.parametrize("steps", [1, 16])
def test_a_write_touches_few_slots(steps: int, by_trajectory: bool) -> None:
    for length, period in ((2, 1), (64, 1), (1024, 3), (2**20, 2**20)):
        ends = RingState(torch.zeros(3, dtype=torch.int32), torch.full((3,), 10**6, dtype=torch.int32))
        rings = Lanes(Ring(3 * 10**6, 3), ends)
        rule = Rule(length, period, True, 0, 0)
        lane, back = episode_windows.touched(torch_ops, rule, rings, steps, by_trajectory)
        assert lane.shape == back.shape
        assert lane.numel() <= 3 * ((3 if by_trajectory else 2) * steps + 1)


@RUN
def test_draws_below_a_number(run: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    n = np.r_[0, 1, 2, 3, 2**31 - 1, rng.integers(0, 2**31, 995)].astype(np.int32)
    draws = rng.integers(0, 2**31, (1000, 2)).astype(np.int32)
    draws[:8] = 2**31 - 1
    # The second word decides: the largest draw below a whole number, and the smallest at it.
    for at in range(500, 1000, 2):
        u = -(-int(n[at]) // 2 * 2**62 // max(int(n[at]), 1))
        n[at + 1] = n[at]
        draws[at : at + 2] = [divmod(min(max(x, 0), 2**62 - 1), 2**31) for x in (u - 1, u)]
    exact = [(d0 * 2**31 + d1) * k // 2**62 for (d0, d1), k in zip(draws.tolist(), n.tolist(), strict=True)]
    np.testing.assert_array_equal(run(random_bits.below, draws, n), exact)
