"""Minari's episodes in Arrow or Parquet: a folder for each, with a table of T + 1 rows, of which the last has padding.

Episodes whose last observation is missing have T rows, and no padding: their own metadata say how many steps there are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from functional_rb.base.arrays import Nest
from functional_rb.base.strict_json import Json
from functional_rb.datasets.by_rows import Leaves, Path, Read, Whole
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats import images
from functional_rb.datasets.formats.json_files import json_object
from functional_rb.datasets.minari_folder import METADATA, Minari
from functional_rb.datasets.parquet import Rows, numbers_of
from functional_rb.datasets.pieces import Kind, can_be_stored

if TYPE_CHECKING:
    import pyarrow


class Arrow(Minari):
    """Reads folders with tables, one for each episode. Its infos are those of the first one that are numbers."""

    def __init__(self, name: str, path: str, metadata: Json, limits: tuple[int | None, int | None]) -> None:
        self._kind = metadata["data_format"].capitalize()
        super().__init__(name, path, metadata, limits)
        if self._tables:
            columns = Rows(self._tables[0][0], kind=self._kind).kinds
            if "infos" in columns:
                self.leaves |= _kinds(columns["infos"], ("infos",))

    def tables(self, episodes: int) -> list[str]:
        self._tables = [_tables(os.path.join(self.path, str(k))) for k in range(episodes)]
        return [path for paths in self._tables for path in paths]

    def wholes(self, first: int, most: int) -> Iterator[Whole]:
        for k in range(first, len(self._tables)):
            path = os.path.join(self.path, str(k))
            where, file = f"{path}, episode {k}", os.path.join(path, METADATA)
            about = json_object(file, "the metadata of an episode", json.loads)
            if not isinstance(about.get("total_steps"), int) or about["total_steps"] < 1:
                raise DatasetError(f"{file}: total_steps: expected how many there are, got {about!r:.60}")
            n, rows = about["total_steps"], Rows(self._tables[k], kind=self._kind, most=most)
            if rows.count not in (n, n + 1):
                raise DatasetError(f"{where}: expected {n} or {n + 1} rows, got {rows.count}")
            yield self._episode(rows, n, rows.count - n, path, where, about)

    def _episode(self, rows: Rows, n: int, before: int, path: str, where: str, about: Json) -> Whole:
        # An episode of n steps; if its last observation is there, the infos of the reset are too, and come before.
        def column(name: str, first: int, stop: int) -> pyarrow.Array:
            if name not in rows.kinds:
                raise DatasetError(f"{where}: there is no column {name!r}, expected some of {[*rows.kinds]}")
            return rows.column(name, first, stop)

        def marks(name: str) -> Read:
            return lambda first, stop: numbers_of(column(name, first, stop), (), f"{where}, {name}")

        def read(leaf: Path, first: int, stop: int) -> Nest:
            (name, *inner), (shape, _) = leaf, self.leaves[leaf]
            if leaf in self.spaces:
                return self._values(column(name, first, stop), self.spaces[leaf], where, name)
            shift = before if name == "infos" else 0
            array = column(name, first + shift, stop + shift)
            for key in inner:
                array, name = _field(array, key, where, name), f"{name}/{key}"
            return numbers_of(array, shape, f"{where}, {name}")

        facts: Json = {name: about[name] for name in ("id", "seed", "options") if name in about}
        return Whole(n, read, marks("terminations"), before > 0, path, facts, marks("truncations"))

    def _values(self, array: pyarrow.Array, space: Any, where: str, name: str) -> Nest:
        kind = type(space).__name__
        if kind in ("Dict", "Tuple"):
            values = {}
            for key, subspace in space.spaces.items() if kind == "Dict" else enumerate(space.spaces):
                values[key] = self._values(_field(array, str(key), where, name), subspace, where, f"{name}/{key}")
            return values if kind == "Dict" else tuple(values.values())
        if kind == "Text":
            return array.to_pylist()
        # Compressed, an image is a row of bytes; else its numbers lie there as those of other arrays.
        if self.is_compressed(space) and "binary" in str(array.type):
            return images.decoded(array.to_pylist(), space.shape, np.uint8, f"{where}, {name}", ("JPEG",))
        return numbers_of(array, space.shape, f"{where}, {name}")


def _tables(folder: str) -> list[str]:
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    paths = [os.path.join(folder, name) for name in names if not name.startswith((".", "_")) and name != METADATA]
    if not paths:
        raise DatasetError(f"{folder}: expected the episode's table, got nothing; fetch the dataset again")
    return paths


def _field(array: pyarrow.Array, name: str, where: str, of: str) -> pyarrow.Array:
    if not hasattr(array.type, "get_field_index") or array.type.get_field_index(name) < 0:
        raise DatasetError(f"{where}, {of}: there is no {name!r} in {array.type}")
    return array.field(name)


def _kinds(struct: pyarrow.StructType, path: Path) -> Leaves:
    # The numbers in a struct, by their paths below that of the struct.
    kinds: dict[Path, Kind] = {}
    for number in range(struct.num_fields):
        field = struct.field(number)
        if str(field.type).startswith("struct"):
            kinds |= _kinds(field.type, (*path, field.name))
            continue
        is_list = str(field.type).startswith("fixed_size_list")
        size = field.type.list_size if is_list else 1
        # Arrays of several axes lie flat, with their shapes beside them.
        sizes = (field.metadata or {}).get(b"shape", str(size).encode() if is_list else b"")
        shape = tuple(int(n) for n in sizes.split(b",") if n)
        try:
            dtype = np.dtype((field.type.value_type if is_list else field.type).to_pandas_dtype())
        except (NotImplementedError, TypeError):  # so Arrow says of times, and NumPy of types of pandas
            continue
        if can_be_stored(dtype) and np.prod(shape, dtype=np.int64) == size:
            kinds[*path, field.name] = shape, dtype
    return kinds
