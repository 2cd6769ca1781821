"""Functions of items between what is added and what is stored, or between what was drawn and what is given out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self, SupportsIndex

from functional_rb.base import functions
from functional_rb.base.nest import Path
from functional_rb.core.item_function import HostFunction, ItemFunction, Specs, item_after
from functional_rb.core.strategy import Transform
from functional_rb.specs import freeze
from functional_rb.specs.base import SpecNest
from functional_rb.specs.values import Outline

At = Literal["add", "sample"]


@dataclasses.dataclass(frozen=True)
class MapItems(Transform):
    """A function of items; see `map_items`. The public functions carry it out, before or after those of the core."""

    at: ClassVar[At]

    function: Any
    keyed: bool = False
    masked: bool = False
    gives: SpecNest = dataclasses.field(default=None, compare=False)
    gives_outline: Outline | None = dataclasses.field(init=False, repr=False)  # compared by it: nests have no hash
    who: str = dataclasses.field(init=False, repr=False, compare=False)  # how errors name it
    on_host: bool = dataclasses.field(init=False, repr=False, compare=False)
    item_words: int = dataclasses.field(init=False, repr=False, compare=False)  # random ones, for each item
    draws: bool = dataclasses.field(init=False, repr=False, compare=False)  # whether the function takes a key
    # Once it is `bound`: the items that it is given, and those that it gives, where that is known beforehand.
    given: Outline = dataclasses.field(init=False, repr=False, compare=False)
    paths: tuple[Path, ...] = dataclasses.field(init=False, repr=False, compare=False)
    steps: int | None = dataclasses.field(default=None, init=False, repr=False, compare=False)  # of slices in one row
    after: Outline | None = dataclasses.field(init=False, repr=False, compare=False)
    expected: Specs = dataclasses.field(init=False, repr=False, compare=False)  # in the order of `after`

    def __post_init__(self) -> None:
        if not callable(self.function) and not isinstance(self.function, ItemFunction | HostFunction):
            raise TypeError(f"map_items: expected a function of items, or one of frb.items, got {self.function!r:.80}")
        self._set(function=functions.comparable(self.function))
        try:
            hash(self.function)
        except TypeError:
            raise TypeError(
                f"map_items: expected a function that can be hashed, as it is part of the spec, got "
                f"{self.function!r:.80}; {functions.REMEDY}"
            ) from None
        says_itself = isinstance(self.function, ItemFunction | HostFunction)
        if says_itself and (self.keyed or self.masked or self.gives is not None):
            raise ValueError(
                f"map_items: {self.function} says itself what it takes and gives; leave keyed, masked and gives out"
            )
        outline = None if self.gives is None else Outline.of(self.gives, "map_items: gives")
        self._set(gives=freeze(self.gives), gives_outline=outline)
        name = getattr(self.function, "__qualname__", None) or repr(self.function)
        words = self.function.words if isinstance(self.function, ItemFunction) else 0
        self._set(who=f"map_items({name}, at={self.at!r})", on_host=isinstance(self.function, HostFunction))
        self._set(item_words=words, draws=self.keyed or words > 0)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        """Pickle by the arguments, or say what cannot be pickled."""
        functions.check_picklable(self.function, "BufferSpec.transforms: map_items")
        return type(self), (self.function, self.keyed, self.masked, self.gives)

    def spec_after(self, item: object, lead: int) -> object:
        """The spec of what the function makes of items of a spec; None where only an evaluation can tell."""
        if isinstance(self.function, HostFunction):
            return self.function.gives
        return item_after(self.function, item, lead) if isinstance(self.function, ItemFunction) else self.gives

    def bound(self, item: object, outline: Outline, lead: int, steps: int | None = None) -> Self:
        """This transform, prepared for the items of one spec, in batches with so many axes in front.

        Slices that come in one row, of so many steps each, an `ItemFunction` is given as [B, T].
        """
        spec = self.spec_after(item, lead if steps is None else lead + 1)
        after = None if spec is None else Outline.of(spec, self.who)
        expected = {} if after is None else dict(zip(after.structure.paths, after.leaves, strict=True))
        bound = dataclasses.replace(self)
        bound._set(given=outline, paths=outline.structure.paths, steps=steps, after=after, expected=expected)
        return bound

    def _set(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)


@dataclasses.dataclass(frozen=True)
class MapOfAdded(MapItems):
    """A function of items that are added; see `map_items`."""

    at = "add"
    order = -1  # before n-step returns, and before anything is stored

    def spec_after(self, item: object, lead: int) -> object:
        """The spec of what is stored, which must be known before any array exists."""
        if isinstance(self.function, HostFunction):
            raise ValueError(f"{self.who}: reads what lies elsewhere as items are sampled; give at='sample'")
        after = super().spec_after(item, lead)
        if after is None:
            raise ValueError(
                f"{self.who}: expected gives=, the spec of the items that it gives, which are stored; "
                f"rb.map_spec(function, item) finds it"
            )
        return after


@dataclasses.dataclass(frozen=True)
class MapOfSampled(MapItems):
    """A function of items that were drawn; see `map_items`."""

    at = "sample"
    order = 2  # after goals in hindsight and n-step returns


def map_items(
    fn: Callable[..., object] | ItemFunction | HostFunction,
    *,
    at: At = "sample",
    keyed: bool = False,
    masked: bool = False,
    gives: object = None,
) -> MapItems:
    """A function of items, for `BufferSpec(transforms=...)`.

    With `at="sample"` it changes what a sample has as `items`, and is carried out last, after `her`, after `n_step`,
    and with the steps of slices put together. What is stored stays as it is, and `rb.get` and `rb.items` give that.
    With `at="add"` it changes what is stored, and is carried out first: `BufferSpec.item` is what is added, and
    `rb.get`, `rb.items`, `rb.update(items=...)` and samples have what `fn` gives.

    Args:
        fn: one of `frb.items`, or another `ItemFunction` or `HostFunction`; or any pure function `fn(items)` of a batch
            of items, in the containers that these have, leaves [B, *shape], of slices [B, T, *shape]. Of flat slices
            an `ItemFunction` sees [B, T, *shape] too, and another function their one row. It gives a nest
            of arrays of the backend with the same first axis. On JAX it is traced. What is to be pickled or saved takes
            a function of a module, or a `functools.partial` of one.
        at: "sample" or "add".
        keyed: whether it is called as `fn(items, key)`, with a key that follows from the one given to `rb.sample`, or
            to `rb.add`, which then needs one. The same key gives the same items.
        masked: whether it is called with `mask=`, bool [B] or [B, T], which items are real; None where all are.
        gives: the spec of one item of those that it gives, as `rb.map_spec(fn, item)` finds it. Needed with at="add".

    Raises:
        TypeError: if `fn` is no function, or cannot be hashed; from `rb.add` and `rb.sample` for leaves that are no
            arrays of the backend, or of another dtype than is expected.
        ValueError: for another `at`, or without `gives` where it is needed; from `rb.add` and `rb.sample` for leaves
            of another shape than is expected, for other leaves, and where `fn` fails. The state is as it was.

    Example:
        >>> item = {"image": frb.Unbounded((8, 8, 3), "uint8")}
        >>> frb.BufferSpec(item, 100, transforms=map_items(frb.items.cast("float32"))).stored["image"].dtype
        'uint8'
        >>> frb.BufferSpec(item, 100, transforms=map_items(frb.items.cast("float32"), at="add")).stored["image"].dtype
        'float32'
    """
    if at not in ("sample", "add"):
        raise ValueError(f"map_items: expected at='sample' or at='add', got {at!r}")
    return (MapOfSampled if at == "sample" else MapOfAdded)(fn, bool(keyed), bool(masked), gives)
