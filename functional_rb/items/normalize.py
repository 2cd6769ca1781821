"""Floats shifted and scaled, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from functional_rb.base.dtypes import shown
from functional_rb.base.nest import Key
from functional_rb.core.item_function import Lead, plain
from functional_rb.items.leafwise import Invertible, Leafwise
from functional_rb.ops.protocol import Array, ItemOps
from functional_rb.specs import ArraySpec, Bounded
from functional_rb.specs.base import Table, as_table, numbers

# How far apart numbers of a dtype lie between 1 and 2.
EPSILON: Final = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
# What is smaller may be taken for zero: by rounding, or by processors that have no subnormal numbers.
LEAST: Final = {"float16": 2.0**-24, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}


@dataclasses.dataclass(frozen=True)
class Normalize(Leafwise, Invertible):
    """`(x - loc) / scale`; see `normalize`."""

    who: ClassVar[str] = "normalize"

    loc: Table = 0.0
    scale: Table = 1.0
    keys: tuple[Key, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("loc", "scale"):
            array = numbers(getattr(self, name), "normalize", name).astype(np.float64)
            if not np.isfinite(array).all() or (name == "scale" and not (array > 0).all()):
                wanted = "finite numbers" + (" above 0" if name == "scale" else "")
                raise ValueError(f"normalize: expected {name} as {wanted}, got {getattr(self, name)!r:.80}")
            object.__setattr__(self, name, as_table(array))

    def leaf_spec(self, spec: ArraySpec, name: str) -> ArraySpec:
        for field in ("loc", "scale"):
            shape = np.shape(getattr(self, field))
            if len(shape) > len(spec.shape) or any(
                n not in (1, m) for n, m in zip(shape[::-1], spec.shape[::-1], strict=False)
            ):
                raise ValueError(
                    f"normalize: leaf {name!r}: {field} of shape {shape} does not broadcast to {spec.shape}; give one "
                    f"number, or one for each element"
                )
        if not isinstance(spec, Bounded):
            return plain(spec.shape, spec.dtype)
        loc, scale, bounds = np.asarray(self.loc), np.asarray(self.scale), [spec.table("low"), spec.table("high")]
        low, high = ((bound.astype(np.float64) - loc) / scale for bound in bounds)
        # Rounded outwards, unless all are whole: what is computed in the dtype may lie a little beyond, and what is
        # nearly nothing may be taken for nothing.
        exact = np.logical_and.reduce([x == np.rint(x) for x in np.broadcast_arrays(low, high, loc, scale)])
        widest = np.maximum(np.abs(bounds[0]), np.abs(bounds[1])) + np.abs(loc)
        roundings = 4.0 * (EPSILON[spec.dtype] * widest + LEAST[spec.dtype]) / scale
        margin = np.where(exact | np.isinf(widest), 0.0, roundings)
        return Bounded(low - margin, high + margin, spec.shape, spec.dtype)

    def leaf(self, ops: ItemOps, x: Array, lead: Lead, common: object) -> Array:
        return (x - _table(ops, self.loc, x)) / _table(ops, self.scale, x)

    def back(self, ops: ItemOps, x: Array, before: ArraySpec, lead: Lead) -> Array:
        return x * _table(ops, self.scale, x) + _table(ops, self.loc, x)


def _table(ops: ItemOps, values: Table, like: Array) -> Array:
    return ops.table(np.asarray(values), shown(like.dtype), like)


def normalize(loc: object, scale: object, keys: Key | Sequence[Key] | None = None) -> Normalize:
    """`(x - loc) / scale` of leaves of floats, for `frb.map_items`; the inverse is `x * scale + loc`.

    Bounds become those of the new numbers, further apart by a few roundings of the dtype where they are not whole.

    Args:
        loc: a number, or an array that broadcasts to the leaf's shape, such as the `mean` of `rb.moments`.
        scale: a number, or such an array, above 0, such as the `deviation()` of `rb.moments`.
        keys: the leaves, or containers of leaves; by default all of floats.

    Raises:
        TypeError: for values that are no numbers.
        ValueError: for a scale that is not above 0; where it is used, for leaves that do not fit, naming them.

    Example:
        >>> from functional_rb.core.item_function import item_after
        >>> item_after(frb.items.normalize(5, 5), {"x": frb.Bounded(0, 10, (3,))})
        Composite({'x': Bounded(-1.0, 1.0, (3,))})
    """
    # Arrays may lie on any device, as those of `rb.moments` do.
    numbers: list[Any] = [x.tolist() if hasattr(x, "tolist") else x for x in (loc, scale)]
    named: Any = keys
    return Normalize(loc=numbers[0], scale=numbers[1], keys=named)
