"""How the leaves of an item lie in storage. The only module that knows about packing.

Leaves are packed into one row of 32-bit words: those of 8-byte dtypes first, then 4, 2 and 1, so that each is
aligned, and padding occurs only at the row's end. One row is one gather, one contiguous write, one DLPack tensor.
A leaf of a sub-word dtype that is large (an image) gains nothing from that and gets an array of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.arrays import BackendArray
from functional_rb.base.nest import Path
from functional_rb.ops.part_kernels import replaceable
from functional_rb.ops.protocol import Array, Ops

# Sub-word leaves of at least this many bytes an item are kept apart.
WIDE_BYTES = 1024
# What is stored in place of a Python object.
TOKEN = "int64"
# XLA's CPU moves bfloat16 by way of float32: all of an array for one row of it, and signaling NaNs change.
STORED_AS = {"bfloat16": "uint16"}


def kept_dtype(name: str) -> np.dtype[np.generic]:
    """The dtype of NumPy in which it keeps arrays of a dtype: its own, if it has that."""
    return np.dtype(STORED_AS.get(name, name) if name in dtypes.ITEMSIZE else name)


@dataclasses.dataclass(frozen=True)
class LeafLayout:
    """Where one leaf lies."""

    path: Path  # its path in the item
    shape: tuple[int, ...]  # of one item, without batch axes
    dtype: str  # its name
    nbytes: int  # of one item
    offset: int | None  # bytes from the start of the row; None for a leaf with an array of its own
    wide: int | None  # its position among the arrays of their own; None for a leaf in the row

    @property
    def stored_as(self) -> str:
        """The dtype of its array in storage."""
        return STORED_AS.get(self.dtype, self.dtype)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where all leaves of an item lie, in the order of the item's structure."""

    leaves: tuple[LeafLayout, ...]  # one for each leaf
    row_words: int  # 32-bit words in a row, 0 if nothing is packed
    # Positions of the leaves that have bytes in the row, in the order in which they lie there.
    packed: tuple[int, ...] = dataclasses.field(init=False, repr=False, compare=False)
    _parts: dict[tuple[int, ...], Layout] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _hash: int = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Sort and hash once: plans of kernels are looked up by it at every call.
        inside = [i for i, leaf in enumerate(self.leaves) if leaf.offset is not None and leaf.nbytes]
        object.__setattr__(self, "packed", tuple(sorted(inside, key=lambda i: self.leaves[i].offset or 0)))
        object.__setattr__(self, "_hash", hash((self.leaves, self.row_words)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def wide(self) -> tuple[LeafLayout, ...]:
        """The leaves with an array of their own, in the order of these."""
        leaves = [leaf for leaf in self.leaves if leaf.wide is not None]
        return tuple(sorted(leaves, key=lambda leaf: leaf.wide or 0))

    def part(self, chosen: tuple[int, ...]) -> Layout:
        """Some of the leaves, in the order given, lying where they lie; of the wide arrays only theirs."""
        if chosen == tuple(range(len(self.leaves))):
            return self
        if chosen not in self._parts:  # a dict, since torch.compile does not trace functools.cache
            self._parts[chosen] = _part(self, chosen)
        return self._parts[chosen]

    @property
    def item_bytes(self) -> int:
        """Bytes that one item takes in storage."""
        return 4 * self.row_words + sum(leaf.nbytes for leaf in self.wide)


def _part(layout: Layout, chosen: tuple[int, ...]) -> Layout:
    leaves = [layout.leaves[k] for k in chosen]
    numbers = {leaf.wide: n for n, leaf in enumerate(leaf for leaf in leaves if leaf.wide is not None)}
    renumbered = tuple(dataclasses.replace(leaf, wide=numbers.get(leaf.wide)) for leaf in leaves)
    return Layout(renumbered, layout.row_words)


@functools.cache
def plan(leaves: tuple[tuple[Path, tuple[int, ...], str], ...], wide_bytes: float = WIDE_BYTES) -> Layout:
    """Lay out leaves given as (path, shape, dtype name); of "object", tokens.

    Args:
        leaves: of an item.
        wide_bytes: sub-word leaves of at least so many bytes get an array of their own.

    Example:
        >>> layout = plan(((("done",), (), "bool"), (("obs",), (3,), "float32")))
        >>> layout.row_words, [leaf.offset for leaf in layout.leaves]
        (4, [12, 0])
    """
    leaves = tuple((path, shape, TOKEN if dtype == "object" else dtype) for path, shape, dtype in leaves)
    nbytes = [math.prod(shape) * dtypes.ITEMSIZE[dtype] for _, shape, dtype in leaves]
    apart = [size >= wide_bytes and dtypes.ITEMSIZE[leaf[2]] < 4 for size, leaf in zip(nbytes, leaves, strict=True)]
    offsets: dict[int, int] = {}
    end = 0
    for i in sorted(range(len(leaves)), key=lambda i: -dtypes.ITEMSIZE[leaves[i][2]]):
        if not apart[i]:
            offsets[i] = end
            end += nbytes[i]
    wide = [i for i, is_apart in enumerate(apart) if is_apart]
    words = -(-end // 4)
    if any(dtypes.ITEMSIZE[leaves[i][2]] == 8 for i in offsets):
        words += words % 2  # so that every row is aligned
    return Layout(
        tuple(
            LeafLayout(path, shape, dtype, nbytes[i], offsets.get(i), wide.index(i) if apart[i] else None)
            for i, (path, shape, dtype) in enumerate(leaves)
        ),
        words,
    )


def allocate(ops: Ops, layout: Layout, capacity: int, device: object = None) -> tuple[Array, tuple[Array, ...]]:
    """Empty storage: rows int32 [capacity, row_words], and one array [capacity, *shape] for each wide leaf."""
    rows = ops.zeros((capacity, layout.row_words), "int32", device)
    return rows, tuple(ops.zeros((capacity, *leaf.shape), leaf.stored_as, device) for leaf in layout.wide)


def pack(ops: Ops, layout: Layout, leaves: Sequence[Array], like: Array) -> tuple[Array, tuple[Array, ...]]:
    """Leaves [B, *shape] as rows int32 [B, row_words] and the wide leaves as they are.

    Args:
        layout: of the item.
        leaves: in the order of the layout.
        like: int32 [B], which gives batch size and device where no leaf does.
    """
    apart = [(leaves[i], leaf.dtype) for i, leaf in enumerate(layout.leaves) if leaf.wide is not None]
    wide = tuple(ops.bitcast(x, STORED_AS[dtype]) if dtype in STORED_AS else x for x, dtype in apart)
    return pack_rows(ops, layout, leaves, like), wide


@replaceable
def pack_rows(ops: Ops, layout: Layout, leaves: Sequence[Array], like: Array) -> Array:
    """Leaves [B, *shape] as rows int32 [B, row_words]; see `pack`."""
    batch = like.shape[0]
    words = []
    tail = []
    for i in layout.packed:
        flat = leaves[i].reshape(batch, -1)
        if dtypes.ITEMSIZE[layout.leaves[i].dtype] >= 4:
            words.append(ops.bitcast(flat, "int32"))
        else:
            tail.append(ops.bitcast(flat, "uint8"))
    nothing = like[:, None][:, :0]
    used = sum(layout.leaves[i].nbytes for i in layout.packed)
    # At most 7 bytes, as rows with 8-byte dtypes have an even number of words: two blank words have enough of them.
    padding = 4 * layout.row_words - used
    if padding:
        blank = ops.full_like(like, 0)[:, None]
        tail.append(ops.concat([ops.bitcast(blank, "uint8")] * 2, 1)[:, :padding])
    if tail:
        words.append(ops.bitcast(ops.concat(tail, 1), "int32"))
    return ops.concat(words, 1) if words else nothing


def unpack(ops: Ops, layout: Layout, rows: Array, wide: Sequence[Array]) -> list[BackendArray]:
    """The leaves [B, *shape], in the order of the layout, from rows [B, row_words] and the wide leaves."""
    batch = rows.shape[0]
    leaves: list[Array] = []
    for leaf in layout.leaves:
        if leaf.wide is not None:
            array = wide[leaf.wide]
            leaves.append(ops.bitcast(array, leaf.dtype) if leaf.dtype in STORED_AS else array)
            continue
        assert leaf.offset is not None
        itemsize = dtypes.ITEMSIZE[leaf.dtype]
        first, last = leaf.offset // 4, -(-(leaf.offset + leaf.nbytes) // 4)
        piece = rows[:, first:last]
        # Whole words are cut out first: a bitcast changes how long the last axis is, so an offset in bytes has no place
        # in it before.
        if itemsize < 4:
            start = leaf.offset - 4 * first
            piece = ops.bitcast(piece, "uint8")[:, start : start + leaf.nbytes]
        leaves.append(ops.bitcast(piece, leaf.dtype).reshape(batch, *leaf.shape))
    return leaves


@replaceable
def read(ops: Ops, layout: Layout, rows: Array, wide: Sequence[Array], slots: Array) -> list[BackendArray]:
    """The leaves [B, *shape] of the items that lie in slots int32 [B] of a storage."""
    return unpack(ops, layout, ops.take(rows, slots), [ops.take(array, slots) for array in wide])


def read_part(
    ops: Ops, layout: Layout, rows: Array, wide: Sequence[Array], slots: Array, chosen: tuple[int, ...]
) -> list[Array]:
    """Some of the leaves alone, by their position."""
    arrays = [wide[index] for index in (layout.leaves[k].wide for k in chosen) if index is not None]
    return read(ops, layout.part(chosen), rows, arrays, slots)


@replaceable
def read_batches(
    ops: Ops, layout: Layout, rows: Array, wide: Sequence[Array], batches: Sequence[Array], chosen: tuple[int, ...]
) -> list[list[Array]]:
    """Some of the leaves of several batches of slots: one by one, as XLA would copy them out of a single read."""
    return [read_part(ops, layout, rows, wide, slots, chosen) for slots in batches]


@replaceable
def store(
    ops: Ops,
    layout: Layout,
    rows: Array,
    wide: Sequence[Array],
    slots: Array,
    source: Array | None,
    live: Array | None,
    leaves: Sequence[Array],
) -> tuple[Array, tuple[Array, ...]]:
    """Write rows of a batch to a storage.

    Args:
        layout: of the item.
        rows: int32 [capacity, row_words].
        wide: the arrays of the leaves that are not packed.
        slots: int32 [n]; equal ones come with equal rows.
        source: int32 [n], which row of the batch goes to each slot; None if its last n do, in their order.
        live: bool [n], which slots are written at all; None if all are.
        leaves: [B, *shape], in the order of the layout.

    Returns:
        The new rows and wide arrays.
    """
    if not slots.shape[0] or not leaves:
        return rows, tuple(wide)
    chosen = [pick(ops, leaf, source, slots.shape[0]) for leaf in leaves]
    new_rows, new_wide = pack(ops, layout, chosen, like=slots)
    written = [_set_rows(ops, old, slots, values, live) for old, values in zip(wide, new_wide, strict=True)]
    return _set_rows(ops, rows, slots, new_rows, live), tuple(written)


def copy(
    ops: Ops,
    rows: Array,
    wide: Sequence[Array],
    origins: Array,
    to_rows: Array,
    to_wide: Sequence[Array],
    slots: Array,
    live: Array | None,
) -> tuple[Array, tuple[Array, ...]]:
    """Write the items that lie in slots `origins` int32 [n] of one storage to distinct slots int32 [n] of another.

    Args:
        rows: int32 [capacity, row_words], of the one.
        wide: its wide arrays.
        origins: where the items lie.
        to_rows: of the other, of the same layout.
        to_wide: the wide arrays of the other.
        slots: where they go.
        live: bool [n], which are written at all; None if all are.

    Returns:
        The rows and wide arrays of the other.
    """
    pairs = zip(wide, to_wide, strict=True)
    written = [_set_rows(ops, old, slots, ops.take(array, origins), live) for array, old in pairs]
    return _set_rows(ops, to_rows, slots, ops.take(rows, origins), live), tuple(written)


def pick(ops: Ops, leaf: Array, source: Array | None, n: int) -> Array:
    """The rows of a batch that `source` int32 [n] names, or the last n."""
    return leaf[leaf.shape[0] - n :] if source is None else ops.take(leaf, source)


def along(live: Array, values: Array) -> Array:
    """A mask [B] shaped to select among values [B, ...]."""
    return live.reshape(-1, *[1] * (values.ndim - 1))


def _set_rows(ops: Ops, array: Array, slots: Array, values: Array, live: Array | None) -> Array:
    if live is not None:
        # What is not live writes back what is there, so that shapes do not depend on values: compiled programs need
        # that.
        values = ops.where(along(live, values), values, ops.take(array, slots))
    return ops.set_at(array, slots, values)
