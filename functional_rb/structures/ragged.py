"""Texts that lie one after the other in a file of tokens, as rows of one length."""

from __future__ import annotations

from typing import Final

import numpy as np

from functional_rb.base.arrays import NumpyArray

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
# A place in a file is kept as two int32, of which the second is below this: JAX has no int64 unless asked.
HALF: Final = 2**31


def longest(lengths: Ints) -> int:
    """The largest of some lengths int32 [B, k]; at least 1."""
    return int(lengths.max(initial=1))


def padded(
    tokens: NumpyArray, starts: Ints, shared: Ints | None, lengths: Ints, length: int, pad: int, left: bool
) -> tuple[Ints, Bools, int]:
    """Copy the k texts of each row to rows of one length.

    Args:
        tokens: integer [n], all texts'; a row's texts one after the other, what they have in common only in the first.
        starts: int32 [B, 2], where a row's first text is.
        shared: int32 [B], how many tokens the texts of a row begin with in common; None if there is one a row.
        lengths: int32 [B, k], how many tokens each text has.
        length: L, as long as any of them at least.
        pad: what stands where there is no token.
        left: whether that is before the texts, else behind.

    Returns:
        Tokens int32 [k, B, L]; which of them are real, bool [k, B, L]; and the first row whose texts are not among
        these tokens, behind which nothing is filled in, or -1.
    """
    rows, texts = lengths.shape
    ids, mask = np.full((texts, rows, length), pad, np.int32), np.zeros((texts, rows, length), np.bool_)
    commons = [0] * rows if shared is None else shared.tolist()
    for row, (high, low) in enumerate(starts.tolist()):
        suffix = start = high * HALF + low
        common = 0
        for k, count in enumerate(lengths[row].tolist()):
            last = max(start + common, suffix + count - common)
            if not (0 <= common <= count <= length and suffix >= 0 and last <= len(tokens)):
                return ids, mask, row
            to, first = ids[k, row], length - count if left else 0
            to[first : first + common] = tokens[start : start + common]
            to[first + common : first + count] = tokens[suffix : suffix + count - common]
            mask[k, row, first : first + count] = True
            suffix, common = suffix + count - common, commons[row]
    return ids, mask, -1
