"""Leaves joined to one, and leaves as vectors; and back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, TypeVar

import numpy as np

from functional_rb.base import nest
from functional_rb.base.nest import Key, Path
from functional_rb.core.item_function import ItemFunction, Lead, Leaves, Specs, chosen, plain
from functional_rb.items.leafwise import By, Invertible, Leafwise, array_spec, check_new, name_of, path_of
from functional_rb.ops.protocol import Array, ItemOps
from functional_rb.specs import ArraySpec, Binary, Bounded, Unbounded
from functional_rb.specs.regrouped import leaves_of

ANY = ("float", "int", "bool", "complex")


# Specs or arrays.
X = TypeVar("X")


@dataclasses.dataclass(frozen=True)
class Cat(ItemFunction):
    """Leaves joined to one; see `cat`."""

    keys: tuple[Key, ...]
    out: Key
    axis: int = -1

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", nest.checked_keys(self.keys, "keys", "cat") or ())
        object.__setattr__(self, "out", name_of(self.out, "out", "cat"))

    def spec(self, leaves: Specs, lead: int) -> Specs:
        paths = chosen(leaves, self.keys, "cat", ANY)
        rest = {path: leaf for path, leaf in leaves.items() if path not in paths}
        check_new(path_of(self.out), rest, "cat")
        specs = [array_spec(leaves[path]) for path in paths]
        shapes = [spec.shape or (1,) for spec in specs]
        for path, spec, shape in zip(paths, specs, shapes, strict=True):
            if not -len(shape) <= self.axis < len(shape):
                raise ValueError(f"cat: leaf {nest.show(path)!r}: expected an axis {self.axis}, got shape {spec.shape}")
            others = _without(shape, self.axis), _without(shapes[0], self.axis)
            if spec.dtype != specs[0].dtype or others[0] != others[1]:
                raise ValueError(
                    f"cat: leaf {nest.show(path)!r}: expected {specs[0].dtype} of shape {shapes[0]} but for axis "
                    f"{self.axis}, as {nest.show(paths[0])!r} has, got {spec.dtype} of shape {shape}; cast or flatten "
                    f"it first"
                )
        sizes = list(shapes[0])
        sizes[self.axis] = sum(shape[self.axis] for shape in shapes)
        if all(isinstance(spec, Bounded) for spec in specs):
            pairs = list(zip(specs, shapes, strict=True))
            low, high = (
                np.concatenate([spec.table(name).reshape(shape) for spec, shape in pairs], self.axis)
                for name in ("low", "high")
            )
            return rest | {path_of(self.out): Bounded(low, high, tuple(sizes), specs[0].dtype)}
        return rest | {path_of(self.out): plain(tuple(sizes), specs[0].dtype)}

    def apply(self, ops: ItemOps, leaves: Leaves, lead: Lead, draws: Array | None, mask: Array | None) -> Leaves:
        paths = chosen(leaves, self.keys, "cat")
        parts = [leaves[path].reshape(*lead, *(tuple(leaves[path].shape[len(lead) :]) or (1,))) for path in paths]
        axis = self.axis + len(parts[0].shape) if self.axis < 0 else self.axis + len(lead)
        rest = {path: leaf for path, leaf in leaves.items() if path not in paths}
        return rest | {path_of(self.out): ops.concat(parts, axis)}

    def inverse(self, item: object) -> ItemFunction:
        leaves = leaves_of(item)
        paths = chosen(leaves, self.keys, "cat", ANY)
        return Split(tuple((path, leaves[path]) for path in paths), self.out, self.axis, tuple(leaves))


@dataclasses.dataclass(frozen=True)
class Split(ItemFunction):
    """The inverse of `Cat`."""

    before: By
    out: Key
    axis: int = -1
    # The paths of all leaves, in their order.
    order: tuple[Path, ...] = ()

    def spec(self, leaves: Specs, lead: int) -> Specs:
        (joined,) = chosen(leaves, [self.out], "cat, inverted")
        return self._ordered({path: leaf for path, leaf in leaves.items() if path != joined} | dict(self.before))

    def apply(self, ops: ItemOps, leaves: Leaves, lead: Lead, draws: Array | None, mask: Array | None) -> Leaves:
        (joined,) = chosen(leaves, [self.out], "cat, inverted")
        separate, start, x = {path: leaf for path, leaf in leaves.items() if path != joined}, 0, leaves[joined]
        axis = self.axis + len(x.shape) if self.axis < 0 else self.axis + len(lead)
        for path, spec in self.before:
            size = (spec.shape or (1,))[axis - len(lead)]
            piece = x[(*[slice(None)] * axis, slice(start, start + size))]
            separate[path], start = piece.reshape(*lead, *spec.shape), start + size
        return self._ordered(separate)

    def _ordered(self, leaves: dict[Path, X]) -> dict[Path, X]:
        return {path: leaves[path] for path in (*self.order, *leaves) if path in leaves}


@dataclasses.dataclass(frozen=True)
class Flatten(Leafwise, Invertible):
    """Leaves as vectors; see `flatten`."""

    who: ClassVar[str] = "flatten"
    kinds: ClassVar[tuple[str, ...] | None] = ANY

    keys: tuple[Key, ...] | None = None

    def leaf_spec(self, spec: ArraySpec, name: str) -> ArraySpec:
        if type(spec) in (Bounded, Binary, Unbounded):
            flat: ArraySpec = spec.reshape(-1) if spec.size else plain((0,), spec.dtype)
            return flat
        return plain((spec.size,), spec.dtype)

    def leaf(self, ops: ItemOps, x: Array, lead: Lead, common: object) -> Array:
        return x.reshape(*lead, math.prod(x.shape[len(lead) :]))

    def back(self, ops: ItemOps, x: Array, before: ArraySpec, lead: Lead) -> Array:
        return x.reshape(*lead, *before.shape)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    axis %= len(shape)
    return (*shape[:axis], *shape[axis + 1 :])


def cat(keys: Key | Sequence[Key], out: Key, axis: int = -1) -> Cat:
    """Leaves joined along an axis to one, which takes their place, for `frb.map_items`; the inverse takes it apart.

    Args:
        keys: the leaves, or containers of leaves, in the order of which they are joined; scalars count as [1].
        out: the name of the new leaf.
        axis: of an item's shape; by default the last.

    Raises:
        ValueError: where it is used, for leaves of other dtypes or shapes than the first, naming them, or a name that
            there is already.

    Example:
        >>> from functional_rb.core.item_function import item_after
        >>> item_after(frb.items.cat(["pos", "vel"], "obs"), {"pos": frb.Unbounded((3,)), "vel": frb.Unbounded((2,))})
        Composite({'obs': Unbounded((5,))})
    """
    return Cat(nest.checked_keys(keys, "keys", "cat") or nest.Keys(), out, axis)


def flatten(keys: Key | Sequence[Key] | None = None) -> Flatten:
    """Leaves as vectors, for `frb.map_items`: a scalar as one of length 1. The inverse gives them their shapes again.

    Args:
        keys: the leaves, or containers of leaves; by default all but Python objects.

    Raises:
        ValueError: where it is used, for a leaf that the item lacks, or one of Python objects.

    Example:
        >>> from functional_rb.core.item_function import item_after
        >>> item_after(frb.items.flatten(), {"x": frb.Unbounded((3, 4))})
        Composite({'x': Unbounded((12,))})
    """
    return Flatten(nest.checked_keys(keys, "keys", "flatten"))
