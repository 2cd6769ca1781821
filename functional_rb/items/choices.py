"""Choices as vectors with a one, and continuous actions as choices; and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from functional_rb.base import dtypes, nest
from functional_rb.base.arrays import NumpyArray
from functional_rb.base.nest import Key
from functional_rb.core.item_function import Lead
from functional_rb.items.leafwise import Invertible, Leafwise, needed_keys
from functional_rb.ops.protocol import Array, ItemOps
from functional_rb.specs import ArraySpec, Bounded, Categorical, MultiCategorical, OneHot

Within = Literal["center", "low", "high"]


@dataclasses.dataclass(frozen=True)
class OneHotted(Leafwise, Invertible):
    """Choices as vectors with a one; see `one_hot`."""

    who: ClassVar[str] = "one_hot"
    kinds: ClassVar[tuple[str, ...] | None] = ("int",)

    n: int
    keys: tuple[Key, ...] | None
    dtype: str = "bool"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "n", dtypes.checked_count("one_hot: n", self.n, 1, 2**20))
        object.__setattr__(self, "dtype", dtypes.name_of(self.dtype))

    def leaf_spec(self, spec: ArraySpec, name: str) -> ArraySpec:
        low, high, _ = spec.domain
        if isinstance(spec, Categorical | MultiCategorical | Bounded) and (np.min(low) < 0 or np.max(high) >= self.n):
            raise ValueError(
                f"one_hot: leaf {name!r}: expected numbers from 0 to {self.n - 1}, got {spec}; give another n"
            )
        mask = spec.mask if isinstance(spec, Categorical) and spec.n == self.n else None
        return OneHot(self.n, mask, (*spec.shape, self.n), self.dtype)

    def leaf(self, ops: ItemOps, x: Array, lead: Lead, common: object) -> Array:
        # Compare with every number; a number that is none of them has no one.
        dtype = dtypes.shown(x.dtype)
        if dtypes.ITEMSIZE[dtype] < 4:  # which need not hold all n numbers
            x, dtype = ops.cast(x, "int32"), "int32"
        ones = x[..., None] == ops.cast(ops.arange(self.n, like=x), dtype)
        return ones if self.dtype == "bool" else ops.cast(ones, self.dtype)

    def back(self, ops: ItemOps, x: Array, before: ArraySpec, lead: Lead) -> Array:
        return ops.cast(ops.argmax(ops.cast(x, "int32") if "bool" in str(x.dtype) else x), before.dtype)


@dataclasses.dataclass(frozen=True)
class ActionDiscretize(Leafwise, Invertible):
    """Continuous actions as choices; see `action_discretize`."""

    who: ClassVar[str] = "action_discretize"

    bins: int | tuple[int, ...]
    space: Bounded
    keys: tuple[Key, ...] | None = ("action",)
    within: Within = "center"

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = np.asarray(self.bins)
        if counts.dtype.kind not in "iu" or (counts < 2).any() or (counts > 2**20).any():
            raise ValueError(f"action_discretize: expected bins as whole numbers from 2 on, got {self.bins!r}")
        if self.within not in ("center", "low", "high"):
            raise ValueError(f"action_discretize: expected within as 'center', 'low' or 'high', got {self.within!r}")
        space: object = self.space  # users give anything
        if not isinstance(space, Bounded) or "float" not in space.dtype or not len(space.shape) <= 1:
            raise TypeError(
                f"action_discretize: expected space as the spec of actions, frb.Bounded of floats that are scalars or "
                f"a vector, got {space!r}"
            )
        low, high = space.table("low"), space.table("high")
        if not np.isfinite([low, high]).all() or (low == high).any():
            raise ValueError(f"action_discretize: expected finite bounds that differ, got {space}; give others")
        if counts.ndim and counts.shape != space.shape:
            raise ValueError(
                f"action_discretize: expected bins as one number, or one for each of {space.shape}, got {self.bins}"
            )

    def leaf_spec(self, spec: ArraySpec, name: str) -> ArraySpec:
        if (spec.shape, spec.dtype) != (self.space.shape, self.space.dtype):
            raise ValueError(
                f"action_discretize: leaf {name!r}: expected actions of {self.space}, got {spec}; give space=..., or "
                f"name other leaves by keys"
            )
        if not spec.shape:
            return Categorical(int(np.asarray(self.bins)))
        return MultiCategorical(self.bins, shape=spec.shape)

    def leaf(self, ops: ItemOps, x: Array, lead: Lead, common: object) -> Array:
        # `floor((x - low) bins / (high - low))`, between 0 and bins - 1.
        low, width, count = (ops.table(values, self.space.dtype, x) for values in self._tables())
        place = (x - low) / width * count
        place = ops.minimum(ops.maximum(place, ops.full_like(place, 0)), ops.full_like(place, 0) + (count - 1))
        return ops.cast(place, "int32")

    def back(self, ops: ItemOps, x: Array, before: ArraySpec, lead: Lead) -> Array:
        place = ops.cast(x, self.space.dtype)
        low, width, count = (ops.table(values, self.space.dtype, place) for values in self._tables())
        return low + (place + {"center": 0.5, "low": 0.0, "high": 1.0}[self.within]) * width / count

    # The lower bounds, how far the upper ones are from them, and how many bins there are; equal ones as one.
    def _tables(self) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        low, high = np.asarray(self.space.low, np.float64), np.asarray(self.space.high, np.float64)
        return low, high - low, np.asarray(self.bins, np.float64)


def one_hot(n: int, keys: Key | Sequence[Key], dtype: object = "bool") -> OneHotted:
    """Whole numbers from 0 to n - 1 as vectors with a one, for `frb.map_items`; the inverse gives the numbers again.

    A number outside of that range becomes a vector without a one.

    Args:
        n: how many choices there are.
        keys: the leaves of integers, or containers of such.
        dtype: of the vectors.

    Raises:
        ValueError: where it is used, for leaves of other numbers, naming them.

    Example:
        >>> from functional_rb.core.item_function import item_after
        >>> item_after(frb.items.one_hot(4, "action"), {"action": frb.Categorical(4)})
        Composite({'action': OneHot(4)})
    """
    return OneHotted(n, needed_keys(keys, "one_hot"), dtypes.name_of(dtype))


def action_discretize(
    bins: int | Sequence[int], space: Bounded, keys: Key | Sequence[Key] = "action", within: Within = "center"
) -> ActionDiscretize:
    """Continuous actions as the number of the bin that they lie in, for `frb.map_items`.

    Each dimension's range is cut into bins of the same width, the first of which has number 0; actions outside of the
    range are in the first or the last. The inverse gives a number of each bin: its centre, or an edge.

    Args:
        bins: how many there are, or how many in each dimension, from 2 on.
        space: the spec of the actions, scalars or vectors of floats between finite bounds.
        keys: the leaves.
        within: which number stands for a bin: "center", "low" or "high".

    Raises:
        TypeError: for another space.
        ValueError: for other numbers of bins; where it is used, for leaves of another shape or dtype, naming them.

    Example:
        >>> from functional_rb.core.item_function import item_after
        >>> space = frb.Bounded(-1, 1, (2,))
        >>> item_after(frb.items.action_discretize(5, space), {"action": space})
        Composite({'action': MultiCategorical(5, shape=(2,))})
    """
    # What is no list the class checks, and names as it was given.
    counts: Any = tuple(bins) if isinstance(bins, list) else bins
    return ActionDiscretize(counts, space, nest.checked_keys(keys, "keys", "action_discretize"), within)
