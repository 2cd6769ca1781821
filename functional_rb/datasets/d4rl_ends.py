"""Where episodes end in a file of D4RL: at marked rows, where an ant jumps, where the next row is no successor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from functional_rb.datasets import hdf5
from functional_rb.datasets.episode import Array, DatasetError
from functional_rb.datasets.pieces import PIECE, kind_of_rows

NEXT = "next_observations"


def flags(file: Any, name: str, n: int, path: str) -> Array:
    """Which rows are marked, bool [n]; none if there are no marks of that name."""
    if not hdf5.has(file, name, path):
        return np.zeros(n, bool)
    marks = hdf5.rows(hdf5.data(file, name, path), 0, n, path)
    if marks.reshape(-1).shape != (n,):
        raise DatasetError(f"{path}: {name}: expected {n} marks, one for each reward, got shape {marks.shape}")
    return marks.reshape(-1).astype(bool)


def jumps(observations: Any, most: float, path: str) -> Array:
    """After which rows the first two coordinates change by more than `most`, bool [n]."""
    n = len(observations)
    if len(observations.shape) != 2:
        raise DatasetError(f"{path}: observations: expected coordinates in each row, got shape {observations.shape}")
    found = np.zeros(n, bool)
    for first, stop in _blocks(observations):
        rows = hdf5.rows(observations, first, min(stop + 1, n), path)[:, :2]
        found[first : first + len(rows) - 1] = np.linalg.norm(np.diff(rows, axis=0), axis=1) > most
    return found


def next_observations(file: Any, observations: Any, path: str) -> Any:
    """What each row has led to, if the file tells: a data set as that of the observations; else None."""
    if not hdf5.has(file, NEXT, path):
        return None
    found = hdf5.data(file, NEXT, path)
    _, dtype = kind_of_rows(found, f"{path}: {NEXT}")
    if found.shape != observations.shape or not np.can_cast(dtype, observations.dtype, "same_kind"):
        raise DatasetError(
            f"{path}: {NEXT}: expected {observations.dtype} {observations.shape}, as the observations are, got "
            f"{dtype} {found.shape}"
        )
    return found


def breaks(observations: Any, following: Any, path: str) -> Array:
    """After which rows the next one does not begin from what they have led to, bool [n].

    Returns:
        Numbers are compared as observations are stored; one that is NaN in both is the same. The last row is not
        marked.
    """
    n, found = len(observations), np.zeros(len(observations), bool)
    for first, stop in _blocks(observations):
        begun = hdf5.rows(observations, first + 1, min(stop + 1, n), path)
        led_to = as_stored(hdf5.rows(following, first, first + len(begun), path), begun)
        differ = (begun != led_to) & ((begun == begun) | (led_to == led_to))
        found[first : first + len(begun)] = differ.reshape(len(begun), -1).any(1)
    return found


def as_stored(following: Array, observations: Array) -> Array:
    """What rows have led to, in the numbers that observations are stored in; what is too large for them is infinite."""
    with np.errstate(over="ignore"):
        return following.astype(observations.dtype, copy=False)


def _blocks(rows: Any) -> Iterator[tuple[int, int]]:
    """The rows of a data set but the last, some megabytes at a time, as (first, stop)."""
    n, nbytes = len(rows), rows.dtype.itemsize * int(np.prod(rows.shape[1:]))
    step = max(1, PIECE // max(nbytes, 1))
    for first in range(0, n - 1, step):
        yield first, min(first + step, n - 1)
