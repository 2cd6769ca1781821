"""Buffers whose mapped files lie in the checkpoint's directory: their rows are not copied.

The manifest has the checksums of their blocks alone. From the instant of the save what is overwritten goes to an undo
log first (`functional_rb.storage.undo_log`), and loading takes that back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.errors import CheckpointError, CheckpointWriteError, CorruptCheckpointError
from functional_rb.base.files import UnusableFileError, open_regular
from functional_rb.buffer.reader import TakeSnapshot
from functional_rb.buffer.storage_kinds import Memmap, Storage
from functional_rb.checkpoint.blocks import Mask, bytes_of, chunks, marked, runs_of, stored_arrays
from functional_rb.checkpoint.opened import Opened, generations, mapped_file, read_manifest
from functional_rb.storage import disk, mapped, undo_log
from functional_rb.storage.directory import shapes
from functional_rb.storage.folding import fold, may_go_on
from functional_rb.storage.mapped import MappedFiles
from functional_rb.storage.reading import open_file, read_into
from functional_rb.storage.undo_log import Earlier, Logs, Torn, UndoLog
from functional_rb.structures.stored_arrays import auxiliary_name, is_items, own_name

if TYPE_CHECKING:
    from functional_rb.buffer.spec import BufferSpec

Arrays = dict[str, NumpyArray]
# Of each array that lies in files, by its name in a checkpoint, some blocks.
Blocks = dict[str, Mask]
# By prefix, the number of the log that is appended to, and what it and those before it have recorded.
GoingOn = Mapping[str, tuple[int, Earlier | None]]
NOT_GOING_ON: GoingOn = {}


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The instant of a save."""

    files: MappedFiles  # of the buffer
    number: int  # of the logs that roll the files back to it
    present: Blocks  # of each array that lies in files the blocks outside of which nothing was ever written

    def sync(self) -> None:
        # Older logs too: the files' rows of older checkpoints are theirs alone now.
        self.files.flush()
        directory = _directory(self.files)
        for prefix in (undo_log.ITEMS, undo_log.FRAMES):
            for number in undo_log.numbers(directory, prefix):
                # It may have been folded meanwhile, and what is no file is no log of this buffer's.
                with contextlib.suppress(FileNotFoundError, UnusableFileError):
                    file, _ = open_regular(os.path.join(directory, undo_log.name_of(number, prefix)))
                    with file:
                        disk.fsync(file.fd)

    def committed(self) -> None:
        self.files.committed.add(self.number)

    def close(self) -> None:
        self.files.pending.discard(self.number)


def names(spec: BufferSpec) -> dict[str, str]:
    """The arrays of a checkpoint that lie in mapped files, and what they are called there."""
    return {name: own_name(name) for name in stored_arrays(spec) if own_name(name) in shapes(spec)}


def is_here(directory: str | None, place: str) -> bool:
    try:
        return directory is not None and os.path.samefile(directory, place)
    except OSError:  # one of them is not there
        return False


def relocated(storage: Storage, directory: str) -> Storage:
    """A storage whose files lay in a checkpoint's directory, where this is now: it may have been moved, or copied."""
    if isinstance(storage, Memmap) and storage.path is not None and not is_here(storage.path, directory):
        return dataclasses.replace(storage, path=directory)
    return storage


def check_led_to(storage: Storage, directory: str, manifest: str) -> None:
    """Refuse the storage that a manifest names, if files would be made or overwritten outside of its directory.

    Whoever wrote the manifest chose the path, and `existsok` and `auto_cleanup` with it. So only who loads may say
    that files lie elsewhere. Files without a name are nobody's, and may be in the temporary directory. The storage is
    as `relocated` gives it.
    """
    if not isinstance(storage, Memmap) or is_here(storage.path, directory):
        return
    if storage.path is not None or storage.auto_cleanup is False:
        where = repr(storage.path) if storage.path else "the temporary directory, to stay there"
        raise ValueError(
            f"{manifest}: the buffer's files lay in {where}, and not in the checkpoint's own directory; where files "
            f"are made is not for a checkpoint to say: give frb.load(..., storage=frb.Memmap(a path)), or "
            f"storage=frb.Host()"
        )


def taker(directory: str) -> TakeSnapshot:
    """What takes the snapshot for a save to a directory, if the files lie there to stay. Hold the buffer's lock."""

    def take(files: MappedFiles | None) -> Snapshot | None:
        if files is None or not files.stays or not files.are_at(directory):
            return None
        with disk.typed(directory):
            return begin(files)

    return take


def create(spec: BufferSpec) -> MappedFiles:
    """The files that `spec.storage` asks for, as `mapped.create` makes them; what checkpoints need of them is kept."""
    return mapped.create(spec, resume)


def begin(files: MappedFiles) -> Snapshot:
    """Keep from now on what is overwritten, so that the files can be rolled back to this instant."""
    older, number, present = files.undo, _next(files), _all_present(files)
    snapshot = Snapshot(files, number, present)
    # Nobody may come to close it, as where an interrupt comes.
    weakref.finalize(snapshot, files.pending.discard, number).atexit = False
    # From here on a write to these rows first appends what it overwrites; the older log stays until the new one is
    # there.
    files.undo = _logs(files, present, number)
    files.pending.add(number)
    if older is not None:
        older.close()
    _fold_failed(files)
    return snapshot


def resume(files: MappedFiles) -> None:
    """Go on keeping what checkpoints in the directory of files still need, which processes before this one have made.

    Call it before anything is written there that does not come from the logs. These are gone on with: processes that
    end again and again, without having saved, keep a row once.

    Raises:
        CheckpointWriteError: if the logs cannot be written to.
        StorageFullError: if there is no room.
    """
    directory, needed = _directory(files), {}
    with disk.typed(directory):
        if not any(undo_log.numbers(directory, prefix) for prefix in (undo_log.ITEMS, undo_log.FRAMES)):
            return
        try:
            needed = _needed(files)
            files.committed |= set(needed)
            files.undo = _logs(files, _united(needed.values()), 0, _going_on(files, needed)) if needed else None
        except CheckpointWriteError:
            raise
        except CheckpointError:  # a newer version's, or a damaged log: keep all that is there, as of now
            files.undo = _logs(files, _united([_all_present(files), *needed.values()]), _next(files))


def _directory(files: MappedFiles) -> str:
    assert files.directory is not None
    return files.directory


def _next(files: MappedFiles) -> int:
    directory = _directory(files)
    older = [] if files.undo is None else [files.undo.number]
    return 1 + max([0, *older, *undo_log.numbers(directory), *undo_log.numbers(directory, undo_log.FRAMES)])


def _logs(files: MappedFiles, blocks: Blocks, number: int, going_on: GoingOn = NOT_GOING_ON) -> Logs:
    # Checkpoints before this one may need rows that it does not have: a new log goes on keeping those.
    older = {} if files.undo is None else {undo_log.ITEMS: files.undo.items, undo_log.FRAMES: files.undo.frames}
    logs = {}
    for prefix, group in _groups(files.spec).items():
        log, earlier = going_on.get(prefix, (number, None))
        in_use = np.logical_or.reduce(_rows(files.spec, group, blocks))
        arrays = _arrays(files, group)
        logs[prefix] = UndoLog(_directory(files), log, arrays, in_use, older.get(prefix), prefix, earlier)
    return Logs(logs[undo_log.ITEMS], logs.get(undo_log.FRAMES))


def _needed(files: MappedFiles) -> dict[int, Blocks]:
    # For each checkpoint in these files the number of its log, and its blocks.
    directory, needed, arrays = _directory(files), {}, stored_arrays(files.spec)
    for generation in generations(directory):
        # One that is damaged is given up, as saving does it.
        with contextlib.suppress(FileNotFoundError, CorruptCheckpointError):
            manifest = read_manifest(directory, generation)
            # Of another spec than the files' it is none of theirs.
            if manifest.undo and all(manifest.arrays[name] == arrays.get(name) for name in manifest.in_place):
                blocks = {name: np.zeros(arrays[name].count, bool) for name in manifest.in_place}
                for segment in manifest.segments:
                    for name in blocks.keys() & segment.arrays.keys():
                        blocks[name] |= marked(segment.arrays[name].runs, arrays[name].count)
                needed[manifest.undo] = blocks
    return needed


def _united(parts: Iterable[Blocks]) -> Blocks:
    united: Blocks = {}
    for blocks in parts:
        for name, mask in blocks.items():
            united[name] = united[name] | mask if name in united else mask
    return united


def _going_on(files: MappedFiles, needed: Collection[int]) -> GoingOn:
    # Existing logs are folded into one for each checkpoint; those of the newest are appended to where that is safe.
    directory, fresh, going_on = _directory(files), _next(files), {}
    for prefix, group in _groups(files.spec).items():
        arrays = _arrays(files, group)
        fold(directory, needed, arrays, prefix)
        recorded = np.zeros(len(arrays[0]), bool)
        log, end = fresh, None
        for number in undo_log.numbers(directory, prefix):
            if number >= max(needed):
                # A row of theirs that is recorded need not be kept again. A torn log is not appended to.
                torn: list[Torn] = []
                path = os.path.join(directory, undo_log.name_of(number, prefix))
                rows, stop = undo_log.recorded(path, arrays, torn)
                recorded |= rows
                log, end = (number, stop) if may_go_on(path, torn) else (fresh, None)
        going_on[prefix] = log, Earlier(recorded, end)
    return going_on


def _fold_failed(files: MappedFiles) -> None:
    # Logs of failed saves are joined to those before: else each failed save would make a full disk fuller.
    directory, groups = _directory(files), _groups(files.spec)
    there = {number for prefix in groups for number in undo_log.numbers(directory, prefix)}
    if there <= files.pending | files.committed:
        return
    with contextlib.suppress(CheckpointError):
        files.committed |= set(_needed(files))
        for prefix, group in groups.items():
            fold(directory, files.pending | files.committed, _arrays(files, group), prefix)


def _groups(spec: BufferSpec) -> dict[str, list[str]]:
    # Rows of items are logged together, and those of frames, of which there is another number.
    array_names = list(shapes(spec))
    groups = {undo_log.ITEMS: [name for name in array_names if is_items(name)]}
    frames = [name for name in array_names if not is_items(name)]
    return groups | {undo_log.FRAMES: frames} if frames else groups


def _arrays(files: MappedFiles, group: list[str]) -> list[NumpyArray]:
    arrays = files.arrays()
    return [arrays[name] for name in group]


def _all_present(files: MappedFiles) -> Blocks:
    arrays, present = stored_arrays(files.spec), {}
    for name, there in names(files.spec).items():
        present[name] = np.zeros(arrays[name].count, bool)
        for first, stop in files.written(there):
            present[name][arrays[name].of_rows(first, stop)] = True
    return present


def _rows(spec: BufferSpec, group: list[str], blocks: Blocks) -> list[Mask]:
    arrays, masks = stored_arrays(spec), []
    for name in group:
        rows = np.zeros(shapes(spec)[name][0][0], bool)
        known = name if is_items(name) else auxiliary_name(name)  # the inverse of `own_name`
        for run in runs_of(blocks[known]) if known in blocks else ():
            rows[slice(*arrays[known].span(run))] = True
        masks.append(rows)
    return masks


def prune(directory: str, needed: list[int], gone: list[int]) -> None:
    """Remove logs that no checkpoint needs; those of a save that is under way have larger numbers."""
    # Logs are numbered in the order of saves, and a checkpoint is rolled back by its own log and all later ones.
    first = min(needed) if needed else max(gone, default=0) + 1
    for prefix in (undo_log.ITEMS, undo_log.FRAMES):
        for number in undo_log.numbers(directory, prefix):
            if number < first:
                disk.unlink(os.path.join(directory, undo_log.name_of(number, prefix)))


def read(opened: Opened, spec: BufferSpec, advance: Callable[[int], None], room: MappedFiles | None = None) -> Arrays:
    """Copies of a checkpoint's arrays, verified; writing to the files meanwhile does no harm.

    They are made in memory, or in files that nobody has written to.

    The rows are read first and then the logs: whatever has been overwritten by then is in these already.
    """
    arrays = stored_arrays(spec)
    copies = {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes(spec).items()}
    if room is not None:
        room.reserve_all()
        copies |= room.arrays()
    for name, there in names(spec).items():
        stored = arrays[name]
        if room is None:
            copies[there] = stored.blank_array()
        into, path = bytes_of(copies[there]), opened.beside(mapped_file(name))
        with contextlib.ExitStack() as stack:
            file, _ = open_file(path, stack)
            for chunk in chunks(runs_of(opened.owners(name) >= 0)):
                start, stop = (row * stored.row_bytes for row in stored.span(chunk))
                read_into(path, file, start, into[start:stop])
    _lead_back(opened, spec, copies, advance, None)
    return copies


def take_over(opened: Opened, spec: BufferSpec, files: MappedFiles, advance: Callable[[int], None]) -> None:
    """Make the content of files that were just opened that of a checkpoint, verified.

    A kill in the midst of it changes no checkpoint. What was written since to rows that the checkpoint does not have
    becomes zero again, as it was.
    """
    arrays = files.arrays()
    _lead_back(opened, spec, arrays, advance, files)
    for name, there in names(spec).items():
        stored = stored_arrays(spec)[name]
        unknown = np.zeros(stored.count, bool)
        for first, stop in files.written(there):
            unknown[stored.of_rows(first, stop)] = True
        unknown &= opened.owners(name) < 0
        for chunk in chunks(runs_of(unknown)):
            rows = arrays[there][slice(*stored.span(chunk))]
            # Only where there is something: writing zeros would take room on the disk for the holes of a sparse file.
            if rows.view(np.uint8).any():
                rows[...] = 0


def _lead_back(
    opened: Opened, spec: BufferSpec, arrays: Arrays, advance: Callable[[int], None], files: MappedFiles | None
) -> None:
    manifest = opened.manifest
    owned = {name: opened.owners(name) >= 0 for name in names(spec)}
    torn: dict[str, Torn] = {}
    for prefix, group in _groups(spec).items():
        room = None if files is None else files.reserve_slots if prefix == undo_log.ITEMS else files.reserve_places
        rows = [arrays[name] for name in group]
        wanted = _rows(spec, group, owned)
        ends = undo_log.roll_back(opened.directory, manifest.undo, rows, prefix, wanted, room)
        if ends:  # one that no kill leaves so, if there is one
            torn |= dict.fromkeys(group, min(ends, key=lambda end: end.short))
    for name, there in names(spec).items():
        stored, table = manifest.arrays[name], opened.whole_table(name)
        content = bytes_of(arrays[there])
        for chunk in chunks(runs_of(owned[name])):
            start, stop = (row * stored.row_bytes for row in stored.span(chunk))
            if stored.digests(content[start:stop]) != table[slice(*chunk)].tobytes():
                opened.check_there()
                path = opened.beside(mapped_file(name))
                if there not in torn:
                    raise CorruptCheckpointError(path, "its content, led back by the undo logs, is not what was saved")
                # What a kill leaves of a record keeps rows that were not yet overwritten: so the record was whole once.
                log = torn[there]
                raise CorruptCheckpointError(
                    log.path,
                    f"{log.reason}, and without it the rows in {os.path.basename(path)} are not what was saved",
                )
            advance(stop - start)
