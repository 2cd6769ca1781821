"""How arrays travel: small ones together in one block of bytes, large ones as they are.

Ray's object store hands arrays of NumPy out without a copy, each at some cost of its own. So the leaves of a batch are
laid side by side in one block, each contiguous and aligned, and are views of it where they arrive; a leaf that is large
anyway would only be copied once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from functional_rb.base.arrays import NumpyArray

# Bytes; a cache line, and the widest vector that a CPU loads.
ALIGNMENT = 64
# Arrays of at least so many bytes travel by themselves.
LARGE = 1 << 19
# What is larger than 100 KB, as Ray's limit comes, goes through its object store, which takes one to two
# milliseconds longer. Each argument and each result of a call is measured by itself, so that a block of up to some
# hundreds of KB is sooner there in pieces; one of so many bytes is below the limit with what Ray sets before it.
PIECE = 96_000
# Bytes; what is larger is as fast through the object store.
MOST_IN_PIECES = 512_000


class Block(NamedTuple):
    """Arrays that travel together."""

    # Each array's dtype as NumPy writes it, its shape, and where it begins in `small`, -1 for those in `large`: Python
    # objects are always there, and are pickled.
    shapes: tuple[tuple[str, tuple[int, ...], int], ...]
    small: NumpyArray  # uint8 [bytes]
    large: tuple[NumpyArray, ...]  # the arrays that travel by themselves, in their order

    @property
    def nbytes(self) -> int:
        return int(self.small.nbytes) + sum(int(array.nbytes) for array in self.large)


def pack(arrays: Sequence[NumpyArray]) -> Block:
    """Lay arrays side by side; those given are not kept, but for large ones.

    Example:
        >>> block = pack([np.arange(3, dtype=np.int32), np.ones((2, 2), np.float32)])
        >>> block.small.size, [array.tolist() for array in unpack(block)]
        (80, [[0, 1, 2], [[1.0, 1.0], [1.0, 1.0]]])
    """
    shapes, large, end = [], [], 0
    for array in arrays:
        if array.nbytes >= LARGE or array.dtype.hasobject:
            shapes.append((array.dtype.str, array.shape, -1))
            large.append(np.ascontiguousarray(array))
        else:
            start = -(-end // ALIGNMENT) * ALIGNMENT
            shapes.append((array.dtype.str, array.shape, start))
            end = start + array.nbytes
    small = np.zeros(end, np.uint8)
    for array, (name, shape, start) in zip(arrays, shapes, strict=True):
        if start >= 0 and array.nbytes:
            small[start : start + array.nbytes].view(name).reshape(shape)[...] = array
    return Block(tuple(shapes), small, tuple(large))


def unpack(block: Block) -> list[NumpyArray]:
    """The arrays of a block, as views of it: read-only where they come from Ray's object store."""
    remaining, arrays = iter(block.large), []
    for name, shape, start in block.shapes:
        if start < 0:
            arrays.append(next(remaining))
            continue
        size = math.prod(shape) * np.dtype(name).itemsize
        arrays.append(block.small[start : start + size].view(name).reshape(shape))
    return arrays


def pieces_for(size: int) -> int:
    """How many pieces so many bytes should travel in; 0 where they should not be cut.

    Example:
        >>> [pieces_for(size) for size in (1000, 96_001, 512_000, 512_001)]
        [0, 2, 6, 0]
    """
    return -(-size // PIECE) if PIECE < size <= MOST_IN_PIECES else 0


def cut(block: Block, pieces: int) -> tuple[Block, list[NumpyArray]]:
    """What is left of a block, and its bytes in so many pieces, which are views of it.

    Example:
        >>> block = Block((("|u1", (5,), 0),), np.arange(5, dtype=np.uint8), ())
        >>> rest, pieces = cut(block, 2)
        >>> rest.nbytes, [piece.tolist() for piece in pieces], joined(rest, pieces).small.tolist()
        (0, [[0, 1, 2], [3, 4]], [0, 1, 2, 3, 4])
    """
    return block._replace(small=block.small[:0]), np.array_split(block.small, pieces)


def joined(rest: Block, pieces: Sequence[NumpyArray]) -> Block:
    return rest._replace(small=np.concatenate(pieces))
