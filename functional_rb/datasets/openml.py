"""Tables of OpenML as contextual bandits: `openml:covertype`, or the path of a file in ARFF or Parquet.

Each row is an episode of one step: what the table tells of a case is the observation, the class that it is of is the
action, and the reward of that is 1. An environment made of such a table gives no reward for other actions. Columns are
of numbers, or of choices among some words.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import re
from collections.abc import Iterator, Sequence

import numpy as np

from functional_rb.base.extras import imported
from functional_rb.base.strict_json import Json
from functional_rb.datasets.by_rows import located
from functional_rb.datasets.episode import Array, DatasetError, Episode, StepSpec
from functional_rb.datasets.formats import streams
from functional_rb.datasets.formats.streams import BLOCK, Inflated
from functional_rb.datasets.parquet import Rows
from functional_rb.specs import Categorical, Unbounded

ENDINGS = (".arff", ".arff.gz", ".pq", ".parquet")
# Rows that are read at a time.
BATCH = 4096
TOKEN = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^,]*?))\s*(?:,|$)""")
ATTRIBUTE = re.compile(r"""@attribute\s+(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|(\S+))\s+(.*)""", re.IGNORECASE)
NUMBERS = ("numeric", "real", "integer")
# Characters that a line may have.
LINE = 2**20
# Bytes that may come out of a table that is gzipped.
LIMIT = 2**40


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
        features: list[str] = []  # of each column its name, or one for each choice
        for _, column in self._used:
            words = column.choices if one_hot else None
            features += [f"{column.name}={word}" for word in words] if words else [column.name]
        target_column = self._table.columns[self._target]
        assert target_column is not None and target_column.choices is not None  # as all in `choices`
        self.counts = {"bytes": os.path.getsize(path)}
        self.facts: Json = {"actions": list(target_column.choices), "features": features}

    def spec(self, narrow: bool) -> StepSpec:
        """Numbers, and choices as their numbers or one-hot."""
        number = "float32" if narrow else "float64"
        action = Categorical(len(self.facts["actions"]), dtype="int32" if narrow else "int64")
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

    def table(place: str) -> str | None:
        if os.path.isfile(place):
            return place
        names = sorted(os.listdir(place)) if os.path.isdir(place) else []
        return next((os.path.join(place, name) for name in names if name.endswith(ENDINGS)), None)

    path = located("openml", rest, root, table, f"a file {', '.join(ENDINGS)}")
    return OpenMl(path, f"openml:{rest}", target, one_hot)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: of the column.
        choices: the words that stand in it; None for numbers.
    """

    name: str
    choices: tuple[str, ...] | None = None


class Arff:
    """A table in ARFF, maybe gzipped.

    Attributes:
        columns: by their places; None for those of texts and dates, which are not read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.columns: list[Column | None] = []
        with self._lines() as lines:
            for line in lines:
                if line.lower().startswith("@data"):
                    break
                if line.lower().startswith("@attribute"):
                    self.columns.append(self._column(line))
            else:
                raise DatasetError(f"{path}: expected a table in ARFF, there is no @data in it")

    @contextlib.contextmanager
    def _lines(self) -> Iterator[Iterator[str]]:
        with streams.opened(self._path) as file:
            content = io.BufferedReader(Inflated(file, LIMIT, self._path), BLOCK)
            text = io.TextIOWrapper(content, encoding="utf-8")
            lines = (line.strip() for line in iter(lambda: text.readline(LINE), ""))
            try:
                yield (line for line in lines if line and not line.startswith("%"))
            except UnicodeDecodeError as error:
                raise DatasetError(f"{self._path}: expected a table in ARFF: {error}") from None

    def _column(self, line: str) -> Column | None:
        found = ATTRIBUTE.fullmatch(line)
        if found is None:
            raise DatasetError(f"{self._path}: expected the name and the kind of an attribute, got {line!r:.200}")
        name, kind = next(part for part in found.groups()[:3] if part is not None), found[4].strip()
        if kind.lower() in NUMBERS:
            return Column(name)
        if kind.startswith("{") and kind.endswith("}"):
            return Column(name, tuple(str(word) for word in _words(kind[1:-1], self._path)))
        return None

    def batches(self) -> Iterator[list[Array]]:
        """The columns of some rows: numbers float64 [n], NaN if missing; choices int64 [n], -1 if missing."""
        codes = [_codes(column) for column in self.columns]
        with self._lines() as lines:
            data = itertools.dropwhile(lambda line: not line.lower().startswith("@data"), lines)
            next(data)
            number = 0
            while rows := [self._row(line, number + k) for k, line in enumerate(itertools.islice(data, BATCH))]:
                columns = zip(self.columns, codes, zip(*rows, strict=True), strict=True)
                yield [self._values(*column, number) for column in columns]
                number += len(rows)

    def _row(self, line: str, number: int) -> list[str | None]:
        row = _words(line, f"{self._path}, row {number}")
        if len(row) != len(self.columns):
            raise DatasetError(
                f"{self._path}, row {number}: expected {len(self.columns)} values, got {len(row)}; tables of sparse "
                f"rows are not read"
            )
        return row

    def _values(
        self, column: Column | None, codes: dict[str, int] | None, values: Sequence[str | None], first: int
    ) -> Array:
        if column is None:
            return np.zeros(len(values))
        try:
            if codes is None:
                return np.array([np.nan if value is None else float(value) for value in values])
            return np.array([-1 if value is None else codes[value] for value in values])
        except (ValueError, KeyError) as error:
            raise DatasetError(f"{self._path}, rows from {first} on, {column.name!r}: {error!r} is not told") from None


class Parquet:
    """A table in Parquet; words are counted in the order in which they come.

    Attributes:
        columns: by their places; None for those that are neither numbers nor words.
    """

    def __init__(self, path: str) -> None:
        self._path, self._types = path, imported("pyarrow", "datasets: openml").types
        kinds = Rows(path, []).kinds
        self._names = [*kinds]
        self.columns = [self._column(name, kind) for name, kind in kinds.items()]

    def _column(self, name: str, kind: object) -> Column | None:
        if self._types.is_integer(kind) or self._types.is_floating(kind):
            return Column(name)
        is_words = self._types.is_dictionary(kind) or self._types.is_string(kind) or self._types.is_large_string(kind)
        if not is_words:
            return None
        words: dict[str, None] = {}
        rows = Rows(self._path, [name])
        for first in range(0, rows.count, BATCH):
            part = rows.column(name, first, min(first + BATCH, rows.count)).to_pylist()
            words |= {str(word): None for word in part if word is not None}
        return Column(name, tuple(words))

    def batches(self) -> Iterator[list[Array]]:
        """The columns of some rows: numbers float64 [n], NaN if missing; choices int64 [n], -1 if missing."""
        kept = [column for column in self.columns if column is not None]
        rows = Rows(self._path, [column.name for column in kept])
        codes = {column.name: _codes(column) for column in kept}
        for first in range(0, rows.count, BATCH):
            stop, made = min(first + BATCH, rows.count), []
            for column in self.columns:
                values = [] if column is None else rows.column(column.name, first, stop).to_pylist()
                told = None if column is None else codes[column.name]
                if column is None:
                    made.append(np.zeros(stop - first))
                elif told is None:
                    made.append(np.array([np.nan if value is None else value for value in values], np.float64))
                else:
                    made.append(np.array([-1 if value is None else told[str(value)] for value in values]))
            yield made


def _codes(column: Column | None) -> dict[str, int] | None:
    if column is None or column.choices is None:
        return None
    return {word: k for k, word in enumerate(column.choices)}


def _words(line: str, where: str) -> list[str | None]:
    """The values in a line; None for those that are missing."""
    if "'" not in line and '"' not in line:
        return [None if word == "?" else word for word in map(str.strip, line.split(","))]
    found: list[str | None] = []
    at = 0
    while at < len(line):
        match = TOKEN.match(line, at)
        if match is None:
            raise DatasetError(f"{where}: expected values with commas between them, got {line[at:]!r:.200}")
        quoted = match[1] if match[1] is not None else match[2]
        word = match[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        found.append(None if quoted is None and word == "?" else word)
        at = match.end()
    return found
