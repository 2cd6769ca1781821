"""Writing checkpoints: everything aside first, the manifest last, and only then what is old goes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Callable

import numpy as np

from functional_rb.base.checksum import DIGEST, digest, hasher
from functional_rb.base.errors import CheckpointError, CorruptCheckpointError
from functional_rb.base.files import as_path
from functional_rb.base.progress import Progress
from functional_rb.buffer.reader import Reader
from functional_rb.buffer.state import State
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.checkpoint import changes, in_place, python_objects, segment
from functional_rb.checkpoint import manifest as manifests
from functional_rb.checkpoint.blocks import Run, Stored, Table, chunks, runs_of, stored_arrays
from functional_rb.checkpoint.changes import Masks
from functional_rb.checkpoint.manifest import Blocks, Checkpoint, Manifest, Segment
from functional_rb.checkpoint.opened import Opened, generations, read_manifest
from functional_rb.convert import to_json
from functional_rb.core.counters import SIZE
from functional_rb.storage import disk

# Of each array the checksums of all of its blocks.
Tables = dict[str, Table]
LOCK = "lock"
TEMPORARY = ".part"
_OURS = re.compile(r"([0-9]{10})\.(json|safetensors)(\.part)?", re.ASCII)


@dataclasses.dataclass(frozen=True)
class SaveOptions:
    """The arguments of a save that hold for all of its parts; see `functional_rb.checkpoint.background.save`."""

    incremental: bool  # whether unchanged blocks are taken from the checkpoint before
    keep: int  # how many checkpoints stay
    progress: bool | None  # whether a progress bar is shown
    who: str  # how errors name the function
    lasting: bool  # whether training goes on before all is written; else it is written at once


@dataclasses.dataclass(frozen=True)
class Request:
    """A save that has been checked."""

    spec: str  # the JSON text of the buffer's spec
    files: str | None  # the path of its storage, if that is in files with one
    directory: str  # where the checkpoint is written
    how: SaveOptions  # the arguments of `save`
    shards: manifests.Shards | None = None  # where the parts are of the buffer whose index this is

    def keeping(self, keep: int | None) -> Request:
        """The same with another number of checkpoints that stay, if one is given."""
        return self if keep is None else dataclasses.replace(self, how=dataclasses.replace(self.how, keep=keep))


def request(state: State, path: object, how: SaveOptions) -> Request:
    """Check what `save` is given, before anything is touched."""
    check_keep(how.keep, how.who)
    hasher()  # an ImportError, if what computes checksums is not installed
    files = state.spec.storage.path if isinstance(state.spec.storage, Memmap) else None
    return Request(to_json(state.spec), files, os.path.abspath(as_path(path, how.who)), how)


def check_keep(keep: int, who: str) -> None:
    if type(keep) is not int:
        raise TypeError(f"{who}: keep: expected an int, got {keep!r}")
    if keep < 1:
        raise ValueError(f"{who}: keep: expected 1 or more, as one checkpoint at least has to stay, got {keep}")


def write(reader: Reader, asked: Request, held: bool = False) -> Checkpoint:
    """Write a checkpoint to a directory, which is held meanwhile, unless the caller does."""
    with contextlib.closing(reader):
        if held:
            return _Save(reader, asked).run()
        return while_held(asked.directory, lambda: _Save(reader, asked).run())


def while_held(directory: str, work: Callable[[], Checkpoint]) -> Checkpoint:
    """Hold a directory, which is made if it is not there: other saves to it wait, those of other processes too."""
    with disk.typed(directory):
        disk.make_directory(directory)
        return disk.while_locked(os.path.join(directory, LOCK), work)


def remove_all(directory: str) -> None:
    for name in _manifests_first(directory):
        disk.unlink(os.path.join(directory, name))


def _manifests_first(directory: str) -> list[str]:
    # In this order files are removed: so no manifest is left without its files.
    return sorted(filter(_OURS.fullmatch, os.listdir(directory)), key=lambda name: not name.endswith(".json"))


class _Save:
    """One save, with the lock held."""

    def __init__(self, reader: Reader, asked: Request) -> None:
        self.reader, self.asked, self.directory = reader, asked, asked.directory
        self.vector = np.array(reader.read("counters", 0, reader.shapes["counters"][0][0]), np.int32)
        self.arrays = stored_arrays(reader.spec)
        self.in_place = () if reader.in_place is None else tuple(reader.in_place.present)
        self.committing = False  # whether the manifest may have its name

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def run(self) -> Checkpoint:
        numbers = []
        for match in filter(None, map(_OURS.fullmatch, os.listdir(self.directory))):
            numbers.append(int(match[1]))
            if match[3]:  # what an interrupted save has left
                disk.unlink(self.path(match[0]))
        manifests_there = {}
        for number in generations(self.directory):
            with contextlib.suppress(CorruptCheckpointError):
                manifests_there[number] = read_manifest(self.directory, number)
        # Also of files whose manifest is gone or damaged the number is not used again: no name means two things.
        generation = max(numbers, default=0) + 1
        if generation > manifests.LAST_GENERATION:
            raise CheckpointError(
                f"{self.path(manifests.name_of(generation - 1))}: no number of ten digits is left for another "
                f"checkpoint; remove the files with that number if they are none of yours, or use another directory"
            )
        # What the checkpoint before has is not written again. Its files are open only while they are compared.
        with contextlib.ExitStack() as stack:
            base = self.base(manifests_there, stack) if self.asked.how.incremental else None
            try:
                masks = changes.changed(self.reader, self.vector, base)
            except CorruptCheckpointError:  # nothing can be built on it
                base, masks = None, changes.changed(self.reader, self.vector, None)
            stay = [] if base is None else changes.absorb(base, masks)
            kept = [] if base is None else [base.manifest.segments[k] for k in stay]
            # Checksums of blocks that are not written again are those of the checkpoint before.
            tables = {
                name: stored.blank() if base is None else base.whole_table(name) for name, stored in self.arrays.items()
            }
        try:
            # The manifest comes last: what was written before it is nothing yet, and is removed if anything fails.
            segments, written = self.write_segment(generation, masks, tables)
            manifest = self.manifest(generation, [*kept, *segments], tables)
            written += self.commit(manifest)
        except BaseException:
            self.clean_up(generation)
            raise
        # Only now is anything old removed: until the new manifest had its name, the old one was what loads.
        self.prune(manifest, manifests_there)
        path = self.path(manifests.name_of(generation))
        return Checkpoint(path, generation, manifest.items, manifest.time, manifest.nbytes, written, full=not kept)

    def base(self, there: dict[int, Manifest], stack: contextlib.ExitStack) -> Opened | None:
        newest = next(iter(there.values()), None)
        # Another spec may have been saved here before, and files may have been mapped, or no more.
        if newest is None or newest.arrays != self.arrays or newest.in_place != self.in_place:
            return None
        if len(newest.counters) != len(self.vector):
            return None
        try:
            opened = Opened(self.directory, newest, stack)
            opened.check_content()
        except CorruptCheckpointError:
            return None
        return opened

    def write_segment(self, generation: int, masks: Masks, whole: Tables) -> tuple[list[Segment], int]:
        runs: dict[str, tuple[Stored, list[Run]]] = {
            name: (stored, runs_of(masks[name])) for name, stored in self.arrays.items() if masks[name].any()
        }
        if not runs:
            return [], 0
        objects = python_objects.encode(self.objects(runs))
        name = manifests.segment_name(generation)
        total = sum(stored.length(has) * stored.row_bytes for stored, has in runs.values())
        with Progress(total, "save", self.asked.how.progress) as progress:
            tables = segment.write(self.path(name + TEMPORARY), self.reader, runs, objects, progress, self.in_place)
        disk.rename(self.path(name + TEMPORARY), self.path(name))
        size = segment.places(runs, len(objects), self.in_place).size
        for array, table in tables.items():
            whole[array][masks[array]] = np.frombuffer(table, np.uint8).reshape(-1, DIGEST)
        has = {name: Blocks(runs[name][1], digest(table).hex()) for name, table in tables.items()}
        return [Segment(name, has, (len(objects), digest(objects).hex()), size)], size

    def objects(self, runs: dict[str, tuple[Stored, list[Run]]]) -> dict[int, object]:
        objects: dict[int, object] = {}
        if not self.reader.spec.plan.objects:
            return objects
        for name, (stored, has) in runs.items():
            for chunk in chunks(has):
                for leaf, by_token in self.reader.objects(name, self.reader.read(name, *stored.span(chunk))).items():
                    for value in by_token.values():
                        python_objects.check(value, self.reader.spec.plan.names[leaf])
                    objects |= by_token
        return objects

    def manifest(self, generation: int, segments: list[Segment], tables: Tables) -> Manifest:
        numbers = self.vector.tolist()
        stamp, items = self.reader.stamp, numbers[SIZE]
        content = manifests.content_of(stamp, self.asked.spec, numbers, self.arrays, tables)
        undo = 0 if self.reader.in_place is None else self.reader.in_place.number
        here = bool(undo) or in_place.is_here(self.asked.files, self.directory)
        fields = self.asked.spec, self.arrays, numbers, segments, content, self.in_place, undo, here, self.asked.shards
        return Manifest(generation, stamp, time.time(), items, *fields)

    def commit(self, manifest: Manifest) -> int:
        if self.reader.in_place is not None:
            self.reader.in_place.sync()
        path = self.path(manifests.name_of(manifest.generation))
        content = manifests.encode(manifest)
        if len(content) > manifests.LARGEST:  # which nobody would read
            raise CheckpointError(
                f"{path}: a manifest of {len(content)} bytes is larger than the {manifests.LARGEST} that are read; "
                f"save without incremental=True, or describe the items by fewer leaves"
            )
        with disk.create(path + TEMPORARY) as file:
            disk.write(file.fd, content)
            disk.fsync(file.fd)
        # What the manifest names must last before the manifest has its name, by which it counts.
        disk.fsync_directory(self.directory)
        self.committing = True
        disk.rename(path + TEMPORARY, path)
        if self.reader.in_place is not None:
            self.reader.in_place.committed()
        disk.fsync_directory(self.directory)
        return len(content)

    def clean_up(self, generation: int) -> None:
        # Renaming may fail, or be interrupted, after the manifest got its name: then its files are needed.
        if self.committing:
            return
        for name in (manifests.segment_name(generation), manifests.name_of(generation)):
            for path in (self.path(name + TEMPORARY), self.path(name)):
                with contextlib.suppress(OSError):
                    disk.unlink(path)

    def prune(self, newest: Manifest, there: dict[int, Manifest]) -> None:
        # What cannot be removed is left to the next save.
        older = list(there.values())[: self.asked.how.keep - 1]
        needed = {stored_segment.file for manifest in (newest, *older) for stored_segment in manifest.segments}
        needed |= {manifests.name_of(manifest.generation) for manifest in (newest, *older)}
        for name in _manifests_first(self.directory):
            if name not in needed:
                with contextlib.suppress(OSError):
                    disk.unlink(self.path(name))
        stay = [newest.generation, *(manifest.generation for manifest in older)]
        logs = [manifest.undo for manifest in (newest, *older) if manifest.undo]
        with contextlib.suppress(OSError):
            gone = [manifest.undo for number, manifest in there.items() if number not in stay]
            in_place.prune(self.directory, logs, gone)
