"""Blocks in pieces that Ray sends in its messages.

What is larger than Ray's limit, 100 KB as it comes, goes through its object store, which takes one to two milliseconds
longer. Each argument and each result of a call is measured by itself, so that a block of up to some hundreds of KB is
sooner there in pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.scale.ray.blocks import Block

# Bytes; with what Ray sets before it, a piece is below the limit of 102,400.
PIECE = 96_000
# Bytes; what is larger is as fast through the object store.
MOST = 512_000


def pieces_for(size: int) -> int:
    """How many pieces so many bytes should travel in; 0 where they should not be cut.

    Example:
        >>> [pieces_for(size) for size in (1000, 96_001, 512_000, 512_001)]
        [0, 2, 6, 0]
    """
    return -(-size // PIECE) if PIECE < size <= MOST else 0


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
