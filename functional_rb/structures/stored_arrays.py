"""The arrays of a state by the names that files, checkpoints, state dicts and errors call them by.

Items lie in "rows", "wide_0", "wide_1" and so on; "tree" is the sampler's, and an auxiliary array `name` is
"kept_<name>".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from functional_rb.structures.row_layout import Layout

T = TypeVar("T")
NONE: Mapping[str, Any] = {}
Shapes = dict[str, tuple[tuple[int, ...], str]]
ROWS = "rows"
WIDE = "wide_"
TREE = "tree"
AUXILIARY = "kept_"


def auxiliary_name(name: str) -> str:
    """What an auxiliary array is called among all arrays of a state."""
    return f"{AUXILIARY}{name}"


def own_name(name: str) -> str:
    """The inverse of `auxiliary_name`, which is also the name of a mapped file; other arrays keep their names."""
    return name.removeprefix(AUXILIARY)


def is_items(name: str) -> bool:
    """Whether an array has the items in it, a row for each slot."""
    return name == ROWS or name.startswith(WIDE)


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


def named(rows: T, wide: Sequence[T], tree: T | None = None, auxiliary: Mapping[str, T] = NONE) -> dict[str, T]:
    """The arrays by their names."""
    items = {ROWS: rows, **{wide_name(k): array for k, array in enumerate(wide)}}
    kept = {auxiliary_name(name): array for name, array in auxiliary.items()}
    return {**items, **({} if tree is None else {TREE: tree}), **kept}


def wide_of(layout: Layout, arrays: Mapping[str, T]) -> tuple[T, ...]:
    """The wide arrays, in their order, of arrays by name."""
    return tuple(arrays[wide_name(k)] for k in range(len(layout.wide)))
