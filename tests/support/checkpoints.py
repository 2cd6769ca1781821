"""What the tests of checkpoints have in common: states of NumPy, their bits, small blocks, failures of the disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import functional_rb as frb
from functional_rb.base.checksum import digest
from functional_rb.buffer.reader import shapes_of
from functional_rb.checkpoint import blocks, in_place
from functional_rb.checkpoint.loading import LoadOptions, read
from functional_rb.checkpoint.manifest import content_of, decode
from functional_rb.checkpoint.opened import Opened
from functional_rb.core.counters import CURSOR, SIZE, length
from functional_rb.storage import disk, host_state
from functional_rb.storage.host_state import HostState

# What `disk` does that a test can let fail.
CALLS = ("create", "write", "fsync", "truncate", "rename", "unlink", "fsync_directory", "make_directory")
Bits = dict[str, tuple[str, tuple[int, ...], bytes]]


@contextlib.contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Hold a lock file, as another process would."""
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a forked child has it too


def bits(state: Any) -> Bits:
    """Of all arrays of a state of any backend; reading it does not change it, nor what it knows of saves."""
    reader = type(state).reader(state) if type(state) is frb.State else quiet_reader(state)
    found = {}
    with contextlib.closing(reader):
        for name, (shape, _) in reader.shapes.items():
            array = np.array(reader.read(name, 0, shape[0]))
            found[name] = (array.dtype.name, array.shape, array.tobytes())
    return found


def steps(start: int, count: int) -> dict[str, np.ndarray]:
    """Steps that tell their number."""
    ids = np.arange(start, start + count, dtype=np.int32)
    return {"id": ids, "x": np.stack([ids, -ids], 1).astype(np.float32), "done": ids % 5 == 4}


def quiet_reader(state: Any) -> Any:
    """A reader of a torch state, which would otherwise get a stamp."""
    past = state._save_history
    reader = state.reader()
    object.__setattr__(state, "_save_history", past)
    return reader


def stored_bits(path: Any, **options: Any) -> Bits:
    """Of what lies in a directory, read without any backend."""
    found = read(path, LoadOptions(**options))
    return bits(frb.State(*found.arrays, found.spec))


def on_host(spec: frb.BufferSpec) -> HostState:
    """An empty state of NumPy's arrays, without any backend."""
    return host_state.init(spec, in_place.create(spec) if isinstance(spec.storage, frb.Memmap) else None)


def small_blocks(patch: pytest.MonkeyPatch) -> None:
    """So small that small buffers have many."""
    patch.setattr(blocks, "BLOCK_BYTES", 48)
    patch.setattr(blocks, "CHUNK_BLOCKS", 3)


def numpy_state(spec: frb.BufferSpec) -> frb.State:
    """An empty state of NumPy arrays, of which only a checkpoint knows anything."""
    made = {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes_of(spec.plan).items()}
    wide = tuple(made[f"wide_{k}"] for k in range(len(spec.plan.layout.wide)))
    auxiliary = {name: made[f"kept_{name}"] for name in spec.plan.auxiliary}
    tree = None if spec.plan.tree_shape is None else np.zeros(spec.plan.tree_shape, np.float32)
    return frb.State(made["rows"], wide, tree, np.zeros(length(spec.plan), np.int32), auxiliary, spec)


def advanced(state: frb.State, rng: np.random.Generator, rows: int) -> frb.State:
    """A state of one lane with some more rows of any content, and new numbers in all that is not rows."""
    capacity = state.spec.capacity
    cursor, size = int(state.counters[CURSOR]), int(state.counters[SIZE])
    slots = (cursor + np.arange(rows)) % capacity
    new = numpy_state(state.spec)
    new.rows[:] = state.rows
    new.rows[slots] = rng.integers(0, 2**31, (rows, state.rows.shape[1]))
    for old, array in zip(state.wide, new.wide, strict=True):
        array[:] = old
        array[slots] = rng.integers(0, 256, (rows, *old.shape[1:])).astype(old.dtype)
    new.counters[:] = state.counters
    new.counters[CURSOR], new.counters[SIZE] = cursor + rows, min(size + rows, capacity)
    if new.tree is not None:
        stored = (cursor + rows - 1 - np.arange(new.counters[SIZE])) % capacity
        new.tree.reshape(-1)[stored] = rng.random(len(stored))
    return new


# Of one lane, with rows, a wide leaf and a tree.
SPEC = frb.BufferSpec(
    {"x": frb.Unbounded((2,)), "image": frb.Unbounded((32, 32), "uint8")}, capacity=20, sampler=frb.Prioritized()
)


class Killed(BaseException):
    """The process is gone: nothing comes after."""


class Failing:
    """Lets the n-th call to the disk fail, counting those in `CALLS`; the calls that were made are in `trace`."""

    def __init__(
        self, patch: pytest.MonkeyPatch, at: int | None, killed: bool = False, number: int = errno.EIO
    ) -> None:
        self.trace: list[tuple[str, Any]] = []
        self.at, self.killed, self.number = at, killed, number
        for name in CALLS:
            patch.setattr(disk, name, self._wrapped(name, getattr(disk, name)))

    def _wrapped(self, name: str, original: Any) -> Any:
        def call(*args: Any) -> Any:
            count = len(self.trace)
            if self.at is None or count < self.at or (count > self.at and not self.killed):
                self.trace.append((name, args))
                return original(*args)
            if count == self.at:
                self.trace.append((name, args))
                if name == "write":  # half of it is there
                    os.write(args[0], bytes(memoryview(args[1]).cast("B")[: memoryview(args[1]).nbytes // 2]))
            if self.killed:
                raise Killed
            raise OSError(self.number, os.strerror(self.number), str(args[0]))

        return call


@contextlib.contextmanager
def failing(at: int | None, killed: bool = False, number: int = errno.EIO) -> Iterator[Failing]:
    """For as long as the context lasts."""
    with pytest.MonkeyPatch.context() as patch:
        yield Failing(patch, at, killed, number)


def files(path: Path) -> list[Path]:
    """Of the checkpoints there, without the lock."""
    return sorted(file for file in path.iterdir() if file.name != "lock")


def lies_in_files(path: Path, generation: int) -> bool:
    """Whether the rows of a checkpoint are those of the buffer's own files, with what a log has of them since."""
    told = json.loads((path / f"{generation:010d}.json").read_text())["manifest"]
    return "in_place" in told


ROOT = Path(__file__).parents[2]


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The newest manifest with something changed by one who knows how to make checksums."""
    file = max(path.glob("[0-9]*.json"))
    told = json.loads(file.read_text())["manifest"]
    change(told)
    put(file, told)
    with contextlib.suppress(Exception), contextlib.ExitStack() as stack:  # of nonsense there is no checksum
        found = decode(file.read_bytes(), int(file.stem))
        opened = Opened(str(path), found, stack)
        tables = {name: opened.whole_table(name) for name in found.arrays}
        put(file, told | {"content": content_of(found.stamp, found.spec, found.counters, found.arrays, tables)})
    return file


def put(file: Path, told: Any) -> None:
    """Write a manifest with the checksum of its bytes."""
    body = json.dumps(told, separators=(",", ":")).encode()
    file.write_bytes(b'{"checksum":"' + digest(body).hex().encode() + b'","manifest":' + body + b"}\n")
