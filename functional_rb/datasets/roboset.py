"""RoboSet's datasets: `roboset:FK1-v4(expert)/FK1_MicroOpenRandom_v2d-v4`, or the path of a folder with its files.

A file of HDF5 has a group for each episode, `Trial0` and so on. As RoboHive records them, a row has an observation, the
action that was taken there, and the reward that came with the observation: that of the action stands in the next row.
In the last row nothing was done any more: its action is no number.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from functional_rb.base.arrays import NumpyArray
from functional_rb.datasets import hdf5
from functional_rb.datasets.by_rows import Leaves, Path, RowReader, Whole, located, marks
from functional_rb.datasets.episode import DatasetError

if TYPE_CHECKING:
    from h5py import Dataset, Group

RewardOf = Literal["action", "observation"]
INFOS = "env_infos"
TRIAL = re.compile(r"Trial(\d{1,9})", re.ASCII)


class Roboset(RowReader):
    """Reads a folder of RoboSet: file by file, in the order of their names and of the numbers of trials."""

    def __init__(self, path: str, name: str, reward_of: RewardOf) -> None:
        files = _files(path)
        self._trials: list[tuple[str, str]] = []
        for file_path in files:
            with hdf5.opened(file_path) as file:
                matches = (TRIAL.fullmatch(name) for name in hdf5.names(file, file_path))
                trials = sorted((int(match[1]), match[0]) for match in matches if match is not None)
                self._trials += [(file_path, trial) for _, trial in trials]
        if not self._trials:
            raise DatasetError(f"{path}: expected groups Trial0, Trial1 and so on in its files, got none")
        super().__init__(name, files, episodes=len(self._trials))
        # The reward that came with an observation is that of the action one row before.
        self._shift = 1 if reward_of == "observation" else 0
        self.facts = {"reward_of": reward_of}
        file_path, trial = self._trials[0]
        with hdf5.opened(file_path) as file:
            group = hdf5.member(file, trial, file_path)
            leaves: Leaves = {}
            for field in ("observations", "actions"):
                numbers = hdf5.leaves(group, field, file_path)
                if not numbers:
                    raise DatasetError(f"{file_path}, {trial}: expected numbers in {field!r}, got none")
                leaves |= numbers
            leaves["rewards",] = ((), hdf5.data(group, "rewards", file_path).dtype)
            if hdf5.has(group, INFOS, file_path):
                infos = hdf5.leaves(group, INFOS, file_path)
                leaves |= {("infos", *path[1:]): kind for path, kind in infos.items() if path[1:]}
            self.leaves = leaves

    def wholes(self, first: int, most: int) -> Iterator[Whole]:
        for path, trial in self._trials[first:]:
            with hdf5.opened(path) as file:
                yield self._whole(hdf5.member(file, trial, path), f"{path}, {trial}", path)

    def _whole(self, group: Group, where: str, path: str) -> Whole:
        @functools.cache  # each is looked for once
        def rows(name: str) -> Dataset:
            dataset = hdf5.data(group, name, where)
            if len(dataset) != n:
                raise DatasetError(f"{where}, {name}: expected {n} rows, one for each reward, got {len(dataset)}")
            return dataset

        def read(path: Path, first: int, stop: int) -> NumpyArray:
            field, *inner = path
            shift = self._shift if field == "rewards" else 0
            name = "/".join((INFOS if field == "infos" else field, *inner))
            # A trial of a single row has no reward in a row behind it; its step is dropped.
            values = hdf5.rows(rows(name), min(first + shift, n - 1), min(stop + shift, n), where)
            return values.reshape(-1) if field == "rewards" else values

        n = len(hdf5.data(group, "rewards", where))
        is_done = n > 1 and hdf5.has(group, "done", where)
        return Whole(
            # A single row has no action that led anywhere: it is given as one step, which is dropped.
            min(n, max(n - 1, 1)),
            read,
            is_done and bool(marks(hdf5.rows(rows("done"), n - 1, n, where), f"{where}, done").any()),
            n > 1,
            path,
            {"trial": group.name.strip("/")},
        )


def open_roboset(rest: str, root: str | None = None, *, reward_of: RewardOf = "observation") -> Roboset:
    """The reader of a dataset of RoboSet: as "FK1-v4(expert)/FK1_MicroOpenRandom_v2d-v4", or the path of its folder.

    The reward in a row is that of its "action", or of its "observation", as RoboHive writes it.
    """
    if reward_of not in ("action", "observation"):
        raise ValueError(f"roboset:{rest}: reward_of: expected 'action' or 'observation', got {reward_of!r}")
    path = located("roboset", rest, root, lambda place: place if _files(place) else None, "files of .h5")
    return Roboset(path, f"roboset:{rest}", reward_of)


def _files(folder: str) -> list[str]:
    paths = (os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)
    return sorted(path for path in paths if path.endswith((".h5", ".hdf5")))
