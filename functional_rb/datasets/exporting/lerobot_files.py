"""The files of LeRobot's datasets: one for each episode (2.1), or for several (3.0), and those that tell of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from functional_rb.base.extras import imported
from functional_rb.base.strict_json import Json
from functional_rb.datasets.exporting.lerobot_features import Feature
from functional_rb.datasets.exporting.steps import WHO

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.parquet import ParquetWriter

# Files of a folder.
CHUNK = 1000
# Megabytes of a file with several episodes, about.
FILE = 100
# Episodes whose metadata are written at a time.
ROWS = 1000
Stats = Mapping[str, Json]


class Version2:
    """A table for each episode, and lines of JSON: `add` its rows, `end` it, and `finish` with the metadata of all."""

    def __init__(self, folder: str, features: Sequence[Feature]) -> None:
        self._folder, self._episode, self._table = folder, 0, _Table()

    def add(self, table: pyarrow.Table) -> None:
        chunk = os.path.join(self._folder, "data", f"chunk-{self._episode // CHUNK:03}")
        self._table.write(os.path.join(chunk, f"episode_{self._episode:06}.parquet"), table)

    def end(self, episode: Json, stats: Stats) -> None:
        self._table.close()
        self._line("episodes", {name: episode[name] for name in ("episode_index", "tasks", "length")})
        self._line("episodes_stats", {"episode_index": self._episode, "stats": stats})
        self._episode += 1

    def finish(self, info: Json, tasks: Sequence[str], stats: Stats) -> None:
        for k, task in enumerate(tasks):
            self._line("tasks", {"task_index": k, "task": task})
        layout = {
            "codebase_version": "v2.1",
            "chunks_size": CHUNK,
            "total_videos": 0,
            "total_chunks": -(-self._episode // CHUNK),
            "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        }
        _json(os.path.join(self._folder, "meta", "info.json"), {**info, **layout})

    def _line(self, name: str, content: Json) -> None:
        path = os.path.join(self._folder, "meta", f"{name}.jsonl")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(content, ensure_ascii=False) + "\n")


class Version3:
    """Tables of some episodes each, tables that tell of episodes, and files of JSON; used as `Version2` is."""

    def __init__(self, folder: str, features: Sequence[Feature]) -> None:
        self._folder, self._features = folder, features
        self._file, self._nbytes, self._table = 0, 0, _Table()
        self._episodes: list[Json] = []
        self._told = _Table()

    def add(self, table: pyarrow.Table) -> None:
        self._table.write(self._path("data", self._file), table)
        self._nbytes += table.nbytes

    def end(self, episode: Json, stats: Stats) -> None:
        """End an episode; the next one begins another file if this one is large."""
        places = {"chunk_index": self._file // CHUNK, "file_index": self._file % CHUNK}
        row = {**episode, **{f"data/{name}": number for name, number in places.items()}}
        row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        row |= {f"stats/{name}/{what}": value for name, numbers in stats.items() for what, value in numbers.items()}
        self._episodes.append(row)
        if len(self._episodes) == ROWS:
            self._tell()
        if self._nbytes >= FILE * 2**20:
            self._table.close()
            self._file, self._nbytes = self._file + 1, 0

    def finish(self, info: Json, tasks: Sequence[str], stats: Stats) -> None:
        arrow = imported("pyarrow", WHO)
        self._table.close()
        self._tell()
        self._told.close()
        # LeRobot finds a task by the index of a table of pandas.
        columns = [{"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"}]
        columns += [{"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object"}]
        index = {"index_columns": ["task"], "column_indexes": [], "columns": [{**x, "metadata": None} for x in columns]}
        table = arrow.table({"task_index": arrow.array(range(len(tasks)), arrow.int64()), "task": list(tasks)})
        table = table.replace_schema_metadata({"pandas": json.dumps({**index, "pandas_version": "2.0.0"})})
        imported("pyarrow.parquet", WHO).write_table(table, os.path.join(self._folder, "meta", "tasks.parquet"))
        _json(os.path.join(self._folder, "meta", "stats.json"), stats)
        layout = {
            "codebase_version": "v3.0",
            "chunks_size": CHUNK,
            "data_files_size_in_mb": FILE,
            "video_files_size_in_mb": 2 * FILE,
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        }
        _json(os.path.join(self._folder, "meta", "info.json"), {**info, **layout})

    def _tell(self) -> None:
        if not self._episodes:
            return
        arrow = imported("pyarrow", WHO)
        whole = arrow.int64()
        types = {"episode_index": whole, "tasks": arrow.list_(arrow.string()), "length": whole}
        types |= dict.fromkeys(("dataset_from_index", "dataset_to_index"), whole)
        places = [f"{of}/{name}_index" for of in ("data", "meta/episodes") for name in ("chunk", "file")]
        types |= dict.fromkeys(places, whole)
        for feature in self._features:
            value = arrow.float64()
            for _ in feature.shape:  # the statistics of an image have three axes too
                value = arrow.list_(value)
            types |= {f"stats/{feature.name}/{what}": value for what in ("mean", "std", "min", "max")}
            types[f"stats/{feature.name}/count"] = arrow.list_(whole)
        # The types are told, as a list that is empty in all of these episodes would get another one.
        table = arrow.Table.from_pylist(self._episodes, arrow.schema(types))
        self._told.write(self._path("meta/episodes", 0), table)
        self._episodes = []

    def _path(self, folder: str, file: int) -> str:
        name = os.path.join(f"chunk-{file // CHUNK:03}", f"file-{file % CHUNK:03}.parquet")
        return os.path.join(self._folder, *folder.split("/"), name)


Files = Version2 | Version3
VERSIONS: dict[str, type[Files]] = {"v2.1": Version2, "v3.0": Version3}


class _Table:
    def __init__(self) -> None:
        self._writer: ParquetWriter | None = None

    def write(self, path: str, rows: pyarrow.Table) -> None:
        if self._writer is None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._writer = imported("pyarrow.parquet", WHO).ParquetWriter(path, rows.schema)
        self._writer.write_table(rows)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


def _json(path: str, content: object) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=4, ensure_ascii=False)
