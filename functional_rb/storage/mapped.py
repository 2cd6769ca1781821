"""Memory-mapped files that hold the rows of a buffer, as NumPy arrays.

The files are sparse (`mapped_array`): room is reserved before anything is written, by `MappedFiles.reserve` and
`make_room`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from functional_rb.base.arrays import BackendArray, NumpyArray
from functional_rb.base.descriptors import Descriptor
from functional_rb.base.files import open_regular
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.core import counters
from functional_rb.core.draft import Arrays
from functional_rb.storage.directory import Directory, check_layout, described, explained, file_name, need_posix
from functional_rb.storage.directory import filed as filed
from functional_rb.storage.directory import shapes as shapes
from functional_rb.storage.mapped_array import MappedArray
from functional_rb.storage.undo_log import Logs
from functional_rb.structures import frame_ring, stored_arrays
from functional_rb.structures.ring import around, modulus

Vector = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


class MappedFiles:
    """The files of a buffer.

    Attributes:
        rows: int32 [capacity, words], writable unless opened otherwise, over a shared mapping.
        wide: arrays [capacity, *shape], dtypes as stored.
        auxiliary: the arrays of `State.auxiliary` that lie in files: the frames of compact storage.
        directory: where the files are; None for files that have no name, and vanish with the last mapping.
        complete: whether there is room on the disk for all of it.
        undo: where what checkpoints still need is kept before it is overwritten; None if none needs these files.
        pending: the numbers of the logs of saves that go on.
        committed: those of checkpoints that are there, or were.
    """

    def __init__(self, spec: BufferSpec, arrays: dict[str, MappedArray], directory: Directory | None) -> None:
        self.spec, self._arrays, self._directory = spec, arrays, directory
        self.directory = None if directory is None else directory.path
        self.rows = arrays["rows"].array
        self.wide = tuple(array.array for array in stored_arrays.wide_of(spec.plan.layout, arrays))
        self.auxiliary = {name: arrays[name].array for name in filed(spec)}
        self._pid = os.getpid()
        self._removed = False
        self.complete = False
        self._room = 0, 0
        self.undo: Logs | None = None
        self.pending: set[int] = set()
        self.committed: set[int] = set()
        self._note_complete()

    def _note_complete(self) -> None:
        self.complete = all(array.complete for array in self._arrays.values())

    def check_process(self) -> None:
        """Refuse to go on in a forked process: what it wrote would change the state that it came from."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                "Memmap: this state's files belong to the process that made it, and this one was forked from it; "
                "make a state here (frb.load), start processes by 'forkserver' or 'spawn', which send them a copy (a "
                "DataLoader: multiprocessing_context='forkserver'), or use Memmap(shared=True)"
            )

    def reserve(self, first: int, n: int) -> None:
        """Have room on the disk for the items in slots [first, first + n), or raise `StorageFullError`."""
        if self.complete or n <= 0 or (self._room[0] <= first and first + n <= self._room[1]):
            return
        stored = [array for name, array in self._arrays.items() if name not in self.auxiliary]
        for array in stored:
            array.reserve(first, n)
        # The chunks of the last slot reach further: until there nothing need be asked again.
        self._room = first, min([array.chunk_end(first + n) for array in stored])
        self._note_complete()

    def reserve_slots(self, slots: NumpyArray) -> None:
        """Have room for items in slots integers [n], where the file may have holes, or raise `StorageFullError`."""
        if not self.complete:
            for name, array in self._arrays.items():
                if name not in self.auxiliary:
                    array.reserve_rows(slots)
            self._note_complete()

    def reserve_frames(self, first: int, n: int) -> None:
        if not self.complete:
            for name in self.auxiliary:
                self._arrays[name].reserve(first, n)
            self._note_complete()

    @property
    def ready(self) -> bool:
        """Whether it may be written to without further ado."""
        return self.complete and self.undo is None

    def prepare(self, first: int, n: int) -> None:
        """Have room for items in slots [first, first + n), and keep what checkpoints need of those that are there."""
        self.reserve(first, n)
        if self.undo is not None and n > 0:
            self.undo.before_items(np.arange(first, first + n))

    def prepare_slots(self, slots: BackendArray) -> None:
        """Have room for items in slots integers [n], and keep what checkpoints need of those that are there."""
        self.reserve_slots(slots)
        if self.undo is not None:
            self.undo.before_items(np.asarray(slots))

    def prepare_handles(self, handles: Vector) -> None:
        """Have room for rewriting the items that handles int32 [n] name, and keep what checkpoints need of these."""
        if not self.ready:
            capacity = self.spec.capacity
            known = (handles >= 0) & (handles < modulus(capacity))
            # What names nothing may be written as slot 0, as it was.
            self.prepare_slots(np.where(known, handles, 0) % np.int32(capacity))

    def prepare_frames(self, first: int, n: int) -> None:
        self.reserve_frames(first, n)
        if self.undo is not None and n > 0:
            self.undo.before_frames(np.arange(first, first + n))

    def make_room(self, spec: BufferSpec, numbers: Vector, batch: int) -> None:
        """Have room for all that adding a batch may write, or raise `StorageFullError`: then nothing has been written.

        What checkpoints need of it is kept; of writers that choose slots the recorder does that, which knows them. The
        writer of the spec may be another than when the files were made; the numbers are `State.counters` in NumPy.
        """
        self.check_process()
        if self.ready:
            return
        rows, ring = spec.rows(batch), spec.plan.ring
        if not spec.writer.in_order:  # which fill the slots from the first on
            self.reserve(0, min(spec.capacity, int(numbers[counters.SIZE]) + rows))
            return
        first = int(numbers[counters.CURSOR]) % ring.length
        if spec.known.buffer and first + rows <= ring.length:  # the usual case at once
            self.prepare(first, rows)
            return
        known = counters.read(spec.plan, numbers)
        steps = rows // ring.lanes
        for lane, cursor in enumerate(known.ends.cursors.tolist()):
            for start, stop in around(cursor, steps, ring.length):
                self.prepare(lane * ring.length + start, stop - start)
        if spec.plan.frames is not None:
            # Where fewer frames are new than may be, those before the cursor are written as they are.
            room, most = spec.plan.frames.room, spec.plan.frames.most * steps
            for lane, cursor in enumerate(known.more[frame_ring.CURSOR].tolist()):
                for start, stop in around(cursor - most, 2 * most, room):
                    self.prepare_frames(lane * room + start, stop - start)

    def reserve_all(self) -> None:
        for array in self._arrays.values():
            array.reserve(0, len(array.array))
        self._note_complete()

    def reserve_rows(self, name: str, first: int, n: int) -> None:
        """Have room on the disk for rows [first, first + n) of one array, or raise `StorageFullError`."""
        self._arrays[name].reserve(first, n)

    def prepare_places(self, places: BackendArray) -> None:
        self.reserve_places(places)
        if self.undo is not None:
            self.undo.before_frames(np.asarray(places))

    def reserve_places(self, places: BackendArray) -> None:
        for name in self.auxiliary:
            self._arrays[name].reserve_rows(places)

    def descriptors(self) -> dict[str, int]:
        """The descriptors of the files, by array; they are closed with the last mapping here."""
        return {name: array._file.fd for name, array in self._arrays.items()}

    def written(self, name: str) -> Iterator[tuple[int, int]]:
        """Rows of an array outside of which nothing was ever written, as (first, stop)."""
        return self._arrays[name].written() if self._arrays[name].array.nbytes else iter(())

    def replace(self, arrays: Mapping[str, BackendArray]) -> None:
        """Exchange arrays' content, by name (those without bytes may be left out); checkpoints keep what they need."""
        if self.undo is not None:
            self.undo.before_all()
        for name, values in arrays.items():
            self._arrays[name].clear()
            self._arrays[name].fill(values)
        self._room = 0, 0
        self._note_complete()

    def release(self) -> None:
        if self._directory is not None:
            self._directory.release()

    @property
    def stays(self) -> bool:
        """Whether the files lie in a directory, and are not removed in the end."""
        return self.directory is not None and not self._removed

    def are_at(self, place: str) -> bool:
        """Whether a path names the directory that these files lie in, wherever it was when they were opened."""
        if self._directory is None or not self._directory.is_at(place):
            return False
        if self.directory is None or not self._directory.is_at(self.directory):
            self.directory = os.path.abspath(place)  # it has been renamed
        return True

    def arrays(self) -> dict[str, NumpyArray]:
        """All of them by name, as in `shapes`."""
        return {name: array.array for name, array in self._arrays.items()}

    def remove_at_end(self) -> None:
        """Remove the files once nobody here uses them, at the latest when this process ends."""
        assert self._directory is not None
        self._removed = True
        self._directory.remove_with(self, self.spec)

    def discard(self) -> None:
        if self._directory is not None:
            self._directory.undo()

    def flush(self) -> None:
        for array in self._arrays.values():
            if array.array.nbytes:
                array.array.base.flush()  # type: ignore[union-attr]  # its mapping
            os.fsync(array._file.fd)

    def copy(self) -> MappedFiles:
        """The same content in files without a name; only what was written takes time and room.

        They lie in the same directory, else in the system's directory for temporary files.
        """
        self.check_process()
        copied = scratch(self.spec, self.directory)
        for name, array in self._arrays.items():
            array.copy_to(copied._arrays[name])
        copied._note_complete()
        return copied


def create(spec: BufferSpec, resume: Callable[[MappedFiles], None] | None = None) -> MappedFiles:
    """The files that `spec.storage` asks for.

    Args:
        spec: of a buffer whose storage is `Memmap`.
        resume: goes on keeping what checkpoints beside the files still need of them; called before anything is written.
            What it raises removes the files that were made here.

    Raises:
        FileExistsError: if there are some and `existsok` is not said.
        ValueError: if those are of another buffer, naming file, what was expected, and what is there.
        StorageInUseError: if somebody else writes to them.
        StorageFullError: if there is no room, even for files in which nothing is written yet.
        OSError: if the directory cannot be made, or not be written to, as PermissionError and the like.

    Example:
        >>> import functional_rb as frb
        >>> spec = frb.BufferSpec((frb.Unbounded((256,)),), 200_000_000, storage=frb.Memmap())
        >>> create(spec).rows.nbytes
        204800000000
    """
    storage = spec.storage
    assert isinstance(storage, Memmap)
    if storage.path is None:
        return scratch(spec)
    files = _create_all(spec, Directory(storage.path), not storage.existsok, resume)
    if storage.auto_cleanup:
        files.remove_at_end()
    return files


# Files that are all there, or none of those that were not there before.
def _create_all(
    spec: BufferSpec, directory: Directory, fresh: bool, resume: Callable[[MappedFiles], None] | None
) -> MappedFiles:
    try:
        directory.describe(spec, fresh)
        arrays = {
            name: MappedArray(directory.open(name), shape, dtype, directory.join(file_name(name)))
            for name, (shape, dtype) in shapes(spec).items()
        }
        files = MappedFiles(spec, arrays, directory)
        if resume is not None:
            resume(files)
        return files
    except BaseException:
        directory.undo()
        raise


def open_existing(spec: BufferSpec, directory: str, writable: bool) -> MappedFiles:
    """The files that are in a directory. As with `create`, a writer looks after the checkpoints there.

    If they will be written to they are locked, and else only looked at.

    Raises:
        FileNotFoundError: if one is missing.
        ValueError: as `create` does.
        StorageInUseError: as `create` does.
    """
    check_layout(directory, described(spec))
    held = Directory(directory) if writable else None
    arrays = {}
    try:
        for name, (shape, dtype) in shapes(spec).items():
            path = os.path.join(os.path.abspath(directory), file_name(name))
            with explained(path):
                file, _ = open_regular(path, os.O_RDWR if writable else os.O_RDONLY)
            arrays[name] = MappedArray(file, shape, dtype, path, writable)
        files = MappedFiles(spec, arrays, held)
    except BaseException:
        if held is not None:  # the error may live on, and the lock with it
            held.release()
        raise
    files.directory = os.path.abspath(directory)
    return files


def scratch(spec: BufferSpec, directory: str | None = None) -> MappedFiles:
    """Files without a name, of any buffer: nobody else sees them, and they vanish with the last mapping."""
    need_posix()
    if directory is not None and not os.access(directory, os.W_OK):
        directory = None
    arrays = {}
    for name, (shape, dtype) in shapes(spec).items():
        where = directory or tempfile.gettempdir()
        with explained(where), tempfile.TemporaryFile(dir=where, buffering=0) as unnamed:
            file = Descriptor(os.dup, unnamed.fileno())
        arrays[name] = MappedArray(file, shape, dtype, f"{where} (a file without a name)")
    return MappedFiles(spec, arrays, None)


def inherited(spec: BufferSpec, shared: Mapping[str, Descriptor]) -> MappedFiles:
    """Files without a name that another process has made, and maps too; they may not be written."""
    where, of = "a file without a name, of another process", shapes(spec)
    return MappedFiles(spec, {name: MappedArray(file, *of[name], where) for name, file in shared.items()}, None)


def filled(spec: BufferSpec, arrays: Mapping[str, NumpyArray], directory: str | None = None) -> MappedFiles:
    """New files without a name, in a directory or the system's for temporary files, filled with arrays by name.

    What is missing is zero, and what is zero takes no room.
    """
    return pieced(spec, {name: [(0, values)] for name, values in arrays.items()}, directory)


def pieced(
    spec: BufferSpec, pieces: dict[str, list[tuple[int, NumpyArray]]], directory: str | None = None
) -> MappedFiles:
    """Files as `filled` makes them, of some pieces of each array: the first row of each, and its content."""
    files = scratch(spec, directory)
    for name, some in pieces.items():
        for first, values in some:
            files._arrays[name].fill(values, first)
    files._note_complete()
    return files


def replaced(
    spec: BufferSpec, arrays: Arrays, create: Callable[[BufferSpec], MappedFiles]
) -> tuple[MappedFiles, Arrays]:
    """The files that `spec.storage` asks for, with the content of a state's arrays, and these with the files' own.

    Raises:
        OSError: as from `create`; then what was made is removed.
    """
    assert isinstance(spec.storage, Memmap)
    try:
        files = create(spec)
    except FileExistsError as error:
        if not os.path.isdir(spec.storage.path or ""):
            raise
        what = (
            "Memmap: there are files of a buffer already, and frb.load would put the checkpoint in place of what they "
            "hold; give storage=frb.Memmap(path, existsok=True) if that is meant, else another path, or frb.Host()"
        )
        raise FileExistsError(error.errno, what, error.filename) from None
    content = stored_arrays.named(arrays.rows, arrays.wide) | arrays.auxiliary
    try:
        files.replace({name: content[name] for name in shapes(spec)})
    except BaseException:
        files.discard()
        raise
    return files, within(files, arrays)


def within(files: MappedFiles, arrays: Arrays) -> Arrays:
    """A state's arrays with those of files in place of what lies there."""
    return arrays._replace(rows=files.rows, wide=files.wide, auxiliary=arrays.auxiliary | files.auxiliary)
