"""Checkpoints that are there: which, and one of them open for reading, every part verified before it is used."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import Any

import numpy as np

from functional_rb.checkpoint import manifest as manifests
from functional_rb.checkpoint import python_objects, segment
from functional_rb.checkpoint.blocks import DIGEST, Run, Stored, Table, chunks, digest, is_items
from functional_rb.checkpoint.manifest import LARGEST, Manifest, OtherFormat, Unreadable
from functional_rb.checkpoint.segment import Places
from functional_rb.errors import CheckpointError, CorruptCheckpointError
from functional_rb.undo import FRAMES, ITEMS, name_of

MAPPED = ".bin"
FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""The last one, so that no pipe keeps us waiting."""

Owners = np.ndarray[Any, np.dtype[np.int32]]


def generations(directory: str) -> list[int]:
    """The numbers of the checkpoints in a directory, the newest first."""
    found = (manifests.GENERATION.fullmatch(name) for name in os.listdir(directory))
    return sorted((int(match[1]) for match in found if match), reverse=True)


def read_manifest(directory: str, generation: int) -> Manifest:
    """A manifest.

    Raises:
        FileNotFoundError: if it has been removed.
        CorruptCheckpointError: if it is not what was written.
        CheckpointError: if it is of a format of the future.
    """
    path = os.path.join(directory, manifests.name_of(generation))
    with contextlib.ExitStack() as stack:
        fd, size = _open(path, stack)
        if size > LARGEST:
            raise CorruptCheckpointError(path, f"{size} bytes are too many for a manifest")
        content = _read(path, fd, 0, size)
    try:
        return manifests.decode(content, generation)
    except Unreadable as error:
        raise CorruptCheckpointError(path, str(error)) from None
    except OtherFormat as error:
        raise CheckpointError(f"{path}: {error}; install a newer functional_rb, or use another directory") from None


def mapped_file(name: str) -> str:
    """The file of the buffer's own that has an array."""
    return name.removeprefix("kept_") + MAPPED


class Opened:
    """A checkpoint whose files are open: removing them meanwhile does not matter.

    Attributes:
        directory: where they are.
        manifest: of it.
        paths: of the segments.
    """

    def __init__(self, directory: str, manifest: Manifest, stack: contextlib.ExitStack) -> None:
        """Open the segments until the stack closes, and look at their sizes and headers."""
        self.directory, self.manifest = directory, manifest
        self.paths = [os.path.join(directory, part.file) for part in manifest.segments]
        self._fds: list[int] = []
        self._places: list[Places] = []
        for path, part in zip(self.paths, manifest.segments, strict=True):
            try:
                fd, size = _open(path, stack)
            except FileNotFoundError:
                self.check_there()
                raise CorruptCheckpointError(path, "the file is missing") from None
            runs = {name: (manifest.arrays[name], blocks.runs) for name, blocks in part.arrays.items()}
            plan = segment.places(runs, part.objects[0], manifest.in_place)
            if not size == part.size == plan.size:
                raise CorruptCheckpointError(path, f"expected {plan.size} bytes, found {size}")
            if _read(path, fd, 0, len(plan.header)) != plan.header:
                raise CorruptCheckpointError(path, "its header is not what was written")
            self._fds.append(fd)
            self._places.append(plan)
        self._check_in_place()

    def beside(self, name: str) -> str:
        """A file in the directory."""
        return os.path.join(self.directory, name)

    def check_there(self) -> None:
        """Tell damage from a checkpoint that was removed as a whole, while we looked: a FileNotFoundError."""
        os.stat(self.beside(manifests.name_of(self.manifest.generation)))

    def _check_in_place(self) -> None:
        """The files of the buffer's own, and the logs."""
        manifest = self.manifest
        sizes = {mapped_file(name): manifest.arrays[name] for name in manifest.in_place}
        for name, stored in sizes.items():
            try:
                size = os.stat(self.beside(name)).st_size
            except FileNotFoundError:
                raise CorruptCheckpointError(self.beside(name), "the file is missing") from None
            if size != stored.rows * stored.row_bytes:
                raise CorruptCheckpointError(
                    self.beside(name), f"expected {stored.rows * stored.row_bytes} bytes, found {size}"
                )
        prefixes = {ITEMS if is_items(name) else FRAMES for name in manifest.in_place}
        for path in (self.beside(name_of(manifest.undo, prefix)) for prefix in sorted(prefixes)):
            if not os.path.exists(path):
                self.check_there()
                raise CorruptCheckpointError(path, "the file is missing")

    def owners(self, name: str) -> Owners:
        """Which segment has each block of an array, int32 [blocks]; -1 for none."""
        owners = np.full(self.manifest.arrays[name].count, -1, np.int32)
        for k, part in enumerate(self.manifest.segments):
            for start, stop in part.arrays[name].runs if name in part.arrays else ():
                owners[start:stop] = k
        return owners

    def table(self, k: int, name: str) -> Table:
        """The checksums of all blocks of an array that a segment has, uint8 [blocks, 16]."""
        blocks = self.manifest.segments[k].arrays[name]
        count = sum(stop - start for start, stop in blocks.runs)
        content = _read(self.paths[k], self._fds[k], self._places[k].tables[name], DIGEST * count)
        if digest(content).hex() != blocks.checksum:
            raise CorruptCheckpointError(self.paths[k], f"the checksums of {name!r} are not what was written")
        return np.frombuffer(content, np.uint8).reshape(count, DIGEST)

    def whole_table(self, name: str) -> Table:
        """The checksums of all blocks of an array."""
        stored = self.manifest.arrays[name]
        table = stored.blank()
        owners = self.owners(name)
        for k, part in enumerate(self.manifest.segments):
            if name in part.arrays:
                own = _spread(stored, part.arrays[name].runs, self.table(k, name))
                table[owners == k] = own[owners == k]
        return table

    def objects(self, k: int) -> dict[int, Any]:
        """The Python objects of a segment, by token."""
        nbytes, checksum = self.manifest.segments[k].objects
        content = _read(self.paths[k], self._fds[k], self._places[k].objects, nbytes)
        if digest(content).hex() != checksum:
            raise CorruptCheckpointError(self.paths[k], "its Python objects are not what was written")
        try:
            return python_objects.decode(content)
        except ValueError as error:
            raise CorruptCheckpointError(self.paths[k], f"its Python objects are no JSON text: {error}") from None

    def read(self, k: int, name: str, runs: list[Run], into: memoryview, mapped: bool = False) -> int:
        """Read blocks of an array from a segment, and verify them.

        Args:
            k: which segment.
            name: of the array.
            runs: which of the segment's blocks.
            into: the memory of the whole array.
            mapped: whether the file's content is there already, and only to be verified.

        Returns:
            How many bytes.
        """
        stored, blocks = self.manifest.arrays[name], self.manifest.segments[k].arrays[name]
        table = _spread(stored, blocks.runs, self.table(k, name))
        firsts = _first_rows(stored, blocks.runs)
        total = 0
        for chunk in chunks(runs):
            start, stop = stored.span(chunk)
            part = into[start * stored.row_bytes : stop * stored.row_bytes]
            if not mapped:
                at = self._places[k].data[name] + int(firsts[chunk[0]]) * stored.row_bytes
                read_into(self.paths[k], self._fds[k], at, part)
            if stored.digests(part) != table[slice(*chunk)].tobytes():
                raise CorruptCheckpointError(self.paths[k], f"the content of {name!r} is not what was written")
            total += len(part)
        return total

    def verified(self, k: int, name: str, runs: list[Run]) -> Iterator[tuple[Run, bytes]]:
        """Blocks of an array from a segment, some at a time: which, and their content, verified."""
        stored, blocks = self.manifest.arrays[name], self.manifest.segments[k].arrays[name]
        table, firsts = _spread(stored, blocks.runs, self.table(k, name)), _first_rows(stored, blocks.runs)
        for chunk in chunks(runs):
            start, stop = stored.span(chunk)
            at = self._places[k].data[name] + int(firsts[chunk[0]]) * stored.row_bytes
            content = _read(self.paths[k], self._fds[k], at, (stop - start) * stored.row_bytes)
            if stored.digests(content) != table[slice(*chunk)].tobytes():
                raise CorruptCheckpointError(self.paths[k], f"the content of {name!r} is not what was written")
            yield chunk, content

    def map(self, k: int, name: str) -> np.ndarray[Any, Any]:
        """The rows of an array in a segment as the file has them, copied where they are written to."""
        stored = self.manifest.arrays[name]
        rows = stored.length(self.manifest.segments[k].arrays[name].runs)
        with os.fdopen(os.dup(self._fds[k]), "rb") as file:
            offset = self._places[k].data[name]
            return np.memmap(file, stored.dtype, "c", offset, (rows, *stored.shape[1:]))


def _first_rows(stored: Stored, runs: list[Run]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where in the segment each block's rows begin, int64 [blocks], counted in rows."""
    firsts = np.zeros(stored.count, np.int64)
    row = 0
    for start, stop in runs:
        firsts[start:stop] = row + stored.rows_of_block * np.arange(stop - start)
        row += stored.length([(start, stop)])
    return firsts


def _spread(stored: Stored, runs: list[Run], table: Table) -> Table:
    """The checksums that a segment has, at the numbers of their blocks."""
    spread = np.zeros((stored.count, DIGEST), np.uint8)
    at = 0
    for start, stop in runs:
        spread[start:stop] = table[at : at + stop - start]
        at += stop - start
    return spread


def _open(path: str, stack: contextlib.ExitStack) -> tuple[int, int]:
    """A regular file's descriptor and size.

    Raises:
        FileNotFoundError: if there is none of that name.
        CorruptCheckpointError: if it is something else, or cannot be opened.
    """
    try:
        fd = os.open(path, FLAGS)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not os.path.islink(path):
            raise
        raise CorruptCheckpointError(path, f"cannot be opened: {error.strerror}") from error
    stack.callback(os.close, fd)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise CorruptCheckpointError(path, "no regular file")
    return fd, status.st_size


def _read(path: str, fd: int, at: int, size: int) -> bytes:
    content = bytearray(size)
    read_into(path, fd, at, memoryview(content))
    return bytes(content)


def read_into(path: str, fd: int, at: int, into: memoryview) -> None:
    """Fill memory from a place in a file."""
    done = 0
    while done < len(into):
        try:
            got = os.preadv(fd, [into[done:]], at + done)
        except OSError as error:
            raise CorruptCheckpointError(path, f"cannot be read: {error.strerror}") from error
        if not got:
            raise CorruptCheckpointError(path, "it is shorter than it was")
        done += got
