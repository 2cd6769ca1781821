"""Tables of Parquet and Arrow, read forward and a piece at a time."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

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


class _Group(NamedTuple):
    """Rows of a file that can be read without those before them: a row group of Parquet, a batch of Arrow."""

    path: str
    size: int
    batches: Callable[[], Iterator[pyarrow.RecordBatch]]


class Rows:
    """Rows of tables that lie one after the other, read from front to back; from the last one asked for on also again.

    `at` is the first row that can still be read.
    """

    def __init__(
        self,
        paths: str | Sequence[str],
        columns: Sequence[str] | None = None,
        kind: str = "Parquet",
        most: int | None = None,
    ) -> None:
        """Open tables of "Parquet" or of "Arrow": some of their columns, or all; `most` rows are read at a time."""
        paths = [paths] if isinstance(paths, str) else paths
        self.path, self._kind, self._groups = paths[0], kind, list[_Group]()
        for path in paths:
            with _errors(path, kind):
                schema, groups = _groups_of(path, columns, kind, most or BATCH)
                self._groups += groups
                # Arrow's types of all columns, whichever are read.
                self.kinds = dict(zip(schema.names, schema.types, strict=True))
                self._schema = schema if columns is None else schema.empty_table().select([*columns]).schema
        self.count = sum(group.size for group in self._groups)
        self._held: list[pyarrow.RecordBatch] = []
        self._batches = _batches_from(self._groups, 0, kind)
        self.at = self._stop = 0  # the first row that is held, and the one behind the last

    def column(self, name: str, first: int, stop: int) -> pyarrow.Array:
        if stop > self.count:
            raise DatasetError(f"{self.path}: expected {stop} rows, the file has {self.count}")
        if first < self.at:
            raise ValueError(f"row {first} has gone by, the first that is held is {self.at}")
        # Rows that lie far ahead are read from the beginning of their group, and not from here on.
        if first >= self._stop + BATCH:
            self._batches, self._held = _batches_from(self._groups, first, self._kind), []
        while self._stop < stop and (following := next(self._batches, None)) is not None:
            begin, batch = following
            self.at = self.at if self._held else begin
            self._held.append(batch)
            self._stop = begin + len(batch)
            # Rows that are passed over are let go at once.
            while self._held and self.at + len(self._held[0]) <= first:
                self.at += len(self._held.pop(0))
        with _errors(self.path, self._kind):
            table = imported("pyarrow", WHO).Table.from_batches(self._held, self._schema)
            column = table.slice(first - self.at, stop - first).column(name).combine_chunks()
            # Some versions of Arrow give an array, others a single chunk.
            column = column.chunk(0) if hasattr(column, "chunk") else column
        if len(column) != stop - first:
            raise DatasetError(f"{self.path}: expected {stop} rows, got {first + len(column)}; fetch it again")
        return column


# No method: what is held of the tables, and the files, would go only with the next garbage collection.
def _batches_from(groups: Sequence[_Group], first: int, kind: str) -> Iterator[tuple[int, pyarrow.RecordBatch]]:
    # The batches, each with its first row, from the group on that has the row `first`: of others nothing is read.
    at = 0
    for group in groups:
        begin, at = at, at + group.size
        if at > first:
            with _errors(group.path, kind):
                for batch in group.batches():
                    yield begin, batch
                    begin += len(batch)


def _groups_of(path: str, columns: Sequence[str] | None, kind: str, most: int) -> tuple[pyarrow.Schema, list[_Group]]:
    if kind == "Parquet":
        table = _opened(path, columns or ())
        counts = [table.metadata.row_group(k).num_rows for k in range(table.metadata.num_row_groups)]
        wanted = None if columns is None else [*columns]
        reads = [functools.partial(table.iter_batches, most, [k], wanted) for k in range(len(counts))]
        return table.schema_arrow, [_Group(path, *group) for group in zip(counts, reads, strict=True)]
    arrow = imported("pyarrow", WHO)
    files.open_regular(path)[0].close()
    file = arrow.ipc.open_file(arrow.memory_map(path))

    def batches(number: int) -> Iterator[pyarrow.RecordBatch]:
        batch = file.get_batch(number)
        # Offsets and texts of a file of Arrow are taken as they are, and may lead anywhere.
        batch.validate(full=True)
        yield batch

    numbers = range(file.num_record_batches)
    return file.schema, [_Group(path, len(file.get_batch(k)), functools.partial(batches, k)) for k in numbers]


def table(path: str, columns: Sequence[str], more: Sequence[str] = ()) -> list[Json]:
    """All rows of a small table.

    It has to have the columns; more of them are read too if it has them.
    """
    with _errors(path):
        file = _opened(path, columns)
        there = [name for name in more if name in file.schema_arrow.names]
        rows: list[Json] = file.read(columns=[*columns, *there]).to_pylist()
        return rows


def numbers_of(column: pyarrow.Array, shape: Sequence[int], where: str) -> NumpyArray:
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
    files.open_regular(path)[0].close()
    file = imported("pyarrow.parquet", WHO).ParquetFile(path)
    there = file.schema_arrow.names
    if missing := sorted(set(columns) - set(there)):
        raise DatasetError(f"{path}: expected columns {missing[:10]}, there are {there[:30]}")
    return file


@contextlib.contextmanager
def _errors(path: str, kind: str = "Parquet") -> Iterator[None]:
    arrow = imported("pyarrow", WHO)
    try:
        yield
    except (arrow.ArrowException, files.UnusableFileError, UnicodeError, OSError) as error:
        # For damaged pages Arrow raises an OSError without a number. One with a number comes from the system.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DatasetError(f"{path}: expected a table of {kind}: {str(error).strip()}; fetch it again") from None
