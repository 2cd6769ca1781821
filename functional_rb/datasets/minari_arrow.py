"""Minari's episodes in Arrow or Parquet: a folder for each, with a table of T + 1 rows, of which the last has padding.

Episodes whose last observation is missing have T rows, and no padding: their own metadata say how many steps there are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from functional_rb.base import files
from functional_rb.base.extras import imported
from functional_rb.base.strict_json import Json
from functional_rb.datasets.episode import Array, DatasetError, Episode
from functional_rb.datasets.formats import images
from functional_rb.datasets.minari_folder import Folder, is_image, specs_of_infos
from functional_rb.datasets.pieces import Lazy, can_be_stored, repeated, spans

METADATA = "metadata.json"
WHO = "datasets: minari"


class Arrow:
    """Folders with tables, one for each episode; see `minari.Layout`."""

    def __init__(self, folder: Folder, kind: str) -> None:
        self._folder, self._kind = folder, kind
        self._tables = [self._found(k) for k in range(folder.episodes)]
        self.files = [path for paths in self._tables for path in paths]
        self._infos: dict[str, object] = {}
        if self._tables:
            schema = next(self._batches(0, 1)).schema
            if "infos" in schema.names:
                self._infos = _kinds(schema.field("infos").type)

    def infos(self, narrow: bool) -> Mapping[str, Any]:
        """Those of the first episode that are numbers."""
        specs: dict[str, Any] = specs_of_infos(self._infos, narrow)
        return specs

    def episodes(self, first: int, most: int) -> Iterator[Episode]:
        for k in range(first, self._folder.episodes):
            yield from self._pieces(k, most)

    def _pieces(self, k: int, most: int) -> Iterator[Episode]:
        folder, path = self._folder, os.path.join(self._folder.path, str(k))
        where, about = f"{path}, episode {k}", _about(os.path.join(path, METADATA))
        n, window = about["total_steps"], _Window(self._batches(k, most), where)
        for first, stop in spans(n, most):
            rows = window.rows(first, stop + 1)
            if len(rows) < stop + 1 - first and (stop < n or len(rows) < stop - first):
                raise DatasetError(f"{where}: expected {n} or {n + 1} rows, got {first + len(rows)}")
            steps, observed = stop - first, len(rows) > stop - first
            if stop == n and window.goes_on(stop + 1):
                raise DatasetError(f"{where}: expected {n} or {n + 1} rows, got more")
            names = ("rewards", "terminations", "truncations")
            rewards, terminated, truncated = (
                _numbers(window.column(rows, name), (), where, name)[:steps] for name in names
            )
            observations = self._values(window.column(rows, "observations"), folder.observation, where, "observations")
            actions = window.column(rows, "actions").slice(0, steps)
            yield Episode(
                observations if observed else repeated(observations),
                self._values(actions, folder.action, where, "actions"),
                rewards,
                terminated,
                truncated,
                self._lazy(window, rows, steps, where),
                final_observed=observed,
                goes_on=stop < n,
                file=path,
                about={name: about[name] for name in ("id", "seed", "options") if name in about},
            )

    def _lazy(self, window: _Window, rows: Any, steps: int, where: str) -> Lazy:
        """What the steps have returned: the infos of the reset come first, if there are any."""

        def read(name: str) -> Any:
            infos = window.column(rows, "infos")
            found = _info(_field(infos, name, where, "infos"), self._infos[name], where, f"infos/{name}")
            return _last_rows(found, steps)

        return Lazy(self._infos, read)

    def _values(self, array: Any, space: Any, where: str, name: str) -> Any:
        kind = type(space).__name__
        if kind in ("Dict", "Tuple"):
            parts = space.spaces.items() if kind == "Dict" else enumerate(space.spaces)
            made = {}
            for key, part in parts:
                made[key] = self._values(_field(array, str(key), where, name), part, where, f"{name}/{key}")
            return made if kind == "Dict" else tuple(made.values())
        if kind == "Text":
            return array.to_pylist()
        if self._folder.jpeg and is_image(space) and "binary" in str(array.type):
            return images.decoded(array.to_pylist(), space.shape, np.uint8, f"{where}, {name}", ("JPEG",))
        return _numbers(array, space.shape, where, name)

    def _found(self, k: int) -> list[str]:
        folder = os.path.join(self._folder.path, str(k))
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        found = [os.path.join(folder, name) for name in names if not name.startswith((".", "_")) and name != METADATA]
        if not found:
            raise DatasetError(f"{folder}: expected the episode's table, got nothing; fetch the dataset again")
        return found

    def _batches(self, k: int, most: int) -> Iterator[Any]:
        arrow = imported("pyarrow", WHO)
        for path in self._tables[k]:
            try:
                os.close(files.open_regular(path)[0])
                if self._kind == "parquet":
                    with imported("pyarrow.parquet", WHO).ParquetFile(path) as file:
                        yield from file.iter_batches(batch_size=most)
                    continue
                with arrow.memory_map(path) as source, arrow.ipc.open_file(source) as file:
                    for number in range(file.num_record_batches):
                        batch = file.get_batch(number)
                        batch.validate(full=True)
                        yield batch
            except (arrow.ArrowException, files.UnusableFileError, OSError) as error:
                raise DatasetError(f"{path}: expected a table of {self._kind}: {error}; fetch it again") from None


class _Window:
    """Some rows of tables that are read once, from the first to the last."""

    def __init__(self, batches: Iterator[Any], where: str) -> None:
        self._batches, self._where = batches, where
        self._parts: list[Any] = []
        self._first = 0  # the row with which the parts begin

    def rows(self, first: int, stop: int) -> Any:
        """Rows [first, stop) of those that are there; those before them are given up."""
        arrow = imported("pyarrow", WHO)
        while self._stop < stop and (batch := next(self._batches, None)) is not None:
            self._parts.append(batch)
        while self._parts and self._first + len(self._parts[0]) <= first:
            self._first += len(self._parts.pop(0))
        if not self._parts:
            raise DatasetError(f"{self._where}: the table has no row {first}")
        return arrow.Table.from_batches(self._parts).slice(first - self._first, stop - first)

    @property
    def _stop(self) -> int:
        return self._first + sum(map(len, self._parts))

    def goes_on(self, row: int) -> bool:
        return self._stop > row or any(len(batch) for batch in self._batches)

    def column(self, rows: Any, name: str) -> Any:
        if name not in rows.column_names:
            raise DatasetError(f"{self._where}: there is no column {name!r}, expected some of {rows.column_names}")
        column = rows[name].combine_chunks()
        return column.chunk(0) if hasattr(column, "chunk") else column


def _field(array: Any, name: str, where: str, of: str) -> object:
    if not hasattr(array.type, "get_field_index") or array.type.get_field_index(name) < 0:
        raise DatasetError(f"{where}, {of}: there is no {name!r} in {array.type}")
    return array.field(name)


def _numbers(array: Any, shape: tuple[int, ...], where: str, name: str) -> Array:
    """The numbers [n, *shape] of a column; flat if they are not as many."""
    kind = str(array.type)
    flat = array.flatten() if kind.startswith("fixed_size_list") else array
    if flat.null_count or array.null_count or not can_be_stored(_dtype(flat.type)):
        raise DatasetError(f"{where}, {name}: expected numbers, got {kind} with {array.null_count} of them missing")
    found: Array = flat.to_numpy(zero_copy_only=False)
    return found.reshape(len(array), *shape) if found.size == len(array) * _size(shape) else found


def _dtype(kind: Any) -> np.dtype[Any]:
    """What NumPy has for a type of Arrow: "object" if it has nothing."""
    try:
        return np.dtype(kind.to_pandas_dtype())
    except (NotImplementedError, TypeError):  # so Arrow says of structs and times; and NumPy of types of pandas
        return np.dtype(object)


def _kinds(struct: Any) -> dict[str, Any]:
    """Shapes and dtypes of the infos that are numbers, by name, nested."""
    made: dict[str, object] = {}
    for number in range(struct.num_fields):
        field = struct.field(number)
        kind = str(field.type)
        if kind.startswith("struct"):
            inner = _kinds(field.type)
            if inner:
                made[field.name] = inner
            continue
        is_list = kind.startswith("fixed_size_list")
        value = field.type.value_type if is_list else field.type
        shape: tuple[int, ...] = (field.type.list_size,) if is_list else ()
        told = (field.metadata or {}).get(b"shape")
        if told is not None:
            shape = tuple(int(size) for size in told.split(b",") if size)
        dtype = _dtype(value)
        if can_be_stored(dtype) and _size(shape) == (field.type.list_size if is_list else 1):
            made[field.name] = shape, dtype
    return made


def _info(array: Any, part: Any, where: str, name: str) -> Any:
    if isinstance(part, dict):
        return {
            key: _info(_field(array, key, where, name), inner, where, f"{name}/{key}") for key, inner in part.items()
        }
    return _numbers(array, part[0], where, name)


def _last_rows(values: Any, n: int) -> object:
    if isinstance(values, dict):
        return {name: _last_rows(part, n) for name, part in values.items()}
    return values[len(values) - n :]


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _about(path: str) -> Json:
    try:
        content = json.loads(files.read_text(path))
    except (OSError, files.UnusableFileError, ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: expected what is told of an episode, in JSON: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("total_steps"), int) or content["total_steps"] < 1:
        raise DatasetError(f"{path}: total_steps: expected how many there are, got {content!r:.60}")
    return content
