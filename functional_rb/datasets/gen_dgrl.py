"""Gen-DGRL's datasets of Procgen: `gen_dgrl:bigfish-1M_E`, or the path of its archive.

An archive, `bigfish.tar.xz`, has a file of NumPy for each episode: a pickle of a dict with `observations` [T + 1, ...],
`actions`, `rewards` and `dones` [T]. It is read by an unpickler that knows arrays alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from functional_rb.base.strict_json import Json
from functional_rb.datasets.by_rows import Whole, found, of, same_rows
from functional_rb.datasets.episode import DatasetError, Episode, StepSpec
from functional_rb.datasets.formats import tars
from functional_rb.datasets.formats.npy import NpyStream
from functional_rb.datasets.formats.unpickle import unpickle
from functional_rb.datasets.pieces import kind_of_rows, spec_of_values, steps_of_piece
from functional_rb.datasets.reader import Counts

FIELDS = ("observations", "actions", "rewards", "dones")
# Bytes that an episode may take in memory.
MOST = 2**30


class GenDgrl:
    """Reads an archive of Gen-DGRL; see `Reader` for the attributes."""

    def __init__(self, path: str, name: str) -> None:
        self.name, self.files, self.facts = name, [path], Json()
        self.counts = Counts(nbytes=os.path.getsize(path))
        for inside, fields in _contents(path, 0):
            self._kinds = [kind_of_rows(fields[field], f"{path}, {inside!r}, {field}") for field in FIELDS[:3]]
            return
        raise DatasetError(f"{path}: expected files of .npy in it, got none")

    def spec(self, narrow: bool) -> StepSpec:
        observation, action, reward = (spec_of_values(*kind, narrow) for kind in self._kinds)
        return StepSpec(observation, action, reward)

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """In the order of the archive."""
        most = steps_of_piece(self.spec(narrow=False))
        for name, fields in _contents(self.files[0], first):
            observations, actions, rewards, dones = (fields[field] for field in FIELDS)
            whole = Whole(
                len(rewards),
                of(observations),
                of(actions),
                of(rewards),
                bool(dones[-1]),
                len(observations) > len(rewards),
                self.files[0],
                about={"file": name},
            )
            yield from whole.pieces(most)


def _contents(path: str, first: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    at = 0
    for name, _, stream in tars.members(path):
        if not name.endswith(".npy"):
            continue
        at += 1
        if at > first:
            yield name, _fields(stream, f"{path}, {name!r}")


def _fields(stream: Any, where: str) -> dict[str, Any]:
    header = NpyStream(stream, where, objects=True)
    if header.shape != () or not header.dtype.hasobject:
        raise DatasetError(f"{where}: expected a dict, pickled by numpy.save, got an array {header.shape}")
    fields = unpickle(stream, where, MOST)
    if not isinstance(fields, dict) or not all(isinstance(fields.get(name), np.ndarray) for name in FIELDS):
        raise DatasetError(f"{where}: expected arrays {', '.join(FIELDS)}, got {sorted(map(str, fields))[:20]}")
    rewards, dones, observations = fields["rewards"], fields["dones"], fields["observations"]
    n = len(rewards) if rewards.ndim == 1 else 0
    same_rows({name: fields[name] for name in ("actions", "dones")}, n, where)
    if n == 0 or np.flatnonzero(dones[:-1]).size:
        raise DatasetError(f"{where}: expected the steps of one episode, done after the last one only")
    if observations.shape[:1] not in ((n,), (n + 1,)):
        got = observations.shape
        raise DatasetError(f"{where}, observations: expected {n + 1}, one more than rewards, got shape {got}")
    return fields


def open_gen_dgrl(rest: str, root: str | None = None) -> GenDgrl:
    """The reader of a dataset of Gen-DGRL.

    Args:
        rest: its name, as "bigfish-1M_E", or the path of its archive.
        root: the folder where datasets lie: below it `gen_dgrl/bigfish-1M_E/bigfish.tar.xz`.

    Raises:
        FileNotFoundError: if it is nowhere, saying where that is.
        DatasetError: for an archive of something else.
    """
    path = found("gen_dgrl", rest, root, lambda place: _archive(place) is not None, "an archive of .tar.xz")
    return GenDgrl(_archive(path) or path, f"gen_dgrl:{rest}")


def _archive(place: str) -> str | None:
    if os.path.isfile(place):
        return place
    inside = sorted(os.listdir(place)) if os.path.isdir(place) else []
    files = [file for file in inside if ".tar" in file]
    return os.path.join(place, files[0]) if files else None
