"""What an item is made of: typed, frozen, hashable descriptions of its leaves, without any array."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from functional_rb import dtypes

Number = bool | int | float
Bound = Number | tuple[Any, ...]
"""A number for every element, or nested tuples of the leaf's shape: arrays cannot be hashed."""


class Domain(NamedTuple):
    """The values that a leaf may take: those between two bounds, both included.

    Attributes:
        low: a number, or nested tuples of the leaf's shape.
        high: likewise.
        discrete: whether only whole numbers (or truth values) occur.
    """

    low: Bound
    high: Bound
    discrete: bool


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """An array of fixed shape and dtype.

    Attributes:
        shape: the shape of one item's leaf, without any batch axis.
        dtype: its name, one of `functional_rb.dtypes.ITEMSIZE`; NumPy, JAX and torch dtypes are accepted.

    Example:
        >>> ArraySpec((3,), np.int16)
        ArraySpec(shape=(3,), dtype='int16')
    """

    shape: tuple[int, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Bring shape and dtype into their hashable form, and check them."""
        object.__setattr__(self, "shape", _checked_shape(self.shape))
        object.__setattr__(self, "dtype", dtypes.name_of(self.dtype))

    @property
    def domain(self) -> Domain:
        """All values of the dtype."""
        kind = dtypes.kind_of(self.dtype)
        if kind == "bool":
            return Domain(0, 1, True)
        if kind == "int":
            return Domain(*dtypes.integer_limits(self.dtype), True)
        return Domain(-math.inf, math.inf, False)


@dataclasses.dataclass(frozen=True)
class Unbounded(ArraySpec):
    """Any value of the dtype.

    Example:
        >>> Unbounded((17,)).domain
        Domain(low=-inf, high=inf, discrete=False)
    """


@dataclasses.dataclass(frozen=True, init=False)
class Bounded(ArraySpec):
    """Values between two bounds, both included.

    Attributes:
        low: a number, or an array or nested sequence that broadcasts to `shape`; kept as nested tuples.
        high: likewise.

    Example:
        >>> Bounded(-1.0, 1.0, (6,)).domain
        Domain(low=-1.0, high=1.0, discrete=False)
        >>> Bounded([0, -1], 1, (2,), "int8").low
        (0, -1)
    """

    low: Bound = 0
    high: Bound = 0

    def __init__(self, low: Any, high: Any, shape: tuple[int, ...] = (), dtype: object = "float32") -> None:
        """Bounds come first, as one writes them: `Bounded(-1.0, 1.0, (6,))`."""
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype)
        super().__post_init__()
        object.__setattr__(self, "low", _hashable_bound(low, self.shape, "low"))
        object.__setattr__(self, "high", _hashable_bound(high, self.shape, "high"))
        if not np.all(np.asarray(self.low) <= np.asarray(self.high)):
            raise ValueError(f"Bounded: expected low <= high everywhere, got low={low!r}, high={high!r}")

    @property
    def domain(self) -> Domain:
        """The values between the bounds."""
        return Domain(self.low, self.high, dtypes.kind_of(self.dtype) in ("bool", "int"))


@dataclasses.dataclass(frozen=True)
class Binary(ArraySpec):
    """Truth values: `bool` unless another dtype holds them as 0 and 1.

    Example:
        >>> Binary(()).dtype
        'bool'
    """

    dtype: str = "bool"

    @property
    def domain(self) -> Domain:
        """Zero and one."""
        return Domain(0, 1, True)


class Composite(Mapping[str, Any]):
    """Named parts, each a spec or again a nest of them; immutable and hashable.

    A plain dict in `BufferSpec(item=...)` becomes one of these. Parts are reached by name, by attribute, or by a
    path of names.

    Args:
        parts: a mapping from names to specs or nests of specs.
        **named: further parts.

    Raises:
        TypeError: if a name is not a string.

    Example:
        >>> spec = Composite(obs=Composite(pos=Unbounded((3,)), vel=Unbounded((3,))), done=Binary())
        >>> spec["obs", "vel"].shape, spec.done.dtype
        ((3,), 'bool')
        >>> spec.shape["obs"]["pos"]
        (3,)
    """

    __slots__ = ("_container", "_parts")

    def __init__(self, parts: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Copy the parts, so that a later change of the given mapping changes nothing here."""
        object.__setattr__(self, "_container", None)
        merged = {**(parts or {}), **named}
        for name in merged:
            if not isinstance(name, str):
                raise TypeError(f"Composite: expected names that are strings, got {name!r}")
        object.__setattr__(self, "_parts", {k: freeze(v) for k, v in merged.items()})

    _container: type | None
    _parts: dict[str, Any]

    @classmethod
    def like(cls, container: type, parts: Mapping[str, Any]) -> Composite:
        """Parts whose arrays come back in a container of this type (a TensorDict, a tensorclass) on torch."""
        composite = cls(parts)
        object.__setattr__(composite, "_container", container)
        return composite

    def __getitem__(self, path: str | tuple[str, ...]) -> Any:
        """The part of that name, or at that path of names."""
        if isinstance(path, str):
            return self._parts[path]
        part: Any = self
        for name in path:
            part = part[name]
        return part

    def __iter__(self) -> Iterator[str]:
        """The names, in the order in which they were given."""
        return iter(self._parts)

    def __len__(self) -> int:
        """The number of parts."""
        return len(self._parts)

    def __getattr__(self, name: str) -> Any:
        """The part of that name."""
        try:
            return object.__getattribute__(self, "_parts")[name]
        except KeyError:
            raise AttributeError(f"Composite has no part {name!r}; it has {list(self._parts)}") from None

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: specs are values."""
        raise dataclasses.FrozenInstanceError(f"cannot assign to {name!r}: a Composite is immutable")

    def __hash__(self) -> int:
        """Equal parts hash equally, in whatever order they were given."""
        return hash(frozenset(self._parts.items()))

    def __eq__(self, other: object) -> bool:
        """Whether the other has the same parts under the same names."""
        if not isinstance(other, Composite):
            return NotImplemented
        return self._parts == other._parts and self._container is other._container

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle by the parts: the slots cannot be set from outside."""
        if self._container is None:
            return Composite, (dict(self._parts),)
        return Composite.like, (self._container, dict(self._parts))

    def __repr__(self) -> str:
        """The call that makes it."""
        parts = "{" + ", ".join(f"{k!r}: {v!r}" for k, v in self._parts.items()) + "}"
        return (
            f"Composite({parts})" if self._container is None else f"Composite.like({self._container.__name__}, {parts})"
        )

    def _nest_of(self, field: str) -> dict[str, Any]:
        return {name: _field_of(part, field) for name, part in self._parts.items()}

    @property
    def shape(self) -> dict[str, Any]:
        """The shapes of the parts, by name."""
        return self._nest_of("shape")

    @property
    def dtype(self) -> dict[str, Any]:
        """The dtypes of the parts, by name."""
        return self._nest_of("dtype")

    @property
    def domain(self) -> dict[str, Any]:
        """The domains of the parts, by name."""
        return self._nest_of("domain")


def _field_of(part: Any, field: str) -> Any:
    if isinstance(part, tuple | list):
        return (
            type(part)(*(_field_of(p, field) for p in part))
            if hasattr(part, "_fields")
            else type(part)(_field_of(p, field) for p in part)
        )
    return getattr(part, field)


def freeze(nest: Any) -> Any:
    """The same nest of specs with every dict replaced by a `Composite`, and lists by tuples of their kind."""
    if isinstance(nest, Composite | ArraySpec) or dataclasses.is_dataclass(nest):
        return nest
    if isinstance(nest, Mapping):
        return Composite(nest)
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(freeze(part) for part in nest))
    if isinstance(nest, tuple | list):
        return type(nest)(freeze(part) for part in nest)
    return nest


def _checked_shape(shape: Any) -> tuple[int, ...]:
    if isinstance(shape, int | np.integer):
        raise TypeError(f"expected a shape as a tuple, got {shape!r}; write ({shape},)")
    try:
        sizes = tuple(operator.index(n) for n in shape)
    except TypeError:
        raise TypeError(f"expected a shape as a tuple of ints, got {shape!r}; write (3, 4), say") from None
    if any(n < 0 for n in sizes):
        raise ValueError(f"expected a shape of sizes >= 0, got {sizes}")
    return sizes


def _hashable_bound(bound: Any, shape: tuple[int, ...], name: str) -> Bound:
    array = np.asarray(bound)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"Bounded: expected {name} as a number or an array of them, got {bound!r}")
    try:
        np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"Bounded: {name} of shape {array.shape} does not broadcast to {shape}") from None
    if array.ndim == 0:
        number: Number = array.item()
        return number
    return _nested_tuple(np.broadcast_to(array, shape).tolist())


def _nested_tuple(value: Any) -> Any:
    return tuple(_nested_tuple(v) for v in value) if isinstance(value, list) else value
