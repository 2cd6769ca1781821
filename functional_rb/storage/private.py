"""Mapped files that nobody writes to: a page that is written is copied, for this process alone (MAP_PRIVATE).

So as many processes as wanted have the same files open, without a lock, and share what is in the memory of the system.
"""

from __future__ import annotations

import math
import mmap
import os
import sys

import numpy as np

from functional_rb.base.arrays import ArrayLike
from functional_rb.base.files import open_regular
from functional_rb.buffer.spec import BufferSpec
from functional_rb.storage.directory import explained, file_name, need_posix, shapes
from functional_rb.storage.mapped import MappedFiles, Vector
from functional_rb.storage.mapped_array import MappedArray

# MAP_NORESERVE: pages that are never written need no memory, so files may be larger than it.
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0


class PrivateArray(MappedArray):
    """An array over a file whose pages are copied when they are written; see `MappedArray` for the attributes."""

    def __init__(self, path: str, shape: tuple[int, ...], dtype: str) -> None:
        with explained(path):
            self._file, size = open_regular(path)
        self.path = path
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if size != nbytes:
            raise ValueError(
                f"{path}: expected {nbytes} bytes, {dtype} {list(shape)}, got {size}: the file is damaged; make it anew"
            )
        self.item = nbytes // max(shape[0], 1)
        self.new, self.complete, self.reserved = False, True, np.ones(0, bool)
        self.array = np.empty(shape, dtype)
        if nbytes:  # nothing cannot be mapped
            flags, access = mmap.MAP_PRIVATE | NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
            with explained(path):
                mapping = mmap.mmap(self._file.fd, nbytes, flags, access)
            self.array = np.ndarray(shape, dtype, mapping)
            self._hide_holes(access)

    def copy_to(self, other: MappedArray) -> None:
        other.fill(self.array)


class PrivateFiles(MappedFiles):
    """The files of a buffer in a directory, none of which is ever written to; see `MappedFiles` for other attributes.

    Attributes:
        touched: whether a page may have been written, and so be another than the file's.
    """

    def __init__(self, spec: BufferSpec, directory: str) -> None:
        need_posix()
        files = {name: PrivateArray(os.path.join(directory, file_name(name)), *of) for name, of in shapes(spec).items()}
        super().__init__(spec, dict(files), None)
        self._place = os.path.abspath(directory)
        self.directory = self._place
        self.touched = False

    def check_process(self) -> None:
        """A forked process may go on: its pages are its own."""

    @property
    def ready(self) -> bool:
        return self.touched

    def make_room(self, spec: BufferSpec, numbers: Vector, batch: int) -> None:
        # There is room; from now on pages may be other than the file's.
        self.touched = True

    def prepare_slots(self, slots: ArrayLike) -> None:
        self.touched = True

    def copy(self) -> MappedFiles:
        # If a page was written, the files no longer have the content.
        return super().copy() if self.touched else PrivateFiles(self.spec, self._place)
