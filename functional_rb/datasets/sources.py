"""Where datasets come from: licence, addresses, files and sizes by the dataset's name, from the table `sources.json`.

What several rows tell of a dataset is put together; the row whose names are longest says it last. In texts, "{name}"
stands for what comes after the prefix, "{head}" for its part before the first "/", "{tail}" for the rest of it, and
"{stem}" for all before its first "-".
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import json
import os
import re
from typing import Any

from functional_rb.base.strict_json import Json

TABLE = os.path.join(os.path.dirname(__file__), "sources.json")


@dataclasses.dataclass(frozen=True)
class Source:
    """A row of the table; what is not known is empty."""

    names: str  # which datasets it is of, with "*" for any text: "minari:D4RL/*"
    licence: str = ""  # under which the datasets may be used
    homepage: str = ""  # the page of those who made the datasets
    urls: tuple[str, ...] = ()  # where the datasets lie
    # The address of each file, by its path below the folder of the prefix.
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    hub: str = ""  # the repository on Hugging Face that the files are in, "owner/name"
    bucket: str = ""  # the bucket of Google's cloud storage that the files are in
    folder: str = ""  # the folder in the repository or bucket
    into: str = ""  # the path of that folder below the folder of the prefix, "{name}" if it is empty
    # About how large all files of a single dataset are: "83.44 MiB". The figures are those of the catalog of TensorFlow
    # Datasets: for D4RL the size of the download, from the catalog or the checksums that it comes of; for Open
    # X-Embodiment the size of the dataset, of version 0.1.0. Users read it, and nothing is checked by it: D4RL has
    # replaced files at their addresses.
    size: str = ""
    # The exact size of all files of a single dataset, which a fetched file has to have.
    nbytes: int | None = None
    sha256: dict[str, str] = dataclasses.field(default_factory=dict)  # the checksums of files, by their names
    cite: str = ""  # the paper


@functools.cache
def table() -> tuple[Source, ...]:
    with open(TABLE, encoding="utf-8") as file:
        return tuple(Source(**{**row, "urls": tuple(row.get("urls", ()))}) for row in json.load(file))


def source_of(name: str) -> Source:
    """What the table tells of a dataset, with its name put in; nothing if it is unknown, or the path of files.

    Of files at a path, which has to be absolute, the origin is not known.

    Example:
        >>> source_of("mine:unheard/of").licence
        ''
        >>> source_of("d4rl:/data/mine.hdf5").licence
        ''
        >>> source_of("vd4rl:main/walker_walk/expert/64px").folder
        'vd4rl/main/walker_walk/expert/64px'
    """
    # A path that happens to have the name of a known dataset in it must not get that one's licence.
    if os.path.isabs(name.partition(":")[2]):
        return Source(name)
    # Rows of whole families come first, so that what a row says of one dataset replaces it.
    rows = sorted((row for row in table() if fnmatch.fnmatchcase(name, row.names)), key=lambda row: len(row.names))
    known: Json = {}
    for row in rows:
        known |= {field.name: value for field in dataclasses.fields(row) if (value := getattr(row, field.name))}
    return Source(**{key: _filled(value, name) for key, value in known.items()} | {"names": name})


def _filled(value: object, name: str) -> Any:
    rest = name.partition(":")[2]
    head, _, tail = rest.partition("/")
    known = {"name": rest, "head": head, "tail": tail, "stem": rest.partition("-")[0]}
    if isinstance(value, str):
        return re.sub(r"\{(\w+)\}", lambda match: known[match[1]], value)
    if isinstance(value, tuple):
        return tuple(_filled(inner, name) for inner in value)
    if isinstance(value, dict):
        return {_filled(key, name): _filled(inner, name) for key, inner in value.items()}
    return value


def facts_of(name: str) -> Json:
    """What is known of a dataset, in values of JSON.

    Example:
        >>> facts_of("openx:bridge")["size"]
        '387.49 GiB'
    """
    row = source_of(name)
    urls = [*row.urls, *row.files.values()]
    return {"licence": row.licence, "homepage": row.homepage, "urls": urls, "size": row.size, "cite": row.cite}
