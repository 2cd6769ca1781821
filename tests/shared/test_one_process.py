"""Buffers that processes share: alone, a process sees what it would see of any buffer; handles, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import signal
import subprocess
import tempfile
import threading
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from tests.shared.buffers import ITEM, NAMES, batch_of, small_journal, spec_at
from tests.support import backends
from tests.support.backends import Backend
from tests.support.children import program
from tests.support.histories import PRIORITIES, histories

ROOT = Path(__file__).parents[2]


SAMPLERS = [frb.Uniform(), frb.Prioritized(), frb.Prioritized(alpha=1.0, new_priority="ever")]


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
            small_journal(patch)
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
        lambda key: rb.size(rb.add(state, batch_of(0, 1))),
        lambda key: rb.size(rb.clear(state)),
    ):
        with pytest.raises(TypeError, match=r"used outside of jax\.jit"):
            jax.jit(traced)(rb.key(0))
    with pytest.raises(TypeError, match="State"):
        jax.jit(rb.size)(state)


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
