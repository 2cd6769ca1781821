"""V-D4RL's datasets: `vd4rl:main/walker_walk/expert/64px`, or the path of a folder with its files.

A file of `.npz` has an episode, as DreamerV2 stores it; one of HDF5 has episodes one after another, as DrQ-v2 does. In
both, a row has an image, and the action and the reward that have led to it: those of the first row mean nothing. So
what was done at image t stands in row t + 1.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.datasets import hdf5
from functional_rb.datasets.by_rows import Path, RowReader, Whole, located, same_rows
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats import npy
from functional_rb.datasets.pieces import can_be_stored, kind_of_rows

if TYPE_CHECKING:
    from h5py import File

PIXELS = ("observations", "pixels")
KNOWN = ("is_first", "is_last", "is_terminal", "step_type", "discount")
# The `step_type` of a row that begins an episode.
FIRST = 0


class VD4rl(RowReader):
    """Reads a folder of V-D4RL: file by file, in the order of their names."""

    def __init__(self, path: str, name: str) -> None:
        super().__init__(name, _files(path))
        first = self.files[0]
        with _opened(first) as file:
            images = [name for name in ("image", "observation") if name in file.names]
            if not images:
                there = sorted(file.names)[:20]
                raise DatasetError(f"{first}: expected one of image, observation, got {there}")
            self._image = images[0]
            parts = (self._image, "action", "reward")
            kinds = {field: file.kind(field) for field in file.names if field not in KNOWN}
        for field in parts:
            if field not in kinds:
                raise DatasetError(f"{first}: there is no {field!r}, expected some of {sorted(kinds)[:20]}")
            kind_of_rows(*kinds[field], f"{first}, {field}")  # which refuses what is no row of numbers
        rows = {name: (shape[1:], dtype) for name, (shape, dtype) in kinds.items() if shape and can_be_stored(dtype)}
        self.leaves = {PIXELS: rows[self._image], ("actions",): rows["action"], ("rewards",): ((), rows["reward"][1])}
        self.leaves |= {("infos", name): kind for name, kind in rows.items() if name not in parts}

    def wholes(self, first: int, most: int) -> Iterator[Whole]:
        at = 0
        for path in self.files:
            with _opened(path) as file:
                for start, stop in file.episodes(self._image):
                    if at >= first:
                        yield self._episode(file, start, stop, path)
                    at += 1

    def _episode(self, file: _File, start: int, stop: int, path: str) -> Whole:
        # What led to an image stands in its row: to the first one nothing did.
        columns = {
            PIXELS: (self._image, start),
            ("actions",): ("action", start + 1),
            ("rewards",): ("reward", start + 1),
        }
        columns |= {path: (path[1], start) for path in self.leaves if path[0] == "infos"}

        def read(path: Path, first: int, end: int) -> NumpyArray:
            name, begin = columns[path]
            values = file.read(name, begin + first, begin + end)
            return values.reshape(-1) if path == ("rewards",) else values

        return Whole(stop - start - 1, read, file.is_terminal(stop - 1), True, path)


class _File:
    """A file whose arrays, which have `names`, have a row for each image, in either format."""

    def __init__(self, path: str, file: npy.Npz | File) -> None:
        self._path, self._file = path, file
        self.names = tuple(file.names if isinstance(file, npy.Npz) else hdf5.names(file, path))
        # Arrays of .npz are read as a whole: it is one episode.
        self._whole: dict[str, NumpyArray] = {}

    def read(self, name: str, first: int, stop: int) -> NumpyArray:
        if not isinstance(self._file, npy.Npz):
            return hdf5.rows(hdf5.data(self._file, name, self._path), first, stop, self._path)
        if name not in self._whole:
            self._whole[name] = self._file.read(name)
            if not self._whole[name].shape:
                raise DatasetError(f"{self._path}, {name}: expected rows, got a single value")
        return self._whole[name][first:stop]

    def kind(self, name: str) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
        """Shape and dtype of an array; of a group, which is none, those of a single object."""
        if isinstance(self._file, npy.Npz):
            with self._file.stream(name) as array:
                return array.shape, array.dtype
        member = hdf5.member(self._file, name, self._path)
        return getattr(member, "shape", None) or (), getattr(member, "dtype", np.dtype(object))

    def episodes(self, image: str) -> Iterator[tuple[int, int]]:
        # The rows [start, stop) of each episode.
        n = None
        for name in (image, "action", "reward"):
            shape = self.kind(name)[0] if name in self.names else None
            rows = shape[0] if shape else 0
            n = rows if n is None else n
            if rows != n:
                raise DatasetError(f"{self._path}, {name}: expected {n} rows, one for each image, got {rows}")
        n, starts = n or 0, [0]
        # DreamerV2 marks the first row, DrQ-v2 has a kind of step; a file without either is one episode.
        for name, value in (("is_first", True), ("step_type", FIRST)):
            if name in self.names:
                marks = self.read(name, 0, n).reshape(-1)
                same_rows({name: marks}, n, self._path)
                starts = sorted({0, *np.flatnonzero(marks == value).tolist()})
                break
        # A row alone has no step: what was done there would stand in the next one.
        for start, stop in zip(starts, [*starts[1:], n], strict=True):
            if stop - start > 1:
                yield start, stop

    def is_terminal(self, row: int) -> bool:
        """Whether a row is a terminal state: it is marked, or discounts all that comes."""
        for name, value in (("is_terminal", True), ("discount", 0)):
            if name in self.names:
                marks = self.read(name, row, row + 1).reshape(-1)
                same_rows({name: marks}, 1, f"{self._path}, row {row}")
                return bool(marks[0] == value)
        return False


@contextlib.contextmanager
def _opened(path: str) -> Iterator[_File]:
    with npy.opened(path) if path.endswith(".npz") else hdf5.opened(path) as file:
        yield _File(path, file)


def open_vd4rl(rest: str, root: str | None = None) -> VD4rl:
    """The reader of a dataset of V-D4RL: its name, as "main/walker_walk/expert/64px", or the path of its folder."""
    path = located("vd4rl", rest, root, lambda place: place if _files(place) else None, "files of .npz or .hdf5")
    return VD4rl(path, f"vd4rl:{rest}")


def _files(folder: str) -> list[str]:
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in names if name.endswith((".npz", ".hdf5", ".h5"))]
