"""Usual calls on shared buffers are one of the native code each, which waits, fails and dies as the plain way does."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.native import shared_control as control
from functional_rb.native.switch import switch
from functional_rb.shared import engine, files
from functional_rb.shared.buffer import SharedBuffer
from functional_rb.shared.lock import FileLock
from tests.support.backends import Backend, needs_native
from tests.support.children import program

ROOT = Path(__file__).parents[2]
ITEM = {"x": frb.Unbounded((3,)), "n": frb.Unbounded((), "int32"), "done": frb.Binary()}


def made(library: Backend, path: Path, item: Any = ITEM, **fields: Any) -> Any:
    """A prioritized one of eight slots."""
    storage = frb.Memmap(str(path / "buffer"), shared=True)
    return library.rb.init(frb.BufferSpec(item, 8, frb.Prioritized(alpha=1.0), storage=storage, **fields))


def batch(library: Backend, *numbers: int) -> Any:
    n = np.array(numbers, np.int32)
    return library.tree({"x": np.repeat(n[:, None], 3, 1).astype(np.float32), "n": n, "done": n % 2 == 1})


def stored(library: Backend, state: Any) -> list[int]:
    """The numbers of all items, each of which is whole, in the order of their slots."""
    found = {name: library.numpy(leaf) for name, leaf in library.rb.items(state).items()}
    np.testing.assert_array_equal(found["x"], np.repeat(found["n"][:, None], 3, 1))
    return found["n"].tolist()


@contextlib.contextmanager
def the_plain_way_closed() -> Iterator[None]:
    """What is not carried out by one call of the native code fails."""
    if not switch.on:
        pytest.skip("FUNCTIONAL_RB_NATIVE=0 turns off what would do it in one call")

    def closed(*args: Any, **named: Any) -> Any:
        raise AssertionError("it went the plain way")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("add", "sample", "update", "exclusively", "_of_one_moment"):
            patch.setattr(SharedBuffer, name, closed)
        for name in ("add", "add_", "sample", "sample_", "update", "update_"):
            patch.setattr(engine.Engine, name, closed)
        yield


def test_usual_writes_are_one_call_each(library: Backend, tmp_path: Path) -> None:
    rb, state, array = library.rb, made(library, tmp_path), library.array
    first, some = array(np.array([0, 1], np.int32)), array(np.array([True, False, True]))
    with the_plain_way_closed():
        assert rb.add(state, batch(library, 1, 2)) is state
        assert rb.add_(state, batch(library, 3, 4, 5), mask=some) is state
        assert rb.add(state, batch(library, 6), priorities=array(np.array([3], np.float32))) is state
        assert rb.add(state, {"x": np.full(3, 7, np.float32), "n": 7, "done": True}) is state  # one item
        before = int(state.buffer.files.control[control.SEQUENCE])
        assert rb.add(state, batch(library, 8), mask=array(np.array([False]))) is state
        assert int(state.buffer.files.control[control.SEQUENCE]) == before  # nobody waits for a write of nothing
        assert rb.update(state, first, array(np.array([4, 5], np.float32))) is state
        assert rb.update_(state, first, items={"done": array(np.array([False, True]))}) is state
    assert stored(library, state) == [1, 2, 3, 5, 6, 7, 0, 0]
    assert library.numpy(state.tree).reshape(-1)[:8].tolist() == [4, 5, 1, 1, 3, 3, 0, 0]
    assert library.numpy(rb.items(state)["done"])[:2].tolist() == [False, True]
    with the_plain_way_closed():
        rb.update(state, first, array(np.array([1, 1], np.float32)), batch(library, 21, 22))
    assert stored(library, state)[:3] == [21, 22, 3]


def test_items_in_any_nest_are_taken_by_one_call(library: Backend, tmp_path: Path) -> None:
    rb, state = library.rb, made(library, tmp_path, (ITEM["n"], {"y": ITEM["x"]}))
    with the_plain_way_closed():
        rb.add(state, (library.array(np.arange(2, dtype=np.int32)), {"y": np.ones((2, 3), np.float32)}))
    assert library.numpy(rb.items(state)[1]["y"]).sum() == 6


def test_jaxs_arrays_are_waited_for_that_are_still_computed(tmp_path: Path) -> None:
    import jax

    import jax_backend as rb

    spec = frb.BufferSpec({"x": frb.Unbounded((40_000,))}, 8, storage=frb.Memmap(str(tmp_path / "buffer"), shared=True))
    state = rb.init(spec)
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 40, lambda _, y: jax.numpy.sin(y) + 1, x) * 0 + 7)
    with the_plain_way_closed():
        for k in range(4):
            rb.add(state, {"x": slow(np.full((2, 40_000), k, np.float32))})
    assert np.asarray(rb.items(state)["x"]).min() == 7
    gone = jax.numpy.ones(40_000)
    gone.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        rb.add(state, {"x": gone})
    assert int(rb.size(state)) == 8


def test_what_was_not_opened_is_not_written_to() -> None:
    handle = SharedBuffer.__new__(SharedBuffer)
    with pytest.raises(RuntimeError, match="was not opened"):
        handle.write(1, None, None, None, [])
    with pytest.raises(AttributeError):
        handle.share()
    with pytest.raises(RuntimeError, match="was not opened"):
        handle.write(1, None, None, None, [])


@pytest.mark.parametrize("library", ["torch"], indirect=True)
def test_on_torch_usual_samples_are_one_call_each(library: Backend, tmp_path: Path) -> None:
    rb, state, key = library.rb, made(library, tmp_path, batch_size=5), library.rb.key(3)
    value = rb.init(frb.BufferSpec(ITEM, 8, frb.Prioritized(alpha=1.0)))
    given = {"priorities": library.array(np.arange(1, 4, dtype=np.float32))}
    value, _ = rb.add(value, batch(library, 1, 2, 3), **given), rb.add(state, batch(library, 1, 2, 3), **given)
    for draw, arguments in ((rb.sample, (64,)), (rb.sample_, (5, 0.8)), (rb.sample, ())):
        with the_plain_way_closed():
            same, found = draw(state, key, *arguments)
        expected = rb.sample(value, key, *(arguments or (5,)))[1]
        assert same is state
        assert found.items.keys() == ITEM.keys()
        for one, other in (
            *((found.items[name], expected.items[name]) for name in ITEM),
            *((getattr(found, name), getattr(expected, name)) for name in ("indices", "weights", "probabilities")),
        ):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def test_what_is_unusual_goes_the_plain_way_which_words_the_errors(library: Backend, tmp_path: Path) -> None:
    rb, state = library.rb, made(library, tmp_path)
    with pytest.raises(TypeError, match="n"):
        rb.add(state, batch(library, 1) | {"n": np.zeros(1, np.float32)})
    with pytest.raises(ValueError, match="x"):
        rb.add(state, batch(library, 1, 2) | {"x": np.zeros((2, 4), np.float32)})
    with pytest.raises(ValueError, match="empty"):
        rb.sample(state, rb.key(0), 2)
    turned = np.asfortranarray(np.ones((2, 3), np.float32) * np.array([[1], [2]], np.float32))
    rb.add(state, batch(library, 1, 2) | {"x": turned})
    assert stored(library, state)[:2] == [1, 2]
    with frb.kernels(False):
        rb.add(state, batch(library, 3))
    assert stored(library, state)[:3] == [1, 2, 3]


def test_an_update_larger_than_the_journal_is_made_in_pieces(
    library: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "JOURNAL_BYTES", 40)
    monkeypatch.setattr(files, "JOURNAL_SLOTS", 4)
    state = made(library, tmp_path)
    rb, handles = library.rb, library.array(np.arange(5, dtype=np.int32))
    rb.add(state, batch(library, 1, 2, 3, 4, 5))
    before = int(state.buffer.files.control[control.SEQUENCE])
    rb.update(state, handles, library.array(np.arange(5, dtype=np.float32)))
    assert int(state.buffer.files.control[control.SEQUENCE]) == before + 2 * 2
    rb.update(state, handles, items=batch(library, 11, 12, 13, 14, 15))
    assert int(state.buffer.files.control[control.SEQUENCE]) == before + 2 * (2 + 3)
    assert stored(library, state)[:5] == [11, 12, 13, 14, 15]
    assert library.numpy(state.tree).reshape(-1)[:5].tolist() == [0, 1, 2, 3, 4]


# --- who died, what is damaged, and no room --------------------------------------------------------------------------


def died(state: Any, kind: int) -> None:
    """Leave what a process does that dies in a write of two items."""
    words = state.buffer.files.control
    words[control.SEQUENCE] += 1
    words[control.RESERVED] = 8
    words[control.KIND], words[control.COUNT], words[control.FIRST], words[control.HAS_ROWS] = kind, 2, 3, 0


@pytest.mark.parametrize("call", ["add", "sample", "update"])
def test_the_next_call_repairs(call: str, library: Backend, tmp_path: Path) -> None:
    rb, state = library.rb, made(library, tmp_path)
    rb.add(state, batch(library, 1, 2, 3))
    died(state, control.ADD)
    state.buffer.files.rows[3:5] = 77
    with the_plain_way_closed() if (library.library, call) != ("jax", "sample") else contextlib.nullcontext():
        if call == "add":
            rb.add(state, batch(library, 4))
        elif call == "sample":
            assert set(library.numpy(rb.sample(state, rb.key(0), 32)[1].items["n"])) == {1, 2, 3}
        else:
            rb.update(state, np.zeros(1, np.int32), np.ones(1, np.float32))
    assert int(rb.counts(state).lost) == 2
    assert stored(library, state) == [1, 2, 3, 4 if call == "add" else 0, 0, 0, 0, 0]


@pytest.mark.parametrize("kind", [0, control.ADD])
def test_what_is_damaged_is_named_and_not_written_to(kind: int, library: Backend, tmp_path: Path) -> None:
    rb, state = library.rb, made(library, tmp_path)
    rb.add(state, batch(library, 1, 2, 3))
    words = state.buffer.files.control
    if kind:
        died(state, kind)
        words[control.COUNT] = 2**40
    else:
        words[control.COUNTERS :].view(np.int32)[[1, 17]] = 9  # more items than there is room for
    before = words.copy(), state.buffer.files.rows.copy(), state.buffer.files.tree.copy()
    for call in (
        lambda: rb.add(state, batch(library, 4)),
        lambda: rb.update(state, np.zeros(1, np.int32), np.ones(1, np.float32)),
        *([lambda: rb.sample(state, rb.key(0), 2)] if kind else []),
    ):
        with pytest.raises(ValueError, match=r"control\.bin.*remove the directory"):
            call()
    for one, other in zip(before, (words, state.buffer.files.rows, state.buffer.files.tree), strict=True):
        np.testing.assert_array_equal(one, other)
    assert is_free(state)


def test_a_full_disk_is_an_error_before_anything_is_written(
    library: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rb, state = library.rb, made(library, tmp_path)
    rb.add(state, batch(library, 1))
    before = state.buffer.files.control.copy()

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch, the_plain_way_closed():
        patch.setattr(files, "allocate", full)
        with pytest.raises(frb.errors.StorageFullError, match=r"rows\.bin"):
            rb.add(state, batch(library, 2, 3, 4))
    np.testing.assert_array_equal(before, state.buffer.files.control)
    assert is_free(state)
    rb.add(state, batch(library, 2))
    assert stored(library, state)[:3] == [1, 2, 0]


@needs_native
def test_who_dies_at_a_step_of_a_whole_call_is_repaired(tmp_path: Path) -> None:
    command = program("shared_call_deaths", tmp_path / "buffer")
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=200)
    assert run.stdout == "done\n", run.stderr


# --- waiting ---------------------------------------------------------------------------------------------------------


def is_free(state: Any) -> bool:
    """Whether another process, and another thread of this one, would get the lock at once."""
    with another_process(state.buffer.files.lock.path, 0) as got:
        thread = threading.Thread(target=state.buffer.files.lock.hold, args=(int, int), daemon=True)
        if not got:
            return False
    thread.start()
    thread.join(30)
    return not thread.is_alive()


@contextlib.contextmanager
def another_process(path: str, wait: int = 1) -> Iterator[bool]:
    """Lock the file as another process does, by a descriptor of one's own."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def another_thread(lock: FileLock) -> Iterator[bool]:
    """Have a thread of this process hold the lock."""
    has, stop = threading.Event(), threading.Event()

    def work() -> None:
        has.set()
        stop.wait()

    thread = threading.Thread(target=lock.hold, args=(work, int))
    thread.start()
    has.wait()
    try:
        yield True
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """An interrupt after some time."""

    def on_alarm(*args: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def waiters(library: Backend, state: Any) -> list[Callable[[], Any]]:
    """Calls that wait for the lock."""
    return [
        functools.partial(library.rb.add, state, batch(library, 2)),
        functools.partial(library.rb.update, state, np.zeros(1, np.int32), np.ones(1, np.float32)),
        functools.partial(state.buffer.files.lock.hold, int, int),
    ]


@pytest.mark.parametrize("by", ["process", "thread"])
def test_who_waits_for_the_lock_can_be_interrupted(by: str, library: Backend, tmp_path: Path) -> None:
    state = made(library, tmp_path)
    library.rb.add(state, batch(library, 1))
    before = state.buffer.files.control.copy()
    lock = state.buffer.files.lock
    for call in waiters(library, state):
        with another_process(lock.path) if by == "process" else another_thread(lock), alarm(0.05):
            start = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                call()
            assert time.monotonic() - start > 0.03
        assert is_free(state)
    np.testing.assert_array_equal(before, state.buffer.files.control)
    library.rb.add(state, batch(library, 2))
    assert stored(library, state)[:3] == [1, 2, 0]


def test_a_signal_that_raises_nothing_lets_one_wait_on(library: Backend, tmp_path: Path) -> None:
    state, heard = made(library, tmp_path), []
    before = signal.signal(signal.SIGALRM, lambda *_: heard.append(None))
    try:
        for call in waiters(library, state):
            with another_thread(state.buffer.files.lock):
                pass
            release = threading.Event()
            thread = threading.Thread(
                target=state.buffer.files.lock.hold, args=(functools.partial(release.wait, 60), int)
            )
            thread.start()
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            threading.Timer(0.15, release.set).start()
            call()
            thread.join()
        assert len(heard) == 3
    finally:
        signal.signal(signal.SIGALRM, before)
    assert stored(library, state)[:2] == [2, 0]


@pytest.mark.parametrize("call", range(3))
def test_other_threads_go_on_while_one_waits_for_another_process(call: int, library: Backend, tmp_path: Path) -> None:
    state = made(library, tmp_path)
    library.rb.add(state, batch(library, 1))
    wait = waiters(library, state)[call]
    command = program("lock_holder", state.buffer.files.lock.path)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        beats: list[None] = []

        def beat() -> None:
            """Let the other process unlock the file, after some turns among the threads of this one."""
            assert process.stdin is not None
            for _ in range(50):
                time.sleep(0.001)
                beats.append(None)
            process.stdin.close()

        thread = threading.Thread(target=beat)
        thread.start()
        wait()
        counted = len(beats)
        thread.join()
    assert counted == 50, "the thread did not go on before the other process gave up"


@pytest.mark.parametrize("call", ["add", "update", "sample"])
def test_other_threads_go_on_while_a_large_batch_is_copied(call: str, tmp_path: Path) -> None:
    import torch_backend as rb

    spec = frb.BufferSpec({"x": frb.Unbounded((2**22,))}, 4, storage=frb.Memmap(str(tmp_path), shared=True))
    state, rows = rb.init(spec), {"x": np.ones((4, 2**22), np.float32)}
    rb.add(state, rows)
    one, handles, key = {"x": rows["x"][:1]}, np.array([3], np.int32), rb.key(1)
    works: dict[str, Callable[[], Any]] = {
        "add": lambda: rb.add(state, rows),
        "update": lambda: rb.update(state, handles, items=one),
        "sample": lambda: rb.sample(state, key, 4),
    }
    beats: list[float] = []

    def beat() -> None:
        while not stop.wait(0.0005):
            beats.append(time.perf_counter())

    def longest_rest() -> float:
        """The longest time of a call in which the thread had no turn, as a share of the call."""
        first, begun = len(beats), time.perf_counter()
        works[call]()
        times = [begun, *beats[first:], time.perf_counter()]
        return max(np.diff(times)) / (times[-1] - begun)

    stop, thread = threading.Event(), threading.Thread(target=beat)
    thread.start()
    rests = [longest_rest() for _ in range(20)]
    stop.set()
    thread.join()
    assert min(rests) < 0.35, rests


# --- the lock --------------------------------------------------------------------------------------------------------


def test_what_is_called_under_the_lock(tmp_path: Path) -> None:
    lock, calls = FileLock(str(tmp_path / "lock")), []

    def fail(error: BaseException) -> Any:
        calls.append(str(error))
        raise error

    assert lock.hold(lambda: 3, lambda: calls.append("finish")) == 3
    with pytest.raises(KeyError, match="work"):
        lock.hold(lambda: fail(KeyError("work")), lambda: calls.append("finish"))
    with pytest.raises(KeyError, match="work"):  # which came first
        lock.hold(lambda: fail(KeyError("work")), lambda: fail(OSError("finish")))
    with pytest.raises(OSError, match="finish"):
        lock.hold(int, lambda: fail(OSError("finish")))
    with pytest.raises(RuntimeError, match=f"{lock.path}: this thread is writing"):
        lock.hold(lambda: lock.hold(int, int), lambda: calls.append("finish"))
    assert calls == ["finish", "'work'", "finish", "'work'", "finish", "finish", "finish"]
    for given in ((), (int,), (int, int, int)):
        with pytest.raises(TypeError):
            lock.hold(*given)
    with pytest.raises(TypeError):
        lock.reset("x")  # type: ignore[arg-type]  # refused
    lock.close()
    assert lock.fd == -1
    with pytest.raises(OSError, match="not open in this process"):
        lock.hold(int, int)


def test_who_forks_under_the_lock_has_it_and_the_child_has_not(tmp_path: Path) -> None:
    command = program("forks_under_the_lock", tmp_path / "lock")
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=100)
    assert run.stdout == "done\n", run.stderr
