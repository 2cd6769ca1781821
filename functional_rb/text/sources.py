"""Where rows of text come from: tables of Hugging Face, files, and any iterables of dicts; read in pieces.

Hugging Face's tables are known by what they offer, and pyarrow is imported for files that need it.
"""

from __future__ import annotations

import abc
import codecs
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO, TypeAlias

from functional_rb.base.extras import imported
from functional_rb.base.files import as_path

WHO = "text: a file of parquet or arrow"
# An object of pyarrow, or a `datasets.Dataset`: neither has types.
Foreign: TypeAlias = Any
# Rows read at a time.
PIECE = 1000
# Bytes of an array of JSON that are read at a time.
CHUNK = 2**20
BLANKS = re.compile(r"[ \t\r\n]*")
LINES, PARQUET, ARROW = (".jsonl", ".ndjson", ".json"), (".parquet",), (".arrow", ".feather", ".ipc")


class NoRow(dict[str, object]):
    """What could not be read as a row, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


class Source(abc.ABC):
    """Rows that can be read again, from any of them on."""

    columns: list[str] | None = None  # their names; None where each row has its own
    count: int | None = None  # how many rows there are; None if that is not known

    @abc.abstractmethod
    def rows(self, names: Sequence[str], start: int = 0) -> Iterator[object]:
        """The rows from a number on, with at least the columns of these names that they have."""

    def where(self, number: int) -> str:
        """How errors name a row."""
        return f"row {number}"

    def digest(self, names: Sequence[str]) -> bytes:
        """A checksum of what the columns of these names contain."""
        digest = hashlib.blake2b(digest_size=16)
        for row in self.rows(names):
            digest.update(as_line(row, names))
        return digest.digest()


def as_line(row: object, names: Sequence[str]) -> bytes:
    """A row's columns as one line of JSON, in ASCII: texts that are no UTF-8 (lone surrogates) go there and back."""
    columns = {name: row[name] for name in names if name in row} if isinstance(row, Mapping) else _plain(row)
    return (json.dumps(columns, default=_plain) + "\n").encode()


def _plain(value: object) -> object:
    # JSON has no form for these: arrays and numbers of NumPy go as Python's, anything else by its kind alone.
    return value.tolist() if hasattr(value, "tolist") else f"<{type(value).__name__}>"


def opened(source: object, who: str) -> Source | None:
    """A source that can be read again; None for an iterable that perhaps can be read once only."""
    if isinstance(source, str | os.PathLike):
        return _of_file(as_path(source, f"{who}: source"), who)
    if isinstance(source, Mapping):  # such as a datasets.DatasetDict
        names = ", ".join(map(repr, itertools.islice(source, 5)))
        raise TypeError(f"{who}: source: expected rows, got a mapping of {names}; give one of its tables")
    if hasattr(source, "with_format") and hasattr(source, "select_columns"):
        return OfDataset(source) if hasattr(source, "__len__") else None
    if isinstance(source, Sequence) and not isinstance(source, bytes):
        if source and all(isinstance(x, str | os.PathLike) for x in source):
            return Chained([_of_file(as_path(x, f"{who}: source"), who) for x in source])
        return OfRows(source)
    if not isinstance(source, Iterable):
        raise TypeError(
            f"{who}: source: expected a datasets.Dataset, paths of JSON lines, parquet or arrow files, or dicts, got "
            f"{type(source).__name__}"
        )
    return None


def _of_file(path: str, who: str) -> Source:
    kind = os.path.splitext(path)[1].lower()
    if kind not in LINES + PARQUET + ARROW:
        raise ValueError(f"{who}: {path}: expected a file *{', *'.join(LINES + PARQUET + ARROW)}; rename it")
    if not os.path.isfile(path):
        raise FileNotFoundError(2, f"{who}: there is no such file", path)
    if kind in LINES:
        return OfArray(path) if kind == ".json" and _is_array(path) else OfLines(path)
    return OfTables(path, kind)


class OfRows(Source):
    """Dicts that are there already."""

    def __init__(self, rows: Sequence[object]) -> None:
        self._rows, self.count = rows, len(rows)

    def rows(self, names: Sequence[str], start: int = 0) -> Iterator[object]:
        return itertools.islice(self._rows, start, None)


class OfDataset(Source):
    """A `datasets.Dataset`."""

    def __init__(self, dataset: Foreign) -> None:
        self._dataset, self.count = dataset, len(dataset)
        self.columns = list(dataset.column_names)

    def rows(self, names: Sequence[str], start: int = 0) -> Iterator[object]:
        """The rows from the dataset's tables of arrow, or decoded by `datasets` where these have JSON of any kind."""
        mine = [name for name in names if name in self._dataset.column_names]
        table = self._dataset.select_columns(mine)
        is_coded = any("Json(" in repr(table.features[name]) for name in mine)
        table = table.with_format(None if is_coded else "arrow")
        for at in range(start, len(table), PIECE):
            piece = table[at : at + PIECE]
            if is_coded:
                yield from (dict(zip(piece, values, strict=True)) for values in zip(*piece.values(), strict=True))
            else:
                yield from of_arrow(piece)


class OfFile(Source):
    """A file, of which a row is named by its number, and which is told from others by its bytes."""

    def __init__(self, path: str) -> None:
        self._path = path

    def where(self, number: int) -> str:
        return f"{self._path}, row {number}"

    def digest(self, names: Sequence[str]) -> bytes:
        with open(self._path, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()


class OfLines(OfFile):
    """A file with a JSON object in each line that is not blank."""

    def rows(self, names: Sequence[str], start: int = 0) -> Iterator[object]:
        """The rows, line by line; what is no UTF-8 has lone surrogates, by which its column is found."""
        with open(self._path, "rb") as file:
            for line in itertools.islice(filter(bytes.strip, _lines(file)), start, None):
                try:
                    row = json.loads(line.decode("utf-8", "surrogateescape"))
                except (ValueError, RecursionError) as error:
                    yield NoRow(f"no JSON ({error})")
                    continue
                yield _object(row)

    def where(self, number: int) -> str:
        with open(self._path, "rb") as file:
            lines = (k for k, line in enumerate(_lines(file), 1) if line.strip())
            return f"{self._path}, line {next(itertools.islice(lines, number, None), '?')}"


def _lines(file: Iterable[bytes]) -> Iterator[bytes]:
    for number, line in enumerate(file):
        yield line if number else line.removeprefix(codecs.BOM_UTF8)


def _object(row: object) -> object:
    # The row, or what stands for one that is none: reading goes on behind it.
    return row if isinstance(row, dict) else NoRow(f"no JSON object but {type(row).__name__}")


def _is_array(path: str) -> bool:
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            begun = chunk.removeprefix(codecs.BOM_UTF8).lstrip()
            if begun:
                return begun.startswith(b"[")
    return False


class OfArray(OfFile):
    """A file with an array of JSON objects, which is read piece by piece."""

    def rows(self, names: Sequence[str], start: int = 0) -> Iterator[object]:
        """The rows, object by object: what is no UTF-8 has lone surrogates, and an array without an end is refused."""
        with open(self._path, encoding="utf-8-sig", errors="surrogateescape") as file:
            yield from itertools.islice(map(_object, self._values(_Json(file))), start, None)

    def _values(self, content: _Json) -> Iterator[object]:
        number, sign = 0, content.sign()  # the sign with which the array begins
        try:
            if content.peek() == "]":
                sign = content.sign()
            while sign != "]":
                yield content.value()
                sign = content.sign()
                if sign not in (",", "]"):
                    raise ValueError(f"expected ',' or ']' behind it, got {sign!r}")
                number += 1
            if rest := content.peek():
                raise ValueError(f"expected nothing behind the array, got {rest!r}")
        except (ValueError, RecursionError) as error:
            where = f"{self._path}, row {number}"
            raise ValueError(f"{where}: expected an array of JSON objects, got another content: {error}") from None


class _Json:
    """JSON in a file, read value by value."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._text, self._at = file, "", 0
        self._decode = json.JSONDecoder().raw_decode

    def peek(self) -> str:
        """The next sign that is no blank; none at the end."""
        while True:
            blanks = BLANKS.match(self._text, self._at)
            assert blanks is not None  # blanks of any length match, none too
            self._at = blanks.end()
            if self._at < len(self._text) or not self._more(CHUNK):
                return self._text[self._at : self._at + 1]

    def sign(self) -> str:
        sign = self.peek()
        self._at += 1
        return sign

    def value(self) -> object:
        self.peek()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
                if end < len(self._text) or not self._more(CHUNK):  # a number may go on
                    self._at = end
                    return value
            except ValueError:
                # The text is doubled: else a long value would be decoded from its beginning at each piece.
                if not self._more(len(self._text)):
                    raise

    def _more(self, size: int) -> bool:
        text = self._file.read(max(size, CHUNK))
        self._text, self._at = self._text[self._at :] + text, 0
        return bool(text)


class Spooled(OfLines):
    """Rows that could be read once only, written to a file by `as_line`."""

    def __init__(self, path: str, count: int) -> None:
        super().__init__(path)
        self.count = count

    def where(self, number: int) -> str:
        return f"row {number}"  # nobody has seen the file


class OfTables(OfFile):
    """A file of parquet or arrow."""

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(path)
        self._is_parquet = kind in PARQUET
        if self._is_parquet:
            with _parquet(path) as file:
                self.columns, self.count = list(file.schema_arrow.names), file.metadata.num_rows
        else:
            self.columns = list(_arrow(path).schema.names)

    def rows(self, names: Sequence[str], start: int = 0) -> Iterator[object]:
        mine = [name for name in names if name in (self.columns or ())]
        for batch in self._batches(mine):
            if start >= len(batch):
                start -= len(batch)
                continue
            yield from of_arrow(batch.slice(start))
            start = 0

    def _batches(self, names: list[str]) -> Iterator[Foreign]:
        if self._is_parquet:
            with _parquet(self._path) as file:
                yield from file.iter_batches(PIECE, columns=names)
            return
        reader = _arrow(self._path)
        in_file = hasattr(reader, "num_record_batches")
        batches = map(reader.get_batch, range(reader.num_record_batches)) if in_file else iter(reader)
        for batch in batches:
            for at in range(0, len(batch), PIECE):
                yield batch.select(names).slice(at, PIECE)


class Chained(Source):
    """Several sources, one after the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        known = [source.columns for source in sources if source.columns is not None]
        if known:
            self.columns = [name for name in known[0] if all(name in columns for columns in known)]
        counts = [source.count for source in sources if source.count is not None]
        self.count = sum(counts) if len(counts) == len(sources) else None

    def rows(self, names: Sequence[str], start: int = 0) -> Iterator[object]:
        for source in self._sources:
            for row in source.rows(names):
                if start:
                    start -= 1
                else:
                    yield row

    def where(self, number: int) -> str:
        for source in self._sources:
            size = sum(1 for _ in source.rows(())) if source.count is None else source.count
            if number < size:
                return source.where(number)
            number -= size
        return super().where(number)

    def digest(self, names: Sequence[str]) -> bytes:
        return b"".join(source.digest(names) for source in self._sources)


def of_arrow(table: Foreign) -> Iterator[dict[str, object]]:
    """The rows of a table or batch of arrow; texts that are no UTF-8 have lone surrogates."""
    names = table.schema.names
    if not names:
        return iter([{}] * len(table))
    columns = [_values(table.column(k)) for k in range(len(names))]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _values(column: Foreign) -> list[object]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:  # one by one, so that the others stay as they are
        return [_value(scalar) for scalar in column]


def _value(scalar: Foreign) -> object:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        if not hasattr(scalar, "as_buffer"):  # within a list or a record, whose bytes pyarrow does not give
            return "\udcff"
        return bytes(scalar.as_buffer()).decode("utf-8", "surrogateescape")


def _parquet(path: str) -> Foreign:
    return imported("pyarrow.parquet", WHO).ParquetFile(path)


def _arrow(path: str) -> Foreign:
    # A file of arrow is of one of two kinds, with nothing in its name that says which.
    pyarrow = imported("pyarrow", WHO)
    mapped = pyarrow.memory_map(path)
    try:
        return pyarrow.ipc.open_file(mapped)
    except pyarrow.ArrowInvalid:
        mapped.seek(0)
        return pyarrow.ipc.open_stream(mapped)
