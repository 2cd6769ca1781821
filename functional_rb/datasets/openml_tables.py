"""Tables as OpenML serves them, ARFF and Parquet: columns of numbers, and of choices among some words."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from functional_rb.base.extras import imported
from functional_rb.datasets.episode import Array, DatasetError
from functional_rb.datasets.formats import regular
from functional_rb.datasets.formats.inflate import BLOCK, Inflated
from functional_rb.datasets.parquet import Rows

# Rows that are read at a time.
BATCH = 4096
TOKEN = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^,]*?))\s*(?:,|$)""")
ATTRIBUTE = re.compile(r"""@attribute\s+(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|(\S+))\s+(.*)""", re.IGNORECASE)
NUMBERS = ("numeric", "real", "integer")
# Characters that a line may have.
LINE = 2**20
# Bytes that may come out of a table that is gzipped.
LIMIT = 2**40


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
        with regular.opened(self._path) as file:
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


def _parts(rows: Rows, name: str) -> Iterator[list[Any]]:
    for first in range(0, rows.count, BATCH):
        yield rows.column(name, first, min(first + BATCH, rows.count)).to_pylist()


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
