"""Where datasets come from: licence, addresses and size by the dataset's name, from the table `sources.json`."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import json
import os
from typing import Any

TABLE = os.path.join(os.path.dirname(__file__), "sources.json")


@dataclasses.dataclass(frozen=True)
class Source:
    """A row of the table; what is not known is empty.

    Attributes:
        names: which datasets it is of, with "*" for any text: "minari:D4RL/*".
        licence: under which they may be used.
        urls: where they lie; "{name}" stands for what comes after the prefix.
        nbytes: of all files, for a single dataset.
        sha256: of files, by their names.
        cite: the paper.
    """

    names: str
    licence: str = ""
    urls: tuple[str, ...] = ()
    nbytes: int | None = None
    sha256: dict[str, str] = dataclasses.field(default_factory=dict)
    cite: str = ""


@functools.cache
def table() -> tuple[Source, ...]:
    """All rows."""
    with open(TABLE, encoding="utf-8") as file:
        return tuple(Source(**{**row, "urls": tuple(row.get("urls", ()))}) for row in json.load(file))


def source_of(name: str) -> Source:
    """The row of a dataset, the most exact one that fits its name; an empty one if nothing is known.

    Example:
        >>> source_of("mine:unheard/of")
        Source(names='mine:unheard/of', licence='', urls=(), nbytes=None, sha256={}, cite='')
    """
    found = [row for row in table() if fnmatch.fnmatchcase(name, row.names)]
    return max(found, key=lambda row: len(row.names), default=Source(name))


def facts_of(name: str) -> dict[str, Any]:
    """What is known of a dataset, in values of JSON."""
    row = source_of(name)
    rest = name.partition(":")[2]
    return {"licence": row.licence, "urls": [url.replace("{name}", rest) for url in row.urls], "cite": row.cite}
