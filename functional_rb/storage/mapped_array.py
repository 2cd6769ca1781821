"""An array over a sparse file, in which room is reserved before rows are written.

What was never written takes no room. Writing to a part of a mapping that the disk has no room for would kill the
process (SIGBUS), so room is reserved first, `CHUNK` bytes at a time. So a full disk is an error before anything is
written. What was never written is read as zeros, also where reading it would take room (`holes`).
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.descriptors import Descriptor
from functional_rb.base.errors import FULL
from functional_rb.storage import holes
from functional_rb.storage.directory import explained, full

# Bytes for which room is reserved at a time: some ten microseconds each, so next to nothing for what is written.
CHUNK = 2**22


class MappedArray:
    """An array over a file.

    Attributes:
        array: as NumPy has it; the mapping lives as long as this, or a view of it.
        item: bytes of a row.
        complete: whether there is room for all of it.
        new: whether the file was made for it, so that what was not written is zero.
        path: of the file, as errors show it.
    """

    def __init__(self, file: Descriptor, shape: tuple[int, ...], dtype: str, path: str, writable: bool = True) -> None:
        """Map a file, which is made as long as the array if it is empty."""
        self._file, self.path = file, path
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        self.item = nbytes // shape[0]
        self.new = False
        self.reserved = np.zeros(-(-nbytes // CHUNK), bool)
        self.complete = not nbytes or not writable
        with explained(path):
            if writable and not os.fstat(file.fd).st_size:
                os.ftruncate(file.fd, nbytes)
                self.new = True
            size = os.fstat(file.fd).st_size
            if size != nbytes:
                raise ValueError(
                    f"{path}: expected {nbytes} bytes, {dtype} {list(shape)}, got {size}; give Memmap another path, "
                    f"or remove the file"
                )
            if not nbytes:  # which cannot be mapped
                self.array = np.empty(shape, dtype)
                return
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            mapping = mmap.mmap(file.fd, nbytes, mmap.MAP_SHARED, access)
        self.array = np.ndarray(shape, dtype, mapping)
        self._hide_holes(mmap.PROT_READ)

    # Where reading holes takes room, have zeros in their place; what is written there must be reserved before.
    def _hide_holes(self, access: int) -> None:
        self._hides = holes.take_room(self._file.fd)
        if self._hides:
            with explained(self.path):
                end = 0
                for start, stop in [*self._written(), (self.array.nbytes, self.array.nbytes)]:
                    if end < start:
                        holes.hide(self.array.ctypes.data, end, start, access)
                    end = stop

    def reserve(self, first: int, n: int) -> None:
        """Have room for rows [first, first + n)."""
        if self.complete or n <= 0:
            return
        start, end = first * self.item // CHUNK, -(-(first + n) * self.item // CHUNK)
        if not self.reserved[start:end].all():
            for chunk in np.flatnonzero(~self.reserved[start:end]).tolist():
                self._reserve_chunk(start + chunk)
            self.complete = bool(self.reserved.all())

    def chunk_end(self, end: int) -> int:
        """The row before which the chunk ends that has the last byte before another row."""
        rows = len(self.array)
        return min(rows, -(-end * self.item // CHUNK) * CHUNK // self.item) if self.item else rows

    def reserve_rows(self, rows: NumpyArray) -> None:
        """Have room for some rows, integers [n]."""
        if self.complete or not len(rows):
            return
        at = np.asarray(rows, np.int64) * self.item
        ends = [at // CHUNK, (at + self.item - 1) // CHUNK]
        # A row of at most a chunk lies in its first and its last one alone.
        if self.item > CHUNK or not all(self.reserved[chunk].all() for chunk in ends):
            for row in np.unique(rows).tolist():
                self.reserve(row, 1)

    def _reserve_chunk(self, chunk: int) -> None:
        start = chunk * CHUNK
        try:
            allocate(self._file.fd, start, min(CHUNK, self.array.nbytes - start))
        except OSError as error:
            if error.errno in FULL:
                raise full(self.path, error.strerror, CHUNK) from error
            raise
        if self._hides:
            with explained(self.path):
                end = min(start + CHUNK, self.array.nbytes)
                holes.show(self.array.ctypes.data, start, end, self._file.fd)
        self.reserved[chunk] = True

    def copy_to(self, other: MappedArray) -> None:
        """Write what has been written to another of the same shape, and reserve there what is reserved here."""
        for chunk in np.flatnonzero(self.reserved).tolist():
            other._reserve_chunk(chunk)
        other.complete = bool(other.reserved.all())
        with explained(other.path):
            for start, end in self._written():
                _copy_bytes(self._file.fd, other._file.fd, start, end)
                if other._hides:
                    holes.show(other.array.ctypes.data, start, end, other._file.fd)

    # The extents of the file that hold data; all of it, where the file system cannot tell.
    def _written(self) -> Iterator[tuple[int, int]]:
        at, size = 0, self.array.nbytes
        while at < size:
            try:
                at = os.lseek(self._file.fd, at, os.SEEK_DATA)
            except OSError:  # nothing but a hole until the end
                return
            end = os.lseek(self._file.fd, at, os.SEEK_HOLE)
            yield at, end
            at = end

    def written(self) -> Iterator[tuple[int, int]]:
        """Rows outside of which nothing was ever written, as (first, stop)."""
        for start, end in self._written():
            yield start // self.item, -(-end // self.item)

    def clear(self) -> None:
        """Make everything zero, and give the room back."""
        if self.array.nbytes and any(True for _ in self._written()):
            with explained(self.path):
                # Cut to nothing and made long again, a file has holes only, which read as zeros.
                os.ftruncate(self._file.fd, 0)
                os.ftruncate(self._file.fd, self.array.nbytes)
            self.reserved[:] = False
            self.complete = False
            self._hide_holes(mmap.PROT_READ)

    def fill(self, values: NumpyArray, start: int = 0) -> None:
        """Write rows from one on, leaving out what is zero where the file is so already."""
        step = max(1, CHUNK // max(self.item, 1))
        for k in range(0, len(values), step):
            chunk = np.ascontiguousarray(values[k : k + step])
            first, stop = start + k, start + k + len(chunk)
            if _any(chunk) or (not self.new and _any(self.array[first:stop])):
                self.reserve(first, len(chunk))
                self.array[first:stop] = chunk


def _any(values: NumpyArray) -> bool:
    return bool(values.size and values.view(np.uint8).any())


def allocate(descriptor: int, start: int, nbytes: int) -> None:
    """Reserve room on the disk for a part of a file, without changing what it holds."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, nbytes)
    else:  # macOS: room is made by writing what is there
        _copy_bytes(descriptor, descriptor, start, start + nbytes)


def _copy_bytes(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        data = os.pread(source, min(CHUNK, end - start), start)
        start += os.pwrite(target, data, start)
