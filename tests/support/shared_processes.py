"""What tests/shared/test_kills.py runs in a process of its own, which forks and kills: NumPy, the core and its kernels.

Items carry a checksum of themselves in every leaf, so that a torn one is seen wherever it is torn.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import itertools
import json
import mmap
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import functional_rb as frb
from functional_rb.base.errors import StorageFullError
from functional_rb.cpu_kernels import calls
from functional_rb.cpu_kernels import shared as native
from functional_rb.cpu_kernels import shared_control as control
from functional_rb.cpu_kernels.addresses import of_numpy, storage_caller
from functional_rb.shared import files
from functional_rb.shared.buffer import SharedBuffer
from functional_rb.storage import mapped
from functional_rb.structures import sum_tree
from tests.support.effort import effort

ITEM = {
    "writer": frb.Unbounded((), "int32"),
    "serial": frb.Unbounded((), "int32"),
    "version": frb.Unbounded((), "int32"),
    "numbers": frb.Unbounded((9,), "float32"),
    "image": frb.Unbounded((1024,), "uint8"),
}
NAMES = frb.BufferSpec(ITEM, 1).plan.names
PRIORITIZED = frb.Prioritized(alpha=1.0)
LIBC = ctypes.CDLL(None)
Rng = np.random.Generator
Leaves = dict[str, np.ndarray]


def spec_at(path: str | None, capacity: int, sampler: Any = PRIORITIZED, **storage: Any) -> frb.BufferSpec:
    return frb.BufferSpec(ITEM, capacity, sampler, storage=frb.Memmap(path, shared=True, **storage))


def make(writer: Any, serial: Any, version: Any) -> list[np.ndarray]:
    """Items [B] by what names them."""
    named = [np.asarray(x, np.int32) for x in np.broadcast_arrays(writer, serial, version)]
    mixed = named[0].astype(np.int64) * 1000003 + named[1] * 7919 + named[2] * 104729
    numbers = ((mixed[:, None] * np.arange(1, 10)) >> 3 & 0xFFFF).astype(np.float32)
    first, step = (mixed >> 5).astype(np.uint8), (mixed >> 13).astype(np.uint8) | 1
    image = first[:, None] + step[:, None] * np.arange(1024, dtype=np.uint8)
    leaves = dict(zip(ITEM, [*named, numbers, image], strict=True))
    return [leaves[name] for name in NAMES]


def check_items(leaves: list[np.ndarray]) -> Leaves:
    """That every item is one that somebody made; the leaves by name."""
    found = dict(zip(NAMES, leaves, strict=True))
    for leaf, expected in zip(leaves, make(found["writer"], found["serial"], found["version"]), strict=True):
        np.testing.assert_array_equal(leaf, expected)
    return found


def rebuilt(tree: np.ndarray, capacity: int) -> np.ndarray:
    """The tree that has the same leaves."""
    levels = sum_tree.geometry(capacity).levels
    made = np.zeros_like(tree)
    made[: levels[0].groups] = tree[: levels[0].groups]
    for below, level in itertools.pairwise(levels):
        sums = [made[start : start + below.groups] for start in (below.sums, below.smallest, below.largest)]
        positive = np.where(sums[1] > 0, sums[1], np.inf).min(1)
        parts = [sum_tree.add_up(sums[0]), np.where(np.isinf(positive), 0, positive), sums[2].max(1)]
        for start, part in zip((level.sums, level.smallest, level.largest), parts, strict=True):
            made[start : start + level.groups].reshape(-1)[: level.nodes] = part
    return made


class Model:
    """What a buffer of given capacity must hold; its handles do not begin again here."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.cursor, self.lost = capacity, 0, 0
        self.items: dict[int, list[float]] = {}

    def add(self, writer: int, serials: range, priorities: np.ndarray) -> None:
        for serial, priority in zip(serials, priorities.tolist(), strict=True):
            self.items[self.cursor] = [writer, serial, 0, priority]
            self.items.pop(self.cursor - self.capacity, None)
            self.cursor += 1

    def cut_short(self, n: int) -> None:
        """An add of n items has begun, and never ended."""
        n = min(n, self.capacity)
        self.lost += n
        oldest = self.cursor - (self.capacity - n)
        self.items = {handle: item for handle, item in self.items.items() if handle >= oldest}

    def update(self, handles: np.ndarray, priorities: np.ndarray | None, version: int | None) -> None:
        for i, handle in enumerate(handles.tolist()):
            item = self.items.get(handle)
            if item is not None and priorities is not None:
                item[3] = float(priorities[i])
            if item is not None and version is not None:
                item[2] = version

    def check(self, shared: SharedBuffer, rng: Rng) -> None:
        counters = shared.counters()
        assert counters[:2].tolist() == [self.cursor, len(self.items)], (counters, self.cursor, len(self.items))
        assert shared.lost().tolist() == [self.lost], (shared.lost(), self.lost)
        handles = np.array(list(self.items), np.int32)
        expected = np.array([self.items[int(handle)][:3] for handle in handles], np.int32).reshape(-1, 3).T
        for leaf, want in zip(shared.get(handles), make(*expected), strict=True):
            np.testing.assert_array_equal(leaf, want)
        gone = np.array([h for h in range(max(0, self.cursor - 3 * self.capacity), self.cursor) if h not in self.items])
        assert not shared.is_live(gone.astype(np.int32)).any()
        copied = shared.snapshot()
        dead = np.ones(self.capacity, bool)
        dead[handles % self.capacity] = False
        assert not copied.rows[dead].any()
        assert not any(array[dead].any() for array in copied.wide)
        if copied.tree.size:
            values = np.zeros(self.capacity, np.float32)
            values[handles % self.capacity] = [self.items[int(handle)][3] for handle in handles]
            np.testing.assert_array_equal(copied.tree.reshape(-1)[: self.capacity], values)
            np.testing.assert_array_equal(copied.tree, rebuilt(copied.tree, self.capacity))
        if any(item[3] for item in self.items.values()):
            leaves, drawn = shared.sample(numbers(rng, shared, 64), 0.4)
            check_items(leaves)
            assert set(drawn.handles.tolist()) <= set(self.items)


def numbers(rng: Rng, shared: SharedBuffer, batch: int) -> np.ndarray:
    """Draws of a batch."""
    return rng.integers(0, 2**31, shared.spec.draw_shape(batch), dtype=np.int32)


def forked(work: Callable[[], None], survives: bool = False) -> int:
    """Work in a child, which dies with its parent unless it survives; the process."""
    sys.stdout.flush()
    process = os.fork()
    if not process:
        if not survives:
            LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return process


def ended(process: int, killed: bool = False) -> None:
    """Wait for a child, which must have been killed, or have ended well."""
    status = os.waitpid(process, 0)[1]
    assert status == (signal.SIGKILL if killed else 0), status


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def dies_after(module: Any, name: str, after: bool) -> None:
    """In this process, a step of the protocol is the last, or is not reached."""
    step = getattr(module, name)

    def last(*args: Any) -> None:
        if after:
            step(*args)
        die()

    setattr(module, name, last)


def dies_within(shared: SharedBuffer, module: Any, name: str, slots: np.ndarray, rows: bool, seed: int) -> None:
    """A step is left half done: of all that it may write, some has been written, in part."""
    rng, mapped = np.random.default_rng(seed), shared.files

    def half(*args: Any) -> None:
        for slot in slots[rng.random(slots.size) < 0.7].tolist():
            for array in (mapped.rows, *mapped.wide) if rows else ():
                own = array[slot].view(np.uint8)
                some = rng.random(own.size) < rng.random()
                own[some] = rng.integers(0, 256, int(some.sum()))
            nodes = slot
            for level in sum_tree.geometry(shared.spec.capacity).levels if mapped.tree.size else ():
                for start in {level.sums, level.smallest, level.largest}:
                    if rng.random() < 0.7:
                        mapped.tree[start + nodes // 16, nodes % 16] = rng.random() * 100
                nodes //= 16
        first = int(mapped.control[control.SEQUENCE]) + 1 >> 1 & 1
        vector = mapped.control[control.COUNTERS + control.SLOT_WORDS * first :][: control.SLOT_WORDS]
        vector.view(np.int32)[rng.random(control.SLOT) < 0.5] = rng.integers(0, 2**31 - 1)
        die()

    setattr(module, name, half)


ADD_STEPS = [
    (files.SharedFiles, "reserve"),
    (native, "note_add"),
    (native, "begin"),
    (calls, "add"),
    (native, "commit"),
]
UPDATE_STEPS = [(native, "note_update"), (native, "begin"), (calls, "update"), (native, "commit")]


class Deaths:
    """A buffer and its model; children die at each step of the protocol in turn."""

    def __init__(self, path: str, sampler: Any, capacity: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.shared = SharedBuffer.open(spec_at(path, capacity, sampler))
        self.model, self.serial, self.capacity = Model(capacity), 0, capacity
        self.prioritized = bool(self.shared.files.tree.size)
        self.slowest = 0.0

    def add(self, count: int) -> tuple[range, np.ndarray]:
        serials = range(self.serial, self.serial + count)
        self.serial += count
        return serials, self.rng.choice(np.array([0, 1, 2, 5, 0.25], np.float32), count)

    def write(self, serials: range, priorities: np.ndarray) -> None:
        leaves = make(0, np.arange(serials.start, serials.stop), 0)
        self.shared.add(leaves, len(serials), None, priorities if self.prioritized else None)

    def live_add(self, count: int) -> None:
        batch = self.add(count)
        self.write(*batch)
        self.model.add(0, *batch)

    def steps(self, kinds: list[tuple[Any, str]], torn: str) -> Iterator[tuple[str, bool, Callable[..., None]]]:
        """Name, whether the write has begun (and not ended), and what makes it the last."""
        for k, (module, name) in enumerate(kinds):
            for after in (False, True):
                begun = (kinds[k][1] == "begin" and after) or kinds[k][1] in (torn, "commit")
                ended = name == "commit" and after
                yield f"{name} {after}", begun and not ended, lambda *_, m=module, n=name, a=after: dies_after(m, n, a)
        for seed in range(3):
            yield (
                f"torn {seed}",
                True,
                lambda slots, rows, s=seed: dies_within(self.shared, calls, torn, slots, rows, s),
            )

    def follow(self, seed: int, slots: np.ndarray, rows: bool) -> None:
        """Others die while they repair, then the survivors go on: now a reader comes first, now a writer."""
        for turn in range(seed % 3):

            def repair(turn: int = turn) -> None:
                dies_within(self.shared, native, "repair", slots, rows, seed + turn)
                self.shared.exclusively(lambda: None)

            ended(forked(repair), killed=True)
        start = time.monotonic()
        if seed % 2:
            self.live_add(1)
        else:
            self.shared.counters()
        self.slowest = max(self.slowest, time.monotonic() - start)
        self.model.check(self.shared, self.rng)

    def adds(self, before: int, count: int) -> int:
        """Every death of an add of so many items, after so many others."""
        cases = 0
        for name, begun, arm in self.steps(ADD_STEPS, "add"):
            self.live_add(before)
            batch = self.add(count)
            skipped = max(count - self.capacity, 0)
            slots = np.arange(self.model.cursor + skipped, self.model.cursor + count) % self.capacity
            cut = self.model.items.copy()

            def work(arm: Any = arm, slots: np.ndarray = slots, batch: Any = batch) -> None:
                arm(slots, True)
                self.write(*batch)

            ended(forked(work), killed=True)
            if begun:
                self.model.cut_short(count)
            elif name == "commit True":
                self.model.add(0, *batch)
            else:
                assert cut == self.model.items
            cases += 1
            self.follow(cases if begun else 0, slots, True)
        return cases

    def updates(self, rows: bool, values: bool) -> int:
        """Every death of an update."""
        cases = 0
        for name, begun, arm in self.steps(UPDATE_STEPS, "update"):
            self.live_add(self.capacity)
            live = np.array(list(self.model.items), np.int32)
            handles = np.concatenate([self.rng.choice(live, 5), live[:1], [-1, 0, self.model.cursor + 3]]).astype(
                np.int32
            )
            new = self.rng.choice(np.array([0, 3, 7], np.float32), handles.size) if values else None
            items = dict(enumerate(self.renamed(handles, 50 + cases))) if rows else {}
            slots = handles[:6] % self.capacity

            def work(arm: Any = arm, args: Any = (handles, new, items), slots: np.ndarray = slots) -> None:
                arm(slots, rows)
                self.shared.update(*args)

            ended(forked(work), killed=True)
            if name == "commit True":
                self.model.update(handles, new, 50 + cases if rows else None)
            cases += 1
            self.follow(cases if begun else 0, slots, rows)
        return cases

    def renamed(self, handles: np.ndarray, version: int) -> list[np.ndarray]:
        """The items of handles, of another version; any for those that are gone."""
        serials = [self.model.items.get(handle, [0, 0])[1] for handle in handles.tolist()]
        return make(0, np.array(serials), version)


def protocol(path: str) -> dict[str, Any]:
    """A writer dies before and after each step, and within those that write."""
    cases, slowest = 0, 0.0
    for k, sampler in enumerate((PRIORITIZED, frb.Uniform())):
        deaths = Deaths(f"{path}/adds{k}", sampler, 37, k)
        cases += deaths.adds(1, 4)  # from empty to around
        cases += deaths.adds(40, 5) + deaths.adds(3, 37) + deaths.adds(7, 90)
        slowest = max(slowest, deaths.slowest)
        deaths = Deaths(f"{path}/updates{k}", sampler, 300, k)
        for rows, values in ((True, True), (False, True), (True, False)) if k == 0 else ((True, False),):
            cases += deaths.updates(rows, values)
        slowest = max(slowest, deaths.slowest)
    return {"cases": cases, "slowest": slowest}


MOST = 200
"""Items of the largest add."""


class Board:
    """Numbers that processes tell each other, in memory that they share."""

    def __init__(self, *shape: int) -> None:
        self.numbers = np.frombuffer(mmap.mmap(-1, 8 * int(np.prod(shape))), np.int64).reshape(shape)


ACKED, SLOWEST, UPDATES, STOP = range(4)


def warm(shared: SharedBuffer) -> None:
    """Have all kernels compiled before the first fork."""
    leaves, drawn = shared.sample(numbers(np.random.default_rng(0), shared, 1), 0.4)
    shared.update(drawn.handles, np.ones(1, np.float32) if shared.files.tree.size else None, {})
    shared.update(drawn.handles, None, dict(enumerate(leaves)))
    shared.get(drawn.handles)
    shared.is_live(drawn.handles)
    shared.lost()


def write_for_ever(shared: SharedBuffer, writer: int, told: np.ndarray) -> None:
    """Add and update until killed; tell which serials have been added for good."""
    rng, serial = np.random.default_rng(writer), 0
    recent = np.empty(0, np.int32)
    while True:
        # Of two writers one does little else than to add: it is mostly killed at that.
        count = MOST if writer % 2 else int(rng.choice([1, 3, 16, 60]))
        leaves = make(writer, np.arange(serial, serial + count), 0)
        priorities = rng.random(count, np.float32) if shared.files.tree.size else None
        start = time.monotonic()
        shared.add(leaves, count, None, priorities)
        told[ACKED] = serial = serial + count
        told[SLOWEST] = max(told[SLOWEST], int(1e6 * (time.monotonic() - start)))
        if writer % 2:
            continue
        found, drawn = shared.sample(numbers(rng, shared, 16), 0.4)
        found = check_items(found)
        recent = np.concatenate([recent[-20:], drawn.handles])
        handles = rng.choice(recent, 12)
        some = np.isin(drawn.handles, handles)
        if rng.random() < 0.5:
            items = make(found["writer"], found["serial"], found["version"] + 1)
            shared.update(drawn.handles[some], None, {k: np.ascontiguousarray(x[some]) for k, x in enumerate(items)})
        if shared.files.tree.size:
            shared.update(handles, rng.random(12, np.float32), {})
        told[SLOWEST] = max(told[SLOWEST], int(1e6 * (time.monotonic() - start)))
        told[UPDATES] += 1


def sample_until_told(shared: SharedBuffer, told: np.ndarray) -> None:
    """Look at samples, and at everything, until the board says stop."""
    rng = np.random.default_rng(1000)
    while not told[STOP]:
        start = time.monotonic()
        leaves, drawn = shared.sample(numbers(rng, shared, 24), 0.4)
        check_items(leaves)
        assert (drawn.weights > 0).all()
        told[SLOWEST] = max(told[SLOWEST], int(1e6 * (time.monotonic() - start)))
        told[UPDATES] += 1
        handles = drawn.handles[:4]
        live = shared.is_live(handles)
        got = [leaf[live] for leaf in shared.get(handles)]
        if shared.is_live(handles[live]).all():  # else it was overwritten meanwhile
            check_items(got)


def kills(path: str, capacity: int, sampler: Any, writers: int, at_once: int = 3) -> dict[str, Any]:
    """Writers are killed at random instants, one after the other, while others write and sample."""
    shared = SharedBuffer.open(spec_at(path, capacity, sampler))
    shared.add(make(writers, np.arange(1), 0), 1, None, None)
    warm(shared)
    board = Board(writers + 3, 4)
    told, watched = board.numbers, board.numbers[writers + 1]
    watcher = forked(lambda: sample_until_told(shared, watched))
    rng, running = np.random.default_rng(writers + capacity), []
    for writer in range(writers):
        running.append((writer, forked(lambda w=writer: write_for_ever(shared, w, told[w]))))
        if len(running) == at_once:
            ended_at(*running.pop(0), told, rng)
    while running:
        ended_at(*running.pop(0), told, rng)
    watched[STOP] = 1
    ended(watcher)
    present = check_end(shared, told[:writers, ACKED], capacity)
    return {
        "killed": writers,
        "lost": int(shared.lost()[0]),
        "added": int(told[:writers, ACKED].sum()),
        "present": present,
        "slowest": float(told[:, SLOWEST].max()) / 1e6,
        "samples": int(watched[UPDATES]),
    }


def ended_at(writer: int, process: int, told: np.ndarray, rng: Rng) -> None:
    """Kill a writer at some instant, once it has begun: forking takes longer than its first steps."""
    until = time.monotonic() + 30
    while not told[writer, ACKED]:
        assert os.waitpid(process, os.WNOHANG) == (0, 0)
        assert time.monotonic() < until
        time.sleep(0.0005)
    time.sleep(rng.random() * 0.015)
    os.kill(process, signal.SIGKILL)
    ended(process, killed=True)


def check_end(shared: SharedBuffer, acked: np.ndarray, capacity: int) -> int:
    """All is whole; of each writer what was added is there, up to where older items have been overwritten."""
    cursor, size = shared.counters()[:2].tolist()
    handles = np.arange(cursor - size, cursor, dtype=np.int32)
    assert shared.is_live(handles).all()
    found = check_items(shared.get(handles))
    copied = shared.snapshot()
    np.testing.assert_array_equal(copied.tree, rebuilt(copied.tree, capacity) if copied.tree.size else copied.tree)
    if copied.tree.size:
        dead = np.ones(capacity, bool)
        dead[handles % capacity] = False
        assert not copied.tree.reshape(-1)[:capacity][dead].any()
    whole = cursor <= capacity
    for writer, count in enumerate(acked.tolist()):
        serials = found["serial"][found["writer"] == writer]
        if serials.size:
            # In the order of adding, without a gap, to the last that was told or to the batch after it.
            np.testing.assert_array_equal(serials, np.arange(serials[0], serials[0] + serials.size))
            assert serials[-1] + 1 >= count
            assert serials[-1] + 1 - count <= MOST
        assert not whole or not count or serials[0] == 0
    return size


def spacious(path: str) -> dict[str, Any]:
    """Room for all that is added, so that all of it must be there."""
    return kills(path, 60_000, PRIORITIZED, effort(15, 50))


def crowded(path: str) -> dict[str, Any]:
    """A small ring, around and around."""
    prioritized = kills(path, 500, PRIORITIZED, effort(9, 30))
    return prioritized | {"uniform": kills(path + "u", 300, frb.Uniform(), effort(6, 20))}


def held_lock(path: str) -> dict[str, Any]:
    """A child that was forked has nothing of its parent's lock: the parent dies in a write, the child lives on."""
    shared = SharedBuffer.open(spec_at(path, 10))
    asleep = Board(1)

    def parent() -> None:
        mine = SharedBuffer.attach(shared.spec, path)
        asleep.numbers[0] = forked(lambda: time.sleep(60), survives=True)
        dies_after(native, "begin", True)
        mine.add(make(0, np.arange(3), 0), 3, None, None)

    ended(forked(parent), killed=True)
    start = time.monotonic()
    shared.add(make(1, np.arange(3), 0), 3, None, None)
    waited = time.monotonic() - start
    os.kill(int(asleep.numbers[0]), signal.SIGKILL)
    assert shared.lost().tolist() == [3]
    return {"slowest": waited}


def lockless_child(path: str) -> dict[str, Any]:
    """A child that was forked where no more files can be opened does not write: it has no lock of its own."""
    shared = SharedBuffer.open(spec_at(path, 10))
    one_more = make(0, np.arange(1), 0), 1, None, None
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)

    def refused() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        others = [os.open("/dev/null", os.O_RDWR) for _ in range(40)]  # one has the lock's number
        try:
            shared.add(*one_more)
        except OSError as error:
            check_limit(error)
        else:
            raise AssertionError(f"it wrote beside {len(others)} other files")

    resource.setrlimit(resource.RLIMIT_NOFILE, (1, most))
    child = forked(refused)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    ended(child)
    shared.add(*one_more)
    assert shared.counters()[0] == 1
    return {}


def few_descriptors(path: str) -> dict[str, Any]:
    """At each file that is opened: an error that says so, leaves nothing open, and is in the way of no later call."""
    os.makedirs(path + "/tmp")
    tempfile.tempdir = path + "/tmp"
    there = SharedBuffer.open(spec_at(path + "/there", 10))
    ways: dict[str, Callable[[str], Any]] = {
        "made": lambda at: SharedBuffer.open(spec_at(at, 10)),
        "anywhere": lambda at: SharedBuffer.open(spec_at(None, 10)),
        "opened": lambda at: SharedBuffer.attach(spec_at(at, 10), there.files.directory),
        "mapped": lambda at: mapped.create(frb.BufferSpec(ITEM, 10, PRIORITIZED, storage=frb.Memmap(at))),
        "without a name": lambda at: mapped.create(frb.BufferSpec(ITEM, 10, PRIORITIZED, storage=frb.Memmap())),
    }
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    refused = {}
    for way, make_files in ways.items():
        made, refused[way] = None, 0
        while made is None:
            at, before = f"{path}/{way} {refused[way]}", open_files()
            resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + refused[way], most))
            try:
                made = make_files(at)
            except OSError as error:
                check_limit(error)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            assert (open_files() == before) == (made is None), (way, refused)
            if made is None:
                make_files(at)  # nothing is left that would be in its way
                refused[way] += 1
        del made
    return {"refused": refused}


def check_limit(error: OSError) -> None:
    assert "ulimit -n" in str(error), error
    assert error.filename
    assert error.errno in (errno.EMFILE, errno.EBADF)


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def stopped(path: str) -> dict[str, Any]:
    """A writer halts in the midst of a write: nobody reads what it has half done, whatever way he reads."""
    shared = SharedBuffer.open(spec_at(path, 8))
    shared.add(make(0, np.arange(8), 0), 8, None, None)

    def halfway() -> None:
        add = calls.add

        def half(*args: Any) -> None:
            shared.files.rows[:4] = -1
            os.kill(os.getpid(), signal.SIGSTOP)
            add(*args)

        calls.add = half
        shared.add(make(0, np.arange(8, 12), 0), 4, None, None)

    process = forked(halfway)
    assert os.WIFSTOPPED(os.waitpid(process, os.WUNTRACED)[1])
    draws, vector = numbers(np.random.default_rng(0), shared, 8), np.empty(6, np.int32)
    leaves = shared._room_for(8)
    told = np.empty(8, np.int32), np.empty(8, np.float32), np.empty(8, np.float32)
    call, live = storage_caller(of_numpy), np.zeros(8, np.uint8)
    places = (), shared._storage, leaves, shared._control, shared._plan
    assert call(native.draw, *places, shared._tree, draws, np.float32(1), *told) == native.TORN
    assert call(native.fetch, *places, told[0], live) == native.TORN
    assert native.can_draw(shared._control, shared._plan, shared._tree, 1) == native.TORN
    assert native.read_counters(shared._control, vector) & 1

    def read(kind: int) -> None:
        if kind == 0:
            check_items(shared.sample(draws, 0.4)[0])
        elif kind == 1:
            assert (shared.snapshot().rows >= 0).any(1).all()
        elif kind == 2:
            check_items(shared.get(np.arange(4, 12, dtype=np.int32)))
        else:
            assert shared.counters()[:2].tolist() == [12, 8]

    readers = [forked(lambda k=k: read(k)) for k in range(4)]
    time.sleep(0.05)
    assert all(os.waitpid(reader, os.WNOHANG) == (0, 0) for reader in readers)
    os.kill(process, signal.SIGCONT)
    for one in (process, *readers):
        ended(one)
    return {}


def making(path: str) -> dict[str, Any]:
    """Many open one path at once; and those die that are making it, at each step."""
    gate = Board(1)

    def come(k: int) -> None:
        while not gate.numbers[0]:
            time.sleep(0.001)
        SharedBuffer.open(spec_at(f"{path}/at/once", 50)).add(make(k, np.arange(3), 0), 3, None, None)

    comers = [forked(lambda k=k: come(k)) for k in range(5)]
    time.sleep(0.05)
    gate.numbers[0] = 1
    for comer in comers:
        ended(comer)
    assert SharedBuffer.open(spec_at(f"{path}/at/once", 50)).counters()[:2].tolist() == [15, 15]
    for step in range(7):
        where = f"{path}/made{step}"

        def die_making(where: str = where, step: int = step) -> None:
            made, rename, left = files._make_file, os.rename, [step]

            def counted(*args: Any) -> None:
                if not left[0]:
                    die()
                left[0] -= 1
                made(*args)

            def last(*args: Any) -> None:
                if step == 6:
                    rename(*args)
                die()

            files._make_file, os.rename = counted, last
            SharedBuffer.open(spec_at(where, 50))

        ended(forked(die_making), killed=True)
        shared = SharedBuffer.open(spec_at(where, 50))
        shared.add(make(0, np.arange(3), 0), 3, None, None)
        assert SharedBuffer.open(spec_at(where, 50)).counters()[1] == 3
    return {}


def removing(path: str) -> dict[str, Any]:
    """Whoever made a directory removes it, again and again, while others open it; and dies at that."""
    board = Board(2, 4)

    def come(k: int) -> None:
        rng = np.random.default_rng(k)
        for _ in range(20):
            shared = SharedBuffer.open(spec_at(path, 20))
            shared.add(make(k, np.arange(2), 0), 2, None, None)
            check_items(shared.sample(numbers(rng, shared, 4), 0.4)[0])
            if rng.random() < 0.5:
                files.remove(path)
        board.numbers[k, 0] = 1

    comers = [forked(lambda k=k: come(k)) for k in range(2)]
    for comer in comers:
        ended(comer)
    assert board.numbers[:, 0].all()
    for step in range(8):
        SharedBuffer.open(spec_at(path, 20))

        def die_removing(step: int = step) -> None:
            unlink, left = os.unlink, [step]

            def counted(*args: Any, **kwargs: Any) -> None:
                if not left[0]:
                    die()
                left[0] -= 1
                unlink(*args, **kwargs)

            os.unlink = counted
            files.remove(path)
            die()

        ended(forked(die_removing), killed=True)
        shared = SharedBuffer.open(spec_at(path, 20))
        shared.add(make(0, np.arange(3), 0), 3, None, None)
        files.remove(path)
        assert not os.path.exists(path)
    return {}


def full_disk(path: str) -> dict[str, Any]:
    """On a disk of 3 MB: an error before anything is written, and no SIGBUS; reading goes on."""
    shared = SharedBuffer.open(spec_at(path, 100_000))
    added = 0
    with contextlib.suppress(StorageFullError):
        while added < 10_000:
            shared.add(make(0, np.arange(added, added + 100), 0), 100, None, None)
            added += 100
    assert 0 < added < 3000
    other = SharedBuffer.attach(shared.spec, path)
    for one in (shared, other):
        for _ in range(2):
            with contextlib.suppress(StorageFullError):
                one.add(make(0, np.arange(added, added + 100), 0), 100, None, None)
                raise AssertionError("there was room")
        assert one.counters()[:2].tolist() == [added, added]
        check_items(one.sample(numbers(np.random.default_rng(0), one, 50), 0.4)[0])
        assert not one.snapshot().rows[added + 2000 :].any()
        one.get(np.arange(90_000, 90_050, dtype=np.int32))
    with contextlib.suppress(StorageFullError):
        SharedBuffer.open(spec_at(path + "x", 10_000_000))
        raise AssertionError("there was room")
    assert os.listdir(path + "x") == []
    os.rmdir(path + "x")
    assert check_end(shared, np.array([added]), 100_000) == added
    assert shared.lost().tolist() == [0]
    return {"added": added}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for scenario in sys.argv[2:]:
        print(json.dumps({"scenario": scenario} | globals()[scenario](os.path.join(sys.argv[1], scenario))))
