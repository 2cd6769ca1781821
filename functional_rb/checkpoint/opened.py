"""Checkpoints that are there: which, and one of them open for reading, every part verified before it is used."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.checksum import DIGEST, digest
from functional_rb.base.errors import CheckpointError, CorruptCheckpointError
from functional_rb.checkpoint import manifest as manifests
from functional_rb.checkpoint import python_objects, segment
from functional_rb.checkpoint.blocks import Numbers, Run, Stored, Table, as_array, chunks, marked
from functional_rb.checkpoint.manifest import LARGEST, Manifest, OtherFormat, Unreadable
from functional_rb.checkpoint.segment import Places
from functional_rb.core.counters import SIZE
from functional_rb.storage.reading import open_file, read_bytes, read_into
from functional_rb.storage.undo_log import FRAMES, ITEMS, name_of
from functional_rb.structures.stored_arrays import is_items, own_name

MAPPED = ".bin"
# So many runs of blocks a manifest may tell of whatever lies beside it.
FEW_RUNS = 1 << 16

Owners = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


def generations(directory: str) -> list[int]:
    matches = (manifests.GENERATION.fullmatch(name) for name in os.listdir(directory))
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def read_manifest(directory: str, generation: int) -> Manifest:
    """A manifest, verified; a FileNotFoundError if it has been removed."""
    path = os.path.join(directory, manifests.name_of(generation))
    with contextlib.ExitStack() as stack:
        fd, size = open_file(path, stack)
        if size > LARGEST:
            raise CorruptCheckpointError(path, f"{size} bytes are too many for a manifest")
        content = read_bytes(path, fd, size, 0, size)
    claimed = manifests.most_runs(content)
    if claimed > FEW_RUNS:  # before room is made for them: of each block a segment has a checksum at least
        with os.scandir(directory) as entries:
            segments = [entry for entry in entries if manifests.SEGMENT.fullmatch(entry.name)]
            nbytes = sum(entry.stat(follow_symlinks=True).st_size for entry in segments)
        if claimed > FEW_RUNS + nbytes // DIGEST:
            os.stat(path)  # a FileNotFoundError, if it was removed meanwhile, and its segments with it
            raise CorruptCheckpointError(path, f"{claimed} runs of blocks are more than the files beside it can have")
    try:
        return manifests.decode(content, generation)
    except Unreadable as error:
        raise CorruptCheckpointError(path, str(error)) from None
    except OtherFormat as error:
        raise CheckpointError(f"{path}: {error}; install a newer functional_rb, or use another directory") from None


def mapped_file(name: str) -> str:
    return own_name(name) + MAPPED


class Opened:
    """A checkpoint whose files are open: removing them meanwhile does not matter.

    Attributes:
        directory: where they are.
        manifest: of it.
        paths: of the segments.
    """

    def __init__(self, directory: str, manifest: Manifest, stack: contextlib.ExitStack) -> None:
        self.directory, self.manifest = directory, manifest
        self.paths = [os.path.join(directory, stored_segment.file) for stored_segment in manifest.segments]
        self._fds: list[int] = []
        self._sizes: list[int] = []
        self._places: list[Places] = []
        for path, stored_segment in zip(self.paths, manifest.segments, strict=True):
            try:
                fd, size = open_file(path, stack)
            except FileNotFoundError:
                self.check_there()
                raise CorruptCheckpointError(path, "the file is missing") from None
            runs = {name: (manifest.arrays[name], blocks.runs) for name, blocks in stored_segment.arrays.items()}
            plan = segment.places(runs, stored_segment.objects[0], manifest.in_place)
            # The header and all places follow from the manifest, so that nothing in the file has to be believed.
            if not size == stored_segment.size == plan.size:
                raise CorruptCheckpointError(path, f"expected {plan.size} bytes, found {size}")
            if read_bytes(path, fd, size, 0, len(plan.header)) != plan.header:
                raise CorruptCheckpointError(path, "its header is not what was written")
            self._fds.append(fd)
            self._sizes.append(size)
            self._places.append(plan)
        for name in manifest.in_place:
            stored = manifest.arrays[name]
            size, expected = self._size(mapped_file(name)), stored.rows * stored.row_bytes
            if size != expected:
                raise CorruptCheckpointError(self.beside(mapped_file(name)), f"expected {expected} bytes, found {size}")
        for prefix in sorted({ITEMS if is_items(name) else FRAMES for name in manifest.in_place}):
            self._size(name_of(manifest.undo, prefix))

    def beside(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def check_there(self) -> None:
        """Tell damage from a checkpoint that was removed as a whole, while we looked: a FileNotFoundError."""
        os.stat(self.beside(manifests.name_of(self.manifest.generation)))

    def check_content(self) -> None:
        manifest, tables = self.manifest, {name: self.whole_table(name) for name in self.manifest.arrays}
        content = manifests.content_of(manifest.stamp, manifest.spec, manifest.counters, manifest.arrays, tables)
        if content != manifest.content or manifest.items != manifest.counters[SIZE]:
            path = self.beside(manifests.name_of(manifest.generation))
            raise CorruptCheckpointError(path, "its spec, counters and segments are not what was saved together")

    def _size(self, name: str) -> int:
        with contextlib.ExitStack() as stack:
            try:
                return open_file(self.beside(name), stack)[1]
            except FileNotFoundError:
                self.check_there()
                raise CorruptCheckpointError(self.beside(name), "the file is missing") from None

    def owners(self, name: str) -> Owners:
        """Which segment has each block of an array, int32 [blocks]; -1 for none."""
        owners = np.full(self.manifest.arrays[name].count, -1, np.int32)
        for k, stored_segment in enumerate(self.manifest.segments):
            if name in stored_segment.arrays:
                owners[marked(stored_segment.arrays[name].runs, len(owners))] = k
        return owners

    def table(self, k: int, name: str) -> Table:
        """The checksums of all blocks of an array that a segment has, uint8 [blocks, 16]."""
        blocks = self.manifest.segments[k].arrays[name]
        content = self._read(k, self._places[k].tables[name], DIGEST * blocks.count)
        if digest(content).hex() != blocks.checksum:
            raise CorruptCheckpointError(self.paths[k], f"the checksums of {name!r} are not what was written")
        return np.frombuffer(content, np.uint8).reshape(-1, DIGEST)

    def _read(self, k: int, at: int, size: int) -> bytes:
        return read_bytes(self.paths[k], self._fds[k], self._sizes[k], at, size)

    def whole_table(self, name: str) -> Table:
        stored = self.manifest.arrays[name]
        table = stored.blank()
        owners = self.owners(name)
        for k, stored_segment in enumerate(self.manifest.segments):
            if name in stored_segment.arrays:
                mine = np.flatnonzero(owners == k)
                table[mine] = self.table(k, name)[_Positions(stored_segment.arrays[name].runs).of(mine)]
        return table

    def objects(self, k: int) -> dict[int, object]:
        nbytes, checksum = self.manifest.segments[k].objects
        content = self._read(k, self._places[k].objects, nbytes)
        if digest(content).hex() != checksum:
            raise CorruptCheckpointError(self.paths[k], "its Python objects are not what was written")
        try:
            return python_objects.decode(content)
        except ValueError as error:
            raise CorruptCheckpointError(self.paths[k], f"its Python objects are no JSON text: {error}") from None

    def read(self, k: int, name: str, runs: list[Run], into: memoryview, mapped: bool = False) -> int:
        """Read blocks of an array from a segment into the memory of the whole array, and verify them.

        What is mapped is there already, and only verified. Gives the number of bytes.
        """
        stored = self.manifest.arrays[name]
        total = 0
        for chunk, at, digests in self._chunks(k, name, runs):
            start, stop = stored.span(chunk)
            target = into[start * stored.row_bytes : stop * stored.row_bytes]
            if not mapped:
                read_into(self.paths[k], self._fds[k], at, target)
            self._verify(k, stored, target, digests)
            total += len(target)
        return total

    def verified(self, k: int, name: str) -> Iterator[tuple[Run, bytes]]:
        """The blocks of an array that a segment has, some at a time: which, and their content, verified."""
        stored = self.manifest.arrays[name]
        for chunk, at, digests in self._chunks(k, name, self.manifest.segments[k].arrays[name].runs):
            start, stop = stored.span(chunk)
            content = self._read(k, at, (stop - start) * stored.row_bytes)
            self._verify(k, stored, content, digests)
            yield chunk, content

    def _verify(self, k: int, stored: Stored, content: bytes | memoryview, digests: bytes) -> None:
        if stored.digests(content) != digests:
            raise CorruptCheckpointError(self.paths[k], f"the content of {stored.name!r} is not what was written")

    def _chunks(self, k: int, name: str, runs: list[Run]) -> Iterator[tuple[Run, int, bytes]]:
        stored, table = self.manifest.arrays[name], self.table(k, name)
        positions = _Positions(self.manifest.segments[k].arrays[name].runs)
        for chunk in chunks(runs):
            first = int(positions.of(np.array(chunk[:1]))[0])
            # All blocks before it are whole, as only an array's last one may be shorter.
            at = self._places[k].data[name] + first * stored.rows_of_block * stored.row_bytes
            yield chunk, at, table[first : first + chunk[1] - chunk[0]].tobytes()

    def map(self, k: int, name: str) -> NumpyArray:
        """The rows of an array in a segment as the file has them, copied where they are written to."""
        stored = self.manifest.arrays[name]
        rows = stored.length(self.manifest.segments[k].arrays[name].runs)
        with open(self._fds[k], "rb", closefd=False) as file:
            offset = self._places[k].data[name]
            return np.memmap(file, stored.dtype, "c", offset, (rows, *stored.shape[1:]))


class _Positions:
    """Where among the blocks of a segment each of them comes."""

    def __init__(self, runs: list[Run]) -> None:
        self.starts, stops = as_array(runs).T
        self.before = np.cumsum(stops - self.starts) - (stops - self.starts)

    def of(self, blocks: Numbers) -> Numbers:
        run = np.searchsorted(self.starts, blocks, "right") - 1
        places: Numbers = self.before[run] + blocks - self.starts[run]
        return places
