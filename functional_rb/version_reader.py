"""Reading a state piece by piece while newer states are written in the same memory."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from functional_rb import reader
from functional_rb.checkpoint import in_place
from functional_rb.lineage import Lineage
from functional_rb.ops import Array
from functional_rb.reader import Piece
from functional_rb.recorder import Log
from functional_rb.tokens import ROWS, columns_of_leaves
from functional_rb.versions import Memory, Saved, SavedSlots, Version

if TYPE_CHECKING:
    from functional_rb.buffer_spec import BufferSpec

Overwritten = tuple[Array, Array, bool]
"""int32 [n], what lay there, and whether the index counts elements, not rows."""


class VersionReader(reader.Reader):
    """Reads a version chunk by chunk, under its lineage's lock, undoing in the chunk what newer versions have written.

    It holds an older twin of the version: so writes save what they overwrite, the in-place forms move to other memory,
    and what is kept for it is bounded as for every older state.
    """

    def __init__(
        self,
        version: Version,
        counters: Piece,
        spec: BufferSpec,
        lineage: Lineage,
        directory: str | None = None,
    ) -> None:
        """Of a state's parts, for a checkpoint in a directory."""
        super().__init__(spec, lineage)
        self._counters = counters.copy()
        self._places: dict[str, int] = {}
        with version.lock:
            if version.memory is not None:
                self.in_place = in_place.taken(version.memory.files, directory)
            self._version: Version | None = _older_twin(version)
            memory, _ = _found(self._version)
            wide = [f"wide_{k}" for k in range(len(memory.wide))]
            tree = [] if memory.tree is None else ["tree"]
            names = ["rows", *wide, *tree, *(f"kept_{name}" for name in memory.kept)]
            for k, (name, array) in enumerate(zip(names, memory.arrays, strict=True)):
                self.check_shape(name, tuple(array.shape))
                self._places[name] = k

    def read(self, name: str, start: int, stop: int) -> Piece:
        """A copy."""
        if name == "counters":
            return self._counters[start:stop]
        version, k = self._version, self._places[name]
        assert version is not None, "the reader is closed"
        with version.lock:
            memory, later = _found(version)
            piece = np.array(memory.as_numpy(memory.arrays[k][start:stop]), order="C")
            row = piece[0].size if len(piece) else 1
            for saved in reversed(later):
                for index, old, flat in _overwritten(saved, memory, k):
                    scale, where = row if flat else 1, memory.as_numpy(index)
                    inside = (where >= start * scale) & (where < stop * scale)
                    target = piece.reshape(-1) if flat else piece
                    target[where[inside] - start * scale] = memory.as_numpy(old)[inside]
        return piece

    def objects(self, name: str, piece: Piece) -> Iterator[tuple[int, dict[int, Any]]]:
        """By leaf, by token."""
        version, array = self._version, ROWS if name == "rows" else name.removeprefix("kept_")
        assert version is not None, "the reader is closed"
        for leaf, columns in columns_of_leaves(self.spec).get(array, {}).items():
            with version.lock:
                table = _found(version)[0].table
                assert table is not None
                yield leaf, table.of_tokens(piece, columns)

    def close(self) -> None:
        """Let go of the version."""
        self._version, self.in_place = None, None


def _older_twin(version: Version) -> Version:
    """A version with the same content that comes before it. Hold the lock."""
    memory, _ = _found(version)
    twin = Version(memory, version.capacity, version.lock)
    twin.memory, twin.saved, twin.next = None, Log(), version
    history: deque[tuple[weakref.ref[Version], int]] = deque() if memory.history is None else memory.history
    ages = [older() is version for older, _ in history]
    history.insert(ages.index(True) if True in ages else len(history), (weakref.ref(twin), 0))
    memory.history, memory.shared = history, True
    return twin


def _found(version: Version) -> tuple[Memory, Sequence[Saved]]:
    """The memory in which a version is found, and what newer ones have overwritten there, in their order."""
    later: list[Saved] = []
    while version.memory is None:
        assert version.saved is not None and version.next is not None
        later.append(version.saved)
        version = version.next
    return version.memory, later


def _overwritten(saved: Saved, memory: Memory, k: int) -> Iterator[Overwritten]:
    """What was in an array, by its position in `Memory.arrays`; the last write first."""
    if isinstance(saved, SavedSlots):
        n, items = int(saved.count[0]), 1 + len(memory.wide)
        if k < items and saved.copies:
            yield saved.slots[:n], saved.copies[k][:n], False
        if k == items and saved.values is not None:
            yield saved.slots[:n], saved.values[:n], True
        return
    assert isinstance(saved, Log)
    for entry in reversed(saved.entries):
        if entry.array == k:
            yield entry.where, entry.old, entry.flat
