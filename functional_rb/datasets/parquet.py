"""Tables of Parquet, read forward and a piece at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from functional_rb.base import files
from functional_rb.base.extras import imported
from functional_rb.datasets.episode import Array, DatasetError

WHO = "datasets: parquet"
# Rows that are read at a time.
BATCH = 1024


class Rows:
    """The rows of a table, which are read from front to back; those from the last one that was asked for on also again.

    Attributes:
        path: of the file.
        kinds: Arrow's types of all columns, by their names.
        count: how many rows there are.
        at: the first row that can still be read.
    """

    def __init__(self, path: str, columns: Sequence[str]) -> None:
        self._arrow = imported("pyarrow", WHO)
        with _errors(path):
            self._file, self._columns = _opened(path, columns), list(columns)
            schema = self._file.schema_arrow
            self.kinds = dict(zip(schema.names, schema.types, strict=True))
            self.count: int = self._file.metadata.num_rows
        self.path, self.at = path, 0
        self._held: Any = None
        self._batches: Iterator[Any] = iter(())

    def column(self, name: str, first: int, stop: int) -> Any:
        with _errors(self.path):
            self._hold(first, stop)
            found = self._held.slice(first - self.at, stop - first).column(name).combine_chunks()
        if len(found) != stop - first:
            raise DatasetError(f"{self.path}: expected {stop} rows, the file has {self.count}")
        return found

    def _hold(self, first: int, stop: int) -> None:
        """Have the rows [first, stop) in memory, as far as the file has them, and none before them."""
        if self._held is None or first >= self.at + len(self._held) + BATCH:
            metadata, at, group = self._file.metadata, 0, 0
            while group < metadata.num_row_groups - 1 and at + metadata.row_group(group).num_rows <= first:
                at, group = at + metadata.row_group(group).num_rows, group + 1
            groups = range(group, metadata.num_row_groups)
            self._batches = self._file.iter_batches(BATCH, row_groups=groups, columns=self._columns)
            self._held, self.at = self._file.schema_arrow.empty_table().select(self._columns), at
        if first < self.at:
            raise ValueError(f"row {first} has gone by, the first that is held is {self.at}")
        parts, end = [self._held], self.at + len(self._held)
        while end < stop and (batch := next(self._batches, None)) is not None:
            parts.append(self._arrow.Table.from_batches([batch]))
            end += len(batch)
        held = self._arrow.concat_tables(parts)
        gone = min(first - self.at, len(held))
        self._held, self.at = held.slice(gone), self.at + gone


def table(path: str, columns: Sequence[str], more: Sequence[str] = ()) -> list[dict[str, Any]]:
    """All rows of a small table.

    Args:
        path: of the file.
        columns: which it has to have.
        more: columns that are read too if it has them.

    Raises:
        ImportError: if pyarrow is missing.
        DatasetError: for a file of something else, or without these columns.
    """
    with _errors(path):
        file = _opened(path, columns)
        there = [name for name in more if name in file.schema_arrow.names]
        rows: list[dict[str, Any]] = file.read(columns=[*columns, *there]).to_pylist()
        return rows


def numbers_of(column: Any, shape: Sequence[int], where: str) -> Array:
    """The numbers in a column: an array [n, *shape]."""
    n = len(column)
    while True:
        column = getattr(column, "storage", column)
        if column.null_count:
            raise DatasetError(f"{where}: expected numbers, got {column.null_count} that are missing")
        if not hasattr(column, "flatten") or not hasattr(column.type, "value_type"):
            break
        column = column.flatten()
    found: Array = column.to_numpy(zero_copy_only=False)
    if found.dtype.kind not in "biuf" or found.size != n * int(np.prod(shape)):
        raise DatasetError(f"{where}: expected {n} times shape {tuple(shape)}, got {found.size} {column.type}")
    return found.reshape(n, *shape)


def bytes_of(column: Any, where: str) -> list[bytes]:
    """The bytes in a column of images, as the library `datasets` writes them."""
    if not hasattr(column.type, "get_field_index") or column.type.get_field_index("bytes") < 0:
        raise DatasetError(f"{where}: expected images with their bytes, got {column.type}")
    contents: list[bytes] = column.field("bytes").to_pylist()
    if not all(isinstance(content, bytes) for content in contents):
        raise DatasetError(f"{where}: expected images with their bytes, got some without")
    return contents


def _opened(path: str, columns: Sequence[str]) -> Any:
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
