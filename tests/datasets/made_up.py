"""A reader that makes episodes up, of any size, with marker values that show every shift by one."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import functional_rb as frb
from functional_rb.datasets import Episode, StepSpec


@dataclasses.dataclass
class MadeUp:
    """Observation t, action t + 0.5, reward t + 0.25, where t counts observations over all episodes.

    Attributes:
        lengths: steps of each episode.
        shape: of an observation: all its numbers are t.
        piece: steps of a piece, 0 for whole episodes.
        blind: the episodes whose last observation is not known.
        ends: the episodes that end in a terminal state; all with an even number by default.
        dies_at: the process kills itself before it gives this episode.
    """

    lengths: Sequence[int]
    shape: tuple[int, ...] = ()
    dtype: str = "float64"
    piece: int = 0
    blind: Sequence[int] = ()
    ends: Sequence[int] | None = None
    dies_at: int | None = None
    name: str = "made_up:episodes"
    files: Sequence[str] = ()
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        return {"episodes": len(self.lengths), "steps": sum(self.lengths)}

    def spec(self, narrow: bool) -> StepSpec:
        wide = "float64" if not narrow else "float32"
        observation = wide if self.dtype == "float64" else self.dtype
        number = frb.Unbounded((), wide)
        infos = {"at": frb.Unbounded((), "int32" if narrow else "int64")}
        return StepSpec(frb.Unbounded(self.shape, observation), number, number, infos)

    def episodes(self, first: int = 0) -> Iterator[Episode]:
        start = sum(self.lengths[:first]) + first
        for k in range(first, len(self.lengths)):
            if k == self.dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield from self._pieces(k, start)
            start += self.lengths[k] + 1

    def _pieces(self, k: int, start: int) -> Iterator[Episode]:
        n = self.lengths[k]
        step = self.piece or n
        for at in range(0, n, step):
            stop = min(at + step, n)
            yield self._piece(k, start, at, stop, stop == n)

    def _piece(self, k: int, start: int, at: int, stop: int, last: bool) -> Episode:
        t = start + np.arange(at, stop + 1)
        observations = np.empty((len(t), *self.shape), self.dtype)
        observations[...] = t.reshape(-1, *[1] * len(self.shape))
        terminated = np.zeros(stop - at, bool)
        is_end = k % 2 == 0 if self.ends is None else k in self.ends
        terminated[-1] = last and is_end
        observed = not (last and k in self.blind)
        if not observed:
            observations[-1] = 99
        more: dict[str, Any] = {
            "final_observed": observed,
            "goes_on": not last,
            "about": {"seed": k},
            "file": "made up",
        }
        infos = {"at": t[:-1]}
        truncated = np.zeros(stop - at, bool)
        return Episode(observations, t[:-1] + 0.5, t[:-1] + 0.25, terminated, truncated, infos, **more)


def expected(reader: MadeUp) -> dict[str, np.ndarray]:
    """What a buffer of the whole dataset holds: rows of a table, one for each step, in the order of time."""
    rows = []
    start = 0
    for k, n in enumerate(reader.lengths):
        is_end = k % 2 == 0 if reader.ends is None else k in reader.ends
        last = n if k not in reader.blind or is_end else n - 1
        for t in range(last):
            after = start + t + 1 if not (k in reader.blind and t == n - 1) else start + t
            ends = t == last - 1
            rows.append((start + t, after, start + t + 0.5, start + t + 0.25, ends and is_end, ends and not is_end))
        start += n + 1
    names = ("observation", "after", "action", "reward", "terminated", "truncated")
    return {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


LENGTHS = (3, 1, 6, 2, 5)
READERS = {
    "whole": MadeUp(LENGTHS),
    "in pieces": MadeUp(LENGTHS, piece=2),
    "without last observations": MadeUp(LENGTHS, blind=range(5)),
    "large observations": MadeUp(LENGTHS, (40, 30), "uint8", piece=4, blind=[2]),
    "none ends": MadeUp(LENGTHS, ends=[]),
}


def contents(directory: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
