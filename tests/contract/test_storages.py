"""Host and Memmap, on torch and on JAX: the bits of a device's memory, and the values of states."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import os
import pickle
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.support import backends, lives, members
from tests.support.backends import Backend
from tests.support.effort import effort
from tests.support.full_disks import PAGE, fill_after

VARIANTS = ["torch", "torch-core", *backends.HOST_VARIANTS]
# Which must give the bits of torch in a device's memory; `test_members` finds these to be those of JAX.
CARRIERS = [
    *(("jax-host", frb.Host()), ("jax-host-core", frb.Memmap()), ("jax-host", frb.Memmap())),
    *(("torch", frb.Host()), ("torch", frb.Memmap()), ("torch-core", frb.Memmap()), ("torch-inplace", frb.Memmap())),
]


def stored_in(spec: frb.BufferSpec, storage: Any) -> frb.BufferSpec:
    return dataclasses.replace(spec, storage=storage)


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with backends.make(request.param) as made:
        yield made


@pytest.fixture(params=["torch", "jax-host"])
def either(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Of each library its kernels."""
    with backends.make(request.param) as made:
        yield made


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has room for as many chunks as its only entry says, of a page each."""
    return fill_after(monkeypatch, 10**9)


# ---------------------------------------------------------------- the same bits


def written_pages(files: Any) -> Iterator[tuple[Any, int]]:
    """What of the files was written, as (array, number of the page)."""
    for array in files._arrays.values():
        for start, end in array._written():
            yield from ((array, page) for page in range(start // PAGE, -(-end // PAGE)))


def check_reserved(state: Any) -> None:
    """Nothing has been written where no room was reserved: on a full disk that would kill the process."""
    if isinstance(state.spec.storage, frb.Memmap):
        assert all(array.reserved[page] for array, page in written_pages(state._version.own().files))


# Of each item a page of the rows, and one of a wide array.
BULKY = members.ITEM | {"row": frb.Unbounded((1024,)), "image": frb.Unbounded((64, 64), "uint8")}


def bulky(items: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    number = items["id"]
    row = np.broadcast_to(number[..., None].astype(np.float32), (*number.shape, 1024))
    image = np.broadcast_to(number[..., None, None].astype(np.uint8), (*number.shape, 64, 64))
    return items | {"row": row, "image": image}


def told(backend: Backend, spec: frb.BufferSpec) -> tuple[list[Any], list[Any]]:
    """A life as bits: what each step gave, and at last all states, or the one that was not consumed."""
    seen, states, dataset = [], [], isinstance(spec.writer, frb.Immutable)
    items = {"items": backend.tree(bulky(lives.items_from(1)))} if dataset else {}
    state = backend.rb.init(spec, **items)
    for k, given in enumerate(lives.inputs(spec)):
        state, saw = lives.step(backend, state, given._replace(items=bulky(given.items)), lives.keys(backend, k))
        check_reserved(state)
        seen += lives.bits(backend, saw)
        states.append(state)
    return seen, [lives.state_bits(backend, older) for older in (states[-1:] if backend.consumes else states)]


@pytest.mark.few(5)
@pytest.mark.parametrize("name", members.USUAL)
def test_every_member_gives_the_bits_of_a_device(name: str, disk: list[int]) -> None:
    member = members.MEMBERS[name].spec
    spec = dataclasses.replace(member, item=BULKY, capacity=4 * member.capacity)
    with backends.make("torch") as kernels:
        steps, states = told(kernels, spec)
    for carrier, storage in CARRIERS:
        with backends.make(carrier) as backend:
            found, alive = told(backend, stored_in(spec, storage))
        assert found == steps, (carrier, storage)
        assert alive == states[-len(alive) :], (carrier, storage)


OBS = frb.Unbounded((4, 300), "uint8")
STACKED = {"obs": OBS, "next_obs": OBS, "reward": frb.Unbounded(()), "done": frb.Binary(())}
LINES: dict[str, dict[str, Any]] = {
    "compact": {"compact": frb.Compact(stack=4)},
    "compact lanes": {"compact": frb.Compact(stack=4), "sampler": frb.Uniform(), "lanes": 2},
    "returns, sampled": {"compact": frb.Compact(stack=4), "transforms": frb.n_step(3, 0.9)},
    "returns, stored": {"transforms": frb.n_step(3, 0.9, at="add"), "lanes": 2},
    "slices": {"compact": frb.Compact(stack=4), "sampler": frb.PrioritizedSlices(2), "lanes": 2},
}


def steps_of_two(first: int) -> dict[str, np.ndarray]:
    """Five steps of two trajectories side by side, stacks of the last four frames."""
    t = np.arange(first, first + 5)[:, None] + np.array([0, 100])
    frames = np.repeat((t[..., None] + np.arange(-3, 2))[..., None], 300, -1).astype(np.uint8)
    return {"obs": frames[..., :4, :], "next_obs": frames[..., 1:, :], "reward": np.float32(t), "done": t % 7 == 6}


@pytest.mark.few(3)
@pytest.mark.parametrize("how", LINES)
def test_frames_and_transforms_give_the_bits_of_a_device(how: str, disk: list[int]) -> None:
    plain = frb.BufferSpec(STACKED, 24, **{"sampler": frb.Prioritized(), **LINES[how]})
    given = []
    for variant, storage in [
        ("torch", frb.Device()),
        *(carrier for carrier in CARRIERS if "inplace" not in carrier[0]),
    ]:
        with backends.make(variant) as backend:
            state, seen, states = backend.init(stored_in(plain, storage)), [], []
            for k in range(8):
                made, mask = steps_of_two(5 * k), np.arange(10).reshape(5, 2) % 7 != k
                batch = made if plain.lanes else {name: x.swapaxes(0, 1)[0] for name, x in made.items()}
                state = backend.add(state, batch, backend.array(mask if plain.lanes else mask[:, 0]))
                check_reserved(state)
                state, drawn = backend.sample(state, lives.keys(backend, k)[1], 8)
                handles = drawn.indices.reshape(-1)
                new = np.arange(len(handles), dtype=np.float32) if plain.sampler.has_priorities else None
                state = backend.update(state, handles, new)
                states.append(state)
                seen.append(lives.bits(backend, [drawn, backend.rb.get(state, handles), backend.rb.items(state)]))
            given.append(seen + [lives.state_bits(backend, older) for older in states])
    assert all(seen == given[0] for seen in given)


# ---------------------------------------------------------------- values over files and in the host's memory


def batch(first: int, n: int) -> dict[str, np.ndarray]:
    return {"x": np.repeat(np.arange(first, first + n, dtype=np.float32)[:, None], 512, 1)}


def spec_of(path: Any = None, capacity: int = 16, storage: Any = None, **flags: Any) -> frb.BufferSpec:
    storage = frb.Memmap(path, **flags) if storage is None else storage
    return frb.BufferSpec({"x": frb.Unbounded((512,))}, capacity, frb.Prioritized(), storage=storage)


def filled(backend: Backend, spec: frb.BufferSpec, first: int = 1, n: int = 16) -> Any:
    return backend.rb.add(backend.rb.init(spec), batch(first, n))


def column(backend: Backend, items: Any) -> list[float]:
    """A number for each item, all of whose elements tell it."""
    x = backend.numpy(items["x"])
    assert (x == x[:, :1]).all()
    return x[:, 0].tolist()


def held(backend: Backend, state: Any) -> list[float]:
    return column(backend, backend.rb.items(state))


def mapped_leaves(backend: Backend, state: Any) -> Any:
    """A state made of its own leaves."""
    leaves, rebuilt = backend.flatten(state)
    return rebuilt(leaves)


COPIES: dict[str, Callable[[Backend, Any], Any]] = {
    "copy": lambda b, s: copy.copy(s),
    "deepcopy": lambda b, s: copy.deepcopy(s),
    "pickle": lambda b, s: pickle.loads(pickle.dumps(s)),
    "sent": lambda b, s: pickle.loads(ForkingPickler.dumps(s)) if b.library == "torch" else copy.deepcopy(s),
    "leaves": mapped_leaves,
}


@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("way", COPIES)
def test_copies_go_on_alike_and_apart(either: Backend, way: str, files: bool, tmp_path: Path) -> None:
    rb = either.rb
    state = filled(either, spec_of(tmp_path) if files else spec_of(storage=frb.Host()))
    copied = COPIES[way](either, state)
    assert copied.spec == state.spec
    theirs, ours, again = rb.add(copied, batch(70, 1)), rb.add(state, batch(50, 1)), rb.add(copied, batch(50, 1))
    assert held(either, ours)[:2] == [50, 2]
    assert held(either, theirs)[:2] == [70, 2]
    assert lives.state_bits(either, again) == lives.state_bits(either, ours)
    assert held(either, copied) == held(either, state) == list(range(1, 17))
    if files:
        assert ours._version.own().files.directory == str(tmp_path)
        assert theirs._version.own().files.directory is None


GIVEN: dict[str, Callable[[Backend, Any], Any]] = {
    "items": lambda b, s: list(b.rb.items(s).values()),
    "fields": lambda b, s: [s.rows, *s.wide, s.tree, s.counters],
    "leaves": lambda b, s: lives.leaves(s),
    "dlpack": lambda b, s: [np.from_dlpack(x) for x in (s.rows, s.tree)],
    "the other library": lambda b, s: list(other(b).items(other(b).from_dlpack(s)).values()),
    "copies": lambda b, s: [x for way in COPIES for x in lives.leaves(COPIES[way](b, s))],
    "sampled": lambda b, s: [*lives.leaves(b.rb.sample(s, b.rb.key(0), 20)[1]), b.rb.get(s, np.arange(9))["x"]],
}


def other(backend: Backend) -> Any:
    import jax_backend
    import torch_backend

    return jax_backend if backend.library == "torch" else torch_backend


@pytest.mark.parametrize("storage", [frb.Host(), frb.Memmap()], ids=["host", "files"])
@pytest.mark.parametrize("way", GIVEN)
def test_arrays_given_out_never_change(either: Backend, way: str, storage: Any) -> None:
    rb, state = either.rb, filled(either, spec_of(storage=storage))
    memory = state._version.own()
    given = GIVEN[way](either, state)
    before = [np.array(np.asarray(x)) for x in given]
    after = state
    for k in range(4):
        after = rb.add(after, batch(100 + 5 * k, 5))
        after = rb.update(after, np.arange(20, 30, dtype=np.int32), np.full(10, 3, np.float32))
    for array, was in zip(given, before, strict=True):
        np.testing.assert_array_equal(np.asarray(array), was)
    if isinstance(storage, frb.Memmap):  # what is in files is copied, and stays where it is
        assert after._version.own() is memory
        assert not memory.pinned
    assert held(either, state) == list(range(1, 17))
    assert held(either, after)[:5] == [116, 117, 118, 119, 104]


def test_the_files_are_the_live_memory(either: Backend, tmp_path: Path) -> None:
    state = filled(either, spec_of(tmp_path), 1, 3)
    on_disk = np.memmap(tmp_path / "rows.bin", np.float32, "r", shape=(16, 512))
    assert on_disk[:, 0].tolist() == [1, 2, 3] + [0] * 13
    older = pickle.loads(pickle.dumps(state))
    state = either.rb.update(state, np.array([1], np.int32), items=batch(9, 1))
    assert on_disk[:4, 0].tolist() == [1, 9, 3, 0]
    assert held(either, older)[:3] == [1, 2, 3]
    files = state._version.own().files
    assert files.directory == str(tmp_path)
    assert lives.leaves(state)[0] is not files.rows
    assert either.rb.add(state, batch(4, 1))._version.own().files is files


def test_in_place_forms_stay_in_the_files_whoever_holds_older_states(tmp_path: Path) -> None:
    with backends.make("torch") as backend:
        states = [backend.rb.init(spec_of(tmp_path))]
        for k in range(4):
            states.append(backend.rb.add(states[-1], batch(10 * k, 7)))
        del states[2]
        memory = states[-1]._version.own()
        last = backend.rb.add_(states.pop(), batch(90, 3))
        assert last._version.own() is memory
        assert (memory.retained, len(memory.history)) == (0, 0)
        assert memory.files.directory == str(tmp_path)
        for count, state in zip((0, 7, 21), states, strict=True):
            ring = [0.0] * 16
            for row in range(count):
                ring[row % 16] = 10 * (row // 7) + row % 7
            assert held(backend, state) == ring
        assert held(backend, last)[12:15] == [90, 91, 92]


def test_a_second_buffer_on_a_path_is_refused_while_the_first_is_alive(either: Backend, tmp_path: Path) -> None:
    rb, state = either.rb, filled(either, spec_of(tmp_path), 1, 3)
    for flags in ({}, {"existsok": True}):
        with pytest.raises(frb.errors.StorageInUseError, match="another path"):
            rb.init(spec_of(tmp_path, **flags))
    assert held(either, state)[:3] == [1, 2, 3]
    given = rb.items(state)["x"]
    del state  # what was given out does not keep the lock
    state = rb.init(spec_of(tmp_path, existsok=True))
    assert int(rb.size(state)) == 0
    state = rb.add(state, batch(7, 1))
    assert given[:3, 0].tolist() == [1, 2, 3]
    assert held(either, state)[:3] == [7, 2, 3]


def test_nothing_stays_open(either: Backend, tmp_path: Path) -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("this system does not list what is open")
    before = descriptors()
    for k in range(3):
        state = filled(either, spec_of(tmp_path / str(k)), 1, 3)
        older, state = state, either.rb.add(state, batch(5, 3))
        either.rb.items(older)
        either.rb.items(state)
        copy.deepcopy(older)
    del state, older
    assert descriptors() == before


def test_gigabytes_of_which_little_is_touched(either: Backend) -> None:
    rb, spec = either.rb, dataclasses.replace(spec_of(capacity=100_000_000), sampler=frb.Uniform())  # 205 GB
    older = state = rb.init(spec)
    for k in range(3):
        state = rb.add(state, batch(10 * k, 5))
    state, sample = rb.sample(state, rb.key(0), 64)
    assert set(column(either, sample.items)) == {k + n for k in (0, 10, 20) for n in range(5)}
    assert column(either, rb.get(state, sample.indices)) == column(either, sample.items)
    assert int(rb.size(older)) == 0
    assert repr(state) == f"State({spec!r})"
    if either.library == "torch":
        assert state.rows.nbytes > 200e9
        assert state.rows[14, 0] == state.rows[14, 511]
        assert not older.rows[:15].any()


def test_files_of_another_process_are_left_alone(either: Backend) -> None:
    rb, state = either.rb, filled(either, spec_of(), 1, 3)
    state._version.memory.files._pid = -1  # as if this process were forked from that which made them
    one = np.zeros(1, np.int32)
    for call in (
        lambda: rb.add(state, batch(1, 1)),
        lambda: rb.sample(state, rb.key(0), 2),
        lambda: rb.update(state, one, items=batch(1, 1)),
        lambda: rb.get(state, one),
        lambda: state.rows,
    ):
        with pytest.raises(
            RuntimeError, match=r"files belong to the process that made it.*multiprocessing_context='forkserver'"
        ):
            call()


# ---------------------------------------------------------------- a full disk


@pytest.mark.parametrize("held_on", [False, True])
@pytest.mark.parametrize("backend", ["torch", "torch-inplace", "jax-host"], indirect=True)
def test_adding_to_a_full_disk_changes_nothing(backend: Backend, held_on: bool, disk: list[int]) -> None:
    state = filled(backend, spec_of(), 1, 5)
    older = state if held_on else None
    state = backend.rb.add(state, batch(6, 1))
    disk[0] = 1
    for _ in range(2):
        with pytest.raises(frb.errors.StorageFullError, match="nothing was written"):
            backend.add(state, batch(9, 4))
    assert int(backend.rb.size(state)) == 6
    disk[0] = 100
    assert held(backend, state) == [1, 2, 3, 4, 5, 6] + [0] * 10
    after = backend.add(state, batch(9, 4))
    assert held(backend, after) == [1, 2, 3, 4, 5, 6, 9, 10, 11, 12] + [0] * 6
    if older is not None:
        assert held(backend, older) == [1, 2, 3, 4, 5] + [0] * 11


def test_reading_an_older_state_without_room(disk: list[int]) -> None:
    with backends.make("torch") as backend:
        older = filled(backend, spec_of())
        state = backend.rb.add(older, batch(20, 2))
        disk[0] = 3
        for each in (older, state):
            with pytest.raises(frb.errors.StorageFullError):
                backend.rb.items(each)
        disk[0] = 100
        assert held(backend, older) == list(range(1, 17))
        assert held(backend, backend.rb.add(state, batch(30, 1)))[:3] == [20, 21, 30]


def test_rewriting_what_was_never_written_reserves_room(either: Backend, disk: list[int]) -> None:
    rb = either.rb
    # Rows of zeros that were read from elsewhere are holes in the files.
    state = pickle.loads(pickle.dumps(filled(either, spec_of(), 0, 1)))
    state = rb.update(state, np.array([-1], np.int32), np.ones(1, np.float32))  # now it has files
    assert not state._version.own().files._arrays["rows"].reserved.any()
    disk[0] = 0
    handles = np.array([0, -1, 2**31 - 1], np.int32)
    with pytest.raises(frb.errors.StorageFullError):
        rb.update(state, handles, None, batch(5, 3))
    disk[0] = 100
    state = rb.update(state, handles, None, batch(5, 3))
    check_reserved(state)
    assert held(either, state)[:2] == [5, 0]


# ---------------------------------------------------------------- threads


@contextlib.contextmanager
def switching_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def number_items(first: int, n: int) -> dict[str, np.ndarray]:
    """Items all of whose leaves tell their number."""
    ids = np.arange(first, first + n, dtype=np.int32)
    return {"id": ids, "image": np.repeat((ids % 251).astype(np.uint8)[:, None], 1100, 1), "done": ids % 3 == 0}


THREADS = [("torch", frb.Device()), ("torch-core", frb.Device()), *CARRIERS[:4], ("torch", frb.Memmap())]


@pytest.mark.parametrize(("name", "storage"), THREADS, ids=str)
def test_threads_see_whole_items_and_their_own_states(name: str, storage: Any) -> None:
    """One adds, others draw from states they were handed: fresh ones, and ones long superseded."""
    item = {"id": frb.Unbounded((), "int32"), "image": frb.Unbounded((1100,), "uint8"), "done": frb.Binary()}
    rounds = effort(700, 4000) if name == "torch" and storage == frb.Device() else 150
    with backends.make(name) as backend:
        rb, failed, drawn = backend.rb, [], []
        handed: queue.Queue[Any] = queue.Queue(rounds if name.startswith("torch") else 8)
        state, number = rb.add(rb.init(frb.BufferSpec(item, 16, storage=storage)), number_items(0, 17)), 17

        def look() -> None:
            held: list[Any] = []
            try:
                while (job := handed.get()) is not None:
                    held = [job, *held[:3]]
                    for seed, (older, count) in enumerate(held):
                        sample = rb.sample(older, rb.key(seed), 32)[1]
                        found = {key: backend.numpy(leaf) for key, leaf in sample.items.items()}
                        ids = found["id"]
                        # Item k was added as number k: a handle names that very item in the state it was drawn from.
                        np.testing.assert_array_equal(backend.numpy(sample.indices), ids)
                        assert ((count - 16 <= ids) & (ids < count)).all()
                        for k in (0, 1, 2, 31):
                            for key, leaf in number_items(int(ids[k]), 1).items():
                                np.testing.assert_array_equal(found[key][k], leaf[0])
                        drawn.append(count)
                    if count % 7 == 0:
                        assert backend.numpy(rb.items(job[0])["id"]).max() == job[1] - 1
            except BaseException as error:
                failed.append(error)
                while handed.get() is not None:
                    pass

        readers = [threading.Thread(target=look) for _ in range(2)]
        with switching_often():
            for reader in readers:
                reader.start()
            for step in range(rounds):
                new = 1 + step % 5
                state, number = rb.add(state, number_items(number, new)), number + new
                if step % 3 == 0:
                    handed.put((state, number))
            for _ in readers:
                handed.put(None)
            for reader in readers:
                reader.join()
        assert not failed, failed[0]
        assert len(drawn) >= rounds
