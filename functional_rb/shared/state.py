"""The state of a shared buffer: a handle of what several processes write, no value."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.buffer.storage_kinds import Device
from functional_rb.core.counters import BASE
from functional_rb.core.draft import Arrays
from functional_rb.core.reader import Reader
from functional_rb.ops.protocol import Array
from functional_rb.structures.row_layout import STORED_AS

if TYPE_CHECKING:  # which needs numba
    from functional_rb.shared.buffer import SharedBuffer


class SharedState(State):
    """A handle: it always reads the newest content, and every function returns the one that it was given.

    What its fields give are copies of one moment each; `detached()` has all of one.

    Attributes:
        buffer: what it is a handle of.
        device: where the backend puts what is read; None for its default.
    """

    __slots__ = ("buffer", "device")

    buffer: SharedBuffer
    device: Any

    def __init__(self, buffer: SharedBuffer, device: Any = None) -> None:
        """Name a buffer. Users get states from `init`."""
        self.__dict__["spec"] = buffer.spec
        object.__setattr__(self, "buffer", buffer)
        object.__setattr__(self, "device", device)

    def given(self, array: Any, dtype: str) -> Array:
        """A NumPy array that nobody else has, of a dtype as stored, as one of the backend's of the dtype named."""
        raise TypeError(f"{type(self).__name__} belongs to no backend")

    @property
    def directory(self) -> str:
        """Where its files are."""
        return self.buffer.files.directory

    def detached(self) -> State:
        """A copy of this moment as a value in memory, `storage=Device()`; writers wait for it.

        Example:
            >>> state = rb.init(frb.BufferSpec((frb.Unbounded(()),), 4, storage=frb.Memmap(shared=True)))
            >>> copied = state.detached()
            >>> state = rb.add(state, (1.0,))
            >>> int(rb.size(state)), int(rb.size(copied))
            (1, 0)
        """
        found = self.buffer.snapshot()
        stored = [STORED_AS.get(leaf.dtype, leaf.dtype) for leaf in self.spec.layout.wide]
        wide = tuple(self.given(x, dtype) for x, dtype in zip(found.wide, stored, strict=True))
        tree = None if self.spec.tree_shape is None else self.given(found.tree, "float32")
        counters = self.given(found.counters[:BASE].copy(), "int32")
        spec = dataclasses.replace(self.spec, storage=Device())
        return self.as_value(Arrays(self.given(found.rows, "int32"), wide, tree, counters, {}), spec)

    def as_value(self, arrays: Arrays, spec: BufferSpec) -> State:
        """A state of the backend, of arrays that nobody else has."""
        return State(*arrays, spec)

    def check_alive(self) -> None:
        """A handle is never consumed."""

    def exported(self) -> State:
        """All arrays of one moment."""
        return self.detached()

    def reader(self, lasting: bool = False, directory: str | None = None) -> Reader:
        """Read a copy of one moment."""
        return self.detached().reader()

    @property
    def rows(self) -> Array:
        """int32 [capacity, words], a copy."""
        return self.detached().rows

    @property
    def wide(self) -> tuple[Array, ...]:
        """Arrays [capacity, *shape], copies."""
        return self.detached().wide

    @property
    def tree(self) -> Array | None:
        """float32 [rows, FANOUT], a copy, or None."""
        return self.detached().tree

    @property
    def counters(self) -> Array:
        """int32 [n]."""
        return self.given(self.buffer.counters(), "int32")

    @property
    def axes(self) -> tuple[int, ...]:
        """The shape of the counters: a handle is never stacked."""
        return (BASE,)

    @property
    def lost(self) -> Array:
        """How many items were being added by processes that died, int32 scalar."""
        return self.given(self.buffer.lost(), "int32")[0]

    @property
    def auxiliary(self) -> dict[str, Array]:
        """Nothing: samplers and writers of shared buffers keep no arrays."""
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        """By the path: another process gets a handle of the same buffer."""
        return _attached, (type(self), self.spec, self.directory, self.device)

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedState:
        """Itself, as a handle is no value; `detached()` copies."""
        return self


def _attached(made: type[SharedState], spec: BufferSpec, directory: str, device: Any) -> SharedState:
    from functional_rb.shared.buffer import SharedBuffer

    return made(SharedBuffer.attach(spec, directory), device)
