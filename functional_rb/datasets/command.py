"""`python -m functional_rb datasets`: list, info, get, convert, export; filter, split, concat, statistics."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Sequence

import numpy as np

from functional_rb.base.strict_json import Json, finite
from functional_rb.convert.json import to_json
from functional_rb.datasets.convert import Conversion
from functional_rb.datasets.dataset import Dataset, convert
from functional_rb.datasets.description import DESCRIPTION, PART, Summary, is_dataset, read_description
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.exporting.export import FORMATS
from functional_rb.datasets.fetching.fetch import fetch
from functional_rb.datasets.loading import absolute, prepare
from functional_rb.datasets.reader import Reader, folder_of, open_reader, prefixes
from functional_rb.datasets.sources import facts_of, source_of
from functional_rb.datasets.stored import Stored

WHO = "datasets"
# Numbers of a leaf that a page shows one by one.
MOST = 16


def _range(text: str) -> range:
    """Numbers given by the first and the one behind the last: "0:3"; or one alone.

    Example:
        >>> _range("2:4"), _range("7")
        (range(2, 4), range(7, 8))
    """
    first, colon, stop = text.partition(":")
    return range(int(first), int(stop)) if colon else range(int(first), int(first) + 1)


Arguments = dict[str, dict[str, object]]
OUT: Arguments = {"out": {"metavar": "OUT", "help": "the directory that is made"}}
ANY: Arguments = {"name": {"metavar": "NAME", "help": "the directory of a converted dataset, or a name, as for get"}}
SEVERAL: dict[str, object] = {"action": "append", "default": [], "metavar": "NAME=VALUE"}
# What each verb does, and its own arguments.
VERBS: dict[str, tuple[str, Arguments]] = {
    "list": ("list what is converted, and the prefixes of names", {}),
    "info": (
        "describe a dataset: converted, or as its reader finds it",
        {
            "name": {"metavar": "NAME", "help": "its name with a prefix, or the directory of a converted one"},
            "--picture": {"metavar": "FILE", "help": "draw a converted one to a file too, out.png say"},
        },
    ),
    "get": (
        "fetch and convert a dataset, and print the directory that load opens",
        {"name": {"metavar": "NAME", "help": "its name with a prefix, as minari:D4RL/door/human-v2"}},
    ),
    "convert": (
        "convert a dataset into a directory",
        {"name": {"metavar": "NAME", "help": "its prefix and the path of its files, as minari:/data/mine"}, **OUT},
    ),
    "export": (
        "write a dataset in a format of others, and print the name that reads it",
        {
            **ANY,
            "out": {"metavar": "OUT", "help": "the folder that is made; for Minari with a version, as walks-v0"},
            "--format": {"choices": FORMATS, "default": "minari", "help": "minari by default"},
            "--fact": {**SEVERAL, "help": "what is told of it, as author=Me; fps=10 for LeRobot; several times"},
        },
    ),
    "filter": (
        "some of the episodes of a dataset, as one of its own",
        {
            **ANY,
            **OUT,
            "--returns": {"metavar": "LOW:HIGH", "help": "those whose rewards sum to that, as 100: or :0"},
            "--lengths": {"metavar": "LOW:HIGH", "help": "those with so many steps, the bounds included"},
            "--ends": {"choices": ("terminated", "truncated"), "help": "those that end so"},
            "--about": {
                **SEVERAL,
                "help": "those of which the reader has told this, as seed=3; a list has to have it; several times",
            },
        },
    ),
    "split": (
        "several datasets, each with a share of the episodes",
        {
            **ANY,
            "out": {"nargs": "+", "metavar": "OUT", "help": "a directory for each share"},
            "--shares": {"required": True, "metavar": "A,B", "help": "of the episodes, as 0.9,0.1"},
            "--seed": {"type": int, "default": 0, "metavar": "N", "help": "of the drawing, 0 by default"},
            "--by": {"metavar": "NAME", "help": "episodes of which the reader has told the same stay together"},
        },
    ),
    "concat": ("the episodes of several datasets, one after the other", {"name": {**ANY["name"], "nargs": "+"}, **OUT}),
    "statistics": ("mean, deviation and bounds of all numbers of a dataset", ANY),
}
# The verbs that read a dataset in a format of others by the options of its reader, each an argument of its own.
READING = ("info", "get", "convert", "export")
# The options of the library's readers: what makes a value of a text (None for a flag), its name, and what it means.
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


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "datasets",
        help="list, describe and convert offline datasets",
        description="Offline datasets as buffers: list, describe, convert, filter, split and join them.",
    )
    verbs = command.add_subparsers(dest="verb", required=True)
    for name, (meaning, arguments) in VERBS.items():
        verb = verbs.add_parser(name, help=meaning)
        for flag, how in arguments.items():
            verb.add_argument(flag, **how)  # type: ignore[arg-type]  # which are those that argparse has
        verb.add_argument("--root", help="the folder where datasets lie")
        if name in ("list", "info", "statistics"):
            verb.add_argument("--json", action="store_true", help="print JSON in place of a page")
        if name == "list":
            continue
        if name != "info":
            verb.add_argument("--infos", default="", metavar="A,B", help="infos that are stored too; * for all")
            verb.add_argument("--wide", action="store_true", help="keep numbers of 64 bits")
        group = verb.add_argument_group("options of the reader")
        any_option = "any option of a reader, its value in JSON or a text; may be given several times"
        group.add_argument("--option", **SEVERAL, help=any_option)  # type: ignore[arg-type]  # the same
        for option, (kind, shown, meaning) in OPTIONS.items() if name in READING else ():
            flag, to = f"--{option.replace('_', '-')}", f"reader_{option}"
            if kind is None:
                group.add_argument(flag, dest=to, action="store_true", help=meaning)
            else:
                group.add_argument(flag, dest=to, type=kind, metavar=shown, help=meaning)


def run(arguments: argparse.Namespace, draw: Callable[[Stored, str], None]) -> int:
    try:
        if arguments.verb == "list":
            _show(listed(arguments.root), arguments.json)
        elif arguments.verb == "info":
            try:
                report = report_of(arguments.name, arguments.root, _options_of(arguments))
            except FileNotFoundError:
                # The licence, the addresses and the size of a dataset that is not here are known all the same.
                facts = facts_of(absolute(arguments.name))
                if any(facts.values()):
                    _show({"name": arguments.name, **facts}, arguments.json)
                raise
            _show(report, arguments.json)
            if arguments.picture:
                if not is_dataset(arguments.name):
                    raise ValueError(
                        f"info --picture: expected the directory of a converted dataset, got {arguments.name!r}; "
                        f"convert it by: python -m functional_rb datasets get {arguments.name}"
                    )
                draw(Stored(Dataset(arguments.name)), arguments.picture)
        else:
            _make(arguments)
    except (OSError, ValueError, ImportError) as error:
        print(f"datasets: {error}", file=sys.stderr)
        return 1
    return 0


def run_inspect(arguments: argparse.Namespace, draw: Callable[[Stored, str], None]) -> int:
    """Report on a converted dataset as `info` does, and return 1 if a byte is not as it was written, else 0."""
    report = report_of(arguments.path, None, {})
    try:
        Dataset(arguments.path, verify=True)
        report["problem"] = None
    except DatasetError as error:
        report["problem"] = str(error)
    _show(report, arguments.json)
    if arguments.plot:
        draw(Stored(Dataset(arguments.path)), arguments.plot)
    return int(report["problem"] is not None)


def _make(arguments: argparse.Namespace) -> None:
    # The verbs that make something of a dataset, which is fetched and converted first if need be.
    infos: bool | Sequence[str] = arguments.infos == "*" or sorted(filter(None, arguments.infos.split(",")))
    how, options = Conversion(narrow=not arguments.wide, infos=infos), _options_of(arguments)

    def directory(name: str) -> str:
        if is_dataset(name):
            return name
        folder = folder_of(arguments.root, WHO)
        try:
            _reader_of(name, folder, options)
        except FileNotFoundError:
            row = source_of(name)
            if not (row.files or row.hub or row.bucket):
                raise
            fetch(name, folder)
        return prepare(name, arguments.root, options, how)

    outputs = [arguments.out] if hasattr(arguments, "out") else []
    if arguments.verb == "get":
        outputs = [directory(arguments.name)]
    elif arguments.verb == "convert":
        if is_dataset(arguments.name):
            raise ValueError(f"convert: {arguments.name} is a converted dataset already, which load takes as it is")
        reader = _reader_of(arguments.name, folder_of(arguments.root, WHO), options)
        convert(reader, arguments.out, how, facts=facts_of(absolute(arguments.name)))
    elif arguments.verb == "export":
        facts = dict(map(_fact, arguments.fact))
        print(Dataset(directory(arguments.name)).export(arguments.out, arguments.format, facts=facts))
        return
    elif arguments.verb == "filter":
        keep = _kept(arguments)  # which may refuse what is given, before anything is fetched
        Dataset(directory(arguments.name)).filter(keep, arguments.out)
    elif arguments.verb == "concat":
        first, *others = [directory(name) for name in arguments.name]
        Dataset(first).concat(*others, to=arguments.out)
    elif arguments.verb == "split":
        try:
            shares = [float(share) for share in arguments.shares.split(",")]
        except ValueError:
            raise ValueError(f"--shares: expected numbers such as 0.9,0.1, got {arguments.shares!r}") from None
        by = None if arguments.by is None else lambda episode: repr(episode.about.get(arguments.by))
        Dataset(directory(arguments.name)).split(shares, arguments.out, arguments.seed, by)
        outputs = arguments.out
    else:
        _show(_numbers_of(directory(arguments.name), arguments.json), arguments.json)
    for path in outputs:
        print(os.path.abspath(path))


def _show(report: Json, as_json: bool) -> None:
    sys.stdout.write(json.dumps(finite(report), indent=2, allow_nan=False) + "\n" if as_json else _page(report))


def _page(report: Json, indent: str = "") -> str:
    lines = []
    for name, value in report.items():
        if isinstance(value, dict) and value and name != "item":
            lines.append(f"{indent}{name}\n{_page(value, indent + '  ')}")
        elif name != "item" and value not in ("", []):
            shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
            shown = f"{value:.6g}" if isinstance(value, float) else shown
            lines.append(f"{indent}{name}: {', '.join(map(str, value)) if isinstance(value, list) else shown}\n")
    return "".join(lines)


def listed(root: str | None) -> Json:
    """What is converted in the folder where datasets lie, and the prefixes of names."""
    converted = {}
    for directory, inside, names in sorted(os.walk(os.path.join(folder_of(root, WHO), "converted"))):
        inside.sort()
        if DESCRIPTION in names and not directory.endswith(PART):
            described = read_description(directory)
            converted[directory] = {"name": described.name, "steps": described.steps, "episodes": described.episodes}
    return {"prefixes": prefixes(), "converted": converted}


def report_of(name: str, root: str | None, options: Json) -> Json:
    """A report on a dataset, opened with options of its reader; of a converted one with lengths and returns."""
    if not is_dataset(name):
        reader = _reader_of(name, folder_of(root, WHO), options)
        steps = reader.spec(narrow=True)
        specs = {"observation": steps.observation, "action": steps.action, "infos": sorted(steps.infos)}
        shown = {key: repr(spec) for key, spec in specs.items()}
        return {"name": reader.name, **reader.counts, **shown, **facts_of(absolute(name)), **reader.facts}
    described = Dataset(name)
    nbytes = sum(entry.stat().st_size for entry in os.scandir(described.path))
    report: Json = {"name": described.name, "path": described.path}
    report |= {"steps": described.steps, "episodes": described.episodes}
    report |= {"dropped": described.dropped, "bytes": nbytes, "options": described.options}
    summaries = list(described.summaries())
    for what, numbers in (
        ("returns", [episode.total for episode in summaries]),
        ("lengths", [episode.steps for episode in summaries]),
    ):
        quantiles = np.quantile(np.asarray(numbers, np.float64), [0, 0.25, 0.5, 0.75, 1]).tolist()
        report[what] = dict(zip(("least", "quarter", "median", "three quarters", "most"), quantiles, strict=True))
    report["terminated"] = sum(episode.terminated for episode in summaries)
    return {**report, "item": json.loads(to_json(described.item)), "facts": described.facts}


def _numbers_of(path: str, whole: bool) -> Json:
    # The statistics of a dataset in JSON; for large leaves bounds alone, unless all numbers are wanted.
    numbers_of_all = Dataset(path).statistics()
    leaves = {}
    for name, leaf in numbers_of_all["leaves"].items():
        if leaf["mean"].size > MOST and not whole:
            bounds = {"mean": np.mean(leaf["mean"]), "min": np.min(leaf["min"]), "max": np.max(leaf["max"])}
            numbers = {what: float(number) for what, number in bounds.items()}
            leaves[name] = {"shape": list(leaf["mean"].shape), **numbers}
        else:
            leaves[name] = {what: x.tolist() for what, x in leaf.items()}
    return {**numbers_of_all, "leaves": leaves}


def _kept(arguments: argparse.Namespace) -> Callable[[Summary], bool]:
    returns, lengths = (_bounds(getattr(arguments, name), f"--{name}") for name in ("returns", "lengths"))
    wanted = [_named(text, "--about") for text in arguments.about]

    def keep(episode: Summary) -> bool:
        ends = "terminated" if episode.terminated else "truncated"
        return (
            returns[0] <= episode.total <= returns[1]
            and lengths[0] <= episode.steps <= lengths[1]
            and arguments.ends in (None, ends)
            and all(
                known == value or (isinstance(known, list) and value in known)
                for known, value in ((episode.about.get(name), value) for name, value in wanted)
            )
        )

    return keep


def _bounds(text: str | None, option: str) -> tuple[float, float]:
    # Two bounds, of which each may be missing.
    low, colon, high = (text or ":").partition(":")
    try:
        if colon:
            return float(low or -math.inf), float(high or math.inf)
    except ValueError:
        pass
    raise ValueError(f"{option}: expected LOW:HIGH, of which one may be missing, as 100: or :0, got {text!r}")


def _options_of(arguments: argparse.Namespace) -> Json:
    values = {name: getattr(arguments, f"reader_{name}", None) for name in OPTIONS}
    chosen = {name: value for name, value in values.items() if value is not None and value is not False}
    return chosen | dict(_named(text, "--option") for text in arguments.option)


def _named(text: str, option: str) -> tuple[str, object]:
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


def _fact(text: str) -> tuple[str, object]:
    # Facts are texts, apart from the steps of a second: an author may be called 7.
    name, value = _named(text, "--fact")
    if name != "fps":
        return name, text.partition("=")[2]
    if type(value) not in (int, float):
        raise ValueError(f"--fact: fps: expected a number, steps a second, got {value!r}")
    return name, float(str(value))


def _reader_of(name: str, folder: str, options: Json) -> Reader:
    try:
        return open_reader(name, folder, **options)
    except TypeError as error:  # the reader does not have this option
        raise ValueError(str(error)) from error
