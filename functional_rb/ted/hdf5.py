"""Trajectories in HDF5, a group for each, as TorchRL's H5Split and PersistentTensorDict have them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path as File
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from functional_rb.base import files
from functional_rb.base.arrays import NumpyArray as Array
from functional_rb.base.dtypes import ITEMSIZE
from functional_rb.base.extras import imported
from functional_rb.base.nest import Path, show
from functional_rb.storage import unfailing
from functional_rb.structures.row_layout import STORED_AS, kept_dtype
from functional_rb.ted import sources
from functional_rb.ted.padded import EXTRA, RESERVED, WHO, FileLeaf, Header, Padded, pieces, rows_of
from functional_rb.ted.sources import DamagedError, Opened, Source, Span

if TYPE_CHECKING:
    from h5py import Dataset, Group

GROUP = "traj_"
# An attribute of leaves whose dtype HDF5 lacks.
DTYPE = "dtype"
# The most characters of an attribute, for which HDF5 has 64 KiB; longer texts take several, `functional_rb.0`, ...
LONGEST = 60_000
_GROUP = re.compile(rf"{GROUP}([0-9]{{1,18}})", re.ASCII)


def write(padded: Padded, path: str, compression: str | None) -> None:
    h5py = imported("h5py", WHO)
    target = File(path)
    if target.exists():
        raise FileExistsError(f"{WHO}: {target} is there already; give another path, or remove it")
    for leaf in padded.leaves:
        if any(name in (".", "") or "/" in name for name in map(str, leaf)):
            raise ValueError(f"{WHO}: leaf {show(leaf)!r}: HDF5 has '/' and '.' for something else; rename it")
    with files.aside(os.fspath(target.parent)) as scratch:
        unfinished = File(scratch) / "made.h5"
        unfailing.written(unfinished, functools.partial(_write, h5py, padded, compression))
        os.replace(unfinished, target)


@contextlib.contextmanager
def opened(path: str, who: str) -> Iterator[Opened]:
    h5py = imported("h5py", who)
    with sources.naming(path):
        on_disk, size = files.open_regular(path)
        with on_disk, h5py.File(path, "r") as file:
            source = _Trajectories(h5py, file, path, on_disk.fd, size)
            (full,), (shift,) = source.numbers("is_full", ()), source.numbers("shift", ())
            if full not in (0, 1):
                raise DamagedError(f"{path}: expected is_full as 0 or 1, got {full}; the file is damaged")
            header = Header(bool(full), shift, tuple(source.numbers("_storage_shape")))
            names = [EXTRA] if EXTRA in file.attrs else _names_of_pieces()
            texts = [str(file.attrs[name]) for name in itertools.takewhile(file.attrs.__contains__, names)]
            yield Opened(sources.checked(header, path), source, "".join(texts) if texts else None)


def _write(h5py: ModuleType, padded: Padded, compression: str | None, stream: unfailing.Stream) -> None:
    with h5py.File(stream, "w") as file:
        _write_leaves(padded, file, compression, stream.check)


def _write_leaves(padded: Padded, file: Group, compression: str | None, check: Callable[[], None]) -> None:
    header, text, trajectories = padded.header, padded.extra, list(pieces(padded))
    names = [EXTRA] if len(text) <= LONGEST else _names_of_pieces()
    for name, start in zip(names, range(0, len(text), LONGEST), strict=False):
        file.attrs[name] = text[start : start + LONGEST]
    numbers = {"is_full": header.is_full, "shift": header.shift, "_len": header.stored}
    for name, number in (numbers | {"_storage_shape": list(header.storage_shape)}).items():
        file[name] = np.asarray(number)
    digits = len(str(len(trajectories) - 1))  # of equal length, as HDF5 lists groups by their names
    for k, piece in enumerate(trajectories):
        group = file.create_group(f"{GROUP}{k:0{digits}}")
        for path, file_leaf in padded.leaves.items():
            check()
            start, stop = (piece.shared, piece.shared_stop) if path in padded.shared else (piece.start, piece.stop)
            shape = (stop - start, *file_leaf.shape)
            filters = {"compression": compression} if compression and 0 not in shape else {}
            leaf = group.create_dataset("/".join(map(str, path)), shape, kept_dtype(file_leaf.dtype), **filters)
            if file_leaf.dtype in STORED_AS:
                leaf.attrs[DTYPE] = file_leaf.dtype
            for block in rows_of(file_leaf, start, stop):
                leaf[block.start : block.start + len(block.rows)] = block.rows


def _names_of_pieces() -> Iterator[str]:
    # The names of the attributes that one long text is divided among.
    return (f"{EXTRA}.{k}" for k in itertools.count())


class _Trajectories(Source):
    """The groups of a file, one for each trajectory."""

    def __init__(self, h5py: ModuleType, file: Group, where: str, descriptor: int, size: int) -> None:
        self.file, self.where = file, where
        self._h5py, self._descriptor, self._size = h5py, descriptor, size
        self._seen: set[tuple[int, int]] = set()  # the objects that were met, by file and address
        names = self._groups()
        groups = [self._leaves(self._get(file, name), (name,)) for name in names]
        for name, group in zip(names, groups, strict=True):
            if group.keys() != groups[0].keys():
                raise DamagedError(f"{where}: expected the leaves {sorted(map(show, groups[0]))} in {name}; damaged")
        self._columns = {path: [group[path] for group in groups] for path in groups[0]}
        self.file_leaves = {path: self._file_leaf(leaves, path) for path, leaves in self._columns.items()}
        # The first row of each trajectory, and behind them the number of all rows.
        self._starts = {path: np.cumsum([0, *(len(x) for x in leaves)]) for path, leaves in self._columns.items()}

    def numbers(self, name: str, shape: tuple[int, ...] | None = None) -> list[int]:
        value = self._get(self.file, name)
        fits = isinstance(value, self._h5py.Dataset) and value.dtype.kind in "biu"
        if not fits or (value.shape != shape if shape is not None else value.ndim > 1 or not 0 < value.size <= 32):
            raise DamagedError(f"{self.where}: expected numbers as {name}; the file is damaged")
        return [int(n) for n in np.atleast_1d(value[()]).tolist()]

    def _groups(self) -> list[str]:
        matches = [match for match in map(_GROUP.fullmatch, self.file) if match]
        missing = [name for name in RESERVED[:3] if name not in self.file]
        if missing or not matches:
            what = f"a value {missing[0]!r}" if missing else f"groups {GROUP}0, ..."
            raise DamagedError(f"{self.where}: expected {what} as H5Split writes; not trajectories in TED")
        by_number = {int(match[1]): match[0] for match in matches}
        if len(by_number) < len(matches):
            raise DamagedError(f"{self.where}: two groups {GROUP}... have the same number; the file is damaged")
        return [by_number[k] for k in sorted(by_number)]

    def _get(self, group: Group, name: str) -> Dataset | Group:
        # Links may lead anywhere, and an object under two names would be read twice.
        if not isinstance(group.get(name, getlink=True), self._h5py.HardLink):
            raise DamagedError(f"{self.where}: {group.name}/{name} is a link; the file is damaged, or not in TED")
        value = group[name]
        info = self._h5py.h5o.get_info(value.id)
        if (info.fileno, info.addr) in self._seen:
            raise DamagedError(f"{self.where}: {group.name}/{name} is there by another name too; the file is damaged")
        self._seen.add((info.fileno, info.addr))
        return value

    def _leaves(self, group: Group, prefix: Path) -> dict[Path, Dataset]:
        sources.check_depth(prefix, self.where)
        leaves: dict[Path, Dataset] = {}
        for name in group:
            value = self._get(group, name)
            if isinstance(value, self._h5py.Dataset):
                leaves[*prefix[1:], name] = value
            else:
                leaves |= self._leaves(value, (*prefix, name))
        return leaves

    def _file_leaf(self, leaves: Sequence[Dataset], path: Path) -> FileLeaf:
        first = leaves[0]
        dtype = first.dtype.name
        if DTYPE in first.attrs and str(first.attrs[DTYPE]) in STORED_AS:
            dtype = str(first.attrs[DTYPE])
        alike = all(x.ndim and (x.shape[1:], x.dtype) == (first.shape[1:], first.dtype) for x in leaves)
        rows = sum(x.shape[0] for x in leaves) if alike else 0
        if dtype not in ITEMSIZE or not alike or kept_dtype(dtype).name != first.dtype.name or rows >= sources.LARGEST:
            raise DamagedError(
                f"{self.where}: leaf {show(path)!r}: expected trajectories of one of the dtypes {', '.join(ITEMSIZE)} "
                f"that differ in length alone; the file is damaged, or not in TED"
            )
        # HDF5 can read other files, make values up and inflate huge chunks: files of others may ask for none of it.
        for leaf in leaves:
            properties, kinds = leaf.id.get_create_plist(), self._h5py.h5d
            layout = properties.get_layout()
            here = layout in (kinds.COMPACT, kinds.CONTIGUOUS, kinds.CHUNKED) and not properties.get_external_count()
            chunk = math.prod(properties.get_chunk()) * leaf.dtype.itemsize if layout == kinds.CHUNKED else 0
            if not here or not self.holds(chunk) or np.any(leaf.fillvalue):
                raise DamagedError(
                    f"{self.where}: leaf {show(path)!r}: expected numbers in this file, zeros where none were written, "
                    f"in chunks that memory has room for; the file is damaged, or not in TED"
                )
        return FileLeaf(rows, tuple(first.shape[1:]), dtype)

    def rows(self, path: Path, spans: Sequence[Span]) -> Array:
        file_leaf, starts, leaves = self.file_leaves[path], self._starts[path], self._columns[path]
        read = [np.zeros((0, *file_leaf.shape), kept_dtype(file_leaf.dtype))]
        for start, stop in spans:
            first = int(np.searchsorted(starts, start, "right")) - 1
            for k in range(first, len(leaves)):
                low, high = max(start - int(starts[k]), 0), min(stop - int(starts[k]), leaves[k].shape[0])
                if stop <= starts[k]:
                    break
                if low < high:
                    read.append(leaves[k][low:high])
        return sources.check_flags(np.concatenate(read), path, self.where)

    def written(self, path: Path) -> Iterator[Span]:
        starts = self._starts[path]
        # HDF5 has no storage for what was never written, and reads zeros there.
        some = [k for k, leaf in enumerate(self._columns[path]) if leaf.id.get_storage_size()]
        claimed = sum(int(starts[k + 1] - starts[k]) for k in some)
        if not self.holds(claimed):
            raise DamagedError(f"{self.where}: leaf {show(path)!r}: {claimed} rows, next to nothing in them; damaged")
        for k in some:
            yield int(starts[k]), int(starts[k + 1])

    def holds(self, claimed: int) -> bool:
        return files.holds(self._descriptor, self._size, claimed)
