"""Which numbers lie on the way to each node of a tree that grows level by level."""

from __future__ import annotations

import numpy as np

from functional_rb.trees.nodes_in_order import Bools, Ints

# Numbers of one mask: 2^6.
BITS = 6
# Bits of a digit: each row of the trie points to 2^2 others.
FAN = 2


class Ways:
    """Sets of numbers, each made of another one by adding a number; what two of them share is stored once.

    A set is a trie of masks, and adding copies the rows on the way to one mask (J. R. Driscoll et al., "Making data
    structures persistent", 1989). So a set takes O(log n) memory, and so much time to be made and to be asked, however
    many numbers are in it.

    Example:
        >>> ways = Ways(1000)
        >>> first = ways.extended(np.array([Ways.EMPTY]), np.array([7]))
        >>> both = ways.extended(first, np.array([900]))
        >>> ways.have(both, np.array([7])).tolist(), ways.have(first, np.array([900])).tolist()
        ([True], [False])
    """

    EMPTY = 0

    def __init__(self, n: int) -> None:
        masks = max(n - 1, 0) >> BITS
        self._digits = -(-masks.bit_length() // FAN)
        # [sets, digits, 4]: of each set the rows that are its own, which point to sets that have the next ones.
        self._rows = np.zeros((1, self._digits, 2**FAN), np.int32)
        self._masks: np.ndarray[tuple[int, ...], np.dtype[np.uint64]] = np.zeros(1, np.uint64)
        self._count = 1

    def extended(self, sets: Ints, numbers: Ints) -> Ints:
        """The sets [m] that have a number each [m] more than those given."""
        missing = self._count + len(sets) - len(self._masks)
        if missing > 0:  # room is at least doubled, so that all copies together take linear time
            room = max(missing, len(self._masks))
            self._rows = np.concatenate([self._rows, np.zeros((room, *self._rows.shape[1:]), np.int32)])
            self._masks = np.concatenate([self._masks, np.zeros(room, np.uint64)])
        new = self._count + np.arange(len(sets))
        self._count += len(sets)
        # Down the trie: copy the row of each digit, with the entry on the way exchanged for the new set.
        for place, digit in enumerate(self._digits_of(numbers)):
            rows = self._rows[sets, place]
            sets = rows[np.arange(len(rows)), digit]
            rows[np.arange(len(rows)), digit] = new
            self._rows[new, place] = rows
        self._masks[new] = self._masks[sets] | _bit(numbers)
        return new

    def have(self, sets: Ints, numbers: Ints) -> Bools:
        """Whether sets [m] have a number each [m]."""
        for place, digit in enumerate(self._digits_of(numbers)):
            sets = self._rows[sets, place, digit]
        return (self._masks[sets] & _bit(numbers)) != 0

    def _digits_of(self, numbers: Ints) -> list[Ints]:
        masks = numbers >> BITS
        return [(masks >> FAN * (self._digits - 1 - place)) & (2**FAN - 1) for place in range(self._digits)]


def _bit(numbers: Ints) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return np.uint64(1) << (numbers & (2**BITS - 1)).astype(np.uint64)
