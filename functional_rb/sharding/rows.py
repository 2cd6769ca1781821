"""What is read for other shards, as rows of 32-bit words: one transfer moves them, and no bit of them changes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from functional_rb.base import dtypes
from functional_rb.base.arrays import BackendArray
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import row_layout
from functional_rb.structures.row_layout import Layout


def layout_of(arrays: Sequence[Array]) -> Layout:
    """How arrays [n, *shape] lie beside one another, all of them in the row."""
    described = tuple(((k,), tuple(map(int, x.shape[1:])), dtypes.shown(x.dtype)) for k, x in enumerate(arrays))
    return row_layout.plan(described, math.inf)


def packed(ops: Ops, layout: Layout, arrays: Sequence[Array]) -> BackendArray:
    """Arrays [n, *shape], one at least, as words int32 [n, words]."""
    zero = ops.arange(arrays[0].shape[0], like=arrays[0]) * 0
    if not zero.shape[0]:
        return zero[:, None] * ops.arange(layout.row_words, like=zero)
    return row_layout.pack_rows(ops, layout, arrays, zero)


def unpacked(ops: Ops, layout: Layout, words: Array) -> list[BackendArray]:
    """The inverse of `packed`."""
    return row_layout.unpack(ops, layout, words, ())


def only(ops: Ops, words: Array, marked: Array) -> BackendArray:
    """The rows that bool [n] marks, and zeros for others, so that all shards' rows can be added up."""
    return ops.where(row_layout.along(marked, words), words, ops.full_like(words, 0))
