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
import functools
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.base.strict_json import Json
from functional_rb.datasets import hdf5
from functional_rb.datasets.by_rows import Leaves, Path, RowReader, Whole, located, marks
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.pieces import PIECE, Kind, can_be_stored, kind_of_rows

if TYPE_CHECKING:
    from h5py import Dataset, Group

NAMES = ("observations", "actions", "rewards")
# Farther than this no ant goes in one step.
STRIDE = 1.0
NEXT = "next_observations"

RewardOf = Literal["action", "observation"]


@dataclasses.dataclass(frozen=True)
class Quirks:
    """What is peculiar to a file."""

    reward_of: RewardOf = "action"  # whether the reward in a row is that of its "action", or of its "observation"
    # Where the first two coordinates of the observation change by more than this between two rows, an episode ends, and
    # the marked timeouts do not count; None if they do.
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


class D4rl(RowReader):
    """Reads a file of D4RL."""

    def __init__(self, path: str, name: str, quirks: Quirks) -> None:
        self._quirks = quirks
        with hdf5.opened(path) as file:
            rows = {field: hdf5.data(file, field, path) for field in NAMES}
            kinds = {field: kind_of_rows(x.shape, x.dtype, f"{path}: {field}") for field, x in rows.items()}
            n = len(rows["rewards"])
            # Every row has all of them, else rewards would be those of other steps.
            for field, dataset in rows.items():
                if len(dataset) != n:
                    raise DatasetError(f"{path}: {field}: expected {n} rows, one for each reward, got {len(dataset)}")
            if kinds["rewards"][0]:
                raise DatasetError(f"{path}: rewards: expected a number in each row, got shape {kinds['rewards'][0]}")
            following = _next_observations(file, rows["observations"], path)
            self._has_next = following is not None
            infos = _infos(file, n, path)
            self._terminals = _flags(file, "terminals", n, path)
            # Terminal marks end episodes whatever else is known of a file.
            ends = self._terminals.copy()
            if quirks.jump is not None:
                ends |= _jumps(rows["observations"], quirks.jump, path)
            else:
                ends |= _flags(file, "timeouts", n, path)
            facts: Json = {"quirks": dataclasses.asdict(quirks)}
            if following is not None:
                breaks = _breaks(rows["observations"], following, path) & ~ends
                facts["ended by next_observations"] = int(breaks.sum())
                ends |= breaks
        # What the file ends with is an episode too, which is cut off there.
        if n:
            ends[-1] = True
        self._stops: list[int] = (ends.nonzero()[0] + 1).tolist()
        super().__init__(name, [path], episodes=len(self._stops), steps=n)
        self.facts = facts
        self.leaves = {**{(field,): kind for field, kind in kinds.items()}, **infos}

    def wholes(self, first: int, most: int) -> Iterator[Whole]:
        path = self.files[0]
        with hdf5.opened(path) as file:
            blocks = hdf5.Blocks(file, most)
            for k in range(first, len(self._stops)):
                start, end = self._stops[k - 1] if k else 0, self._stops[k]
                read = functools.partial(self._read, blocks, f"{path}, episode {k}", start, end)
                is_observed = self._has_next and self._quirks.reward_of == "action"
                yield Whole(end - start, read, bool(self._terminals[end - 1]), is_observed, path)

    def _read(
        self, blocks: hdf5.Blocks, where: str, start: int, end: int, path: Path, first: int, stop: int
    ) -> NumpyArray:
        # Steps [first, stop) of the episode that has the rows [start, end).
        name, first, stop = "/".join(path), start + first, start + stop
        if path == ("rewards",) and self._quirks.reward_of == "observation":
            inside = blocks.rows(name, first + 1, min(stop + 1, end), where)
            # The reward of the last action is not known; the step is dropped, unless it ended the episode.
            return inside if stop < end else np.concatenate([inside, blocks.rows(name, end - 1, end, where)])
        inside = blocks.rows(name, first, min(stop, end), where)
        if stop <= end:
            return inside
        return np.concatenate([inside, _as_stored(blocks.rows(NEXT, end - 1, end, where), inside)])


def open_d4rl(
    rest: str, root: str | None = None, *, reward_of: RewardOf | None = None, jump: float | None = None
) -> D4rl:
    """The reader of a dataset of D4RL: its name, as "hopper-medium-v2", or the path of its file.

    It is looked for where datasets lie, and where D4RL keeps its own. `reward_of` says whether the reward in a row is
    that of its "action" or of its "observation". Where the first two coordinates of the observation change by more than
    `jump`, an episode ends, and not at the timeouts. None stands for what is known of the dataset by its name.
    """
    kept = os.path.join(os.environ.get("D4RL_DATASET_DIR") or os.path.expanduser("~/.d4rl"), "datasets")
    path = located("d4rl", rest, root, _file, "a file of HDF5, or its name without .hdf5", kept)
    known = quirks_of(os.path.basename(rest).removesuffix(".hdf5"))
    if reward_of not in (None, "action", "observation"):
        raise ValueError(f"d4rl:{rest}: reward_of: expected 'action' or 'observation', got {reward_of!r}")
    quirks = Quirks(reward_of or known.reward_of, known.jump if jump is None else jump)
    return D4rl(path, f"d4rl:{rest}", quirks)


def _file(place: str) -> str | None:
    # The file of that name; D4RL has some whose words are joined by underscores, but for the version.
    folder, name = os.path.split(place)
    words, version = re.fullmatch(r"(.*?)(-v\d+)?", name).groups()  # type: ignore[union-attr]  # which fits any text
    names = (name, f"{name}.hdf5", f"{words.replace('-', '_')}{version or ''}.hdf5")
    return next((path for path in (os.path.join(folder, name) for name in names) if os.path.isfile(path)), None)


def _infos(file: Group, n: int, path: str) -> Leaves:
    infos: dict[Path, Kind] = {}
    group = hdf5.member(file, "infos", path) if hdf5.has(file, "infos", path) else None
    for name in [] if group is None else hdf5.names(group, path):
        member = hdf5.member(group, name, path)
        if hasattr(member, "shape") and member.ndim and can_be_stored(member.dtype) and len(member) == n:
            dataset = hdf5.data(group, name, path)
            infos["infos", name] = kind_of_rows(dataset.shape, dataset.dtype, path)
    return infos


def _flags(file: Group, name: str, n: int, path: str) -> NumpyArray:
    # Which rows are marked, bool [n]; none if there are no marks of that name.
    if not hdf5.has(file, name, path):
        return np.zeros(n, bool)
    marked = hdf5.rows(hdf5.data(file, name, path), 0, n, path)
    if marked.size != n:
        raise DatasetError(f"{path}: {name}: expected {n} marks, one for each reward, got shape {marked.shape}")
    return marks(marked.reshape(-1), f"{path}: {name}")


def _jumps(observations: Dataset, most: float, path: str) -> NumpyArray:
    # After which rows the first two coordinates change by more than `most`, bool [n].
    n = len(observations)
    # The coordinates of an ant are the first two numbers of what it observes.
    if len(observations.shape) != 2:
        raise DatasetError(f"{path}: observations: expected coordinates in each row, got shape {observations.shape}")
    jumps = np.zeros(n, bool)
    for first, stop in _blocks(observations):
        rows = hdf5.rows(observations, first, min(stop + 1, n), path)[:, :2]
        jumps[first : first + len(rows) - 1] = np.linalg.norm(np.diff(rows, axis=0), axis=1) > most
    return jumps


def _next_observations(file: Group, observations: Dataset, path: str) -> Dataset | None:
    # The observations that rows have led to, in a data set like that of the observations; None if the file has none.
    if not hdf5.has(file, NEXT, path):
        return None
    following = hdf5.data(file, NEXT, path)
    _, dtype = kind_of_rows(following.shape, following.dtype, f"{path}: {NEXT}")
    if following.shape != observations.shape or not np.can_cast(dtype, observations.dtype, "same_kind"):
        raise DatasetError(
            f"{path}: {NEXT}: expected {observations.dtype} {observations.shape}, as the observations are, got "
            f"{dtype} {following.shape}"
        )
    return following


def _breaks(observations: Dataset, following: Dataset, path: str) -> NumpyArray:
    # After which rows the next one does not begin from what they have led to, bool [n]; the last is not marked.
    # Numbers are compared as observations are stored; one that is NaN in both is the same.
    n, breaks = len(observations), np.zeros(len(observations), bool)
    for first, stop in _blocks(observations):
        begun = hdf5.rows(observations, first + 1, min(stop + 1, n), path)
        led_to = _as_stored(hdf5.rows(following, first, first + len(begun), path), begun)
        differ = (begun != led_to) & ((begun == begun) | (led_to == led_to))
        breaks[first : first + len(begun)] = differ.reshape(len(begun), -1).any(1)
    return breaks


def _as_stored(following: NumpyArray, observations: NumpyArray) -> NumpyArray:
    # What rows have led to, in the numbers that observations are stored in; what is too large for them is infinite.
    with np.errstate(over="ignore"):
        return following.astype(observations.dtype, copy=False)


def _blocks(rows: Dataset) -> Iterator[tuple[int, int]]:
    # The rows of a data set but the last, some megabytes at a time, as (first, stop).
    n, nbytes = len(rows), rows.dtype.itemsize * int(np.prod(rows.shape[1:]))
    step = max(1, PIECE // max(nbytes, 1))
    for first in range(0, n - 1, step):
        yield first, min(first + step, n - 1)
