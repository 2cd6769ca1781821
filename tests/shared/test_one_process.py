"""Buffers that processes share: alone, a process sees what it would see of any buffer; handles, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import errno
import json
import os
import pickle
import signal
import subprocess
import tempfile
import threading
import time
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb import _native
from functional_rb.native import descriptor
from functional_rb.native import shared_control as control
from functional_rb.shared import files
from functional_rb.shared.buffer import SharedBuffer
from tests.support import backends
from tests.support.backends import Backend
from tests.support.children import program
from tests.support.histories import PRIORITIES, histories

ROOT = Path(__file__).parents[2]
ITEM = {
    "id": frb.Unbounded((), "int32"),
    "image": frb.Unbounded((1100,), "uint8"),
    "half": frb.Unbounded((600,), "bfloat16"),
    "done": frb.Binary(),
    "small": frb.Unbounded((3,), "float16"),
}
NAMES = frb.BufferSpec(ITEM, 1).plan.names
SAMPLERS = [frb.Uniform(), frb.Prioritized(), frb.Prioritized(alpha=1.0, new_priority="ever")]


def spec_at(path: Any, **fields: Any) -> frb.BufferSpec:
    """A small shared buffer."""
    path = None if path is None else str(path)
    return frb.BufferSpec(**{"item": ITEM, "capacity": 6, "storage": frb.Memmap(path, shared=True), **fields})


def batch_of(first: int, count: int) -> dict[str, np.ndarray]:
    """Items that differ from each other in all leaves."""
    import ml_dtypes

    ids = np.arange(first, first + count, dtype=np.int32)
    return {
        "id": ids,
        "image": np.broadcast_to((ids % 251)[:, None], (count, 1100)).astype(np.uint8),
        "half": np.broadcast_to((ids % 17)[:, None], (count, 600)).astype(ml_dtypes.bfloat16),
        "done": ids % 2 == 1,
        "small": np.broadcast_to((ids % 7)[:, None], (count, 3)).astype(np.float16),
    }


def same(backend: Backend, one: Any, other: Any) -> None:
    """Bit for bit."""
    one, other = backend.numpy(one), backend.numpy(other)
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert one.tobytes() == other.tobytes()


class Both:
    """The same history on a shared buffer and on one in memory, which must not be told apart.

    The shared one is used by several handles, whose specs have their leaves in different orders.
    """

    def __init__(self, rng: np.random.Generator, backend: Backend, path: str, fixed: bool) -> None:
        self.rng, self.backend, self.fixed, self.made = rng, backend, fixed, 0
        sampler = SAMPLERS[1 if fixed else int(rng.integers(len(SAMPLERS)))]
        self.prioritized = isinstance(sampler, frb.Prioritized)
        capacity = 20 if fixed else int(rng.integers(1, 40))
        spec = frb.BufferSpec(ITEM, capacity, sampler)
        orders = [rng.permutation(list(ITEM)).tolist(), list(ITEM), list(ITEM)[::-1]]
        items = [{name: ITEM[name] for name in order} for order in orders]
        specs = [spec_at(path, capacity=capacity, sampler=sampler, item=item) for item in items]
        self.handles_of_it = [backend.rb.init(one) for one in specs]
        self.states = [backend.rb.init(spec), self.handles_of_it[0]]

    def do(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        return [getattr(self.backend.rb, name)(state, *args, **kwargs) for state in self.states]

    def turn(self) -> None:
        """Go on by another handle."""
        self.states[1] = self.handles_of_it[int(self.rng.integers(3))]

    def step(self) -> None:
        self.turn()
        getattr(self, ["add", "add", "sample", "update"][int(self.rng.integers(4))])()
        for one, other in zip(*(self.do("counts")), strict=True):
            assert int(one) == int(other)
        for name in ("size", "can_sample"):
            one, other = self.do(name)
            assert one.dtype == other.dtype
            assert one.shape == other.shape == ()
            assert int(one) == int(other), name

    def some(self, *counts: int) -> int:
        return counts[0] if self.fixed else counts[int(self.rng.integers(len(counts)))]

    def add(self) -> None:
        count = self.some(7, 0, 1, 3, 20, 90)
        batch, arguments = self.backend.tree(batch_of(self.made, count)), {}
        self.made += count
        if self.fixed or self.rng.random() < 0.5:
            arguments["mask"] = self.backend.array(self.rng.random(count) < 0.7)
        if self.fixed or (self.prioritized and self.rng.random() < 0.5):
            arguments["priorities"] = self.backend.array(self.rng.choice(np.array(PRIORITIES, np.float32), count))
        before = self.states[1]
        self.states = self.do("add", batch, **arguments)
        assert self.states[1] is before

    def sample(self) -> None:
        key, count = self.backend.rb.key(int(self.rng.integers(2**32))), self.some(5, 1, 64)
        beta = 0.7 if self.prioritized and self.rng.random() < 0.5 else None
        if not bool(self.do("can_sample")[0]):
            for state in self.states:
                with pytest.raises(ValueError, match=r"empty|none of"):
                    self.backend.rb.sample(state, key, count, beta)
            return
        (_, one), (_, other) = self.do("sample", key, count, beta)
        for name in NAMES:
            same(self.backend, one.items[name], other.items[name])
        for name in ("indices", "weights", "probabilities"):
            same(self.backend, getattr(one, name), getattr(other, name))

    def handles(self, count: int) -> np.ndarray:
        around = self.made - self.rng.integers(-2, 60, count)
        return np.where(self.rng.random(count) < 0.1, -1, around).clip(-1).astype(np.int32)

    def update(self) -> None:
        count = self.some(6, 0, 1, 50)
        handles, arguments = self.backend.array(self.handles(count)), {}
        if self.fixed or (self.prioritized and self.rng.random() < 0.7):
            arguments["priorities"] = self.backend.array(self.rng.choice(np.array(PRIORITIES, np.float32), count))
        if self.fixed or self.rng.random() < 0.5:
            batch = batch_of(1000 + self.made, count)
            arguments["items"] = self.backend.tree({name: batch[name] for name in ("half", "small", "image")})
        self.states = self.do("update", handles, **arguments)

    def look(self) -> None:
        handles = self.backend.array(self.handles(40))
        self.states[1] = self.handles_of_it[1]  # whose own order is that of the other: else rows lie otherwise
        one, other = self.do("get", handles)
        copies = self.do("items")
        for name in NAMES:
            same(self.backend, one[name], other[name])
            same(self.backend, copies[0][name], copies[1][name])
        same(self.backend, *self.do("is_live", handles))
        for name in ("counters", "rows"):
            same(self.backend, getattr(self.states[0], name), getattr(self.states[1], name))
        if self.prioritized:
            same(self.backend, self.states[0].tree, self.states[1].tree)


@histories(40)
def test_alone_it_is_as_any_buffer(rng: np.random.Generator) -> None:
    with backends.make("torch") as backend:
        run(rng, backend, fixed=False)


@histories(3)
def test_alone_it_is_as_any_buffer_on_jax(rng: np.random.Generator) -> None:
    with backends.make("jax") as backend:
        run(rng, backend, fixed=True)


def run(rng: np.random.Generator, backend: Backend, fixed: bool) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        if rng.random() < 0.5:  # updates in several pieces
            patch.setattr(files, "JOURNAL_BYTES", 3 * 2400)
            patch.setattr(files, "JOURNAL_SLOTS", 5)
        both = Both(rng, backend, directory, fixed)
        for _ in range(12):
            both.step()
        both.look()


PAIR = {"reward": frb.Unbounded(()), "value": frb.Unbounded(())}
WIDE = {name: frb.Unbounded((1024,), "uint8") for name in ("left", "right")}
NEST = {"b": {"y": frb.Unbounded((2,)), "x": frb.Unbounded((2,))}, **PAIR, **WIDE}


def reversed_(nest: Any) -> Any:
    """The same nest of dicts, their keys the other way round."""
    return {name: reversed_(nest[name]) for name in list(nest)[::-1]} if isinstance(nest, dict) else nest


def nested(first: int, count: int) -> Any:
    """A batch of `NEST`, other values in each leaf."""
    leaf = np.arange(first, first + count, dtype=np.float32)
    pairs = {name: np.stack([leaf, leaf], 1) + add for name, add in (("y", 10), ("x", 20))}
    wide = {
        name: np.repeat((leaf + add).astype(np.uint8)[:, None], 1024, 1) for name, add in (("left", 1), ("right", 2))
    }
    return {"b": pairs, "reward": leaf + 30, "value": leaf + 40, **wide}


def same_nests(backend: Backend, one: Any, other: Any) -> None:
    for name, leaf in other.items():
        if isinstance(leaf, dict):
            same_nests(backend, one[name], leaf)
        else:
            np.testing.assert_array_equal(backend.numpy(one[name]), leaf)


def test_leaves_are_found_by_their_paths_in_whatever_order(library: Backend, tmp_path: Path) -> None:
    rb, there = library.rb, tmp_path / "buffer"
    made = rb.init(spec_at(there, item=NEST))
    other = rb.init(spec_at(there, item=reversed_(NEST)))
    expected = nested(0, 6)
    rb.add(made, library.tree(nested(0, 2)))
    rb.add(other, library.tree(reversed_(nested(2, 4))))
    sent = pickle.loads(pickle.dumps(other))
    for state in (made, other, sent, made.detached(), other.detached(), rb.from_dlpack(other)):
        same_nests(library, rb.items(state), expected)
        same_nests(library, rb.get(state, library.array(np.arange(6, dtype=np.int32))), expected)
        _, sample = rb.sample(state, rb.key(1), 4)
        chosen = library.numpy(sample.indices)
        same_nests(library, sample.items, {k: v[chosen] for k, v in expected.items() if k != "b"})
    new = library.tree({"value": np.float32([7]), "left": nested(90, 1)["left"]})
    rb.update(other, library.array(np.array([3], np.int32)), items=new)
    expected["value"][3], expected["left"][3] = 7, 91
    same_nests(library, rb.items(made), expected)
    assert list(rb.items(other)) == list(reversed_(NEST))


def test_a_checkpoint_fills_a_buffer_whose_leaves_lie_otherwise(library: Backend, tmp_path: Path) -> None:
    rb, storage = library.rb, frb.Memmap(str(tmp_path / "buffer"), shared=True)
    made = rb.init(spec_at(tmp_path / "buffer", item=NEST))
    state = rb.add(rb.init(frb.BufferSpec(reversed_(NEST), 6)), library.tree(reversed_(nested(0, 5))))
    frb.save(state, tmp_path / "saved")
    loaded = frb.load(tmp_path / "saved", library.library, storage=storage)
    for one in (made, loaded):
        same_nests(library, rb.get(one, library.array(np.arange(5, dtype=np.int32))), nested(0, 5))
    frb.save(loaded, tmp_path / "saved again")
    again = frb.load(tmp_path / "saved again", library.library, storage=frb.Device())
    same_nests(library, rb.get(again, library.array(np.arange(5, dtype=np.int32))), nested(0, 5))


OTHER_ITEMS = {
    "a dtype of the same size": (PAIR | {"value": frb.Unbounded((), "int32")}, r"spec/item/parts/value/dtype.*int32"),
    "shapes exchanged": (
        {"reward": frb.Unbounded((3, 2)), "value": frb.Unbounded((2, 3))},
        r"spec/item/parts/(reward|value)/shape: expected \[(3, 2|2, 3)\], got \[\]",
    ),
    "other bounds": (
        PAIR | {"value": frb.Bounded(0.0, 1.0, ())},
        r'spec/item/parts/value: expected {"type": "Bounded"',
    ),
    "another name": (
        {"reward": PAIR["reward"], "values": PAIR["value"]},
        r'spec/item/parts: expected \["reward", "values"\]',
    ),
    "a tuple": ((PAIR["reward"], PAIR["value"]), r"spec/item: expected"),
    "one level more": ({"in": PAIR}, r'spec/item/parts: expected \["in"\]'),
}


@pytest.mark.parametrize("name", OTHER_ITEMS)
def test_another_item_is_refused_by_its_path(name: str, tmp_path: Path) -> None:
    item, message = OTHER_ITEMS[name]
    shared = SharedBuffer.open(spec_at(tmp_path, item=PAIR))
    shared.add([np.ones(1, np.float32), np.zeros(1, np.float32)], 1, None, None)
    spec = spec_at(tmp_path, item=item)
    for come in (lambda: SharedBuffer.open(spec), lambda: SharedBuffer.attach(spec, str(tmp_path))):
        with pytest.raises(ValueError, match=f"another spec; {message}"):
            come()


@pytest.fixture
def shared(library: Backend, tmp_path: Path) -> tuple[Backend, Any]:
    """A prioritized one with three items."""
    state = library.rb.init(spec_at(tmp_path / "buffer", sampler=frb.Prioritized(alpha=1.0)))
    return library, library.rb.add(state, library.tree(batch_of(0, 3)))


@pytest.mark.parametrize("library", ["torch"], indirect=True)
def test_a_checkpoint_of_a_shared_buffer_is_one_again(shared: tuple[Backend, Any], tmp_path: Path) -> None:
    library, state = shared
    rb, storage = library.rb, frb.Memmap(str(tmp_path / "again"), shared=True)
    for first in (3, 7):  # around the ring
        rb.add(state, library.tree(batch_of(first, 4)))
    rb.update(state, library.array(np.arange(6, 10, dtype=np.int32)), library.array(np.arange(4, dtype=np.float32)))
    frb.save(state, tmp_path / "saved")
    loaded = frb.load(tmp_path / "saved", library.library, storage=storage)
    assert type(loaded) is type(state)
    other = rb.init(dataclasses.replace(state.spec, storage=storage))  # in any process
    for first in (11, 14):
        for one in (state, loaded):
            rb.add(one, library.tree(batch_of(first, 3)))
        assert np.asarray(rb.items(other)["id"]).tolist() == np.asarray(rb.items(state)["id"]).tolist()
        drawn = [np.asarray(rb.sample(one, rb.key(first), 8)[1].indices).tolist() for one in (state, other)]
        assert drawn[0] == drawn[1]
    for backend in ("torch", "jax"):
        with pytest.raises(FileExistsError, match="has items already"):
            frb.load(tmp_path / "saved", backend, storage=storage)
    assert int(rb.size(other)) == 6
    on_jax = frb.load(tmp_path / "saved", "jax", storage=frb.Memmap(str(tmp_path / "jax"), shared=True))
    assert type(on_jax).__module__ == "jax_backend.engines.shared"
    assert np.asarray(on_jax.counters)[:2].tolist() == [11, 6]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"format": 1}'])
def test_a_damaged_description_is_named(content: bytes, tmp_path: Path) -> None:
    with backends.make("torch") as backend:
        state = backend.init(spec_at(tmp_path))
        (tmp_path / "shared.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"shared\.json"):
            backend.init(state.spec)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with backends.make("torch") as backend:
        state = backend.init(spec_at(tmp_path))
        (tmp_path / "rows.bin").unlink()
        with pytest.raises(ValueError, match=r"rows\.bin: the file is missing"):
            backend.init(state.spec)


def test_nothing_is_said_at_the_interpreters_end(tmp_path: Path) -> None:
    done = subprocess.run(program("lock_at_the_end", tmp_path / "lock"), cwd=ROOT, capture_output=True, check=True)
    assert done.stderr == b""


def test_a_state_is_a_handle(shared: tuple[Backend, Any]) -> None:
    backend, state = shared
    rb = backend.rb
    other = rb.init(state.spec)
    assert copy.deepcopy(state) is state
    sent = pickle.loads(pickle.dumps(state))
    assert type(sent) is type(state)
    for n, one in enumerate((other, sent, rb.init(dataclasses.replace(state.spec, batch_size=2)))):
        assert rb.add(one, backend.tree(batch_of(10 + n, 1))) is one
        assert int(rb.size(state)) == 4 + n
    assert rb.update(sent, backend.array(np.arange(6, dtype=np.int32)), np.zeros(6, np.float32)) is sent
    assert not bool(rb.can_sample(state))
    before = state.rows
    assert rb.add(state, backend.tree(batch_of(20, 1))) is state
    assert (
        int(rb.counts(rb.update(other, backend.array(np.array([0, 1, -1], np.int32)), np.ones(3, np.float32))).stale)
        == 1
    )
    assert int(rb.counts(state).stale) == 1
    assert backend.numpy(before).tobytes() != backend.numpy(state.rows).tobytes()
    assert int(rb.counts(state).lost) == 0


def test_what_is_taken_out_is_a_copy(shared: tuple[Backend, Any]) -> None:
    backend, state = shared
    rb = backend.rb
    items = backend.numpy(rb.items(state)["id"]).tolist()
    for value in (rb.from_dlpack(state), state.detached()):
        assert value.spec.storage == frb.Device()
        auxiliary = rb.add(value, backend.tree(batch_of(7, 1)))
        assert int(rb.size(state)) == 3
        rb.update(state, backend.array(np.array([0], np.int32)), np.array([9.0], np.float32))
        assert float(backend.numpy(auxiliary.tree).reshape(-1)[0]) == 1.0
        rb.update(state, backend.array(np.array([0], np.int32)), np.array([1.0], np.float32))
    assert items == [0, 1, 2, 0, 0, 0]


def test_other_threads_never_come_between(shared: tuple[Backend, Any]) -> None:
    backend, state = shared
    rb, failed = backend.rb, []

    def work(k: int) -> None:
        try:
            for n in range(20):
                rb.add(state, backend.tree(batch_of(100 * k + n, 2)))
                _, sample = rb.sample(state, rb.key(n), 4)
                ids = backend.numpy(sample.items["id"])
                np.testing.assert_array_equal(backend.numpy(sample.items["image"])[:, 7], ids % 251)
        except BaseException as error:  # told to the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert int(state.counters[0]) == 3 + 3 * 20 * 2


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"sampler": frb.Uniform(max_times_sampled=2)}, "one of these"),
        ({"sampler": frb.Prioritized(replacement=False)}, "one of these"),
        ({"sampler": frb.Queue()}, "one of these"),
        ({"writer": frb.Reservoir()}, "RoundRobin"),
        ({"writer": frb.StopWhenFull()}, "RoundRobin"),
        ({"lanes": 2}, "lanes=None"),
        ({"item": {"obs": frb.Unbounded(()), "reward": frb.Unbounded(()), "done": frb.Binary(),
                   "next_obs": frb.Unbounded(())}, "transforms": frb.n_step(2, 0.9)}, "before adding"),
        ({"item": {"obs": frb.Unbounded(()), "next_obs": frb.Unbounded(()), "done": frb.Binary()},
          "compact": frb.Compact()}, "leave it out"),
    ],
)  # fmt: skip
def test_what_cannot_be_shared_is_refused(library: Backend, tmp_path: Path, fields: Any, remedy: str) -> None:
    with pytest.raises(ValueError, match=rf"Memmap\(shared=True\).*{remedy}"):
        library.rb.init(spec_at(tmp_path / "buffer", **fields))
    assert not (tmp_path / "buffer").exists()


def test_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds Python objects"):
        spec_at(tmp_path / "buffer", item={"x": frb.specs.NonTensor()})


def test_compiled_functions_are_refused(shared: tuple[Backend, Any]) -> None:
    backend, state = shared
    rb = backend.rb
    if backend.library == "torch":
        import torch

        with pytest.raises(TypeError, match="written in place anyway"):
            rb.own_(state)
        with pytest.raises(Exception, match=r"torch\.compile cannot trace a buffer that other processes write"):
            torch.compile(lambda key: rb.sample(state, key, 2)[1].indices, backend="eager", fullgraph=True)(rb.key(0))
        return
    import jax

    for traced in (
        lambda key: rb.sample(state, key, 2)[1].indices,
        lambda key: rb.size(rb.add(state, batch_of(0, 1) | {"id": jax.random.bits(key, (1,)).astype("int32")})),
        lambda key: rb.is_live(state, jax.random.bits(key, (1,)).astype("int32")),
    ):
        with pytest.raises(TypeError, match=r"used outside of jax\.jit"):
            jax.jit(traced)(rb.key(0))
    with pytest.raises(TypeError, match="State"):
        jax.jit(rb.size)(state)


def light(tmp_path: Path, **fields: Any) -> SharedBuffer:
    return SharedBuffer.open(spec_at(tmp_path / "buffer", **({"item": (frb.Unbounded((), "int32"),)} | fields)))


def numbers(*values: int) -> list[np.ndarray]:
    return [np.array(values, np.int32)]


def test_a_write_that_fails_is_taken_back_at_once(tmp_path: Path) -> None:
    command = program("write_without_memory", tmp_path / "buffer")
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == "0 [3 0] [6] False\n[7]\n", done.stderr


def test_a_signal_handler_may_not_write_within_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = light(tmp_path)

    def raised(*args: Any) -> None:
        shared.add(numbers(1), 1, None, None)

    with monkeypatch.context() as patch:
        patch.setattr(files.SharedFiles, "reserve", raised)
        with pytest.raises(RuntimeError, match="do not use it in a signal handler"):
            shared.add(numbers(1), 1, None, None)
    shared.add(numbers(2), 1, None, None)
    assert shared.counters()[:2].tolist() == [1, 1]


def test_a_copy_is_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = light(tmp_path)
    shared.add(numbers(1, 2), 2, None, None)
    copied, other, calls = SharedBuffer._copied, SharedBuffer.attach(shared.spec, shared.files.directory), []

    def meanwhile(self: SharedBuffer, counters: Any) -> Any:
        found = copied(self, counters)
        if not calls:
            calls.append(other.add(numbers(3), 1, None, None))
        return found

    monkeypatch.setattr(SharedBuffer, "_copied", meanwhile)
    found = shared.snapshot()
    assert found.counters[:2].tolist() == [3, 3]
    assert found.rows[:, 0].tolist() == [1, 2, 3, 0, 0, 0]


class Words:
    """The words and the rows of a shared buffer of int32, whose sequence number a kernel writes over as it reads.

    For what it tells is to be written there: so a write comes to its end amid each try, at the same step of it.
    """

    def __init__(self, **counters: tuple[int, int]) -> None:
        """Take the cursor and the size by the sequence numbers 0 and 2, which are those modulo 4."""
        self.plan = descriptor.encode(frb.BufferSpec((frb.Unbounded((), "int32"),), 8))
        self.rows, self.words = np.arange(8, dtype=np.int32), np.zeros(control.BYTES // 8, np.int64)
        self.storage = [self.rows]
        self.sequence = self.words[control.SEQUENCE :].view(np.int32)
        first = control.COUNTERS
        self.counters = [self.words[first + k * control.SLOT_WORDS :].view(np.int32) for k in (0, 1)]
        for found, name in zip(self.counters, ("even", "odd"), strict=True):
            found[:2] = counters[name]

    def draw(self, handles: np.ndarray, leaf: np.ndarray) -> tuple[int, float]:
        """Draw the oldest item; the result, and how likely it was."""
        chance, weight = np.empty(1, np.float32), np.empty(1, np.float32)
        given = self.words, self.plan, np.empty(0, np.float32), np.zeros((1, 2), np.int32), 0.0
        found = _native.shared_draw(self.storage, [leaf], *given, handles, weight, chance)
        return found, float(chance[0])

    def fetch(self, handle: int, leaf: np.ndarray) -> tuple[int, bool]:
        """Read an item; the result, and whether it is live."""
        live, given = np.empty(1, np.uint8), (self.words, self.plan, np.array([handle], np.int32))
        return _native.shared_fetch(self.storage, [leaf], *given, live), bool(live[0])


def test_a_sample_is_of_one_moment() -> None:
    """What a try finds is thrown away if there was a write before it had chosen items, or before it had read them."""
    one, handles = np.zeros(1, np.int32), np.zeros(1, np.int32)
    words = Words(even=(7, 1), odd=(8, 2))  # the oldest item is the seventh either way
    assert words.draw(handles, one) == (control.DRAWN, 1.0)
    assert (handles[0], one[0], words.sequence[0]) == (6, 6, 0)
    assert words.draw(handles, words.sequence[:1]) == (control.DRAWN, 0.5)
    assert (handles[0], words.sequence[0]) == (6, 6)
    # Where the slots that it has chosen are none any more, nothing is read: that would change the counters.
    words = Words(even=(7, 1), odd=(8, 2))
    words.rows[6] = 1
    assert words.draw(words.sequence[:1], words.counters[1][1:2]) == (control.DRAWN, 0.5)
    assert words.sequence[0] == 6


def test_what_is_read_by_handles_is_of_one_moment() -> None:
    one = np.zeros(1, np.int32)
    words = Words(even=(7, 1), odd=(15, 1))
    assert words.fetch(6, one) == (control.DRAWN, True)
    assert words.fetch(6, words.sequence[:1]) == (control.DRAWN, False)
    assert words.fetch(14, one) == (control.DRAWN, True)


def test_the_counters_that_are_read_are_of_one_moment() -> None:
    words = Words(even=(6, 0), odd=(6, 0))
    words.counters[0][2], words.counters[1][2] = 8, 9
    assert _native.shared_read_counters(words.words, words.sequence[:3]) == 6
    assert words.sequence[:3].tolist() == [6, 0, 9]


def test_who_meets_a_write_at_each_try_is_told() -> None:
    one = np.zeros(1, np.int32)
    words = Words(even=(3, 1), odd=(5, 1))
    words.rows[[2, 4]] = 2, 4  # of what is written at an even number comes an odd one, and the other way round
    assert words.draw(one, words.sequence[:1])[0] == control.TORN
    assert words.fetch(2, words.sequence[:1])[0] == control.TORN
    words = Words(even=(2, 0), odd=(4, 0))
    assert _native.shared_read_counters(words.words, words.sequence[:2]) % 2


@pytest.mark.parametrize("begun", [1, 2**40 + 1])
def test_amid_a_write_nothing_is_read(begun: int) -> None:
    one, words = np.full(1, -5, np.int32), Words(even=(7, 1), odd=(8, 2))
    words.words[control.SEQUENCE] = begun
    assert words.draw(one, one)[0] == words.fetch(6, one)[0] == control.TORN
    assert _native.shared_can_draw(words.words, words.plan, np.empty(0, np.float32), 1) == control.TORN
    assert _native.shared_read_counters(words.words, one) % 2
    assert one[0] == -5


def test_room_is_made_in_steps_and_else_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = light(tmp_path, capacity=100)
    monkeypatch.setattr(files, "STEP_BYTES", 40)
    asked: list[tuple[int, int]] = []
    free = [4 * 23]

    def allocate(descriptor: int, start: int, size: int) -> None:
        asked.append((start // 4, size // 4))
        if start + size > free[0]:
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(files, "allocate", allocate)
    for _ in range(22):
        shared.add(numbers(1), 1, None, None)
    assert asked == [(0, 1), (1, 2), (3, 4), (7, 8), (15, 10), (15, 1), (16, 10), (16, 1), (17, 10), (17, 1), (18, 10),
                     (18, 1), (19, 10), (19, 1), (20, 10), (20, 1), (21, 10), (21, 1)]  # fmt: skip
    shared.add(numbers(1), 1, None, None)
    with pytest.raises(frb.errors.StorageFullError, match=r"rows\.bin"):
        shared.add(numbers(1), 1, None, None)
    free[0] = 4 * 1000
    for _ in range(100):  # once around nothing more is asked for
        shared.add(numbers(1), 1, None, None)
    assert asked[-1][0] + asked[-1][1] == 100
    assert shared.counters()[:2].tolist() == [123, 100]


def test_a_directory_is_refused_that_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    light(tmp_path)
    description = json.loads((path / "shared.json").read_text())
    assert (description["format"], description["version"]) == ("functional_rb.shared", 1)
    for fields in ({"capacity": 7}, {"sampler": frb.Prioritized()}, {"item": (frb.Unbounded(()),)}):
        with pytest.raises(ValueError, match="another spec"):
            light(tmp_path, **fields)
    for change, message in (
        ({"version": 2}, "version 2"),
        ({"boot": "x"}, "started last"),
        ({"format": "y"}, "format"),
    ):
        (path / "shared.json").write_text(json.dumps(description | change))
        with pytest.raises(ValueError, match=message):
            light(tmp_path)
    (path / "shared.json").write_text(json.dumps(description))
    os.truncate(path / "rows.bin", 4)
    with pytest.raises(ValueError, match=r"rows\.bin.*expected 24 bytes, got 4"):
        light(tmp_path)
    (path / "shared.json").unlink()
    with pytest.raises(FileExistsError, match="no shared buffer's file"):
        light(tmp_path)


@pytest.mark.parametrize("name", ["boot_id", "lock", "making", "shared.json"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
def test_an_error_at_any_file_of_the_directory_is_typed_and_passes(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(original: Any) -> Any:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if os.path.basename(path) == name:
                raise OSError(number, os.strerror(number), path)
            return original(path, *args, **kwargs)

        return call

    spec = spec_at(tmp_path / "buffer")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing(os.open))
        patch.setattr("builtins.open", refusing(open))
        with pytest.raises(OSError, match=name) as caught:
            SharedBuffer.open(spec)
    assert isinstance(caught.value, frb.errors.StorageFullError) == (number == errno.ENOSPC)
    assert ("ulimit -n" in str(caught.value)) == (number == errno.EMFILE)
    if number == errno.ENOSPC and name != "shared.json":
        assert list((tmp_path / "buffer").iterdir()) == []
    assert SharedBuffer.open(spec).counters()[:2].tolist() == [0, 0]


def test_who_comes_when_it_is_gone_is_told(tmp_path: Path) -> None:
    shared = light(tmp_path)
    sent = pickle.dumps(shared)
    shared.add(numbers(5), 1, None, None)
    files.remove(shared.files.directory)
    assert not (tmp_path / "buffer").exists()
    files.remove(shared.files.directory)
    with pytest.raises(FileNotFoundError, match="gone"):
        pickle.loads(sent)
    assert shared.get(np.zeros(1, np.int32))[0].tolist() == [5]  # who has it open goes on
    shared.add(numbers(6), 1, None, None)
    assert shared.counters()[1] == 2


def test_files_of_others_are_left_where_a_buffer_is_removed(tmp_path: Path) -> None:
    directory = Path(light(tmp_path).files.directory)
    others = {"notes.bin", f"{files.WIDE}notes"}
    for name in others:
        (directory / name).touch()
    files.remove(str(directory))
    assert {path.name for path in directory.iterdir()} == others


def test_who_waited_for_a_lock_that_was_removed_begins_anew(tmp_path: Path) -> None:
    shared, found = light(tmp_path), []
    path = shared.files.directory
    comer = threading.Thread(target=lambda: found.append(light(tmp_path)))

    def remove_meanwhile() -> None:
        comer.start()
        time.sleep(0.1)  # it waits by now; else there is nothing to see, but nothing wrong either
        files._remove_files(path)

    shared.files.lock.hold(remove_meanwhile, lambda: None)
    comer.join()
    assert found[0].files.lock.is_at(f"{path}/lock")
    found[0].add(numbers(1), 1, None, None)
    assert light(tmp_path).counters()[1] == 1


def test_files_are_removed_by_whoever_made_them(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = program("shared_files_of_a_process", tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, cwd=ROOT)
    directories = [Path(line) for line in dict.fromkeys(done.stdout.split())]
    assert all(directory.is_relative_to(tmp_path) for directory in directories)
    assert [directory.exists() for directory in directories] == [False, True, True, False]


def test_processes_of_both_backends_share(tmp_path: Path) -> None:
    import jax_backend
    import torch_backend as rb

    spec = spec_at(tmp_path / "b", item={"id": frb.Unbounded((), "int32"), "x": frb.Unbounded((3,))},
                   sampler=frb.Prioritized(alpha=1.0), capacity=8)  # fmt: skip
    state = rb.add(rb.init(spec), {"id": np.arange(3, dtype=np.int32), "x": np.zeros((3, 3), np.float32)})
    sent = pickle.dumps(jax_backend.init(spec))
    done = subprocess.run(program("jax_beside_torch"), input=sent, capture_output=True, check=False, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert int(rb.counts(state).lost) == 4
    assert int(rb.size(state)) == 4  # 5 items, of which the oldest was to be overwritten
    assert int(jax_backend.counts(jax_backend.init(spec)).lost) == 4
    again = pickle.loads(bytes(ForkingPickler.dumps(state)))  # as torch.multiprocessing sends it
    rb.add(again, {"id": np.int32(9), "x": np.zeros(3, np.float32)})
    assert rb.get(state, np.array([1, 2, 3, 4, 5], np.int32))["id"].tolist() == [1, 2, 0, 1, 9]
    assert set(state.tree.reshape(-1)[1:6].tolist()) <= {1.0, 2.0}


def test_without_its_kernels_jax_draws_the_same(tmp_path: Path) -> None:
    drawn = []
    for name in ("jax", "jax-core"):
        with backends.make(name) as backend:
            state = backend.rb.init(spec_at(tmp_path / name, item=(frb.Unbounded(()),)))
            state = backend.rb.add(state, (np.arange(5, dtype=np.float32),))
            drawn.append(backend.rb.sample(state, backend.rb.key(3), 7)[1].indices.tolist())
    assert drawn[0] == drawn[1]


def test_items_are_validated(shared: tuple[Backend, Any], tmp_path: Path) -> None:
    backend, _ = shared
    state = backend.rb.init(spec_at(tmp_path / "v", item={"x": frb.Bounded(0.0, 1.0)}))
    with pytest.raises(ValueError, match="x"):
        backend.rb.add(state, {"x": backend.array(np.array([0.5, 2.0], np.float32))}, validate=True)
    assert int(backend.rb.size(state)) == 0
    backend.rb.add(state, {"x": backend.array(np.array([0.5], np.float32))}, validate=True)
    assert (int(backend.rb.size(state)), int(backend.rb.counts(state).invalid)) == (1, 0)


# --- damaged files ---------------------------------------------------------------------------------------------------

WORDS = {
    "sequence": control.SEQUENCE,
    "reserved": control.RESERVED,
    "kind": control.KIND,
    "first": control.FIRST,
    "count": control.COUNT,
    "has rows": control.HAS_ROWS,
    **{f"counters {k}": control.COUNTERS + k for k in range(2 * control.SLOT_WORDS)},
}
NONSENSE = [-1, -(2**63), 2**63 - 1, 2**31, 2**40 + 7, -(2**33), 6, 7, 2**20, 2**31 - 1]


def died_in(shared: SharedBuffer, kind: int) -> None:
    """Leave what a process does that dies in a write of two items, for which it had taken room."""
    words = shared.files.control
    words[control.SEQUENCE] += 1
    words[control.RESERVED] = 6  # an add has room before it begins
    words[control.KIND], words[control.COUNT], words[control.FIRST], words[control.HAS_ROWS] = kind, 2, 4, 1


def repaired_or_refused(shared: SharedBuffer, name: str) -> bool:
    """Whether a repair refuses, naming the file; else the buffer is sound and is used."""
    try:
        shared.exclusively(lambda: None)
    except ValueError as error:
        assert os.path.join(shared.files.directory, name) in str(error)  # noqa: PT017 - it may be repaired
        assert "remove the directory" in str(error)  # noqa: PT017
        before = shared.files.control.copy(), shared.files.rows.copy()
        with pytest.raises(ValueError, match=name):
            shared.add(numbers(1), 1, None, None)
        assert np.array_equal(before[0], shared.files.control)
        assert np.array_equal(before[1], shared.files.rows)
        return True
    assert 0 <= int(shared.counters()[1]) <= 6
    shared.get(np.arange(-2, 9, dtype=np.int32))
    shared.update(np.arange(-2, 9, dtype=np.int32), np.ones(11, np.float32), {})
    return False


@pytest.mark.parametrize("kind", [control.ADD, control.UPDATE, control.CLEAR])
def test_what_control_says_of_a_dead_writer_is_not_believed(kind: int, tmp_path: Path) -> None:
    """Any word of it may be anything: it is repaired, or refused by name; no memory is read or written elsewhere."""
    shared = light(tmp_path, sampler=frb.Prioritized())
    shared.add(numbers(1, 2, 3, 4), 4, None, None)
    sound = shared.files.control.copy()
    refused = set()
    for name, place in WORDS.items():
        for value in NONSENSE:
            shared.files.control[:] = sound
            died_in(shared, kind)
            shared.files.control[place] = value
            if repaired_or_refused(shared, "control.bin"):
                refused.add(name)
    assert {"sequence", "reserved", "kind", "counters 8", "counters 10"} <= refused
    assert not {"counters 0", "counters 15"} & refused  # what is not in force, or not used
    assert ("first" in refused) == (kind == control.ADD)
    assert ("count" in refused) == (kind != control.CLEAR)
    assert ("has rows" in refused) == (kind == control.UPDATE)


def test_what_the_journal_says_is_not_believed(tmp_path: Path) -> None:
    shared = light(tmp_path, sampler=frb.Prioritized())
    shared.add(numbers(1, 2, 3, 4), 4, None, None)
    places, values = shared.files.journal[0].view(np.int32), shared.files.journal[1].view(np.float32)
    sound = shared.files.control.copy()
    for slots, priorities, good in [
        ([0, 1], [1, 2], True),
        ([-1, 1], [1, 2], False),
        ([0, 6], [1, 2], False),
        ([2**31 - 1, 0], [1, 2], False),
        ([0, -(2**31)], [1, 2], False),
        *(([0, 1], [1, bad], False) for bad in (np.nan, np.inf, -1, 3e38)),
    ]:
        shared.files.control[:] = sound
        places[:2], values[:2] = slots, priorities
        died_in(shared, control.UPDATE)
        assert repaired_or_refused(shared, "journal.bin") != good


def test_nothing_is_repaired_where_no_room_was_taken(tmp_path: Path) -> None:
    """Writing to a hole of a mapped file kills the process where the disk is full, and in a tmpfs reading it does."""
    shared = light(tmp_path, sampler=frb.Prioritized())
    shared.add(numbers(1, 2, 3, 4), 4, None, None)
    shared.files.journal[0].view(np.int32)[:2] = 0, 4
    sound = shared.files.control.copy()
    for kind, reserved, name in (
        (control.ADD, 5, "control"),
        (control.ADD, 3, "control"),
        (control.UPDATE, 4, "journal"),
        (control.CLEAR, 3, "control"),
    ):
        shared.files.control[:] = sound
        died_in(shared, kind)
        shared.files.control[control.RESERVED] = reserved
        assert repaired_or_refused(shared, f"{name}.bin")


def test_room_that_is_only_said_to_be_reserved_is_reserved(tmp_path: Path) -> None:
    """A file that was copied, or changed, may have holes there: writing to these would need room again."""
    spec = {"item": (frb.Unbounded((4096,), "uint8"),), "capacity": 100}
    shared = light(tmp_path, **spec)
    rows = Path(shared.files.directory, "wide_0.bin")
    assert not rows.stat().st_blocks
    shared.files.control[control.RESERVED] = 100
    light(tmp_path, **spec)
    assert rows.stat().st_blocks * 512 >= 100 * 4096


def test_a_damaged_buffer_is_not_opened(tmp_path: Path) -> None:
    shared = light(tmp_path)
    shared.add(numbers(1, 2), 2, None, None)
    shared.files.control[control.COUNTERS + control.SLOT_WORDS] = -1
    with pytest.raises(ValueError, match=r"control\.bin: its cursor, size.*remove the directory"):
        light(tmp_path)


def test_who_dies_as_he_empties_a_shared_buffer_has_emptied_it(tmp_path: Any, monkeypatch: Any) -> None:
    shared = SharedBuffer.open(spec_at(tmp_path / "shared", sampler=frb.Prioritized()))
    shared.add([batch_of(1, 2)[name] for name in NAMES], 2, None, None)

    def dies(*args: Any) -> None:
        shared.files.tree[0, 0] = 0
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("functional_rb._native.shared_commit", dies)
        with pytest.raises(KeyboardInterrupt):
            shared.clear()
    # Whoever comes next finds a write under way, and ends it.
    assert shared.files.control[control.SEQUENCE] % 2 == 0
    assert shared.counters()[:2].tolist() == [2, 0]
    assert not shared.files.tree.any()
    assert shared.lost().tolist() == [0]
