"""Readers of formats with a row for each observation: they give whole episodes, of rows that are read as needed."""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.base.nest import nested
from functional_rb.base.strict_json import Json
from functional_rb.datasets.episode import DatasetError, Episode, StepSpec
from functional_rb.datasets.formats.npy import NpyStream
from functional_rb.datasets.pieces import Kind, repeated, spans, spec_of_values, steps_of_piece
from functional_rb.specs import Unbounded
from functional_rb.specs.base import SpecNest

# Where numbers stand in an episode: its field, as `Episode` has it, and the names of dicts in each other.
Path = tuple[str, ...]
Leaves = dict[Path, Kind]
# The paths of leaves, by those in a part of an episode.
Part = dict[Path, Path]
# Gives rows [first, stop).
Read = Callable[[int, int], NumpyArray]


@dataclasses.dataclass(frozen=True)
class Whole:
    """An episode, of which nothing has been read yet. Steps are counted from 0."""

    steps: int  # how many; row t of the observations is what step t begins from
    # Gives rows [first, stop) of what stands at a path. Of observations there are as many rows as steps, and one more
    # if the last one was observed.
    read: Callable[[Path, int, int], Nest]
    terminated: bool | Read  # whether the last step led to a terminal state; or what reads marks of steps
    final_observed: bool  # whether the last observation was observed
    file: str  # it is read from
    about: Mapping[str, object] = dataclasses.field(default_factory=dict)  # see `Episode`
    truncated: Read | None = None  # reads marks of steps; None where there are none


class RowReader(abc.ABC):
    """What readers of such formats have in common; see `Reader` for the attributes that all readers have.

    A format's own class says what its files hold, and gives the episodes.
    """

    # Of what a row has: ("observations", "arm"), ("actions",), ("infos", "success"). Without ("rewards",) they are
    # zeros.
    leaves: Leaves

    def __init__(self, name: str, files: Sequence[str], **counts: int) -> None:
        self.name, self.files = name, files
        self.facts: Json = {}
        self.counts: dict[str, int] = {**counts, "bytes": sum(map(os.path.getsize, files))}

    def spec(self, narrow: bool) -> StepSpec:
        fields = nested({path: self.spec_of(path, narrow) for path in self.leaves})
        reward = fields.get("rewards", Unbounded(()))
        return StepSpec(fields["observations"], fields["actions"], reward, fields.get("infos", {}))

    def spec_of(self, path: Path, narrow: bool) -> SpecNest:
        return spec_of_values(*self.leaves[path], narrow)

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        most = steps_of_piece(self.spec(narrow=False))
        # The leaves of each field and info, by their paths in it: found once, as episodes may have a step or two.
        parts: dict[Path, Part] = {}
        for path in self.leaves:
            at = path[: 2 if path[0] == "infos" else 1]
            parts.setdefault(at, {})[path[len(at) :]] = path
        for number, whole in enumerate(self.wholes(first, most), first):
            # It would be no episode for the converter, which resumes by the number of those that it was given.
            if whole.steps < 1:
                raise DatasetError(f"{whole.file}, episode {number}: expected some steps, got none")
            for begin, stop in spans(whole.steps, most):
                yield _piece(whole, parts, begin, stop)

    @abc.abstractmethod
    def wholes(self, first: int, most: int) -> Iterator[Whole]:
        """The episodes from one on, which are read in pieces of so many steps."""


def _piece(whole: Whole, parts: Mapping[Path, Part], first: int, stop: int) -> Episode:
    is_last, none = stop == whole.steps, np.zeros(stop - first, bool)
    # The observation after a piece is the first one of the next piece.
    is_seen = not is_last or whole.final_observed
    observations = _values(whole, parts["observations",], first, stop + is_seen)
    has_rewards = ("rewards",) in parts
    rewards = whole.read(("rewards",), first, stop) if has_rewards else np.zeros(stop - first, np.float32)
    if isinstance(whole.terminated, bool):
        terminated = none.copy()
        terminated[-1] = is_last and whole.terminated
    else:
        terminated = marks(whole.terminated(first, stop), f"{whole.file}, terminated")
    truncated = none if whole.truncated is None else marks(whole.truncated(first, stop), f"{whole.file}, truncated")
    return Episode(
        observations if is_seen else repeated(observations),
        _values(whole, parts["actions",], first, stop),
        rewards,
        terminated,
        truncated,
        _Infos(whole, parts, first, stop),
        final_observed=is_seen,
        goes_on=not is_last,
        file=whole.file,
        about=whole.about if first == 0 else {},
    )


def _values(whole: Whole, paths: Part, first: int, stop: int) -> Nest:
    return nested({inner: whole.read(path, first, stop) for inner, path in paths.items()})


class _Infos(Mapping[str, Nest]):
    # Infos are read only if they are stored: some, such as images, are most of a file.
    def __init__(self, whole: Whole, parts: Mapping[Path, Part], first: int, stop: int) -> None:
        self._whole, self._parts, self._first, self._stop = whole, parts, first, stop

    def __getitem__(self, name: str) -> Nest:
        return _values(self._whole, self._parts["infos", name], self._first, self._stop)

    # `Mapping` would read the values to say whether there are some.
    def __contains__(self, name: object) -> bool:
        return ("infos", name) in self._parts

    def __iter__(self) -> Iterator[str]:
        return (path[1] for path in self._parts if path[0] == "infos")

    def __len__(self) -> int:
        return sum(1 for _ in self)


def marks(values: NumpyArray, where: str) -> NumpyArray:
    """Marks of steps as bool. Formats have them in numbers of any dtype, 0 or 1: NaN is neither."""
    values = np.asarray(values)
    # A bool may be any byte, too, where it is read as the file has it.
    values = values.view(np.uint8) if values.dtype == bool else values
    marked = values.astype(bool)
    if (marked != values).any():
        raise DatasetError(f"{where}: expected marks, 0 or 1, got {values[marked != values].flat[0]}")
    return marked


class Forward:
    """Rows of an array in a stream, which are read from front to back; the last one of them also again."""

    def __init__(self, stream: NpyStream) -> None:
        self._stream = stream
        self._last = np.zeros((0, *stream.shape[1:]), stream.dtype)

    def rows(self, first: int, stop: int) -> NumpyArray:
        """Rows [first, stop), none of them before the last one that was read."""
        # What is skipped is read all the same, some rows at a time: a compressed stream has no other way.
        while self._stream.at < first:
            self._last = self._stream.rows(min(first - self._stream.at, 1024))[-1:]
        again = self._last[len(self._last) - (self._stream.at - first) :]
        rows = np.concatenate([again, self._stream.rows(stop - self._stream.at)])
        self._last = rows[-1:]
        return rows


def located(
    prefix: str, rest: str, root: str | None, locate: Callable[[str], str | None], what: str, *others: str
) -> str:
    """The path of a dataset's files: the name itself may be a path, else they lie below the folder where datasets lie.

    `locate` gives the path of the files at a place, None if they are not there; what it looks for the error names, and
    all places. `others` are folders where others keep such datasets.
    """
    folders = [*others] if root is None else [os.path.join(root, prefix), *others]
    # A name that leads out of these folders may be a path alone.
    places = [rest, *(os.path.join(folder, rest) for folder in folders if ".." not in rest.split("/"))]
    for place in places:
        if path := locate(place):
            return os.path.abspath(path)
    raise FileNotFoundError(
        f"{prefix}:{rest}: expected {what} in {' or '.join(map(os.path.abspath, places))}; fetch the dataset first, or "
        f"give the path of its files"
    )


def file_that(fits: Callable[[str], bool]) -> Callable[[str], str | None]:
    """What locates the file at a place; or, if a folder is there, the first file in it whose name fits; or None."""

    def locate(place: str) -> str | None:
        if os.path.isfile(place):
            return place
        names = sorted(os.listdir(place)) if os.path.isdir(place) else []
        return next((os.path.join(place, name) for name in names if fits(name)), None)

    return locate


def same_rows(arrays: Mapping[str, NumpyArray], n: int, where: str) -> None:
    for name, array in arrays.items():
        if not array.shape or array.shape[0] != n:
            raise DatasetError(f"{where}, {name}: expected {n} rows, got shape {array.shape}")
