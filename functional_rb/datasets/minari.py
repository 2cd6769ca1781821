"""Minari's datasets, as they lie on the disk: `minari:D4RL/door/human-v2`, or the path of one's own.

A dataset is a folder with `metadata.json`, which tells the spaces, and the episodes in HDF5, Arrow or Parquet. Minari
itself is not needed to read it.
"""

from __future__ import annotations

import json
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from functional_rb.base.extras import imported
from functional_rb.base.strict_json import Json
from functional_rb.datasets.by_rows import located
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats.json_files import json_object
from functional_rb.datasets.minari_arrow import Arrow
from functional_rb.datasets.minari_folder import METADATA, WHO, Folder, Minari
from functional_rb.datasets.minari_hdf5 import Hdf5

if TYPE_CHECKING:
    from gymnasium import Space


def open_minari(
    rest: str, root: str | None = None, *, max_length: int | None = None, max_edges: int | None = None
) -> Minari:
    """The reader of a dataset of Minari: its name, as "D4RL/door/human-v2", or the path of its folder.

    It is looked for where datasets lie, and where Minari keeps its own. `max_length` are the most elements of a
    `Sequence`, and nodes of a `Graph`, if the spaces have some; `max_edges` the most edges.
    """
    kept = os.environ.get("MINARI_DATASETS_PATH") or os.path.join(os.path.expanduser("~"), ".minari", "datasets")
    path = located("minari", rest, root, _folder, METADATA, kept)
    where = os.path.join(path, METADATA)
    # By Python's parser, as bounds may be infinite.
    metadata = json_object(where, "metadata", json.loads)
    episodes, steps = (_count(metadata, name, where) for name in ("total_episodes", "total_steps"))
    observation, action = (
        _space_of(metadata.get(name), f"{where}: {name}") for name in ("observation_space", "action_space")
    )
    name = f"minari:{rest}"
    folder = Folder(name, path, metadata, episodes, steps, observation, action, max_length, max_edges)
    kind = metadata.get("data_format", "hdf5")
    if kind == "hdf5":
        return Hdf5(folder)
    if kind in ("arrow", "parquet"):
        return Arrow(folder, kind)
    raise DatasetError(f"{where}: data_format: expected 'hdf5', 'arrow' or 'parquet', got {kind!r}")


def _folder(place: str) -> str | None:
    folders = (place, os.path.join(place, "data"))
    return next((folder for folder in folders if os.path.isfile(os.path.join(folder, METADATA))), None)


def _space_of(text: object, where: str) -> Space[Any]:
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


def _space(spaces: ModuleType, node: Json) -> Space[Any]:
    kind = node["type"]
    if kind == "Box":
        low, high = (np.array(node[name], node["dtype"]) for name in ("low", "high"))
        return spaces.Box(low, high, tuple(node["shape"]), np.dtype(node["dtype"]).type)
    if kind == "Discrete":
        return spaces.Discrete(node["n"], start=node["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(node["nvec"], np.dtype(node["dtype"]).type, start=node["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(node["n"])
    if kind == "Text":
        return spaces.Text(node["max_length"], min_length=node["min_length"], charset=node["charset"])
    if kind == "Dict":
        return spaces.Dict({name: _space(spaces, part) for name, part in node["subspaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([_space(spaces, part) for part in node["subspaces"]])
    raise ValueError(f"a space of type {kind!r}")


def _count(metadata: Json, name: str, where: str) -> int:
    number = metadata.get(name)
    if not isinstance(number, int) or number < 0:
        raise DatasetError(f"{where}: {name}: expected how many there are, got {number!r}")
    return number
