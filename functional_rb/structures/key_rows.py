"""Values as rows of words that are equal, word by word, exactly if the values are.

Of floats -0.0 is stored as 0.0, and each NaN as the same one; all else keeps its bits. They are looked at as whole
numbers: XLA takes subnormal floats for zeros.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Final

from functional_rb.base.arrays import BackendArray
from functional_rb.base.dtypes import ITEMSIZE
from functional_rb.base.nest import Path
from functional_rb.ops.protocol import Array, Ops
from functional_rb.structures import row_layout
from functional_rb.structures.row_layout import Layout

# Path, shape and dtype.
Leaf = tuple[Path, tuple[int, ...], str]

# The dtype as which floats are stored; leaves of 8 bytes are stored as two int32 each.
STORED_AS: Final = {"float16": "int16", "bfloat16": "int16", "float32": "int32"}
# The bits of infinity, without the sign; those of NaN are larger.
INFINITY: Final = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000}
NAN: Final = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000}
# The upper words of float64.
UPPER_INFINITY, UPPER_NAN = 0x7FF00000, 0x7FF80000


@dataclasses.dataclass(frozen=True)
class KeyRows:
    """How leaves are packed into rows of words."""

    leaves: tuple[Leaf, ...]  # path, shape and dtype of each
    layout: Layout = dataclasses.field(init=False, repr=False, compare=False)  # of what they are stored as

    def __post_init__(self) -> None:
        stored = tuple((path, *_stored(shape, dtype)) for path, shape, dtype in self.leaves)
        # Not from the cache of plans, of which torch.compile warns: a compiled draw of groups comes here.
        object.__setattr__(self, "layout", row_layout.plan.__wrapped__(stored, math.inf))

    @property
    def words(self) -> int:
        """How many words a row has."""
        return self.layout.row_words


def _stored(shape: tuple[int, ...], dtype: str) -> tuple[tuple[int, ...], str]:
    return ((*shape, 2), "int32") if ITEMSIZE[dtype] == 8 else (shape, STORED_AS.get(dtype, dtype))


def pack(ops: Ops, keys: KeyRows, leaves: Sequence[Array], like: Array) -> Array:
    """Leaves [B, *shape] as rows int32 [B, words]; `like` int32 [B] gives batch size and device."""
    stored = [_canonical(ops, leaf, shape, dtype) for leaf, (_, shape, dtype) in zip(leaves, keys.leaves, strict=True)]
    return row_layout.pack_rows(ops, keys.layout, stored, like)


def unpack(ops: Ops, keys: KeyRows, rows: Array) -> list[BackendArray]:
    """The leaves [B, *shape] of rows."""
    stored = row_layout.unpack(ops, keys.layout, rows, ())
    return [
        ops.bitcast(x.reshape(x.shape[0], math.prod(x.shape[1:])), dtype).reshape(x.shape[0], *shape)
        for x, (_, shape, dtype) in zip(stored, keys.leaves, strict=True)
    ]


# A leaf [B, *shape] as it is stored.
def _canonical(ops: Ops, leaf: Array, shape: tuple[int, ...], dtype: str) -> Array:
    stored_shape, stored_dtype = _stored(shape, dtype)
    if (stored_shape, stored_dtype) == (shape, dtype):
        return leaf
    bits = ops.bitcast(leaf.reshape(leaf.shape[0], -1), stored_dtype)
    # Both are stored as two int32: the halves of one float, or two floats.
    if dtype in ("float64", "complex64"):
        pairs = bits.reshape(bits.shape[0], -1, 2)
        bits = _float64(ops, pairs) if dtype == "float64" else _float(ops, pairs, "float32")
    elif dtype in STORED_AS:
        bits = _float(ops, bits, dtype)
    return bits.reshape(leaf.shape[0], *stored_shape)


# The bits of floats, with one zero and one NaN.
def _float(ops: Ops, bits: Array, dtype: str) -> Array:
    wide = ops.cast(bits, "int32")
    magnitude = wide & (2 ** (8 * ITEMSIZE[dtype] - 1) - 1)
    wide = ops.where(magnitude == 0, ops.full_like(wide, 0), wide)
    wide = ops.where(magnitude > INFINITY[dtype], ops.full_like(wide, NAN[dtype]), wide)
    return ops.cast(wide, STORED_AS[dtype])


# The bits of float64 with one zero and one NaN, as pairs int32 [..., 2], the lower word first.
def _float64(ops: Ops, pairs: Array) -> Array:
    low, high = pairs[..., 0], pairs[..., 1]
    magnitude, nothing = high & (2**31 - 1), ops.full_like(low, 0)
    zero = (magnitude == 0) & (low == 0)
    # What makes a NaN of an infinity may be in the lower word alone.
    nan = (magnitude > UPPER_INFINITY) | ((magnitude == UPPER_INFINITY) & (low != 0))
    high = ops.where(zero, nothing, ops.where(nan, ops.full_like(high, UPPER_NAN), high))
    return ops.concat([ops.where(nan, nothing, low)[..., None], high[..., None]], pairs.ndim - 1)
