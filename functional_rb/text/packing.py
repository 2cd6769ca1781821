"""Packing: sequences of any length as rows of one length, on the host."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np

from functional_rb.text.arguments import whole
from functional_rb.text.generation import PADDING

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


class Packed(NamedTuple):
    """Sequences side by side in R rows of C places.

    A piece is a sequence, or a part of one that was split. Pieces are numbered in the order of the sequences.

    Attributes:
        ids: int32 [R, C], the tokens, and `pad` where there is none.
        segments: int32 [R, C], the number of the piece that each token is of, -1 where there is no token: what has
            another segment must not be seen.
        positions: int32 [R, C], the position of each token in its piece, -1 where there is none.
        sequence: int32 [P], which sequence each piece is of.
    """

    ids: Ints
    segments: Ints
    positions: Ints
    sequence: Ints

    def unpack(self) -> list[Ints]:
        """The sequences that were packed, int32 [T_i] in their order; those that were split are whole again.

        The rows may be in another order, `packed._replace(...)`, if no piece is missing.

        Example:
            >>> [x.tolist() for x in pack([[1, 2, 3], [], [4]], length=2, too_long="split").unpack()]
            [[1, 2, 3], [], [4]]
        """
        there = self.segments >= 0
        piece, place = self.segments[there], self.positions[there]
        tokens = self.ids[there][np.lexsort((place, piece))]
        count = int(self.sequence[-1]) + 1 if len(self.sequence) else 0
        lengths = np.bincount(self.sequence[piece], minlength=count)
        return np.split(tokens, np.cumsum(lengths)[:-1]) if count else []


def pack(
    sequences: Iterable[object], length: int, *, too_long: Literal["error", "split"] = "error", pad: int = 0
) -> Packed:
    """Pack sequences of tokens into few rows, by best fit decreasing (D. S. Johnson, 1973).

    The longest comes first, and each goes where it leaves the least room. That takes at most 11/9 of the fewest rows
    there could be, and one more, in O(n log n) for n sequences. Equally long ones stay in their order.

    Args:
        sequences: arrays or lists of integers [T_i], which may be empty.
        length: C, the length of the rows.
        too_long: what to do with a sequence longer than a row: "error", or "split" it in pieces, all but the last as
            long as a row, with positions that begin at 0 in each.
        pad: what stands where there is no token.

    Returns:
        The rows, of which `unpack()` gives the sequences back.

    Raises:
        TypeError: for what is no sequence of integers, naming it.
        ValueError: for a sequence of more axes, of more tokens than a row has, or with a token that is none, naming it.

    Example:
        >>> packed = pack([[1, 2], [3, 4, 5], [6], [7, 8]], length=5)
        >>> packed.ids.tolist()
        [[3, 4, 5, 1, 2], [7, 8, 6, 0, 0]]
        >>> packed.segments.tolist(), packed.positions.tolist()
        ([[1, 1, 1, 0, 0], [3, 3, 2, -1, -1]], [[0, 1, 2, 0, 1], [0, 1, 0, -1, -1]])
    """
    who = "text.pack"
    size = whole(length, "length", 1, who)
    if too_long not in ("error", "split"):
        raise ValueError(f"{who}: expected too_long as 'error' or 'split', got {too_long!r}")
    fill = whole(pad, "pad", -(2**31), who)
    if not hasattr(sequences, "__iter__") and not hasattr(sequences, "__getitem__"):
        raise TypeError(f"{who}: expected sequences of token ids, got {type(sequences).__name__}")
    pieces: list[Ints] = []
    sequence: list[int] = []
    for i, x in enumerate(sequences):
        tokens = _tokens(x, i, who)
        if len(tokens) > size and too_long == "error":
            raise ValueError(
                f"{who}: sequence {i} has {len(tokens)} tokens, more than a row of {size}; "
                f"give too_long='split', or cut or leave it out"
            )
        parts = [tokens[at : at + size] for at in range(0, max(len(tokens), 1), size)]
        pieces += parts
        sequence += [i] * len(parts)
    row, column, count = _places([len(tokens) for tokens in pieces], size)
    # Rows lie behind each other in memory, so a piece is one slice of each flat array.
    packed = Packed(
        np.full((count, size), fill, np.int32),
        np.full((count, size), PADDING, np.int32),
        np.full((count, size), PADDING, np.int32),
        np.array(sequence, np.int32),
    )
    ids, segments, positions = (x.reshape(-1) for x in packed[:3])
    places = np.arange(size, dtype=np.int32)
    for i, tokens in enumerate(pieces):
        first = row[i] * size + column[i]
        at = slice(first, first + len(tokens))
        ids[at], segments[at], positions[at] = tokens, i, places[: len(tokens)]
    return packed


def _places(lengths: list[int], size: int) -> tuple[list[int], list[int], int]:
    row, column = [0] * len(lengths), [0] * len(lengths)
    # Rows by the room they have left, and these rooms in order, so that the best one is found by halves.
    rows_with: dict[int, list[int]] = {}
    rooms: list[int] = []
    count = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not lengths[i]:
            break  # empty ones, which come last, need no place
        # The row with the least room that is enough; a new one where none has enough.
        at_least = bisect.bisect_left(rooms, lengths[i])
        if at_least == len(rooms):
            room, at = size, count
            count += 1
        else:
            room = rooms[at_least]
            at = rows_with[room].pop()
            if not rows_with[room]:
                del rows_with[room], rooms[at_least]
        row[i], column[i] = at, size - room
        left = room - lengths[i]
        if left and left not in rows_with:
            rows_with[left] = []
            bisect.insort(rooms, left)
        if left:
            rows_with[left].append(at)
    return row, column, count


def _tokens(x: object, number: int, who: str) -> Ints:
    tokens = np.asarray(x)
    if tokens.size == 0 and tokens.ndim == 1:
        return np.zeros(0, np.int32)
    if tokens.dtype.kind not in "iu":
        raise TypeError(f"{who}: sequence {number}: expected integers, got {tokens.dtype}; give token ids")
    if tokens.ndim != 1:
        raise ValueError(f"{who}: sequence {number}: expected shape [tokens], got {list(tokens.shape)}")
    if not 0 <= tokens.min() <= tokens.max() < 2**31:
        wrong = tokens[(tokens < 0) | (tokens >= 2**31)][0]
        raise ValueError(
            f"{who}: sequence {number}: expected tokens from 0 to 2^31 - 1, got {wrong}; what is to be left out of a "
            f"loss, such as labels of -100, belongs into a mask"
        )
    return tokens.astype(np.int32)
