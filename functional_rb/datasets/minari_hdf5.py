"""Minari's episodes in HDF5: a group for each, spaces of several parts as groups within."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from functional_rb.datasets import hdf5
from functional_rb.datasets.episode import DatasetError, Episode
from functional_rb.datasets.minari_spaces import Folder, decoded, is_image
from functional_rb.datasets.pieces import Lazy, can_be_stored, repeated, spans, spec_of_values

MAIN = "main_data.hdf5"
TOLD = ("seed", "id", "total_steps")


class Hdf5:
    """A file of HDF5 with all episodes; see `minari.Layout`."""

    def __init__(self, folder: Folder) -> None:
        """Look at the first episode, for the infos."""
        self._folder, self._path = folder, os.path.join(folder.path, MAIN)
        self.files = [self._path]
        self._infos: dict[str, Any] = {}
        if folder.episodes:
            with hdf5.opened(self._path) as file:
                group = hdf5.member(file, "episode_0", self._path)
                if "infos" in group:
                    self._infos = _shapes(hdf5.member(group, "infos", self._path), self._path)

    def infos(self, narrow: bool) -> Mapping[str, Any]:
        """Those of the first episode that are numbers."""
        return {name: _specs(part, narrow) for name, part in self._infos.items()}

    def episodes(self, first: int, most: int) -> Iterator[Episode]:
        """The episodes from one on, in pieces."""
        with hdf5.opened(self._path) as file:
            for k in range(first, self._folder.episodes):
                where = f"{self._path}, episode {k}"
                yield from self._pieces(hdf5.member(file, f"episode_{k}", where), most, where)

    def _pieces(self, group: Any, most: int, where: str) -> Iterator[Episode]:
        folder = self._folder
        rewards, *flags = (hdf5.data(group, name, where) for name in ("rewards", "terminations", "truncations"))
        n, observed = len(rewards), _length(hdf5.member(group, "observations", where), folder.observation, where)
        if observed not in (n, n + 1):
            raise DatasetError(f"{where}, observations: expected {n + 1} for {n} rewards, got {observed}")
        about = {name: _plain(group.attrs[name]) for name in TOLD if name in group.attrs}
        for first, stop in spans(n, most):
            until = min(stop + 1, observed)
            observations = self._values(group, "observations", folder.observation, first, until, where)
            terminated, truncated = (hdf5.rows(flag, first, stop, where).astype(bool) for flag in flags)
            yield Episode(
                observations if until > stop else repeated(observations),
                self._values(group, "actions", folder.action, first, stop, where),
                hdf5.rows(rewards, first, stop, where),
                terminated,
                truncated,
                Lazy(self._infos, functools.partial(self._info, group, first, stop, n, where)),
                final_observed=until > stop,
                goes_on=stop < n,
                file=self._path,
                about=about,
            )

    def _info(self, group: Any, first: int, stop: int, n: int, where: str, name: str) -> Any:
        """What the steps have returned: where there are infos of the reset too, they come first."""

        def read(inside: Any, key: str, part: Any) -> Any:
            if isinstance(part, dict):
                inner = hdf5.member(inside, key, where)
                return {name: read(inner, name, own) for name, own in part.items()}
            found = hdf5.data(inside, key, where)
            before = len(found) - n
            if before not in (0, 1):
                raise DatasetError(f"{where}, infos {key!r}: expected {n + 1} for {n} rewards, got {len(found)}")
            return hdf5.rows(found, first + before, stop + before, where)

        return read(hdf5.member(group, "infos", where), name, self._infos[name])

    def _values(self, group: Any, name: str, space: Any, first: int, stop: int, where: str) -> Any:
        """Rows [first, stop) of what is of a space."""
        if type(space).__name__ in ("Dict", "Tuple"):
            inner = hdf5.member(group, name, where)
            if type(space).__name__ == "Dict":
                return {key: self._values(inner, key, part, first, stop, where) for key, part in space.spaces.items()}
            return tuple(
                self._values(inner, f"_index_{k}", part, first, stop, where) for k, part in enumerate(space.spaces)
            )
        found = hdf5.data(group, name, where)
        rows = hdf5.rows(found, first, stop, where)
        if type(space).__name__ == "Text":
            return [text.decode() if isinstance(text, bytes) else text for text in rows]
        if self._folder.jpeg and is_image(space) and found.ndim < 1 + len(space.shape):
            return decoded(list(rows), space, f"{where}, {name}")
        return rows


def _length(found: Any, space: Any, where: str) -> int:
    """How many values there are of a space."""
    while type(space).__name__ in ("Dict", "Tuple"):
        if not len(space.spaces):
            raise DatasetError(f"{where}, observations: expected a space with some part")
        is_dict = type(space).__name__ == "Dict"
        name = next(iter(space.spaces)) if is_dict else "_index_0"
        found, space = hdf5.member(found, name, where), space.spaces[name if is_dict else 0]
    return len(found)


def _shapes(group: Any, where: str) -> dict[str, Any]:
    """Shapes and dtypes of the infos that are numbers, by name, nested."""
    made: dict[str, Any] = {}
    for name in group:
        part = hdf5.member(group, name, where)
        if not hasattr(part, "shape"):
            inner = _shapes(part, where)
            if inner:
                made[name] = inner
        elif part.ndim and can_be_stored(part.dtype):
            made[name] = part.shape[1:], part.dtype
    return made


def _specs(part: Any, narrow: bool) -> Any:
    if isinstance(part, dict):
        return {name: _specs(inner, narrow) for name, inner in part.items()}
    shape, dtype = part
    return spec_of_values(shape, dtype, narrow)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and np.ndim(value) == 0 else str(value)
