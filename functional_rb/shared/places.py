"""Where leaves lie in the files of a shared buffer: as in the layout of whoever made it.

The order of the leaves in a spec decides where they lie, and processes may have them in different orders: JAX sorts the
keys of dicts, torch does not. So the files tell where each leaf lies, and every process finds its own by their paths.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from functional_rb.structures.row_layout import Layout, LeafLayout

Array = np.ndarray[Any, Any]


def described(layout: Layout) -> dict[str, Any]:
    """A layout as JSON has it: of each leaf path, shape, dtype, and where it lies, see `LeafLayout`."""
    leaves = [[leaf.path, leaf.shape, leaf.dtype, leaf.offset, leaf.wide] for leaf in layout.leaves]
    return {"row_words": layout.row_words, "leaves": leaves}


def as_there(own: Layout, told: Any) -> Layout:
    """The leaves of a layout, in its order, lying where a file tells.

    Args:
        own: of a spec.
        told: what `described` made of the layout of an equal spec, with its leaves in any order, read from JSON.

    Raises:
        ValueError: if it tells of other leaves, or not of a place for each: the file was changed.
    """
    try:
        there = {tuple(path): place for path, *place in told["leaves"]}
        leaves = tuple(_placed(leaf, *there.pop(leaf.path)) for leaf in own.leaves)
        found = Layout(leaves, own.row_words)
        _check_apart(found)
    except (KeyError, TypeError):
        raise ValueError("it does not tell where each leaf lies") from None
    if there or told["row_words"] != own.row_words:
        raise ValueError("it tells of rows with other leaves")
    return found


def _placed(own: LeafLayout, shape: Any, dtype: Any, offset: Any, wide: Any) -> LeafLayout:
    if (shape, dtype, offset is None) != ([*own.shape], own.dtype, own.offset is None):
        raise ValueError(f"it tells of leaf {own.path} as {dtype} {shape}, and not {own.dtype} {[*own.shape]}")
    return dataclasses.replace(own, offset=offset, wide=wide)


def _check_apart(layout: Layout) -> None:
    """Refuse places outside of the row, and those that are two leaves'."""
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
        rows: int32 [n, words], as in the first one.
        wide: arrays [n, *shape], likewise.
        source: the first one.
        target: the second one.

    Returns:
        The same where the layouts are equal, else rows that are copied, and the arrays in their order.
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
