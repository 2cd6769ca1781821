"""Where leaves lie in the files of a shared buffer: as in the layout of the process that made it.

The order of the leaves in a spec decides where they lie, and processes may have them in different orders: JAX sorts the
keys of dicts, torch does not. So a file says where each leaf lies, and every process finds its leaves by their paths.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from functional_rb.structures.row_layout import Layout, LeafLayout

Array = np.ndarray[Any, Any]


def described(layout: Layout) -> dict[str, Any]:
    """A layout for JSON: path, shape, dtype, offset in the row and number of the array of each leaf (`LeafLayout`)."""
    leaves = [[leaf.path, leaf.shape, leaf.dtype, leaf.offset, leaf.wide] for leaf in layout.leaves]
    return {"row_words": layout.row_words, "leaves": leaves}


def matched(own: Layout, description: Any) -> Layout:
    """The leaves of a layout, in its order, at the places that a file gives them.

    Args:
        own: the layout of a spec.
        description: what `described` made of the layout of an equal spec, with its leaves in any order, read from JSON.

    Raises:
        ValueError: if it has other leaves, or not a place for each: the file was changed.
    """
    try:
        there = {tuple(path): place for path, *place in description["leaves"]}
        leaves = tuple(_placed(leaf, *there.pop(leaf.path)) for leaf in own.leaves)
        found = Layout(leaves, own.row_words)
        _check_apart(found)
    except (KeyError, TypeError):
        raise ValueError("it does not tell where each leaf lies") from None
    if there or description["row_words"] != own.row_words:
        raise ValueError("it tells of rows with other leaves")
    return found


def _placed(own: LeafLayout, shape: Any, dtype: Any, offset: Any, wide: Any) -> LeafLayout:
    if (shape, dtype, offset is None) != ([*own.shape], own.dtype, own.offset is None):
        raise ValueError(f"it tells of leaf {own.path} as {dtype} {shape}, and not {own.dtype} {[*own.shape]}")
    return dataclasses.replace(own, offset=offset, wide=wide)


def _check_apart(layout: Layout) -> None:
    """Refuse a place outside of the row, and one that two leaves have."""
    taken = np.zeros(4 * layout.row_words, np.uint8)
    for leaf in layout.leaves:
        if leaf.offset is not None:
            place = taken[leaf.offset : leaf.offset + leaf.nbytes]
            if leaf.offset < 0 or place.size != leaf.nbytes or place.any():
                raise ValueError(f"leaf {leaf.path} has no place of its own in the row")
            place[:] = 1
    if [leaf.wide for leaf in layout.wide] != [*range(len(layout.wide))]:
        raise ValueError("the arrays of wide leaves are not numbered")


def moved(rows: Array, wide: Sequence[Array], source: Layout, target: Layout) -> tuple[Array, Sequence[Array]]:
    """Items as another layout of the same leaves, in the same order, has them.

    Args:
        rows: int32 [n, words], in the layout `source`.
        wide: arrays [n, *shape], in the layout `source`.
        source: the layout that they have.
        target: the layout that they get.

    Returns:
        Rows and wide arrays: those given if the layouts are equal, else new rows, and the arrays in the other order.
    """
    if source == target:
        return rows, wide
    there = np.zeros(rows.shape, rows.dtype)
    from_bytes, to_bytes = np.ascontiguousarray(rows).view(np.uint8), there.view(np.uint8)
    arrays = list(wide)
    for old, new in zip(source.leaves, target.leaves, strict=True):
        if old.offset is not None and new.offset is not None:
            to_bytes[:, new.offset : new.offset + new.nbytes] = from_bytes[:, old.offset : old.offset + old.nbytes]
        elif old.wide is not None and new.wide is not None:
            arrays[new.wide] = wide[old.wide]
    return there, arrays
