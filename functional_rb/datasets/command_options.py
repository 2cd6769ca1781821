"""Options of readers on the command line: those that the library's readers have, and any of one's own."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from functional_rb.datasets.reader import Reader, open_reader


def numbers(text: str) -> range:
    """Numbers given by the first and the one behind the last: "0:3"; or one alone.

    Example:
        >>> numbers("2:4"), numbers("7")
        (range(2, 4), range(7, 8))
    """
    first, colon, stop = text.partition(":")
    return range(int(first), int(stop)) if colon else range(int(first), int(first) + 1)


# Of the readers in the library: what makes a value of a text (None for a flag), its name, and what it means.
OPTIONS: dict[str, tuple[Callable[[str], Any] | None, str, str]] = {
    "video": (str, "NAME", "lerobot: what decodes videos, pyav or module:function; else they are left out"),
    "split": (str, "NAME", "rlds, openx: the part of the dataset, train by default"),
    "last": (str, "KIND", "rlds, openx: what the last step of an episode is, padding (by default) or step"),
    "reward_of": (str, "PART", "d4rl, roboset: whether rewards are those of the row's action or observation"),
    "jump": (float, "FAR", "d4rl: an episode ends where the first two coordinates change by more"),
    "checkpoints": (numbers, "FROM:TO", "atari_dqn: those that are read, as 0:3"),
    "target": (str, "COLUMN", "openml: the column with the classes"),
    "one_hot": (None, "", "openml: categories as vectors of zeros and a one"),
    "episodes": (int, "N", "gymnasium: how many are recorded"),
    "seed": (int, "N", "gymnasium: of the first episode and the actions"),
    "max_length": (int, "N", "minari: the most elements of a Sequence, and nodes of a Graph"),
    "max_edges": (int, "N", "minari: the most edges of a Graph"),
}


def add_to(verb: argparse.ArgumentParser, by_name: bool) -> None:
    """Add the options to those of a verb; each by its own name too, or all by `--option` alone."""
    group = verb.add_argument_group("options of the reader")
    for name, (kind, shown, meaning) in OPTIONS.items() if by_name else ():
        flag = f"--{name.replace('_', '-')}"
        if kind is None:
            group.add_argument(flag, dest=f"reader_{name}", action="store_true", help=meaning)
        else:
            group.add_argument(flag, dest=f"reader_{name}", type=kind, metavar=shown, help=meaning)
    own = "any option of a reader, its value in JSON or a text; may be given several times"
    group.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help=own)


def given_by(given: argparse.Namespace) -> dict[str, Any]:
    """The options of the reader that were given."""
    found = {name: getattr(given, f"reader_{name}", None) for name in OPTIONS}
    chosen = {name: value for name, value in found.items() if value is not None and value is not False}
    for text in given.option:
        name, value = named(text, "--option")
        chosen[name] = value
    return chosen


def named(text: str, option: str) -> tuple[str, Any]:
    """A name and a value, in JSON or a text.

    Example:
        >>> named("seed=7", "--option"), named("task=open it", "--option")
        (('seed', 7), ('task', 'open it'))
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{option}: expected NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def reader_of(name: str, folder: str, options: dict[str, Any]) -> Reader:
    """The reader of a dataset."""
    try:
        return open_reader(name, folder, **options)
    except TypeError as error:
        raise ValueError(str(error)) from error
