"""What test_kills.py runs in a process of its own, which forks and kills: NumPy, the core and its kernels alone."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import mmap
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import functional_rb as frb
from functional_rb import _native
from functional_rb.base.errors import StorageFullError
from functional_rb.buffer import functions
from functional_rb.native import shared_control as control
from functional_rb.shared import files
from functional_rb.shared.buffer import SharedBuffer
from functional_rb.storage import mapped
from tests.children.shared_deaths import protocol as protocol
from tests.support.children import die, ended, forked
from tests.support.effort import effort
from tests.support.shared_items import ITEM, PRIORITIZED, Rng, check_items, make, numbers, rebuilt, spec_at
from tests.support.touched import before_writing

# Items of the largest add.
MOST = 200


class Board:
    """Numbers that processes tell each other, in memory that they share."""

    def __init__(self, *shape: int) -> None:
        self.numbers = np.frombuffer(mmap.mmap(-1, 8 * int(np.prod(shape))), np.int64).reshape(shape)


ACKED, SLOWEST, UPDATES, STOP = range(4)


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
        live = shared.look(functions.is_live, handles)
        got = [leaf[live] for leaf in shared.get(handles)]
        if shared.look(functions.is_live, handles[live]).all():  # else it was overwritten meanwhile
            check_items(got)


def kills(path: str, capacity: int, sampler: Any, writers: int, at_once: int = 3) -> dict[str, Any]:
    """Writers are killed at random instants, one after the other, while others write and sample."""
    shared = SharedBuffer.open(spec_at(path, capacity, sampler))
    shared.add(make(writers, np.arange(1), 0), 1, None, None)
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
    while watched[UPDATES] <= 10:  # on a busy machine it comes to its turn later
        time.sleep(0.01)
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
    assert shared.look(functions.is_live, handles).all()
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
    return kills(path, 60_000, PRIORITIZED, effort(9, 50))


def crowded(path: str) -> dict[str, Any]:
    """A small ring, around and around."""
    prioritized = kills(path, 500, PRIORITIZED, effort(6, 30))
    return prioritized | {"uniform": kills(path + "u", 300, frb.Uniform(), effort(4, 20))}


def held_lock(path: str) -> dict[str, Any]:
    """A child that was forked has nothing of its parent's lock: the parent dies in a write, the child lives on."""
    shared = SharedBuffer.open(spec_at(path, 10))
    asleep = Board(1)

    def parent() -> None:
        mine = SharedBuffer.attach(shared.spec, path)
        asleep.numbers[0] = forked(lambda: time.sleep(60), survives=True)
        before_writing([mine.files.rows], die)
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
        def half() -> None:
            shared.files.rows[:4] = -1
            os.kill(os.getpid(), signal.SIGSTOP)

        before_writing([shared.files.rows], half)
        shared.add(make(0, np.arange(8, 12), 0), 4, None, None)

    process = forked(halfway)
    assert os.WIFSTOPPED(os.waitpid(process, os.WUNTRACED)[1])
    draws, vector = numbers(np.random.default_rng(0), shared, 8), np.empty(6, np.int32)
    leaves = shared._room_for(8)
    told = np.empty(8, np.int32), np.empty(8, np.float32), np.empty(8, np.float32)
    live = np.zeros(8, np.uint8)
    places = shared._storage, leaves, shared._control, shared._plan
    assert _native.shared_draw(*places, shared._tree, draws, 1.0, *told) == control.TORN
    assert _native.shared_fetch(*places, told[0], live) == control.TORN
    assert _native.shared_read_counters(shared._control, vector) & 1

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
