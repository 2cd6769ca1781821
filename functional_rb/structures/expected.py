"""Which arrays a record has, checked before anything goes by them: they may come from a file, or from a user."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from functional_rb.base.arrays import BackendArray, NumpyArray
from functional_rb.base.dtypes import shown


class Expected(NamedTuple):
    """An array of a record."""

    name: str  # how messages name it
    shape: tuple[int, ...]  # of it, behind the axes of a stack of records
    dtype: str  # of it


def problem_of_stack(
    expected: Sequence[Expected], arrays: Sequence[BackendArray], of_one: Callable[[list[NumpyArray]], str | None]
) -> str | None:
    """Why arrays are not those of a stack of records, or of a single one; or None.

    Args:
        expected: the arrays of one record.
        arrays: anything.
        of_one: why the arrays of one record, whose shapes and dtypes are right, are not sound, or None.
    """
    stacks = set()
    for (name, shape, dtype), array in zip(expected, arrays, strict=True):
        ahead = getattr(array, "ndim", -1) - len(shape)
        if ahead < 0 or array.shape[ahead:] != shape or shown(array.dtype) != dtype:
            kind = f"{shown(array.dtype)} {list(array.shape)}" if hasattr(array, "dtype") else type(array).__name__
            return f"{name}: expected {dtype} {list(shape)}, found {kind}"
        stacks.add(array.shape[:ahead])
    if len(stacks) > 1:
        return f"its arrays are stacked in different ways: {sorted(stacks)}"
    count = math.prod(next(iter(stacks)))
    flat = [array.reshape(count, *shape) for (_, shape, _), array in zip(expected, arrays, strict=True)]
    return next((problem for k in range(count) if (problem := of_one([array[k] for array in flat]))), None)
