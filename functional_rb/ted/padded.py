"""The flat form as files have it: with rows for every slot, empty ones too, as TorchRL's TED2Flat writes them.

A lane of length L takes L rows of every leaf, its steps in the order of time first, then zeros. Leaves that are shared
have one row more after each step that is done, and after one further step whether or not it is done: in a full ring
the last row, else the newest step, which lies at `shift - 1`. In a full ring the rows are to be rolled back by `shift`.

`is_full` and `shift` describe lanes that are filled alike. What they do not say (lanes filled differently, the spec) is
beside the data in JSON, which TorchRL does not look at; to it, rows past the end of a lane are steps of zeros.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from functional_rb.base.arrays import NumpyArray as Array
from functional_rb.base.dtypes import ITEMSIZE
from functional_rb.base.nest import Path
from functional_rb.ted.lanes import Lanes

# How errors name what writes a form.
WHO = "Form.save"
# The name of the file or attribute beside the data that is for this library alone.
EXTRA = "functional_rb"
FORMAT = 1
# What names of files of HDF5 end with; other paths are of directories.
SUFFIXES = (".h5", ".hdf5")
RESERVED = ("is_full", "shift", "_storage_shape", "_len")


@dataclasses.dataclass(frozen=True)
class Header:
    """What TorchRL's form says about a buffer."""

    is_full: bool  # whether every lane is full
    shift: int  # the slot that the next step goes to; see above
    storage_shape: tuple[int, ...]  # (length,) or (length, lanes), or with more axes of lanes

    @classmethod
    def of(cls, lanes: Lanes) -> Header:
        shape = (lanes.length, len(lanes.sizes)) if lanes.axis else (lanes.length,)
        if any(size < lanes.length for size in lanes.sizes):
            return cls(False, max(lanes.sizes), shape)
        # -length where nothing is rolled, as TorchRL cannot load a shift of 0 into an existing storage.
        alike = lanes.cursors[0] if len(set(lanes.cursors)) == 1 else 0
        return cls(True, alike or -lanes.length, shape)

    @property
    def length(self) -> int:
        return self.storage_shape[0]

    @property
    def count(self) -> int:
        return int(np.prod(self.storage_shape[1:], dtype=np.int64))

    @property
    def stored(self) -> int:
        """The number of steps of all lanes, as TorchRL counts them."""
        return self.count * (self.length if self.is_full else self.shift)

    def lanes(self) -> Lanes:
        """Lanes that are all filled as this header says."""
        size = self.length if self.is_full else self.shift
        axis = len(self.storage_shape) > 1
        return Lanes(self.length, (size,) * self.count, (self.shift % self.length,) * self.count, axis)

    def extra_rows(self, done: Array) -> Array:
        """After which rows a shared leaf has one row more, bool [lanes, length], by the flags of all rows."""
        extra_rows = done.reshape(self.count, self.length).copy()
        extra_rows[:, -1 if self.is_full else self.shift - 1] = True
        return extra_rows


class Block(NamedTuple):
    """Consecutive rows of a leaf in a file."""

    start: int  # the position of the first row in the file
    rows: Array  # their values


class FileLeaf(NamedTuple):
    """A leaf in a file."""

    rows: int  # the number of its rows, empty ones included
    shape: tuple[int, ...]  # the shape of a row
    dtype: str  # the name of its dtype
    blocks: tuple[Block, ...] | None = None  # the rows that are not zeros; None for a file that is read

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * ITEMSIZE[self.dtype]


class Padded(NamedTuple):
    """The steps of a flat form, to be written."""

    header: Header
    leaves: dict[Path, FileLeaf]  # their rows are views of the form's arrays
    shared: frozenset[Path]  # the leaves that are shared
    extra: str  # what the header does not say, in JSON


class Piece(NamedTuple):
    """A trajectory in a file; empty rows are in trajectories too."""

    start: int  # its first row in leaves that are not shared
    stop: int  # the row after its last in leaves that are not shared
    shared: int  # its first row in leaves that are shared
    shared_stop: int  # the row after its last in leaves that are shared


def pieces(padded: Padded) -> Iterator[Piece]:
    """The trajectories of a file, found by the flags of all its rows."""
    flags = padded.leaves["done",]
    done = np.zeros(flags.rows, bool)
    for block in flags.blocks or ():
        done[block.start : block.start + len(block.rows)] = block.rows.reshape(-1)
    extra_rows = padded.header.extra_rows(done)
    ends = extra_rows.copy()
    ends[:, -1] = True  # a trajectory ends with its lane, where it has no row more
    start = shared = 0
    extra_rows = extra_rows.reshape(-1)
    for last in np.flatnonzero(ends.reshape(-1)).tolist():
        stop = last + 1
        shared_stop = shared + stop - start + int(extra_rows[last])
        yield Piece(start, stop, shared, shared_stop)
        start, shared = stop, shared_stop


def rows_of(file_leaf: FileLeaf, start: int, stop: int) -> Iterator[Block]:
    """The blocks of rows `start` to `stop` that are not zero, positions counted from `start`."""
    for block in file_leaf.blocks or ():
        low, high = max(start, block.start), min(stop, block.start + len(block.rows))
        if low < high:
            yield Block(low - start, block.rows[low - block.start : high - block.start])
