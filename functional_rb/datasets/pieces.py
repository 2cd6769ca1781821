"""How long a piece of an episode is, and the specs of arrays in files: what readers of all formats share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from functional_rb.base import dtypes
from functional_rb.base.arrays import Nest
from functional_rb.convert.common import stored_dtype
from functional_rb.datasets.episode import DatasetError, StepSpec
from functional_rb.specs import Binary, Unbounded
from functional_rb.specs.values import Outline

# Bytes of a piece, about: there are some copies of it while it is being converted.
PIECE = 2**23
# The shape of a row and the dtype of its numbers.
Kind: TypeAlias = tuple[tuple[int, ...], DTypeLike]


def steps_of_piece(spec: StepSpec) -> int:
    """How many steps a piece of an episode may have: two at least."""
    parts = {"observation": spec.observation, "action": spec.action, "infos": dict(spec.infos)}
    return max(2, PIECE // max(bytes_of(parts), 1))


def bytes_of(spec: object) -> int:
    """How many bytes a value of a nest of specs has."""
    leaves = Outline.of(spec, "datasets").leaves
    return sum(math.prod(leaf.shape) * dtypes.ITEMSIZE[leaf.dtype] for leaf in leaves)


def spans(steps: int, most: int) -> Iterator[tuple[int, int]]:
    """The pieces of so many steps, as (first, stop). Where there are several, the last has two steps at least.

    Example:
        >>> list(spans(7, 3)), list(spans(5, 2)), list(spans(1, 3))
        ([(0, 3), (3, 5), (5, 7)], [(0, 2), (2, 5)], [(0, 1)])
    """
    first = 0
    while first < steps:
        stop = min(first + most, steps)
        # A piece of one step whose observation afterwards is not known would leave nothing to store.
        if steps - stop == 1:
            stop += -1 if stop - first > 2 else 1
        yield first, stop
        first = stop


def repeated(values: Nest) -> Nest:
    """Values [n, ...] of a nest with the last of them twice, where one more was not observed."""
    if isinstance(values, dict):
        return {name: repeated(child) for name, child in values.items()}
    if isinstance(values, tuple):
        return tuple(map(repeated, values))
    return [*values, values[-1]] if isinstance(values, list) else np.concatenate([values, values[-1:]])


def spec_of_values(shape: Sequence[int], dtype: DTypeLike, narrow: bool) -> Binary | Unbounded:
    name = stored_dtype(dtype, narrow)
    return Binary(tuple(shape)) if name == "bool" else Unbounded(tuple(shape), name)


def kind_of_rows(shape: Sequence[int], dtype: np.dtype[np.generic], where: str) -> Kind:
    """The kind of the rows of an array, of its shape with the rows as the first axis."""
    if not shape or not can_be_stored(dtype):
        raise DatasetError(f"{where}: expected rows of numbers, got {dtype} {tuple(shape)}")
    return tuple(shape[1:]), dtype


def can_be_stored(dtype: DTypeLike) -> bool:
    try:
        stored_dtype(dtype, True)
    except (TypeError, ValueError, KeyError):
        return False
    return True
