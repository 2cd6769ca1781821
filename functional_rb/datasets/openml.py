"""Tables of OpenML as contextual bandits: `openml:covertype`, or the path of a file in ARFF or Parquet.

Each row is an episode of one step: what the table tells of a case is the observation, the class that it is of is the
action, and the reward of that is 1. An environment made of such a table gives no reward for other actions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from functional_rb.datasets.by_rows import found
from functional_rb.datasets.episode import Array, DatasetError, Episode, StepSpec
from functional_rb.datasets.openml_tables import Arff, Column, Parquet
from functional_rb.datasets.reader import Counts
from functional_rb.specs import Categorical, Unbounded

ENDINGS = (".arff", ".arff.gz", ".pq", ".parquet")


class OpenMl:
    """Reads a table of OpenML; see `Reader` for the attributes."""

    def __init__(self, path: str, name: str, target: str | None, one_hot: bool) -> None:
        self.name, self.files, self._one_hot = name, [path], one_hot
        self._table = Arff(path) if ".arff" in os.path.basename(path) else Parquet(path)
        choices = {column.name: k for k, column in enumerate(self._table.columns) if column and column.choices}
        chosen = target if target is not None else next((x for x in choices if x.lower() == "class"), None)
        if chosen is None and choices and max(choices.values()) == len(self._table.columns) - 1:
            chosen = next(reversed(choices))
        if chosen not in choices:
            raise DatasetError(
                f"{path}: target: expected one of the columns of words {[*choices][:30]}, got {chosen!r}"
            )
        self._target = choices[chosen]
        self._used = [(k, column) for k, column in enumerate(self._table.columns) if column and k != self._target]
        self._actions = len(self._choices(self._table.columns[self._target]))
        self.counts = Counts(nbytes=os.path.getsize(path))
        self.facts: dict[str, Any] = {
            "actions": list(self._choices(self._table.columns[self._target])),
            "features": [name for _, column in self._used for name in self._names(column)],
        }

    def _choices(self, column: Column | None) -> tuple[str, ...]:
        return column.choices if column is not None and column.choices else ()

    def _names(self, column: Column) -> list[str]:
        """The names of what a column gives: a number, or one for each choice."""
        if column.choices and self._one_hot:
            return [f"{column.name}={word}" for word in column.choices]
        return [column.name]

    def spec(self, narrow: bool) -> StepSpec:
        """Numbers, and choices as their numbers or one-hot."""
        number = "float32" if narrow else "float64"
        action = Categorical(self._actions, dtype="int32" if narrow else "int64")
        return StepSpec(Unbounded((len(self.facts["features"]),), number), action, Unbounded((), "float32"))

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """Row by row. Those whose class is missing are left out."""
        reward, done, not_cut, at = np.ones(1, np.float32), np.ones(1, bool), np.zeros(1, bool), 0
        for columns in self._table.batches():
            actions = columns[self._target]
            kept = actions >= 0
            features = np.concatenate([self._part(columns[k], column) for k, column in self._used], 1)[kept]
            actions = actions[kept]
            for k in range(max(first - at, 0), len(actions)):
                after = features[[k, k]]  # there is none, and nobody looks at it
                action = actions[k : k + 1]
                yield Episode(after, action, reward, done, not_cut, final_observed=False, file=self.files[0])
            at += len(actions)

    def _part(self, values: Array, column: Column) -> Array:
        """The features [n, k] of a column."""
        if column.choices is None:
            return values[:, None]
        if self._one_hot:
            return (values[:, None] == np.arange(len(column.choices))).astype(np.float64)
        return np.where(values < 0, np.nan, values)[:, None]


def open_openml(rest: str, root: str | None = None, *, target: str | None = None, one_hot: bool = False) -> OpenMl:
    """The reader of a table of OpenML.

    Args:
        rest: its name, as "covertype", or the path of its file.
        root: the folder where datasets lie: below it `openml/covertype` with a file in it.
        target: the column with the classes; None for the one of the name "class", or the last one.
        one_hot: whether words are features of their own, 0 or 1, in place of their numbers. Missing words are zeros
            then, else NaN.

    Raises:
        FileNotFoundError: if it is nowhere, saying where that is.
        DatasetError: for a file of something else.
    """
    path = found("openml", rest, root, lambda place: _file(place) is not None, f"a file {', '.join(ENDINGS)}")
    return OpenMl(_file(path) or path, f"openml:{rest}", target, one_hot)


def _file(place: str) -> str | None:
    if os.path.isfile(place):
        return place
    names = sorted(os.listdir(place)) if os.path.isdir(place) else []
    tables = [name for name in names if name.endswith(ENDINGS)]
    return os.path.join(place, tables[0]) if tables else None
