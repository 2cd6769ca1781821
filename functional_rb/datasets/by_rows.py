"""Episodes of formats with a row for each observation: cut into pieces, of rows that are read as they are needed."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from functional_rb.datasets.episode import Array, DatasetError, Episode
from functional_rb.datasets.formats.npy import NpyStream
from functional_rb.datasets.pieces import Lazy, repeated, spans
from functional_rb.specs import freeze

# Gives rows [first, stop), a nest.
Read = Callable[[int, int], Any]


@dataclasses.dataclass(frozen=True)
class Whole:
    """An episode, of which nothing has been read yet. Steps are counted from 0.

    Attributes:
        steps: how many; row t of the observations is what step t begins from.
        observations: there are as many rows as steps, and one more if the last one was observed.
        actions, rewards, infos: of steps; `rewards` of None are zeros.
        terminated: whether the last step led to a terminal state.
        final_observed: whether the last observation was observed.
        file: it is read from.
        about: see `Episode`.
        terminated_by: tells it of the last step, if it stands in a row.
    """

    steps: int
    observations: Read
    actions: Read
    rewards: Read | None
    terminated: bool
    final_observed: bool
    file: str
    infos: Mapping[str, Read] = dataclasses.field(default_factory=dict)
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    terminated_by: Read | None = None

    def pieces(self, most: int) -> Iterator[Episode]:
        """The episode in pieces of so many steps."""
        for first, stop in spans(self.steps, most):
            is_last = stop == self.steps
            is_seen = not is_last or self.final_observed
            observations = self.observations(first, stop + is_seen)
            terminated = np.zeros(stop - first, bool)
            if is_last:
                by = self.terminated_by
                terminated[-1] = self.terminated if by is None else np.any(by(first, stop)[-1])
            yield Episode(
                observations if is_seen else repeated(observations),
                self.actions(first, stop),
                np.zeros(stop - first, np.float32) if self.rewards is None else self.rewards(first, stop),
                terminated,
                np.zeros(stop - first, bool),
                Lazy(self.infos, functools.partial(self._info, first, stop)),
                final_observed=is_seen,
                goes_on=not is_last,
                file=self.file,
                about=self.about if first == 0 else {},
            )

    def _info(self, first: int, stop: int, name: str) -> Any:
        return self.infos[name](first, stop)


def of(array: Any, shift: int = 0) -> Read:
    """What reads rows of an array, from the row `shift` on."""
    return lambda first, stop: array[first + shift : stop + shift]


def nested(leaves: Mapping[tuple[str, ...], Any]) -> Any:
    """A nest of dicts, of what stands at each path; a single thing at () is itself.

    Example:
        >>> nested({("arm", "angle"): 1, ("arm", "speed"): 2, ("goal",): 3})
        {'arm': {'angle': 1, 'speed': 2}, 'goal': 3}
    """
    if set(leaves) == {()}:
        return leaves[()]
    made: dict[str, Any] = {}
    for path, leaf in leaves.items():
        at = made
        for name in path[:-1]:
            at = at.setdefault(name, {})
        at[path[-1]] = leaf
    return made


def nested_spec(leaves: Mapping[tuple[str, ...], object]) -> object:
    """The spec of a nest of dicts, of the specs at each path; a single one at () is itself."""
    return freeze(nested(leaves))


def nested_read(leaves: Mapping[tuple[str, ...], Read]) -> Read:
    return lambda first, stop: nested({path: read(first, stop) for path, read in leaves.items()})


class Forward:
    """Rows of an array in a stream, which are read from front to back; the last one of them also again."""

    def __init__(self, stream: NpyStream) -> None:
        self._stream = stream
        self._last = np.zeros((0, *stream.shape[1:]), stream.dtype)

    def rows(self, first: int, stop: int) -> Array:
        """Rows [first, stop), none of them before the last one that was read."""
        while self._stream.at < first:
            self._last = self._stream.rows(min(first - self._stream.at, 1024))[-1:]
        again = self._last[len(self._last) - (self._stream.at - first) :]
        made = np.concatenate([again, self._stream.rows(stop - self._stream.at)])
        self._last = made[-1:]
        return made


def found(prefix: str, rest: str, root: str | None, fits: Callable[[str], bool], what: str) -> str:
    """The path of a dataset's files: the name itself if it is one, else below the folder where datasets lie.

    Args:
        prefix: of the dataset's name.
        rest: of the name.
        root: the folder where datasets lie.
        fits: whether the files are there.
        what: is expected there, for errors.

    Raises:
        FileNotFoundError: if it is nowhere, saying where that is.
        ValueError: for a name that leads out of the folder.
    """
    places = [rest]
    if root is not None and ".." not in rest.split("/"):
        places.append(os.path.join(root, prefix, rest))
    for place in places:
        if fits(place):
            return os.path.abspath(place)
    raise FileNotFoundError(
        f"{prefix}:{rest}: expected {what} in {' or '.join(map(os.path.abspath, places))}; fetch the dataset first, or "
        f"give the path of its files"
    )


def same_rows(arrays: Mapping[str, Any], n: int, where: str) -> None:
    """Refuse arrays that have not so many rows each."""
    for name, array in arrays.items():
        if not array.shape or array.shape[0] != n:
            raise DatasetError(f"{where}, {name}: expected {n} rows, got shape {array.shape}")
