"""V-D4RL's datasets: `vd4rl:main/walker_walk/expert/64px`, or the path of a folder with its files.

A file of `.npz` has an episode, as DreamerV2 stores it; one of HDF5 has episodes one after another, as DrQ-v2 does. In
both, a row has an image, and the action and the reward that have led to it: those of the first row mean nothing. So
what was done at image t stands in row t + 1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from functional_rb.base.strict_json import Json
from functional_rb.datasets import hdf5
from functional_rb.datasets.by_rows import Read, Whole, found, nested_read, same_rows
from functional_rb.datasets.episode import DatasetError, Episode, StepSpec
from functional_rb.datasets.formats import npy
from functional_rb.datasets.pieces import can_be_stored, spec_of_values, steps_of_piece
from functional_rb.datasets.reader import Counts
from functional_rb.specs import Composite

KNOWN = ("is_first", "is_last", "is_terminal", "step_type", "discount")
# The `step_type` of a row that begins an episode.
FIRST = 0


class VD4rl:
    """Reads a folder of V-D4RL; see `Reader` for the attributes."""

    def __init__(self, path: str, name: str) -> None:
        self.name, self.facts = name, Json()
        self.files = _files(path)
        with _opened(self.files[0]) as file:
            images = [name for name in ("image", "observation") if name in file.names]
            if not images:
                there = sorted(file.names)[:20]
                raise DatasetError(f"{self.files[0]}: expected one of image, observation, got {there}")
            self._image = images[0]
            known = (self._image, "action", "reward", *KNOWN)
            self._kinds = {field: file.kind(field) for field in (self._image, "action", "reward")}
            others = {field: file.kind(field) for field in file.names if field not in known}
            for field, (shape, dtype) in self._kinds.items():
                if shape is None:
                    raise DatasetError(f"{self.files[0]}, {field}: expected rows of numbers, got dtype {dtype}")
            self._infos = {field: kind for field, kind in others.items() if kind[0] is not None}
        self.counts = Counts(nbytes=sum(map(os.path.getsize, self.files)))

    def spec(self, narrow: bool) -> StepSpec:
        image, action, reward = (spec_of_values(*kind, narrow) for kind in self._kinds.values())
        infos = {name: spec_of_values(*kind, narrow) for name, kind in self._infos.items()}
        return StepSpec(Composite({"pixels": image}), action, reward, infos)

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """File by file, in the order of their names."""
        most, at = steps_of_piece(self.spec(narrow=False)), 0
        for path in self.files:
            with _opened(path) as file:
                for start, stop in file.episodes(self._image):
                    if at >= first:
                        yield from self._episode(file, start, stop, path).pieces(most)
                    at += 1

    def _episode(self, file: _File, start: int, stop: int, path: str) -> Whole:
        def rows(name: str, shift: int = 0) -> Read:
            return lambda begin, end: file.read(name, start + begin + shift, start + end + shift)

        reward = rows("reward", 1)
        return Whole(
            stop - start - 1,
            nested_read({("pixels",): rows(self._image)}),
            rows("action", 1),
            lambda begin, end: reward(begin, end).reshape(-1),
            file.is_terminal(stop - 1),
            True,
            path,
            {name: rows(name) for name in self._infos},
        )


class _File:
    """A file whose arrays have a row for each image.

    Attributes:
        names: of the arrays.
    """

    names: tuple[str, ...]

    def __init__(self, path: str, arrays: Any) -> None:
        self._path, self._arrays = path, arrays

    def __enter__(self) -> _File:
        self._file = self._arrays.__enter__()
        self.names = tuple(self._file.names if isinstance(self._file, npy.Npz) else hdf5.names(self._file, self._path))
        self._kept: dict[str, Any] = {}
        return self

    def __exit__(self, *_: object) -> None:
        self._arrays.__exit__(None, None, None)

    def read(self, name: str, first: int, stop: int) -> Any:
        if not isinstance(self._file, npy.Npz):
            return hdf5.rows(hdf5.data(self._file, name, self._path), first, stop, self._path)
        if name not in self._kept:  # which is read as a whole: it is one episode
            self._kept[name] = self._file.read(name)
            if not self._kept[name].shape:
                raise DatasetError(f"{self._path}, {name}: expected rows, got a single value")
        return self._kept[name][first:stop]

    def kind(self, name: str) -> tuple[Any, Any]:
        """The shape of a row and the dtype of an array; a shape of None for what is no array of numbers."""
        if isinstance(self._file, npy.Npz):
            with self._file.stream(name) as array:
                return _kind(name, array)
        return _kind(name, hdf5.member(self._file, name, self._path))

    def episodes(self, image: str) -> Iterator[tuple[int, int]]:
        """The rows of each episode, as (start, stop); two at least."""
        rows = {name: self._rows(name) for name in (image, "action", "reward")}
        n = rows[image]
        for name, there in rows.items():
            if there != n:
                raise DatasetError(f"{self._path}, {name}: expected {n} rows, one for each image, got {there}")
        starts = [0]
        for name, value in (("is_first", True), ("step_type", FIRST)):
            if name in self.names:
                marks = self.read(name, 0, n).reshape(-1)
                same_rows({name: marks}, n, self._path)
                starts = sorted({0, *np.flatnonzero(marks == value).tolist()})
                break
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

    def _rows(self, name: str) -> int:
        if isinstance(self._file, npy.Npz):
            with self._file.stream(name) as array:
                return int(array.shape[0]) if array.shape else 0
        return len(hdf5.data(self._file, name, self._path))


def _kind(name: str, array: Any) -> tuple[object, object]:
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    if not shape or not can_be_stored(dtype):
        return None, dtype
    return () if name == "reward" else shape[1:], dtype


def _opened(path: str) -> _File:
    return _File(path, npy.opened(path) if path.endswith(".npz") else hdf5.opened(path))


def open_vd4rl(rest: str, root: str | None = None) -> VD4rl:
    """The reader of a dataset of V-D4RL.

    Args:
        rest: its name, as "main/walker_walk/expert/64px", or the path of its folder.
        root: the folder where datasets lie.

    Raises:
        FileNotFoundError: if it is nowhere, saying where that is.
        DatasetError: for files of another kind.
    """
    path = found("vd4rl", rest, root, lambda place: bool(_files(place)), "files of .npz or .hdf5")
    return VD4rl(path, f"vd4rl:{rest}")


def _files(folder: str) -> list[str]:
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in names if name.endswith((".npz", ".hdf5", ".h5"))]
