"""The arrays of a state in blocks, each with a checksum: the unit in which checkpoints are written and compared."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.checksum import DIGEST, digest, hasher
from functional_rb.buffer.reader import shapes_of
from functional_rb.ops.numpy_ops import aligned
from functional_rb.structures.stored_arrays import auxiliary_name

if TYPE_CHECKING:
    from functional_rb.buffer.spec import BufferSpec

# Of a block: as many rows as fit, at least one. Part of the format.
BLOCK_BYTES = 1 << 16
# So many blocks are read and written at a time, 4 MiB: enough that a call costs nothing beside its bytes.
CHUNK_BLOCKS = 64

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Table = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
# Blocks from the first to before the second.
Run = tuple[int, int]
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclasses.dataclass(frozen=True)
class Stored:
    """An array in a checkpoint."""

    name: str  # see `reader.shapes_of`
    shape: tuple[int, ...]  # of it
    dtype: str  # its name
    fill: int  # what its elements are where nothing is stored

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def rows_of_block(self) -> int:
        return max(1, BLOCK_BYTES // self.row_bytes)  # the last block may have fewer

    @property
    def count(self) -> int:
        """How many blocks the whole array has."""
        return -(-self.rows // self.rows_of_block)

    def span(self, run: Run) -> tuple[int, int]:
        """The rows [first, last) of a run of blocks."""
        return run[0] * self.rows_of_block, min(run[1] * self.rows_of_block, self.rows)

    def length(self, runs: list[Run]) -> int:
        """How many rows they have together; the last block of all may be shorter than others."""
        blocks = int(np.diff(as_array(runs)).sum())
        missing = self.count * self.rows_of_block - self.rows if runs and runs[-1][1] == self.count else 0
        return blocks * self.rows_of_block - missing

    def of_rows(self, start: int, stop: int) -> slice:
        """The blocks that have any of rows [start, stop)."""
        return slice(start // self.rows_of_block, -(-stop // self.rows_of_block))

    def digests(self, content: bytes | memoryview) -> bytes:
        """The checksums of blocks that follow each other."""
        size, make = self.rows_of_block * self.row_bytes, hasher()
        view = memoryview(content).cast("B")
        return b"".join([make(view[at : at + size]) for at in range(0, len(view), size)])

    def blank_array(self) -> NumpyArray:
        array = aligned(np.zeros, self.shape, np.dtype(self.dtype))
        if self.fill:
            array[...] = self.fill
        return array

    def blank(self) -> Table:
        """The checksums of all blocks of an array that was never written."""
        # Blocks that were never written are all alike, so two are made, and not the whole array.
        start, stop = self.span((self.count - 1, self.count))
        filled = [
            bytes_of(np.full((rows, *self.shape[1:]), self.fill, self.dtype))
            for rows in (min(self.rows_of_block, self.rows), stop - start)
        ]
        table = np.empty((self.count, DIGEST), np.uint8)
        table[:], table[-1] = (np.frombuffer(digest(block), np.uint8) for block in filled)
        return table


@functools.lru_cache(maxsize=16)
def stored_arrays(spec: BufferSpec) -> dict[str, Stored]:
    """The arrays of a state that checkpoints store, those without any byte left out; counters are stored apart."""
    fills = {auxiliary_name(name): array.fill for name, array in spec.plan.auxiliary.items()}
    stored = {
        name: Stored(name, shape, dtype, fills.get(name, 0))
        for name, (shape, dtype) in shapes_of(spec.plan).items()
        if name != "counters" and 0 not in shape
    }
    # The largest elements first, so that each array in a file is aligned for its dtype.
    return dict(sorted(stored.items(), key=lambda pair: -np.dtype(pair[1].dtype).itemsize))


def bytes_of(array: NumpyArray) -> memoryview:
    content: Any = array.reshape(-1).view(np.uint8)  # NumPy 2.2's types do not say that arrays are buffers
    return memoryview(content)


def runs_of(mask: Mask) -> list[Run]:
    """The blocks that are marked, as runs.

    Example:
        >>> runs_of(np.array([True, True, False, True]))
        [(0, 2), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def marked(runs: list[Run], count: int) -> Mask:
    """The inverse: which of so many blocks are in the runs.

    Example:
        >>> marked([(0, 2), (3, 4)], 5).tolist()
        [True, True, False, True, False]
    """
    edges = np.zeros(count + 1, np.int8)
    starts, stops = as_array(runs).T
    edges[starts] = 1
    edges[stops] = -1
    return np.cumsum(edges[:-1], dtype=np.int8).astype(bool)


def as_array(runs: list[Run]) -> Numbers:
    """Runs of blocks as an array int64 [n, 2], of the first block and the one after the last."""
    return np.array(runs, np.int64).reshape(-1, 2)


def chunks(runs: list[Run]) -> Iterator[Run]:
    for first, last in runs:
        for start in range(first, last, CHUNK_BLOCKS):
            yield start, min(start + CHUNK_BLOCKS, last)
