"""Python objects in a buffer: the arrays hold tokens, integers, and a table has the object that each stands for.

So everything that moves, saves and restores items knows nothing of objects. An object lives as long as its token is
found somewhere: what nobody can read any more is swept out of the table now and then, after about as many writes as
the buffer has slots, so that each write pays a little.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
import weakref
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from functional_rb.base import forks
from functional_rb.base.arrays import BackendArray
from functional_rb.base.dtypes import shown
from functional_rb.base.object_arrays import Objects, array_of
from functional_rb.buffer.spec import BufferSpec
from functional_rb.structures.row_layout import Layout
from functional_rb.structures.stored_arrays import ROWS, auxiliary_name
from functional_rb.versions.memory import Memory

# So many objects more than there is room for are kept before a small buffer is swept.
SLACK = 1024
# The token of storage that was never written: None.
NO_OBJECT = 0

Tokens = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Table:
    """The objects of a buffer, of all its versions and of the states made of its arrays.

    All of them share one lock, which is held while any of them is read or written: so nothing moves during a sweep.

    Attributes:
        spec: of the buffer.
        lock: see `versions.Version`.
    """

    __slots__ = ("__weakref__", "_columns", "_limit", "_memories", "_next", "_objects", "lock", "spec")

    def __init__(self, spec: BufferSpec, objects: Mapping[int, object] | None = None) -> None:
        """Take objects by the tokens that another table gave them, if there are any.

        Fresh tokens begin somewhere at random: none is ever taken for one of another table.
        """
        self.spec, self.lock = spec, forks.lock()
        self._objects: dict[int, object] = {NO_OBJECT: None, **(objects or {})}
        self._next = 1 + secrets.randbelow(2**62)
        self._memories: weakref.WeakSet[Memory] = weakref.WeakSet()
        self._columns = {
            name: [x for columns in leaves.values() for x in columns]
            for name, leaves in columns_of_leaves(spec).items()
        }
        self._limit = SLACK + spec.capacity * sum(math.prod(spec.plan.leaves[k].shape) for k in spec.plan.objects)

    def watch(self, memory: Memory) -> None:
        """Keep the objects whose tokens are in a memory, for as long as it lives. Hold the lock."""
        memory.table = self
        self._memories.add(memory)

    def tokens(self, objects: Objects) -> Tokens:
        """A fresh token for each object. Hold the lock until they are in memory."""
        first, n = self._next, objects.size
        self._next += n
        self._objects.update(zip(range(first, first + n), objects.reshape(-1).tolist(), strict=True))
        return np.arange(first, first + n, dtype=np.int64).reshape(objects.shape)

    def objects(self, tokens: BackendArray) -> Objects:
        """The objects that tokens stand for. Hold the lock since these were read."""
        return array_of(self._known(tokens.reshape(-1).tolist()), tuple(tokens.shape))

    def _known(self, tokens: list[int]) -> list[object]:
        try:
            return list(map(self._objects.__getitem__, tokens))
        except KeyError:
            raise ValueError(
                f"leaf {self.spec.plan.first_object!r}: the state was made of arrays whose objects are not "
                f"here; pickle or deepcopy states whole, not their arrays"
            ) from None

    # ------------------------------------------------------------ sweeping

    def tidy(self) -> None:
        """Sweep, if the table may have grown to twice of what can be in use. Call it without holding the lock."""
        if len(self._objects) > self._limit:
            with self.lock:
                dropped = self._sweep()
            del dropped  # what dies with it may run code of its own, which finds the buffer at rest

    def tidy_soon(self) -> None:
        """Sweep at the next write, though nobody has added much: items have been taken out."""
        self._limit = 0

    def _sweep(self) -> dict[int, object]:
        """Keep the objects whose tokens are found in a memory, or are saved for an older version; returns the old."""
        in_use = []
        for memory in list(self._memories):
            memory.join_stream()
            for name, rows in (*memory.by_name.items(), *memory.saved_rows()):
                in_use += _cells(memory, rows, self._columns.get(name, ()))
        old = self._objects
        kept: dict[int, object] = {NO_OBJECT: None}
        for token in np.unique(np.concatenate(in_use)).tolist() if in_use else ():
            if token in old:
                kept[token] = old[token]
        self._objects = kept  # whole, as an interrupt may come
        self._limit = len(self._objects) + sum(tokens.size for tokens in in_use) + SLACK
        return old

    # ------------------------------------------------------------ copies

    def held(self, memory: Memory) -> dict[int, object]:
        """The objects in a memory, by token."""
        with self.lock:
            arrays = memory.by_name
            return self.of_rows(memory, [(arrays[name], columns) for name, columns in self._columns.items()])

    def of_rows(self, memory: Memory, pairs: Iterable[tuple[BackendArray, Sequence[slice]]]) -> dict[int, object]:
        """The objects by token in rows int32 [..., words] of a memory, each with the columns of its tokens."""
        cells = [tokens for rows, columns in pairs for tokens in _cells(memory, rows, columns)]
        tokens = np.unique(np.concatenate(cells)).tolist() if cells else []
        tokens = [token for token in tokens if token != NO_OBJECT]
        return dict(zip(tokens, self._known(tokens), strict=True))


def _cells(memory: Memory, rows: BackendArray, columns: Sequence[slice]) -> list[Tokens]:
    """The tokens in rows int32 [..., words]; none in what a user's function over a pytree has put in their place."""
    if shown(getattr(rows, "dtype", None)) != "int32":
        return []
    words = [np.ascontiguousarray(memory.as_numpy(rows[..., column])) for column in columns]
    return [x.view(np.int64).reshape(-1) for x in words]


def columns_of_leaves(spec: BufferSpec) -> dict[str, dict[int, list[slice]]]:
    """Where the tokens of each leaf lie in rows, in words of int32, by the name of the array."""
    columns = {ROWS: {k: _slices(spec.plan.layout, spec.plan.stored.index(k)) for k in spec.plan.objects}}
    for transform in spec.transforms:
        for name, layout in transform.carried().items():
            columns[auxiliary_name(name)] = {k: _slices(layout, k) for k in spec.plan.objects}
    return columns


def _slices(layout: Layout, k: int) -> list[slice]:
    leaf = layout.leaves[k]
    first = leaf.offset or 0
    return [slice(first // 4, (first + leaf.nbytes) // 4)] if leaf.nbytes else []


@dataclasses.dataclass(frozen=True)
class Held:
    """What the outline of a state tells of its Python objects: equal for states that share their table.

    Attributes:
        table: the objects by their tokens.
        memory: kept, and so the objects whose tokens are among the leaves.
    """

    table: Table
    memory: Memory = dataclasses.field(compare=False)
