"""Tables as OpenML serves them, ARFF and Parquet: columns of numbers, and of choices among some words."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import itertools
import re
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from functional_rb.convert.common import imported
from functional_rb.datasets.episode import Array, DatasetError
from functional_rb.datasets.parquet import Rows

BATCH = 4096
"""Rows that are read at a time."""
TOKEN = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^,]*?))\s*(?:,|$)""")
ATTRIBUTE = re.compile(r"""@attribute\s+(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|(\S+))\s+(.*)""", re.IGNORECASE)
NUMBERS = ("numeric", "real", "integer")
LINE = 2**20
"""Characters that a line may have."""


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
        """Read the header.

        Raises:
            DatasetError: for a file of something else.
        """
        self._path = path
        self.columns: list[Column | None] = []
        with self._lines() as (_, lines):
            for line in lines:
                if line.lower().startswith("@data"):
                    break
                if line.lower().startswith("@attribute"):
                    self.columns.append(self._column(line))
            else:
                raise DatasetError(f"{path}: expected a table in ARFF, there is no @data in it")

    @contextlib.contextmanager
    def _lines(self) -> Iterator[tuple[IO[str], Iterator[str]]]:
        opened: Any = gzip.open if self._path.endswith(".gz") else open
        try:
            with opened(self._path, "rt", encoding="utf-8") as file:
                short = iter(lambda: file.readline(LINE), "")
                lines = (line.strip() for line in short)
                yield file, (line for line in lines if line and not line.startswith("%"))
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
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
        codes = [
            None if column is None or column.choices is None else {word: k for k, word in enumerate(column.choices)}
            for column in self.columns
        ]
        with self._lines() as (_, lines):
            data = itertools.dropwhile(lambda line: not line.lower().startswith("@data"), lines)
            next(data)
            number = 0
            while rows := [_words(line, f"{self._path}, row {number + k}") for k, line in _few(data)]:
                yield [self._values(rows, k, codes[k], number) for k in range(len(self.columns))]
                number += len(rows)

    def _values(self, rows: list[list[str | None]], at: int, codes: dict[str, int] | None, first: int) -> Array:
        column = self.columns[at]
        values = []
        for k, row in enumerate(rows):
            if len(row) != len(self.columns):
                raise DatasetError(
                    f"{self._path}, row {first + k}: expected {len(self.columns)} values, got {len(row)}; tables of "
                    f"sparse rows are not read"
                )
            values.append(row[at])
        if column is None:
            return np.zeros(len(rows))
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
        """Read the names, and once all words.

        Raises:
            DatasetError: for a file of something else.
        """
        self._path, self._types = path, imported("pyarrow", "datasets: openml", "functional-rb[datasets]").types
        kinds = Rows(path, []).kinds
        self._names = [*kinds]
        self.columns = [self._column(name, kind) for name, kind in kinds.items()]

    def _column(self, name: str, kind: Any) -> Column | None:
        if self._types.is_integer(kind) or self._types.is_floating(kind):
            return Column(name)
        is_words = self._types.is_dictionary(kind) or self._types.is_string(kind) or self._types.is_large_string(kind)
        if not is_words:
            return None
        words: dict[str, None] = {}
        for part in _parts(Rows(self._path, [name]), name):
            words |= {str(word): None for word in part if word is not None}
        return Column(name, tuple(words))

    def batches(self) -> Iterator[list[Array]]:
        """The columns of some rows: numbers float64 [n], NaN if missing; choices int64 [n], -1 if missing."""
        kept = [column for column in self.columns if column is not None]
        rows = Rows(self._path, [column.name for column in kept])
        codes = {
            column.name: {word: k for k, word in enumerate(column.choices)}
            for column in kept
            if column.choices is not None
        }
        for first in range(0, rows.count, BATCH):
            stop, made = min(first + BATCH, rows.count), []
            for column in self.columns:
                values = [] if column is None else rows.column(column.name, first, stop).to_pylist()
                if column is None:
                    made.append(np.zeros(stop - first))
                elif column.choices is None:
                    made.append(np.array([np.nan if value is None else value for value in values], np.float64))
                else:
                    told = codes[column.name]
                    made.append(np.array([-1 if value is None else told[str(value)] for value in values]))
            yield made


def _parts(rows: Rows, name: str) -> Iterator[list[Any]]:
    for first in range(0, rows.count, BATCH):
        yield rows.column(name, first, min(first + BATCH, rows.count)).to_pylist()


def _few(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    return enumerate(itertools.islice(lines, BATCH))


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
