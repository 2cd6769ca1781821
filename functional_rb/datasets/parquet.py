"""Tables of Parquet, read forward and a piece at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from functional_rb.base import files
from functional_rb.base.arrays import NumpyArray
from functional_rb.base.extras import imported
from functional_rb.base.strict_json import Json
from functional_rb.datasets.episode import DatasetError

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.parquet import ParquetFile

WHO = "datasets: parquet"
# Rows that are read at a time.
BATCH = 1024


class Window:
    """Rows of batches that are read once, from the first to the last; of those before the wanted ones few are held.

    Attributes:
        first: the first row that can still be read.
        names: of the columns.
    """

    def __init__(self, batches: Iterator[pyarrow.RecordBatch], schema: pyarrow.Schema, first: int = 0) -> None:
        self._batches, self._schema, self.first = batches, schema, first
        self.names: list[str] = schema.names
        self._held: list[pyarrow.RecordBatch] = []

    @property
    def stop(self) -> int:
        return self.first + sum(map(len, self._held))

    def column(self, name: str, first: int, stop: int) -> pyarrow.Array:
        """Rows [first, stop) of a column, fewer where the batches end."""
        if first < self.first:
            raise ValueError(f"row {first} has gone by, the first that is held is {self.first}")
        while self.stop < stop and (batch := next(self._batches, None)) is not None:
            self._held.append(batch)
        while self._held and self.first + len(self._held[0]) <= first:
            self.first += len(self._held.pop(0))
        table = imported("pyarrow", WHO).Table.from_batches(self._held, self._schema)
        column = table.slice(first - self.first, stop - first).column(name).combine_chunks()
        # Some versions of Arrow give an array, others a single chunk.
        return column.chunk(0) if hasattr(column, "chunk") else column


class Rows:
    """The rows of a file, which are read from front to back; those from the last one that was asked for on also again.

    Attributes:
        path: of the file.
        kinds: Arrow's types of all columns, by their names.
        count: how many rows there are.
    """

    def __init__(self, path: str, columns: Sequence[str]) -> None:
        self.path, self._columns = path, list(columns)
        with _errors(path):
            self._file = _opened(path, columns)
            schema = self._file.schema_arrow
            self.kinds = dict(zip(schema.names, schema.types, strict=True))
            self.count: int = self._file.metadata.num_rows
            self._schema = schema.empty_table().select(self._columns).schema
            self._window = self._from(0)

    @property
    def at(self) -> int:
        """The first row that can still be read."""
        return self._window.first

    def column(self, name: str, first: int, stop: int) -> pyarrow.Array:
        if stop > self.count:
            raise DatasetError(f"{self.path}: expected {stop} rows, the file has {self.count}")
        with _errors(self.path):
            if first >= self._window.stop + BATCH:
                self._window = self._from(first)
            column = self._window.column(name, first, stop)
        if len(column) != stop - first:
            raise DatasetError(f"{self.path}: expected {stop} rows, got {first + len(column)}; fetch it again")
        return column

    def _from(self, first: int) -> Window:
        # The rows from one on, and some before it: those of its row group.
        metadata, at, group = self._file.metadata, 0, 0
        while group < metadata.num_row_groups - 1 and at + metadata.row_group(group).num_rows <= first:
            at, group = at + metadata.row_group(group).num_rows, group + 1
        groups = range(group, metadata.num_row_groups)
        return Window(self._file.iter_batches(BATCH, row_groups=groups, columns=self._columns), self._schema, at)


def table(path: str, columns: Sequence[str], more: Sequence[str] = ()) -> list[Json]:
    """All rows of a small table.

    It has to have the columns; more of them are read too if it has them.
    """
    with _errors(path):
        file = _opened(path, columns)
        there = [name for name in more if name in file.schema_arrow.names]
        return file.read(columns=[*columns, *there]).to_pylist()


def numbers_of(column: pyarrow.Array, shape: Sequence[int], where: str) -> NumpyArray:
    """The numbers in a column: an array [n, *shape]."""
    n = len(column)
    while True:
        column = getattr(column, "storage", column)
        if column.null_count:
            raise DatasetError(f"{where}: expected numbers, got {column.null_count} that are missing")
        if not hasattr(column, "flatten") or not hasattr(column.type, "value_type"):
            break
        column = column.flatten()
    numbers: NumpyArray = column.to_numpy(zero_copy_only=False)
    if numbers.dtype.kind not in "biuf" or numbers.size != n * int(np.prod(shape)):
        raise DatasetError(
            f"{where}: expected numbers, {n} times shape {tuple(shape)}, got {numbers.size} of {column.type}"
        )
    return numbers.reshape(n, *shape)


def bytes_of(column: pyarrow.Array, where: str) -> list[bytes]:
    """The bytes in a column of images, as the library `datasets` writes them."""
    if not hasattr(column.type, "get_field_index") or column.type.get_field_index("bytes") < 0:
        raise DatasetError(f"{where}: expected images with their bytes, got {column.type}")
    contents: list[bytes] = column.field("bytes").to_pylist()
    if not all(isinstance(content, bytes) for content in contents):
        raise DatasetError(f"{where}: expected images with their bytes, got some without")
    return contents


def _opened(path: str, columns: Sequence[str]) -> ParquetFile:
    os.close(files.open_regular(path)[0])
    file = imported("pyarrow.parquet", WHO).ParquetFile(path)
    there = file.schema_arrow.names
    if missing := sorted(set(columns) - set(there)):
        raise DatasetError(f"{path}: expected columns {missing[:10]}, there are {there[:30]}")
    return file


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    arrow = imported("pyarrow", WHO)
    try:
        yield
    except (arrow.ArrowException, files.UnusableFileError, UnicodeError, OSError) as error:
        # Of damaged pages Arrow gives an OSError without a number. One with a number is the system's: no file, no room.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DatasetError(f"{path}: expected a table of Parquet: {str(error).strip()}; fetch it again") from None
