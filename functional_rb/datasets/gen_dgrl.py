"""Gen-DGRL's datasets of Procgen: `gen_dgrl:bigfish-1M_E`, or the path of its archive.

An archive, `bigfish.tar.xz`, has a file of NumPy for each episode: a pickle of a dict with `observations` [T + 1, ...],
`actions`, `rewards` and `dones` [T]. It is read by an unpickler that knows arrays alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import numpy as np

from functional_rb.base.arrays import NumpyArray
from functional_rb.datasets.by_rows import Path, RowReader, Whole, file_that, located, marks, same_rows
from functional_rb.datasets.episode import DatasetError
from functional_rb.datasets.formats import tars
from functional_rb.datasets.formats.npy import NpyStream
from functional_rb.datasets.formats.unpickle import unpickle
from functional_rb.datasets.pieces import kind_of_rows

FIELDS = ("observations", "actions", "rewards", "dones")
# Bytes that an episode may take in memory.
MOST = 2**30


class GenDgrl(RowReader):
    """Reads an archive of Gen-DGRL, in its order."""

    def __init__(self, path: str, name: str) -> None:
        super().__init__(name, [path])
        inside, fields = next(self._contents(0), ("", {}))
        if not inside:
            raise DatasetError(f"{path}: expected files of .npy in it, got none")
        self.leaves = {
            (field,): kind_of_rows(fields[field].shape, fields[field].dtype, f"{path}, {inside!r}, {field}")
            for field in FIELDS[:3]
        }

    def wholes(self, first: int, most: int) -> Iterator[Whole]:
        for name, fields in self._contents(first):

            def read(path: Path, begin: int, stop: int, fields: dict[str, NumpyArray] = fields) -> NumpyArray:
                return fields[path[0]][begin:stop]

            n, path = len(fields["rewards"]), self.files[0]
            is_terminal = bool(marks(fields["dones"][-1:], f"{path}, {name!r}, dones").any())
            yield Whole(n, read, is_terminal, len(fields["observations"]) > n, path, {"file": name})

    def _contents(self, first: int) -> Iterator[tuple[str, dict[str, NumpyArray]]]:
        at = 0
        for name, stream in tars.members(self.files[0]):
            if name.endswith(".npy"):
                at += 1
                if at > first:
                    yield name, _fields(stream, f"{self.files[0]}, {name!r}")


def _fields(stream: IO[bytes], where: str) -> dict[str, NumpyArray]:
    header = NpyStream(stream, where, objects=True)
    if header.shape != () or not header.dtype.hasobject:
        raise DatasetError(f"{where}: expected a dict, pickled by numpy.save, got an array {header.shape}")
    fields = unpickle(stream, where, MOST)
    if not isinstance(fields, dict) or not all(isinstance(fields.get(name), np.ndarray) for name in FIELDS):
        got = sorted(name for name in fields if isinstance(name, str)) if isinstance(fields, dict) else type(fields)
        raise DatasetError(f"{where}: expected arrays {', '.join(FIELDS)}, got {got!r:.200}")
    rewards, dones, observations = fields["rewards"], fields["dones"], fields["observations"]
    n = len(rewards) if rewards.ndim == 1 else 0
    same_rows({name: fields[name] for name in ("actions", "dones")}, n, where)
    if n == 0 or np.flatnonzero(dones[:-1]).size:
        raise DatasetError(f"{where}: expected the steps of one episode, done after the last one only")
    # Some files have no observation behind the last step.
    if observations.shape[:1] not in ((n,), (n + 1,)):
        got = observations.shape
        raise DatasetError(f"{where}, observations: expected {n + 1}, one more than rewards, got shape {got}")
    return fields


def open_gen_dgrl(rest: str, root: str | None = None) -> GenDgrl:
    """The reader of a dataset of Gen-DGRL: its name, as "bigfish-1M_E", or the path of its archive.

    Below the folder where datasets lie that is `gen_dgrl/bigfish-1M_E/bigfish.tar.xz`.
    """
    path = located("gen_dgrl", rest, root, file_that(lambda name: ".tar" in name), "an archive of .tar.xz")
    return GenDgrl(path, f"gen_dgrl:{rest}")
