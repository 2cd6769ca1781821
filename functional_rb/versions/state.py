"""States of libraries whose arrays can be written to: a value whose memory is shared with its successors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Self

from functional_rb.base import forks
from functional_rb.base.arrays import BackendArray, DeviceLike
from functional_rb.base.errors import consumed
from functional_rb.buffer import state as core
from functional_rb.buffer.reader import TakeSnapshot, check_fits, misfit
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays
from functional_rb.core.save_history import NEW, SaveHistory
from functional_rb.versions.library import Library
from functional_rb.versions.memory import Memory
from functional_rb.versions.object_table import Table, held_objects
from functional_rb.versions.reader import VersionReader
from functional_rb.versions.version import Version


class VersionedState(core.State):
    """A replay buffer as a value; see `functional_rb.State` for its fields.

    Reading `rows`, `wide`, `tree` or `auxiliary` exports the arrays: they never change afterwards, and the next write
    moves to fresh memory, at the price of one copy. Of a buffer in mapped files a copy is exported, in files without a
    name; it is made once for a state, and what was never written costs nothing.
    """

    __slots__ = ("_counters", "_exported", "_fullest", "_save_history", "_target", "_version")

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
    # No lane has more items than this, as the host knows where looking would wait for a device; None if it does not.
    _fullest: int | None

    def __init__(
        self,
        version: Version,
        counters: BackendArray,
        spec: BufferSpec,
        save_history: SaveHistory | None = None,
        target: object = None,
        fullest: int | None = None,
    ) -> None:
        self.__dict__["spec"] = spec
        set_field = object.__setattr__
        set_field(self, "_version", version)
        set_field(self, "_counters", counters)
        set_field(self, "_save_history", save_history)
        set_field(self, "_target", target)
        set_field(self, "_exported", None)
        set_field(self, "_fullest", fullest)

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
        lock = forks.lock()
        if spec.plan.objects:
            cls.library.check_single(arrays.rows, spec)
            table = objects if isinstance(objects, Table) else Table(spec, objects)
            with (lock := table.lock):
                table.watch(memory)
        return cls(Version(memory, lock), arrays.counters, spec, None, target)

    def check_alive(self) -> None:
        readable(self)

    def consume(self) -> None:
        """Refuse any further use of this state."""
        object.__setattr__(self, "_version", None)

    def likewise(self, counters: BackendArray, target: object) -> Self:
        """A state of the same version, with its own counters, whose samples go to its own device."""
        return type(self)(readable(self), counters, self.spec, self.saves_after(), target, self.fullest_after())

    def remember(self, save_history: SaveHistory) -> None:
        """Come after these saves: what is made of the state from now on does too."""
        object.__setattr__(self, "_save_history", save_history)

    def saves_after(self, added: int = 0) -> SaveHistory | None:
        """The saves that the next state succeeds, with so many items added."""
        # A program that is being traced would be compiled again after each save, and for each number below.
        past = None if self.library.is_tracing() else self._save_history
        return past.after(self.spec.rows(added)) if added and past is not None else past

    def fullest_after(self, added: int = 0) -> int | None:
        fullest = None if self.library.is_tracing() else self._fullest
        return None if fullest is None else fullest + self.spec.rows(added) // self.spec.plan.ring.lanes

    def note_fullest(self, fullest: int | None) -> Self:
        """Keep account of how many items the fullest lane has at most, if that is known."""
        object.__setattr__(self, "_fullest", None if fullest is None else min(fullest, self.spec.plan.ring.length))
        return self

    def lock(self) -> AbstractContextManager[object]:
        """The lock of the state's lineage; none while somebody traces (the in-place forms own their memory)."""
        return nullcontext() if self.library.is_tracing() else readable(self).lock

    def own(self) -> Memory:
        """The memory, of which nobody else is the owner; see `Version.own`."""
        return readable(self).own()

    def fitting(self, function: str) -> Memory:
        """The same, for a function which native code may work on: arrays that were given may be of any shape."""
        memory = self.own()
        if not memory.fits:
            check_fits(memory.state_arrays(self._counters), self.spec.plan, function)
        return memory

    def reader(self, lasting: bool = False, snapshot: TakeSnapshot | None = None) -> VersionReader:
        """Read the arrays piece by piece; newer states may be written meanwhile in any case."""
        counters = self.library.memory_type.as_numpy(self.counters)
        reader = VersionReader(readable(self), counters, self.spec, self._save_history or NEW, snapshot)
        self.remember(reader.save_history.saved(reader.stamp))
        return reader

    def exported_memory(self) -> Memory:
        """Memory with the content of this state that nobody writes to any more."""
        with self.lock():
            owned = self.own()
            if owned.files is None:
                owned.pinned = True
                return owned
            exported = self._exported or owned.copy()
            object.__setattr__(self, "_exported", exported)
            return exported

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        with self.lock():
            copied = self.own().copy()
        arrays = copied.state_arrays(copied.clone(self.counters))
        held = copy.deepcopy(held_objects(copied), memo)  # for a table of the copy's own
        new = type(self).of_arrays(arrays, self.spec, False, held, self._target, copied.files)
        return new.note_fullest(self._fullest)

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
