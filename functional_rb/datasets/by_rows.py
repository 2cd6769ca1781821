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
from functional_rb.specs import freeze
from functional_rb.specs.base import SpecNest

# The names of dicts in each other, () for what is no dict.
Path = tuple[str, ...]
Leaves = Mapping[Path, Kind]
# Gives rows [first, stop) of a nest.
Read = Callable[[int, int], Nest]


@dataclasses.dataclass(frozen=True)
class Whole:
    """An episode, of which nothing has been read yet. Steps are counted from 0.

    Attributes:
        steps: how many; row t of the observations is what step t begins from.
        observations: there are as many rows as steps, and one more if the last one was observed.
        actions, rewards, infos: of steps; `rewards` of None are zeros.
        terminated: whether the last step led to a terminal state; or what reads marks of steps.
        final_observed: whether the last observation was observed.
        file: it is read from.
        about: see `Episode`.
        truncated: reads marks of steps; None where there are none.
    """

    steps: int
    observations: Read
    actions: Read
    rewards: Read | None
    terminated: bool | Read
    final_observed: bool
    file: str
    infos: Mapping[str, Read] = dataclasses.field(default_factory=dict)
    about: Mapping[str, object] = dataclasses.field(default_factory=dict)
    truncated: Read | None = None

    def pieces(self, most: int) -> Iterator[Episode]:
        """The episode in pieces of so many steps."""
        for first, stop in spans(self.steps, most):
            is_last, none = stop == self.steps, np.zeros(stop - first, bool)
            # The observation after a piece is the first one of the next piece.
            is_seen = not is_last or self.final_observed
            observations = self.observations(first, stop + is_seen)
            if isinstance(self.terminated, bool):
                terminated = none.copy()
                terminated[-1] = is_last and self.terminated
            else:
                terminated = self.terminated(first, stop).astype(bool)
            yield Episode(
                observations if is_seen else repeated(observations),
                self.actions(first, stop),
                np.zeros(stop - first, np.float32) if self.rewards is None else self.rewards(first, stop),
                terminated,
                none if self.truncated is None else self.truncated(first, stop).astype(bool),
                _Infos(self.infos, first, stop),
                final_observed=is_seen,
                goes_on=not is_last,
                file=self.file,
                about=self.about if first == 0 else {},
            )


class _Infos(Mapping[str, Nest]):
    # Infos are read only if they are stored: some, such as images, are most of a file.
    def __init__(self, infos: Mapping[str, Read], first: int, stop: int) -> None:
        self._infos, self._first, self._stop = infos, first, stop

    def __getitem__(self, name: str) -> Nest:
        return self._infos[name](self._first, self._stop)

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)


class RowReader(abc.ABC):
    """What readers of such formats have in common; see `Reader` for the attributes that all readers have.

    A format's own class says what its files hold, and gives the episodes.

    Attributes:
        observation, action: of what a row has, by their paths.
        reward: of a row.
        infos: the same for what else a row has, by name.
    """

    observation: Leaves
    action: Leaves
    reward: Kind = ((), np.float32)
    infos: Mapping[str, Leaves]

    def __init__(self, name: str, files: Sequence[str], **counts: int) -> None:
        self.name, self.files, self.infos = name, files, {}
        self.facts: Json = {}
        self.counts: dict[str, int] = {**counts, "bytes": sum(map(os.path.getsize, files))}

    def spec(self, narrow: bool) -> StepSpec:
        observation, action = (spec_of_leaves(leaves, narrow) for leaves in (self.observation, self.action))
        infos = {name: spec_of_leaves(leaves, narrow) for name, leaves in self.infos.items()}
        return StepSpec(observation, action, spec_of_values(*self.reward, narrow), infos)

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        most = steps_of_piece(self.spec(narrow=False))
        for whole in self.wholes(first, most):
            yield from whole.pieces(most)

    @abc.abstractmethod
    def wholes(self, first: int, most: int) -> Iterator[Whole]:
        """The episodes from one on, which are read in pieces of so many steps."""


def spec_of_leaves(leaves: Leaves, narrow: bool) -> SpecNest:
    return freeze(nested({path: spec_of_values(*kind, narrow) for path, kind in leaves.items()}))


def of(array: NumpyArray, shift: int = 0) -> Read:
    """What reads rows of an array, from the row `shift` on."""
    return lambda first, stop: array[first + shift : stop + shift]


def by_first_name(leaves: Leaves) -> dict[str, Leaves]:
    """Leaves as infos: by the first name of their paths, and the rest of these."""
    groups: dict[str, dict[Path, Kind]] = {}
    for path, kind in leaves.items():
        if path:
            groups.setdefault(path[0], {})[path[1:]] = kind
    return dict(groups)


def nested_read(leaves: Mapping[Path, Read]) -> Read:
    return lambda first, stop: nested({path: read(first, stop) for path, read in leaves.items()})


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


def same_rows(arrays: Mapping[str, NumpyArray], n: int, where: str) -> None:
    """Refuse arrays that have not so many rows each."""
    for name, array in arrays.items():
        if not array.shape or array.shape[0] != n:
            raise DatasetError(f"{where}, {name}: expected {n} rows, got shape {array.shape}")
