"""The directory of a shared buffer: made once, opened by all, removed by the process that made it.

shared.json     format version, spec, and the boot at which it was made; written last
lock            the file that `FileLock` locks
control.bin     the words that `shared_control` names
rows.bin, wide_0.bin, ...    the items, sparse
tree.bin        the sum tree of a prioritized buffer
journal.bin     slots int32 [room], values float32 [room], and items [room], which an unfinished update overwrote
making          is there while the other files are made
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import math
import mmap
import os
import sys
import tempfile
from multiprocessing import util
from typing import Final

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.descriptors import Descriptor
from functional_rb.base.errors import FULL, StorageFullError
from functional_rb.base.files import aside, open_regular, read_text
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Device, Memmap
from functional_rb.convert.json import to_json
from functional_rb.native import shared_control as control
from functional_rb.shared.lock import FileLock
from functional_rb.storage.directory import explained, file_name, full
from functional_rb.storage.mapped_array import allocate
from functional_rb.structures.stored_arrays import WIDE, shapes

FORMAT: Final = "functional_rb.shared"
VERSION: Final = 1
# The most bytes of items that the journal saves: an update that rewrites leaves is made in pieces of this size.
JOURNAL_BYTES: Final = 2**20
# The fewest slots that the journal has: an update of priorities alone is made in pieces of so many.
JOURNAL_SLOTS: Final = 2**14
# Files get room on the disk in steps of at most so many bytes.
STEP_BYTES: Final = 2**24
BOOT: Final = "/proc/sys/kernel/random/boot_id"
Array = NumpyArray


@dataclasses.dataclass(frozen=True)
class Region:
    """One array in a file."""

    name: str  # of the file
    shape: tuple[int, ...]  # of the array
    dtype: str  # of the array
    whole: bool  # whether its room on the disk is taken at once

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def regions(spec: BufferSpec) -> list[Region]:
    """The files of a buffer: control, tree (empty if there is none), journal, rows, wide arrays."""
    return [
        Region("control.bin", (control.BYTES // 8,), "int64", True),
        Region("tree.bin", spec.plan.tree_shape or (0, 1), "float32", True),
        Region("journal.bin", (8 * slots(spec) + room(spec) * spec.plan.layout.item_bytes,), "uint8", True),
        *(Region(file_name(name), *kind, False) for name, kind in shapes(spec.plan.layout, spec.capacity).items()),
    ]


def room(spec: BufferSpec) -> int:
    """How many items the journal can save."""
    return max(1, JOURNAL_BYTES // max(spec.plan.layout.item_bytes, 1))


def slots(spec: BufferSpec) -> int:
    """How many slots and priorities the journal can save."""
    return max(room(spec), JOURNAL_SLOTS)


class SharedFiles:
    """The arrays of a shared buffer, over its files.

    Attributes:
        spec: of the buffer.
        directory: an absolute path.
        lock: of the directory.
        control: int64, the words that `shared_control` names.
        tree: float32 [rows, FANOUT], empty for a sampler without one.
        journal: 3 + wide vectors uint8, what it is made of.
        saves: how many slots it has room for, with their priorities alone, and with their items.
        rows: int32 [capacity, words].
        wide: arrays [capacity, *shape].
    """

    def __init__(self, spec: BufferSpec, directory: str, lock: FileLock) -> None:
        self.spec, self.directory, self.lock = spec, directory, lock
        self._files: list[Descriptor] = []
        self._regions = regions(spec)
        arrays = [self._mapped(region) for region in self._regions]
        self.control, self.tree, saved, self.rows = arrays[:4]
        self.wide = tuple(arrays[4:])
        self.saves = slots(spec), room(spec)
        parts = [4 * slots(spec)] * 2 + [room(spec) * size for size in self._item_sizes()]
        self.journal = tuple(np.split(saved, np.cumsum(parts[:-1])))

    # Bytes of an item in the rows and in each wide array.
    def _item_sizes(self) -> list[int]:
        layout = self.spec.plan.layout
        return [4 * layout.row_words, *(leaf.nbytes for leaf in layout.wide)]

    def _mapped(self, region: Region) -> Array:
        path = os.path.join(self.directory, region.name)
        with explained(path):
            try:
                file, size = open_regular(path, os.O_RDWR)
            except FileNotFoundError:
                raise ValueError(f"{path}: the file is missing; remove the directory") from None
            self._files.append(file)
            if size != region.nbytes:
                raise ValueError(
                    f"{path}: expected {region.nbytes} bytes, got {size}: the file is damaged; remove the directory"
                )
            if not size:
                return np.empty(region.shape, region.dtype)
            return np.frombuffer(mmap.mmap(file.fd, size), region.dtype).reshape(region.shape)

    def reserve(self, slots: int) -> None:
        """Take room on the disk for all slots below a number; called under the lock, before anything is written.

        Writing to a hole of a mapped file on a full disk would be a SIGBUS, which kills the process.

        Raises:
            StorageFullError: if there is none; the buffer is as it was.
        """
        reserved = int(self.control[control.RESERVED])
        if slots <= reserved:
            return
        step = max(1, STEP_BYTES // max(self.spec.plan.layout.item_bytes, 1))
        # Twice as much each time, up to a step: few calls, and little room that is never used.
        wanted = min(self.spec.capacity, max(slots, reserved + min(reserved + 1, step)))
        try:
            self._allocate(reserved, wanted)
        except StorageFullError:
            # What is needed may still fit.
            wanted = slots
            self._allocate(reserved, wanted)
        self.control[control.RESERVED] = wanted

    def reserve_again(self) -> None:
        """See that there is the room that is said to be reserved: a copy of the files may have holes in its place."""
        self._allocate(0, int(self.control[control.RESERVED]))

    def _allocate(self, start: int, stop: int) -> None:
        for file, size, region in zip(self._files[3:], self._item_sizes(), self._regions[3:], strict=True):
            if size and start < stop:
                _allocate(file.fd, start * size, (stop - start) * size, os.path.join(self.directory, region.name))


def _allocate(fd: int, offset: int, size: int, path: str) -> None:
    try:
        allocate(fd, offset, size)
    except OSError as error:
        if error.errno in FULL:
            raise full(path, error.strerror, size) from error
        raise


def open_shared(spec: BufferSpec) -> SharedFiles:
    """The files that a spec names, made if they are not there.

    Raises:
        ValueError: if they are those of another spec, of another format version, or may be torn.
        FileExistsError: if there are files of that name which are no shared buffer's.
        StorageFullError: if there is no room.
        OSError: if the system refuses for another reason; nothing is in the way of a later call.
    """
    storage = spec.storage
    assert isinstance(storage, Memmap)
    if storage.path is not None:
        return _opened(spec, os.path.abspath(storage.path), bool(storage.auto_cleanup))
    with explained(tempfile.gettempdir()):
        directory = tempfile.mkdtemp(prefix="functional_rb_")
    try:
        return _opened(spec, directory, storage.auto_cleanup is not False)
    except BaseException:  # nobody else knows it; now there may be no descriptor left to look into it
        util.Finalize(None, remove, (directory,), exitpriority=0)
        raise


def _opened(spec: BufferSpec, directory: str, cleanup: bool) -> SharedFiles:
    for _ in range(100):
        with explained(directory):
            os.makedirs(directory, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # somebody has just removed the directory
            files = _locked(spec, directory, make=True, cleanup=cleanup)
            if files is not None:
                return files
    raise FileNotFoundError(errno.ENOENT, "a shared buffer's directory is removed as often as it is made", directory)


def attach(spec: BufferSpec, directory: str) -> SharedFiles:
    files = None
    if os.path.isdir(directory):
        files = _locked(spec, directory, make=False, cleanup=False)
    if files is None:
        raise FileNotFoundError(
            errno.ENOENT, "the shared buffer is gone: the process that made it has ended and removed it", directory
        )
    return files


# Under the directory's lock: map the files, make them first if need be. None if the directory has been removed.
def _locked(spec: BufferSpec, directory: str, make: bool, cleanup: bool) -> SharedFiles | None:
    path = os.path.join(directory, "lock")
    with explained(path):
        lock = FileLock(path)

    def work() -> SharedFiles | None:
        # Whoever removes a directory holds its lock, and we may have waited for that.
        if not lock.is_at(path):
            return None
        if not os.path.lexists(os.path.join(directory, "shared.json")):
            if not make:
                return None
            _make(spec, directory)
            if cleanup:
                # Unlike atexit, this runs in processes that multiprocessing starts too. Children that fork skip it.
                util.Finalize(None, remove, (directory,), exitpriority=0)
        _check_description(spec, directory)
        return SharedFiles(spec, directory, lock)

    return lock.hold(work, lambda: None)


# Make all files. A process that dies doing so leaves `making` behind, from which the next knows to begin anew.
def _make(spec: BufferSpec, directory: str) -> None:
    making = os.path.join(directory, "making")
    files = regions(spec)
    if not os.path.exists(making):
        for region in files:
            path = os.path.join(directory, region.name)
            if os.path.exists(path):
                raise FileExistsError(
                    errno.EEXIST, "no shared buffer's file; give Memmap another path, or remove the file", path
                )
    try:
        with explained(making):
            description = json.dumps(_description(spec))
            with aside(directory) as scratch:
                whole = os.path.join(scratch, "making")
                with open(whole, "w") as file:
                    file.write(description)
                os.replace(whole, making)
        for region in files:
            path = os.path.join(directory, region.name)
            with explained(path):
                _make_file(region, path)
        with explained(making):
            # Last: where this file is, all others are.
            os.rename(making, os.path.join(directory, "shared.json"))
    except StorageFullError:
        _remove_files(directory)
        raise


def _make_file(region: Region, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with Descriptor(os.open, path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666) as file:
        os.ftruncate(file.fd, region.nbytes)
        if region.whole and region.nbytes:
            _allocate(file.fd, 0, region.nbytes, path)


# What all processes must agree on: not where the files lie, nor how many items are usually drawn.
def _description(spec: BufferSpec) -> dict[str, object]:
    same = dataclasses.replace(spec, storage=Device(), batch_size=None)
    described = {"format": FORMAT, "version": VERSION, "byteorder": sys.byteorder, "boot": _boot()}
    return described | {"spec": json.loads(to_json(same))["spec"]}


def _boot() -> str:
    """Which start of the machine this is; "" where the system does not say.

    Raises:
        OSError: if only this process cannot find out, as it can open no more files.
    """
    try:
        with open(BOOT) as file:
            return file.read().strip()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return ""


# Refuse the files of a directory that are not of the buffer that a spec names.
def _check_description(spec: BufferSpec, directory: str) -> None:
    path = os.path.join(directory, "shared.json")
    with explained(path):
        try:
            description = json.loads(read_text(path))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: the file is damaged ({error}); remove the directory") from None
        expected = _description(spec)
    if not isinstance(description, dict):
        raise ValueError(f"{path}: not what describes a shared buffer; give another path, or remove the file")
    if (description.get("format"), description.get("version")) != (FORMAT, VERSION):
        raise ValueError(
            f"{path}: expected format {FORMAT} version {VERSION}, got {description.get('format')} version "
            f"{description.get('version')}; use the version of functional_rb that made it, or remove the directory"
        )
    if description.get("boot") != expected["boot"]:
        raise ValueError(
            f"{path}: made before the machine was started last, so the files may be torn; remove the directory"
        )
    for differs in (_difference(expected[name], description.get(name), name) for name in ("byteorder", "spec")):
        if differs is not None:
            raise ValueError(
                f"{path}: the buffer there has another spec; {differs}; give the same spec in every process, with the "
                f"keys of dicts in any order, or another path"
            )


# Where two values from JSON differ first, or None; names in objects may be in any order.
def _difference(expected: object, actual: object, where: str) -> str | None:
    if isinstance(expected, dict) and isinstance(actual, dict) and expected.get("type") == actual.get("type"):
        if expected.keys() == actual.keys():
            differences = (_difference(expected[name], actual[name], f"{where}/{name}") for name in expected)
            return next((difference for difference in differences if difference is not None), None)
        expected, actual = [*expected], [*actual]
    wanted, got = json.dumps(expected), json.dumps(actual)  # as text: True is not 1
    return None if wanted == got else f"{where}: expected {wanted:.300}, got {got:.300}"


def remove(directory: str) -> None:
    """Remove the files of a shared buffer, and the directory if nothing else is in it; open buffers stay usable."""
    path = os.path.join(directory, "lock")
    if os.path.exists(path):
        lock = FileLock(path)
        lock.hold(lambda: _remove_files(directory) if lock.is_at(path) else None, lambda: None)
        lock.close()
    with contextlib.suppress(OSError):
        os.rmdir(directory)


# Remove all files, the lock last, as others may wait for it. Cut short, it leaves them as if still being made.
def _remove_files(directory: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.rename(os.path.join(directory, "shared.json"), os.path.join(directory, "making"))
    wide = [name for name in os.listdir(directory) if name.startswith(WIDE) and name.endswith(".bin")]
    for name in ("rows.bin", *wide, "tree.bin", "journal.bin", "control.bin", "making", "lock"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, name))
