"""Named parts, and nests of specs in general."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, TypeAlias, TypeGuard

from functional_rb.base.arrays import Nest
from functional_rb.base.containers import Registered, apart, check_depth, of_fields
from functional_rb.base.nest import Path, Structure, parts_of
from functional_rb.specs.base import Change, Spec, SpecNest, changed_shape, checked_shape

# What each part has of a field, such as its shape, by name: nested as the parts are.
PartFields: TypeAlias = dict[str, Nest]


@dataclasses.dataclass(frozen=True)
class Container:
    """A container of torch that has more than its parts and their batch shape."""

    type: type  # TensorDict, or a tensorclass
    names: tuple[str | None, ...]  # the names of one item's batch axes; () for none
    device: bool  # whether the container has a device, that of its tensors
    named_below: bool  # whether a container inside it has names of axes


class Composite(Mapping[str, SpecNest], Spec):
    """Named parts, each a spec or again a nest of them; immutable and hashable.

    A plain dict in `BufferSpec(item=...)` becomes one of these. Parts are reached by name, by attribute, or by a
    path of names. Anything else in brackets is an index of the batch axes.

    Args:
        parts: a mapping from names to specs or nests of specs.
        batch_shape: leading axes that all parts share; they are part of each part's shape.
        **named: further parts.

    Raises:
        TypeError: if a name is not a string.
        ValueError: if a part's shape does not begin with the batch axes, naming it.

    Example:
        >>> from functional_rb import Binary, Unbounded
        >>> spec = Composite(obs=Composite(pos=Unbounded((3,)), vel=Unbounded((3,))), done=Binary())
        >>> spec["obs", "vel"].shape, spec.done.dtype
        ((3,), 'bool')
        >>> spec.shape["obs"]["pos"]
        (3,)
        >>> Composite(obs=Unbounded((4, 3)), batch_shape=(4,))[0].obs
        Unbounded((3,))
    """

    __slots__ = ("_batch_shape", "_container", "_parts")
    arguments: ClassVar[tuple[str, ...]] = ("parts", "batch_shape")

    def __init__(
        self, parts: Mapping[str, SpecNest] | None = None, /, batch_shape: tuple[int, ...] = (), **named: SpecNest
    ) -> None:
        # A copy, so that a later change of the mapping changes nothing here.
        # By way of `object`, as attributes of a Composite cannot be set.
        object.__setattr__(self, "_container", None)
        object.__setattr__(self, "_batch_shape", checked_shape(batch_shape))
        merged = {**(parts or {}), **named}
        for name in merged:
            if not isinstance(name, str):
                raise TypeError(f"Composite: expected names that are strings, got {name!r}")
        parts = {name: checked(child, "Composite", (name,), self._batch_shape) for name, child in merged.items()}
        object.__setattr__(self, "_parts", parts)
        for path, leaf in members(parts):
            if leaf.leading[: len(self._batch_shape)] != self._batch_shape:
                raise ValueError(
                    f"Composite: part {_shown(path)}: expected axes that begin with the batch_shape "
                    f"{self._batch_shape}, got {leaf.leading}; "
                    f"write spec.expand({', '.join(map(str, self._batch_shape))}, ...)"
                )

    _container: type | Container | Registered | None
    _batch_shape: tuple[int, ...]
    _parts: dict[str, SpecNest]

    @classmethod
    def like(
        cls,
        container: type | Registered | None,
        parts: Mapping[str, object],
        batch_shape: tuple[int, ...] = (),
        names: Sequence[str | None] = (),
        device: bool = False,
    ) -> Composite:
        """Parts whose arrays come back in a container of this type (a TensorDict, a tensorclass; None: a dict).

        Args:
            container: the type, or a `Registered` container.
            parts: a mapping from names to specs or nests of specs.
            batch_shape: leading axes that all parts share.
            names: names of those axes; the axes of a batch, in front of them, have none.
            device: whether the container has the device of its tensors; else its device is None.

        Raises:
            ValueError: if there are not as many names as axes.
        """
        names = tuple(names)
        if names and (len(names) != len(tuple(batch_shape)) or container is None):
            raise ValueError(
                f"Composite.like: expected names for the axes of batch_shape={batch_shape} of a TensorDict or "
                f"tensorclass, got {names}; give a name or None for each"
            )
        composite = cls(parts, batch_shape=batch_shape)
        # Names that are all None are those that a container without names has: the spec has one form.
        names = names if any(name is not None for name in names) else ()
        below = any(isinstance(child, Composite) and child._is_named for child in composite._parts.values())
        if isinstance(container, type) and (names or device or below):
            object.__setattr__(composite, "_container", Container(container, names, device, below))
        else:
            object.__setattr__(composite, "_container", container)
        return composite

    def with_parts(self, parts: Mapping[str, object], batch_shape: tuple[int, ...] | None = None) -> Composite:
        """Other parts in the same kind of container. If a batch shape is given, its axes have no names."""
        kind, _, names, device = self._like
        if batch_shape is not None:
            return Composite.like(kind, parts, batch_shape, (), device)
        return Composite.like(kind, parts, self._batch_shape, names, device)

    @property
    def _kind(self) -> type | Registered | None:
        return self._container.type if isinstance(self._container, Container) else self._container

    @property
    def _is_named(self) -> bool:
        mine = self._container
        return isinstance(mine, Container) and (bool(mine.names) or mine.named_below)

    @property
    def _like(self) -> tuple[type | Registered | None, tuple[int, ...], tuple[str | None, ...], bool]:
        # The arguments of `like` that make this container, without the parts.
        if isinstance(self._container, Container):
            return self._container.type, self._batch_shape, self._container.names, self._container.device
        return self._container, self._batch_shape, (), False

    def __getitem__(self, key: object) -> SpecNest:
        """The part of a name, or at a path of names; for an index, the spec of that piece of the batch."""
        if isinstance(key, str):
            return self._parts[key]
        return at_path(self, key) if is_path(key) else Spec.__getitem__(self, key)

    def __contains__(self, key: object) -> bool:
        if not (isinstance(key, str) or is_path(key)):
            return False
        try:
            self[key]
        except (KeyError, IndexError, TypeError):
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __getattr__(self, name: str) -> SpecNest:
        try:
            # Not self._parts, which would call this method again while the object is not yet made (copy, pickle).
            return object.__getattribute__(self, "_parts")[name]
        except KeyError:
            raise AttributeError(f"Composite has no part {name!r}; it has {list(self._parts)}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to {name!r}: a Composite is immutable")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete {name!r}: a Composite is immutable")

    def __hash__(self) -> int:
        """A hash that depends neither on the order of the parts nor on the container."""
        return hash((frozenset(members(self._parts)), self._batch_shape))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Composite):
            return NotImplemented
        same = self._container == other._container and self._batch_shape == other._batch_shape
        return same and self._parts == other._parts

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Pickle the arguments of `like`, as slots cannot be set from outside."""
        kind, *rest = self._like
        return Composite.like, (kind, dict(self._parts), *rest)

    def _nest_parts(self) -> tuple[Structure, list[object]]:
        names = tuple(self._parts)
        return Structure("mapping", self._container, names, (), self._batch_shape), list(self._parts.values())

    def call_parts(self, show: Callable[[object], str]) -> tuple[str, list[str], str]:
        """The constructor's name, the parts by name, and the other arguments that are not defaults."""
        kind, batch_shape, names, device = self._like
        head = "Composite(" if kind is None else f"Composite.like({kind.__name__}, "
        others = {"batch_shape": batch_shape, "names": names, "device": device}
        rest = "".join(f", {name}={value}" for name, value in others.items() if value)
        return f"{head}{{", [f"{name!r}: {show(child)}" for name, child in self._parts.items()], f"}}{rest})"

    @property
    def parts(self) -> Mapping[str, SpecNest]:
        """The parts by name."""
        return dict(self._parts)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes that all parts share."""
        return self._batch_shape

    @property
    def axes(self) -> tuple[int, ...]:
        return self._batch_shape

    def changed(self, k: int, change: Change) -> Composite:
        parts = {name: changed(child, k, change) for name, child in self._parts.items()}
        return self.with_parts(parts, changed_shape(self._batch_shape, change))

    def cardinality(self) -> int | float:
        return cardinality(self._parts)

    def consolidate(self) -> Composite:
        return self.with_parts({name: consolidate(child) for name, child in self._parts.items()})

    def without_elements(self, batch_axes: int, batch_shape: tuple[int, ...]) -> Composite:
        axes = (*batch_shape, *(0,) * (len(self._batch_shape) - batch_axes))
        parts = {name: without_elements(child, batch_axes, batch_shape) for name, child in self._parts.items()}
        return self.with_parts(parts, axes)

    def _nest_of(self, field: str) -> PartFields:
        return {name: map_members(child, lambda leaf: getattr(leaf, field)) for name, child in self._parts.items()}

    @property
    def shape(self) -> PartFields:
        """The shapes of the parts, by name."""
        return self._nest_of("shape")

    @property
    def dtype(self) -> PartFields:
        """The dtypes of the parts, by name."""
        return self._nest_of("dtype")

    @property
    def domain(self) -> PartFields:
        """The domains of the parts, by name."""
        return self._nest_of("domain")


def is_path(key: object) -> TypeGuard[tuple[str, ...]]:
    return isinstance(key, tuple) and bool(key) and isinstance(key[0], str)


def at_path(spec: SpecNest, path: tuple[str, ...]) -> SpecNest:
    return functools.reduce(operator.getitem, path, spec)


def freeze(nest: SpecNest, batch_shape: tuple[int, ...] = ()) -> SpecNest:
    """A nest of specs with a `Composite` in place of every dict and of every registered container."""

    def frozen(leaf: SpecNest) -> SpecNest:
        if isinstance(leaf, Spec):  # asking the libraries about it would break torch.compile
            return leaf
        taken = apart(leaf)
        if taken is not None:
            return Composite.like(taken[0], dict(zip(taken[0].names, taken[1], strict=True)), batch_shape)
        return Composite(leaf, batch_shape=batch_shape) if isinstance(leaf, Mapping) else leaf

    return map_members(nest, frozen)


def checked(nest: SpecNest, who: str, path: Path = (), batch_shape: tuple[int, ...] = ()) -> SpecNest:
    """A nest of specs, frozen, after a check that all its leaves are specs."""
    leaves = members(nest, path) if nest is not None or path else [((), None)]
    for place, leaf in leaves:
        if not isinstance(leaf, Spec):
            got = f"the class {leaf.__name__}" if isinstance(leaf, type) else type(leaf).__name__
            raise TypeError(
                f"{who}: leaf {_shown(place)}: expected a spec such as frb.Unbounded(shape), got {got}; "
                f"frb.specs.spec_of(example) derives specs from arrays"
            )
    return freeze(nest, batch_shape)


def _shown(path: Path) -> str:
    return repr("/".join(map(str, path)) or "the item")


def map_members(nest: SpecNest, function: Callable[[SpecNest], object]) -> SpecNest:
    """A nest in which a function replaces every spec, those in tuples, lists and dataclasses included."""
    if nest is None:
        return None
    if isinstance(nest, Spec) or apart(nest) is not None:
        return function(nest)
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(map_members(child, function) for child in nest))
    if isinstance(nest, tuple | list):
        return type(nest)(map_members(child, function) for child in nest)
    if dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        names = [field.name for field in dataclasses.fields(nest)]
        return of_fields(type(nest), {name: map_members(getattr(nest, name), function) for name in names})
    return function(nest)


def members(nest: SpecNest, path: Path = ()) -> Iterator[tuple[Path, SpecNest]]:
    """The specs of a nest with their paths; what is inside of a spec is not listed."""
    check_depth(len(path))
    parts = None if isinstance(nest, Spec) else parts_of(nest)
    if parts is None:
        yield path, nest
        return
    for key, child in zip(parts[0].keys, parts[1], strict=True):
        yield from members(child, (*path, key))


def cardinality(nest: SpecNest) -> int | float:
    """How many values a nest of specs has."""
    counts = [leaf.cardinality() for _, leaf in members(nest)]
    # Of integers the product is exact; infinity times a large integer would overflow.
    return math.inf if math.inf in counts else math.prod(counts)


def consolidate(nest: SpecNest) -> SpecNest:
    return map_members(nest, lambda leaf: leaf.consolidate())


def without_elements(nest: SpecNest, batch_axes: int, batch_shape: tuple[int, ...]) -> SpecNest:
    return map_members(nest, lambda leaf: leaf.without_elements(batch_axes, batch_shape))


def changed(nest: SpecNest, k: int, change: Change) -> SpecNest:
    return map_members(nest, lambda leaf: leaf.changed(k, change))
