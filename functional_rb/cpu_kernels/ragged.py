"""The kernels of `structures.ragged`, which read tokens by their address."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.cpu_kernels.cache import compiled, entry_point
from functional_rb.cpu_kernels.raw_memory import INT32, table
from functional_rb.structures.ragged import HALF

UINT16 = np.uint16(0)


@entry_point
def longest(lengths: Any) -> Any:
    """Do what `ragged.longest` does."""
    most = np.int32(1)
    for row in range(lengths.shape[0]):
        for k in range(lengths.shape[1]):
            most = max(most, lengths[row, k])
    return most


@entry_point
def pad_rows(
    tokens: Any,
    size: Any,
    narrow: Any,
    starts: Any,
    shared: Any,
    lengths: Any,
    pad: Any,
    left: Any,
    ids: Any,
    mask: Any,
) -> Any:
    """Do what `ragged.padded` does, of as many tokens as `size`, which are uint16 if narrow and int32 if not.

    All arrays but the tokens are arrays: looking five addresses up would take as long as the kernel.

    Returns:
        The first row that does not fit, or -1.
    """
    rows, texts, length = lengths.shape[0], lengths.shape[1], np.int64(ids.shape[2])
    for row in range(rows):
        own = start = np.int64(starts[row, 0]) * HALF + np.int64(starts[row, 1])
        common = np.int64(0)
        for k in range(texts):
            count = np.int64(lengths[row, k])
            last = max(start + common, own + count - common)
            if not (0 <= common <= count <= length and own >= 0 and last <= size):
                return row
            to, real, first = ids[k, row], mask[k, row], length - count if left else np.int64(0)
            fill(to, real, first, first + count, pad)
            if narrow:
                copy(to[first:], table(tokens, UINT16, (size,))[start : start + common])
                copy(to[first + common :], table(tokens, UINT16, (size,))[own : own + count - common])
            else:
                copy(to[first:], table(tokens, INT32, (size,))[start : start + common])
                copy(to[first + common :], table(tokens, INT32, (size,))[own : own + count - common])
            own += count - common
            common = np.int64(shared[row]) if texts > 1 else common
    return np.int64(-1)


@compiled
def fill(to: Any, real: Any, first: Any, last: Any, pad: Any) -> None:
    """Say from where on and up to where a text is, and fill in what is around it."""
    to[:first], to[last:] = pad, pad
    real[:first], real[first:last], real[last:] = False, True, False


@compiled
def copy(to: Any, tokens: Any) -> None:
    """Write tokens to the beginning of a row."""
    for i in range(tokens.size):
        to[i] = tokens[i]
