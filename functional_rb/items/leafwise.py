"""What the functions have in common that change some leaves, each for itself."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from functional_rb.base import nest
from functional_rb.base.nest import Key, Keys, Path
from functional_rb.core.item_function import ItemFunction, Lead, Leaves, Specs, chosen, plain
from functional_rb.ops.protocol import Array, ItemOps
from functional_rb.specs import ArraySpec, Bounded, NonTensor
from functional_rb.specs.regrouped import leaves_of

NUMBERS = ("float", "int", "bool")
# Specs by their paths, in a form that can be hashed.
By = tuple[tuple[Path, ArraySpec | NonTensor], ...]


class Leafwise(ItemFunction):
    """A function that changes some leaves, each for itself: a frozen dataclass with the keys among its fields."""

    # How users call it.
    who: ClassVar[str]
    # The kinds of dtype of the leaves that fit; None for all.
    kinds: ClassVar[tuple[str, ...] | None] = ("float",)
    keys: tuple[Key, ...] | None  # of leaves, or containers of leaves; None for all that fit

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", nest.checked_keys(self.keys, "keys", self.who))

    def chosen(self, leaves: Specs | Leaves, lead: int) -> Sequence[Path]:
        """The paths of the leaves that it changes."""
        return chosen(leaves, self.keys, self.who, self.kinds)

    @abc.abstractmethod
    def leaf_spec(self, spec: ArraySpec, name: str) -> ArraySpec:
        """The spec of what becomes of a leaf."""

    def common(self, ops: ItemOps, arrays: Sequence[Array], lead: Lead, draws: Array | None) -> Any:
        """What is computed once for all leaves that it changes: by default the draws are as they are."""
        return draws

    @abc.abstractmethod
    def leaf(self, ops: ItemOps, x: Array, lead: Lead, common: Any) -> Array:
        """What becomes of a leaf [*lead, *shape], with what is common to all."""

    def spec(self, leaves: Specs, lead: int) -> Specs:
        return leaves | {k: self.leaf_spec(array_spec(leaves[k]), nest.show(k)) for k in self.chosen(leaves, lead)}

    def apply(self, ops: ItemOps, leaves: Leaves, lead: Lead, draws: Array | None, mask: Array | None) -> Leaves:
        paths = self.chosen(leaves, len(lead))
        common = self.common(ops, [leaves[path] for path in paths], lead, draws)
        return leaves | {path: self.leaf(ops, leaves[path], lead, common) for path in paths}


class Invertible(ItemFunction):
    """A function that can make each of the leaves that it changes again, of what became of it."""

    # How users call it.
    who: ClassVar[str]

    @abc.abstractmethod
    def chosen(self, leaves: Specs | Leaves, lead: int) -> Sequence[Path]:
        """The paths of the leaves that it changes."""

    @abc.abstractmethod
    def back(self, ops: ItemOps, x: Array, before: ArraySpec, lead: Lead) -> Array:
        """The leaf [*lead, *shape] of this spec that it was before the function changed it."""

    def inverse(self, item: object) -> ItemFunction:
        leaves = leaves_of(item)
        return Inverse(self, tuple((path, leaves[path]) for path in self.chosen(leaves, 0)))


@dataclasses.dataclass(frozen=True)
class Inverse(ItemFunction):
    """Makes leaves again of these specs, each of what a function has made of it."""

    function: Invertible
    before: By

    def __post_init__(self) -> None:
        if not isinstance(self.function, Invertible):  # as of a text that somebody has written
            raise TypeError(f"inverse: expected a function of frb.items that has one, got {self.function!r:.80}")

    def spec(self, leaves: Specs, lead: int) -> Specs:
        chosen(leaves, [path for path, _ in self.before], f"{self.function.who}, inverted")
        return leaves | dict(self.before)

    def apply(self, ops: ItemOps, leaves: Leaves, lead: Lead, draws: Array | None, mask: Array | None) -> Leaves:
        restored = {path: self.function.back(ops, leaves[path], array_spec(spec), lead) for path, spec in self.before}
        return leaves | restored


def array_spec(spec: ArraySpec | NonTensor) -> ArraySpec:
    """The spec of a leaf that was chosen by the kind of its dtype: objects have none."""
    assert isinstance(spec, ArraySpec)
    return spec


def within(spec: ArraySpec, shape: tuple[int, ...]) -> ArraySpec:
    """The spec of values between a leaf's bounds in another shape, if all its elements have the same bounds."""
    if isinstance(spec, Bounded) and not isinstance(spec.low, tuple) and not isinstance(spec.high, tuple):
        return Bounded(spec.low, spec.high, shape, spec.dtype)
    return plain(shape, spec.dtype)


def name_of(key: Key, field: str, who: str) -> Key:
    """The key of one leaf, as it was given: a name, or a tuple of names."""
    try:
        nest.show_key(key)
    except TypeError as error:
        raise TypeError(f"{who}: {field}: {error}") from None
    return key if isinstance(key, str) else tuple(key)


def path_of(key: Key) -> Path:
    """The path that a key names, "obs/camera" as ("obs", "camera"): what a leaf that is new is called."""
    return tuple(key.split("/")) if isinstance(key, str) else key


def check_new(path: Path, leaves: Specs, who: str) -> None:
    """Refuse the path of a new leaf if there is one already."""
    if path in leaves:
        raise ValueError(f"{who}: there is a leaf {nest.show(path)!r} already; give another name by out=...")


def needed_keys(keys: object, who: str) -> Keys:
    """Keys, which must be given."""
    if keys is None:
        raise ValueError(f"{who}: expected the names of leaves by keys, got None; name them")
    return nest.checked_keys(keys, "keys", who) or Keys()
