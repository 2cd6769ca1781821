"""Collector threads beside a learner, over one buffer: what they did in some order is what is stored, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

import functional_rb as frb
from tests.support import backends, lives
from tests.support.backends import Backend
from tests.support.members import BATCH, LANES, MEMBERS, USUAL, Member

# Seconds that nothing here should ever take.
PATIENCE = 60.0
COLLECTORS = 2
# Of the learner; collectors go on until it has done them.
STEPS = 10
# Of JAX also on the device, where functions take long to compile.
COMPILED = ("uniform", "prioritized")
# What can be drawn from as soon as there are items.
ENDLESS = ("uniform", "prioritized", "recency", "without replacement", "slices", "slices without replacement")
CASES = [
    *((name, variant) for name in USUAL for variant in ("torch", "jax-host")),
    *((name, "jax") for name in COMPILED),
]


class Program:
    """A buffer in a cell, and the order in which threads have come to it.

    Attributes:
        log: what was called, each with what it takes to call it again.
        draws: the samples, in the order in which they were drawn.
    """

    def __init__(self, library: Backend, spec: frb.BufferSpec) -> None:
        self.library, self.spec, self.rb = library, spec, library.rb
        self.dataset = isinstance(spec.writer, frb.Immutable)
        self.log: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.draws: list[Any] = []
        self.done = threading.Event()

    def begin(self) -> Any:
        items = self.library.tree(lives.items_from(1)) if self.dataset else None
        return self.library.init(self.spec, items)

    # --- what threads apply

    def logged(self, state: Any, function: Callable[..., Any], *given: Any) -> Any:
        """Called by whoever has the newest state."""
        found = function(state, *given)
        self.log.append((function, given))
        if function == self.draw:
            self.draws.append(found[1])
        return found

    def add(self, state: Any, number: int) -> Any:
        """A batch of items that tell their number, in some of the calls by a function that consumes the state."""
        items = lives.items_from(BATCH * number)
        if self.spec.lanes:
            items = {name: leaf.reshape(BATCH // LANES, LANES, *leaf.shape[1:]) for name, leaf in items.items()}
        function = self.rb.add_ if number % 3 else self.rb.add
        return function(state, self.library.tree(items), key=self.rb.key(number))

    def draw(self, state: Any, key: Any) -> Any:
        return self.rb.sample(state, key, BATCH)

    def draw_if_possible(self, state: Any, key: Any) -> Any:
        return self.logged(state, self.draw, key) if self.rb.can_sample(state, BATCH) else (state, None)

    def learn(self, state: Any, sample: Any) -> Any:
        """Priorities by the items' numbers, and a leaf that tells them again."""
        numbers = self.library.numpy(sample.items["id"]).reshape(-1)
        priorities = (numbers % 5 + 1).astype(np.float32) if self.spec.sampler.has_priorities else None
        notes = None if self.dataset else {"note": numbers.astype(np.float32)}
        return self.rb.update(state, sample.indices.reshape(-1), priorities, notes)

    # --- the threads

    def collect(self, cell: frb.Cell | Any, which: int) -> list[int]:
        """Add until the learner is done; the numbers of the batches that were added."""
        numbers: list[int] = []
        while not self.done.is_set():
            if self.dataset:
                cell.apply(self.logged, lambda state: state)
                continue
            try:
                number = COLLECTORS * len(numbers) + which
                cell.apply(self.logged, self.add, number)
                numbers.append(number)
            except ValueError as error:  # of a writer that overwrites nothing
                if "the buffer is full" not in str(error):
                    raise
        return numbers

    def learn_from_the_cell(self, cell: frb.Cell) -> None:
        steps = 0
        while steps < STEPS:
            cell.wait_for(lambda state: self.rb.can_sample(state, BATCH), PATIENCE)
            sample = cell.apply(self.draw_if_possible, self.rb.key(1000 + steps))
            if sample is not None:
                cell.apply(self.logged, self.learn, sample)
                steps += 1

    def learn_by_iterating(self, cell: frb.Cell) -> None:
        rb = SimpleNamespace(
            __name__=self.rb.__name__,
            split=self.rb.split,
            sample=lambda state, key, *rest: self.logged(state, self.draw, key),
        )
        steps = 0
        while steps < STEPS:
            cell.wait_for(lambda state: self.rb.can_sample(state, BATCH), PATIENCE)
            batches = frb.iterate(
                rb, cell, self.rb.key(steps), BATCH, prefetch=frb.Prefetch(batches=2, threads=2), n=STEPS - steps
            )
            try:
                for sample in batches:
                    batches.apply(self.logged, self.learn, sample)
                    steps += 1
            except ValueError as error:  # of a sampler that gives each item so many times
                if "empty" not in str(error) and "drawn" not in str(error):
                    raise

    # --- what is to hold afterwards

    def check(self, state: Any, added: list[list[int]]) -> None:
        numbers = [given[0] for function, given in self.log if function == self.add]
        for which, own in enumerate(added):
            assert [number for number in numbers if number % COLLECTORS == which] == own
        self.check_stored(state, [BATCH * number + k for number in numbers for k in range(BATCH)])

    def check_whole(self, sample: Any) -> None:
        """All leaves of an item are of one item, also where it was overwritten as it was drawn."""
        items = {name: self.library.numpy(leaf).reshape(-1, *leaf.shape[-1:]) for name, leaf in sample.items.items()}
        items = {name: leaf if name == "x" else leaf.reshape(-1) for name, leaf in items.items()}
        real = self.library.numpy(sample.indices).reshape(-1) >= 0
        ids, x, done, episodes, notes = (items[name][real] for name in ("id", "x", "done", "episode", "note"))
        assert np.array_equal(x, np.stack([ids, -ids], 1))
        assert np.array_equal(done, ids % 7 == 3)
        assert np.array_equal(episodes, ids // 5)
        assert np.all((notes == 0) | (notes == ids))

    def check_stored(self, state: Any, ids: list[int]) -> None:
        """Items were stored, and overwritten, in their order: against a list."""
        if isinstance(self.spec.writer, (frb.RoundRobin, frb.StopWhenFull)):
            stored = self.library.numpy(self.rb.items(state)["id"]).reshape(-1)
            assert set(ids[-self.spec.capacity :]) <= set(stored.tolist())

    def check_replayed(self, state: Any) -> None:
        """One thread that does the same in this order comes to the same."""
        again, drawn = self.begin(), iter(self.draws)
        for function, given in self.log:
            again = function(again, *given)
            if function == self.draw:
                again, sample = again
                assert lives.bits(self.library, sample) == lives.bits(self.library, next(drawn))
        assert lives.state_bits(self.library, again) == lives.state_bits(self.library, state)


@pytest.fixture
def library(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with backends.make(request.param) as made:
        yield made


@pytest.mark.few(4)
@pytest.mark.parametrize(("name", "library"), CASES, indirect=["library"])
@pytest.mark.parametrize("way", ["the cell", "iterate"])
def test_two_collectors_beside_a_learner(name: str, library: Backend, way: str) -> None:
    member: Member = MEMBERS[name]
    program = Program(library, member.spec)
    cell = frb.Cell(program.begin())
    learn = program.learn_from_the_cell if way == "the cell" else program.learn_by_iterating
    with ThreadPoolExecutor(COLLECTORS) as pool:
        collectors = [pool.submit(program.collect, cell, which) for which in range(COLLECTORS)]
        try:
            learn(cell)
        finally:
            program.done.set()
        added = [collector.result(PATIENCE) for collector in collectors]
    program.check(cell.state, added)
    program.check_replayed(cell.state)
    for sample in program.draws:
        program.check_whole(sample)


@pytest.mark.parametrize("library", ["torch", "jax-host"], indirect=True)
@pytest.mark.parametrize("name", ENDLESS)
def test_two_collectors_beside_an_iterator_over_a_state(name: str, library: Backend) -> None:
    program = Program(library, MEMBERS[name].spec)
    remembers = program.spec.sampler.remembers
    state = program.logged(program.begin(), program.add, 0)
    lag = 0 if remembers else 2
    batches = frb.iterate(
        library.rb, state, library.rb.key(0), prefetch=frb.Prefetch(batches=2, threads=2, lag=lag), n=STEPS
    )
    del state  # functions consume it
    with ThreadPoolExecutor(COLLECTORS) as pool:
        collectors = [pool.submit(program.collect, batches, which) for which in (1, 2)]
        try:
            for sample in batches:
                program.check_whole(sample)
                batches.apply(program.logged, program.learn, sample)
        finally:
            program.done.set()
        first, second = (collector.result(PATIENCE) for collector in collectors)
    program.check(batches.state, [[0, *second], first])
    if not remembers:  # what was drawn ahead and thrown away is in no log
        program.check_replayed(batches.state)


@pytest.mark.parametrize("library", ["torch", "jax-host"], indirect=True)
def test_environments_of_gymnasium(library: Backend) -> None:
    """Each collector adds whole episodes, so that those of several do not mix; the learner draws slices of them."""
    rb, done = library.rb, threading.Event()
    item = {
        "obs": frb.Unbounded((4,)),
        "done": frb.Binary(),
        "episode": frb.Unbounded((), "int32"),
        "t": frb.Unbounded(),
    }
    cell = frb.Cell(library.init(frb.BufferSpec(item, 2_000, frb.Slices(4), batch_size=32)))
    added: list[int] = []

    def add(state: Any, episode: dict[str, Any]) -> Any:
        added.append(len(episode["t"]))
        return rb.add_(state, library.tree(episode))

    def collect(seed: int) -> int:
        environment, episodes = gymnasium.make("CartPole-v1"), 0
        environment.action_space.seed(seed)
        while not done.is_set():
            observation, _ = environment.reset(seed=1000 * seed + episodes)
            steps: dict[str, list[Any]] = {"obs": [], "done": []}
            while not (steps["done"] and steps["done"][-1]):
                steps["obs"].append(observation)
                observation, _, terminated, truncated, _ = environment.step(environment.action_space.sample())
                steps["done"].append(terminated or truncated)
            length = len(steps["done"])
            number = np.full(length, 1000 * seed + episodes, np.int32)
            episode = {"obs": np.stack(steps["obs"]), "done": np.array(steps["done"]), "episode": number}
            cell.apply(add, episode | {"t": np.arange(length, dtype=np.float32)})
            episodes += 1
        return episodes

    with ThreadPoolExecutor(COLLECTORS) as pool:
        collectors = [pool.submit(collect, seed) for seed in (1, 2)]
        try:
            cell.wait_for(lambda state: rb.can_sample(state, 100), PATIENCE)
            for sample in frb.iterate(rb, cell, rb.key(0), n=STEPS):
                episodes, t = (library.numpy(sample.items[name]) for name in ("episode", "t"))
                assert np.array_equal(episodes, episodes[:, :1].repeat(4, 1))
                assert np.array_equal(t, t[:, :1] + np.arange(4))
        finally:
            done.set()
        assert sum(collector.result(PATIENCE) for collector in collectors) == len(added)
    assert int(cell.read(rb.counts).cursor) == sum(added)
