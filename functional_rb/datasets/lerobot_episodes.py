"""The episodes of a dataset of LeRobot: where they lie, and what was to be done in them.

They lie in files of their own (2.1), or side by side in larger ones (3.0), as the metadata say. Rows of tables say too
which episode they are of, and what was to be done there.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.strict_json import Json
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.fetching.paths import checked
from functional_rb.datasets.formats.json_files import json_lines
from functional_rb.datasets.parquet import Rows, numbers_of, table

FROM, TO = "dataset_from_index", "dataset_to_index"
INFO, EPISODES, EPISODE_TABLES = "meta/info.json", "meta/episodes.jsonl", "meta/episodes/chunk-*/file-*.parquet"
EPISODE, TASK = "episode_index", "task_index"
TASKS, TASK_TABLE = "meta/tasks.jsonl", "meta/tasks.parquet"
# The name that pandas gives to the column of an index that has none.
UNNAMED = "__index_level_0__"


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an episode lies."""

    number: int  # the episode's number
    steps: int  # how many rows it has
    file: str  # the table that it is in
    row: int  # the first of its rows there
    tasks: list[str]  # what was to be done, in words
    # For each feature that is a video: its file, and the second at which the episode begins there.
    videos: Mapping[str, tuple[str, float]]


def places(folder: str, info: Json) -> list[Place]:
    version = str(info.get("codebase_version"))
    videos = [name for name, feature in info["features"].items() if feature.get("dtype") == "video"]
    read = {"v2.": _version_2, "v3.": _version_3}.get(version[:3])
    if read is None:
        raise DatasetError(f"{folder}/{INFO}: codebase_version: expected v2.0, v2.1 or v3.0, got {version!r}")
    try:
        episodes = list(read(folder, info, videos))
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise DatasetError(f"{folder}: expected metadata of LeRobot, {error!r} is missing or of another kind") from None
    for k, place in enumerate(episodes):
        where = f"{folder}, episode {place.number}"
        for name, number in (("episode_index", place.number), ("length", place.steps), (FROM, place.row)):
            if type(number) is not int or number < 0:
                what = "how many rows" if name == "length" else "a number from 0 on"
                raise DatasetError(f"{where}: {name}: expected {what}, got {number!r:.60}")
        # They are in the order of their numbers.
        if k and episodes[k - 1].number == place.number:
            raise DatasetError(f"{where}: the metadata have it twice, expected each episode once")
    return episodes


def _version_2(folder: str, info: Json, videos: list[str]) -> Iterator[Place]:
    rows = json_lines(os.path.join(folder, EPISODES), "the metadata of each episode")
    for row in sorted(rows, key=lambda row: row["episode_index"]):
        k = row["episode_index"]
        numbers = {"episode_index": k, "episode_chunk": k // info.get("chunks_size", 1000)}
        paths = {name: (_path(folder, info["video_path"], {**numbers, "video_key": name}), 0.0) for name in videos}
        yield Place(k, row["length"], _path(folder, info["data_path"], numbers), 0, row.get("tasks", []), paths)


def _version_3(folder: str, info: Json, videos: list[str]) -> Iterator[Place]:
    names = ["episode_index", "length", "tasks", "data/chunk_index", "data/file_index"]
    columns = ("chunk_index", "file_index", "from_timestamp")
    names += [f"videos/{name}/{column}" for name in videos for column in columns]
    rows: list[Json] = []
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), EPISODE_TABLES))):
        rows += table(path, names, [FROM, TO])
    rows.sort(key=lambda row: row["episode_index"])
    data = [_path(folder, info["data_path"], {column: row[f"data/{column}"] for column in columns[:2]}) for row in rows]
    for row, file, first in zip(rows, data, _first_rows(rows, data, folder), strict=True):
        paths = {}
        for name in videos:
            numbers = {column: row[f"videos/{name}/{column}"] for column in columns[:2]}
            path = _path(folder, info["video_path"], {**numbers, "video_key": name})
            paths[name] = (path, float(row[f"videos/{name}/from_timestamp"]))
        yield Place(row["episode_index"], row["length"], file, first, list(row["tasks"]), paths)


def _first_rows(rows: list[Json], data: list[str], folder: str) -> list[int]:
    # Where episodes begin in their tables.
    # Rows are numbered through all tables, and each table begins with an episode. Where the numbers are not told, the
    # episodes of a table lie in the order of their numbers.
    firsts: list[int] = []
    if any(row.get(FROM) is None or row.get(TO) is None for row in rows):
        ends: dict[str, int] = {}
        for row, file in zip(rows, data, strict=True):
            firsts.append(ends.get(file, 0))
            ends[file] = firsts[-1] + row["length"]
        return firsts
    begins: dict[str, int] = {}
    for row, file in zip(rows, data, strict=True):
        if row[TO] - row[FROM] != row["length"]:
            raise DatasetError(
                f"{folder}, episode {row['episode_index']}: length: expected {TO} - {FROM}, which is {row[TO]} - "
                f"{row[FROM]}, got {row['length']!r:.60}"
            )
        begins[file] = min(begins.get(file, row[FROM]), row[FROM])
    return [row[FROM] - begins[file] for row, file in zip(rows, data, strict=True)]


def _path(folder: str, template: str, values: Mapping[str, object]) -> str:
    # The path that a template such as "data/chunk-{chunk_index:03d}/file.parquet" stands for.
    def filled(match: re.Match[str]) -> str:
        value = values[match[1]]
        return f"{value:0{int(match[2] or 0)}d}" if isinstance(value, int) else str(value)

    name = re.sub(r"\{(\w+)(?::0?(\d{1,2})d)?\}", filled, template)
    try:
        return os.path.join(folder, *checked(name).split("/"))
    except ValueError as error:
        raise DatasetError(f"{folder}/{INFO}: {template!r}: {error}") from None


def tasks_of(folder: str) -> dict[int, str]:
    """The tasks of a dataset in words, by the numbers that rows have of them; none if there is no table of them."""
    lines, tables = (os.path.join(folder, name) for name in (TASKS, TASK_TABLE))
    if os.path.lexists(tables):
        rows = table(tables, [TASK], ["task", UNNAMED])
        pairs = [(row[TASK], row.get("task", row.get(UNNAMED))) for row in rows]
    elif os.path.lexists(lines):
        pairs = [(row.get(TASK), row.get("task")) for row in json_lines(lines, "each task with its number")]
    else:
        return {}
    tasks: dict[int, str] = {}
    for number, task in pairs:
        if type(number) is not int or not isinstance(task, str):
            where = tables if os.path.lexists(tables) else lines
            raise DatasetError(f"{where}: expected a number and a text for each task, got {number!r:.60}, {task!r:.60}")
        tasks[number] = task
    return tasks


class Labels:
    """What rows say of the episode that they are of, and of what was to be done, read episode by episode."""

    def __init__(self, columns: Collection[str], tasks: Mapping[int, str]) -> None:
        wanted = [EPISODE, *([TASK] if tasks else ())]
        self._columns, self._tasks = [name for name in wanted if name in columns], tasks
        self._rows: Rows | None = None

    def about(self, place: Place) -> Json:
        """The facts of an episode, of which the rows have to be, and no others.

        - tasks: in words, in the order in which the rows have them, and then those that only the metadata have.
        - task_from_step, where there are several in the rows: at which steps which of them begins.
        """
        runs: list[tuple[int, str]] = []
        if self._columns and place.steps:
            # Reading begins with the row before the episode, which has to be of another one.
            before = max(place.row - 1, 0)
            if self._rows is None or self._rows.path != place.file or self._rows.at > before:
                self._rows = Rows(place.file, self._columns)
            if EPISODE in self._columns:
                self._check_episode(self._rows, place, before)
            if TASK in self._columns:
                runs = self._runs(self._rows, place)
        tasks = list(dict.fromkeys([*(task for _, task in runs), *place.tasks]))
        return {"tasks": tasks, **({"task_from_step": list(map(list, runs))} if len(runs) > 1 else {})}

    def _check_episode(self, rows: Rows, place: Place, before: int) -> None:
        # Refuse rows of another episode, and rows beside them that are of it too.
        stop = place.row + place.steps
        numbers = _numbers(rows, EPISODE, place, before, max(stop, min(stop + 1, rows.count)))
        inside = numbers[place.row - before :][: place.steps]
        if np.any(others := inside != place.number):
            row = int(others.argmax())
            raise DatasetError(
                f"{place.file}, row {place.row + row}: expected {EPISODE} {place.number}, as the metadata say that "
                f"rows {place.row} to {stop} are of it, got {inside[row]}"
            )
        for row in (place.row - 1, stop):
            if row >= 0 and row - before < len(numbers) and numbers[row - before] == place.number:
                raise DatasetError(
                    f"{place.file}, row {row}: it is of episode {place.number} too, of which the metadata say that it "
                    f"has rows {place.row} to {stop}"
                )

    def _runs(self, rows: Rows, place: Place) -> list[tuple[int, str]]:
        # The steps at which another task begins, with the task.
        numbers = _numbers(rows, TASK, place, place.row, place.row + place.steps)
        runs: list[tuple[int, str]] = []
        for at in [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()]:
            task = self._tasks.get(int(numbers[at]))
            if task is None:
                raise DatasetError(
                    f"{place.file}, row {place.row + at}, {TASK}: expected one of the tasks in meta, which are "
                    f"{sorted(self._tasks)[:20]}, got {numbers[at]}"
                )
            # Two numbers may stand for the same words.
            if not runs or runs[-1][1] != task:
                runs.append((at, task))
        return runs


def _numbers(rows: Rows, name: str, place: Place, first: int, stop: int) -> NumpyArray:
    return numbers_of(rows.column(name, first, stop), (), f"{place.file}, episode {place.number}, {name}")
