"""D4RL's datasets: `d4rl:hopper-medium-v2`, or the path of a file of HDF5.

A file has all steps in a row: row t has an observation, the action that was taken there, and the reward of that action.
What a file does not have is the observation after the last step of an episode, unless there are `next_observations`.
There, the next row is of another episode. Four things in these files are not what they seem:

- In maze2d the reward of row t is that of the observation in row t, so that the reward of the action is in row t + 1.
- In antmaze before version 2 the timeouts are not where episodes end; there the ant jumps to its start.
- Where a terminal state is marked the trajectory may go on, as in antmaze near the goal: each mark ends an episode.
- A file with `next_observations` may have its rows in any order, as one that was shuffled or filtered: where the next
  row does not begin from what a row has led to, an episode ends, with what the file says it has led to.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.strict_json import Json
from functional_rb.datasets import hdf5
from functional_rb.datasets.episode import Array, DatasetError, Episode, StepSpec
from functional_rb.datasets.pieces import (
    PIECE,
    Lazy,
    can_be_stored,
    kind_of_rows,
    repeated,
    spans,
    spec_of_values,
    steps_of_piece,
)
from functional_rb.datasets.reader import Counts

NAMES = ("observations", "actions", "rewards")
# Farther than this no ant goes in one step.
STRIDE = 1.0
NEXT = "next_observations"

RewardOf = Literal["action", "observation"]


@dataclasses.dataclass(frozen=True)
class Quirks:
    """What is peculiar to a file.

    Attributes:
        reward_of: whether the reward in a row is that of its "action", or of its "observation".
        jump: where the first two coordinates of the observation change by more than this between two rows, an episode
            ends, and the marked timeouts do not count; None if they do.
    """

    reward_of: RewardOf = "action"
    jump: float | None = None


def quirks_of(name: str) -> Quirks:
    """What is known of a dataset by its name.

    Example:
        >>> quirks_of("maze2d-umaze-v1").reward_of, quirks_of("antmaze-large-play-v0").jump
        ('observation', 1.0)
        >>> quirks_of("antmaze-large-play-v2")
        Quirks(reward_of='action', jump=None)
    """
    if name.startswith("maze2d"):
        return Quirks(reward_of="observation")
    if re.match(r"antmaze-.*-v[01]$", name) or re.match(r"Ant_maze.*", name):
        return Quirks(jump=STRIDE)
    return Quirks()


class D4rl:
    """Reads a file of D4RL; see `Reader` for the attributes."""

    def __init__(self, path: str, name: str, quirks: Quirks) -> None:
        self.name, self.files, self._path, self._quirks = name, [path], path, quirks
        with hdf5.opened(path) as file:
            rows = {field: hdf5.data(file, field, path) for field in NAMES}
            kinds, n = {field: kind_of_rows(x, f"{path}: {field}") for field, x in rows.items()}, len(rows["rewards"])
            for field, dataset in rows.items():
                if len(dataset) != n:
                    raise DatasetError(f"{path}: {field}: expected {n} rows, one for each reward, got {len(dataset)}")
            if kinds["rewards"][0]:
                raise DatasetError(f"{path}: rewards: expected a number in each row, got shape {kinds['rewards'][0]}")
            self._kinds = kinds
            following = _next_observations(file, rows["observations"], path)
            self._has_next = following is not None
            infos = hdf5.member(file, "infos", path) if hdf5.has(file, "infos", path) else {}
            self._infos = {
                key: kind_of_rows(part, path)
                for key in hdf5.names(infos, path)
                if (part := _info(infos, key, n, path)) is not None
            }
            self._terminals = _flags(file, "terminals", n, path)
            self.facts: Json = {"quirks": dataclasses.asdict(quirks)}
            self._stops = self._found_stops(file, rows["observations"], following)
        self.counts = Counts(len(self._stops), n, os.path.getsize(path))

    def spec(self, narrow: bool) -> StepSpec:
        observation, action, reward = (spec_of_values(*self._kinds[field], narrow) for field in NAMES)
        infos = {key: spec_of_values(*kind, narrow) for key, kind in self._infos.items()}
        return StepSpec(observation, action, reward, infos)

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        most = steps_of_piece(self.spec(narrow=False))
        with hdf5.opened(self._path) as file:
            blocks = hdf5.Blocks(file, most)
            for k in range(first, len(self._stops)):
                start = self._stops[k - 1] if k else 0
                for begin, stop in spans(self._stops[k] - start, most):
                    yield self._piece(blocks, start + begin, start + stop, self._stops[k], f"{self._path}, episode {k}")

    def _piece(self, blocks: hdf5.Blocks, first: int, stop: int, end: int, where: str) -> Episode:
        """Rows [first, stop) of an episode whose rows end before `end`."""

        def rows(field: str, first: int = first, stop: int = stop) -> Array:
            return blocks.rows(field, first, stop, where)

        observations, observed = rows("observations", first, min(stop + 1, end)), True
        if stop == end:
            observed = self._has_next
            if observed:
                following = _as_stored(rows(NEXT, stop - 1, stop), observations)
                observations = np.concatenate([observations, following])
            else:
                observations = repeated(observations)
        rewards = rows("rewards")
        if self._quirks.reward_of == "observation":  # that of the last action is not known, nor what it led to
            observed = observed and stop < end
            rewards = np.concatenate([rewards[1:], rows("rewards", stop, stop + 1) if stop < end else rewards[-1:]])
        terminated = self._terminals[first:stop].copy()
        return Episode(
            observations,
            rows("actions"),
            rewards,
            terminated,
            np.zeros(stop - first, bool),
            Lazy(self._infos, lambda key: rows(f"infos/{key}")),
            final_observed=observed,
            goes_on=stop < end,
            file=self._path,
        )

    def _found_stops(self, file: object, observations: Any, following: object) -> list[int]:
        ends, n = self._terminals.copy(), len(observations)
        if self._quirks.jump is not None:
            ends |= _jumps(observations, self._quirks.jump, self._path)
        else:
            ends |= _flags(file, "timeouts", n, self._path)
        if following is not None:
            breaks = _breaks(observations, following, self._path) & ~ends
            self.facts["ended by next_observations"] = int(breaks.sum())
            ends |= breaks
        if n:
            ends[-1] = True
        stops: list[int] = (ends.nonzero()[0] + 1).tolist()
        return stops


def open_d4rl(
    rest: str, root: str | None = None, *, reward_of: RewardOf | None = None, jump: float | None = None
) -> D4rl:
    """The reader of a dataset of D4RL.

    Args:
        rest: its name, as "hopper-medium-v2", or the path of its file.
        root: the folder where datasets lie; it is looked for there, and where D4RL keeps its own.
        reward_of: whether the reward in a row is that of its "action" or of its "observation"; None for what is known
            of the dataset by its name.
        jump: where the first two coordinates of the observation change by more than this, an episode ends, and not at
            the timeouts; None for what is known by the name.

    Raises:
        FileNotFoundError: if it is nowhere, saying where that is.
        DatasetError: for a file that is no such dataset.
        ValueError: for another `reward_of`.
    """
    path = found(rest, root)
    known = quirks_of(os.path.basename(rest).removesuffix(".hdf5"))
    if reward_of not in (None, "action", "observation"):
        raise ValueError(f"d4rl:{rest}: reward_of: expected 'action' or 'observation', got {reward_of!r}")
    quirks = Quirks(reward_of or known.reward_of, known.jump if jump is None else jump)
    return D4rl(path, f"d4rl:{rest}", quirks)


def found(rest: str, root: str | None) -> str:
    folders = [] if root is None else [os.path.join(root, "d4rl")]
    folders.append(os.path.join(os.environ.get("D4RL_DATASET_DIR") or os.path.expanduser("~/.d4rl"), "datasets"))
    name, version = re.fullmatch(r"(.*?)(-v\d+)?", rest).groups()  # type: ignore[union-attr]  # which fits any text
    files = [f"{rest}.hdf5", f"{name.replace('-', '_')}{version or ''}.hdf5"]
    for path in (rest, *(os.path.join(folder, file) for folder in folders for file in files)):
        if os.path.isfile(path):
            return os.path.abspath(path)
    raise FileNotFoundError(
        f"d4rl:{rest}: no {' or '.join(dict.fromkeys(files))} in {', '.join(folders)}; fetch the dataset first, or "
        f"give the path of its file"
    )


def _info(infos: Mapping[str, object], name: str, n: int, path: str) -> Any:
    """The values of an info, None if there are none for each row."""
    part = hdf5.member(infos, name, path)
    is_numbers = hasattr(part, "shape") and part.ndim and can_be_stored(part.dtype)
    return hdf5.data(infos, name, path) if is_numbers and len(part) == n else None


def _flags(file: object, name: str, n: int, path: str) -> Array:
    """Which rows are marked, bool [n]; none if there are no marks of that name."""
    if not hdf5.has(file, name, path):
        return np.zeros(n, bool)
    marks = hdf5.rows(hdf5.data(file, name, path), 0, n, path)
    if marks.reshape(-1).shape != (n,):
        raise DatasetError(f"{path}: {name}: expected {n} marks, one for each reward, got shape {marks.shape}")
    return marks.reshape(-1).astype(bool)


def _jumps(observations: Any, most: float, path: str) -> Array:
    """After which rows the first two coordinates change by more than `most`, bool [n]."""
    n = len(observations)
    if len(observations.shape) != 2:
        raise DatasetError(f"{path}: observations: expected coordinates in each row, got shape {observations.shape}")
    found = np.zeros(n, bool)
    for first, stop in _blocks(observations):
        rows = hdf5.rows(observations, first, min(stop + 1, n), path)[:, :2]
        found[first : first + len(rows) - 1] = np.linalg.norm(np.diff(rows, axis=0), axis=1) > most
    return found


def _next_observations(file: object, observations: Any, path: str) -> object:
    """What each row has led to, if the file tells: a data set as that of the observations; else None."""
    if not hdf5.has(file, NEXT, path):
        return None
    found = hdf5.data(file, NEXT, path)
    _, dtype = kind_of_rows(found, f"{path}: {NEXT}")
    if found.shape != observations.shape or not np.can_cast(dtype, observations.dtype, "same_kind"):
        raise DatasetError(
            f"{path}: {NEXT}: expected {observations.dtype} {observations.shape}, as the observations are, got "
            f"{dtype} {found.shape}"
        )
    return found


def _breaks(observations: Any, following: object, path: str) -> Array:
    """After which rows the next one does not begin from what they have led to, bool [n].

    Returns:
        Numbers are compared as observations are stored; one that is NaN in both is the same. The last row is not
        marked.
    """
    n, found = len(observations), np.zeros(len(observations), bool)
    for first, stop in _blocks(observations):
        begun = hdf5.rows(observations, first + 1, min(stop + 1, n), path)
        led_to = _as_stored(hdf5.rows(following, first, first + len(begun), path), begun)
        differ = (begun != led_to) & ((begun == begun) | (led_to == led_to))
        found[first : first + len(begun)] = differ.reshape(len(begun), -1).any(1)
    return found


def _as_stored(following: Array, observations: Array) -> Array:
    """What rows have led to, in the numbers that observations are stored in; what is too large for them is infinite."""
    with np.errstate(over="ignore"):
        return following.astype(observations.dtype, copy=False)


def _blocks(rows: NumpyArray) -> Iterator[tuple[int, int]]:
    """The rows of a data set but the last, some megabytes at a time, as (first, stop)."""
    n, nbytes = len(rows), rows.dtype.itemsize * int(np.prod(rows.shape[1:]))
    step = max(1, PIECE // max(nbytes, 1))
    for first in range(0, n - 1, step):
        yield first, min(first + step, n - 1)
