"""Minari's episodes in HDF5: a group for each, spaces of several parts as groups within."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from functional_rb.datasets import hdf5
from functional_rb.datasets.episode import DatasetError, Episode
from functional_rb.datasets.formats import images
from functional_rb.datasets.hdf5 import Members
from functional_rb.datasets.minari_folder import Folder, is_image, specs_of_infos
from functional_rb.datasets.pieces import Lazy, can_be_stored, repeated, spans

MAIN = "main_data.hdf5"
# How deep groups of infos may lie in each other; a group may lie in itself.
DEPTH = 16


class Hdf5:
    """A file of HDF5 with all episodes; see `minari.Layout`."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._path = folder, os.path.join(folder.path, MAIN)
        self.files = [self._path]
        self._infos: dict[str, object] = {}
        if folder.episodes:
            with hdf5.opened(self._path) as file:
                group = hdf5.member(file, "episode_0", self._path)
                if hdf5.has(group, "infos", self._path):
                    self._infos = _shapes(hdf5.member(group, "infos", self._path), self._path)

    def infos(self, narrow: bool) -> Mapping[str, Any]:
        """Those of the first episode that are numbers."""
        specs: dict[str, Any] = specs_of_infos(self._infos, narrow)
        return specs

    def episodes(self, first: int, most: int) -> Iterator[Episode]:
        with hdf5.opened(self._path) as file:
            for k in range(first, self._folder.episodes):
                where = f"{self._path}, episode {k}"
                yield from self._pieces(Members(hdf5.member(file, f"episode_{k}", where), where), most, where)

    def _pieces(self, group: Members, most: int, where: str) -> Iterator[Episode]:
        folder = self._folder
        n, observed = len(group.data("rewards")), _length(group, "observations", folder.observation, where)
        if observed not in (n, n + 1):
            raise DatasetError(f"{where}, observations: expected {n + 1} for {n} rewards, got {observed}")
        with hdf5.damage(where, "the seed"):
            about = {"seed": int(group.group.attrs["seed"])} if "seed" in group.group.attrs else {}
        for first, stop in spans(n, most):
            until = min(stop + 1, observed)
            observations = self._values(group, "observations", folder.observation, first, until, where)
            terminated, truncated = (
                group.rows(name, first, stop).astype(bool) for name in ("terminations", "truncations")
            )
            yield Episode(
                observations if until > stop else repeated(observations),
                self._values(group, "actions", folder.action, first, stop, where),
                group.rows("rewards", first, stop),
                terminated,
                truncated,
                Lazy(self._infos, functools.partial(self._info, group, first, stop, n, where)),
                final_observed=until > stop,
                goes_on=stop < n,
                file=self._path,
                about=about,
            )

    def _info(self, group: Members, first: int, stop: int, n: int, where: str, name: str) -> Any:
        """What the steps have returned: where there are infos of the reset too, they come first."""

        def read(inside: Members, key: str, part: Any) -> Any:
            if isinstance(part, dict):
                return {name: read(inside.inside(key), name, own) for name, own in part.items()}
            before = len(inside.data(key)) - n
            if before not in (0, 1):
                got = before + n
                raise DatasetError(f"{where}, infos {key!r}: expected {n + 1} for {n} rewards, got {got}")
            return inside.rows(key, first + before, stop + before)

        return read(group.inside("infos"), name, self._infos[name])

    def _values(self, group: Members, name: str, space: Any, first: int, stop: int, where: str) -> Any:
        kind = type(space).__name__
        if kind == "Dict":
            inner, parts = group.inside(name), space.spaces.items()
            return {key: self._values(inner, key, part, first, stop, where) for key, part in parts}
        if kind == "Tuple":
            inner, parts = group.inside(name), enumerate(space.spaces)
            return tuple(self._values(inner, f"_index_{k}", part, first, stop, where) for k, part in parts)
        rows = group.rows(name, first, stop)
        if kind == "Text":
            return [text.decode() if isinstance(text, bytes) else text for text in rows]
        if self._folder.jpeg and is_image(space) and group.data(name).ndim < 1 + len(space.shape):
            return images.decoded(list(rows), space.shape, np.uint8, f"{where}, {name}", ("JPEG",))
        return rows


def _length(group: Members, name: str, space: Any, where: str) -> int:
    while type(space).__name__ in ("Dict", "Tuple"):
        if not len(space.spaces):
            raise DatasetError(f"{where}, observations: expected a space with some part")
        group = group.inside(name)
        is_dict = type(space).__name__ == "Dict"
        name = next(iter(space.spaces)) if is_dict else "_index_0"
        space = space.spaces[name if is_dict else 0]
    return len(group.data(name))


def _shapes(group: Any, where: str, depth: int = 0) -> dict[str, object]:
    """Shapes and dtypes of the infos that are numbers, by name, nested."""
    if depth > DEPTH:
        raise DatasetError(f"{where}, infos: expected at most {DEPTH} groups in each other, got {group.name:.200}")
    made: dict[str, object] = {}
    for name in hdf5.names(group, where):
        part = hdf5.member(group, name, where)
        if not hasattr(part, "shape"):
            inner = _shapes(part, where, depth + 1)
            if inner:
                made[name] = inner
        elif part.ndim and can_be_stored(part.dtype):
            made[name] = part.shape[1:], part.dtype
    return made
