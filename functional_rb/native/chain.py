"""What the version chain of the native code (`src/chain.cpp`) asks Python, and the outline of a spec it works by."""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from functional_rb import _native
from functional_rb.base import nest
from functional_rb.base.dtypes import ITEMSIZE, kind_of
from functional_rb.buffer import checks
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import Sample
from functional_rb.native import descriptor
from functional_rb.native.switch import switch
from functional_rb.ops.protocol import Array
from functional_rb.versions import version as versions
from functional_rb.versions.library import Library
from functional_rb.versions.memory import Entry, Memory
from functional_rb.versions.state import VersionedState
from functional_rb.versions.version import TREE, Version
from functional_rb.writers import Immutable

MOST = 64
"""Leaves of an item that the chain takes."""
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}
"""DLPack's numbers of kinds of dtypes."""


class SavedBlock(_native.Saved):
    """What was in some slots before a kernel overwrote them, in one piece of memory; see `versions.memory.Saved`.

    Its arrays are NumPy's, whatever the library of the memory.
    """

    __slots__ = ()

    def leaves(self, memory: Memory) -> Sequence[Array]:
        """The slots, if their priorities were saved."""
        begin, values, _ = self.offsets
        return [] if values < 0 else [self._numbers(np.dtype(np.int32), begin)]

    def writes(self, memory: Memory) -> Sequence[Entry]:
        """Of rows, of wide arrays, and of the tree's leaves."""
        begin, values, copies = self.offsets
        slots = self._numbers(np.dtype(np.int32), begin)
        found = [Entry(k, False, slots, self._copy(memory, k, at)) for k, at in enumerate(copies)]
        if values >= 0:
            found.append(Entry(TREE, True, slots, self._numbers(np.dtype(np.float32), values)))
        return found

    def pieces(self, memory: Memory) -> Iterator[tuple[Array, Array]]:
        """Rows, and those of the wide arrays."""
        arrays = memory.rows, *memory.wide
        return ((arrays[k], self._copy(memory, k, at)) for k, at in enumerate(self.offsets[2]))

    def _numbers(self, dtype: np.dtype[Any], begin: int) -> np.ndarray[Any, Any]:
        return np.frombuffer(self, dtype, self.count, begin)

    def _copy(self, memory: Memory, k: int, begin: int) -> np.ndarray[Any, Any]:
        """What was in the rows, or in a wide array."""
        like = (memory.rows, *memory.wide)[k]
        shape = (self.count, *like.shape[1:])
        return np.frombuffer(self, memory.numpy_dtype(like), math.prod(shape), begin).reshape(shape)


class _Same:
    """A spec as a key of a cache: equal to itself alone, as equal ones may name their leaves in another order."""

    __slots__ = ("spec",)

    def __init__(self, spec: BufferSpec) -> None:
        self.spec = spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.spec is self.spec

    def __hash__(self) -> int:
        return id(self.spec)


def outline_of(spec: BufferSpec) -> _native.Outline | None:
    """A spec as the chain knows it; None if it is not one of the usual ones."""
    return _outline(_Same(spec))


@functools.lru_cache(maxsize=1024)
def _outline(of: _Same) -> _native.Outline | None:
    spec = of.spec
    plan, layout = spec.plan, spec.plan.layout
    codes = [_code_of(leaf.dtype) for leaf in layout.leaves]
    if not plan.fused or plan.objects or len(codes) > MOST or any(len(leaf.shape) > 8 for leaf in layout.leaves):
        return None
    keys = [str(path[0]) if len(path) == 1 else "" for path in plan.structure.paths]
    leaves = tuple((key, *code, leaf.shape) for key, code, leaf in zip(keys, codes, layout.leaves, strict=True))
    is_dict = plan.structure.kind == "mapping" and plan.structure.type is None and plan.structure.flat
    given = tuple(k for _, k in plan.structure.named) if is_dict else ()
    words = spec.draw_shape(1)[1]
    batch_size = -1 if spec.batch_size is None else spec.batch_size
    flags = spec.sampler.has_priorities, not isinstance(spec.writer, Immutable), _adds(spec), spec.on_sample is None
    beta = float(getattr(spec.sampler, "beta", 0.0))
    return _native.Outline(spec, descriptor.encode(spec), leaves, given, words, batch_size, *flags, beta)


def _adds(spec: BufferSpec) -> bool:
    return spec.on_add is None and spec.writer.overwrites and not isinstance(spec.writer, Immutable)


def _code_of(dtype: str) -> tuple[int, int]:
    """DLPack's kind, and the bits."""
    kind = "bfloat" if dtype == "bfloat16" else "uint" if dtype.startswith("uint") else kind_of(dtype)
    return _CODES[kind], 8 * ITEMSIZE[dtype]


def _copied(memory: Memory) -> Memory:
    return memory.copy()


def _part(version: Version, memory: Memory) -> None:
    """Keep what is saved for older versions within bounds; what cannot be is an error before anything is written."""
    if memory.retains_too_much:
        versions.part_with_oldest(memory)


def _apart(spec: BufferSpec, items: Any) -> list[Any]:
    checks.check_unpacked(items, "add")
    return nest.flatten_as(spec.added.structure, items)


class Chains:
    """What the chain of one library asks, beside its arrays.

    Args:
        library: whose states it works on.
        addresses: where arrays lie.
        build_mapping: how the library makes mappings.
    """

    def __init__(self, library: Library, addresses: Callable[..., Any], build_mapping: nest.BuildMapping) -> None:
        self._library, self._addresses, self._build_mapping = library, addresses, build_mapping

    def make(self, state: type[VersionedState], arrays: Sequence[Any], has_exchange: bool = True) -> _native.Chain:
        """The chain of a library's states.

        Args:
            state: their class.
            arrays: the library's array class, NumPy's, and functions that look at an array, take one over by a DLPack
                capsule, and say whether one is to be negated.
            has_exchange: whether DLPack's C interface may be used.
        """
        types = state, Version, SavedBlock, Sample, deque, *arrays
        asked = self._place_of, outline_of, Version.own, _copied, self._make_room, _part, _apart, self._together
        chain = _native.Chain(*types, *asked, versions.forget_dead, has_exchange)
        chain.turn(switch.on)
        switch.tell(chain.turn)
        return chain

    def _place_of(self, spec: BufferSpec, memory: Memory) -> _native.Place | None:
        """Where a memory's arrays lie; None if kernels cannot read and write them."""
        outline = outline_of(spec)
        if outline is None or not memory.is_ordinary:
            return None
        if memory.files is not None:
            memory.files.check_process()
        arrays = [memory.rows, *memory.wide]
        tree = 0 if memory.tree is None else next(iter(self._addresses([memory.tree])))
        place = _native.Place(outline, tuple(self._addresses(arrays)), tree, memory.nbytes)
        if not memory.pinned:
            memory.place = place
        return place

    def _make_room(self, memory: Memory, spec: BufferSpec, counters: Array, batch: int, handles: Any) -> None:
        """Have room in the memory's files for rows that are added, or for those that handles name."""
        if handles is None:
            self._library.make_room(memory, spec, counters, batch)
        else:
            self._library.make_room_at(memory, spec, self._library.placed("indices", handles, memory, None))

    def _together(self, spec: BufferSpec, leaves: list[Any], size: int) -> Any:
        return nest.unflatten(spec.plan.structure, leaves, self._build_mapping, (size,))
