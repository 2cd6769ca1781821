"""Reading a state piece by piece while newer states are written in the same memory."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from functional_rb.buffer import reader
from functional_rb.buffer.reader import Piece, TakeSnapshot
from functional_rb.core.save_history import SaveHistory
from functional_rb.ops.protocol import Array
from functional_rb.structures import stored_arrays
from functional_rb.structures.stored_arrays import AUXILIARY, own_name
from functional_rb.versions.memory import Memory, Saved
from functional_rb.versions.object_table import ROWS, columns_of_leaves
from functional_rb.versions.recorder import Log
from functional_rb.versions.version import Exchanged, Version

if TYPE_CHECKING:
    from functional_rb.buffer.spec import BufferSpec

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
        save_history: SaveHistory,
        snapshot: TakeSnapshot | None = None,
    ) -> None:
        """Of a state's parts; of its files, a snapshot is taken under the lock."""
        super().__init__(spec, save_history)
        self._counters = counters.copy()
        with version.lock:
            if version.memory is not None and snapshot is not None:
                self.in_place = snapshot(version.memory.files)
            self._version: Version | None = _older_twin(version)
            for name in self.shapes:
                if name != "counters":
                    self.check_shape(name, tuple(_source(self._version, name).array.shape))

    def read(self, name: str, start: int, stop: int) -> Piece:
        """A copy of some rows of an array, as they were in the version."""
        if name == "counters":
            return self._counters[start:stop]
        version = self._version
        assert version is not None, "the reader is closed"
        with version.lock:
            memory, array, k, later = _source(version, name)
            piece = np.array(memory.as_numpy(array[start:stop]), order="C")
            row = piece[0].size if len(piece) else 1
            for saved in reversed(later):
                for index, old, flat in _overwritten(saved, k, memory):
                    scale, where = row if flat else 1, memory.as_numpy(index)
                    inside = (where >= start * scale) & (where < stop * scale)
                    target = piece.reshape(-1) if flat else piece
                    target[where[inside] - start * scale] = memory.as_numpy(old)[inside]
        return piece

    def objects(self, name: str, piece: Piece) -> Iterator[tuple[int, dict[int, Any]]]:
        """The Python objects of each leaf, by token."""
        version, array = self._version, ROWS if name == "rows" else own_name(name)
        assert version is not None, "the reader is closed"
        for leaf, columns in columns_of_leaves(self.spec).get(array, {}).items():
            with version.lock:
                table = _found(version)[0].table
                assert table is not None
                found = table.of_tokens(piece, columns)
            yield leaf, found  # not with the lock held, as whoever asks may never ask again

    def close(self) -> None:
        """Let go of the version, whose memory may then be written in place."""
        if self.in_place is not None:
            self.in_place.close()
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


class Source(NamedTuple):
    """Where an array of a version is found.

    Attributes:
        memory: of the newest version.
        array: one of its arrays, or one that a version before had in its place.
        place: among the arrays of that memory, or of that version's.
        later: what versions that have this array have overwritten since, in their order.
    """

    memory: Memory
    array: Array
    place: int
    later: Sequence[Saved]


def _source(version: Version, name: str) -> Source:
    """Where an array lies, by name."""
    memory, later = _found(version)
    for n, saved in enumerate(later):
        if isinstance(saved, Exchanged) and name in saved.arrays:
            return Source(_before(memory, later[n:]), saved.arrays[name], saved.places[name], later[:n])
    named = memory.by_name
    return Source(memory, named[name], list(named).index(name), later)


def _before(memory: Memory, later: Sequence[Saved]) -> Memory:
    """The memory with the arrays that there were before the first of these, an exchange: what was saved is of those."""
    there = dict(memory.by_name)
    for saved in reversed(later):
        if isinstance(saved, Exchanged):
            there |= saved.arrays
            places = saved.places
    auxiliary = {own_name(name): there[name] for name in places if name.startswith(AUXILIARY)}
    return type(memory)(
        there[stored_arrays.ROWS], memory.wide, there.get("tree") if "tree" in places else None, auxiliary, True
    )


def _overwritten(saved: Saved, place: int, memory: Memory) -> Iterator[Overwritten]:
    """What was in an array, by its place; the last write first."""
    arrays = len(memory.arrays)
    for entry in reversed(saved.writes(memory)):
        if entry.array % arrays == place:
            yield entry.where, entry.old, entry.flat
