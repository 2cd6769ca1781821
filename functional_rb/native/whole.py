"""The compiled twins of the core's functions, for memories of any library whose arrays have an address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from functional_rb.buffer_spec import BufferSpec
from functional_rb.layout import KEPT_AS
from functional_rb.native import calls, plan
from functional_rb.ops import Array
from functional_rb.samplers import Drawn
from functional_rb.versions import Memory, SavedSlots

NO_ADDRESSES = np.empty(0, np.int64)
NO_COUNT = np.empty(1, np.int64)


class Library(Protocol):
    """How arrays of a library are found and made."""

    def address(self, array: Array, /) -> int:
        """Where an array lies in the CPU's memory."""
        ...

    def empty(self, shape: tuple[int, ...], /, *, dtype: Any) -> Array:
        """An array that nothing is in yet, of one of the library's own dtypes."""
        ...

    @property
    def dtypes(self) -> Mapping[str, Any]:
        """These, by name."""
        ...

    def results(self, spec: BufferSpec, batch: int) -> list[Array]:
        """Likewise for each leaf in the layout, [batch, *shape]."""
        ...


class Addresses:
    """Where the arrays of a memory lie.

    Attributes:
        plan: of the buffer's spec.
        storage: int64 [1 + wide], addresses.
        tree: address, 0 for none.
        tree_size: elements of the tree.
        leaves: int64 [leaves], for the addresses of a batch; used under the state's lock.
    """

    __slots__ = ("address", "leaves", "plan", "storage", "tree", "tree_size")

    def __init__(self, library: Library, spec: BufferSpec, memory: Memory) -> None:
        """Look them up."""
        self.address = library.address
        self.plan = plan.encode(spec)
        self.storage = np.array([self.address(x) for x in (memory.rows, *memory.wide)], np.int64)
        self.tree = 0 if memory.tree is None else self.address(memory.tree)
        self.tree_size = 0 if memory.tree is None else memory.tree.nbytes // 4
        self.leaves = np.empty(len(spec.layout.leaves), np.int64)

    def of_leaves(self, arrays: Sequence[Array]) -> Any:
        """The addresses of a batch's leaves."""
        address = self.address
        for k, array in enumerate(arrays):
            self.leaves[k] = address(array)
        return self.leaves


class Kernels:
    """`add`, `update` and draws of plain buffers."""

    def __init__(self, library: Library) -> None:
        """On the arrays of a library."""
        self._library = library
        self._address, self._empty = library.address, library.empty
        self._int32, self._float32 = library.dtypes["int32"], library.dtypes["float32"]
        self._stored: dict[BufferSpec, list[tuple[tuple[int, ...], Any]]] = {}

    def addresses(self, spec: BufferSpec, memory: Memory) -> Addresses:
        """Looked up once; each time where others hold the arrays, as torch moves those it shares between processes."""
        if memory.native is None or memory.pinned:
            memory.native = Addresses(self._library, spec, memory)
        assert isinstance(memory.native, Addresses)
        return memory.native

    def _some(self, array: Array | None) -> int:
        return 0 if array is None else self._address(array)

    def room(self, spec: BufferSpec, n: int, rows: bool, values: bool) -> SavedSlots:
        """Where a kernel may save what it overwrites in up to n slots; nothing is in it yet."""
        empty = self._empty
        copies = [empty((n, *shape), dtype=dtype) for shape, dtype in self._stored_as(spec)] if rows else []
        old = empty((n,), dtype=self._float32) if values else None
        return SavedSlots(empty((n,), dtype=self._int32), copies, old)

    def _stored_as(self, spec: BufferSpec) -> list[tuple[tuple[int, ...], Any]]:
        """Shape and dtype of what an item is stored as: its row, and its wide leaves."""
        if spec not in self._stored:
            dtypes = self._library.dtypes
            wide = [(leaf.shape, dtypes[KEPT_AS.get(leaf.dtype, leaf.dtype)]) for leaf in spec.layout.wide]
            self._stored[spec] = [((spec.layout.row_words,), self._int32), *wide]
        return self._stored[spec]

    def _places(self, saved: SavedSlots | None) -> tuple[int, int, Any, int, Any]:
        """Room as a kernel takes it: how many slots, and the addresses of slots, copies and values."""
        if saved is None:
            return 0, 0, NO_ADDRESSES, 0, NO_COUNT
        copies = np.array([self._address(x) for x in saved.copies], np.int64) if saved.copies else NO_ADDRESSES
        return saved.slots.shape[0], self._address(saved.slots), copies, self._some(saved.values), saved.count

    def add(
        self,
        spec: BufferSpec,
        memory: Memory,
        counters: Array,
        leaves: Sequence[Array],
        batch: int,
        mask: Array | None,
        priorities: Array | None,
        saved: SavedSlots | None,
    ) -> Array:
        """Write a batch; returns the new counters."""
        at, address = self.addresses(spec, memory), self._address
        new = self._empty(counters.shape, dtype=self._int32)
        calls.add(
            at.plan,
            at.storage,
            at.tree,
            at.tree_size,
            address(counters),
            address(new),
            at.of_leaves(leaves),
            batch,
            self._some(mask),
            self._some(priorities),
            *self._places(saved),
        )
        return new

    def update(
        self,
        spec: BufferSpec,
        memory: Memory,
        counters: Array,
        handles: Array,
        priorities: Array | None,
        replacements: Mapping[int, Array],
        saved: SavedSlots | None,
    ) -> Array:
        """Set priorities and rewrite leaves; returns the new counters."""
        at, address = self.addresses(spec, memory), self._address
        new = self._empty(counters.shape, dtype=self._int32)
        leaves = NO_ADDRESSES
        if replacements:
            leaves = np.array([self._some(replacements.get(k)) for k in range(len(spec.leaves))], np.int64)
        calls.update(
            at.plan,
            at.storage,
            at.tree,
            at.tree_size,
            address(counters),
            address(new),
            address(handles),
            handles.shape[0],
            self._some(priorities),
            leaves,
            *self._places(saved),
        )
        return new

    def sample(
        self, spec: BufferSpec, memory: Memory, counters: Array, key: int, batch: int, beta: float
    ) -> tuple[list[Array], Drawn, bool]:
        """Draw items by a key: the leaves in the layout, what is told of them, and whether anything could be drawn."""
        at, address, empty = self.addresses(spec, memory), self._address, self._empty
        leaves, handles = self._library.results(spec, batch), empty((batch,), dtype=self._int32)
        weights, chances = empty((batch,), dtype=self._float32), empty((batch,), dtype=self._float32)
        drawable = calls.sample(
            at.plan,
            at.storage,
            at.tree,
            at.tree_size,
            address(counters),
            key,
            spec.sampler.draw_shape(spec, batch)[1],
            beta,
            at.of_leaves(leaves),
            batch,
            address(handles),
            address(weights),
            address(chances),
        )
        return leaves, Drawn(handles, weights, chances), drawable

    def draw(
        self, spec: BufferSpec, memory: Memory, counters: Array, numbers: Array, batch: int, beta: float
    ) -> tuple[list[Array], Drawn, bool]:
        """Likewise by draws int32 [batch, words]."""
        at, address, empty = self.addresses(spec, memory), self._address, self._empty
        leaves, handles = self._library.results(spec, batch), empty((batch,), dtype=self._int32)
        weights, chances = empty((batch,), dtype=self._float32), empty((batch,), dtype=self._float32)
        drawable = calls.draw(
            at.plan,
            at.storage,
            at.tree,
            at.tree_size,
            address(counters),
            address(numbers),
            numbers.shape[1],
            beta,
            at.of_leaves(leaves),
            batch,
            address(handles),
            address(weights),
            address(chances),
        )
        return leaves, Drawn(handles, weights, chances), drawable
