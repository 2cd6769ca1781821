"""Reading a state piece by piece while newer states are written in the same memory."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from functional_rb.base.arrays import BackendArray
from functional_rb.buffer import reader
from functional_rb.buffer.reader import Piece, TakeSnapshot
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.save_history import SaveHistory
from functional_rb.versions.memory import Entry, Memory
from functional_rb.versions.object_table import columns_of_leaves
from functional_rb.versions.recorder import Log
from functional_rb.versions.version import Version


class VersionReader(reader.Reader):
    """Reads a version chunk by chunk, under its lineage's lock, undoing in the chunk what newer versions have written.

    It holds an older twin of the version: so writes save what they overwrite, the in-place forms give it a copy first,
    and what is kept for it is bounded as for every older state.
    """

    def __init__(
        self, version: Version, counters: Piece, spec: BufferSpec, past: SaveHistory, snapshot: TakeSnapshot | None
    ) -> None:
        super().__init__(spec, past)
        self._counters = counters.copy()
        with version.lock:
            if version.memory is not None and snapshot is not None:
                self.in_place = snapshot(version.memory.files)
            # For an older version newer ones save what they overwrite: so this one may be written while it is read.
            self._version: Any = _older_twin(version)  # None once it is closed
            for name in self.shapes:
                self.check_array(name, counters if name == "counters" else _array_and_writes(self._version, name)[1])

    def read(self, name: str, start: int, stop: int) -> Piece:
        if name == "counters":
            return self._counters[start:stop]
        with self._version.lock:
            memory, array, entries = _array_and_writes(self._version, name)
            memory.join_stream()
            piece = np.array(memory.as_numpy(array[start:stop]), order="C")
            for _, flat, index, old in entries if len(piece) else ():
                width, target = (piece[0].size, piece.reshape(-1)) if flat else (1, piece)
                where = memory.as_numpy(index) - start * width
                inside = (where >= 0) & (where < len(target))
                target[where[inside]] = memory.as_numpy(old)[inside]
        return piece

    def objects(self, name: str, piece: Piece) -> dict[int, dict[int, object]]:
        with self._version.lock:
            memory, _ = self._version.newest_memory()
            columns = columns_of_leaves(self.spec).get(name, {}).items()
            return {leaf: memory.table.of_rows(memory, [(piece, [column])]) for leaf, column in columns}

    def close(self) -> None:
        """Let go of the version, whose memory may then be written in place."""
        if self.in_place is not None:
            self.in_place.close()
        self._version, self.in_place = None, None


def _older_twin(version: Version) -> Version:
    """A version with the same content that comes before it. Hold the lock."""
    memory, _ = version.newest_memory()
    twin = Version(memory, version.lock)
    twin.memory, twin.saved, twin.next = None, Log(), version
    history = memory.history
    of_version = [entry for entry in list(history) if entry[0]() is version]
    # One call finds the place and inserts: between two, a signal handler that saves inserts a version of its own.
    places = map(history.index, of_version) if of_version else iter([len(history)])
    list(map(history.insert, places, [(weakref.ref(twin), 0)]))
    return twin


def _array_and_writes(version: Version, name: str) -> tuple[Memory, BackendArray, list[Entry]]:
    """The newest memory, the array of a name that the version has, and what was overwritten in it, the newest first."""
    memory, later = version.newest_memory()
    array, entries = memory.by_name.get(name), list[Entry]()
    for saved in reversed(later):
        for entry in reversed([entry for entry in saved.writes(memory) if entry.name == name]):
            if entry.where is None:  # what newer versions wrote was in another array
                array, entries = entry.old, []
            else:
                entries.append(entry)
    return memory, array, entries
