"""The functions of buffers that processes share, for every backend: a state is a handle, and every call returns it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from functional_rb.base.arrays import ArrayLike, NumpyArray, PRNGKey
from functional_rb.buffer.checked_items import Batch
from functional_rb.buffer.known import draws_items, is_ring
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.draft import Arrays
from functional_rb.core.strategy import Selection
from functional_rb.native.switch import HAVE_KERNELS, REMEDY
from functional_rb.ops.protocol import Array
from functional_rb.shared.state import SharedState
from functional_rb.storage.directory import need_posix
from functional_rb.structures import row_layout


class Engine:
    """A `buffer.backend.Backend` and `buffer.in_place.InPlace` for the shared buffers of one library.

    Attributes:
        state_type: the class of its states.
    """

    def __init__(self, state_type: type[SharedState]) -> None:
        self.state_type, self._library = state_type, state_type.library
        self.convert, self.check_state = self._library.convert, self._library.check_state
        backend = self._library.backend
        self.as_vector, self.value_of, self.unsupported = backend.as_vector, backend.value_of, backend.unsupported
        self.inside, self.count_invalid, self.split = backend.inside, backend.count_invalid, backend.split
        self.build_mapping = backend.build_mapping
        self.map_items, self.evaluated = backend.map_items, backend.evaluated

    def init(self, spec: BufferSpec, device: object = None) -> SharedState:
        """A handle of the buffer that the spec names; the device is where samples go."""
        check_spec(spec)
        return self.state_type.opened(spec, self._library.place(device))

    def restored(self, spec: BufferSpec, arrays: Arrays, device: object) -> SharedState:
        """A handle of a buffer that has had nothing in it so far, with the content of some arrays of NumPy."""
        state = self.init(spec, device)
        state.buffer.fill(arrays)
        return state

    def with_spec(self, state: SharedState, spec: BufferSpec) -> SharedState:
        """A handle of the same buffer by another spec: one that all processes agree with."""
        check_agreed(state.spec, spec)
        return self.state_type.attached(spec, state.directory, state.device)

    def add(self, state: SharedState, batch: Batch, key: object) -> SharedState:
        if key is not None:
            self._library.check_key(key)
        leaves = [self._library.to_numpy(leaf) for leaf in batch.leaves]
        beside = (None if x is None else self._library.to_numpy(x) for x in (batch.mask, batch.priorities))
        state.buffer.add(leaves, batch.size, *beside)
        return state

    def update(
        self, state: SharedState, handles: Array, priorities: Array | None, replacements: Mapping[int, Array]
    ) -> SharedState:
        new = {k: self._library.to_numpy(leaf) for k, leaf in replacements.items()}
        values = None if priorities is None else self._library.to_numpy(priorities)
        state.buffer.update(self._library.to_numpy(handles), values, new)
        return state

    def advance(self, state: SharedState, version: ArrayLike) -> SharedState:
        raise AssertionError("no sampler of a shared buffer compares versions, see `check_spec`")

    def clear(self, state: SharedState) -> SharedState:
        state.buffer.clear()
        return state

    def sample(
        self, state: SharedState, key: PRNGKey, batch: int, beta: ArrayLike, wanted: Array | None = None
    ) -> tuple[SharedState, list[Array], Selection]:
        # All are drawn, whatever is wanted, as no sampler here remembers what it drew.
        random_bits = self._library.random_bits(key, state.spec.draw_shape(batch))
        level = beta if isinstance(beta, float) else float(self._library.to_numpy(beta))
        leaves, selection = state.buffer.sample(random_bits, level)
        dtypes = ["int32", "float32", "float32", *(leaf.dtype for leaf in state.spec.plan.layout.leaves)]
        handles, weights, probabilities, *items = self._library.from_numpy(
            [*selection[:3], *leaves], dtypes, state.device
        )
        return state, items, Selection(handles, weights, probabilities)

    add_, update_, advance_, clear_ = add, update, advance, clear  # in place as all is, and a handle stays one

    def sample_(
        self,
        state: SharedState,
        key: PRNGKey,
        batch: int,
        beta: ArrayLike,
        finish: Callable[..., object],
        wanted: Array | None = None,
    ) -> tuple[SharedState, object]:
        return state, finish(*self.sample(state, key, batch, beta)[1:])

    def get(self, state: SharedState, handles: Array) -> list[Array]:
        leaves = state.buffer.get(self._library.to_numpy(handles))
        return self._library.from_numpy(leaves, [leaf.dtype for leaf in state.spec.plan.layout.leaves], state.device)

    def items(self, state: SharedState) -> list[Array]:
        # All of the storage, a copy of one moment.
        copied = state.detached()
        return row_layout.unpack(self._library.ops, state.spec.plan.layout, copied.rows, copied.wide)

    def look(
        self,
        state: SharedState,
        function: Callable[..., NumpyArray],
        handles: Array | None = None,
        n: int | None = None,
    ) -> Array:
        arguments = [x if isinstance(x, int) else self._library.to_numpy(x) for x in (handles, n) if x is not None]
        result = state.buffer.look(function, *arguments)
        return state.from_numpy(result, result.dtype.name)

    def counter(self, state: SharedState, place: int) -> Array:
        counter: Array = state.counters[..., place]
        return counter

    def known(self, state: SharedState, mask: Array | None) -> tuple[NumpyArray, NumpyArray | None]:
        return state.buffer.counters(), None if mask is None else self._library.to_numpy(mask)


def check_spec(spec: BufferSpec) -> None:
    """Refuse a spec of which no shared buffer can be made."""
    instead = "write frb.Memmap(shared=False), or"
    if spec.lanes is not None:
        raise ValueError(
            f"Memmap(shared=True): expected lanes=None, got {spec.lanes}, as writers do not step together; {instead} "
            f"add the items of all environments as one batch"
        )
    if not draws_items(spec.sampler):
        raise ValueError(
            f"Memmap(shared=True): expected the sampler frb.Uniform() or frb.Prioritized(), without limits and with "
            f"replacement, got {spec.sampler}; {instead} one of these"
        )
    if not is_ring(spec.writer):
        raise ValueError(f"Memmap(shared=True): expected the writer frb.RoundRobin(), got {spec.writer}; {instead} it")
    if spec.inner:
        raise ValueError(
            f"Memmap(shared=True): expected no transforms but map_items, got {spec.inner}; {instead} transform before "
            f"adding"
        )
    if spec.compact is not None:
        raise ValueError(f"Memmap(shared=True): expected compact=None, got {spec.compact}; {instead} leave it out")
    need_posix()
    if not HAVE_KERNELS:
        raise ImportError(f"Memmap(shared=True): its protocol needs functional_rb._native, which is missing: {REMEDY}")


def check_agreed(old: BufferSpec, new: BufferSpec) -> None:
    """Refuse another spec of a buffer by which other processes go."""
    if dataclasses.replace(old, batch_size=new.batch_size) != new:
        raise ValueError(
            "with_spec: other processes go by the spec of this shared buffer, so only its batch_size can be another "
            "here; storage=frb.Device() takes a copy of this moment, and frb.Memmap(another_path, shared=True) another "
            "buffer of it"
        )
