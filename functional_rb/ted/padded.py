"""How files have the flat form: with rows for every slot, empty ones too, as TorchRL's TED2Flat writes them.

A lane of length L takes L rows of every leaf, its steps in the order of time first, then zeros. Leaves that are shared
have one row more after each step that is done, and after one that is marked whatever it is: in a full ring the last
row, or else the newest step, at `shift - 1`. In a full ring `shift` is by how much to roll the rows back.

So lanes that are filled alike are told by `is_full` and `shift`. What these do not tell (lanes filled unlike, the spec)
is beside it in JSON, which TorchRL does not look at; to it, rows past the end of a lane are steps of zeros.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from functional_rb.base.nest import Path, show
from functional_rb.buffer.spec import BufferSpec
from functional_rb.convert.json import to_json
from functional_rb.ted.forms import Array, Flat, Form, Lanes, leaves_of_form

EXTRA = "functional_rb"
"""Names what is beside the data for this library alone: a file, an attribute."""
FORMAT = 1
RESERVED = ("is_full", "shift", "_storage_shape", "_len")


@dataclasses.dataclass(frozen=True)
class Header:
    """What TorchRL's form tells of a buffer.

    Attributes:
        is_full: whether every lane is.
        shift: where the next step goes; see above.
        storage_shape: (length,) or (length, lanes), or with more axes of lanes.
    """

    is_full: bool
    shift: int
    storage_shape: tuple[int, ...]

    @classmethod
    def of(cls, lanes: Lanes) -> Header:
        """For given lanes."""
        shape = (lanes.length, len(lanes.sizes)) if lanes.axis else (lanes.length,)
        if any(size < lanes.length for size in lanes.sizes):
            return cls(False, max(lanes.sizes), shape)
        # Not the length itself where nothing is rolled: TorchRL's loading into a storage that is there fails at that.
        alike = lanes.cursors[0] if len(set(lanes.cursors)) == 1 else 0
        return cls(True, alike or -lanes.length, shape)

    @property
    def length(self) -> int:
        """Slots of a lane."""
        return self.storage_shape[0]

    @property
    def count(self) -> int:
        """How many lanes there are."""
        return int(np.prod(self.storage_shape[1:], dtype=np.int64))

    @property
    def stored(self) -> int:
        """Steps of all lanes, as TorchRL counts them."""
        return self.count * (self.length if self.is_full else self.shift)

    def lanes(self) -> Lanes:
        """The lanes that it tells of, all filled alike."""
        size = self.length if self.is_full else self.shift
        axis = len(self.storage_shape) > 1
        return Lanes(self.length, (size,) * self.count, (self.shift % self.length,) * self.count, axis)

    def marks(self, done: Array) -> Array:
        """After which rows a shared leaf has one more, bool [lanes, length], by the flags of all rows."""
        marks = done.reshape(self.count, self.length).copy()
        marks[:, -1 if self.is_full else self.shift - 1] = True
        return marks


class Block(NamedTuple):
    """Rows of a leaf in a file.

    Attributes:
        start: the first of them there.
        rows: what they hold.
    """

    start: int
    rows: Array


class Table(NamedTuple):
    """A leaf in a file.

    Attributes:
        rows: how many it has, empty ones included.
        shape: of a row.
        dtype: its name.
        blocks: the rows that are not zeros; None of a file that is read.
    """

    rows: int
    shape: tuple[int, ...]
    dtype: str
    blocks: tuple[Block, ...] | None = None


class Piece(NamedTuple):
    """A trajectory in a file, empty rows as trajectories too.

    Attributes:
        start: its first row, of the leaves that are not shared.
        stop: the row after its last.
        shared: its first row, of the leaves that are.
        shared_stop: the row after its last.
    """

    start: int
    stop: int
    shared: int
    shared_stop: int


def tables(flat: Flat) -> tuple[Header, dict[Path, Table]]:
    """What a file has of the flat form; the rows are views."""
    header = Header.of(flat.lanes)
    marks = header.marks(_done_of_file(flat))
    sizes, ends = flat.lanes.sizes, flat.ends
    steps = np.concatenate([[0], np.cumsum(sizes)])
    more = [int(ends[start:stop].sum()) for start, stop in itertools.pairwise(steps)]
    shared_steps = steps + np.concatenate([[0], np.cumsum(more)])
    shared_first = np.concatenate([[0], np.cumsum(header.length + marks.sum(1))])
    first = np.arange(header.count + 1) * header.length
    made = {}
    for path, leaf in leaves_of_form(flat.data).items():
        at, own = (shared_first, shared_steps) if path in flat.shared else (first, steps)
        blocks = [Block(int(at[k]), leaf[own[k] : own[k + 1]]) for k in range(header.count)]
        made[path] = Table(int(at[-1]), leaf.shape[1:], flat.dtypes[show(path)], tuple(blocks))
    return header, made


def pieces(header: Header, done: Array) -> Iterator[Piece]:
    """The trajectories of a file, by the flags of all its rows."""
    marks = header.marks(done)
    ends = marks.copy()
    ends[:, -1] = True
    start = shared = 0
    marks = marks.reshape(-1)
    for last in np.flatnonzero(ends.reshape(-1)).tolist():
        stop = last + 1
        shared_stop = shared + stop - start + int(marks[last])
        yield Piece(start, stop, shared, shared_stop)
        start, shared = stop, shared_stop


def done_of(table: Table) -> Array:
    """The flags of all rows, bool [rows]."""
    done = np.zeros(table.rows, bool)
    for block in table.blocks or ():
        done[block.start : block.start + len(block.rows)] = block.rows.reshape(-1)
    return done


def rows_of(table: Table, start: int, stop: int) -> Iterator[Block]:
    """What is not zero of some rows, counted from the first of them."""
    for block in table.blocks or ():
        low, high = max(start, block.start), min(stop, block.start + len(block.rows))
        if low < high:
            yield Block(low - start, block.rows[low - block.start : high - block.start])


def extra_of(form: Form) -> str:
    """The JSON that is written beside the data."""
    lanes = form.lanes
    told = {
        "format": FORMAT,
        "sizes": list(lanes.sizes),
        "cursors": list(lanes.cursors),
        "reward_key": list(form.reward_key),
        "spec": _json_of(form.spec),
    }
    return json.dumps(told)


def check_names(flat: Flat, reserved: tuple[str, ...], who: str) -> None:
    """Refuse leaves whose names a file has for something else."""
    for path in leaves_of_form(flat.data):
        for name in {str(path[0])} & {*reserved}:
            raise ValueError(f"{who}: leaf {show(path)!r}: files have {name!r} for something else; rename the leaf")


def _done_of_file(flat: Flat) -> Array:
    header = Header.of(flat.lanes)
    done = np.zeros((header.count, header.length), bool)
    start, flags = 0, flat.data["done"].reshape(-1)
    for lane, size in enumerate(flat.lanes.sizes):
        done[lane, :size] = flags[start : start + size]
        start += size
    return done


def _json_of(spec: BufferSpec | None) -> Any:
    """A spec in JSON; None for one that has no such form (of classes that are not the library's)."""
    try:
        return None if spec is None else json.loads(to_json(spec))
    except (TypeError, ValueError):
        return None
