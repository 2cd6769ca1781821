"""Minari's episodes in HDF5: a group for each, spaces of several parts as groups within."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.datasets import hdf5
from functional_rb.datasets.by_rows import Leaves, Read, Whole, by_first_name, nested_read
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats import images
from functional_rb.datasets.hdf5 import Members
from functional_rb.datasets.minari_folder import Folder, Minari

MAIN = "main_data.hdf5"


class Hdf5(Minari):
    """Reads a file of HDF5 with all episodes. Its infos are those of the first episode that are numbers."""

    def __init__(self, folder: Folder) -> None:
        path = os.path.join(folder.path, MAIN)
        super().__init__(folder, [path])
        if folder.episodes:
            with hdf5.opened(path) as file:
                group = hdf5.member(file, "episode_0", path)
                if hdf5.has(group, "infos", path):
                    self.infos = by_first_name(hdf5.leaves(group, "infos", path))

    def wholes(self, first: int, most: int) -> Iterator[Whole]:
        path = self.files[1]
        with hdf5.opened(path) as file:
            for k in range(first, self.folder.episodes):
                where = f"{path}, episode {k}"
                yield self._episode(Members(hdf5.member(file, f"episode_{k}", where), where), where)

    def _episode(self, group: Members, where: str) -> Whole:
        folder = self.folder
        n, observed = len(group.data("rewards")), _length(group, "observations", folder.observation, where)
        if observed not in (n, n + 1):
            raise DatasetError(f"{where}, observations: expected {n + 1} for {n} rewards, got {observed}")
        with hdf5.damage(where, "the seed"):
            about = {"seed": int(group.group.attrs["seed"])} if "seed" in group.group.attrs else {}

        def rows(name: str) -> Read:
            return lambda first, stop: group.rows(name, first, stop)

        def values(name: str, space: object) -> Read:
            return lambda first, stop: self._values(group, name, space, first, stop, where)

        def infos(name: str, leaves: Leaves) -> Read:
            names = {path: "/".join(("infos", name, *path)) for path in leaves}
            return nested_read({path: _after_reset(group, full, n, where) for path, full in names.items()})

        return Whole(
            n,
            values("observations", folder.observation),
            values("actions", folder.action),
            rows("rewards"),
            rows("terminations"),
            observed > n,
            self.files[1],
            {name: infos(name, leaves) for name, leaves in self.infos.items()},
            about,
            rows("truncations"),
        )

    def _values(self, group: Members, name: str, space: Any, first: int, stop: int, where: str) -> Nest:
        kind = type(space).__name__
        if kind == "Dict":
            parts = space.spaces.items()
            return {key: self._values(group, f"{name}/{key}", part, first, stop, where) for key, part in parts}
        if kind == "Tuple":
            parts = enumerate(space.spaces)
            return tuple(self._values(group, f"{name}/_index_{k}", part, first, stop, where) for k, part in parts)
        rows = group.rows(name, first, stop)
        if kind == "Text":
            return [text.decode() if isinstance(text, bytes) else text for text in rows]
        # Compressed, an image is a row of bytes, of any length.
        if self.is_compressed(space) and group.data(name).ndim < 1 + len(space.shape):
            return images.decoded(list(rows), space.shape, np.uint8, f"{where}, {name}", ("JPEG",))
        return rows


def _after_reset(group: Members, name: str, n: int, where: str) -> Read:
    """What reads an info that steps have returned: where there is one of the reset too, that comes first."""

    def read(first: int, stop: int) -> NumpyArray:
        before = len(group.data(name)) - n
        if before not in (0, 1):
            raise DatasetError(f"{where}, {name}: expected {n + 1} for {n} rewards, got {before + n}")
        return group.rows(name, first + before, stop + before)

    return read


def _length(group: Members, name: str, space: Any, where: str) -> int:
    while (kind := type(space).__name__) in ("Dict", "Tuple"):
        if not len(space.spaces):
            raise DatasetError(f"{where}, observations: expected a space with some part")
        first, space = next(iter(space.spaces.items() if kind == "Dict" else enumerate(space.spaces)))
        name = f"{name}/{first}" if kind == "Dict" else f"{name}/_index_{first}"
    return len(group.data(name))
