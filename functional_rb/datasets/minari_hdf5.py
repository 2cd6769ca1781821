"""Minari's episodes in HDF5: a group for each, spaces of several parts as groups within."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from functional_rb.base.arrays import Nest
from functional_rb.base.strict_json import Json
from functional_rb.datasets import hdf5
from functional_rb.datasets.by_rows import Path, Read, Whole
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats import images
from functional_rb.datasets.minari_folder import Minari

if TYPE_CHECKING:
    from h5py import Dataset, Group

# Gives the data set of an episode that has a name.
Data = Callable[[str], "Dataset"]


class Hdf5(Minari):
    """Reads a file of HDF5 with all episodes. Its infos are those of the first episode that are numbers."""

    def __init__(self, name: str, path: str, metadata: Json, limits: tuple[int | None, int | None]) -> None:
        super().__init__(name, path, metadata, limits)
        file_path = self.files[1]
        if self.counts["episodes"]:
            with hdf5.opened(file_path) as file:
                group = hdf5.member(file, "episode_0", file_path)
                if hdf5.has(group, "infos", file_path):
                    infos = hdf5.leaves(group, "infos", file_path)
                    self.leaves |= {path: kind for path, kind in infos.items() if path[1:]}

    def tables(self, episodes: int) -> list[str]:
        return [os.path.join(self.path, "main_data.hdf5")]

    def wholes(self, first: int, most: int) -> Iterator[Whole]:
        path = self.files[1]
        with hdf5.opened(path) as file:
            for k in range(first, self.counts["episodes"]):
                where = f"{path}, episode {k}"
                yield self._episode(hdf5.member(file, f"episode_{k}", where), where)

    def _episode(self, group: Group, where: str) -> Whole:
        data: Data = functools.cache(lambda name: hdf5.data(group, name, where))  # each is looked for once
        n, observed = len(data("rewards")), _length(data, "observations", self.spaces["observations",], where)
        if observed not in (n, n + 1):
            raise DatasetError(f"{where}, observations: expected {n + 1} for {n} rewards, got {observed}")
        with hdf5.damage(where, "the seed"):
            about = {"seed": int(group.attrs["seed"])} if "seed" in group.attrs else {}

        def rows(name: str) -> Read:
            return lambda first, stop: hdf5.rows(data(name), first, stop, where)

        def read(path: Path, first: int, stop: int) -> Nest:
            name = "/".join(path)
            if path in self.spaces:
                return self._values(data, name, self.spaces[path], first, stop, where)
            # Where there is an info of the reset too, it comes before those that steps have returned.
            before = len(data(name)) - n if path[0] == "infos" else 0
            if before not in (0, 1):
                raise DatasetError(f"{where}, {name}: expected {n + 1} for {n} rewards, got {before + n}")
            return hdf5.rows(data(name), first + before, stop + before, where)

        return Whole(n, read, rows("terminations"), observed > n, self.files[1], about, rows("truncations"))

    def _values(self, data: Data, name: str, space: Any, first: int, stop: int, where: str) -> Nest:
        kind = type(space).__name__
        if kind == "Dict":
            subspaces = space.spaces.items()
            return {key: self._values(data, f"{name}/{key}", inner, first, stop, where) for key, inner in subspaces}
        if kind == "Tuple":
            subspaces = enumerate(space.spaces)
            return tuple(self._values(data, f"{name}/_index_{k}", inner, first, stop, where) for k, inner in subspaces)
        rows = hdf5.rows(data(name), first, stop, where)
        if kind == "Text":
            return [text.decode() if isinstance(text, bytes) else text for text in rows]
        # Compressed, an image is a row of bytes, of any length.
        if self.is_compressed(space) and data(name).ndim < 1 + len(space.shape):
            return images.decoded(list(rows), space.shape, np.uint8, f"{where}, {name}", ("JPEG",))
        return rows


def _length(data: Data, name: str, space: Any, where: str) -> int:
    while (kind := type(space).__name__) in ("Dict", "Tuple"):
        if not len(space.spaces):
            raise DatasetError(f"{where}, observations: expected a space with some part")
        first, space = next(iter(space.spaces.items() if kind == "Dict" else enumerate(space.spaces)))
        name = f"{name}/{first}" if kind == "Dict" else f"{name}/_index_{first}"
    return len(data(name))
