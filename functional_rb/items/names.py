"""Leaves under other names, and fewer leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

from functional_rb.base import nest
from functional_rb.base.nest import Key, Path
from functional_rb.core.item_function import ItemFunction, Lead, Leaves, Specs, chosen
from functional_rb.items.leafwise import name_of, path_of
from functional_rb.ops.protocol import Array, ItemOps

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Rename(ItemFunction):
    """Leaves under other names; see `rename`."""

    pairs: tuple[tuple[Key, Key], ...]

    def __post_init__(self) -> None:
        named = tuple((name_of(old, "names", "rename"), name_of(new, "names", "rename")) for old, new in self.pairs)
        object.__setattr__(self, "pairs", named)

    def _renamed(self, leaves: dict[Path, T]) -> dict[Path, T]:
        new = {path: path for path in leaves}
        for old_key, new_key in self.pairs:
            old = nest.show_key(old_key)
            for path in chosen(leaves, [old_key], "rename"):
                depth = next(n for n in range(len(path) + 1) if nest.show(path[:n]) == old)
                new[path] = (*path_of(new_key), *path[depth:])
        names = [nest.show(path) for path in new.values()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"rename: leaf {twice[0]!r}: there would be two of that name; rename or exclude the other")
        return {new[path]: leaf for path, leaf in leaves.items()}

    def spec(self, leaves: Specs, lead: int) -> Specs:
        return self._renamed(leaves)

    def apply(self, ops: ItemOps, leaves: Leaves, lead: Lead, draws: Array | None, mask: Array | None) -> Leaves:
        return self._renamed(leaves)

    def inverse(self, item: object) -> ItemFunction:
        return Rename(tuple((new, old) for old, new in self.pairs))


@dataclasses.dataclass(frozen=True)
class Select(ItemFunction):
    """Some of the leaves; see `select`."""

    keys: tuple[Key, ...]
    left_out: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", nest.checked_keys(self.keys, "keys", "select") or ())

    def _kept(self, leaves: dict[Path, T]) -> dict[Path, T]:
        named = {*chosen(leaves, self.keys, "select")}
        return {path: leaf for path, leaf in leaves.items() if (path in named) != self.left_out}

    def spec(self, leaves: Specs, lead: int) -> Specs:
        kept = self._kept(leaves)
        if not kept:
            raise ValueError(f"select: no leaf would be left of {tuple(map(nest.show, leaves))}")
        return kept

    def apply(self, ops: ItemOps, leaves: Leaves, lead: Lead, draws: Array | None, mask: Array | None) -> Leaves:
        return self._kept(leaves)


def rename(names: Mapping[Key, Key]) -> Rename:
    """Leaves, or containers of leaves, under other names, for `frb.map_items`. The inverse gives the old names again.

    Args:
        names: new names by the old ones, each a name, a path "obs/camera", or a tuple of names.

    Raises:
        TypeError: for what is no name, and names that are no dict.
        ValueError: where it is used, for a leaf that the item lacks, or two leaves of one name.

    Example:
        >>> from functional_rb.core.item_function import item_after
        >>> item_after(frb.items.rename({"obs": "observation"}), {"obs": {"x": frb.Unbounded((3,))}})
        Composite({'observation': Composite({'x': Unbounded((3,))})})
    """
    if not isinstance(names, Mapping):
        raise TypeError(f"rename: expected names as a dict, old names to new ones, got {names!r:.80}")
    return Rename(tuple(names.items()))


def select(keys: Key | Sequence[Key] | None = None, *, exclude: Key | Sequence[Key] | None = None) -> Select:
    """Some leaves, or containers of leaves, without the others, for `frb.map_items`.

    Args:
        keys: those that stay.
        exclude: in place of `keys`: those that do not.

    Raises:
        TypeError: for both or neither of the two.
        ValueError: where it is used, for a leaf that the item lacks, or if none would be left.

    Example:
        >>> from functional_rb.core.item_function import item_after
        >>> item = {"x": frb.Unbounded(()), "y": frb.Unbounded(())}
        >>> item_after(frb.items.select("x"), item), item_after(frb.items.select(exclude="x"), item)
        (Composite({'x': Unbounded()}), Composite({'y': Unbounded()}))
    """
    if (keys is None) == (exclude is None):
        raise TypeError("select: expected keys that stay, or exclude= for those that do not; give one of the two")
    if exclude is None:
        return Select(nest.checked_keys(keys, "keys", "select") or nest.Keys())
    return Select(nest.checked_keys(exclude, "exclude", "select") or nest.Keys(), left_out=True)
