"""What the version chain of the native code (`src/chain.cpp`) asks Python, and a spec as it knows it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from functional_rb import _native
from functional_rb.base import nest
from functional_rb.base.arrays import BackendArray, Nest, NumpyArray
from functional_rb.base.dtypes import ITEMSIZE, kind_of, shown
from functional_rb.buffer import checks
from functional_rb.buffer.known import Draws
from functional_rb.buffer.spec import BufferSpec
from functional_rb.core.episodes import STEP_IN_EPISODE
from functional_rb.core.handles import CURRENT
from functional_rb.core.sample import MaskedSample, Sample, SliceSample
from functional_rb.native import descriptor, launches
from functional_rb.native.switch import switch
from functional_rb.ops import numpy_ops
from functional_rb.ops.protocol import Array
from functional_rb.samplers import SlicesWithoutReplacement, WithoutReplacement, epochs
from functional_rb.samplers.prioritized_slices import VALUE
from functional_rb.samplers.trajectories import Trajectories
from functional_rb.structures import frame_ring, stored_arrays
from functional_rb.structures.stored_arrays import TREE, auxiliary_name
from functional_rb.versions import version as versions
from functional_rb.versions.library import Library
from functional_rb.versions.memory import Entry, Memory
from functional_rb.versions.state import VersionedState
from functional_rb.versions.version import Version
from functional_rb.writers import Immutable, StopWhenFull

INT32, FLOAT32 = np.dtype(np.int32), np.dtype(np.float32)
NO_RECORD = np.empty(0, np.int32)
# What samplers keep that kernels work on.
BESIDE = *descriptor.KEPT, frame_ring.AT
# Axes of a leaf that the chain takes.
AXES = 8
# DLPack's numbers of kinds of dtypes.
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}


class SavedBlock(_native.Saved):
    """What was in some slots before a kernel overwrote them, in one piece of memory; see `versions.memory.Saved`.

    Its arrays are NumPy's, whatever the library of the memory; on a GPU they are the library's.
    """

    __slots__ = ()

    def writes(self, memory: Memory) -> Sequence[Entry]:
        """What was overwritten: rows, wide arrays, what lies beside, and the tree's leaves; or a sparse set's moves."""
        begin, values, kept, steps, times, current, deck, room, copies, at, places, beside = self.offsets
        rows, leaves, moves, others = self.counts
        slots = self._numbers(memory, "int32", begin, rows)
        items = stored_arrays.named(memory.rows, memory.wide).items()
        entries = [
            Entry(name, False, slots, self._copy(memory, array, first, rows))
            for (name, array), first in zip(items, copies, strict=False)
        ]
        where = self._numbers(memory, "int32", max(places, 0), others if beside else 0)
        for name, first in zip(self.names, beside, strict=False):
            old = self._copy(memory, memory.auxiliary[name], first, others)
            entries.append(Entry(auxiliary_name(name), False, *self._first(where, old)))
        if values >= 0:
            nodes, old = self._numbers(memory, "int32", begin, leaves), self._numbers(memory, "float32", values, leaves)
            entries.append(Entry(TREE, True, *self._first(nodes, old)))
        for name, dtype, column in (
            (VALUE, "float32", kept),
            (STEP_IN_EPISODE, "int32", steps),
            (frame_ring.AT, "int32", at),
            (CURRENT, "int32", current),
        ):
            if column >= 0:
                entries.append(Entry(auxiliary_name(name), False, slots, self._numbers(memory, dtype, column, rows)))
        if times >= 0:
            name = auxiliary_name(descriptor.numbers_of_items(memory.auxiliary))
            entries.append(Entry(name, False, *self._first(slots, self._numbers(memory, "int32", times, rows))))
        half = moves // 2 if self.holder is not None and at >= 0 else moves  # items came, and others lost their frames
        for first in range(0, moves if deck >= 0 else 0, max(half, 1)):
            for name, column in ((epochs.ORDER, deck + 4 * first), (epochs.PLACE, deck + 8 * room + 4 * first)):
                moved, old = (self._numbers(memory, "int32", each, half) for each in (column, column + 4 * room))
                entries.append(Entry(auxiliary_name(name), False, *self._first(moved, old)))
        return entries

    def _first(self, places: NumpyArray, old: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        """The first of several writes to a place, which knows what was there; on a GPU all writes, as all know it."""
        if self.holder is not None:
            return places, old
        places, first = np.unique(places, return_index=True)
        return places, old[first]

    def _numbers(self, memory: Memory, dtype: str, begin: int, count: int) -> BackendArray:
        return self._array(memory, numpy_ops.dtype_of(dtype), begin, (count,))

    def _copy(self, memory: Memory, like: Array, begin: int, count: int) -> BackendArray:
        """Some rows of an array as they were, which begin at a byte of the memory."""
        return self._array(memory, numpy_ops.dtype_of(shown(like.dtype)), begin, (count, *like.shape[1:]))

    def _array(self, memory: Any, dtype: np.dtype[np.generic], begin: int, shape: tuple[int, ...]) -> BackendArray:
        """The array of a shape that begins at a byte of the memory; on a GPU that memory makes it."""
        if self.holder is not None:
            return memory.part_of(self.holder, dtype.name, begin, shape)
        return np.frombuffer(memoryview(self), dtype, math.prod(shape), begin).reshape(shape)


class _Same:
    """A spec as a key of a cache: equal to itself alone, as equal ones may name their leaves in another order."""

    __slots__ = ("spec",)

    def __init__(self, spec: BufferSpec) -> None:
        self.spec = spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.spec is self.spec

    def __hash__(self) -> int:
        return id(self.spec)


def known_buffer(spec: BufferSpec) -> _native.KnownBuffer | None:
    """A spec as the chain knows it; None if it is not one of the usual ones."""
    return _known_buffer(_Same(spec))


@functools.lru_cache(maxsize=1024)
def _known_buffer(of: _Same) -> _native.KnownBuffer | None:
    spec = of.spec
    plan, layout = spec.plan, spec.plan.layout
    known, sampler = spec.known, spec.sampler
    if (
        not (known.draws or known.updates or known.appends or known.rewrites)
        or max(len(layout.leaves), len(plan.leaves)) > launches.MOST_LEAVES
    ):
        return None
    if any(len(leaf.shape) > AXES for leaf in (*layout.leaves, *plan.leaves)):
        return None
    plain, appends = known.plain and not plan.objects, known.appends and not plan.objects
    names = [str(path[0]) if len(path) == 1 else "" for path in plan.structure.paths]
    rewrites = known.rewrites and not plan.objects
    added = tuple(map(_leaf, names, plan.leaves)) if plain or appends or rewrites else ()
    told, returns = launches.told_of_returns(spec)
    reads_frames = launches.reads_frames(spec)
    names += [""] * len(plan.columns)
    stored = names if told and plan.frames is None else [""] * len(layout.leaves)
    leaves = added if plain else tuple(map(_leaf, stored, layout.leaves))
    places = {name: len(plan.leaves) + k for k, name in enumerate(told)}
    made = tuple(_leaf(name, leaf) for name, leaf in told.items() if places[name] >= len(layout.leaves))
    extras = tuple(places.items())
    beside = descriptor.beside(spec) if appends else descriptor.NOTHING_BESIDE
    is_dict = (
        (plain or appends) and plan.structure.kind == "mapping" and plan.structure.type is None and plan.structure.flat
    )
    order = tuple(k for _, k in plan.structure.named) if is_dict else ()
    batch_size = -1 if spec.batch_size is None else spec.batch_size
    on_host = plain and spec.on_sample is not None and spec.on_sample.on_host
    unit = sampler.length if isinstance(sampler, Trajectories) and sampler.batch == "steps" else 1
    lead = sampler.leading_shape(unit)
    is_epoch = isinstance(sampler, WithoutReplacement | SlicesWithoutReplacement)
    epoch = descriptor.encode_epoch(spec) if is_epoch else NO_RECORD
    record = descriptor.encode_known(
        words=spec.draw_shape(1)[1],
        batch_size=batch_size,
        unit=unit,
        lanes=spec.lanes or 0,
        length=math.prod(lead),
        divided=len(lead) > 1,
        draws=known.draws,
        remembers=bool(known.draws) and sampler.remembers,
        masked=known.masked,
        prioritized=sampler.has_priorities,
        writes=known.buffer,
        rewrites=rewrites,
        appends=known.appends,
        updates=known.updates,
        adds=appends and spec.on_add is None and not isinstance(spec.writer, Immutable),
        samples=bool(known.draws) and (plain or bool(told) or reads_frames) and spec.on_sample is None,
        reads=known.plain or bool(told) or reads_frames or known.draws in (Draws.ITEMS, Draws.RECENT),
        later=launches.reads_later(spec),
        reads_frames=reads_frames,
        in_numpy=on_host,
        stops=isinstance(spec.writer, StopWhenFull),
        chosen_by=spec.writer.words,
    )
    described = (
        descriptor.encode(spec),
        descriptor.encode_rings(spec),
        epoch,
        beside.layout,
        beside.queue,
        beside.frames,
        returns,
    )
    beta = float(getattr(sampler, "beta", 0.0))
    return _native.KnownBuffer(spec, beta, (record, *described), leaves, added, made, order, beside.names, extras)


def _leaf(name: str, leaf: BackendArray) -> tuple[str, np.dtype[np.generic], int, int, tuple[int, ...]]:
    """A leaf as the chain takes it."""
    return name, numpy_ops.dtype_of(leaf.dtype), *dlpack_dtype(leaf.dtype), leaf.shape


def dlpack_dtype(name: str) -> tuple[int, int]:
    """A dtype as DLPack has it: the number of its kind, and its bits."""
    kind = "bfloat" if name == "bfloat16" else "uint" if name.startswith("uint") else kind_of(name)
    return _CODES[kind], 8 * ITEMSIZE[name]


def _copied(memory: Memory) -> Memory:
    return memory.copy()


def _part(version: Version, memory: Memory) -> None:
    """Keep what is saved for older versions within bounds; what cannot be is an error before anything is written."""
    versions.part_with_oldest(memory)


def _apart(spec: BufferSpec, items: object) -> list[BackendArray]:
    checks.check_unpacked(items, "add")
    return nest.flatten_as(spec.added.structure, items)


class Chains:
    """What the chain of one library asks, beside its arrays.

    Args:
        library: whose states it works on.
        build_mapping: how the library makes mappings.
    """

    def __init__(self, library: Library, build_mapping: nest.BuildMapping) -> None:
        self._library, self._build_mapping = library, build_mapping

    def make(
        self,
        state: type[VersionedState],
        arrays: Sequence[object],
        has_exchange: bool = True,
        shared: type | None = None,
        on_gpu: Sequence[object] = (None,) * 6,
    ) -> _native.Chain:
        """The chain of a library's states.

        Args:
            state: their class.
            arrays: the library's array class, NumPy's, and functions that look at an array, take one over by a DLPack
                capsule, say whether one is to be negated, and to be conjugated, and copy one as kernels read it.
            has_exchange: whether DLPack's C interface may be used.
            shared: the class of the library's handles of shared buffers, if it calls the chain on such.
            on_gpu: if the library has arrays on GPUs: functions that make an array of a shape there as a prototype,
                one like it, and one that is a state's, say whether the former would be unfit for that, tell a
                device's current stream, and have it wait for another one that worked on a memory and a state's
                counters: the memory's `stream` tells for which one that was done last.
        """
        samples = Sample, MaskedSample, SliceSample
        types = state, shared, Version, SavedBlock, *samples, *arrays, INT32, FLOAT32, np.dtype(np.bool_), *on_gpu
        asked = (
            self._place_of,
            known_buffer,
            Version.own,
            _copied,
            self._library.make_room,
            _part,
            _apart,
            self._together,
        )
        self._chain = chain = _native.Chain(*types, *asked, has_exchange)
        chain.turn(switch.on)
        switch.tell(chain.turn)
        return chain

    def _place_of(self, spec: BufferSpec, memory: Memory) -> _native.Place | None:
        """Where a memory's arrays lie; None if kernels cannot read and write them."""
        known = known_buffer(spec)
        gpus = self._library.gpus
        makers = None if known is None or gpus is None else gpus.makers(memory, spec)
        if known is None or not (memory.is_ordinary or makers):
            return None
        names = *BESIDE, descriptor.numbers_of_items(memory.auxiliary), CURRENT
        beside = tuple(memory.auxiliary.get(name) for name in names)
        rows_beside = tuple(memory.auxiliary[name] for name in known.names)
        place: _native.Place | None = self._chain.place(
            known, (memory.rows, *memory.wide), memory.tree, beside, makers, rows_beside
        )
        if not memory.pinned:
            memory.place = place
        return place

    def _together(self, spec: BufferSpec, leaves: Sequence[object], lead: tuple[int, ...]) -> Nest:
        return nest.unflatten(spec.plan.structure, leaves, self._build_mapping, lead)
