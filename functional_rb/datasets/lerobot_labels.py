"""What rows of LeRobot's tables say of themselves: the episode that each is of, and what was to be done there."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from functional_rb.base import files, strict_json
from functional_rb.datasets.episode import Array, DatasetError
from functional_rb.datasets.lerobot_places import Place
from functional_rb.datasets.parquet import Rows, numbers_of, table

EPISODE, TASK = "episode_index", "task_index"
LINES, TABLE = "meta/tasks.jsonl", "meta/tasks.parquet"
# The name that pandas gives to the column of an index that has none.
UNNAMED = "__index_level_0__"
# Rows that are looked at at a time.
CHUNK = 2**16


def tasks_of(folder: str) -> dict[int, str]:
    """The tasks of a dataset in words, by the numbers that rows have of them; none if there is no table of them."""
    lines, tables = (os.path.join(folder, name) for name in (LINES, TABLE))
    if os.path.lexists(tables):
        rows = table(tables, [TASK], ["task", UNNAMED])
        told = [(row[TASK], row.get("task", row.get(UNNAMED))) for row in rows]
    elif os.path.lexists(lines):
        try:
            found = [strict_json.parse(line) for line in files.read_text(lines).splitlines() if line.strip()]
            told = [(row[TASK], row["task"]) for row in found]
        except (files.UnusableFileError, ValueError, RecursionError, KeyError, TypeError) as error:
            raise DatasetError(f"{lines}: expected a line of JSON with task_index and task for each: {error}") from None
    else:
        return {}
    for number, task in told:
        if type(number) is not int or not isinstance(task, str):
            where = tables if os.path.lexists(tables) else lines
            raise DatasetError(f"{where}: expected a number and a text for each task, got {number!r:.60}, {task!r:.60}")
    return dict(told)


class Labels:
    """The labels of rows, read episode by episode."""

    def __init__(self, columns: Collection[str], tasks: Mapping[int, str]) -> None:
        """Read nothing yet.

        Args:
            columns: those that the tables have.
            tasks: in words, by their numbers.
        """
        wanted = [EPISODE, *([TASK] if tasks else ())]
        self._columns, self._tasks = [name for name in wanted if name in columns], tasks
        self._rows: Rows | None = None

    def about(self, place: Place) -> dict[str, Any]:
        """What is told of an episode.

        Returns:
            - tasks: in words, in the order in which the rows have them, and then those that only the metadata have.
            - task_from_step, where there are several in the rows: at which steps which of them begins.
        """
        runs: list[list[Any]] = []
        if self._columns and place.steps:
            rows = self._opened(place)
            if EPISODE in self._columns:
                self._check_border(rows, place, place.row - 1)
            for first in range(0, place.steps, CHUNK):
                stop = min(first + CHUNK, place.steps)
                if EPISODE in self._columns:
                    self._check(rows, place, first, stop)
                if TASK in self._columns:
                    runs += self._runs(rows, place, first, stop, runs[-1][1] if runs else None)
            if EPISODE in self._columns:
                self._check_border(rows, place, place.row + place.steps)
        tasks = list(dict.fromkeys([*(task for _, task in runs), *place.tasks]))
        return {"tasks": tasks, **({"task_from_step": runs} if len(runs) > 1 else {})}

    def _opened(self, place: Place) -> Rows:
        """The table that an episode is in, from the row before it on."""
        if self._rows is None or self._rows.path != place.file or self._rows.at > max(place.row - 1, 0):
            self._rows = Rows(place.file, self._columns)
        return self._rows

    def _check(self, rows: Rows, place: Place, first: int, stop: int) -> None:
        """Refuse steps [first, stop) whose rows are of another episode."""
        numbers = self._numbers(rows, EPISODE, place, place.row + first, place.row + stop)
        if np.any(others := numbers != place.number):
            row = int(others.argmax())
            raise DatasetError(
                f"{place.file}, row {place.row + first + row}: expected {EPISODE} {place.number}, as the metadata say "
                f"that rows {place.row} to {place.row + place.steps} are of it, got {numbers[row]}"
            )

    def _check_border(self, rows: Rows, place: Place, row: int) -> None:
        """Refuse a row beside those of an episode that is of it too."""
        if 0 <= row < rows.count and self._numbers(rows, EPISODE, place, row, row + 1)[0] == place.number:
            raise DatasetError(
                f"{place.file}, row {row}: it is of episode {place.number} too, of which the metadata say that "
                f"it has rows {place.row} to {place.row + place.steps}"
            )

    def _runs(self, rows: Rows, place: Place, first: int, stop: int, before: str | None) -> list[list[Any]]:
        """The steps in [first, stop) at which another task begins than the one before."""
        numbers = self._numbers(rows, TASK, place, place.row + first, place.row + stop)
        begins = np.concatenate([[0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1])
        made: list[list[Any]] = []
        for at in begins.tolist():
            number = int(numbers[at])
            if number not in self._tasks:
                raise DatasetError(
                    f"{place.file}, row {place.row + first + at}, {TASK}: expected one of the tasks in meta, which are "
                    f"{sorted(self._tasks)[:20]}, got {number}"
                )
            if self._tasks[number] != before:
                made.append([first + at, self._tasks[number]])
            before = self._tasks[number]
        return made

    @staticmethod
    def _numbers(rows: Rows, name: str, place: Place, first: int, stop: int) -> Array:
        return numbers_of(rows.column(name, first, stop), (), f"{place.file}, episode {place.number}, {name}")
