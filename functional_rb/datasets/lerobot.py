"""LeRobot's datasets, of the versions 2.1 and 3.0: `lerobot:pusht`, or the path of a folder with `meta/info.json`.

A row has the observation, the action that was taken there, and what came of it, where the dataset tells (`next.reward`,
`next.done`, `next.success`). What the last action of an episode has led to was not recorded. Without rewards they are
zeros. Videos are left out unless a library is named that decodes them. Rows say which episode they are of, and what was
to be done: an episode is told with its tasks, and with the steps at which each begins.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.datasets import lerobot_videos
from functional_rb.datasets.by_rows import Path, RowReader, Whole, located
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats import images
from functional_rb.datasets.formats.json_files import json_object
from functional_rb.datasets.lerobot_episodes import INFO, Labels, Place, places, tasks_of
from functional_rb.datasets.parquet import Rows, bytes_of, numbers_of
from functional_rb.datasets.pieces import can_be_stored

REWARD, TIME = "next.reward", "timestamp"
# What may say that the last step led to a terminal state; the first one that the dataset has is believed.
ENDS = ("next.terminated", "next.success", "next.done")
FIELDS = {"observation": "observations", "action": "actions"}
FACTS = ("codebase_version", "robot_type", "fps")


class Lerobot(RowReader):
    """Reads a folder of LeRobot; images have their channels last."""

    def __init__(self, path: str, name: str, video: str | None) -> None:
        info = json_object(os.path.join(path, INFO), "metadata of LeRobot")
        if not isinstance(info.get("features"), dict):
            raise DatasetError(f"{path}, {INFO}: expected metadata of LeRobot in JSON: there are no features")
        features = {name: _feature(feature, f"{path}, {INFO}, {name}") for name, feature in info["features"].items()}
        kinds = ("video", "image") if video else ("image",)
        self._features = {name: x for name, x in features.items() if x[1] in kinds or _is_number(x[1])}
        if any(kind == "video" for _, kind in self._features.values()) and TIME not in self._features:
            raise DatasetError(f"{path}, {INFO}: expected numbers in {TIME!r}, which say where frames of videos are")
        self._video = video
        self._decoding()  # which refuses a library that is not there
        self._places, self._tasks = places(path, info), tasks_of(path)
        tables = dict.fromkeys(place.file for place in self._places)
        steps = sum(place.steps for place in self._places)
        super().__init__(name, [os.path.join(path, INFO), *tables], episodes=len(self._places), steps=steps)
        # The feature of each leaf: dots stand between the names of dicts in each other, but not in infos.
        self._names: dict[Path, str] = {}
        for name, (_, kind) in self._features.items():
            prefix, *rest = name.split(".")
            if prefix in FIELDS:
                self._names[FIELDS[prefix], *rest] = name
            elif name == REWARD or _is_number(kind):
                self._names[("rewards",) if name == REWARD else ("infos", name)] = name
        for prefix, field in FIELDS.items():
            names = [name for leaf, name in self._names.items() if leaf[0] == field]
            if not names:
                raise DatasetError(f"{path}, {INFO}: expected numbers or images in {prefix!r}, got {[*features]}")
            for outer, inner in ((outer, inner) for outer in names for inner in names if inner.startswith(f"{outer}.")):
                raise DatasetError(
                    f"{path}, {INFO}: expected values or a nest by the name {outer!r}, got {inner!r} beside it"
                )
        self.leaves = {}
        for leaf, name in self._names.items():
            shape, kind = self._features[name]
            self.leaves[leaf] = () if name == REWARD else shape, kind if _is_number(kind) else "uint8"
        self.facts = {key: info[key] for key in FACTS if key in info}
        if self._tasks:
            self.facts["tasks"] = {str(number): task for number, task in self._tasks.items()}
        self.facts["left out"] = sorted(set(features) - set(self._features))
        self.facts["rewards"] = "as recorded" if REWARD in features else "none: zeros"

    def wholes(self, first: int, most: int) -> Iterator[Whole]:
        columns = [name for name, (_, kind) in self._features.items() if kind != "video"]
        rows, labels = None, Labels(columns, self._tasks)
        with self._decoding() as decode:
            for place in self._places[first:]:
                # Episodes lie one after the other; where they do not, the table is read from its begin again.
                if rows is None or rows.path != place.file or rows.at > place.row:
                    rows = Rows(place.file, columns)
                yield self._episode(place, rows, labels.about(place), decode)

    def _decoding(self) -> AbstractContextManager[lerobot_videos.Decode | None]:
        if self._video is None:
            return contextlib.nullcontext()
        return lerobot_videos.decoding(self._video, [kind for _, kind in self._features.values()].count("video"))

    def _episode(
        self, place: Place, rows: Rows, about: Mapping[str, object], decode: lerobot_videos.Decode | None
    ) -> Whole:
        def read(path: Path, first: int, stop: int) -> NumpyArray:
            values = self._read(self._names[path], rows, place, first, stop, decode)
            return values.reshape(-1) if path == ("rewards",) else values

        def terminated(first: int, stop: int) -> NumpyArray:
            marks = np.zeros(stop - first)
            # Other rows are not looked at: a success may be marked before the end.
            if stop == place.steps and end is not None:
                marks[-1] = np.ravel(self._read(end, rows, place, first, stop, decode)[-1]).max()
            return marks

        end = next((name for name in ENDS if name in self._features), None)
        return Whole(place.steps, read, terminated, False, place.file, about)

    def _read(
        self, name: str, rows: Rows, place: Place, first: int, stop: int, decode: lerobot_videos.Decode | None
    ) -> NumpyArray:
        where = f"{place.file}, episode {place.number}, {name}"
        shape, kind = self._features[name]
        if kind == "video":
            assert decode is not None  # else there were no such feature
            times = numbers_of(rows.column(TIME, place.row + first, place.row + stop), (), where)
            return lerobot_videos.frames(decode, place.videos[name], times, shape, where)
        column = rows.column(name, place.row + first, place.row + stop)
        if kind == "image":
            return images.decoded(bytes_of(column, where), shape, "uint8", where)
        numbers = numbers_of(column, shape, where)
        if np.dtype(kind).kind == "f":
            return numbers
        # Tables of others have marks as 0 and 1, and counts as floats: they get the dtype of the
        # metadata, unless that changes one.
        with np.errstate(invalid="ignore"):
            converted = numbers.astype(kind)
        return converted if (converted == numbers).all() else numbers


def _is_number(kind: str) -> bool:
    try:
        return can_be_stored(np.dtype(kind))
    except TypeError:
        return False


def _feature(feature: object, where: str) -> tuple[tuple[int, ...], str]:
    # Shape and kind of a feature; of images with the channels last, as they are when decoded.
    known = feature if isinstance(feature, Mapping) else {}
    shape, kind, names = known.get("shape"), known.get("dtype"), known.get("names")
    if not isinstance(kind, str) or not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
        raise DatasetError(f"{where}: expected dtype and shape of a feature, got {feature!r:.200}")
    if kind in ("image", "video") and isinstance(names, list) and str(names[:1]).startswith("['channel"):
        shape = [*shape[1:], shape[0]]
    # A single number has an axis of one element in LeRobot. Observations and actions keep it: they are vectors.
    scalar = shape == [1] and not where.split(", ")[-1].startswith(("observation", "action"))
    return () if scalar else tuple(shape), kind


def open_lerobot(rest: str, root: str | None = None, *, video: str | None = None) -> Lerobot:
    """The reader of a dataset of LeRobot: its name, as "pusht", or the path of its folder.

    `video` is what decodes videos: "pyav", or "module:function" of what is called with a video's path and seconds
    float64 [n], which grow, and gives frames uint8 [n, height, width, 3]; None to leave them out.
    """
    path = located(
        "lerobot", rest, root, lambda place: place if os.path.isfile(os.path.join(place, INFO)) else None, INFO
    )
    return Lerobot(path, f"lerobot:{rest}", video)
