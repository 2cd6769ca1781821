"""The version chain in C++ under threads, forks, interrupts and collections; and that it leaks nothing."""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import gc
import random
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import functional_rb as frb
import torch_backend as rb
from tests.support import chain_programs as programs
from tests.support.backends import needs_native
from tests.support.children import ended, forked
from tests.support.effort import effort
from torch_backend.arrays import modes
from torch_backend.kernels import chain
from torch_backend.memory.library import TORCH

# With DLPack's C interface, and as torch before 2.13 has it.
CHAINS = {"exchange": TORCH.chain, "capsules": chain.made(has_exchange=False)}
# Seconds that nothing here should ever take.
PATIENCE = 60
WIDTH, CAPACITY = 200, 2048
ITEM = {"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((WIDTH,)), "image": frb.Unbounded((1100,), "uint8")}
SPEC = frb.BufferSpec(ITEM, CAPACITY, frb.Prioritized())


@pytest.fixture(params=list(CHAINS))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Each chain in turn."""
    monkeypatch.setattr(TORCH, "chain", CHAINS[request.param])
    return CHAINS[request.param]


def batch(start: int, n: int) -> dict[str, torch.Tensor]:
    """Items whose every leaf tells their number; of some hundreds other threads may go on meanwhile."""
    numbers = torch.arange(start, start + n, dtype=torch.int32)
    image = (numbers % 251).to(torch.uint8)[:, None].expand(-1, 1100)
    return {"id": numbers, "x": numbers[:, None].expand(-1, WIDTH).float(), "image": image.contiguous()}


def check_whole(items: dict[str, torch.Tensor]) -> None:
    expected = batch(0, 1)
    numbers = items["id"]
    assert expected.keys() == items.keys()
    assert bool((items["x"] == numbers[:, None]).all())
    assert bool((items["image"] == (numbers % 251)[:, None]).all())


def full(start: int = 0) -> Any:
    return rb.add(rb.init(SPEC), batch(start, CAPACITY))


# --- threads ---------------------------------------------------------------------------------------------------------


class Together:
    """Threads that each do their work again and again, until one of them has done it often enough, or has failed."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.done = threading.Event()

    def run(self, times: int, first: Callable[[int], Any], *others: Callable[[int], Any]) -> None:
        def repeated(work: Callable[[int], Any], times: int | None) -> None:
            turn = 0
            try:
                while not self.done.is_set() and turn != times:
                    work(turn)
                    turn += 1
            except BaseException as error:
                self.errors.append(error)
            if times is not None or self.errors:
                self.done.set()

        threads = [threading.Thread(target=repeated, args=(first, times), daemon=True)]
        threads += [threading.Thread(target=repeated, args=(work, None), daemon=True) for work in others]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "they wait for each other"
        assert not self.errors, self.errors


def test_draws_beside_writes(way: Any) -> None:
    oldest = newest = full()
    key, before = rb.key(0), programs.peek(oldest)
    own = [copy.deepcopy(oldest)]

    def draw(turn: int) -> None:
        for state in (newest, oldest):
            _, sample = rb.sample(state, key + turn, 1500)
            check_whole(sample.items)
            assert state is not oldest or int(sample.items["id"].max()) < CAPACITY

    def add(turn: int) -> None:
        nonlocal newest
        start = 10_000 + 700 * turn
        newest = rb.add(newest, batch(start, 700))
        newest = rb.update(newest, torch.arange(8, dtype=torch.int32), torch.ones(8), {"id": torch.zeros(8).int()})
        if turn % 3 == 0:  # from the middle of its history on
            check_whole(rb.sample(rb.add(oldest, batch(start, 300)), key, 16)[1].items)

    def add_in_place(turn: int) -> None:
        own[0] = rb.add_(own[0], batch(700 * turn, 700))
        own[0], sample = rb.sample(own[0], key + turn, 700)
        check_whole(sample.items)
        own[0] = rb.update_(own[0], sample.indices, torch.ones(700), {"x": sample.items["x"]})

    Together().run(effort(60, 2000), add, draw, draw, add_in_place)
    assert programs.peek(oldest) == before
    programs.check_books(newest)


@pytest.mark.parametrize("in_place", [False, True])
def test_slices_drawn_beside_writes(in_place: bool, way: Any) -> None:
    """Each of steps that were added one after the other, whole ones, and none from behind its state."""
    spec = frb.BufferSpec(ITEM, CAPACITY, frb.Slices(4, end_keys=()))
    newest = rb.add(rb.init(spec), batch(0, CAPACITY))
    oldest = copy.deepcopy(newest) if in_place else newest

    def draw(turn: int) -> None:
        for state in (newest, oldest):
            try:
                _, sample = rb.sample(state, rb.key(turn), 400)
            except RuntimeError as error:  # it was consumed before the draw began
                if "consumed" not in str(error):
                    raise
                continue
            check_whole({name: leaf.flatten(0, 1) for name, leaf in sample.items.items()})
            ids = sample.items["id"]
            assert bool((ids.diff() == 1).all())
            assert bool((sample.indices % CAPACITY == ids % CAPACITY).all())
            assert state is not oldest or int(ids.max()) < CAPACITY

    def add(turn: int) -> None:
        nonlocal newest
        newest = (rb.add_ if in_place else rb.add)(newest, batch(CAPACITY + 300 * turn, 300))

    Together().run(effort(60, 1000), add, draw, draw)
    programs.check_books(newest)


def test_epochs_drawn_beside_each_other(way: Any) -> None:
    """Threads draw from the same states, and each time the same comes."""
    spec = frb.BufferSpec(ITEM, CAPACITY, frb.WithoutReplacement())
    first = rb.add(rb.init(spec), batch(0, CAPACITY))
    after, sample = rb.sample(first, rb.key(1), 700)
    before, expected = programs.peek(first), [sample.items["id"].tolist(), programs.peek(after)]

    def draw(turn: int) -> None:
        again, drawn = rb.sample(first, rb.key(1), 700)
        check_whole(drawn.items)
        assert [drawn.items["id"].tolist(), programs.peek(again)] == expected
        rb.sample_(again, rb.key(turn), 900)

    Together().run(effort(20, 300), draw, draw, draw)
    assert programs.peek(first) == before


def test_in_place_writes_wait_for_draws(way: Any) -> None:
    state, key = full(), rb.key(0)

    def add(turn: int) -> None:
        nonlocal state
        state = rb.add_(state, batch(700 * turn, 700))

    def draw(turn: int) -> None:
        try:
            check_whole(rb.sample(state, key + turn, 1500)[1].items)
        except RuntimeError as error:  # it was consumed before the draw began
            if "consumed" not in str(error):
                raise

    Together().run(effort(150, 3000), add, draw, draw)


# --- forks -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork")  # of JAX, which other tests of the process have imported
def test_forks_beside_draws(way: Any) -> None:
    state, key, done = full(), rb.key(0), threading.Event()
    _, expected = rb.sample(state, key, 4000)

    def draw() -> None:
        while not done.is_set():
            rb.sample(state, key, 4000)

    def in_child() -> None:
        signal.alarm(PATIENCE)  # in place of waiting for a thread that is not here
        check_whole(rb.get(state, expected.indices))
        draw_and_write()

    def draw_and_write() -> None:
        signal.alarm(PATIENCE)
        assert torch.equal(rb.sample(state, key, 4000)[1].items["x"], expected.items["x"])
        later = rb.add(state, batch(5000, 700))
        check_whole(rb.sample(later, key, 4000)[1].items)
        check_whole(rb.sample(rb.add_(later, batch(6000, 700)), key, 4000)[1].items)
        assert torch.equal(rb.sample(state, key, 4000)[1].indices, expected.indices)

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    try:
        for _ in range(effort(2, 30)):
            ended(forked(in_child))
            ended(forked(draw_and_write))
    finally:
        done.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_process_may_not_use_the_files_of_the_first(way: Any, tmp_path: Any) -> None:
    spec = frb.BufferSpec({"x": frb.Unbounded((3,))}, 8, frb.Prioritized(), storage=frb.Memmap(str(tmp_path / "files")))
    items, numbers, key = {"x": torch.ones(2, 3)}, torch.arange(2, dtype=torch.int32), rb.key(0)
    state = rb.add(rb.add(rb.init(spec), items), items)
    state, _ = rb.sample(state, key, 2)

    def in_child() -> None:
        for call in (
            lambda: rb.add(state, items),
            lambda: rb.add_(state, items),
            lambda: rb.sample(state, key, 2),
            lambda: rb.update(state, numbers, torch.ones(2)),
            lambda: rb.update_(state, numbers, torch.ones(2), items),
        ):
            with pytest.raises(RuntimeError, match="this one was forked from it"):
                call()

    ended(forked(in_child))
    assert int(rb.size(rb.add(state, items))) == 6


# --- interrupts ------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    number: Any
    twice: Any


SMALL = frb.BufferSpec(Pair(frb.Unbounded((), "int32"), {"x": frb.Unbounded((2,), "int32")}), 64, frb.Prioritized())


def small(start: int, n: int = 5) -> Pair:
    numbers = torch.arange(start, start + n, dtype=torch.int32)
    return Pair(numbers, {"x": torch.stack([2 * numbers, -2 * numbers], 1)})


@pytest.fixture
def no_collections() -> Iterator[None]:
    """What is raised amid a collection is not raised where the program is."""
    gc.disable()
    yield
    gc.enable()


STORMED = {
    "items": frb.Prioritized(),
    "slices": frb.PrioritizedSlices(2, end_keys=()),
    "epochs": frb.WithoutReplacement(),
}


@pytest.mark.parametrize("sampler", STORMED.values(), ids=STORMED)
def test_interrupts_in_a_storm(sampler: Any, way: Any, no_collections: None) -> None:
    rng, hits, caught, turn = random.Random(0), 0, 0, 0
    state = older = rb.add(rb.init(dataclasses.replace(SMALL, sampler=sampler)), small(0))
    found, key, armed = programs.peek(older), rb.key(0), False

    def on_alarm(*_: Any) -> None:
        nonlocal hits, armed
        if armed:
            hits, armed = hits + 1, False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        while caught < effort(150, 5000):
            turn += 1
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(2e-5, 4e-4))
                for _ in range(1000):
                    state = rb.add(state, small(5 * turn))
                    state, sample = rb.sample(state, key, 8)
                    state = rb.add_(state, small(5 * turn))
                    if sampler.has_priorities:
                        first = sample.indices.reshape(8, -1)[:, 0]
                        state = rb.update_(rb.update(state, first, sample.weights), first, sample.weights)
                    rb.add(older, small(7))
                armed = False
            except KeyboardInterrupt:
                caught += 1
            if state._version is None:
                state = rb.add(older, small(5))
            numbers, twice = rb.sample(state, key, 64)[1].items
            assert torch.equal(twice["x"], torch.stack([2 * numbers, -2 * numbers], -1))
            assert programs.peek(older) == found
            programs.check_books(state)
            assert caught == hits, "each interrupt reaches the program"
            assert torch.is_grad_enabled(), "torch's modes are as they were"
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_interrupts_leave_gradients_on(no_collections: None) -> None:
    """Also amid the lines in which torch sets its modes, which are no lines of ours."""
    rng, caught, armed = random.Random(0), 0, False

    def on_alarm(*_: Any) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        for _ in range(effort(1500, 20000)):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(2e-5, 4e-4))
                for _ in range(10000):
                    with modes.without_gradients():
                        pass
                armed = False
            except KeyboardInterrupt:
                caught += 1
            assert torch.is_grad_enabled(), f"after {caught} interrupts"
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        torch.set_grad_enabled(True)
    assert caught > 1000


# --- what is left behind ---------------------------------------------------------------------------------------------

TINY = frb.BufferSpec({"x": frb.Unbounded((64,)), "n": frb.Unbounded((), "int32")}, 256, frb.Prioritized())


def test_states_in_circles_are_collected(way: Any) -> None:
    items = {"x": torch.ones(4, 64), "n": torch.ones(4, dtype=torch.int32)}
    first = rb.add(rb.init(TINY), items)
    state = rb.update(rb.add(first, items), torch.arange(4, dtype=torch.int32), torch.ones(4))
    found = [weakref.ref(x) for x in (first._version, state._version, state._version.memory)]
    for each in (first, state):
        each.__dict__["circle"] = [first, state]
    del first, state, each
    assert all(reference() is not None for reference in found)
    gc.collect()
    assert [reference() for reference in found] == [None] * 3


class Mallinfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    )


def malloced() -> int:
    """Bytes that are allocated by malloc, where glibc tells it."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is None:
        return 0
    function.restype = Mallinfo
    told = function()
    return told.uordblks + told.hblkhd


def used() -> tuple[int, int, int]:
    """Blocks and objects of Python's, and bytes of malloc's."""
    gc.collect()
    return sys.getallocatedblocks(), len(gc.get_objects()), malloced()


def test_nothing_leaks(way: Any) -> None:
    state, key = rb.init(TINY), rb.key(0)
    items = {"x": torch.ones(4, 64), "n": torch.ones(4, dtype=torch.int32)}
    single, handles, ones = {"x": torch.ones(64), "n": 3}, torch.arange(4, dtype=torch.int32), np.ones(4, np.float32)
    wrong = {"x": torch.ones(4, 63), "n": items["n"]}
    state = rb.add(state, items)

    def work(times: int) -> None:
        nonlocal state
        older = state
        for turn in range(times):
            state = rb.add(state, items)
            state = rb.add_(rb.add(state, single), items, priorities=ones)
            state, sample = rb.sample(state, key, 8)
            state = rb.update_(rb.update(state, sample.indices, sample.weights, sample.items), handles, ones)
            not_here = [
                way.add(state, wrong, None, None, None, False, True, None),
                way.add(older, items, np.ones(3, bool), None, None, False, True, None),
                way.sample(state, key, 8, 101.0, None),
                way.update(state, [1, 2], None, None),
                way.update_(state, handles, ones, {"x": items["x"], "y": ones}),
                way.sample(state, ones, 8, None, None),
            ]
            assert not_here == [NotImplemented] * 6
            if turn % 64 == 0:
                older = state

    work(300)
    before = used()
    work(effort(350, 50_000))
    after = used()
    # At fewer turns a leak is smaller.
    assert after[0] - before[0] < effort(140, 300)
    assert after[1] - before[1] < effort(23, 100)
    assert after[2] - before[2] < effort(2**16, 2**18)


@needs_native
def test_arguments_are_held_no_longer_than_a_call(way: Any) -> None:
    state = rb.add(rb.init(TINY), {"x": torch.ones(9, 64), "n": torch.ones(9, dtype=torch.int32)})
    items = {"x": torch.ones(4, 64), "n": np.ones(4, np.int32)}
    mask, ones, key = np.ones(4, bool), torch.ones(4), rb.key(5)
    handles, beta, size = torch.arange(4, dtype=torch.int32), 0.123, 1000
    given = [state, *state.__dict__.values(), state._counters, items, *items.values(), *items, mask, ones, key, handles]
    given += [beta, size, NotImplemented, way]
    wrong = {"x": torch.ones(3, 64), "n": items["n"]}
    calls: list[tuple[str, tuple[Any, ...], bool]] = [
        ("add", (items, mask, ones, None, False, True, None), True),
        ("add", (wrong, mask, ones, None, False, True, None), False),
        ("add", (items, mask, ones, key, False, True, None), False),
        ("add", (items, ones, mask, None, False, True, None), False),
        ("update", (handles, ones, items), True),
        ("update", (handles, mask, items), False),
        ("update", (handles, ones, wrong), False),
        ("update", (handles, ones, {**items, "more": ones}), False),
        ("sample", (key, size, beta, None), True),
        ("sample", (key, 4, beta, ones), False),
        ("sample", (ones, 4, beta, None), False),
        ("sample", (key, -4, beta, None), False),
    ]
    for name, arguments, _ in calls:  # what a first call imports may have names such as "x" too
        getattr(way, name)(state, *arguments)
    for name, arguments, here in calls:
        before = [sys.getrefcount(x) for x in given]
        for _ in range(3):
            made = getattr(way, name)(state, *arguments)
            assert (made is not NotImplemented) == here
            del made
        assert [sys.getrefcount(x) for x in given] == before, name
    for name, arguments, here in calls:
        if here and name != "sample":
            before = [sys.getrefcount(x) for x in given]
            for _ in range(3):
                made = getattr(way, name + "_")(copy.deepcopy(state), *arguments)
                assert made is not NotImplemented
                del made
            assert [sys.getrefcount(x) for x in given] == before, name


def test_what_fails_amid_a_call_leaves_all_as_it_was(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    items = {"x": torch.ones(90, 64), "n": torch.ones(90, dtype=torch.int32)}
    oldest = rb.add(rb.init(TINY), items)
    state = oldest
    for _ in range(2):
        state = rb.add(state, items)
    found = [programs.peek(x) for x in (oldest, state)]
    before = [sys.getrefcount(x) for x in (state, items, *items.values(), state.spec)]
    copied = type(state._version.memory).copy

    def failing(memory: Any) -> Any:
        raise OSError("no room")

    monkeypatch.setattr(type(state._version.memory), "copy", failing)
    for _ in range(3):
        with pytest.raises(OSError, match="no room"):  # as the oldest gets a copy of its own
            rb.add(state, items)
    monkeypatch.setattr(type(state._version.memory), "copy", copied)
    assert [programs.peek(x) for x in (oldest, state)] == found
    programs.check_books(state)
    assert [sys.getrefcount(x) for x in (state, items, *items.values(), state.spec)] == before
