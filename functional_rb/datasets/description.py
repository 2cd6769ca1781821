"""`dataset.json`: what lies in the directory of a converted dataset. It is written last: where it is, all is."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator

import numpy as np

from functional_rb.base import files, strict_json
from functional_rb.base.arrays import NumpyArray
from functional_rb.base.strict_json import Json
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.buffer.storage_kinds import Memmap
from functional_rb.convert.json import from_json, to_json
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.rows import spec_of_item
from functional_rb.specs import Composite
from functional_rb.storage import disk
from functional_rb.structures.ring import INT32_MAX

DESCRIPTION = "dataset.json"
# Behind the path of a dataset, that of the directory in which it is made.
PART = ".part"
FORMAT = 1
EPISODES, ABOUT = "episodes.bin", "about.jsonl"
Path = str | os.PathLike[str]
# Where a converted dataset is: its directory, or a state that `datasets.load` gave, which stands for its files.
Source = Path | State
# A row of `episodes.bin`: the slot of the first step, the steps, the sum of the rewards, whether it led to an end.
EPISODE = np.dtype([("first", "<i8"), ("steps", "<i8"), ("total", "<f8"), ("terminated", "<i8")])
# The fields of a `Description` that are written as they are, and what each may be.
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("steps", "episodes", "frames", "dropped"), (int,)),
    "name": (str,),
    "spare": (int, type(None)),
    "options": (dict,),
    "facts": (dict,),
}


@dataclasses.dataclass(frozen=True)
class Summary:
    """What is known of a stored episode without reading its steps.

    Attributes:
        number: the episode's place in the order of the dataset, from 0 on.
        first: the slot of its first step.
        steps: how many steps.
        total: the sum of its rewards: its return.
        terminated: whether it led to a terminal state.
        about: what the reader has told of it, its seed, say.
    """

    number: int
    first: int
    steps: int
    total: float
    terminated: bool
    about: Json


@dataclasses.dataclass(frozen=True, eq=False)
class Description:
    """What `dataset.json` says of a converted dataset; see `Dataset` for the attributes."""

    name: str
    item: Composite
    steps: int
    episodes: int
    spare: int | None
    frames: int
    dropped: int
    options: Json
    facts: Json
    path: str

    def summaries(self) -> Iterator[Summary]:
        """A summary of each episode, in their order."""
        rows = table_of(self).tolist()
        with open(os.path.join(self.path, ABOUT), "rb") as lines:
            for number, (first, steps, total, terminated) in enumerate(rows):
                about = about_of(self, number, lines.readline())
                yield Summary(number, first, steps, total, bool(terminated), about)


def about_of(description: Description, number: int, line: bytes) -> Json:
    """What the reader has told of an episode, of its line in `about.jsonl`."""
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(about := json.loads(line), dict):
            return about
    path = os.path.join(description.path, ABOUT)
    raise DatasetError(f"{path}: expected in line {number} what is known of that episode, got {line!r:.60}; damaged")


def table_of(description: Description) -> NumpyArray:
    """A row for each episode, of the dtype `EPISODE`."""
    path = os.path.join(description.path, EPISODES)
    # Not by the number that the description tells: memory would be taken before the file turned out to be shorter.
    table = np.fromfile(path, EPISODE)
    steps, wanted = table["steps"], description.episodes
    # Others read steps from where the table says that they lie: episodes lie one after the other.
    if len(table) != wanted or (steps < 1).any() or (table["first"] != np.cumsum(steps) - steps).any():
        raise DatasetError(f"{path}: expected {wanted} episodes, one after the other; the file is damaged")
    if steps.sum() != description.steps:
        raise DatasetError(f"{path}: expected episodes of {description.steps} steps in all, got {steps.sum()}; damaged")
    return table


def spec_of(description: Description, **more: object) -> BufferSpec:
    """The spec of the dataset's buffer, with fields of the spec."""
    return spec_of_item(description.item, description.steps, description.spare, **more)


def write_description(description: Description, directory: str) -> None:
    content = {"format": FORMAT, "byteorder": sys.byteorder, "item": json.loads(to_json(description.item))}
    content |= {name: getattr(description, name) for name in FIELDS}
    with disk.create(os.path.join(directory, DESCRIPTION)) as file:
        disk.write(file.fd, json.dumps(content, indent=1).encode())
        disk.fsync(file.fd)


def directory_of(source: Source, who: str) -> str:
    if not isinstance(source, State):
        return os.path.abspath(files.as_path(source, who))
    storage = source.spec.storage
    if not isinstance(storage, Memmap) or storage.path is None:
        raise ValueError(
            f"{who}: expected the directory of a converted dataset, or a state as datasets.load gives it, got a state "
            f"in {storage!r}"
        )
    return os.path.abspath(storage.path)


def is_dataset(directory: Path) -> bool:
    return os.path.isfile(os.path.join(directory, DESCRIPTION))


def read_description(directory: str) -> Description:
    path = os.path.join(directory, DESCRIPTION)
    try:
        content = strict_json.parse(files.read_text(path))
        # The rows are mapped as they are, so that a machine with another order of bytes cannot read them.
        format_, byteorder, item = content.pop("format"), content.pop("byteorder"), content.pop("item")
        if (format_, byteorder) != (FORMAT, sys.byteorder):
            raise DatasetError(
                f"{path}: expected format {FORMAT}, {sys.byteorder}-endian, got {format_!r}, {byteorder!r}; install a "
                f"newer functional_rb, or convert the dataset again"
            )
        described = Description(item=from_json(json.dumps(item)), path=os.path.abspath(directory), **content)
        for name, kinds in FIELDS.items():
            value = content[name]
            if type(value) not in kinds or (type(value) is int and value < 0):
                raise ValueError(f"{name} is {value!r:.60}")
        if not 0 < described.steps <= INT32_MAX or described.frames > described.steps + (described.spare or 0):
            raise ValueError(f"{described.steps} steps and {described.frames} frames")
        return described
    except FileNotFoundError:
        remedy = "datasets.convert makes one of a reader, datasets.load one by its name"
        unfinished = f"{directory.removesuffix(PART)}{PART}"
        if os.path.isdir(unfinished):
            remedy = f"{unfinished} is an unfinished one: the call that began it finishes it"
        raise DatasetError(f"{directory}: no converted dataset is there; {remedy}") from None
    except DatasetError:
        raise
    except (files.UnusableFileError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DatasetError(f"{path}: expected the description of a dataset, got something else: {error}") from None
