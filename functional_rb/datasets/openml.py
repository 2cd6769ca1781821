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
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.extras import imported
from functional_rb.base.strict_json import Json
from functional_rb.datasets.by_rows import file_that, located
from functional_rb.datasets.episode import DatasetError, Episode, StepSpec, expecting
from functional_rb.datasets.formats import streams
from functional_rb.datasets.formats.streams import BLOCK, Inflated
from functional_rb.datasets.parquet import Rows
from functional_rb.specs import Categorical, Unbounded

ENDINGS = (".arff", ".arff.gz", ".pq", ".parquet")
# Rows that are read at a time.
BATCH = 4096
# What is not quoted is taken with the blanks behind it: without them it would be tried at each of a million blanks.
TOKEN = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'\s*|"((?:[^"\\]|\\.)*)"\s*|([^,]*))(?:,|$)""")
ATTRIBUTE = re.compile(r"""@attribute\s+(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|(\S+))\s+(.*)""", re.IGNORECASE)
NUMBERS = ("numeric", "real", "integer")
# Characters that a line may have.
LINE = 2**20
# Bytes that may come out of a table that is gzipped.
LIMIT = 2**40


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str  # the name of the column
    # The numbers of the words that stand in it, in their order; None for a column of numbers.
    codes: Mapping[str, int] | None = None

    def numbers(self, values: Sequence[str | float | None], where: str) -> NumpyArray:
        """Numbers float64 [n], NaN if missing; or the codes of words int64 [n], -1 if missing."""
        try:
            if self.codes is None:
                return np.array([np.nan if value is None else float(value) for value in values])
            return np.array([-1 if value is None else self.codes[str(value)] for value in values])
        except (ValueError, KeyError) as error:
            raise DatasetError(f"{where}, {self.name!r}: {error!r} is not told") from None


class OpenMl:
    """Reads a table of OpenML, row by row; see `Reader` for the attributes. Rows without a class are left out."""

    def __init__(self, path: str, name: str, target: str | None, one_hot: bool) -> None:
        self.name, self.files, self._one_hot = name, [path], one_hot
        self._table = Arff(path) if ".arff" in os.path.basename(path) else Parquet(path)
        columns = self._table.columns
        words = {column.name: k for k, column in enumerate(columns) if column and column.codes}
        chosen = target if target is not None else next((x for x in words if x.lower() == "class"), None)
        if chosen is None and words and max(words.values()) == len(columns) - 1:
            chosen = next(reversed(words))
        if chosen not in words:
            raise DatasetError(f"{path}: target: expected one of the columns of words {[*words][:30]}, got {chosen!r}")
        self._target = words[chosen]
        features: list[str] = []  # for each column its name, or one for each of its words
        for k, column in enumerate(columns):
            if column and k != self._target:
                codes = column.codes if one_hot else None
                features += [f"{column.name}={word}" for word in codes] if codes else [column.name]
        self.counts = {"bytes": os.path.getsize(path)}
        actions = columns[self._target]
        self.facts: Json = {"actions": list(actions.codes or ()) if actions else [], "features": features}

    def spec(self, narrow: bool) -> StepSpec:
        number = "float32" if narrow else "float64"
        action = Categorical(len(self.facts["actions"]), dtype="int32" if narrow else "int64")
        return StepSpec(Unbounded((len(self.facts["features"]),), number), action, Unbounded((), "float32"))

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        reward, done, not_cut = np.ones(1, np.float32), np.ones(1, bool), np.zeros(1, bool)
        at = row = 0
        for batch in self._table.batches():
            where = f"{self.files[0]}, rows from {row} on"
            parts, actions = [], np.zeros(0, np.int64)
            for k, (column, values) in enumerate(zip(self._table.columns, batch, strict=True)):
                if column and k == self._target:
                    actions = column.numbers(values, where)
                elif column:
                    numbers = column.numbers(values, where)[:, None]
                    if column.codes is not None and self._one_hot:
                        numbers = (numbers == np.arange(len(column.codes))).astype(np.float64)
                    elif column.codes is not None:
                        numbers = np.where(numbers < 0, np.nan, numbers)  # -1 stands for a word that is missing
                    parts.append(numbers)
            kept = actions >= 0
            features, row = np.concatenate(parts, 1)[kept], row + len(actions)
            actions = actions[kept]
            for k in range(max(first - at, 0), len(actions)):
                # Nothing is observed after the one step: learners do not look at the second row, of a terminal state.
                twice, action = features[[k, k]], actions[k : k + 1]
                yield Episode(twice, action, reward, done, not_cut, final_observed=False, file=self.files[0])
            at += len(actions)


def open_openml(rest: str, root: str | None = None, *, target: str | None = None, one_hot: bool = False) -> OpenMl:
    """The reader of a table of OpenML: its name, as "covertype", or the path of its file.

    The column `target` has the classes; by default the one of the name "class", or the last one. With `one_hot` words
    are features of their own, 0 or 1, in place of their numbers: then missing words are zeros, else NaN.
    """
    locate = file_that(lambda name: name.endswith(ENDINGS))
    path = located("openml", rest, root, locate, f"a file {', '.join(ENDINGS)}")
    return OpenMl(path, f"openml:{rest}", target, one_hot)


class Arff:
    """A table in ARFF, maybe gzipped."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.columns: list[Column | None] = []  # by their places; None for texts and dates, which are not read
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
            with expecting(f"{self._path}: expected a table in ARFF", UnicodeDecodeError, remedy=""):
                yield self._without_remarks(text)

    def _without_remarks(self, text: io.TextIOWrapper) -> Iterator[str]:
        while line := text.readline(LINE):
            # The rest would come as a line of its own: that of a remark as data.
            if len(line) == LINE and not line.endswith("\n"):
                raise DatasetError(f"{self._path}: expected lines of fewer than {LINE} characters, got {line!r:.60}")
            line = line.strip()
            if line and not line.startswith("%"):
                yield line

    def _column(self, line: str) -> Column | None:
        match = ATTRIBUTE.fullmatch(line)
        if match is None:
            raise DatasetError(f"{self._path}: expected the name and the kind of an attribute, got {line!r:.200}")
        name, kind = next(group for group in match.groups()[:3] if group is not None), match[4].strip()
        if kind.lower() in NUMBERS:
            return Column(name)
        if kind.startswith("{") and kind.endswith("}"):
            # Each word once: else there would be codes that no action stands for.
            words = dict.fromkeys(map(str, _words(kind[1:-1], self._path)))
            return Column(name, {word: k for k, word in enumerate(words)})
        return None

    def batches(self) -> Iterator[list[Sequence[str | None]]]:
        """The columns of some rows at a time."""
        with self._lines() as lines:
            data = itertools.dropwhile(lambda line: not line.lower().startswith("@data"), lines)
            next(data)
            rows: list[list[str | None]] = []
            for number, line in enumerate(data):
                row = _words(line, f"{self._path}, row {number}")
                if len(row) != len(self.columns):
                    raise DatasetError(
                        f"{self._path}, row {number}: expected {len(self.columns)} values, got {len(row)}; tables of "
                        f"sparse rows are not read"
                    )
                rows.append(row)
                if len(rows) == BATCH:
                    yield list(zip(*rows, strict=True))
                    rows = []
            if rows:
                yield list(zip(*rows, strict=True))


class Parquet:
    """A table in Parquet; words are numbered in the order in which they come."""

    def __init__(self, path: str) -> None:
        self._path, types = path, imported("pyarrow", "datasets: openml").types
        self.columns: list[Column | None] = []  # by their places; None for those that are neither numbers nor words
        for name, kind in Rows(path, []).kinds.items():
            if types.is_integer(kind) or types.is_floating(kind):
                self.columns.append(Column(name))
            elif types.is_dictionary(kind) or types.is_string(kind) or types.is_large_string(kind):
                words = (str(word) for (column,) in self._read([name]) for word in column if word is not None)
                self.columns.append(Column(name, {word: k for k, word in enumerate(dict.fromkeys(words))}))
            else:
                self.columns.append(None)

    def batches(self) -> Iterator[list[Sequence[str | float | None]]]:
        """The columns of some rows at a time."""
        for batch in self._read([column.name for column in self.columns if column]):
            values = iter(batch)
            yield [next(values) if column else [] for column in self.columns]

    def _read(self, names: list[str]) -> Iterator[list[Sequence[str | float | None]]]:
        rows = Rows(self._path, names)
        for first in range(0, rows.count, BATCH):
            stop = min(first + BATCH, rows.count)
            yield [rows.column(name, first, stop).to_pylist() for name in names]


def _words(line: str, where: str) -> list[str | None]:
    # The values in a line; None for those that are missing.
    if "'" not in line and '"' not in line:
        return [None if word == "?" else word for word in map(str.strip, line.split(","))]
    words: list[str | None] = []
    at = 0
    while at < len(line):
        match = TOKEN.match(line, at)
        if match is None:
            raise DatasetError(f"{where}: expected values with commas between them, got {line[at:]!r:.200}")
        quoted = match[1] if match[1] is not None else match[2]
        word = match[3].rstrip() if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        words.append(None if quoted is None and word == "?" else word)
        at = match.end()
    return words
