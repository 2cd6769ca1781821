"""Minari's datasets, as they lie on the disk: `minari:D4RL/door/human-v2`, or the path of one's own.

A dataset is a folder with `metadata.json`, which tells the spaces, and the episodes in HDF5, Arrow or Parquet. Minari
itself is not needed to read it.
"""

from __future__ import annotations

import json
import os

from functional_rb.datasets.by_rows import located
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats.json_files import json_object
from functional_rb.datasets.minari_arrow import Arrow
from functional_rb.datasets.minari_folder import METADATA, Minari
from functional_rb.datasets.minari_hdf5 import Hdf5

LAYOUTS: dict[str, type[Minari]] = {"hdf5": Hdf5, "arrow": Arrow, "parquet": Arrow}


def open_minari(
    rest: str, root: str | None = None, *, max_length: int | None = None, max_edges: int | None = None
) -> Minari:
    """The reader of a dataset of Minari: its name, as "D4RL/door/human-v2", or the path of its folder.

    It is looked for where datasets lie, and where Minari keeps its own. `max_length` are the most elements of a
    `Sequence`, and nodes of a `Graph`, if the spaces have some; `max_edges` the most edges.
    """
    kept = os.environ.get("MINARI_DATASETS_PATH") or os.path.join(os.path.expanduser("~"), ".minari", "datasets")

    def folder(place: str) -> str | None:
        folders = (place, os.path.join(place, "data"))
        return next((folder for folder in folders if os.path.isfile(os.path.join(folder, METADATA))), None)

    path = located("minari", rest, root, folder, METADATA, kept)
    where = os.path.join(path, METADATA)
    # Python's parser is taken, as bounds may be infinite.
    metadata = json_object(where, "metadata", json.loads)
    kind = metadata.get("data_format", "hdf5")
    if not isinstance(kind, str) or kind not in LAYOUTS:
        raise DatasetError(f"{where}: data_format: expected 'hdf5', 'arrow' or 'parquet', got {kind!r}")
    return LAYOUTS[kind](f"minari:{rest}", path, metadata, (max_length, max_edges))
