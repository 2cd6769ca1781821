"""Files of HDF5 that others have made: only what lies in the file itself is read, and no more at a time than asked for.

HDF5 has links to other files, data in other files, and data sets put together of other files: none is followed. A few
bytes may claim to be any number of values: that is refused too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from functional_rb.base import files
from functional_rb.convert.common import imported
from functional_rb.datasets.episode import Array, DatasetError

EXTRA = "functional-rb[datasets]"


@contextlib.contextmanager
def opened(path: str) -> Iterator[Any]:
    """A file of h5py, to be read.

    Raises:
        ImportError: if h5py is missing.
        FileNotFoundError: if there is no such file.
        DatasetError: if it is no file of HDF5.
    """
    h5py = imported("h5py", "datasets", EXTRA)
    try:
        os.close(files.open_regular(path)[0])
        file = h5py.File(path, "r")
    except FileNotFoundError:
        raise
    except (OSError, files.UnusableFileError) as error:
        raise DatasetError(f"{path}: expected a file of HDF5: {error}; fetch it again") from None
    try:
        yield file
    finally:
        file.close()


def member(group: Any, name: str, where: str) -> Any:
    """A group or a data set in a group, which has to lie in the same file.

    Raises:
        DatasetError: if there is none, or it is a link, or lies elsewhere.
    """
    h5py = imported("h5py", "datasets", EXTRA)
    link = group.get(name, getlink=True)
    if link is None:
        raise DatasetError(f"{where}: there is no {name!r} in {group.name!r}, expected some of {sorted(group)[:20]}")
    if not isinstance(link, h5py.HardLink):
        raise DatasetError(f"{where}: {name!r} is a link to somewhere else, which is not followed")
    found = group[name]
    if isinstance(found, h5py.Dataset) and (found.external or found.is_virtual):
        raise DatasetError(f"{where}: the values of {name!r} lie in other files, which are not read")
    return found


def data(group: Any, name: str, where: str) -> Any:
    """A data set in a group, that may be read.

    Raises:
        DatasetError: for what `member` refuses, a group, or a data set of which the file holds next to nothing.
    """
    *parents, last = name.split("/")
    for parent in parents:
        group = member(group, parent, where)
    found = member(group, last, where)
    if not hasattr(found, "shape") or found.shape is None:
        raise DatasetError(f"{where}: expected values in {name!r}, got a group")
    if not files.believed(found.size * found.dtype.itemsize, found.id.get_storage_size()):
        raise DatasetError(f"{where}: {name!r} claims {found.size} values, and the file does not hold them")
    return found


class Blocks:
    """Rows of data sets that are read in their order, many at a time: each reading takes as long as many rows do."""

    def __init__(self, group: Any, rows_at_once: int) -> None:
        """Read nothing yet."""
        self._group, self._count = group, rows_at_once
        self._there: dict[str, tuple[Any, int, Array]] = {}

    def rows(self, name: str, first: int, stop: int, where: str) -> Array:
        """Rows [first, stop) of a data set, which nobody writes to.

        Raises:
            DatasetError: for what `data` refuses, or if they cannot be read.
        """
        dataset, begin, block = self._there.get(name) or (data(self._group, name, where), 0, np.empty(0))
        if first < begin or stop > begin + len(block):
            begin, block = first, rows(dataset, first, max(stop, first + self._count), where)
            block.flags.writeable = False
            self._there[name] = dataset, begin, block
        return block[first - begin : stop - begin]


def rows(dataset: Any, first: int, stop: int, where: str) -> Array:
    """Rows [first, stop) of a data set.

    Raises:
        DatasetError: if they cannot be read.
    """
    try:
        return np.asarray(dataset[first:stop])
    except (OSError, RuntimeError) as error:
        raise DatasetError(f"{where}: {dataset.name!r} cannot be read, the file is damaged: {error}") from None
