"""The DQN Replay Dataset of Atari games: `atari_dqn:Pong/1`, or the path of a folder with its files.

The files are checkpoints of Dopamine's replay buffer, a gzipped array each: `$store$_observation_ckpt.7.gz` and so on.
A row has a frame, the action that was taken there, its reward, and whether it led to the end. Not all rows are steps:

- In front of each episode there are three rows of zeros, so that a stack of four frames can be made at its first step.
- The buffer was saved when one slot was still to be written: what stands there is of another time, or of none.

Frames are given one by one; a stack of four takes slices of four.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator

import numpy as np

from functional_rb.base.strict_json import Json
from functional_rb.datasets.by_rows import Forward, Whole, found, of, same_rows
from functional_rb.datasets.episode import Array, DatasetError, Episode, StepSpec
from functional_rb.datasets.formats import streams
from functional_rb.datasets.formats.npy import HEADER, NpyStream
from functional_rb.datasets.formats.streams import Inflated
from functional_rb.datasets.pieces import kind_of_rows, spec_of_values, steps_of_piece
from functional_rb.datasets.reader import Counts

FIELDS = ("observation", "action", "reward", "terminal")
# Bytes that may come out of a file: a million frames have 7 GB.
LIMIT = 2**36
# Those that may come out of the files of numbers.
SMALL = 2**30
# Rows of zeros in front of an episode: one fewer than there are frames in Dopamine's stacks.
PADDING = 3


@dataclasses.dataclass(frozen=True)
class _Checkpoint:
    """The numbers of a checkpoint, without its frames.

    Attributes:
        action, reward, terminal: of each row.
        written: rows that were written before it was saved.
    """

    action: Array
    reward: Array
    terminal: Array
    written: int

    def episodes(self) -> list[tuple[int, int]]:
        """The rows between ends, as (start, stop); in front there may be zeros."""
        stops = [*(np.flatnonzero(self.terminal[: self.written]) + 1).tolist(), self.written]
        return [(start, stop) for start, stop in zip([0, *stops[:-1]], stops, strict=True) if start < stop]


class AtariDqn:
    """Reads a folder of the DQN Replay Dataset; see `Reader` for the attributes."""

    def __init__(self, path: str, name: str, checkpoints: range | None) -> None:
        self.name, self._path, self.facts = name, path, Json()
        numbers = sorted(_numbers(path))
        self._numbers = [k for k in numbers if checkpoints is None or k in checkpoints]
        if not self._numbers:
            raise DatasetError(f"{path}: expected checkpoints {checkpoints}, there are {numbers}")
        fields = [*(f"$store$_{field}" for field in FIELDS), "add_count"]
        self.files = [self._file(field, k) for k in self._numbers for field in fields]
        for file in self.files:
            if not os.path.isfile(file):
                raise DatasetError(f"{file}: expected this file too; fetch it")
        kinds = []
        for field in FIELDS[:3]:
            file = self._file(f"$store$_{field}", self._numbers[0])
            with _array(file, LIMIT) as array:
                kinds.append(kind_of_rows(array, file))
        self._kinds = kinds
        self.counts = Counts(nbytes=sum(map(os.path.getsize, self.files)))

    def spec(self, narrow: bool) -> StepSpec:
        observation, action, reward = (spec_of_values(*kind, narrow) for kind in self._kinds)
        return StepSpec(observation, action, reward)

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        """In the order of the checkpoints. One that goes on in the next checkpoint is cut off where the first ends."""
        most, at = steps_of_piece(self.spec(narrow=False)), 0
        for k in self._numbers:
            checkpoint, path = self._checkpoint(k), self._file("$store$_observation", k)
            spans = checkpoint.episodes()
            skipped = max(first - at, 0)
            at += len(spans)
            if at <= first:
                continue
            with _array(path, LIMIT) as array:
                if not array.shape or array.shape[0] != len(checkpoint.terminal):
                    raise DatasetError(f"{path}: expected {len(checkpoint.terminal)} frames, got shape {array.shape}")
                frames = Forward(array)
                for start, stop in spans[skipped:]:
                    yield from _episode(checkpoint, frames, start, stop, path).pieces(most)

    def _checkpoint(self, k: int) -> _Checkpoint:
        paths = {field: self._file(f"$store$_{field}", k) for field in FIELDS[1:]}
        arrays = {field: _small(path) for field, path in paths.items()}
        for field, array in arrays.items():
            if array.ndim != 1:
                raise DatasetError(f"{paths[field]}: expected a number for each row, got shape {array.shape}")
        n = len(arrays["terminal"])
        same_rows(arrays, n, f"{self._path}, checkpoint {k}")
        count = _small(self._file("add_count", k)).reshape(-1)
        if count.shape != (1,) or count.dtype.kind not in "iu" or count[0] < 1:
            raise DatasetError(f"{self._file('add_count', k)}: expected how many rows were added, got {count!r:.80}")
        # Rows are counted over all turns around the ring of n; where the remainder is 0 it has just been filled.
        return _Checkpoint(**arrays, written=int(count[0]) % n or n)

    def _file(self, field: str, k: int) -> str:
        return os.path.join(self._path, f"{field}_ckpt.{k}.gz")


def _episode(checkpoint: _Checkpoint, frames: Forward, start: int, stop: int, path: str) -> Whole:
    """The episode in rows [start, stop), without the zeros in front of it."""
    ahead = min(PADDING, stop - start)
    head = frames.rows(start, start + ahead)
    numbers = (checkpoint.action, checkpoint.reward, checkpoint.terminal)
    zero = ~head.reshape(ahead, -1).any(1) & ~np.any([x[start : start + ahead] != 0 for x in numbers], axis=0)
    padding = int(np.argmin([*zero, False]))
    first = min(start + padding, stop - 1)  # of an episode that is nothing but zeros one is left, which leads nowhere

    def rows(begin: int, end: int) -> Array:
        inside = head[first + begin - start : first + end - start]
        behind = first + begin + len(inside)
        return inside if behind >= first + end else np.concatenate([inside, frames.rows(behind, first + end)])

    return Whole(
        stop - first,
        rows,
        of(checkpoint.action, first),
        of(checkpoint.reward, first),
        bool(checkpoint.terminal[stop - 1]),
        False,
        path,
    )


@contextlib.contextmanager
def _array(path: str, limit: int) -> Iterator[NpyStream]:
    with streams.opened(path) as file:
        yield NpyStream(Inflated(file, limit, path), path)


def _small(path: str) -> Array:
    with _array(path, SMALL + HEADER) as array:
        return array.whole(SMALL)


def _numbers(folder: str) -> set[int]:
    names = os.listdir(folder) if os.path.isdir(folder) else []
    found = (re.fullmatch(r"\$store\$_observation_ckpt\.(\d{1,6})\.gz", name, re.ASCII) for name in names)
    return {int(match[1]) for match in found if match is not None}


def open_atari_dqn(rest: str, root: str | None = None, *, checkpoints: range | None = None) -> AtariDqn:
    """The reader of a run of the DQN Replay Dataset.

    Args:
        rest: the game and the run, as "Pong/1", or the path of a folder.
        root: the folder where datasets lie: below it `atari_dqn/Pong/1/replay_logs`.
        checkpoints: which of the 50 are read, of a million frames each; None for those that are there.

    Raises:
        FileNotFoundError: if it is nowhere, saying where that is.
        DatasetError: for files of another kind, or some that are missing.
    """
    path = found(
        "atari_dqn", rest, root, lambda place: bool(_numbers(_logs(place))), "files such as add_count_ckpt.0.gz"
    )
    return AtariDqn(_logs(path), f"atari_dqn:{rest}", checkpoints)


def _logs(place: str) -> str:
    inner = os.path.join(place, "replay_logs")
    return inner if os.path.isdir(inner) else place
