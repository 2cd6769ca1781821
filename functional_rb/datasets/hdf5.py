"""Files of HDF5 that others have made: only what lies in the file itself is read, and no more at a time than asked for.

HDF5 has links to other files, data in other files, and data sets put together of other files: none is followed. A few
bytes may claim to be any number of values: that is refused too.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np

from functional_rb.base import files
from functional_rb.base.arrays import NumpyArray
from functional_rb.base.extras import imported
from functional_rb.datasets import hdf5_chunks
from functional_rb.datasets.episode import DatasetError, expecting
from functional_rb.datasets.pieces import Kind, can_be_stored

if TYPE_CHECKING:
    from h5py import Dataset, File, Group

# Bytes of groups and the like that HDF5 keeps of a file.
METADATA = 2**21
# Bytes that a chunk of a data set may have. What h5py chooses by itself is a megabyte.
CHUNK = 2**28
# How deep groups may lie in each other; a group may lie in itself.
DEPTH = 16
# How many groups and data sets are looked at: links within a small file may lead to one of them by a million paths.
MANY = 2**14

# The errors of h5py for bytes that HDF5 can make nothing of, or nothing that Python and NumPy have; and that of zlib.
DAMAGE = (OSError, LookupError, RuntimeError, ValueError, TypeError, AttributeError, OverflowError, zlib.error)


def damage(where: str, what: str) -> AbstractContextManager[None]:
    return expecting(f"{where}: {what} cannot be read, the file is damaged", *DAMAGE)


@contextlib.contextmanager
def opened(path: str) -> Iterator[File]:
    h5py = imported("h5py", "datasets")
    with expecting(f"{path}: expected a file of HDF5", *DAMAGE, files.UnusableFileError):
        files.open_regular(path)[0].close()
        file = h5py.File(path, "r")
    try:
        # HDF5 keeps 32 MB of groups and data sets by default, and holds several times as much memory:
        # 250 MB after 4,000 episodes of Minari.
        config = file.id.get_mdc_config()
        config.set_initial_size, config.initial_size = True, METADATA
        config.min_size = config.max_size = METADATA
        file.id.set_mdc_config(config)
        yield file
    finally:
        file.close()


def names(group: Group | Dataset, where: str) -> list[str]:
    if hasattr(group, "shape"):
        raise DatasetError(f"{where}: expected a group, got values in {group.name!r}")
    with damage(where, "what lies in a group"):
        keys = list(group)
    if not all(isinstance(name, str) for name in keys):
        raise DatasetError(f"{where}: expected names in UTF-8, got {keys!r:.200}; the file is damaged, fetch it again")
    return sorted(keys)


def has(group: Group, name: str, where: str) -> bool:
    with damage(where, repr(name)):
        return name in group


def member(group: Group, name: str, where: str) -> Group | Dataset:
    """A group or a data set in a group. Links, and what lies in other files, are refused."""
    h5py = imported("h5py", "datasets")
    with damage(where, repr(name)):
        try:
            kind = group.id.links.get_info(name.encode()).type
        except (KeyError, RuntimeError):  # which of them, depends on the version of h5py
            there = names(group, where)[:20]
            raise DatasetError(f"{where}: there is no {name!r} in {group.name!r}, expected some of {there}") from None
        # A link may lead to any file of the user's.
        if kind != h5py.h5l.TYPE_HARD:
            raise DatasetError(f"{where}: {name!r} is a link to somewhere else, which is not followed")
        value = group[name]
        if isinstance(value, h5py.Datatype):
            raise DatasetError(f"{where}: expected values or a group in {name!r}, got a type")
        if isinstance(value, h5py.Dataset):
            # Its values may be said to lie in other files, or to be put together of such.
            plan = value.id.get_create_plist()
            if plan.get_external_count() or plan.get_layout() == h5py.h5d.VIRTUAL:
                raise DatasetError(f"{where}: the values of {name!r} lie in other files, which are not read")
            value.shape, value.dtype  # noqa: B018  # which is where h5py looks at them
    return value


def data(group: Group, name: str, where: str) -> Dataset:
    """A data set in a group that may be read: no single value, and none that claims what the file does not hold."""
    *parents, last = name.split("/")
    for parent in parents:
        group = member(group, parent, where)
    dataset = member(group, last, where)
    if not hasattr(dataset, "shape") or dataset.shape is None:
        raise DatasetError(f"{where}: expected values in {name!r}, got a group")
    if dataset.shape == ():
        raise DatasetError(f"{where}: expected rows in {name!r}, got a single value")
    with damage(where, repr(name)):
        chunk = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
        count = dataset.id.get_space().get_simple_extent_npoints()
        claimed, there = count * dataset.id.get_type().get_size(), dataset.id.get_storage_size()
    # HDF5 inflates a chunk as a whole, however few of its rows are asked for.
    if chunk > CHUNK:
        raise DatasetError(f"{where}: {name!r} lies in chunks of {chunk} bytes each, expected at most {CHUNK}")
    # For chunks that were never written HDF5 makes up any number of zeros.
    if claimed > files.SMALL and not files.believed(claimed, there):
        raise DatasetError(f"{where}: {name!r} claims {count} values, and the file does not hold them")
    return dataset


def leaves(
    group: Group, name: str, where: str, depth: int = 0, looks: Iterator[int] | None = None
) -> dict[tuple[str, ...], Kind]:
    """The data sets that hold numbers for each row, by their paths: that of this name, or those in the group."""
    looks = itertools.count() if looks is None else looks
    if next(looks) == MANY:
        raise DatasetError(f"{where}: {name!r}: expected at most {MANY} groups and data sets, got more paths to them")
    node = member(group, name, where)
    if hasattr(node, "shape"):
        return {(name,): (node.shape[1:], node.dtype)} if node.shape and can_be_stored(node.dtype) else {}
    if depth == DEPTH:
        raise DatasetError(f"{where}: {name!r}: expected at most {DEPTH} groups in each other, got {node.name:.200}")
    inner: dict[tuple[str, ...], Kind] = {}
    for key in names(node, where):
        inner |= {(name, *path): kind for path, kind in leaves(node, key, where, depth + 1, looks).items()}
    return inner


class Blocks:
    """Rows of data sets that are read in their order, many at a time: each reading takes as long as many rows do."""

    def __init__(self, group: Group, rows_at_once: int) -> None:
        self._group, self._count = group, rows_at_once
        self._there: dict[str, tuple[Dataset, int, NumpyArray]] = {}

    def rows(self, name: str, first: int, stop: int, where: str) -> NumpyArray:
        """Rows [first, stop) of a data set, read-only."""
        dataset, begin, block = self._there.get(name) or (data(self._group, name, where), 0, np.empty(0))
        if first < begin or stop > begin + len(block):
            begin, block = first, rows(dataset, first, max(stop, first + self._count), where)
            # Episodes are views of it, so that writing to one would change the next.
            block.flags.writeable = False
            self._there[name] = dataset, begin, block
        return block[first - begin : stop - begin]


def rows(dataset: Dataset, first: int, stop: int, where: str) -> NumpyArray:
    h5s = imported("h5py", "datasets").h5s
    with damage(where, repr(dataset.name)):
        shape, dtype = dataset.shape, dataset.dtype
        if dtype.hasobject:
            return _of_any_length(dataset, first, min(stop, shape[0]), where)
        inflated = hdf5_chunks.rows(dataset, first, min(stop, shape[0]))
        if inflated is not None:
            return inflated
        if first or stop < shape[0] or dtype.kind not in "biuf" or not dataset.size:
            return np.asarray(dataset[first:stop])
        whole = np.empty(shape, dtype)  # h5py takes as long to say which part of a small one is read as to read it
        dataset.id.read(h5s.ALL, h5s.ALL, whole)
        return whole


def _of_any_length(dataset: Dataset, first: int, stop: int, where: str) -> NumpyArray:
    # Rows that are texts or arrays, each of its own length: what a row has is the name of an object in the file.
    h5py, dtype = imported("h5py", "datasets"), dataset.dtype
    inner = h5py.check_vlen_dtype(dtype)
    is_plain = h5py.check_string_dtype(dtype) is not None or (inner is not None and not np.dtype(inner).hasobject)
    if not is_plain or dataset.ndim != 1:
        raise DatasetError(f"{where}: expected a text or an array in each row of {dataset.name!r}, got {dtype}")
    # Writers give each row an object, so all rows together have fewer bytes than the file. A million rows may name the
    # same one, too: so few are read at a time that they would fit in memory even if each were as large as the file.
    left = dataset.file.id.get_filesize()
    step = max(1, CHUNK // left)
    parts = [np.empty(0, dtype)]
    for begin in range(first, stop, step):
        parts.append(dataset[begin : min(begin + step, stop)])
        left -= sum(getattr(value, "nbytes", len(value)) for value in parts[-1])
        if left < 0:
            raise DatasetError(
                f"{where}: the rows of {dataset.name!r} have more bytes than the file; some are the same"
            )
    return np.concatenate(parts)
