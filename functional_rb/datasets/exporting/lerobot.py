"""Converted datasets as LeRobot's, of version 2.1 or 3.0: tables with a row for each step.

What the last action of an episode has led to has no place there. Images are in the tables, as PNG.
"""

from __future__ import annotations

import json

import numpy as np

from functional_rb.base.extras import imported
from functional_rb.base.strict_json import Json
from functional_rb.datasets.episode import Episode
from functional_rb.datasets.exporting.lerobot_features import COUNTED, Features
from functional_rb.datasets.exporting.lerobot_files import VERSIONS, Files
from functional_rb.datasets.exporting.steps import WHO, Fields
from functional_rb.datasets.statistics import Moments
from functional_rb.datasets.stored import Stored

# The facts that a dataset of LeRobot has. The task is for episodes of which the reader gave none.
FACTS = ("fps", "robot_type", "task")
Found = dict[str, Moments]


def write(version: str, reader: Stored, facts: Json, target: str, folder: str) -> None:
    """Write a dataset of version "v2.1" or "v3.0" to a folder, with what the user tells of it."""
    unknown = sorted(facts.keys() - FACTS)
    if unknown:
        raise ValueError(f"{WHO}: facts: expected some of {', '.join(FACTS)}, which LeRobot has, got {unknown}")
    known = {name: reader.facts[name] for name in FACTS[:2] if name in reader.facts} | dict(facts)
    features = Features(Fields.of(reader), reader.spec(narrow=False).reward.dtype)
    fps = _fps(known)
    writing = _Writing(features, fps, str(known.get("task") or reader.name))
    files: Files = VERSIONS[version](folder, features.all)
    for piece in reader.episodes():
        writing.write(piece, files)
    info = {
        "robot_type": known.get("robot_type"),
        "fps": fps,
        "total_episodes": writing.episode,
        "total_frames": writing.index,
        "total_tasks": len(writing.tasks),
        "splits": {"train": f"0:{writing.episode}"},
        "video_path": None,
        "features": {feature.name: feature.told() for feature in features.all},
    }
    files.finish(info, [*writing.tasks], _stats(features, writing.all, writing.index))


def _fps(facts: Json) -> float:
    fps = facts.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < np.inf:
        raise ValueError(
            f"{WHO}: fps: expected how many steps a second has, a number above 0, which LeRobot has to know, got "
            f"{fps!r}; give facts={{'fps': 10}}"
        )
    return int(fps) if fps == int(fps) else fps  # it has whole numbers


class _Writing:
    def __init__(self, features: Features, fps: float, task: str) -> None:
        self._features, self._fps, self._task = features, fps, task
        arrow = imported("pyarrow", WHO)
        # What the library `datasets` reads tables by.
        read_by = {"info": {"features": {feature.name: feature.of_datasets() for feature in features.all}}}
        fields = [arrow.field(feature.name, feature.type()) for feature in features.all]
        self.schema = arrow.schema(fields, {"huggingface": json.dumps(read_by)})
        self.episode = self.index = 0
        self.tasks: dict[str, int] = {}
        self.all: Found = {}
        self._own: Found = {}
        self._begun = 0  # the row with which the episode begins

    def write(self, piece: Episode, files: Files) -> None:
        (tasks, runs), features, n = _tasks_of(piece, self._task), self._features, len(piece)
        index = np.arange(self.index, self.index + n, dtype=np.int64)
        frame = index - self._begun
        # Time begins anew with each episode.
        seconds, episode = (frame / self._fps).astype(np.float32), np.full(n, self.episode, np.int64)
        for task in tasks:
            self.tasks.setdefault(task, len(self.tasks))
        numbers = np.array([self.tasks[task] for _, task in runs], np.int64)
        task_index = numbers[np.searchsorted([step for step, _ in runs], frame, "right") - 1]
        counted = (seconds, frame, episode, index, task_index)
        columns = dict(features.values(piece))
        columns |= zip(features.all[-len(COUNTED) :], (column.reshape(n, 1) for column in counted), strict=True)
        for feature, values in columns.items():
            _join(self._own, feature.name, feature.moments(values))
        arrays = [feature.column(columns[feature]) for feature in features.all]
        files.add(imported("pyarrow", WHO).Table.from_arrays(arrays, schema=self.schema))
        self.index += n
        if not piece.goes_on:
            rows = self.index - self._begun
            row = {"episode_index": self.episode, "tasks": tasks, "length": rows}
            row |= {"dataset_from_index": self._begun, "dataset_to_index": self.index}
            files.end(row, _stats(features, self._own, rows))
            for name, moments in self._own.items():
                _join(self.all, name, moments)
            self.episode, self._begun, self._own = self.episode + 1, self.index, {}


def _tasks_of(piece: Episode, usual: str) -> tuple[list[str], list[tuple[int, str]]]:
    # What was to be done in an episode: all of it, and from which steps on which of it; the usual if nobody says.
    named = piece.about.get("tasks")
    tasks = [str(task) for task in named] if isinstance(named, list) and named else [usual]
    later = piece.about.get("task_from_step") or ()
    runs = [(0, tasks[0]), *((int(step), str(task)) for step, task in later)]
    return list(dict.fromkeys([*tasks, *(task for _, task in runs)])), runs


def _join(by_name: Found, name: str, moments: Moments) -> None:
    by_name[name] = by_name[name].joined(moments) if name in by_name else moments


def _stats(features: Features, by_name: Found, rows: int) -> Json:
    return {feature.name: feature.stats(by_name[feature.name], rows) for feature in features.all}
