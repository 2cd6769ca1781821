"""`python -m functional_rb datasets`: list, info, get, convert, export; filter, split, concat, statistics."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functional_rb.base.strict_json import Json
from functional_rb.convert.json import to_json
from functional_rb.datasets.convert import Conversion, convert
from functional_rb.datasets.derived import concat, filter_episodes, split
from functional_rb.datasets.description import DESCRIPTION, Description, is_dataset, read_description
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.exporting.export import FORMATS, export
from functional_rb.datasets.fetching.fetch import fetch
from functional_rb.datasets.loading import absolute, info, prepare
from functional_rb.datasets.reader import Reader, folder_of, open_reader, prefixes
from functional_rb.datasets.sources import facts_of, source_of
from functional_rb.datasets.statistics import statistics
from functional_rb.datasets.stored import Stored, Summary

WHO = "datasets"
Told = Json
DERIVED = ("filter", "split", "concat", "statistics")
# Numbers of a leaf that a page shows one by one.
MOST = 16


def add_to(commands: Any) -> None:
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
    derived = _add_derived(verbs)
    for verb in (listing, about, getting, made, out, *derived):
        verb.add_argument("--root", help="the folder where datasets lie")
    for verb in (listing, about, derived[-1]):
        verb.add_argument("--json", action="store_true", help="print JSON in place of a page")
    for verb in (about, getting, made, out, *derived):
        _add_options(verb, by_name=verb not in derived)
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
        options = _options_of(given)

        def directory(name: str) -> str:
            return name if is_dataset(name) else _gotten(name, given.root, options, kept)

        if given.verb == "get":
            print(_gotten(given.name, given.root, options, kept))
        elif given.verb == "export":
            print(export(directory(given.name), given.out, given.format, facts=dict(map(_fact, given.fact))))
        elif given.verb == "statistics":
            _show(_numbers_of(directory(given.name), given.json), given.json)
        elif given.verb in DERIVED:
            print("\n".join(map(os.path.abspath, _derived(given, directory))))
        else:
            if is_dataset(given.name):
                raise ValueError(f"convert: {given.name} is a converted dataset already, which load takes as it is")
            convert(
                _reader_of(given.name, folder_of(given.root, WHO), options),
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
        info(given.path, verify=True)
        told["problem"] = None
    except DatasetError as error:
        told["problem"] = str(error)
    _show(told, given.json)
    if given.plot:
        draw(Stored(given.path), given.plot)
    return int(told["problem"] is not None)


def _inform(given: argparse.Namespace, draw: Callable[[Stored, str], None]) -> None:
    try:
        told = told_of(given.name, given.root, _options_of(given))
    except FileNotFoundError:
        facts = facts_of(absolute(given.name))
        if any(facts.values()):
            _show({"name": given.name, **facts}, given.json)
        raise
    _show(told, given.json)
    if given.picture:
        if not is_dataset(given.name):
            raise ValueError(
                f"info --picture: expected the directory of a converted dataset, got {given.name!r}; convert it by: "
                f"python -m functional_rb datasets get {given.name}"
            )
        draw(Stored(given.name), given.picture)


def _show(told: Told, as_json: bool) -> None:
    sys.stdout.write(json.dumps(told, indent=2) + "\n" if as_json else _page(told))


def _gotten(name: str, root: str | None, options: Told, kept: Conversion) -> str:
    folder = folder_of(root, WHO)
    try:
        _reader_of(name, folder, options)
    except FileNotFoundError:
        row = source_of(name)
        if not (row.files or row.hub or row.bucket):
            raise
        fetch(name, folder)
    return prepare(name, root, options, kept)


def _fact(text: str) -> tuple[str, object]:
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
    reader = _reader_of(name, folder_of(root, WHO), options)
    steps = reader.spec(narrow=True)
    told = {"name": reader.name, **reader.counts}
    specs = {"observation": steps.observation, "action": steps.action, "infos": sorted(steps.infos)}
    shown = {key: repr(spec) for key, spec in specs.items()}
    return {**told, **shown, **facts_of(absolute(name)), **reader.facts}


def _of_converted(reader: Stored) -> Told:
    described: Description = reader.description
    told: Told = {"name": described.name, "path": reader.path, "steps": described.steps, "episodes": described.episodes}
    told |= {"dropped": described.dropped, "bytes": reader.counts["bytes"], "options": described.options}
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


def _add_derived(verbs: Any) -> list[argparse.ArgumentParser]:
    name = "the directory of a converted dataset, or a name, as for get"
    some = verbs.add_parser("filter", help="some of the episodes of a dataset, as one of its own")
    some.add_argument("name", metavar="NAME", help=name)
    some.add_argument("out", metavar="OUT", help="the directory that is made")
    some.add_argument("--returns", metavar="LOW:HIGH", help="those whose rewards sum to that, as 100: or :0")
    some.add_argument("--lengths", metavar="LOW:HIGH", help="those with so many steps, the bounds included")
    some.add_argument("--ends", choices=("terminated", "truncated"), help="those that end so")
    about = "those of which the reader has told this, as seed=3; a list has to have it; may be given several times"
    some.add_argument("--about", action="append", default=[], metavar="NAME=VALUE", help=about)
    parts = verbs.add_parser("split", help="several datasets, each with a share of the episodes")
    parts.add_argument("name", metavar="NAME", help=name)
    parts.add_argument("out", nargs="+", metavar="OUT", help="a directory for each share")
    parts.add_argument("--shares", required=True, metavar="A,B", help="of the episodes, as 0.9,0.1")
    parts.add_argument("--seed", type=int, default=0, metavar="N", help="of the drawing, 0 by default")
    parts.add_argument("--by", metavar="NAME", help="episodes of which the reader has told the same stay together")
    joined = verbs.add_parser("concat", help="the episodes of several datasets, one after the other")
    joined.add_argument("name", nargs="+", metavar="NAME", help=name)
    joined.add_argument("out", metavar="OUT", help="the directory that is made")
    numbers = verbs.add_parser("statistics", help="mean, deviation and bounds of all numbers of a dataset")
    numbers.add_argument("name", metavar="NAME", help=name)
    return [some, parts, joined, numbers]


def _derived(given: argparse.Namespace, directory: Callable[[str], str]) -> list[str]:
    """Make datasets.

    Returns:
        The directories that were made.
    """
    if given.verb == "filter":
        keep = _kept(given)  # which may refuse what is given, before anything is fetched
        filter_episodes(directory(given.name), keep, given.out)
        return [given.out]
    if given.verb == "concat":
        concat([directory(name) for name in given.name], given.out)
        return [given.out]
    try:
        shares = [float(share) for share in given.shares.split(",")]
    except ValueError:
        raise ValueError(f"--shares: expected numbers such as 0.9,0.1, got {given.shares!r}") from None
    by = None if given.by is None else lambda episode: repr(episode.about.get(given.by))
    split(directory(given.name), shares, given.out, given.seed, by)
    return list(given.out)


def _numbers_of(path: str, whole: bool) -> Json:
    """What `statistics` has of a dataset, in values of JSON."""
    told = statistics(path)
    leaves = {}
    for name, leaf in told["leaves"].items():
        if leaf["mean"].size > MOST and not whole:
            bounds = {"mean": np.mean(leaf["mean"]), "min": np.min(leaf["min"]), "max": np.max(leaf["max"])}
            numbers = {what: float(number) for what, number in bounds.items()}
            leaves[name] = {"shape": list(leaf["mean"].shape), **numbers}
        else:
            leaves[name] = {what: x.tolist() for what, x in leaf.items()}
    return {**told, "leaves": leaves}


def _kept(given: argparse.Namespace) -> Callable[[Summary], bool]:
    returns, lengths = (_bounds(getattr(given, name), f"--{name}") for name in ("returns", "lengths"))
    told = [_named(text, "--about") for text in given.about]

    def keep(episode: Summary) -> bool:
        ends = "terminated" if episode.terminated else "truncated"
        return (
            returns[0] <= episode.total <= returns[1]
            and lengths[0] <= episode.steps <= lengths[1]
            and given.ends in (None, ends)
            and all(
                known == value or (isinstance(known, list) and value in known)
                for known, value in ((episode.about.get(name), value) for name, value in told)
            )
        )

    return keep


def _bounds(text: str | None, option: str) -> tuple[float, float]:
    """Two bounds, of which each may be missing."""
    low, colon, high = (text or ":").partition(":")
    try:
        if colon:
            return float(low or -math.inf), float(high or math.inf)
    except ValueError:
        pass
    raise ValueError(f"{option}: expected LOW:HIGH, of which one may be missing, as 100: or :0, got {text!r}")


def _range(text: str) -> range:
    """Numbers given by the first and the one behind the last: "0:3"; or one alone.

    Example:
        >>> _range("2:4"), _range("7")
        (range(2, 4), range(7, 8))
    """
    first, colon, stop = text.partition(":")
    return range(int(first), int(stop)) if colon else range(int(first), int(first) + 1)


# Of the readers in the library: what makes a value of a text (None for a flag), its name, and what it means.
OPTIONS: dict[str, tuple[Callable[[str], object] | None, str, str]] = {
    "video": (str, "NAME", "lerobot: what decodes videos, pyav or module:function; else they are left out"),
    "split": (str, "NAME", "rlds, openx: the part of the dataset, train by default"),
    "last": (str, "KIND", "rlds, openx: what the last step of an episode is, padding (by default) or step"),
    "reward_of": (str, "PART", "d4rl, roboset: whether rewards are those of the row's action or observation"),
    "jump": (float, "FAR", "d4rl: an episode ends where the first two coordinates change by more"),
    "checkpoints": (_range, "FROM:TO", "atari_dqn: those that are read, as 0:3"),
    "target": (str, "COLUMN", "openml: the column with the classes"),
    "one_hot": (None, "", "openml: categories as vectors of zeros and a one"),
    "episodes": (int, "N", "gymnasium: how many are recorded"),
    "seed": (int, "N", "gymnasium: of the first episode and the actions"),
    "max_length": (int, "N", "minari: the most elements of a Sequence, and nodes of a Graph"),
    "max_edges": (int, "N", "minari: the most edges of a Graph"),
}


def _add_options(verb: argparse.ArgumentParser, by_name: bool) -> None:
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


def _options_of(given: argparse.Namespace) -> Json:
    found = {name: getattr(given, f"reader_{name}", None) for name in OPTIONS}
    chosen = {name: value for name, value in found.items() if value is not None and value is not False}
    for text in given.option:
        name, value = _named(text, "--option")
        chosen[name] = value
    return chosen


def _named(text: str, option: str) -> tuple[str, Any]:
    """A name and a value, in JSON or a text.

    Example:
        >>> _named("seed=7", "--option"), _named("task=open it", "--option")
        (('seed', 7), ('task', 'open it'))
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{option}: expected NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _reader_of(name: str, folder: str, options: Json) -> Reader:
    try:
        return open_reader(name, folder, **options)
    except TypeError as error:
        raise ValueError(str(error)) from error
