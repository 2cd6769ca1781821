"""Leaves in another dtype."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from functional_rb.base import dtypes, nest
from functional_rb.base.nest import Key
from functional_rb.core.item_function import Lead, plain
from functional_rb.items.leafwise import NUMBERS, Invertible, Leafwise
from functional_rb.ops.protocol import Array, ItemOps
from functional_rb.specs import ArraySpec


@dataclasses.dataclass(frozen=True)
class Cast(Leafwise, Invertible):
    """Leaves in another dtype; see `cast`."""

    who: ClassVar[str] = "cast"
    kinds: ClassVar[tuple[str, ...] | None] = NUMBERS

    dtype: str
    keys: tuple[Key, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "dtype", dtypes.name_of(self.dtype))

    def leaf_spec(self, spec: ArraySpec, name: str) -> ArraySpec:
        return plain(spec.shape, self.dtype)

    def leaf(self, ops: ItemOps, x: Array, lead: Lead, common: object) -> Array:
        return ops.cast(x, self.dtype)

    def back(self, ops: ItemOps, x: Array, before: ArraySpec, lead: Lead) -> Array:
        return ops.cast(x, before.dtype)


def cast(dtype: object, keys: Key | Sequence[Key] | None = None) -> Cast:
    """Leaves in another dtype, for `frb.map_items`: floats go to integers by dropping the fraction.

    The inverse gives the leaves the dtypes again that they had.

    Args:
        dtype: of what is given, a name or a dtype of NumPy, JAX or torch.
        keys: the leaves, or containers of leaves; by default all that hold numbers or truth values.

    Raises:
        TypeError: for a dtype that specs do not have.
        ValueError: where it is used, for a leaf that the item lacks, or one of complex numbers or objects.

    Example:
        >>> import numpy as np
        >>> frb.items.cast(np.float32, keys=["obs"])
        Cast(dtype='float32', keys=['obs'])
    """
    return Cast(dtypes.name_of(dtype), nest.checked_keys(keys, "keys", "cast"))
