"""Minari's datasets, as they lie on the disk: `minari:D4RL/door/human-v2`, or the path of one's own.

A dataset is a folder with `metadata.json`, which tells the spaces, and the episodes in HDF5, Arrow or Parquet. Minari
itself is not needed to read it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from functional_rb.base import files
from functional_rb.base.extras import imported
from functional_rb.base.strict_json import Json
from functional_rb.convert.common import stored_dtype
from functional_rb.convert.gymnasium import spec_of_space
from functional_rb.datasets.episode import DatasetError, Episode, StepSpec
from functional_rb.datasets.minari_folder import Folder, is_image
from functional_rb.datasets.pieces import steps_of_piece
from functional_rb.datasets.reader import Counts
from functional_rb.specs import Unbounded

WHO = "datasets: minari"
METADATA = "metadata.json"
# What is told of a dataset besides its spaces.
TOLD = ("dataset_id", "author", "algorithm_name", "code_permalink", "description", "minari_version", "eval_env_spec")


class Layout(Protocol):
    """How episodes lie in files."""

    @property
    def files(self) -> Sequence[str]:
        """Those that are read."""

    def infos(self, narrow: bool) -> Mapping[str, Any]:
        """The specs of what else there is of each step, by name."""

    def episodes(self, first: int, most: int) -> Iterator[Episode]:
        """The episodes from one on, in pieces of so many steps at most."""


class Minari:
    """Reads a dataset of Minari; see `Reader` for the attributes."""

    def __init__(self, folder: Folder, name: str, layout: Layout, metadata: Json) -> None:
        self.name, self._folder, self._layout = name, folder, layout
        self.files = [os.path.join(folder.path, METADATA), *layout.files]
        nbytes = sum(os.path.getsize(path) for path in self.files)
        self.counts = Counts(folder.episodes, _count(metadata, "total_steps", folder.path), nbytes)
        self.facts: Json = {key: metadata[key] for key in TOLD if key in metadata}
        if folder.jpeg and any(is_image(space) for space in _leaves(folder.observation, folder.action)):
            self.facts["lossy"] = "images were compressed (JPEG) as they were recorded"

    def spec(self, narrow: bool) -> StepSpec:
        """What the spaces say; the reward is what Gymnasium's is, float64."""
        limits = self._folder.max_length, self._folder.max_edges
        observation, action = (
            spec_of_space(space, narrow, *limits, WHO, (of,))
            for of, space in (("observation", self._folder.observation), ("action", self._folder.action))
        )
        reward = Unbounded((), stored_dtype("float64", narrow))
        return StepSpec(observation, action, reward, self._layout.infos(narrow))

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        return self._layout.episodes(first, steps_of_piece(self.spec(narrow=False)))


def open_minari(
    rest: str, root: str | None = None, *, max_length: int | None = None, max_edges: int | None = None
) -> Minari:
    """The reader of a dataset of Minari.

    Args:
        rest: its name, as "D4RL/door/human-v2", or the path of its folder.
        root: the folder where datasets lie; it is looked for there, and where Minari keeps its own.
        max_length: the most elements of a `Sequence`, and nodes of a `Graph`, if the spaces have some.
        max_edges: the most edges of a `Graph`.

    Raises:
        FileNotFoundError: if it is nowhere, saying where that is.
        DatasetError: for metadata that do not tell what has to be known.
        ImportError: for a library that is missing.
    """
    path = found(rest, root)
    where = os.path.join(path, METADATA)
    metadata = _metadata(where)
    observation, action = (
        _space_of(metadata.get(f"{of}_space"), f"{where}: {of}_space") for of in ("observation", "action")
    )
    jpeg, episodes = bool(metadata.get("jpeg_encoding", True)), _count(metadata, "total_episodes", where)
    folder = Folder(path, episodes, observation, action, jpeg, max_length, max_edges)
    kind = metadata.get("data_format", "hdf5")
    if kind == "hdf5":
        from functional_rb.datasets.minari_hdf5 import Hdf5

        return Minari(folder, f"minari:{rest}", Hdf5(folder), metadata)
    if kind in ("arrow", "parquet"):
        from functional_rb.datasets.minari_arrow import Arrow

        return Minari(folder, f"minari:{rest}", Arrow(folder, kind), metadata)
    raise DatasetError(f"{where}: data_format: expected 'hdf5', 'arrow' or 'parquet', got {kind!r}")


def found(rest: str, root: str | None) -> str:
    own = os.environ.get("MINARI_DATASETS_PATH") or os.path.join(os.path.expanduser("~"), ".minari", "datasets")
    beside = [] if root is None else [os.path.join(root, "minari", rest)]
    places = [rest, *beside, os.path.join(own, rest)]
    for place in places:
        for folder in (place, os.path.join(place, "data")):
            if os.path.isfile(os.path.join(folder, METADATA)):
                return os.path.abspath(folder)
    raise FileNotFoundError(
        f"minari:{rest}: no {METADATA} in {', '.join(map(os.path.abspath, places))}; fetch the dataset first, or give "
        f"the path of its folder"
    )


def _space_of(text: object, where: str) -> object:
    """The space of Gymnasium that a text describes."""
    spaces = imported("gymnasium", WHO).spaces
    if not isinstance(text, str):
        raise DatasetError(
            f"{where}: expected a space in JSON, got {text!r:.60}; write the dataset anew with a newer minari"
        )
    try:
        return _space(spaces, json.loads(text))
    except (ValueError, TypeError, KeyError, AssertionError, AttributeError, ArithmeticError, RecursionError) as error:
        raise DatasetError(f"{where}: expected a space in JSON, got {text:.60}: {error!r}") from None


def _space(spaces: Any, told: Json) -> object:
    kind = told["type"]
    if kind == "Box":
        low, high = (np.array(told[name], told["dtype"]) for name in ("low", "high"))
        return spaces.Box(low, high, tuple(told["shape"]), np.dtype(told["dtype"]).type)
    if kind == "Discrete":
        return spaces.Discrete(told["n"], start=told["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(told["nvec"], np.dtype(told["dtype"]).type, start=told["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(told["n"])
    if kind == "Text":
        return spaces.Text(told["max_length"], min_length=told["min_length"], charset=told["charset"])
    if kind == "Dict":
        return spaces.Dict({name: _space(spaces, part) for name, part in told["subspaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([_space(spaces, part) for part in told["subspaces"]])
    raise ValueError(f"a space of type {kind!r}")


def _metadata(where: str) -> Json:
    try:
        content = json.loads(files.read_text(where))  # with infinities, as bounds have them
    except (files.UnusableFileError, ValueError, RecursionError) as error:
        raise DatasetError(f"{where}: expected metadata in JSON, got something else: {error}") from None
    if not isinstance(content, dict):
        raise DatasetError(f"{where}: expected metadata by name, got {type(content).__name__}")
    return content


def _count(metadata: Json, name: str, where: str) -> int:
    number = metadata.get(name)
    if not isinstance(number, int) or number < 0:
        raise DatasetError(f"{where}: {name}: expected how many there are, got {number!r}")
    return number


def _leaves(*spaces: object) -> Iterator[Any]:
    for space in spaces:
        parts = getattr(space, "spaces", None)
        if parts is None:
            yield space
        else:
            yield from _leaves(*(parts.values() if isinstance(parts, Mapping) else parts))
