"""`python -m functional_rb datasets`: list, info, get, convert, export; filter, split, concat, statistics."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functional_rb.convert.json import to_json
from functional_rb.datasets import command_derived, command_options
from functional_rb.datasets.convert import Conversion, convert
from functional_rb.datasets.description import DESCRIPTION, Description, is_dataset, read_description
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.exporting.export import FORMATS, export
from functional_rb.datasets.fetching.fetch import fetch
from functional_rb.datasets.loading import absolute, prepare, verify
from functional_rb.datasets.reader import folder_of, prefixes
from functional_rb.datasets.sources import facts_of, source_of
from functional_rb.datasets.stored import Stored

WHO = "datasets"
Told = dict[str, Any]


def add_to(commands: Any) -> None:
    """Add the command to those of the program."""
    command = commands.add_parser(
        "datasets",
        help="list, describe and convert offline datasets",
        description="Offline datasets as buffers: list, describe, convert, filter, split and join them.",
    )
    verbs = command.add_subparsers(dest="verb", required=True)
    listing = verbs.add_parser("list", help="list what is converted, and the prefixes of names")
    about = verbs.add_parser("info", help="describe a dataset: converted, or as its reader finds it")
    about.add_argument("name", metavar="NAME", help="its name with a prefix, or the directory of a converted one")
    about.add_argument("--picture", metavar="FILE", help="draw a converted one to a file too, out.png say")
    getting = verbs.add_parser("get", help="fetch and convert a dataset, and print the directory that load opens")
    getting.add_argument("name", metavar="NAME", help="its name with a prefix, as minari:D4RL/door/human-v2")
    made = verbs.add_parser("convert", help="convert a dataset into a directory")
    made.add_argument("name", metavar="NAME", help="its prefix and the path of its files, as minari:/data/mine")
    made.add_argument("out", metavar="OUT", help="the directory that is made")
    out = verbs.add_parser("export", help="write a dataset in a format of others, and print the name that reads it")
    out.add_argument("name", metavar="NAME", help="the directory of a converted dataset, or a name, as for get")
    out.add_argument("out", metavar="OUT", help="the folder that is made; for Minari with a version, as walks-v0")
    out.add_argument("--format", choices=FORMATS, default="minari", help="minari by default")
    facts = "what is told of it, as author=Me; fps=10 for LeRobot; may be given several times"
    out.add_argument("--fact", action="append", default=[], metavar="NAME=VALUE", help=facts)
    derived = command_derived.add_to(verbs)
    for verb in (listing, about, getting, made, out, *derived):
        verb.add_argument("--root", help="the folder where datasets lie")
    for verb in (listing, about, derived[-1]):
        verb.add_argument("--json", action="store_true", help="print JSON in place of a page")
    for verb in (about, getting, made, out, *derived):
        command_options.add_to(verb, by_name=verb not in derived)
    for verb in (getting, made, out, *derived):
        verb.add_argument("--infos", default="", metavar="A,B", help="infos that are stored too; * for all")
        verb.add_argument("--wide", action="store_true", help="keep numbers of 64 bits")


def run(given: argparse.Namespace, draw: Callable[[Stored, str], None]) -> int:
    """Do what the command line says.

    Returns:
        0 if all went well, else 1.
    """
    try:
        if given.verb == "list":
            _show(listed(given.root), given.json)
            return 0
        if given.verb == "info":
            _inform(given, draw)
            return 0
        infos: bool | Sequence[str] = given.infos == "*" or sorted(filter(None, given.infos.split(",")))
        kept = Conversion(narrow=not given.wide, infos=infos)
        options = command_options.given_by(given)

        def directory(name: str) -> str:
            return name if is_dataset(name) else _gotten(name, given.root, options, kept)

        if given.verb == "get":
            print(_gotten(given.name, given.root, options, kept))
        elif given.verb == "export":
            print(export(directory(given.name), given.out, given.format, facts=dict(map(_fact, given.fact))))
        elif given.verb == "statistics":
            _show(command_derived.numbers_of(directory(given.name), given.json), given.json)
        elif given.verb in command_derived.VERBS:
            print("\n".join(map(os.path.abspath, command_derived.made(given, directory))))
        else:
            if is_dataset(given.name):
                raise ValueError(f"convert: {given.name} is a converted dataset already, which load takes as it is")
            convert(
                command_options.reader_of(given.name, folder_of(given.root, WHO), options),
                given.out,
                kept,
                facts=facts_of(absolute(given.name)),
            )
            print(os.path.abspath(given.out))
    except (OSError, ValueError, ImportError) as error:
        print(f"datasets: {error}", file=sys.stderr)
        return 1
    return 0


def run_inspect(given: argparse.Namespace, draw: Callable[[Stored, str], None]) -> int:
    """What `inspect` does with the directory of a converted dataset: all that `info` does, and every byte is verified.

    Returns:
        0 if all is as it was written, else 1.
    """
    told = told_of(given.path, None, {})
    try:
        verify(given.path)
        told["problem"] = None
    except DatasetError as error:
        told["problem"] = str(error)
    _show(told, given.json)
    if given.plot:
        draw(Stored(given.path), given.plot)
    return int(told["problem"] is not None)


def _inform(given: argparse.Namespace, draw: Callable[[Stored, str], None]) -> None:
    """Print what is known of a dataset, and draw it."""
    try:
        told = told_of(given.name, given.root, command_options.given_by(given))
    except FileNotFoundError:
        facts = facts_of(absolute(given.name))
        if any(facts.values()):
            _show({"name": given.name, **facts}, given.json)
        raise
    _show(told, given.json)
    if given.picture:
        draw(_converted(given.name), given.picture)


def _show(told: Told, as_json: bool) -> None:
    sys.stdout.write(json.dumps(told, indent=2) + "\n" if as_json else _page(told))


def _gotten(name: str, root: str | None, options: Told, kept: Conversion) -> str:
    folder = folder_of(root, WHO)
    try:
        command_options.reader_of(name, folder, options)
    except FileNotFoundError:
        row = source_of(name)
        if not (row.files or row.hub or row.bucket):
            raise
        fetch(name, folder)
    return prepare(name, root, options, kept)


def _fact(text: str) -> tuple[str, Any]:
    """A name, and what is told by it."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"--fact: expected NAME=VALUE, got {text!r}")
    if name != "fps":
        return name, value
    try:
        return name, float(value)
    except ValueError:
        raise ValueError(f"--fact: fps: expected a number, steps a second, got {value!r}") from None


def listed(root: str | None) -> Told:
    """What is converted in the folder where datasets lie, and the prefixes of names."""
    folder = os.path.join(folder_of(root, WHO), "converted")
    found = {}
    for directory, inside, names in sorted(os.walk(folder)):
        inside.sort()
        if DESCRIPTION in names and not directory.endswith(".part"):
            described = read_description(directory)
            found[directory] = {"name": described.name, "steps": described.steps, "episodes": described.episodes}
    return {"prefixes": prefixes(), "converted": found}


def told_of(name: str, root: str | None, options: Told) -> Told:
    """What is known of a dataset, by options of its reader; of a converted one how long and good its episodes are."""
    if is_dataset(name):
        return _of_converted(Stored(name))
    reader = command_options.reader_of(name, folder_of(root, WHO), options)
    counts = reader.counts
    steps = reader.spec(narrow=True)
    told = {"name": reader.name, "episodes": counts.episodes, "steps": counts.steps, "bytes": counts.nbytes}
    specs = {"observation": steps.observation, "action": steps.action, "infos": sorted(steps.infos)}
    shown = {key: repr(spec) for key, spec in specs.items()}
    return {**told, **shown, **facts_of(absolute(name)), **reader.facts}


def _converted(name: str) -> Stored:
    if not is_dataset(name):
        raise ValueError(
            f"info --picture: expected the directory of a converted dataset, got {name!r}; convert it by: "
            f"python -m functional_rb datasets get {name}"
        )
    return Stored(name)


def _of_converted(reader: Stored) -> Told:
    described: Description = reader.description
    told: Told = {"name": described.name, "path": reader.path, "steps": described.steps, "episodes": described.episodes}
    told |= {"dropped": described.dropped, "bytes": reader.counts.nbytes, "options": described.options}
    summaries = list(reader.summaries())
    for what, numbers in (
        ("returns", [episode.total for episode in summaries]),
        ("lengths", [episode.steps for episode in summaries]),
    ):
        quantiles = np.quantile(np.asarray(numbers, np.float64), [0, 0.25, 0.5, 0.75, 1]).tolist()
        told[what] = dict(zip(("least", "quarter", "median", "three quarters", "most"), quantiles, strict=True))
    told["terminated"] = sum(episode.terminated for episode in summaries)
    return {**told, "item": json.loads(to_json(described.item)), "facts": described.facts}


def _page(told: Told, indent: str = "") -> str:
    """Names and values as lines, those of parts further right."""
    lines = []
    for name, value in told.items():
        if isinstance(value, dict) and value and name != "item":
            lines.append(f"{indent}{name}\n{_page(value, indent + '  ')}")
        elif name != "item" and value not in ("", []):
            shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
            shown = f"{value:.6g}" if isinstance(value, float) else shown
            lines.append(f"{indent}{name}: {', '.join(map(str, value)) if isinstance(value, list) else shown}\n")
    return "".join(lines)
