"""Where the episodes of a dataset of LeRobot lie: in files of their own (2.1), or side by side in larger ones (3.0)."""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from functional_rb.base import files, strict_json
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.fetching.paths import checked
from functional_rb.datasets.parquet import table

FROM, TO = "dataset_from_index", "dataset_to_index"
INFO, LINES, TABLES = "meta/info.json", "meta/episodes.jsonl", "meta/episodes/chunk-*/file-*.parquet"


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an episode lies.

    Attributes:
        number: of the episode.
        steps: how many rows it has.
        file: the table that it is in.
        row: the first of its rows there.
        tasks: what was to be done, in words.
        videos: of each feature that is a video, its file, and the second at which the episode begins there.
    """

    number: int
    steps: int
    file: str
    row: int
    tasks: list[str]
    videos: Mapping[str, tuple[str, float]]


def places(folder: str, info: Mapping[str, Any]) -> list[Place]:
    """The episodes, in the order of their numbers."""
    version = str(info.get("codebase_version"))
    videos = [name for name, told in info["features"].items() if told.get("dtype") == "video"]
    try:
        if version.startswith("v2."):
            return _checked(_version_2(folder, info, videos), folder)
        if version.startswith("v3."):
            return _checked(_version_3(folder, info, videos), folder)
    except (KeyError, TypeError, AttributeError) as error:
        raise DatasetError(f"{folder}: expected metadata of LeRobot, {error!r} is missing or of another kind") from None
    raise DatasetError(f"{folder}/{INFO}: codebase_version: expected v2.0, v2.1 or v3.0, got {version!r}")


def _checked(found: Iterator[Place], folder: str) -> list[Place]:
    """Places whose numbers are some, and each of another episode."""
    made: list[Place] = []
    for place in found:
        where = f"{folder}, episode {place.number}"
        for name, number in (("episode_index", place.number), ("length", place.steps), (FROM, place.row)):
            if type(number) is not int or number < 0:
                what = "how many rows" if name == "length" else "a number from 0 on"
                raise DatasetError(f"{where}: {name}: expected {what}, got {number!r:.60}")
        if made and made[-1].number == place.number:
            raise DatasetError(f"{where}: the metadata have it twice, expected each episode once")
        made.append(place)
    return made


def _version_2(folder: str, info: Mapping[str, Any], videos: list[str]) -> Iterator[Place]:
    path = os.path.join(folder, LINES)
    try:
        rows = [strict_json.parse(line) for line in files.read_text(path).splitlines() if line.strip()]
    except (files.UnusableFileError, ValueError, RecursionError, FileNotFoundError) as error:
        raise DatasetError(f"{path}: expected a line of JSON for each episode: {error}") from None
    for row in sorted(rows, key=lambda row: row["episode_index"]):
        k = row["episode_index"]
        numbers = {"episode_index": k, "episode_chunk": k // info.get("chunks_size", 1000)}
        paths = {name: (_path(folder, info["video_path"], {**numbers, "video_key": name}), 0.0) for name in videos}
        yield Place(k, row["length"], _path(folder, info["data_path"], numbers), 0, row.get("tasks", []), paths)


def _version_3(folder: str, info: Mapping[str, Any], videos: list[str]) -> Iterator[Place]:
    names = ["episode_index", "length", "tasks", "data/chunk_index", "data/file_index"]
    parts = ("chunk_index", "file_index", "from_timestamp")
    names += [f"videos/{name}/{part}" for name in videos for part in parts]
    rows: list[dict[str, Any]] = []
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), TABLES))):
        rows += table(path, names, [FROM, TO])
    rows.sort(key=lambda row: row["episode_index"])
    data = [_path(folder, info["data_path"], {part: row[f"data/{part}"] for part in parts[:2]}) for row in rows]
    for row, file, first in zip(rows, data, _first_rows(rows, data, folder), strict=True):
        paths = {}
        for name in videos:
            numbers = {part: row[f"videos/{name}/{part}"] for part in parts[:2]}
            path = _path(folder, info["video_path"], {**numbers, "video_key": name})
            paths[name] = (path, float(row[f"videos/{name}/from_timestamp"]))
        yield Place(row["episode_index"], row["length"], file, first, list(row["tasks"]), paths)


def _first_rows(rows: list[dict[str, Any]], data: list[str], folder: str) -> list[int]:
    """Where episodes begin in their tables.

    Rows are numbered through all tables, and each table begins with an episode. Where the numbers are not told, the
    episodes of a table lie in the order of their numbers.
    """
    made: list[int] = []
    if any(row.get(FROM) is None or row.get(TO) is None for row in rows):
        ends: dict[str, int] = {}
        for row, file in zip(rows, data, strict=True):
            made.append(ends.get(file, 0))
            ends[file] = made[-1] + row["length"]
        return made
    begins: dict[str, int] = {}
    for row, file in zip(rows, data, strict=True):
        if row[TO] - row[FROM] != row["length"]:
            raise DatasetError(
                f"{folder}, episode {row['episode_index']}: length: expected {TO} - {FROM}, which is {row[TO]} - "
                f"{row[FROM]}, got {row['length']!r:.60}"
            )
        begins[file] = min(begins.get(file, row[FROM]), row[FROM])
    return [row[FROM] - begins[file] for row, file in zip(rows, data, strict=True)]


def _path(folder: str, template: str, values: Mapping[str, Any]) -> str:
    """The path that a template such as "data/chunk-{chunk_index:03d}/file.parquet" stands for."""

    def filled(match: re.Match[str]) -> str:
        value = values[match[1]]
        return f"{value:0{int(match[2] or 0)}d}" if isinstance(value, int) else str(value)

    name = re.sub(r"\{(\w+)(?::0?(\d{1,2})d)?\}", filled, template)
    try:
        return os.path.join(folder, *checked(name).split("/"))
    except ValueError as error:
        raise DatasetError(f"{folder}/{INFO}: {template!r}: {error}") from None
