"""The state of a host-side buffer: a value whose arrays are shared with its successors."""

from __future__ import annotations

import copy
from typing import Any

from functional_rb.base.errors import consumed
from functional_rb.buffer import earlier
from functional_rb.buffer import state as core
from functional_rb.buffer.reader import TakeSnapshot, misfit
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays
from functional_rb.core.save_history import NEW, SaveHistory
from functional_rb.ops import numpy_ops
from functional_rb.storage import host_memory as memory
from functional_rb.versions.object_table import Table
from functional_rb.versions.reader import VersionReader
from functional_rb.versions.version import Memory, Version


class HostState(core.State):
    """A replay buffer as a value, in NumPy's arrays; see `functional_rb.State` for its fields.

    Reading `rows`, `wide`, `tree` or `kept` gives the arrays out: they never change afterwards, and the next write
    moves to fresh memory, at the price of one copy. Of a buffer in mapped files a copy is given out, in files without a
    name; it is made once for a state, and what was never written costs nothing.
    """

    __slots__ = ("_counters", "_given", "_save_history", "_version", "device")

    def __init__(
        self,
        version: Version,
        counters: numpy_ops.Vector,
        spec: BufferSpec,
        device: Any = None,
        past: SaveHistory | None = None,
    ) -> None:
        """Name a version, and the saves that it comes after. Users get states from `init` and the other functions."""
        self.__dict__["spec"] = spec
        object.__setattr__(self, "_version", version)
        object.__setattr__(self, "_counters", counters)
        object.__setattr__(self, "_given", None)
        object.__setattr__(self, "device", device)
        object.__setattr__(self, "_save_history", past)

    _version: Version | None
    """None once it is consumed."""
    _counters: numpy_ops.Vector
    _save_history: SaveHistory | None
    _given: Memory | None
    device: Any
    """Where a backend brings what is sampled; None for where it has its arrays by default."""

    @classmethod
    def of_arrays(
        cls, arrays: Arrays, spec: BufferSpec, pinned: bool = True, table: Table | None = None, device: Any = None
    ) -> HostState:
        """A state of given arrays; pinned (so never written) if somebody else may hold them.

        Where there are Python objects, the table is that of the arrays' tokens, by default an empty one.
        """
        if spec.plan.objects and table is None:
            table = Table(spec)
        version = memory.fresh(arrays, spec, pinned, table)
        version.own().fits = misfit(arrays, spec.plan) is None
        return cls(version, arrays.counters, spec, device)

    def check_alive(self) -> None:
        """Refuse a state that was consumed."""
        readable(self)

    def followed_by(self, following: HostState) -> HostState:
        """The state that goes on in this one's memory, with this one consumed: nothing is kept for it any more."""
        if following is self:
            following = HostState(readable(self), self._counters, self.spec, self.device, self._save_history)
        object.__setattr__(self, "_version", None)
        return following

    def remember(self, past: SaveHistory) -> None:
        """Come after a save."""
        object.__setattr__(self, "_save_history", past)

    def reader(self, lasting: bool = False, snapshot: TakeSnapshot | None = None) -> VersionReader:
        """Read the arrays piece by piece; newer states may be written meanwhile, lasting or not."""
        past = self._save_history or NEW
        made = VersionReader(readable(self), self._counters, self.spec, past, snapshot)
        self.remember(made.save_history.saved(made.stamp))
        return made

    def _give_out(self) -> Memory:
        version = readable(self)
        with version.lock:
            owned = version.own()
            if owned.files is None:
                return owned.exported()
            if self._given is None:
                object.__setattr__(self, "_given", owned.exported())
            assert self._given is not None
            return self._given

    @property
    def rows(self) -> numpy_ops.Vector:
        """int32 [capacity, words]."""
        return self._give_out().rows

    @property
    def wide(self) -> tuple[numpy_ops.Vector, ...]:
        """Arrays [capacity, *shape]."""
        return self._give_out().wide if self.spec.plan.layout.wide else ()

    @property
    def tree(self) -> numpy_ops.Vector | None:
        """float32 [rows, FANOUT], or None."""
        return None if self.spec.plan.tree_shape is None else self._give_out().tree

    @property
    def counters(self) -> numpy_ops.Vector:
        """int32 [n]."""
        readable(self)
        return self._counters

    @property
    def axes(self) -> tuple[int, ...]:
        """The shape of the counters."""
        return self._counters.shape

    @property
    def auxiliary(self) -> dict[str, numpy_ops.Vector]:
        """What else the sampler and the writer keep, by name."""
        return self._give_out().auxiliary if self.spec.plan.auxiliary else {}

    def exported(self) -> Arrays:
        """All arrays."""
        return self.with_memory()[0]

    def with_memory(self) -> tuple[Arrays, Memory]:
        """Likewise, and the memory that they are of."""
        given = self._give_out()
        return Arrays(given.rows, given.wide, given.tree, self._counters, given.auxiliary), given

    def copied(self) -> tuple[Arrays, Memory]:
        """Copies of all arrays, and the memory that they are of; nothing is given out."""
        version = readable(self)
        with version.lock:
            copied = version.own().copy()
        return Arrays(copied.rows, copied.wide, copied.tree, self._counters.copy(), copied.auxiliary), copied

    def __deepcopy__(self, memo: dict[int, Any]) -> HostState:
        """A state with memory of its own."""
        arrays, copied = self.copied()
        held = None if copied.table is None else copy.deepcopy(_objects(arrays, copied), memo)
        table = None if held is None else Table(self.spec, held)
        own = memory.fresh(arrays, self.spec, table=table, files=copied.files)
        return HostState(own, arrays.counters, self.spec, self.device)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the arrays, which count as given out, and the Python objects that they stand for.

        What is unpickled has no device: that of another process, or machine, need not be there.
        """
        arrays, given = self.with_memory()
        return _unpickled, (arrays, self.spec, None if given.table is None else _objects(arrays, given))


def readable(state: HostState) -> Version:
    """The version of a state.

    Raises:
        RuntimeError: if the state was consumed, or its files are those of the process that this one was forked from.
    """
    version = state._version
    if version is None:
        raise consumed()
    if version.memory is not None and version.memory.files is not None:
        version.memory.files.check_process()
    return version


def _objects(arrays: Arrays, memory: Memory) -> dict[int, Any]:
    """The Python objects of some arrays by token."""
    assert memory.table is not None
    with memory.table.lock:
        return memory.table.held(arrays)


def _rebuilt(arrays: Arrays, spec: BufferSpec, held: dict[int, Any] | None) -> HostState:
    """What earlier versions pickled, by this name."""
    return _unpickled(earlier.unpickled(arrays, spec), spec, held)


def _unpickled(arrays: Arrays, spec: BufferSpec, held: dict[int, Any] | None) -> HostState:
    """A state of arrays, and the objects by the tokens in these, in a table of their own."""
    return HostState.of_arrays(arrays, spec, table=None if held is None else Table(spec, held))
