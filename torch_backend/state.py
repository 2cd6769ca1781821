"""The state on torch: a value whose arrays are shared with its successors."""

from __future__ import annotations

import contextlib
import copy
import threading
from contextlib import AbstractContextManager
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils import _pytree as pytree

from functional_rb import lineage
from functional_rb import state as core
from functional_rb.buffer_spec import BufferSpec
from functional_rb.draft import Arrays
from functional_rb.lineage import Lineage
from torch_backend import memory
from torch_backend.memory import Memory, Version
from torch_backend.objects import Table
from torch_backend.reader import VersionReader


class State(core.State):
    """A replay buffer as a value; see `functional_rb.State` for its fields.

    Reading `rows`, `wide`, `tree` or the pytree's leaves gives the arrays out: they never change afterwards, and the
    next write moves to fresh memory, at the price of one copy.
    """

    __slots__ = ("_consumed", "_counters", "_lineage", "_version")

    def __init__(self, version: Version, counters: torch.Tensor, spec: BufferSpec, past: Lineage | None = None) -> None:
        """Name a version, and the saves that it comes after. Users get states from `init` and the other functions."""
        self.__dict__["spec"] = spec
        object.__setattr__(self, "_version", version)
        object.__setattr__(self, "_counters", counters)
        object.__setattr__(self, "_consumed", False)
        object.__setattr__(self, "_lineage", past)

    _version: Version
    _counters: torch.Tensor
    _consumed: bool
    _lineage: Lineage | None

    @classmethod
    def of_arrays(cls, arrays: Arrays, spec: BufferSpec, pinned: bool = True, table: Table | None = None) -> State:
        """A state of given arrays; pinned (so never written) if somebody else may hold them.

        Where there are Python objects, the table is that of the arrays' tokens, by default an empty one.
        """
        if spec.objects and table is None:
            table = Table(spec)
        return cls(memory.fresh(arrays, spec.capacity, pinned, table), arrays.counters, spec)

    def _consume(self) -> None:
        """Refuse any further use."""
        object.__setattr__(self, "_consumed", True)

    def _remember(self, past: Lineage) -> None:
        """The saves that it comes after: what is made of it from now on knows of them."""
        object.__setattr__(self, "_lineage", past)

    def reader(self, lasting: bool = False) -> VersionReader:
        """Read the arrays piece by piece; newer states may be written meanwhile in any case."""
        made = VersionReader(readable(self), self._counters, self.spec, self._lineage or lineage.NEW)
        self._remember(made.lineage.saved(made.stamp))
        return made

    def _give_out(self) -> Memory:
        with locked(self._version):
            owned = readable(self).own()
            owned.pinned = True
            return owned

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
        return None if self.spec.tree_shape is None else self._give_out().tree

    @property
    def counters(self) -> torch.Tensor:
        """int32 [n]."""
        readable(self)
        return self._counters

    @property
    def kept(self) -> dict[str, torch.Tensor]:
        """What else the sampler and the writer keep, by name."""
        return self._give_out().kept if self.spec.kept else {}

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        """A state with memory of its own."""
        copied = self._copy()
        if copied.table is None:
            version = memory.Version(copied, self.spec.capacity, threading.RLock())
            return State(version, self._counters.clone(), self.spec)
        arrays, held = _with_objects(copied, self._counters.clone())
        return _rebuilt(arrays, self.spec, copy.deepcopy(held, memo))

    def _copy(self) -> Memory:
        with locked(self._version):
            return readable(self).own().copy()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the arrays, which count as given out, and the Python objects that they stand for."""
        arrays = Arrays(self.rows, self.wide, self.tree, self.counters, self.kept)
        if not self.spec.objects:
            return _rebuilt, (arrays, self.spec)
        arrays, held = _with_objects(self._give_out(), self.counters)
        return _rebuilt, (arrays, self.spec, held)


def readable(state: State) -> Version:
    """The version of a state that has not been consumed by an in-place function."""
    if state._consumed:
        raise RuntimeError(
            "this state was consumed by an in-place function (add_, sample_, update_); go on with what that returned, "
            "or use add, sample and update, which leave states as they are"
        )
    return state._version


def locked(version: Version) -> AbstractContextManager[Any]:
    """A version's lock; none while torch.compile traces, which knows no locks (the in-place forms own their memory)."""
    if torch.compiler.is_compiling():
        return contextlib.nullcontext()
    return version.lock


def _with_objects(memory: Memory, counters: torch.Tensor) -> tuple[Arrays, dict[int, Any]]:
    arrays = Arrays(memory.rows, memory.wide, memory.tree, counters, memory.kept)
    assert memory.table is not None
    with memory.table.lock:
        return arrays, memory.table.held(arrays)


def _rebuilt(arrays: Arrays, spec: BufferSpec, held: dict[int, Any] | None = None) -> State:
    """A state of arrays, and the objects by the tokens in these, in a table of their own."""
    return State.of_arrays(arrays, spec, table=None if held is None else Table(spec, held))


def _sent(state: State) -> tuple[Any, ...]:
    """Between processes go copies: torch moves what it sends to shared memory, and frees what others may be reading."""
    copied = state._copy()
    own = memory.Version(copied, state.spec.capacity, state._version.lock)
    return State(own, state._counters.clone(), state.spec).__reduce__()


ForkingPickler.register(State, _sent)


class Held:
    """What the outline of a state tells of its Python objects: equal for states that share their table.

    It keeps the memory, and so the objects whose tokens are among the leaves.
    """

    __slots__ = ("memory",)

    def __init__(self, memory: Memory) -> None:
        """Of a memory with a table."""
        self.memory = memory

    @property
    def table(self) -> Table:
        """The objects by token."""
        assert self.memory.table is not None
        return self.memory.table

    def __eq__(self, other: object) -> bool:
        """Whether tokens of the one mean the same in the other."""
        return isinstance(other, Held) and self.table is other.table

    def __hash__(self) -> int:
        """By the table."""
        return hash(self.table)


Outline = tuple[BufferSpec, int, Held | None]


def _flatten(state: State) -> tuple[list[torch.Tensor], Outline]:
    tree = state.tree
    kept = [state.kept[name] for name in state.spec.kept]
    leaves = [state.rows, *state.wide, *([] if tree is None else [tree]), *kept, state.counters]
    return leaves, (state.spec, len(state.wide), Held(state._give_out()) if state.spec.objects else None)


def _flatten_with_keys(state: State) -> tuple[list[tuple[Any, Any]], Any]:
    leaves, context = _flatten(state)
    names = ["rows", *(f"wide_{k}" for k in range(context[1]))]
    names += [*(["tree"] if context[0].tree_shape else []), *(f"kept_{name}" for name in context[0].kept), "counters"]
    return [(pytree.GetAttrKey(name), leaf) for name, leaf in zip(names, leaves, strict=True)], context


def _unflatten(leaves: Any, context: Outline) -> State:
    spec, wide, held = context
    rows, *rest = leaves
    tree = rest[wide] if spec.tree_shape else None
    kept = dict(zip(spec.kept, rest[wide + (tree is not None) : -1], strict=True))
    arrays = Arrays(rows, tuple(rest[:wide]), tree, rest[-1], kept)
    return State.of_arrays(arrays, spec, table=None if held is None else held.table)


pytree.register_pytree_node(
    State,
    _flatten,
    _unflatten,
    serialized_type_name="torch_backend.State",
    flatten_with_keys_fn=_flatten_with_keys,
)
