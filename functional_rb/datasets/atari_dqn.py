"""The DQN Replay Dataset of Atari games: `atari_dqn:Pong/1`, or the path of a folder with its files.

The files are checkpoints of Dopamine's replay buffer, a gzipped array each: `$store$_observation_ckpt.7.gz` and so on.
A row has a frame, the action that was taken there, its reward, and whether it led to the end. Not all rows are steps:

- In front of each episode there are three rows of zeros, so that a stack of four frames can be made at its first step.
- The buffer was saved when one slot was still to be written: what stands there is of another time, or of none.

Frames are given one by one; a stack of four takes slices of four.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.datasets.by_rows import Forward, Path, RowReader, Whole, located, marks, same_rows
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats import streams
from functional_rb.datasets.formats.npy import HEADER, NpyStream
from functional_rb.datasets.formats.streams import Inflated
from functional_rb.datasets.pieces import kind_of_rows

FIELDS = ("observation", "action", "reward", "terminal")
# Bytes that may come out of a file: a million frames have 7 GB.
LIMIT = 2**36
# Bytes that may come out of a file of rewards, actions or marks.
SMALL = 2**30
# Rows of zeros in front of an episode: one fewer than there are frames in Dopamine's stacks.
PADDING = 3


class _Numbers(NamedTuple):
    """What a checkpoint has of each row beside the frame."""

    action: NumpyArray
    reward: NumpyArray
    terminal: NumpyArray


class AtariDqn(RowReader):
    """Reads a folder of the DQN Replay Dataset, in the order of the checkpoints.

    An episode that goes on in the next checkpoint is cut off where the first one ends.
    """

    def __init__(self, path: str, name: str, checkpoints: range | None) -> None:
        numbers = sorted(_checkpoints(path))
        self._path, self._chosen = path, [k for k in numbers if checkpoints is None or k in checkpoints]
        if not self._chosen:
            raise DatasetError(f"{path}: expected checkpoints {checkpoints}, there are {numbers}")
        fields = [*(f"$store$_{field}" for field in FIELDS), "add_count"]
        files = [self._file(field, k) for k in self._chosen for field in fields]
        for file in files:
            if not os.path.isfile(file):
                raise DatasetError(f"{file}: expected this file too; fetch it")
        super().__init__(name, files)
        kinds = []
        for file in files[:3]:
            with _array(file, LIMIT) as array:
                kinds.append(kind_of_rows(array.shape, array.dtype, file))
        self.leaves = dict(zip((("observations",), ("actions",), ("rewards",)), kinds, strict=True))

    def wholes(self, first: int, most: int) -> Iterator[Whole]:
        at = 0
        for k in self._chosen:
            numbers, written = self._read(k)
            # An episode lies between two ends; in front of it there may be zeros.
            # What lies behind the rows that were written is of an older turn around the ring.
            stops = [*(np.flatnonzero(numbers.terminal[:written]) + 1).tolist(), written]
            spans = [span for span in zip([0, *stops[:-1]], stops, strict=True) if span[0] < span[1]]
            skipped = max(first - at, 0)
            at += len(spans)
            if at <= first:
                continue
            path = self._file("$store$_observation", k)
            with _array(path, LIMIT) as array:
                if not array.shape or array.shape[0] != len(numbers.terminal):
                    raise DatasetError(f"{path}: expected {len(numbers.terminal)} frames, got shape {array.shape}")
                frames = Forward(array)
                for start, stop in spans[skipped:]:
                    yield _episode(numbers, frames, start, stop, path)

    def _read(self, k: int) -> tuple[_Numbers, int]:
        # The numbers of a checkpoint, and how many of its rows had been written.
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
        return _Numbers(**arrays), int(count[0]) % n or n

    def _file(self, field: str, k: int) -> str:
        return os.path.join(self._path, f"{field}_ckpt.{k}.gz")


def _episode(numbers: _Numbers, frames: Forward, start: int, stop: int, path: str) -> Whole:
    # Zeros alone are no sign: a game's first frames may be black. So at most as many rows as Dopamine puts there.
    ahead = min(PADDING, stop - start)
    head = frames.rows(start, start + ahead)
    zero = ~head.reshape(ahead, -1).any(1) & ~np.any([x[start : start + ahead] != 0 for x in numbers], axis=0)
    padding = int(np.argmin([*zero, False]))
    first = min(start + padding, stop - 1)  # where all are zeros, one row is left, which leads nowhere

    def read(path: Path, begin: int, end: int) -> NumpyArray:
        begin, end = first + begin, first + end
        if path != ("observations",):
            return (numbers.action if path == ("actions",) else numbers.reward)[begin:end]
        # The stream does not go back to the frames that were looked at.
        inside = head[begin - start : end - start]
        behind = begin + len(inside)
        return inside if behind >= end else np.concatenate([inside, frames.rows(behind, end)])

    is_terminal = bool(marks(numbers.terminal[stop - 1], path).any())
    return Whole(stop - first, read, is_terminal, False, path)


@contextlib.contextmanager
def _array(path: str, limit: int) -> Iterator[NpyStream]:
    with streams.opened(path) as file:
        yield NpyStream(Inflated(file, limit, path), path)


def _small(path: str) -> NumpyArray:
    with _array(path, SMALL + HEADER) as array:
        return array.whole(SMALL)


def _checkpoints(folder: str) -> set[int]:
    names = os.listdir(folder) if os.path.isdir(folder) else []
    matches = (re.fullmatch(r"\$store\$_observation_ckpt\.(\d{1,6})\.gz", name, re.ASCII) for name in names)
    return {int(match[1]) for match in matches if match is not None}


def open_atari_dqn(rest: str, root: str | None = None, *, checkpoints: range | None = None) -> AtariDqn:
    """The reader of a run of the DQN Replay Dataset: the game and the run, as "Pong/1", or the path of a folder.

    Below the folder where datasets lie that is `atari_dqn/Pong/1/replay_logs`. Of 50 checkpoints, of a million frames
    each, those are read that are named, or all that are there.
    """

    def logs(place: str) -> str | None:
        inner = os.path.join(place, "replay_logs")
        folder = inner if os.path.isdir(inner) else place
        return folder if _checkpoints(folder) else None

    path = located("atari_dqn", rest, root, logs, "files such as add_count_ckpt.0.gz")
    return AtariDqn(path, f"atari_dqn:{rest}", checkpoints)
