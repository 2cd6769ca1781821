"""The state on torch: a value whose arrays are shared with its successors."""

from __future__ import annotations

import contextlib
import copy
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from functional_rb.base import forks
from functional_rb.base.errors import consumed
from functional_rb.buffer import earlier
from functional_rb.buffer import state as core
from functional_rb.buffer.reader import TakeSnapshot, misfit
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core import save_history
from functional_rb.core.draft import Arrays
from functional_rb.core.save_history import SaveHistory
from functional_rb.storage.mapped import MappedFiles
from functional_rb.structures.row_layout import STORED_AS
from functional_rb.versions.object_table import Held
from functional_rb.versions.reader import VersionReader
from functional_rb.versions.version import Memory, Version
from torch_backend import memory, ops
from torch_backend.objects import Table
from torch_backend.placement import Placement


class State(core.State):
    """A replay buffer as a value; see `functional_rb.State` for its fields.

    Reading `rows`, `wide`, `tree` or the pytree's leaves gives the arrays out: they never change afterwards, and the
    next write moves to fresh memory, at the price of one copy. Of a buffer in mapped files a copy is given out, in
    files without a name; it is made once for a state, and what was never written costs nothing.
    """

    __slots__ = ("_consumed", "_counters", "_given", "_save_history", "_version")

    def __init__(
        self, version: Version, counters: torch.Tensor, spec: BufferSpec, past: SaveHistory | None = None
    ) -> None:
        """Name a version, and the saves that it comes after. Users get states from `init` and the other functions."""
        self.__dict__["spec"] = spec
        object.__setattr__(self, "_version", version)
        object.__setattr__(self, "_counters", counters)
        object.__setattr__(self, "_consumed", False)
        object.__setattr__(self, "_given", None)
        object.__setattr__(self, "_save_history", past)

    _version: Version
    _counters: torch.Tensor
    _consumed: bool
    _given: Memory | None
    _save_history: SaveHistory | None

    @classmethod
    def of_arrays(
        cls,
        arrays: Arrays,
        spec: BufferSpec,
        pinned: bool = True,
        table: Table | None = None,
        place: Placement | None = None,
        files: MappedFiles | None = None,
    ) -> State:
        """A state of given arrays; pinned (so never written) if somebody else may hold them.

        Where there are Python objects, the table is that of the arrays' tokens, by default an empty one.
        """
        if spec.plan.objects and table is None:
            table = Table(spec)
        place = Placement(spec) if place is None else place
        version = memory.fresh(arrays, spec.capacity, place, pinned, table, files)
        version.own().fits = misfit(arrays, spec.plan) is None
        return cls(version, arrays.counters, spec)

    def check_alive(self) -> None:
        """Refuse a state that was consumed."""
        readable(self)

    def _consume(self) -> None:
        """Refuse any further use."""
        object.__setattr__(self, "_consumed", True)

    def remember(self, past: SaveHistory) -> None:
        """The saves that it comes after: what is made of it from now on knows of them."""
        object.__setattr__(self, "_save_history", past)

    def reader(self, lasting: bool = False, snapshot: TakeSnapshot | None = None) -> VersionReader:
        """Read the arrays piece by piece; newer states may be written meanwhile in any case."""
        past = self._save_history or save_history.NEW
        made = VersionReader(readable(self), self._counters.cpu().numpy(), self.spec, past, snapshot)
        self.remember(made.save_history.saved(made.stamp))
        return made

    def _give_out(self) -> Memory:
        with locked(self._version):
            owned = readable(self).own()
            if owned.files is None:
                return owned.exported()
            if self._given is None:
                object.__setattr__(self, "_given", owned.exported())
            assert self._given is not None
            return self._given

    @property
    def _target(self) -> torch.device | None:
        with locked(self._version):
            return readable(self).own().placement.target

    @property
    def rows(self) -> torch.Tensor:
        """int32 [capacity, words]."""
        return self._give_out().rows

    @property
    def wide(self) -> tuple[torch.Tensor, ...]:
        """Arrays [capacity, *shape]."""
        return self._give_out().wide

    @property
    def tree(self) -> torch.Tensor | None:
        """float32 [rows, FANOUT], or None."""
        return None if self.spec.plan.tree_shape is None else self._give_out().tree

    @property
    def counters(self) -> torch.Tensor:
        """int32 [n]."""
        readable(self)
        return self._counters

    @property
    def axes(self) -> tuple[int, ...]:
        """The shape of the counters."""
        return self._counters.shape

    @property
    def auxiliary(self) -> dict[str, torch.Tensor]:
        """What else the sampler and the writer keep, by name."""
        return self._give_out().auxiliary if self.spec.plan.auxiliary else {}

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        """A state with memory of its own."""
        copied = self._copy()
        if copied.table is None:
            version = Version(copied, self.spec.capacity, forks.lock())
            return State(version, self._counters.clone(), self.spec)
        arrays, held = _with_objects(copied, self._counters.clone())
        return _rebuilt(arrays, self.spec, copy.deepcopy(held, memo), copied.placement.target)

    def _copy(self) -> Memory:
        with locked(self._version):
            return readable(self).own().copy()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the arrays, which count as given out, and the Python objects that they stand for."""
        arrays, held = Arrays(self.rows, self.wide, self.tree, self.counters, self.auxiliary), None
        if self.spec.plan.objects:
            arrays, held = _with_objects(self._give_out(), self.counters)
        return unpickled, (signed(arrays), self.spec, held, self._target)


def readable(state: State) -> Version:
    """The version of a state that has not been consumed by an in-place function."""
    if state._consumed:
        raise consumed()
    version = state._version
    if version.memory is not None and version.memory.files is not None and not torch.compiler.is_compiling():
        version.memory.files.check_process()
    return version


def locked(version: Version) -> AbstractContextManager[Any]:
    """A version's lock; none while torch.compile traces, which knows no locks (the in-place forms own their memory)."""
    if torch.compiler.is_compiling():
        return contextlib.nullcontext()
    return version.lock


def _with_objects(memory: Memory, counters: torch.Tensor) -> tuple[Arrays, dict[int, Any]]:
    arrays = Arrays(memory.rows, memory.wide, memory.tree, counters, memory.auxiliary)
    assert memory.table is not None
    with memory.table.lock:
        return arrays, memory.table.held(arrays)


def _rebuilt(
    arrays: Arrays,
    spec: BufferSpec,
    held: dict[int, Any] | None = None,
    target: torch.device | None = None,
    pinned: bool = True,
) -> State:
    """A state of arrays, and the objects by the tokens in these, in a table of their own."""
    table = None if held is None else Table(spec, held)
    return State.of_arrays(arrays, spec, pinned, table, Placement(spec, target))


def signed(arrays: Arrays) -> Arrays:
    """Arrays of dtypes that torch can read from a pickle: of unsigned ones it cannot."""

    def as_signed(array: torch.Tensor) -> torch.Tensor:
        return array.view(ops.SIGNED.get(array.dtype, array.dtype))

    auxiliary = {name: as_signed(array) for name, array in arrays.auxiliary.items()}
    return arrays._replace(wide=tuple(map(as_signed, arrays.wide)), auxiliary=auxiliary)


def unpickled(
    arrays: Arrays,
    spec: BufferSpec,
    held: dict[int, Any] | None,
    target: torch.device | None,
    pinned: bool = True,
) -> State:
    """A state of such arrays, with the dtypes as they were; pinned if somebody else may hold them."""
    wide = [ops.DTYPES[STORED_AS.get(leaf.dtype, leaf.dtype)] for leaf in spec.plan.layout.wide]
    restored = tuple(array.view(dtype) for array, dtype in zip(arrays.wide, wide, strict=True))
    auxiliary = {
        name: array.view(ops.DTYPES[spec.plan.auxiliary[name].dtype]) for name, array in arrays.auxiliary.items()
    }
    return _rebuilt(arrays._replace(wide=restored, auxiliary=auxiliary), spec, held, target, pinned)


def _unpickled(arrays: Arrays, spec: BufferSpec, held: dict[int, Any] | None, target: torch.device | None) -> State:
    """What earlier versions pickled, by this name."""
    return unpickled(earlier.unpickled(arrays, spec), spec, held, target)


Outline = tuple[BufferSpec, int, Held | None, torch.device | None]


def _flatten(state: State) -> tuple[list[torch.Tensor], Outline]:
    tree = state.tree
    auxiliary = [state.auxiliary[name] for name in state.spec.plan.auxiliary]
    leaves = [state.rows, *state.wide, *([] if tree is None else [tree]), *auxiliary, state.counters]
    held = Held(state._give_out()) if state.spec.plan.objects else None
    return leaves, (state.spec, len(state.wide), held, state._target)


def _flatten_with_keys(state: State) -> tuple[list[tuple[Any, Any]], Any]:
    leaves, context = _flatten(state)
    names = ["rows", *(f"wide_{k}" for k in range(context[1]))]
    names += [
        *(["tree"] if context[0].plan.tree_shape else []),
        *(f"kept_{name}" for name in context[0].plan.auxiliary),
        "counters",
    ]
    return [(pytree.GetAttrKey(name), leaf) for name, leaf in zip(names, leaves, strict=True)], context


def _unflatten(leaves: Any, context: Outline) -> State:
    spec, wide, held, target = context
    rows, *rest = leaves
    tree = rest[wide] if spec.plan.tree_shape else None
    auxiliary = dict(zip(spec.plan.auxiliary, rest[wide + (tree is not None) : -1], strict=True))
    arrays = Arrays(rows, tuple(rest[:wide]), tree, rest[-1], auxiliary)
    table = None if held is None else held.table
    return State.of_arrays(arrays, spec, table=table, place=Placement(spec, target))


pytree.register_pytree_node(
    State,
    _flatten,
    _unflatten,
    serialized_type_name="torch_backend.State",
    flatten_with_keys_fn=_flatten_with_keys,
)
