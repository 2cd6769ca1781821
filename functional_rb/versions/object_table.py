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
from functional_rb.base.arrays import BackendArray, NumpyArray
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


class Table:
    """The objects of a buffer, of all its versions and of the states made of its arrays.

    All of them share one lock, which is held while any of them is read or written: so nothing moves during a sweep.

    Attributes:
        spec: of the buffer.
        lock: see `versions.Version`.
        columns: of all tokens in a row, by the name of the array.
        limit: with more objects than these the next write sweeps.
    """

    def __init__(self, spec: BufferSpec, objects: Mapping[int, object] | None = None) -> None:
        """Take objects by the tokens that another table gave them, if there are any.

        Fresh tokens begin somewhere at random: none is ever taken for one of another table.
        """
        self.spec, self.lock = spec, forks.lock()
        self._objects: dict[int, object] = {NO_OBJECT: None, **(objects or {})}
        self._next = 1 + secrets.randbelow(2**62)
        self._memories: weakref.WeakSet[Memory] = weakref.WeakSet()
        self.columns = {name: [*leaves.values()] for name, leaves in columns_of_leaves(spec).items()}
        self.limit = SLACK + spec.capacity * sum(math.prod(spec.plan.leaves[k].shape) for k in spec.plan.objects)

    def watch(self, memory: Memory) -> None:
        """Keep the objects whose tokens are in a memory, for as long as it lives. Hold the lock."""
        memory.table = self
        self._memories.add(memory)

    def tokens(self, objects: Objects) -> NumpyArray:
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
        """Sweep, if the table may have grown to twice of what can be in use. Call it without holding the lock.

        The objects stay whose tokens are found in a memory, or are saved for an older version.
        """
        if len(self._objects) <= self.limit:
            return
        with self.lock:
            in_use = [NO_OBJECT]
            for memory in list(self._memories):
                memory.join_stream()
                saved = [entry for version in memory.older for entry in version.saved.writes(memory)]
                rows = [(x.name, memory.taken(x.old)) for x in saved if not x.flat and x.old is not None]
                for name, array in (*memory.by_name.items(), *rows):
                    in_use += _tokens(memory, array, self.columns.get(name, ()))
            old = self._objects  # what dies with it may run code of its own, which finds the buffer at rest
            self._objects = {token: old[token] for token in {*in_use} if token in old}  # whole, for interrupts
            self.limit = len(self._objects) + len(in_use) + SLACK

    # ------------------------------------------------------------ copies

    def of_rows(self, memory: Memory, pairs: Iterable[tuple[BackendArray, Sequence[slice]]]) -> dict[int, object]:
        """The objects by token in rows int32 [..., words] of a memory, each with the columns of its tokens."""
        tokens = sorted({token for rows, columns in pairs for token in _tokens(memory, rows, columns)} - {NO_OBJECT})
        return dict(zip(tokens, self._known(tokens), strict=True))


def held_objects(memory: Memory) -> dict[int, object] | None:
    """The Python objects whose tokens are in a memory, by token; None if its buffer has none."""
    table: Table | None = memory.table
    if table is None:
        return None
    with table.lock:
        arrays = memory.by_name
        return table.of_rows(memory, [(arrays[name], columns) for name, columns in table.columns.items()])


def _tokens(memory: Memory, rows: BackendArray, columns: Sequence[slice]) -> list[int]:
    """The tokens in rows int32 [..., words]; none in what a user's function over a pytree has put in their place."""
    if shown(getattr(rows, "dtype", None)) != "int32":
        return []
    words = [np.ascontiguousarray(memory.as_numpy(rows[..., column])) for column in columns]
    return [token for x in words for token in x.view(np.int64).reshape(-1).tolist()]


def columns_of_leaves(spec: BufferSpec) -> dict[str, dict[int, slice]]:
    """Where the tokens of each leaf lie in rows, in words of int32, by the name of the array."""
    columns = {ROWS: {k: _column(spec.plan.layout, spec.plan.stored.index(k)) for k in spec.plan.objects}}
    for transform in spec.transforms:
        for name, layout in transform.carried().items():
            columns[auxiliary_name(name)] = {k: _column(layout, k) for k in spec.plan.objects}
    return columns


def _column(layout: Layout, k: int) -> slice:
    leaf = layout.leaves[k]
    first = leaf.offset or 0
    return slice(first // 4, (first + leaf.nbytes) // 4)


@dataclasses.dataclass(frozen=True)
class Held:
    """What the outline of a state tells of its Python objects: equal for states that share their table.

    Attributes:
        table: the objects by their tokens.
        memory: kept, and so the objects whose tokens are among the leaves.
    """

    table: Table
    memory: Memory = dataclasses.field(compare=False)
