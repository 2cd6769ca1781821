"""The flat form as files have it: with rows for every slot, empty ones too, as TorchRL's TED2Flat writes them.

A lane of length L takes L rows of every leaf, its steps in the order of time first, then zeros. Leaves that are shared
have one row more after each step that is done, and after one further step whether or not it is done: in a full ring
the last row, else the newest step, which lies at `shift - 1`. In a full ring the rows are to be rolled back by `shift`.

`is_full` and `shift` describe lanes that are filled alike. What they do not say (lanes filled differently, the spec) is
beside the data in JSON, which TorchRL does not look at; to it, rows past the end of a lane are steps of zeros.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from functional_rb.base.dtypes import ITEMSIZE
from functional_rb.base.nest import Path, show
from functional_rb.convert.json import to_json
from functional_rb.ted.forms import Array, Flat, Form, Lanes, leaves_of_form

# The name of the file or attribute beside the data that is for this library alone.
EXTRA = "functional_rb"
FORMAT = 1
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


class Piece(NamedTuple):
    """A trajectory in a file; empty rows are in trajectories too."""

    start: int  # its first row in leaves that are not shared
    stop: int  # the row after its last in leaves that are not shared
    shared: int  # its first row in leaves that are shared
    shared_stop: int  # the row after its last in leaves that are shared


def file_leaves(flat: Flat) -> tuple[Header, dict[Path, FileLeaf]]:
    """The header and the leaves of a file for the flat form; their rows are views."""
    header = Header.of(flat.lanes)
    sizes, ends = flat.lanes.sizes, flat.ends
    done = np.zeros((header.count, header.length), bool)
    start, flags = 0, flat.data["done"].reshape(-1)
    for lane, size in enumerate(sizes):
        done[lane, :size] = flags[start : start + size]
        start += size
    # Where the rows of each lane begin: `steps` in the flat form, `first` in the file; `shared_...` of shared leaves.
    extra_rows = header.extra_rows(done)
    steps = np.concatenate([[0], np.cumsum(sizes)])
    more = [int(ends[start:stop].sum()) for start, stop in itertools.pairwise(steps)]
    shared_steps = steps + np.concatenate([[0], np.cumsum(more)])
    shared_first = np.concatenate([[0], np.cumsum(header.length + extra_rows.sum(1))])
    first = np.arange(header.count + 1) * header.length
    leaves = {}
    for path, leaf in leaves_of_form(flat.data).items():
        in_file, in_flat = (shared_first, shared_steps) if path in flat.shared else (first, steps)
        blocks = [Block(int(in_file[k]), leaf[in_flat[k] : in_flat[k + 1]]) for k in range(header.count)]
        leaves[path] = FileLeaf(int(in_file[-1]), leaf.shape[1:], flat.dtypes[show(path)], tuple(blocks))
    return header, leaves


def pieces(header: Header, done: Array) -> Iterator[Piece]:
    """The trajectories of a file, found by the flags of all its rows."""
    extra_rows = header.extra_rows(done)
    ends = extra_rows.copy()
    ends[:, -1] = True  # a trajectory ends with its lane, where it has no row more
    start = shared = 0
    extra_rows = extra_rows.reshape(-1)
    for last in np.flatnonzero(ends.reshape(-1)).tolist():
        stop = last + 1
        shared_stop = shared + stop - start + int(extra_rows[last])
        yield Piece(start, stop, shared, shared_stop)
        start, shared = stop, shared_stop


def done_of(file_leaf: FileLeaf) -> Array:
    done = np.zeros(file_leaf.rows, bool)
    for block in file_leaf.blocks or ():
        done[block.start : block.start + len(block.rows)] = block.rows.reshape(-1)
    return done


def rows_of(file_leaf: FileLeaf, start: int, stop: int) -> Iterator[Block]:
    """The blocks of rows `start` to `stop` that are not zero, positions counted from `start`."""
    for block in file_leaf.blocks or ():
        low, high = max(start, block.start), min(stop, block.start + len(block.rows))
        if low < high:
            yield Block(low - start, block.rows[low - block.start : high - block.start])


def extra_of(form: Form) -> str:
    lanes, spec = form.lanes, None
    if form.spec is not None:
        with contextlib.suppress(TypeError, ValueError):  # a spec with classes of others has no JSON form
            spec = json.loads(to_json(form.spec))
    content = {
        "format": FORMAT,
        "sizes": list(lanes.sizes),
        "cursors": list(lanes.cursors),
        "reward_key": list(form.reward_key),
        "spec": spec,
    }
    return json.dumps(content)
