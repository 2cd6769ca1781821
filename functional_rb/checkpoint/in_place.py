"""Buffers whose mapped files lie in the checkpoint's directory: their rows are not copied.

The manifest has the checksums of their blocks alone. From the instant of the save what is overwritten goes to an undo
log first (`functional_rb.undo`), and loading takes that back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from functional_rb import undo
from functional_rb.checkpoint import disk
from functional_rb.checkpoint.blocks import Mask, Stored, bytes_of, chunks, is_items, runs_of, stored_arrays
from functional_rb.checkpoint.opened import Opened, mapped_file
from functional_rb.checkpoint.reading import open_file, read_into
from functional_rb.errors import CorruptCheckpointError
from functional_rb.mapped import MappedFiles
from functional_rb.mapped_directory import shapes
from functional_rb.storages import Memmap, Storage
from functional_rb.undo import Logs, Torn, UndoLog

if TYPE_CHECKING:
    from functional_rb.buffer_spec import BufferSpec

Arrays = dict[str, np.ndarray[Any, Any]]
KEPT = "kept_"


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The instant of a save.

    Attributes:
        files: of the buffer.
        number: of the logs that lead back to it.
        present: of each array that lies in files the blocks outside of which nothing was ever written.
    """

    files: MappedFiles
    number: int
    present: dict[str, Mask]

    def sync(self) -> None:
        """Have files and logs on the disk."""
        self.files.flush()
        assert self.files.directory is not None
        for prefix in (undo.ITEMS, undo.FRAMES):
            for number in undo.numbers(self.files.directory, prefix):
                fd = os.open(os.path.join(self.files.directory, undo.name_of(number, prefix)), os.O_RDONLY)
                try:
                    disk.fsync(fd)
                finally:
                    disk.close(fd)


def names(spec: BufferSpec) -> dict[str, str]:
    """The arrays of a checkpoint that lie in mapped files, and what they are called there."""
    return {name: name.removeprefix(KEPT) for name in stored_arrays(spec) if name.removeprefix(KEPT) in shapes(spec)}


def is_here(directory: str | None, place: str) -> bool:
    """Whether two paths are one directory."""
    try:
        return directory is not None and os.path.samefile(directory, place)
    except OSError:  # one of them is not there
        return False


def relocated(storage: Storage, directory: str) -> Storage:
    """A storage whose files lay in a checkpoint's directory, where this is now: it may have been moved, or copied."""
    if isinstance(storage, Memmap) and storage.path is not None and not is_here(storage.path, directory):
        return dataclasses.replace(storage, path=directory)
    return storage


def taken(files: MappedFiles | None, directory: str | None) -> Snapshot | None:
    """The instant of a save to a directory, if files lie there to stay. Hold the lock of the buffer."""
    if files is None or directory is None or not files.stays or not files.are_at(directory):
        return None
    with disk.typed(directory):
        return begin(files)


def begin(files: MappedFiles) -> Snapshot:
    """Keep from now on what is overwritten, so that the files can be led back to this instant.

    Raises:
        CheckpointWriteError: if the logs cannot be made; then those before stay in force.
        StorageFullError: if there is no room for them; likewise.
    """
    spec, directory, older = files.spec, files.directory, files.undo
    assert directory is not None
    present = {name: _present(files, stored_arrays(spec)[name], there) for name, there in names(spec).items()}
    number = 1 + max([0, *undo.numbers(directory), *([] if older is None else [older.number])])
    items, kept = _groups(spec)
    frames = None
    if kept:
        before = None if older is None else older.frames
        in_use = np.logical_or.reduce(_rows(spec, kept, present))
        frames = UndoLog(directory, number, [files.kept[name] for name in kept], in_use, before, undo.FRAMES)
    in_use = np.logical_or.reduce(_rows(spec, items, present))
    log = UndoLog(directory, number, [files.rows, *files.wide], in_use, None if older is None else older.items)
    files.undo = Logs(log, frames)
    if older is not None:
        older.close()
    return Snapshot(files, number, present)


def _groups(spec: BufferSpec) -> tuple[list[str], list[str]]:
    """The mapped arrays whose rows are logged together: of items, and of frames."""
    found = list(shapes(spec))
    return [name for name in found if is_items(name)], [name for name in found if not is_items(name)]


def _present(files: MappedFiles, stored: Stored, name: str) -> Mask:
    mask = np.zeros(stored.count, bool)
    for first, stop in files.written(name):
        mask[stored.of_rows(first, stop)] = True
    return mask


def _rows(spec: BufferSpec, group: list[str], blocks: dict[str, Mask]) -> list[Mask]:
    """Of each mapped array of a group which rows are in some blocks; of arrays without any byte none."""
    arrays, found = stored_arrays(spec), []
    for name in group:
        rows = np.zeros(shapes(spec)[name][0][0], bool)
        known = name if is_items(name) else KEPT + name
        for run in runs_of(blocks[known]) if known in blocks else ():
            rows[slice(*arrays[known].span(run))] = True
        found.append(rows)
    return found


def prune(directory: str, needed: list[int], gone: list[int]) -> None:
    """Remove logs that no checkpoint needs; those of a save that is under way have larger numbers.

    Args:
        directory: of the files.
        needed: the logs of the checkpoints that stay.
        gone: and of those that do not.
    """
    first = min(needed) if needed else max(gone, default=0) + 1
    for prefix in (undo.ITEMS, undo.FRAMES):
        for number in undo.numbers(directory, prefix):
            if number < first:
                disk.unlink(os.path.join(directory, undo.name_of(number, prefix)))


def read(opened: Opened, spec: BufferSpec, advance: Callable[[int], None]) -> Arrays:
    """Copies of a checkpoint's arrays, verified; whoever writes to the files meanwhile does no harm.

    The rows are read first and then the logs: whatever has been overwritten by then is in these already.
    """
    arrays = stored_arrays(spec)
    found = {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes(spec).items()}
    for name, there in names(spec).items():
        stored = arrays[name]
        found[there] = stored.blank_array()
        into, path = bytes_of(found[there]), opened.beside(mapped_file(name))
        with contextlib.ExitStack() as stack:
            file, _ = open_file(path, stack)
            for chunk in chunks(runs_of(opened.owners(name) >= 0)):
                start, stop = (row * stored.row_bytes for row in stored.span(chunk))
                read_into(path, file, start, into[start:stop])
    _lead_back(opened, spec, found, advance, None)
    return found


def take_over(opened: Opened, spec: BufferSpec, files: MappedFiles, advance: Callable[[int], None]) -> None:
    """Make the content of files that were just opened that of a checkpoint, verified.

    A kill in the midst of it changes no checkpoint. What was written since to rows that the checkpoint does not have
    becomes zero again, as it was.
    """
    arrays = files.arrays()
    _lead_back(opened, spec, arrays, advance, files)
    for name, there in names(spec).items():
        stored, array = stored_arrays(spec)[name], arrays[there]
        for first, stop in files.written(there):
            for start, end in chunks([(stored.of_rows(first, stop).start, stored.of_rows(first, stop).stop)]):
                unknown = runs_of(opened.owners(name)[start:end] < 0)
                for run in unknown:
                    rows = array[slice(*stored.span((start + run[0], start + run[1])))]
                    if rows.view(np.uint8).any():
                        rows[...] = 0


def _lead_back(
    opened: Opened, spec: BufferSpec, arrays: Arrays, advance: Callable[[int], None], files: MappedFiles | None
) -> None:
    """Undo what was written since the checkpoint, in arrays by their mapped names, and verify."""
    manifest = opened.manifest
    owned = {name: opened.owners(name) >= 0 for name in names(spec)}
    torn: dict[str, Torn] = {}
    for group, prefix in zip(_groups(spec), (undo.ITEMS, undo.FRAMES), strict=True):
        room = None if files is None else files.reserve_slots if prefix == undo.ITEMS else files.reserve_places
        rows = [arrays[name] for name in group]
        wanted = _rows(spec, group, owned)
        if group:
            ends = undo.roll_back(opened.directory, manifest.undo, rows, prefix=prefix, wanted=wanted, room=room)
            if ends:  # one that no kill leaves so, if there is one
                torn |= dict.fromkeys(group, min(ends, key=lambda end: end.short))
    for name, there in names(spec).items():
        stored, table = manifest.arrays[name], opened.whole_table(name)
        content = bytes_of(arrays[there])
        for chunk in chunks(runs_of(owned[name])):
            start, stop = (row * stored.row_bytes for row in stored.span(chunk))
            if stored.digests(content[start:stop]) != table[slice(*chunk)].tobytes():
                opened.check_there()
                raise _damage(opened.beside(mapped_file(name)), torn.get(there))
            advance(stop - start)


def _damage(mapped: str, torn: Torn | None) -> CorruptCheckpointError:
    """What to say of a mapped file whose rows, led back, are not those of the checkpoint."""
    if torn is None:
        return CorruptCheckpointError(mapped, "its content, led back by the undo logs, is not what was saved")
    # What a kill leaves of a record keeps rows that were not yet overwritten: so the record was whole once.
    return CorruptCheckpointError(
        torn.path, f"{torn.reason}, and without it the rows in {os.path.basename(mapped)} are not what was saved"
    )
