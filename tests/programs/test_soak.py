"""A million steps of environments that end when they like, all of what is sampled checked, and the index at the end.

Every step has a number of its own, so that a wrong neighbour, a stale row or a crossed boundary shows itself; what is
true of a step is looked up in the stream that it was taken from.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch

import functional_rb as frb
from functional_rb.core import counters
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.laws import tree_of

Array = np.ndarray[Any, Any]
LANES = 8
LENGTH = 16
# Step k of lane e has the number `e * IDS + k`.
IDS = 2**20
# The number of steps that are not written.
NOWHERE = -5
ITEM = {
    "id": frb.Unbounded((), "int32"),
    "lane": frb.Unbounded((), "int32"),
    "episode": frb.Unbounded((), "int32"),
    "age": frb.Unbounded((), "int32"),
    "done": frb.Binary(()),
}
LANE = np.arange(LANES)


class Chunk(NamedTuple):
    """Steps to add at once.

    Attributes:
        items: leaves [T, LANES].
        mask: bool [T, LANES], which are written; None for all.
        priorities: float32 [T, LANES].
        counts: int64 [LANES], how many are written.
    """

    items: dict[str, Array]
    mask: Array | None
    priorities: Array
    counts: Array


class Stream:
    """What happens in every lane from the first step on, and how much of that was written to lanes of given length.

    Attributes:
        begin: int64 [LANES, n], the step at which each step's episode began.
        end: int64 [LANES, n], and its last one.
        priority: float32 [LANES, n].
        written: int64 [LANES].
    """

    def __init__(self, n: int, length: int) -> None:
        """Episodes of 1 to 5000 steps, their logarithms uniform."""
        self.rng = np.random.default_rng(0)
        self.length = length
        self.begin, self.end, self.episode = np.zeros((3, LANES, n), np.int64)
        for lane in LANE:
            lengths = np.zeros(0, np.int64)
            while lengths.sum() < n:
                lengths = np.append(lengths, np.exp(self.rng.uniform(0, np.log(5001), 64)).astype(np.int64))
            number = np.repeat(np.arange(lengths.size), lengths)[:n]
            ends = np.cumsum(lengths)
            self.episode[lane], self.end[lane] = number, ends[number] - 1
            self.begin[lane] = (ends - lengths)[number]
        self.priority = np.zeros((LANES, n), np.float32)
        self.written = np.zeros(LANES, np.int64)

    def take(self, steps: int, masked: bool) -> Chunk:
        """The next steps of every lane, some of them with others between that are not written."""
        rate = self.rng.choice([0, 0.5, 0.97, 1, 1], (1, LANES)) if masked else np.ones((1, LANES))
        mask = self.rng.random((steps, LANES)) < rate
        k = np.where(mask, self.written + np.cumsum(mask, 0) - 1, 0)
        priorities = self.rng.integers(0, 8, mask.shape).astype(np.float32)
        lane = np.broadcast_to(LANE, mask.shape)
        self.priority[lane[mask], k[mask]] = priorities[mask]
        truth = {
            "id": lane * IDS + k,
            "lane": lane,
            "episode": self.episode[lane, k],
            "age": k - self.begin[lane, k],
        }
        items = {name: np.where(mask, x, NOWHERE).astype(np.int32) for name, x in truth.items()}
        items["done"] = np.where(mask, k == self.end[lane, k], self.rng.random(mask.shape) < 0.5)
        self.written += mask.sum(0)
        return Chunk(items, mask if masked else None, priorities, mask.sum(0))

    def update(self, handles: Array, ids: Array, priorities: Array) -> int:
        """Set priorities of the steps with given handles and numbers (-1: none). Returns how many are gone."""
        lane, k = ids // IDS, ids % IDS
        live = (handles >= 0) & (k >= self.oldest[lane])
        for at in np.flatnonzero(live):
            self.priority[lane[at], k[at]] = priorities[at]
        return int((~live & (handles >= 0)).sum())

    @property
    def oldest(self) -> Array:
        """The oldest step that each lane holds."""
        return np.maximum(self.written - self.length, 0)

    def stored(self) -> tuple[Array, Array, Array, Array]:
        """The lanes and numbers k of all that is stored, and of each trajectory's first and last stored step."""
        sizes = self.written - self.oldest
        lane = np.repeat(LANE, sizes)
        k = np.arange(lane.size) - np.repeat(np.cumsum(sizes) - sizes, sizes) + self.oldest[lane]
        first = np.maximum(self.begin[lane, k], self.oldest[lane])
        return lane, k, first, np.minimum(self.end[lane, k], self.written[lane] - 1)

    def handles(self, lane: Array, k: Array) -> Array:
        return k // self.length * (LANES * self.length) + self.slots(lane, k)

    def slots(self, lane: Array, k: Array) -> Array:
        return lane * self.length + k % self.length


def windows_at(stream: Stream, sampler: Any) -> tuple[Array, Array, Array]:
    """All that is stored, as lanes and numbers, and how many windows begin with each, or which has the mark."""
    lane, k, first, last = stream.stored()
    if sampler.span == (True, True):
        assert not sampler.by_trajectory
        return lane, k, np.where(k == first, LENGTH, 1)
    if sampler.by_trajectory:
        return lane, k, (k == last - LENGTH + 1).astype(np.int64)
    return lane, k, (k <= last - LENGTH + 1).astype(np.int64)


def check_slices(stream: Stream, sampler: Any, sample: Any) -> tuple[Array, Array]:
    """Every slice is what it should be; returns the lanes and numbers k of the first steps of those that are real."""
    mask = sample.mask
    rows = mask[:, 0]
    assert rows.any()
    assert (sample.weights[rows] > 0).all()
    assert not (mask[:, 1:] & ~mask[:, :-1]).any()
    assert not mask[~rows].any()
    assert not sample.weights[~rows].any()
    lane, k = sample.items["id"] // IDS, sample.items["id"] % IDS
    offset = np.minimum(np.arange(LENGTH), mask.sum(1, keepdims=True) - 1)
    # Consecutive, in one lane and one episode; the last real step is repeated behind.
    np.testing.assert_array_equal((k - k[:, :1])[rows], offset[rows])
    assert (lane == lane[:, :1])[rows].all()
    begin = stream.begin[lane, k]
    assert (begin == begin[:, :1])[rows].all()
    assert ((k >= stream.oldest[lane]) & (k < stream.written[lane]))[rows].all()
    np.testing.assert_array_equal(sample.items["lane"][rows], lane[rows])
    np.testing.assert_array_equal(sample.items["episode"][rows], stream.episode[lane, k][rows])
    np.testing.assert_array_equal(sample.items["age"][rows], (k - begin)[rows])
    np.testing.assert_array_equal(sample.items["done"][rows], (k == stream.end[lane, k])[rows])
    np.testing.assert_array_equal(sample.indices, np.where(mask, stream.handles(lane, k), -1))
    check_marks(stream, sampler, sample, lane, k)
    return lane[rows, 0], k[rows, 0]


def check_marks(stream: Stream, sampler: Any, sample: Any, lane: Array, k: Array) -> None:
    mask = sample.mask
    end, begin = stream.end[lane, k], stream.begin[lane, k]
    ended = k == end
    if sampler.trajectory_key is not None:  # the next step says so
        ended &= k + 1 < stream.written[lane]
    last_real = mask & ~np.append(mask[:, 1:], np.zeros((len(mask), 1), np.bool_), 1)
    np.testing.assert_array_equal(sample.is_first, mask & (k == begin))
    np.testing.assert_array_equal(sample.is_last, mask & ended)
    np.testing.assert_array_equal(sample.truncated, last_real & ~ended)
    # A slice is short only where it reaches out of what is stored.
    cut = (k == np.maximum(begin, stream.oldest[lane]))[:, 0]
    cut |= (last_real & (k == np.minimum(end, stream.written[lane] - 1))).any(1)
    short = mask[:, 0] & ~mask[:, -1]
    assert (cut & any(sampler.span))[short].all()


class Epochs:
    """What has come in an epoch without replacement: trajectories by their first step, or windows by theirs."""

    def __init__(self, stream: Stream, sampler: Any) -> None:
        self.stream, self.sampler = stream, sampler
        self.begun = self.come = self.lost = np.zeros_like(stream.begin, np.bool_)
        self.number, self.done = -1, 0

    def members(self) -> Array:
        lane, k, count = windows_at(self.stream, self.sampler)
        found = np.zeros_like(self.come)
        lane, k = lane[count > 0], k[count > 0]
        found[lane, self.stream.begin[lane, k] if self.sampler.by_trajectory else k] = True
        return found

    def added(self, counts: Array) -> None:
        """Where nearly the whole lane is new at once, the trajectory that goes on comes as a new one."""
        self.lost[counts > self.stream.length - LENGTH] = True

    def drawn(self, lane: Array, k: Array, before: int, after: int) -> None:
        """At so many epochs done before and after the draw."""
        if before != self.number:
            self.check_whole()
            self.number, self.begun = before, self.members()
            self.come, self.lost = np.zeros_like(self.begun), np.zeros_like(self.begun)
        k = self.stream.begin[lane, k] if self.sampler.by_trajectory else k
        assert self.begun[lane, k].all(), "what comes was there when the epoch began"
        assert not self.come[lane, k].any(), "nothing comes twice"
        assert len(set(zip(lane.tolist(), k.tolist(), strict=True))) == lane.size
        self.come[lane, k] = True
        assert after - before in (0, 1)
        if after != before:
            self.check_whole()
            self.number, self.done = -1, self.done + 1

    def check_whole(self) -> None:
        """All that was there at the beginning, and is still, has come."""
        if self.number >= 0:
            assert not (self.begun & self.members() & ~self.come & ~self.lost).any()


def carry_out(
    backend: Backend, batch: int, state: Any, key: Any, chunk: Chunk, handles: Any, priorities: Any
) -> tuple[Any, Any, Any, Any, Any]:
    """Add, update and sample; also the next key, and how many epochs were done before and after sampling."""
    rb = backend.rb
    key, now = rb.split(key)
    given = chunk.priorities if state.spec.sampler.has_priorities else None
    state = rb.add(state, chunk.items, mask=chunk.mask, priorities=given)
    if state.spec.sampler.has_priorities:
        state = rb.update(state, handles, priorities)
    before = rb.counts(state).epochs_done
    state, sample = rb.sample(state, now, batch)
    return state, key, sample, before, rb.counts(state).epochs_done


def soak(
    backend: Backend, sampler: Any, length: int, total: int, sizes: Iterator[tuple[int, bool]], batch: int
) -> None:
    """Through chunks of given steps, with or without a mask, until so many steps have been written."""
    stream = Stream(total // LANES * 2, length)
    spec = frb.BufferSpec(ITEM, LANES * length, sampler, lanes=LANES)
    state, key = backend.init(spec), backend.rb.key(0)
    step: Any = functools.partial(carry_out, backend, batch)
    step = jax.jit(step, donate_argnums=0) if backend.library == "jax" else step
    epochs, stale = Epochs(stream, spec.sampler), 0
    named, ids = np.full((2, 2 * batch), -1, np.int32)
    while stream.written.sum() < total:
        chunk = stream.take(*next(sizes))
        priorities = stream.rng.integers(0, 8, named.size).astype(np.float32)
        stale += stream.update(named, ids, priorities)
        given = jax.tree.map(backend.array, (chunk, named, priorities))
        state, key, *told = step(state, key, *given)
        sample, before, after = jax.tree.map(backend.numpy, told)
        lane, k = check_slices(stream, spec.sampler, sample)
        if spec.sampler.remembers:
            epochs.added(chunk.counts)
            epochs.drawn(lane, k, int(before), int(after))
        else:
            check_chances(stream, spec.sampler, sample, lane, k)
        named, ids = (x[:, :2].reshape(-1) for x in (sample.indices, sample.items["id"]))
    assert (stream.written > 2 * length).all()
    check_end(backend, stream, epochs, state)
    if spec.sampler.has_priorities:
        assert int(backend.rb.counts(state).stale) == stale > 2 * batch
    if spec.sampler.remembers:
        # A trajectory comes once an epoch, so that there are many epochs; of windows there are some 20 times as many.
        assert epochs.done > (effort(20, 40) if spec.sampler.by_trajectory else effort(4, 10))


def check_chances(stream: Stream, sampler: Any, sample: Any, lane: Array, k: Array) -> None:
    """Of draws with replacement."""
    stored_lane, stored_k, count = windows_at(stream, sampler)
    if not sampler.has_priorities:
        np.testing.assert_allclose(sample.probabilities, 1 / count.sum(), rtol=2e-7)
        return
    values = np.where(count > 0, stream.priority[stored_lane, stored_k], 0)
    drawn = stream.priority[lane, k]
    np.testing.assert_allclose(sample.probabilities, drawn / values.sum(dtype=np.float64), rtol=2e-7)
    np.testing.assert_allclose(sample.weights, (drawn / values[values > 0].min()) ** -sampler.beta, rtol=2e-7)


def check_end(backend: Backend, stream: Stream, epochs: Epochs, state: Any) -> None:
    """All that is kept, against what follows from the stream."""
    spec = state.spec
    lane, k, count = windows_at(stream, spec.sampler)
    slots = stream.slots(lane, k)
    np.testing.assert_array_equal(backend.numpy(backend.rb.items(state)["id"])[slots], lane * IDS + k)
    np.testing.assert_array_equal(backend.numpy(state.auxiliary["step_in_episode"])[slots], k - stream.begin[lane, k])
    read = counters.read(spec.plan, backend.numpy(state.counters))
    np.testing.assert_array_equal(read.ends.sizes, stream.written - stream.oldest)
    np.testing.assert_array_equal(read.ends.cursors, stream.written % spec.plan.ring.limit)
    following = stream.written - stream.begin[LANE, stream.written - 1]
    if spec.sampler.trajectory_key is None:
        following[stream.end[LANE, stream.written - 1] < stream.written] = 0
    np.testing.assert_array_equal(read.more["next_step_in_episode"], following)
    numbers = np.zeros(spec.capacity, np.float32)
    numbers[slots] = count
    if spec.sampler.has_priorities:
        numbers[slots] *= stream.priority[lane, k]
    if state.tree is not None:
        np.testing.assert_array_equal(backend.numpy(state.tree), tree_of(numbers))
    else:
        check_sparse_set(backend, stream, epochs, state, np.flatnonzero(numbers))


def check_sparse_set(backend: Backend, stream: Stream, epochs: Epochs, state: Any, members: Array) -> None:
    order, place = (backend.numpy(state.auxiliary[name]) for name in ("order", "place"))
    more = counters.read(state.spec.plan, backend.numpy(state.counters)).more
    count, remaining = int(more["count"][0]), int(more["remaining"][0])
    np.testing.assert_array_equal(np.sort(order[:count]), members)
    np.testing.assert_array_equal(place[order[:count]], np.arange(count))
    to_come = epochs.begun & epochs.members() & ~epochs.come & ~epochs.lost if epochs.number >= 0 else np.zeros(1)
    assert remaining == to_come.sum()


SAMPLERS: dict[str, tuple[Any, int]] = {
    "trajectories": (frb.Slices(LENGTH), 256),
    "windows": (
        frb.Slices(LENGTH, weighting="window", strict_length=False, span=True, trajectory_key="episode"),
        256,
    ),
    "by priority": (frb.PrioritizedSlices(LENGTH, alpha=1.0), 256),
    "once an epoch": (frb.SlicesWithoutReplacement(LENGTH), 8),
    "windows once an epoch": (frb.SlicesWithoutReplacement(LENGTH, weighting="window"), 256),
}


def varied(longest: int) -> Iterator[tuple[int, bool]]:
    """Chunks of one step to so many, their logarithms uniform, each second one with a mask."""
    rng = np.random.default_rng(1)
    while True:
        yield int(np.exp(rng.uniform(0, np.log(longest + 1)))), bool(rng.random() < 0.5)


def the_same(steps: int) -> Iterator[tuple[int, bool]]:
    """Chunks of one size, as each is compiled for itself, all with a mask."""
    while True:
        yield steps, True


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Torch hands pieces of even small gathers to other threads: where cores are busy, that takes ten times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# How many steps a lane holds, and how many are written.
SIZES = effort((800, 13 * 10**4), (6250, 10**6))


def on(**names: Iterable[str]) -> Any:
    """The samplers to run on each variant; on JAX each costs the time to compile it."""
    cases = [(variant.replace("_", "-"), name) for variant, chosen in names.items() for name in chosen]
    return pytest.mark.parametrize(("library", "name"), cases, indirect=["library"])


@on(torch=SAMPLERS, jax=["trajectories", "once an epoch", *effort([], ["windows", "by priority"])])
def test_many_steps(library: Backend, name: str) -> None:
    sampler, batch = SAMPLERS[name]
    soak(library, sampler, *SIZES, the_same(400) if library.library == "jax" else varied(2000), batch)


@on(
    torch=SAMPLERS,
    torch_core=effort([*SAMPLERS][::2], [*SAMPLERS]),
    jax=["windows once an epoch", *effort([], ["once an epoch"])],
)
def test_lanes_shorter_than_episodes(library: Backend, name: str) -> None:
    sampler, batch = SAMPLERS[name]
    sizes = the_same(150) if library.library == "jax" else varied(600)
    soak(library, sampler, 400, effort(4 * 10**4, 10**5), sizes, min(batch, 64))
