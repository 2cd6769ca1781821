"""States of libraries whose arrays can be written to: a value whose memory is shared with its successors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import ClassVar, Self

from functional_rb.base import forks
from functional_rb.base.arrays import BackendArray, DeviceLike
from functional_rb.base.errors import consumed
from functional_rb.buffer import state as core
from functional_rb.buffer.reader import TakeSnapshot, misfit
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays
from functional_rb.core.save_history import NEW, SaveHistory
from functional_rb.versions.library import Library
from functional_rb.versions.memory import Memory
from functional_rb.versions.object_table import Table
from functional_rb.versions.reader import VersionReader
from functional_rb.versions.version import Version


class VersionedState(core.State):
    """A replay buffer as a value; see `functional_rb.State` for its fields.

    Reading `rows`, `wide`, `tree` or `auxiliary` exports the arrays: they never change afterwards, and the next write
    moves to fresh memory, at the price of one copy. Of a buffer in mapped files a copy is exported, in files without a
    name; it is made once for a state, and what was never written costs nothing.
    """

    __slots__ = ("_counters", "_exported", "_save_history", "_target", "_version")

    library: ClassVar[Library]

    # None once the state is consumed.
    _version: Version | None
    _counters: BackendArray
    # The saves that this state succeeds; None if it succeeds none.
    _save_history: SaveHistory | None
    # The device that samples go to, and that items may come from; None for where the arrays are.
    _target: DeviceLike
    # The copy that was exported, of a buffer in mapped files.
    _exported: Memory | None

    def __init__(
        self,
        version: Version,
        counters: BackendArray,
        spec: BufferSpec,
        save_history: SaveHistory | None = None,
        target: object = None,
    ) -> None:
        self.__dict__["spec"] = spec
        set_field = object.__setattr__
        set_field(self, "_version", version)
        set_field(self, "_counters", counters)
        set_field(self, "_save_history", save_history)
        set_field(self, "_target", target)
        set_field(self, "_exported", None)

    @classmethod
    def of_arrays(
        cls,
        arrays: Arrays,
        spec: BufferSpec,
        pinned: bool = True,
        objects: Table | Mapping[int, object] | None = None,
        target: object = None,
        files: object = None,
    ) -> Self:
        """A state of given arrays.

        Args:
            arrays: its content.
            spec: of the buffer.
            pinned: whether somebody else may hold the arrays: then they are never written.
            objects: by the tokens in the arrays, if there are such leaves, or the table that has them.
            target: the device that samples go to.
            files: the mapped files that some of the arrays lie in.
        """
        memory = cls.library.memory_type(arrays, pinned)
        memory.files, memory.placement = files, cls.library.placement(spec)
        together = getattr(arrays.counters, "device", None) == getattr(arrays.rows, "device", None)
        memory.fits = misfit(arrays, spec.plan) is None and memory.is_plain_array(arrays.counters) and together
        if not spec.plan.objects:
            return cls(Version(memory, forks.lock()), arrays.counters, spec, None, target)
        cls.library.check_single(arrays.rows, spec)
        table = objects if isinstance(objects, Table) else Table(spec, objects)
        with table.lock:
            table.watch(memory)
        return cls(Version(memory, table.lock), arrays.counters, spec, None, target)

    def check_alive(self) -> None:
        readable(self)

    def consume(self) -> None:
        """Refuse any further use of this state."""
        object.__setattr__(self, "_version", None)

    def aimed(self, target: object) -> Self:
        """The same value, whose samples go to another device."""
        return type(self)(readable(self), self._counters, self.spec, self._save_history, target)

    def remember(self, save_history: SaveHistory) -> None:
        """Come after these saves: what is made of the state from now on does too."""
        object.__setattr__(self, "_save_history", save_history)

    def surely_takes(self, batch: int) -> bool:
        """Whether the host has kept account of how full the lanes are, and each has room for all of its rows."""
        fullest = self.fullest_after(batch)
        return fullest is not None and fullest <= self.spec.plan.ring.length

    def fullest_after(self, batch: int) -> int | None:
        """How many items the fullest lane has at most once a batch has been added, if the host knows that.

        More than a lane has room for where the batch may not fit.
        """
        if self.library.is_tracing():
            return None  # a program that is being traced would be compiled again for each number
        version = readable(self)
        with self.library.lock(version):
            fullest = None if version.memory is None else version.memory.fullest
        return None if fullest is None else fullest + self.spec.rows(batch) // self.spec.plan.ring.lanes

    def note_fullest(self, fullest: int | None) -> Self:
        """Keep account of how many items the fullest lane has at most, if that is known."""
        version = readable(self)
        with self.library.lock(version):
            if version.memory is not None:
                version.memory.fullest = None if fullest is None else min(fullest, self.spec.plan.ring.length)
        return self

    def reader(self, lasting: bool = False, snapshot: TakeSnapshot | None = None) -> VersionReader:
        """Read the arrays piece by piece; newer states may be written meanwhile in any case."""
        version = readable(self)
        counters = self.library.memory_type.as_numpy(self.counters)
        reader = VersionReader(version, counters, self.spec, self._save_history or NEW, snapshot)
        self.remember(reader.save_history.saved(reader.stamp))
        return reader

    def exported_memory(self) -> Memory:
        """Memory with the content of this state that nobody writes to any more."""
        version = readable(self)
        with self.library.lock(version):
            owned = version.own()
            if owned.files is None:
                owned.pinned = True
                return owned
            exported = self._exported or owned.copy()
            object.__setattr__(self, "_exported", exported)
            return exported

    def copied_memory(self) -> Memory:
        """A copy of the state's memory; nothing is exported."""
        version = readable(self)
        with self.library.lock(version):
            return version.own().copy()

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        copied = self.copied_memory()
        arrays = copied.state_arrays(copied.clone(self.counters))
        held = copy.deepcopy(held_objects(copied), memo)  # for a table of the copy's own
        new = type(self).of_arrays(arrays, self.spec, False, held, self._target, copied.files)
        return new.note_fullest(copied.fullest)

    @property
    def rows(self) -> BackendArray:
        return self.exported_memory().rows

    @property
    def wide(self) -> tuple[BackendArray, ...]:
        return self.exported_memory().wide if self.spec.plan.layout.wide else ()

    @property
    def tree(self) -> BackendArray | None:
        return None if self.spec.plan.tree_shape is None else self.exported_memory().tree

    @property
    def counters(self) -> BackendArray:
        readable(self)
        return self._counters

    @property
    def auxiliary(self) -> dict[str, BackendArray]:
        return self.exported_memory().auxiliary if self.spec.plan.auxiliary else {}

    def exported(self) -> Arrays:
        """All arrays of the state, exported: they are never written again."""
        return self.exported_memory().state_arrays(self._counters)


def readable(state: VersionedState) -> Version:
    """The version of a state.

    Raises:
        RuntimeError: if the state was consumed, or its files are those of the process that this one was forked from.
    """
    version = state._version
    if version is None:
        raise consumed()
    memory = version.memory
    if memory is not None and memory.files is not None and not state.library.is_tracing():
        memory.files.check_process()
    return version


def held_objects(memory: Memory) -> dict[int, object] | None:
    """The Python objects whose tokens are in a memory, by token; None if its buffer has none."""
    held: dict[int, object] | None = None if memory.table is None else memory.table.held(memory)
    return held
