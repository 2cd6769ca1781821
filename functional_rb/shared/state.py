"""The state of a shared buffer: a handle of what several processes write, no value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self

from functional_rb.base.arrays import DeviceLike, NumpyArray
from functional_rb.buffer import checks
from functional_rb.buffer.reader import Reader, TakeSnapshot
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State
from functional_rb.buffer.storage_kinds import Device
from functional_rb.core.counters import BASE
from functional_rb.core.draft import Arrays
from functional_rb.ops.protocol import Array
from functional_rb.shared.library import Library

if TYPE_CHECKING:  # needs the native code
    from functional_rb.shared.buffer import SharedBuffer


class SharedState(State):
    """A handle: it always reads the newest content, and every function returns the one that it was given.

    What its fields give are copies of one moment each; `detached()` has all of one.

    Attributes:
        library: of its arrays; each backend has a class of its own.
        buffer: what it is a handle of.
        device: where the backend puts what is read; None for its default.
    """

    library: ClassVar[Library]
    buffer: SharedBuffer
    device: DeviceLike

    def __init__(self, buffer: SharedBuffer, device: object = None) -> None:
        checks.leaves_for_backend(buffer.spec, self.library.backend.unsupported)
        self.__dict__.update(spec=buffer.spec, buffer=buffer, device=device)

    @classmethod
    def opened(cls, spec: BufferSpec, device: object) -> Self:
        from functional_rb.shared.buffer import SharedBuffer

        return cls(SharedBuffer.open(spec), device)

    @classmethod
    def attached(cls, spec: BufferSpec, directory: str, device: object) -> Self:
        from functional_rb.shared.buffer import SharedBuffer

        return cls(SharedBuffer.attach(spec, directory), device)

    def from_numpy(self, array: NumpyArray, dtype: str) -> Array:
        """An array of NumPy that nobody else has, as one of the backend's of the dtype named, on the state's device."""
        converted: Array = self.library.from_numpy([array], [dtype], self.device)[0]
        return converted

    @property
    def directory(self) -> str:
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
        moment, plan = self.buffer.snapshot(), self.spec.plan
        stored = [moment.rows, moment.counters[:BASE].copy(), moment.tree, *moment.wide]
        dtypes = ["int32", "int32", "float32", *(leaf.stored_as for leaf in plan.layout.wide)]
        rows, counters, tree, *wide = self.library.from_numpy(stored, dtypes, self.device)
        spec = dataclasses.replace(self.spec, storage=Device())
        return self.library.as_value(
            Arrays(rows, tuple(wide), None if plan.tree_shape is None else tree, counters, {}), spec
        )

    def check_alive(self) -> None:
        """A handle is never consumed."""

    def exported(self) -> State:
        return self.detached()

    def reader(self, lasting: bool = False, snapshot: TakeSnapshot | None = None) -> Reader:
        return self.detached().reader()

    @property
    def rows(self) -> Array:
        rows: Array = self.detached().rows
        return rows

    @property
    def wide(self) -> tuple[Array, ...]:
        return self.detached().wide

    @property
    def tree(self) -> Array | None:
        return self.detached().tree

    @property
    def counters(self) -> Array:
        return self.from_numpy(self.buffer.counters(), "int32")

    @property
    def axes(self) -> tuple[int, ...]:
        # A handle is never stacked.
        return (BASE,)

    @property
    def lost(self) -> Array:
        return self.from_numpy(self.buffer.lost(), "int32")[0]

    @property
    def auxiliary(self) -> dict[str, Array]:
        # Samplers and writers of shared buffers keep no arrays.
        return {}

    def __reduce__(self) -> tuple[object, ...]:
        return type(self).attached, (self.spec, self.directory, self.device)

    def __deepcopy__(self, memo: Mapping[int, object]) -> SharedState:
        return self
