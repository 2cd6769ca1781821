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
from typing import Any

import numpy as np

from functional_rb.base import files, strict_json
from functional_rb.base.strict_json import Json
from functional_rb.datasets import lerobot_videos
from functional_rb.datasets.by_rows import Read, Whole, found, nested_read, nested_spec
from functional_rb.datasets.episode import Array, DatasetError, Episode, StepSpec
from functional_rb.datasets.formats import images
from functional_rb.datasets.lerobot_episodes import INFO, Labels, Place, places, tasks_of
from functional_rb.datasets.parquet import Rows, bytes_of, numbers_of
from functional_rb.datasets.pieces import can_be_stored, spec_of_values, steps_of_piece
from functional_rb.datasets.reader import Counts

REWARD, TIME = "next.reward", "timestamp"
# What may say that the last step led to a terminal state; the first one that the dataset has is believed.
ENDS = ("next.terminated", "next.success", "next.done")
TOLD = ("codebase_version", "robot_type", "fps")


class Lerobot:
    """Reads a folder of LeRobot; see `Reader` for the attributes."""

    def __init__(self, path: str, name: str, video: str | None) -> None:
        self.name, self._path = name, path
        info = _info(os.path.join(path, INFO))
        features = {name: _feature(told, f"{path}, {INFO}, {name}") for name, told in info["features"].items()}
        kinds = ("video", "image") if video else ("image",)
        self._features = {name: x for name, x in features.items() if x[1] in kinds or _is_number(x[1])}
        self._video = video
        self._decoding()  # it is there
        for part in ("observation", "action"):
            if not self._named(part):
                raise DatasetError(f"{path}, {INFO}: expected numbers or images in {part!r}, got {[*features]}")
        self._places, self._tasks = places(path, info), tasks_of(path)
        self.files = [os.path.join(path, INFO), *dict.fromkeys(place.file for place in self._places)]
        steps = sum(place.steps for place in self._places)
        self.counts = Counts(len(self._places), steps, sum(map(os.path.getsize, self.files)))
        self.facts: Json = {key: info[key] for key in TOLD if key in info}
        if self._tasks:
            self.facts["tasks"] = {str(number): task for number, task in self._tasks.items()}
        self.facts["left out"] = sorted(set(features) - set(self._features))
        self.facts["rewards"] = "as recorded" if REWARD in features else "none: zeros"

    def _named(self, part: str) -> dict[tuple[str, ...], str]:
        """The features of a part of steps, by their paths in it."""
        names = [name for name in self._features if name == part or name.startswith(f"{part}.")]
        return {tuple(name.split(".")[1:]): name for name in names}

    def _infos(self) -> list[str]:
        """The features that are of no part of a step, nor its reward."""
        parts = ("observation", "action")
        others = {name: kind for name, (_, kind) in self._features.items() if name.split(".")[0] not in parts}
        return [name for name, kind in others.items() if _is_number(kind) and name != REWARD]

    def spec(self, narrow: bool) -> StepSpec:
        """What the metadata say; images have their channels last."""

        def spec(name: str) -> Any:
            shape, kind = self._features[name]
            return spec_of_values(shape, kind if _is_number(kind) else "uint8", narrow)

        observation, action = (
            nested_spec({path: spec(name) for path, name in self._named(part).items()})
            for part in ("observation", "action")
        )
        reward = self._features[REWARD][1] if REWARD in self._features else "float32"
        infos = {name: spec(name) for name in self._infos()}
        return StepSpec(observation, action, spec_of_values((), reward, narrow), infos)

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        most = steps_of_piece(self.spec(narrow=False))
        columns = [name for name, (_, kind) in self._features.items() if kind != "video"]
        rows, labels = None, Labels(columns, self._tasks)
        with self._decoding() as decode:
            for place in self._places[first:]:
                if rows is None or rows.path != place.file or rows.at > place.row:
                    rows = Rows(place.file, columns)
                yield from self._episode(place, rows, labels.about(place), decode).pieces(most)

    def _decoding(self) -> AbstractContextManager[lerobot_videos.Decode | None]:
        if self._video is None:
            return contextlib.nullcontext()
        return lerobot_videos.decoding(self._video, [kind for _, kind in self._features.values()].count("video"))

    def _episode(
        self, place: Place, rows: Rows, about: Mapping[str, object], decode: lerobot_videos.Decode | None
    ) -> Whole:
        def read(name: str) -> Read:
            return lambda first, stop: self._read(name, rows, place, first, stop, decode)

        ends = next((name for name in ENDS if name in self._features), None)
        rewards = read(REWARD)
        return Whole(
            place.steps,
            nested_read({path: read(name) for path, name in self._named("observation").items()}),
            nested_read({path: read(name) for path, name in self._named("action").items()}),
            (lambda first, stop: rewards(first, stop).reshape(-1)) if REWARD in self._features else None,
            False,
            False,
            place.file,
            {name: read(name) for name in self._infos()},
            about,
            terminated_by=None if ends is None else read(ends),
        )

    def _read(
        self, name: str, rows: Rows, place: Place, first: int, stop: int, decode: lerobot_videos.Decode | None
    ) -> Array:
        """The values [stop - first, *shape] of a feature."""
        where = f"{place.file}, episode {place.number}, {name}"
        shape, kind = self._features[name]
        if kind == "video":
            assert decode is not None  # else there were no such feature
            times = numbers_of(rows.column(TIME, place.row + first, place.row + stop), (), where)
            return lerobot_videos.frames(decode, place.videos[name], times, shape, where)
        column = rows.column(name, place.row + first, place.row + stop)
        if kind == "image":
            return images.decoded(bytes_of(column, where), shape, "uint8", where)
        return numbers_of(column, shape, where).astype(kind)


def _is_number(kind: str) -> bool:
    try:
        return can_be_stored(np.dtype(kind))
    except TypeError:
        return False


def _feature(told: Any, where: str) -> tuple[tuple[int, ...], str]:
    """Shape and kind of a feature; of images with the channels last, as they are when decoded."""
    shape, kind = (told.get("shape"), told.get("dtype")) if isinstance(told, Mapping) else (None, None)
    if not isinstance(kind, str) or not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
        raise DatasetError(f"{where}: expected dtype and shape of a feature, got {told!r:.200}")
    names = told.get("names")
    if kind in ("image", "video") and isinstance(names, list) and str(names[:1]).startswith("['channel"):
        shape = [*shape[1:], shape[0]]
    scalar = shape == [1] and not where.split(", ")[-1].startswith(("observation", "action"))
    return () if scalar else tuple(shape), kind


def _info(path: str) -> Json:
    try:
        info = strict_json.parse(files.read_text(path))
        if isinstance(info, dict) and isinstance(info.get("features"), dict):
            return info
        raise ValueError("there are no features")
    except (files.UnusableFileError, ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: expected metadata of LeRobot in JSON: {error}") from None


def open_lerobot(rest: str, root: str | None = None, *, video: str | None = None) -> Lerobot:
    """The reader of a dataset of LeRobot.

    Args:
        rest: its name, as "pusht", or the path of its folder.
        root: the folder where datasets lie.
        video: what decodes videos: "pyav", or "module:function" of what is called with a video's path and seconds
            float64 [n], which grow, and gives frames uint8 [n, height, width, 3]; None to leave them out.

    Raises:
        FileNotFoundError: if it is nowhere, saying where that is.
        DatasetError: for a folder of something else.
        ImportError: for a library that is missing.
    """
    path = found("lerobot", rest, root, lambda place: os.path.isfile(os.path.join(place, INFO)), INFO)
    return Lerobot(path, f"lerobot:{rest}", video)
