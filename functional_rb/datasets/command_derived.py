"""The verbs that make datasets of datasets, and the one that describes them by numbers."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from functional_rb.datasets.command_options import named
from functional_rb.datasets.derived import concat, filter_episodes, split
from functional_rb.datasets.statistics import statistics
from functional_rb.datasets.stored import Summary

VERBS = ("filter", "split", "concat", "statistics")
# Numbers of a leaf that a page shows one by one.
MOST = 16


def add_to(verbs: Any) -> list[argparse.ArgumentParser]:
    """Add the verbs; gives them."""
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


def made(given: argparse.Namespace, directory: Callable[[str], str]) -> list[str]:
    """Make datasets.

    Returns:
        The directories that were made.
    """
    if given.verb == "filter":
        keep = _kept(given)
        filter_episodes(directory(given.name), keep, given.out)
        return [given.out]
    if given.verb == "concat":
        concat([directory(name) for name in given.name], given.out)
        return [given.out]
    try:
        shares = [float(share) for share in given.shares.split(",")]
    except ValueError:
        raise ValueError(f"--shares: expected numbers such as 0.9,0.1, got {given.shares!r}") from None
    split(directory(given.name), shares, given.out, given.seed, _key(given.by))
    return list(given.out)


def numbers_of(path: str, whole: bool) -> dict[str, Any]:
    """What `statistics` has of a dataset, in values of JSON."""
    told = statistics(path)
    leaves = {}
    for name, leaf in told["leaves"].items():
        is_large = leaf["mean"].size > MOST and not whole
        leaves[name] = _shape_and_bounds(leaf) if is_large else {what: x.tolist() for what, x in leaf.items()}
    return {**told, "leaves": leaves}


def _shape_and_bounds(leaf: dict[str, Any]) -> dict[str, Any]:
    numbers = {"mean": np.mean(leaf["mean"]), "min": np.min(leaf["min"]), "max": np.max(leaf["max"])}
    return {"shape": list(leaf["mean"].shape), **{what: float(number) for what, number in numbers.items()}}


def _kept(given: argparse.Namespace) -> Callable[[Summary], bool]:
    returns, lengths = (_bounds(getattr(given, name), f"--{name}") for name in ("returns", "lengths"))
    told = [named(text, "--about") for text in given.about]

    def keep(episode: Summary) -> bool:
        ends = "terminated" if episode.terminated else "truncated"
        return (
            returns[0] <= episode.total <= returns[1]
            and lengths[0] <= episode.steps <= lengths[1]
            and given.ends in (None, ends)
            and all(_has(episode.about.get(name), value) for name, value in told)
        )

    return keep


def _has(told: Any, value: Any) -> bool:
    return told == value or (isinstance(told, list) and value in told)


def _bounds(text: str | None, option: str) -> tuple[float, float]:
    """Two bounds, of which each may be missing."""
    low, colon, high = (text or ":").partition(":")
    try:
        if colon:
            return float(low or -math.inf), float(high or math.inf)
    except ValueError:
        pass
    raise ValueError(f"{option}: expected LOW:HIGH, of which one may be missing, as 100: or :0, got {text!r}")


def _key(name: str | None) -> Callable[[Summary], Hashable] | None:
    return None if name is None else lambda episode: repr(episode.about.get(name))
