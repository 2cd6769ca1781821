"""Converted datasets as Minari's: a folder that `minari.load_dataset` and `minari.MinariDataset` read.

Minari writes it: its storage appends to an episode that it knows, so that no more is in memory than a piece of one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from functional_rb.base.extras import imported
from functional_rb.base.strict_json import Json
from functional_rb.convert.gymnasium import space_of_spec
from functional_rb.convert.json import to_json
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.exporting.steps import WHO, Fields
from functional_rb.datasets.minari_folder import SPECS
from functional_rb.datasets.stored import Stored
from functional_rb.specs import ArraySpec, Text
from functional_rb.storage import unfailing

NAME = "Minari"
# The folder within a dataset's that has the files.
DATA = "data"
# The one of them that has the steps.
FILE = "main_data.hdf5"
# The metadata of a dataset that stay true of datasets made of it.
TEXTS = ("algorithm_name", "code_permalink", "description")
KEPT = (*TEXTS, "author", "author_email", "env_spec", "eval_env_spec", "requirements")
# What Minari writes by itself, and the specs that we write.
SPACES, TOTALS = ("action_space", "observation_space"), ("dataset_size", "total_episodes", "total_steps")
OWN = (*SPACES, *TOTALS, "data_format", "jpeg_encoding", "minari_version", SPECS)


def write(reader: Stored, facts: Json, target: str, folder: str) -> None:
    """Write a dataset to a folder that gets the path `target` in the end, with what the user tells of it."""
    minari = imported("minari", WHO)
    fields = Fields(reader)
    for unit in fields.units:  # Minari would fail at some, and write others so that they are read as something else
        unit.check(NAME, "/")
        if not isinstance(unit.spec, ArraySpec):
            raise unit.refused(NAME, "numbers, arrays and texts", "make arrays of it by Dataset.map")
        if unit.field == "infos":
            space_of_spec(unit.spec, WHO, (unit.field, *unit.path))
    observation, action = (space_of_spec(fields.specs[field], WHO, (field,)) for field in ("observations", "actions"))
    metadata = {name: reader.facts[name] for name in KEPT if name in reader.facts} | dict(facts)
    # Before anything is written: Minari would take some of these, and read them as something else.
    for name in OWN:
        if name in metadata:
            raise ValueError(f"{WHO}: facts: expected what the data do not tell, got {name!r}; leave it out")
    for name in ("dataset_id", *TEXTS):
        if not isinstance(metadata.get(name, ""), str):
            raise ValueError(f"{WHO}: facts: expected a text as {name!r}, got {metadata[name]!r:.60}")
    metadata |= {"dataset_id": _identity(metadata, target), "minari_version": minari.__version__}
    metadata[SPECS] = to_json(dict(fields.specs))
    for name in ("author", "author_email"):
        if name in metadata:
            metadata[name] = {metadata[name]} if isinstance(metadata[name], str) else set(metadata[name])
    storage = imported("minari.dataset.minari_storage", WHO).MinariStorage
    # JPEG would lose what the dataset has.
    dataset = storage.new(os.path.join(folder, DATA), observation, action, data_format="hdf5", jpeg_encoding=False)
    dataset.update_metadata(metadata)

    def write_steps(stream: unfailing.Stream) -> None:
        # Minari opens the file at each call, by this: a path, for which h5py takes a stream too, unless it is empty.
        dataset._file_path = stream
        imported("h5py", WHO).File(stream, "w").close()
        dataset.update_episodes(_buffers(reader, fields, stream.check))
        # For an episode in several pieces Minari has noted only how long the last one is.
        dataset.update_episode_metadata({"total_steps": episode.steps} for episode in reader.description.summaries())

    unfailing.written(os.path.join(folder, DATA, FILE), write_steps)


def _identity(facts: Json, target: str) -> str:
    # What Minari calls the dataset: what the user says, else where it lies in Minari's folder, else its folder.
    folder = os.environ.get("MINARI_DATASETS_PATH") or os.path.join(os.path.expanduser("~"), ".minari", "datasets")
    inside = os.path.relpath(target, os.path.abspath(folder))
    identity = facts.get("dataset_id", os.path.basename(target) if inside.startswith(os.pardir) else inside)
    try:
        imported("minari.dataset.minari_dataset", WHO).parse_dataset_id(identity)
    except (ValueError, TypeError):  # TypeError: without a version
        raise ValueError(
            f"{WHO}: expected a folder whose name is an identity of Minari's, with a version, as 'doors-v0', got "
            f"{identity!r}; give another path, or facts={{'dataset_id': 'mine/doors-v0'}}"
        ) from None
    return str(identity)


def _buffers(reader: Stored, fields: Fields, check: Callable[[], None]) -> Iterator[object]:
    buffer = imported("minari.data_collector", WHO).EpisodeBuffer
    number, goes_on = 0, False
    for piece in reader.episodes():
        check()
        seed = None if goes_on else piece.about.get("seed")
        if seed is not None and type(seed) is not int:
            raise DatasetError(f"{WHO}: {reader.path}, seed: expected a whole number, got {seed!r:.60}")
        values = []
        for unit, leaf in zip(fields.units, fields.values(piece), strict=True):
            # The first observation of a piece that goes on was the last one of the piece before.
            rows = leaf[1:] if goes_on and unit.field == "observations" else leaf
            values.append(unit.spec.to_host(rows) if isinstance(unit.spec, Text) else rows)
        # A piece that goes on has the id of the piece before, to whose episode Minari appends it.
        yield buffer(
            id=number,
            seed=seed,
            rewards=piece.rewards,
            terminations=piece.terminated,
            truncations=piece.truncated,
            **fields.nests(values),
        )
        goes_on = piece.goes_on
        number += not goes_on
