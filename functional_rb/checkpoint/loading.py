"""Reading checkpoints: everything is verified before a state is made of it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.errors import CorruptCheckpointError, StorageInUseError
from functional_rb.base.files import as_path
from functional_rb.base.progress import Progress
from functional_rb.buffer import respec, soundness
from functional_rb.buffer.reader import shapes_of
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.storage_kinds import Host, Memmap, Storage
from functional_rb.checkpoint import in_place, records
from functional_rb.checkpoint import manifest as manifests
from functional_rb.checkpoint.blocks import Stored, bytes_of, runs_of, stored_arrays
from functional_rb.checkpoint.claims import enough_memory, spec_in
from functional_rb.checkpoint.listing import of_newest
from functional_rb.checkpoint.manifest import Manifest, Shards
from functional_rb.checkpoint.opened import Opened, read_manifest
from functional_rb.checkpoint.places import manifests_of
from functional_rb.checkpoint.shards import Part
from functional_rb.core import counters
from functional_rb.core.draft import Arrays
from functional_rb.ops import numpy_ops
from functional_rb.sharding import regroup
from functional_rb.storage import mapped
from functional_rb.storage.mapped import MappedFiles
from functional_rb.structures import sum_tree
from functional_rb.structures.stored_arrays import auxiliary_name, is_items

READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
_log = logging.getLogger("functional_rb")


class Content(NamedTuple):
    """What a state is made of."""

    spec: BufferSpec  # of the buffer
    arrays: Arrays  # of NumPy
    objects: dict[int, object]  # Python objects by token
    stamp: str  # see `functional_rb.core.save_history`
    files: MappedFiles | None  # the mapped files in the checkpoint's directory, if some of the arrays are theirs
    generation: int  # the number of the checkpoint
    of_shards: bool = False  # whether it was dealt to shards
    # The parts of the process's own shards, if these were asked for; the arrays are then those of the index.
    parts: Mapping[int, Part] | None = None


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """How a checkpoint is read, for `frb.load`.

    Attributes:
        mmap: do not read the rows into memory but map the file, copying what is written to page by page. The file is
            verified all the same, which reads it once. Of a nest torch's arrays stay in the file.
        known: the user's classes and functions that the spec names, see `from_json`.
        fall_back: if the newest checkpoint is damaged, take the newest that is not; of a mixture the newest that is
            whole.
        progress: whether to show a bar once it takes more than a second; None for: on a terminal.

    Example:
        >>> LoadOptions(fall_back=True).mmap
        False
    """

    mmap: bool = False
    known: Iterable[object] = ()
    fall_back: bool = False
    progress: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", tuple(self.known))  # which several parts are read by


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Which checkpoint is read, and as what; `storage` and `spec` are those of `load`."""

    storage: Storage | None = None
    spec: BufferSpec | None = None
    # Whether mapped files in the checkpoint's directory are gone on with, rolled back; else nothing there is written.
    here: bool = False
    number: int | None = None  # that of the only checkpoint that will do
    before: int | None = None  # the largest number that will do
    own: tuple[int, tuple[int, ...]] | None = None  # to how many shards a buffer is dealt, and which of them are read


USUAL, NEWEST = LoadOptions(), Wanted()


def read(path: str | os.PathLike[str], how: LoadOptions = USUAL, wanted: Wanted = NEWEST) -> Content:
    with contextlib.ExitStack() as stack:
        loading = _Loading(os.path.abspath(as_path(path, "load")), how, wanted, stack)
        try:
            return loading.newest()
        except BaseException:
            if loading.files is not None:
                loading.files.release()
            raise


@dataclasses.dataclass
class _Loading:
    """A directory that is read from, and the files that were opened meanwhile."""

    directory: str
    how: LoadOptions
    wanted: Wanted
    stack: contextlib.ExitStack  # closes what is open at the end
    files: MappedFiles | None = None  # the mapped files that are gone on with
    room: MappedFiles | None = None  # files that nobody else sees, for items on the way to another spec

    def newest(self) -> Content:
        wanted = self.wanted

        def attempt(generations: list[int]) -> Content:
            # A mixture names the checkpoints of its buffers: then no other will do, newer ones included.
            numbers = generations if wanted.number is None else [wanted.number]
            return self.first_of(numbers if self.how.fall_back else numbers[:1])

        return of_newest(self.directory, attempt, wanted.before)

    def first_of(self, generations: list[int]) -> Content:
        damaged: list[CorruptCheckpointError] = []
        for generation in generations:
            try:
                manifest = read_manifest(self.directory, generation)
                shards = manifest.shards
                content = self.of_one(manifest) if shards is None else self.of_shards(manifest, shards)
            except CorruptCheckpointError as error:
                damaged.append(error)
                continue
            except FileNotFoundError as error:
                # It is damage, unless the checkpoint was removed as a whole: then this is a FileNotFoundError too.
                os.stat(os.path.join(self.directory, manifests.name_of(generation)))
                damaged.append(CorruptCheckpointError(str(error.filename), "the file is missing"))
                continue
            if damaged:
                _log.warning("checkpoint %d is loaded, since %s: %s", generation, damaged[0].file, damaged[0].reason)
            return content
        raise damaged[0]

    def of_shards(self, manifest: Manifest, shards: Shards) -> Content:
        path = os.path.join(self.directory, manifests.name_of(manifest.generation))
        spec = spec_in(shards.spec, self.how.known, path)
        try:
            old = regroup.deal(spec, len(shards.parts))
        except ValueError as error:
            raise CorruptCheckpointError(path, f"its buffer cannot be dealt to {len(shards.parts)}: {error}") from None
        index = _Loading(self.directory, self.how, NEWEST, self.stack).of_one(manifest)
        if index.spec != old.index:
            raise CorruptCheckpointError(path, "its index is not that of its spec")
        # Another spec has other slots: then the buffer is put together first, and dealt again by the caller.
        wanted = self.wanted.spec
        wanted_shards = None if wanted is not None else self.wanted.own
        # One shard is the whole buffer.
        count, numbers = (1, (0,)) if wanted_shards is None else wanted_shards
        new = regroup.deal(spec, count)
        needed = sorted({k for number in numbers for k in regroup.sources(old, new, number)})
        contents: dict[int, Content] = {}
        for k, (place, of_part) in manifests_of(self.directory, manifest, needed).items():
            contents[k] = content = _Loading(place, self.how, NEWEST, self.stack).of_one(of_part)
            path = os.path.join(place, manifests.name_of(of_part.generation))
            if content.spec != old.part:
                raise CorruptCheckpointError(path, f"expected a part of {old.part!r:.200}, found {content.spec!r:.200}")
            if problem := regroup.misfit(old, index.arrays, content.arrays, k):
                raise CorruptCheckpointError(path, problem)
        arrays = {k: content.arrays for k, content in contents.items()}
        # A part that is dealt as it was is still the one that its checkpoint holds, which the next save builds on.
        stamps = {k: content.stamp for k, content in contents.items() if old.shards == new.shards}
        parts = {k: Part(regroup.regrouped(old, index.arrays, arrays, new, k), stamps.get(k)) for k in numbers}
        objects = {token: value for content in contents.values() for token, value in content.objects.items()}
        objects |= index.objects
        if wanted_shards is not None:
            return Content(spec, index.arrays, objects, index.stamp, None, manifest.generation, True, parts)
        if wanted is not None:
            respec.check(spec, wanted)
            respec.check_room(spec, wanted, counters.read(old.index.plan, index.arrays.counters).ends.sizes)
        whole = regroup.join(spec, index.arrays, parts[0].arrays)
        return Content(spec, whole, objects, index.stamp, None, manifest.generation, True)

    def of_one(self, manifest: Manifest) -> Content:
        path = os.path.join(self.directory, manifests.name_of(manifest.generation))
        spec = spec_in(manifest.spec, self.how.known, path)
        # Shapes and fills follow from the spec: a manifest in which they differ was put together of two.
        if manifest.arrays != stored_arrays(spec):
            raise CorruptCheckpointError(path, "its arrays are not those of its spec")
        if manifest.undo and set(manifest.in_place) != set(in_place.names(spec)):
            raise CorruptCheckpointError(path, "its arrays in mapped files are not those of its spec")
        # Before any file is opened, as counters are in the manifest itself.
        vector = np.array(manifest.counters, np.int32)
        if problem := soundness.problem_of_counters(spec.plan, vector):
            raise CorruptCheckpointError(path, problem)
        opened = Opened(self.directory, manifest, self.stack)
        opened.check_content()
        storage = self.wanted.storage
        if storage is None:
            storage = in_place.relocated(spec.storage, self.directory) if manifest.here else spec.storage
            if self.wanted.here and self.wanted.spec is None:
                in_place.check_led_to(storage, self.directory, path)
        spec = self.on_the_way(dataclasses.replace(spec, storage=storage), vector, manifest.here)
        spec = self.open_files(spec)
        total = sum(stored.rows * stored.row_bytes for stored in manifest.arrays.values())
        with enough_memory(path, total), Progress(min(total, manifest.nbytes), "load", self.how.progress) as progress:
            here = self.in_place(opened, spec, progress) if manifest.undo else {}
            apart = [stored for name, stored in manifest.arrays.items() if name not in manifest.in_place]
            read = here | {stored.name: self.array(opened, stored, progress) for stored in apart}
        objects: dict[int, object] = {}
        for k in range(len(manifest.segments)) if spec.plan.objects else ():
            objects |= opened.objects(k)
        auxiliary = {name: read[auxiliary_name(name)] for name in spec.plan.auxiliary if auxiliary_name(name) in read}
        # Checksums say that the bytes are those that were written, not that whoever wrote them meant well.
        if problem := soundness.problem_of_arrays(spec, vector, auxiliary, read.get("tree")):
            raise CorruptCheckpointError(path, problem)
        arrays = _arranged(spec, read, vector)
        if records.is_record(spec) and (problem := records.problem(spec, arrays)):
            raise CorruptCheckpointError(path, problem)
        if self.files is not None:
            in_place.resume(self.files)
            if not manifest.undo:
                self.files.replace({there: read[name] for name, there in in_place.names(spec).items()})
            arrays = mapped.within(self.files, arrays)
        return Content(spec, arrays, objects, manifest.stamp, self.files, manifest.generation)

    def on_the_way(self, spec: BufferSpec, vector: NumpyArray, here: bool) -> BufferSpec:
        # The items go to the new spec in their slots if they can. Else they are moved there from memory, or, where
        # there may be too many of them, from files that nobody else sees.
        wanted = self.wanted.spec
        if wanted is None:
            return spec
        respec.check(spec, wanted)
        respec.check_room(spec, wanted, counters.read(spec.plan, vector).ends.sizes)
        if isinstance(wanted.storage, Memmap):
            path = wanted.storage.path
            if path is not None and in_place.is_here(path, self.directory):
                if respec.stays(spec, wanted):
                    return dataclasses.replace(spec, storage=wanted.storage)
                if here:
                    respec.check_path(wanted)
            beside = None if path is None else os.path.dirname(os.path.abspath(path))
            self.room = mapped.scratch(dataclasses.replace(spec, storage=Memmap()), beside)
        elif respec.stays(spec, wanted):
            return dataclasses.replace(spec, storage=wanted.storage)
        return dataclasses.replace(spec, storage=Host())

    def open_files(self, spec: BufferSpec) -> BufferSpec:
        storage = spec.storage
        if not self.wanted.here or not isinstance(storage, Memmap) or storage.shared or storage.path is None:
            return spec
        # Files elsewhere are none of this checkpoint: the state gets new ones there, as `init` makes them.
        if self.files is not None or not in_place.is_here(storage.path, self.directory):
            return spec
        try:
            self.files = mapped.open_existing(spec, self.directory, writable=True)
        except FileNotFoundError:  # there are none: they are made, as of any path
            return spec
        except OSError as error:
            # Who gave this storage asked for these files, and no others.
            explicit = self.wanted.storage is not None
            if explicit or not (isinstance(error, StorageInUseError) or error.errno in READ_ONLY):
                raise
            why = "in use" if isinstance(error, StorageInUseError) else "not to be written to"
            _log.warning("%s: the files are %s, so the checkpoint is read into memory", self.directory, why)
            return dataclasses.replace(spec, storage=Host())
        return spec

    def in_place(self, opened: Opened, spec: BufferSpec, progress: Progress) -> dict[str, NumpyArray]:
        if self.files is None:
            arrays = in_place.read(opened, spec, progress.advance, self.room)
        else:
            in_place.take_over(opened, spec, self.files, progress.advance)
            arrays = self.files.arrays()
        return {name: arrays[there] for name, there in in_place.names(spec).items()}

    def array(self, opened: Opened, stored: Stored, progress: Progress) -> NumpyArray:
        name, owners = stored.name, opened.owners(stored.name)
        had = [segment.arrays[name].runs if name in segment.arrays else [] for segment in opened.manifest.segments]
        everything = [(0, stored.count)]
        # Only a segment that has the whole array in one piece can be mapped.
        whole = had.index(everything) if self.how.mmap and is_items(name) and everything in had else None
        of_room = {} if self.room is None else in_place.names(self.room.spec)
        if whole is not None:
            array = opened.map(whole, name)
        elif self.room is not None and name in of_room:
            for run in runs_of(owners >= 0):
                start, stop = stored.span(run)
                self.room.reserve_rows(of_room[name], start, stop - start)
            array = self.room.arrays()[of_room[name]]
        else:
            array = stored.blank_array()
        into = bytes_of(array)
        # A mapped segment is verified first, as a whole: the others are written over it.
        for k in sorted(range(len(had)), key=lambda k: k != whole):
            runs = everything if k == whole else runs_of(owners == k)
            if runs:
                progress.advance(opened.read(k, name, runs, into, mapped=k == whole))
        return array


def _arranged(spec: BufferSpec, read: dict[str, NumpyArray], vector: NumpyArray) -> Arrays:
    for name, (shape, dtype) in shapes_of(spec.plan).items():
        if name not in read:
            read[name] = np.zeros(shape, dtype)
    read["counters"] = vector
    # Of a tree the leaves are stored alone, from which all that is above them follows.
    if spec.plan.tree_shape is not None:
        tree, leaves = numpy_ops.zeros(spec.plan.tree_shape, "float32"), read["tree"]
        tree[: len(leaves)] = leaves
        read["tree"] = np.asarray(sum_tree.rebuild(numpy_ops.OPS, tree, spec.capacity))
    return Arrays.of_names(spec.plan, read)
