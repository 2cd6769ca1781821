"""The arrays that items lie in, by the names that files, checkpoints and errors call them by: "rows", "wide_0", ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from functional_rb.structures.row_layout import Layout

T = TypeVar("T")
Shapes = dict[str, tuple[tuple[int, ...], str]]
ROWS = "rows"
WIDE = "wide_"


def wide_name(k: int) -> str:
    """The name of the wide array of a number, see `LeafLayout.wide`."""
    return f"{WIDE}{k}"


def shapes(layout: Layout, capacity: int) -> Shapes:
    """Shape, and dtype as stored, of each array.

    Example:
        >>> import functional_rb as frb
        >>> item = {"image": frb.Unbounded((2000,), "uint8"), "reward": frb.Unbounded(())}
        >>> shapes(frb.BufferSpec(item, 5).plan.layout, 5)
        {'rows': ((5, 1), 'int32'), 'wide_0': ((5, 2000), 'uint8')}
    """
    wide = {wide_name(k): ((capacity, *leaf.shape), leaf.stored_as) for k, leaf in enumerate(layout.wide)}
    return {ROWS: ((capacity, layout.row_words), "int32"), **wide}


def named(rows: T, wide: Sequence[T]) -> dict[str, T]:
    """The stored arrays by their names."""
    return {ROWS: rows, **{wide_name(k): array for k, array in enumerate(wide)}}


def wide_of(layout: Layout, arrays: Mapping[str, T]) -> tuple[T, ...]:
    """The wide arrays, in their order, of arrays by name."""
    return tuple(arrays[wide_name(k)] for k in range(len(layout.wide)))
