"""The protocol of readers of datasets, and where they are found by the prefix of a dataset's name."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from functional_rb.base.files import as_path, cache_folder
from functional_rb.datasets.description import is_dataset, read_description
from functional_rb.datasets.episode import Episode, StepSpec
from functional_rb.datasets.stored import Stored


class Reader(Protocol):
    """What reads a dataset in some format of others. Opening one reads next to nothing."""

    @property
    def name(self) -> str:
        """The dataset's name with its prefix, such as "minari:D4RL/door/human-v2"."""

    @property
    def files(self) -> Sequence[str]:
        """The paths of the files that it is read from.

        An unfinished conversion is resumed as long as their sizes and times are the same.
        """

    @property
    def counts(self) -> Mapping[str, int]:
        """How many "episodes" and "steps" there are, and "bytes" in the files; unknown ones are left out."""

    @property
    def facts(self) -> Mapping[str, object]:
        """What the files say of the dataset, in values of JSON: its authors, the environment, what is lossy."""

    def spec(self, narrow: bool) -> StepSpec:
        """The specs of the dataset's steps.

        Args:
            narrow: whether 64-bit numbers are to be stored in 32 bits.
        """

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """Its episodes from one on, always the same, in the same order and the same pieces.

        Raises:
            ValueError: naming file, episode and field.
        """


# The environment variable that names the folder where datasets lie.
ROOT = "FUNCTIONAL_RB_DATASETS"
# Opens the reader of a dataset, given what follows the prefix, and as `root=` the folder where datasets lie.
Opener = Callable[..., Reader]

# The prefixes of readers, and the modules that have a function `open_PREFIX`: none is imported before it is needed.
_BUILT_IN = {name: name for name in ("atari_dqn", "d4rl", "gen_dgrl", "gymnasium", "lerobot", "minari", "openml")}
_BUILT_IN |= {"openx": "rlds", "rlds": "rlds", "roboset": "roboset", "vd4rl": "vd4rl"}
_REGISTERED: dict[str, Opener] = {}


def register(prefix: str, opener: Opener) -> None:
    """Have the datasets of a prefix read by a reader of one's own.

    Args:
        prefix: what comes before the colon of their names: "mine" for "mine:pick/place". It may be a known one.
        opener: called as `opener(rest, root=root, **options)` with what follows the colon; returns a `Reader`.

    Raises:
        TypeError: for an opener that cannot be called.
        ValueError: for a prefix that is empty, or has a colon or a slash in it.

    Example:
        >>> register("mine", lambda rest, root, **options: open_mine(rest))  # doctest: +SKIP
    """
    if not callable(opener):
        raise TypeError(f"datasets.register: expected a function that opens a reader, got {opener!r:.80}")
    if not prefix or ":" in prefix or "/" in prefix or os.sep in prefix:
        raise ValueError(f"datasets.register: expected a prefix such as 'mine', without ':' and '/', got {prefix!r}")
    _REGISTERED[prefix] = opener


def prefixes() -> list[str]:
    return sorted({*_BUILT_IN, *_REGISTERED})


def folder_of(root: str | os.PathLike[str] | None, who: str) -> str:
    if root is None:
        root = os.environ.get(ROOT) or cache_folder("datasets")
    return os.path.abspath(as_path(root, who))


def split_name(name: object) -> tuple[str, str]:
    if not isinstance(name, str):
        raise TypeError(f"datasets: expected a name such as 'minari:D4RL/door/human-v2', got {name!r}")
    prefix, colon, rest = name.partition(":")
    if not colon or not rest or prefix not in prefixes():
        raise ValueError(
            f"datasets: expected a name such as 'minari:D4RL/door/human-v2', with one of the prefixes "
            f"{', '.join(prefixes())}, or the folder of a converted dataset, got {name!r}"
        )
    return prefix, rest


def open_reader(name: str | os.PathLike[str], root: str | os.PathLike[str] | None = None, **options: object) -> Reader:
    """The reader of a dataset by its name, with the options of the reader.

    Or that of the directory of a converted dataset, which has no options. `root` is the folder where datasets lie.
    """
    if root is not None and not isinstance(root, str | os.PathLike):
        raise TypeError(f"datasets: expected root as the path of a folder, got {root!r}")
    there: object = name  # users give anything
    if isinstance(there, str | os.PathLike) and is_dataset(there) and not options:
        return Stored(read_description(os.fspath(there)))
    prefix, rest = split_name(name)
    opener = _REGISTERED.get(prefix)
    if opener is None:
        module = importlib.import_module(f"functional_rb.datasets.{_BUILT_IN[prefix]}")
        opener = getattr(module, f"open_{prefix}")
    # Else Python would name the function that opens it, of which the user knows nothing.
    parameters = inspect.signature(opener).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    unknown = [option for option in options if option not in known]
    if unknown and all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
        raise TypeError(
            f"{name}: there is no option {', '.join(map(repr, unknown))}: of its own this reader has "
            f"{', '.join(known) or 'none'}; the others are in help(frb.datasets.load)"
        )
    return opener(rest, root=None if root is None else os.fspath(root), **options)
