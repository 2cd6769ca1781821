"""The fused kernels of epochs, slices, priorities and mixtures: whole functions of the core, for any library."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from functional_rb import _native
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.episodes import STEP_IN_EPISODE
from functional_rb.core.strategy import Selection
from functional_rb.native import descriptor
from functional_rb.native.addresses import (
    Block,
    Held,
    Library,
    Piece,
    Rows,
    Vector,
    caller,
    made_together,
    piece,
    storage_caller,
)
from functional_rb.ops.protocol import Array
from functional_rb.samplers import epochs
from functional_rb.samplers.prioritized_slices import VALUE
from functional_rb.structures.row_layout import Layout
from functional_rb.versions.memory import Memory
from functional_rb.versions.version import SavedPlaces, SavedSlots

NO_COUNT, NO_PLACES = np.empty(1, np.int64), np.empty(0, np.int32)
DECK = epochs.ORDER, epochs.PLACE


class Stored(NamedTuple):
    """The addresses of a memory's arrays, as kernels take them.

    Attributes:
        plan: the descriptor of the buffer's spec.
        storage: the rows and the wide arrays.
        tree: as `addresses` takes it.
        epoch: the descriptor of its epochs, if the kernel of epochs draws from it.
        deck: the arrays of the sparse set, as `addresses` takes them, if that kernel does.
        deck_among: which of `Memory.arrays` these are.
    """

    plan: descriptor.Vector
    storage: Held
    tree: Any
    epoch: descriptor.Vector | None = None
    deck: tuple[Any, ...] = ()
    deck_among: tuple[int, ...] = ()


class Together(NamedTuple):
    """A batch that several buffers draw together.

    Attributes:
        leaves: [B, *shape] each.
        handles: int32 [B].
        probabilities: float32 [B].
        rows: all that is written.
    """

    leaves: list[Array]
    handles: Array
    probabilities: Array
    rows: Rows


@functools.lru_cache(maxsize=1024)
def _widths(layout: Layout) -> Vector:
    """The bytes of a row of handles, weights, probabilities and each leaf."""
    return np.array([4, 4, 4, *(leaf.nbytes for leaf in layout.leaves)], np.int64)


@functools.lru_cache(maxsize=1024)
def _of_epoch(counters: int, batch: int) -> Piece:
    """Counters, handles, weights, probabilities and a mask."""
    return piece([("int32", (counters,)), *((name, (batch,)) for name in ("int32", "float32", "float32", "bool"))])


def _read_on_host(spec: BufferSpec) -> bool:
    """Whether a function on the host is all that reads what is drawn: frames and n-step returns are made of it too."""
    plan = spec.plan
    alone = (spec.known.buffer or spec.known.epochs) and not plan.objects
    return alone and spec.on_sample is not None and spec.on_sample.on_host


def _arrays(leaves: list[Array] | Block) -> list[Array]:
    return leaves.arrays if isinstance(leaves, Block) else leaves


class Kernels:
    """The functions of memories that the version chain does not know yet."""

    def __init__(self, library: Library) -> None:
        """Take the library whose arrays the kernels work on."""
        self._library = library
        self._call, self._empty = storage_caller(library.addresses), library.empty
        self._call_plain = caller(library.addresses)
        self._int32, self._float32, self._bool = (library.dtypes[name] for name in ("int32", "float32", "bool"))
        self._none = library.none

    def _stored(self, spec: BufferSpec, memory: Memory) -> Stored:
        """Looked up once; each time where others hold the arrays, as torch moves those it shares between processes."""
        if memory.addressed is None or memory.pinned:
            tree = self._none if memory.tree is None else self._library.placed(memory.tree)
            storage = Held([memory.rows, *memory.wide], self._library.addresses)
            stored = Stored(descriptor.encode(spec), storage, tree)
            if spec.known.epochs:
                names, first = list(memory.auxiliary), 1 + len(memory.wide)
                stored = stored._replace(
                    epoch=descriptor.encode_epoch(spec),
                    deck=tuple(self._library.placed(memory.auxiliary[name]) for name in DECK),
                    deck_among=tuple(first + names.index(name) for name in DECK),
                )
            memory.addressed = stored  # not before it is whole, as an interrupt may come
        assert isinstance(memory.addressed, Stored)
        return memory.addressed

    def _some(self, array: Array | None) -> Any:
        return self._none if array is None else array

    def room_to_update(self, spec: BufferSpec, memory: Memory, n: int) -> SavedSlots:
        """Where `update_priorities` may save what it overwrites of up to n items; nothing is in it yet."""
        beside = None
        if VALUE in memory.auxiliary:
            place = 1 + len(memory.wide) + list(memory.auxiliary).index(VALUE)
            beside = self._empty(n, dtype=self._float32), place
        slots, values = self._empty(n, dtype=self._int32), self._empty(n, dtype=self._float32)
        return SavedSlots(slots, values, beside)

    def update_priorities(
        self,
        spec: BufferSpec,
        memory: Memory,
        counters: Array,
        handles: Array,
        priorities: Array,
        saved: SavedSlots | None,
    ) -> Array:
        """Set priorities of items that lie in rings; returns the new counters."""
        new = self._empty(counters.shape[0], dtype=self._int32)
        kept = memory.auxiliary.get(VALUE)
        in_episode = self._none if kept is None else memory.auxiliary[STEP_IN_EPISODE]
        overwritten = (self._none, self._none, self._none)
        room, count = (0, NO_COUNT) if saved is None else (saved.slots.shape[0], saved.count)
        if saved is not None:
            overwritten = saved.slots, saved.values, self._none if saved.beside is None else saved.beside[0]
        arrays = self._library.ready(counters, self._int32), new, handles, priorities, in_episode, *overwritten
        vectors = descriptor.encode(spec), descriptor.encode_rings(spec)
        given = memory.tree, self._some(kept), *arrays
        self._call_plain(_native.update_priorities, given, *vectors, handles.shape[0], room, count)
        return new

    def _room_for_items(self, spec: BufferSpec, batch: int) -> list[Array] | Block:
        """For the leaves of a batch; NumPy's where a function on the host is all that reads them."""
        if _read_on_host(spec):
            return Block(spec.plan.layout, batch)
        return self._library.leaves(spec.plan.layout, batch)

    def together(self, layout: Layout, batch: int) -> Together:
        """A batch that nothing is in yet, for `sample_rows`."""
        leaves, handles = self._library.leaves(layout, batch), self._empty(batch, dtype=self._int32)
        weights, probabilities = (self._empty(batch, dtype=self._float32) for _ in range(2))
        rows = Rows([handles, weights, probabilities], leaves, _widths(layout), self._library.addresses)
        return Together(leaves, handles, probabilities, rows)

    def sample_rows(
        self, into: Together, first: int, spec: BufferSpec, memory: Memory, counters: Array, key: int, count: int
    ) -> bool:
        """Draw what `sample` draws to some rows of a batch, from the first on; whether anything could be drawn.

        The buffer's leaves are those of the batch, in the same order.
        """
        at, words = self._stored(spec, memory), spec.draw_shape(count)[1]
        given = at.plan, key, words, 0.0, count
        drawable: bool = into.rows.call(first, _native.sample, (at.tree, counters), at.storage, *given)
        return drawable

    def room_to_draw(self, spec: BufferSpec, memory: Memory, batch: int) -> SavedPlaces:
        """Where `draw_epoch` may save what it overwrites; nothing is in it yet."""
        return SavedPlaces(np.empty(6 * batch, np.int32), self._stored(spec, memory).deck_among)

    def draw_epoch(
        self,
        spec: BufferSpec,
        memory: Memory,
        counters: Array,
        key: int,
        numbers: Array | None,
        batch: int,
        wanted: Array | None,
        saved: SavedPlaces | None,
    ) -> tuple[Array, list[Array], Selection, bool]:
        """Draw without replacement, by random bits int32 [batch, 2], or by a key if there are none.

        Returns:
            The new counters, and what `sample` returns.
        """
        at = self._stored(spec, memory)
        leaves = self._room_for_items(spec, batch)
        new, *told = self._room_to_tell(leaves, counters.shape[0], batch)
        asked = self._none if wanted is None else self._library.ready(wanted, self._int32)
        room, count = (NO_PLACES, NO_COUNT) if saved is None else (saved.found, saved.count)
        arrays = *at.deck, counters, new, self._none if numbers is None else numbers, asked, *told
        given = at.plan, at.epoch, key, batch, room, count
        drawable = self._call(_native.draw_epoch, arrays, at.storage, leaves, *given)
        return new, _arrays(leaves), Selection(*told), drawable

    def _room_to_tell(self, leaves: list[Array] | Block, counters: int, batch: int) -> list[Array]:
        """For what `_of_epoch` says: where the leaves are NumPy's, in one piece of such memory too.

        Not in the piece of the items, which would stay as long as the state that has these counters.
        """
        if isinstance(leaves, Block):
            return self._library.of_numpy(made_together(_of_epoch(counters, batch))[0])
        kinds = self._int32, self._float32, self._float32, self._bool
        return [self._empty(counters, dtype=self._int32), *[self._empty(batch, dtype=kind) for kind in kinds]]

    def draw_slices(
        self, spec: BufferSpec, memory: Memory, counters: Array, key: int, numbers: Array | None, batch: int
    ) -> tuple[Array, Selection, bool]:
        """Draw slices, by random bits int32 [rows, words], or by a key if there are none.

        Returns:
            The slots int32 [m] of all their steps, the selection, and whether there is a slice.
        """
        library, sampler, int32 = self._library, spec.sampler, self._int32
        (rows, words), lead = spec.draw_shape(batch), sampler.leading_shape(batch)
        slots, handles = self._empty(math.prod(lead), dtype=int32), self._empty(lead, dtype=int32)
        flags = [self._empty(lead, dtype=self._bool) for _ in range(4)]
        weights, probabilities = self._empty(rows, dtype=self._float32), self._empty(rows, dtype=self._float32)
        bits = self._none if numbers is None else library.ready(numbers, int32)
        given = memory.tree, library.ready(counters, int32), memory.auxiliary[STEP_IN_EPISODE], bits
        arrays = *given, slots, handles, *flags, weights, probabilities
        vectors = descriptor.encode_tree(spec.capacity), descriptor.encode_slices(spec)
        drawable = self._call_plain(_native.draw_slices, arrays, *vectors, key, words, rows)
        return slots, Selection(handles, weights, probabilities, *flags), drawable
