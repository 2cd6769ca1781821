"""Converted datasets as LeRobot's, of version 2.1 or 3.0: tables with a row for each step.

What the last action of an episode has led to has no place there. Images are in the tables, as PNG.
"""

from __future__ import annotations

import json

import numpy as np

from functional_rb.base.extras import imported
from functional_rb.base.strict_json import Json
from functional_rb.datasets.episode import DatasetError, Episode
from functional_rb.datasets.exporting.lerobot_features import COUNTED, Feature, feature_of
from functional_rb.datasets.exporting.lerobot_files import VERSIONS, Files
from functional_rb.datasets.exporting.steps import WHO, Fields
from functional_rb.datasets.statistics import Moments
from functional_rb.datasets.stored import Stored

# The facts that a dataset of LeRobot has. The task is for episodes of which the reader gave none.
FACTS = ("fps", "robot_type", "task")
# The columns of how a step went; infos of the same names are what another export has counted.
STEP = ("next.reward", "next.done", "next.terminated", "next.truncated")


def write(version: str, reader: Stored, facts: Json, target: str, folder: str) -> None:
    unknown = sorted(facts.keys() - FACTS)
    if unknown:
        raise ValueError(f"{WHO}: facts: expected some of {', '.join(FACTS)}, which LeRobot has, got {unknown}")
    known = {name: reader.facts[name] for name in FACTS[:2] if name in reader.facts} | dict(facts)
    fields, fps = Fields(reader), _fps(known)
    writing = _Writing(fields, reader.path, fps, str(known.get("task") or reader.name))
    files: Files = VERSIONS[version](folder, writing.features)
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
        "features": {feature.name: feature.metadata() for feature in writing.features},
    }
    files.finish(info, [*writing.tasks], writing.stats())


def _fps(facts: Json) -> float:
    fps = facts.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < np.inf:
        raise ValueError(
            f"{WHO}: fps: expected how many steps a second has, a number above 0, which LeRobot has to know, got "
            f"{fps!r}; give facts={{'fps': 10}}"
        )
    return int(fps) if fps == int(fps) else fps  # it has whole numbers


class _Writing:
    # The columns that the steps of a dataset become, and how far they have been written.

    def __init__(self, fields: Fields, path: str, fps: float, task: str) -> None:
        self._fields, self._fps, self._task = fields, fps, task
        of_units = [feature_of(unit) for unit in fields.units]
        self._counted = [
            unit.field == "infos" and feature.name in (*COUNTED, *STEP)
            for unit, feature in zip(fields.units, of_units, strict=True)
        ]
        self.features = [feature for feature, counted in zip(of_units, self._counted, strict=True) if not counted]
        dtypes = dict.fromkeys(STEP, "bool") | {STEP[0]: fields.reward} | COUNTED
        self.features += [Feature(name, (1,), dtype) for name, dtype in dtypes.items()]
        names = [feature.name for feature in self.features]
        for name in names:
            if names.count(name) > 1:
                raise DatasetError(
                    f"{WHO}: {path}: expected leaves that have names of their own in LeRobot, got {name!r} twice; "
                    f"rename one by Dataset.map"
                )
        arrow = imported("pyarrow", WHO)
        # The metadata by which the library `datasets` reads tables.
        read_by = {"info": {"features": {feature.name: feature.of_datasets() for feature in self.features}}}
        columns = [arrow.field(feature.name, feature.type()) for feature in self.features]
        self._schema = arrow.schema(columns, {"huggingface": json.dumps(read_by)})
        self.episode = self.index = self._begun = 0  # the last is the row with which the episode begins
        self.tasks: dict[str, int] = {}
        # The moments of each feature: in all episodes that have ended, and in the one that is being written.
        self._of_all: list[Moments] = []
        self._of_episode: list[Moments] = []

    def write(self, piece: Episode, files: Files) -> None:
        (tasks, runs), n = _tasks_of(piece, self._task), len(piece)
        index = np.arange(self.index, self.index + n, dtype=np.int64)
        frame = index - self._begun
        # Time begins anew with each episode.
        seconds, episode = (frame / self._fps).astype(np.float32), np.full(n, self.episode, np.int64)
        for task in tasks:
            self.tasks.setdefault(task, len(self.tasks))
        numbers = np.array([self.tasks[task] for _, task in runs], np.int64)
        task_index = numbers[np.searchsorted([step for step, _ in runs], frame, "right") - 1]
        values = [x for x, counted in zip(self._fields.values(piece), self._counted, strict=True) if not counted]
        values += [piece.rewards, piece.terminated | piece.truncated, piece.terminated, piece.truncated]
        values += [seconds, frame, episode, index, task_index]
        moments, arrays = [], []
        for feature, value in zip(self.features, values, strict=True):
            rows = np.asarray(value)[:n].reshape(n, *feature.shape)  # there is one observation more
            moments.append(feature.moments(rows))
            arrays.append(feature.column(rows))
        files.add(imported("pyarrow", WHO).Table.from_arrays(arrays, schema=self._schema))
        self._of_episode = _joined(self._of_episode, moments)
        self.index += n
        if not piece.goes_on:
            rows_of_episode = self.index - self._begun
            row = {"episode_index": self.episode, "tasks": tasks, "length": rows_of_episode}
            row |= {"dataset_from_index": self._begun, "dataset_to_index": self.index}
            files.end(row, self._stats(self._of_episode, rows_of_episode))
            self._of_all = _joined(self._of_all, self._of_episode)
            self.episode, self._begun, self._of_episode = self.episode + 1, self.index, []

    def stats(self) -> Json:
        return self._stats(self._of_all, self.index)

    def _stats(self, moments: list[Moments], rows: int) -> Json:
        return {feature.name: feature.stats(x, rows) for feature, x in zip(self.features, moments, strict=True)}


def _joined(moments: list[Moments], more: list[Moments]) -> list[Moments]:
    return [one.joined(other) for one, other in zip(moments, more, strict=True)] if moments else more


def _tasks_of(piece: Episode, usual: str) -> tuple[list[str], list[tuple[int, str]]]:
    # The tasks of an episode, and which of them begins at which step; `usual` if nobody says.
    named = piece.about.get("tasks")
    tasks = [str(task) for task in named] if isinstance(named, list) and named else [usual]
    later = piece.about.get("task_from_step") or ()
    runs = [(0, tasks[0]), *((int(step), str(task)) for step, task in later)]
    return list(dict.fromkeys([*tasks, *(task for _, task in runs)])), runs
