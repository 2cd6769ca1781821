"""RoboSet's datasets: `roboset:FK1-v4(expert)/FK1_MicroOpenRandom_v2d-v4`, or the path of a folder with its files.

A file of HDF5 has a group for each episode, `Trial0` and so on. As RoboHive records them, a row has an observation, the
action that was taken there, and the reward that came with the observation: that of the action stands in the next row.
In the last row nothing was done any more: its action is no number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from functional_rb.base.strict_json import Json
from functional_rb.datasets import hdf5
from functional_rb.datasets.by_rows import Read, Whole, found, nested_read, nested_spec
from functional_rb.datasets.episode import Array, DatasetError, Episode, StepSpec
from functional_rb.datasets.pieces import can_be_stored, spec_of_values, steps_of_piece
from functional_rb.datasets.reader import Counts

RewardOf = Literal["action", "observation"]
TRIAL = re.compile(r"Trial(\d{1,9})", re.ASCII)
# How deep groups may lie in groups.
DEPTH = 8


class Roboset:
    """Reads a folder of RoboSet; see `Reader` for the attributes."""

    def __init__(self, path: str, name: str, reward_of: RewardOf) -> None:
        self.name, self._shift = name, 1 if reward_of == "observation" else 0
        self.facts: Json = {"reward_of": reward_of}
        self.files = _files(path)
        self._trials: list[tuple[str, str]] = []
        for file_path in self.files:
            with hdf5.opened(file_path) as file:
                names = (TRIAL.fullmatch(name) for name in hdf5.names(file, file_path))
                trials = sorted((int(match[1]), match[0]) for match in names if match is not None)
                self._trials += [(file_path, trial) for _, trial in trials]
        if not self._trials:
            raise DatasetError(f"{path}: expected groups Trial0, Trial1 and so on in its files, got none")
        file_path, trial = self._trials[0]
        with hdf5.opened(file_path) as file:
            group = hdf5.member(file, trial, file_path)
            self._observations = _leaves(group, "observations", file_path)
            self._actions = _leaves(group, "actions", file_path)
            self._infos = _leaves(group, "env_infos", file_path) if hdf5.has(group, "env_infos", file_path) else {}
            self._reward = hdf5.data(group, "rewards", file_path).dtype
        self.counts = Counts(len(self._trials), nbytes=sum(map(os.path.getsize, self.files)))

    def spec(self, narrow: bool) -> StepSpec:
        observation, action = (_specs(leaves, narrow) for leaves in (self._observations, self._actions))
        infos = _specs(self._infos, narrow) if self._infos else {}
        return StepSpec(observation, action, spec_of_values((), self._reward, narrow), infos)

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """File by file, in the order of their names and of the numbers of trials."""
        most = steps_of_piece(self.spec(narrow=False))
        for path, trial in self._trials[first:]:
            with hdf5.opened(path) as file:
                yield from self._episode(hdf5.member(file, trial, path), f"{path}, {trial}", path).pieces(most)

    def _episode(self, group: Any, where: str, path: str) -> Whole:
        n, shift = len(hdf5.data(group, "rewards", where)), self._shift
        if n == 0:
            raise DatasetError(f"{where}: expected rows, got none")
        rewards = _rows(group, ("rewards",), n, where)
        infos: dict[str, dict[tuple[str, ...], Read]] = {}  # by the first part of their names
        for name in self._infos:
            infos.setdefault(name[0], {})[name[1:]] = _rows(group, ("env_infos", *name), n, where)
        return Whole(
            max(n - 1, 1),
            _nest("observations", self._observations, group, n, where),
            _nest("actions", self._actions, group, n, where),
            None if n == 1 else lambda first, stop: rewards(first + shift, stop + shift).reshape(-1),
            n > 1 and hdf5.has(group, "done", where) and bool(_rows(group, ("done",), n, where)(n - 1, n).any()),
            n > 1,  # else there is no step
            path,
            {name: nested_read(leaves) for name, leaves in infos.items()},
            {"trial": group.name.strip("/")},
        )


# Shape of a row and dtype, by the names of groups and data set.
Leaves = Mapping[tuple[str, ...], tuple[tuple[int, ...], Any]]


def _leaves(group: object, name: str, where: str, depth: int = 0) -> dict[tuple[str, ...], tuple[tuple[int, ...], Any]]:
    """The data sets in a group, those that hold numbers for each row; or the one of that name, at ()."""
    part = hdf5.member(group, name, where)
    if hasattr(part, "shape"):
        return {(): (part.shape[1:], part.dtype)} if part.shape and can_be_stored(part.dtype) else {}
    if depth == DEPTH:
        raise DatasetError(f"{where}: {name!r}: expected at most {DEPTH} groups in each other")
    found: dict[tuple[str, ...], tuple[tuple[int, ...], object]] = {}
    for key in hdf5.names(part, where):
        found |= {(key, *path): kind for path, kind in _leaves(part, key, where, depth + 1).items()}
    return found


def _specs(leaves: Leaves, narrow: bool) -> Any:
    return nested_spec({path: spec_of_values(*kind, narrow) for path, kind in leaves.items()})


def _nest(name: str, leaves: Leaves, group: object, n: int, where: str) -> Read:
    return nested_read({path: _rows(group, (name, *path), n, where) for path in leaves})


def _rows(group: object, path: tuple[str, ...], n: int, where: str) -> Read:
    """What reads rows of a data set, which has to have so many."""
    for name in path[:-1]:
        group = hdf5.member(group, name, where)
    dataset = hdf5.data(group, path[-1], where)
    if len(dataset) != n:
        raise DatasetError(f"{where}, {'/'.join(path)}: expected {n} rows, one for each reward, got {len(dataset)}")

    def read(first: int, stop: int) -> Array:
        return hdf5.rows(dataset, first, stop, where)

    return read


def open_roboset(rest: str, root: str | None = None, *, reward_of: RewardOf = "observation") -> Roboset:
    """The reader of a dataset of RoboSet.

    Args:
        rest: its name, as "FK1-v4(expert)/FK1_MicroOpenRandom_v2d-v4", or the path of its folder.
        root: the folder where datasets lie.
        reward_of: whether the reward in a row is that of its "action", or of its "observation", as RoboHive writes it.

    Raises:
        FileNotFoundError: if it is nowhere, saying where that is.
        DatasetError: for files of another kind.
        ValueError: for another `reward_of`.
    """
    if reward_of not in ("action", "observation"):
        raise ValueError(f"roboset:{rest}: reward_of: expected 'action' or 'observation', got {reward_of!r}")
    path = found("roboset", rest, root, lambda place: bool(_files(place)), "files of .h5")
    return Roboset(path, f"roboset:{rest}", reward_of)


def _files(folder: str) -> list[str]:
    paths = (os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)
    return sorted(path for path in paths if path.endswith((".h5", ".hdf5")))
