"""Containers of other libraries: what jax.tree or torch's pytree have registered, and those of `collections`.

The core imports neither library. Each backend brings along how its own takes containers apart, one level at a time, and
puts them together again, by what is registered: classes are not called.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, dataclass_transform

from functional_rb.base.arrays import Nest

T = TypeVar("T")
# Why a value is not sound, or None.
Problem = Callable[[Nest], str | None]
# What of a container is no part of it but its own: hashable, as programs are compiled for it.
Static = Any
# So many containers may lie in each other.
DEEPEST = 64


class Apart(NamedTuple):
    """A container, taken apart by one level.

    Attributes:
        names: the names of its parts.
        parts: one part for each name.
        static: what makes it up besides the parts: fields that are no leaves, say.
    """

    names: Sequence[str]
    parts: Sequence[Nest]
    static: Static


class Library(Protocol):
    """A library with which containers are registered."""

    def apart(self, x: object) -> Apart | None:
        """A container, taken apart; None if it is no container, or not registered with this library."""

    def parts(self, x: Nest) -> tuple[Sequence[Nest], Static]:
        """The parts of a container that is registered, and what makes it up besides them."""

    def together(self, kind: type, static: Static, names: tuple[str, ...], parts: Mapping[str, Nest]) -> Nest:
        """A container of this class, made of its parts: the inverse of `apart`."""

    def register(self, kind: type, names: tuple[str, ...], static: tuple[str, ...]) -> None:
        """Let the library's own functions take a record apart, see `register_record`; not if it is there already."""

    def register_static(self, kind: type) -> None:
        """Let the library's own functions take a description as it is, see `register_static`."""


class _Collections:
    """The containers of Python itself; its dicts come back in the order in which their names were given."""

    def apart(self, x: Nest) -> Apart | None:
        if x is None:
            return Apart((), (), None)
        if type(x) not in (collections.OrderedDict, collections.defaultdict):
            return None
        return Apart(tuple(x), list(x.values()), getattr(x, "default_factory", None))

    def parts(self, x: Nest) -> tuple[Sequence[Nest], Static]:
        raise NotImplementedError("names tell the parts of dicts, in any order")

    def together(self, kind: type, static: Static, names: tuple[str, ...], parts: Mapping[str, Nest]) -> Nest:
        if kind is type(None):
            return None
        return kind(static, parts) if kind is collections.defaultdict else kind(parts)

    def register(self, kind: type, names: tuple[str, ...], static: tuple[str, ...]) -> None:
        """Nothing is registered with Python, which takes no containers apart."""

    def register_static(self, kind: type) -> None:
        """Nothing is registered with Python, which compiles no functions."""


@dataclasses.dataclass(frozen=True)
class Fields:
    """The fields of a record.

    Attributes:
        parts: the names of those that are parts.
        static: the name of what it has beside them, `spec`, if anything.
    """

    parts: tuple[str, ...]
    static: tuple[str, ...]


RECORDS: dict[type, Fields] = {}
"""The classes that are containers whatever library is in use."""
# The classes that describe values, without parts: those of specs.
STATIC: list[type] = []

# Of containers that not every content makes one of, why one of NumPy's arrays, read from a file, is none, or None.
RULES: dict[type, Problem] = {}


def add_rule(kind: type, problem: Problem) -> None:
    """Have what is read from files refused where it is none of its kind; its parts, and its spec, may be anything."""
    RULES[kind] = problem


def register_record(kind: type, names: tuple[str, ...]) -> None:
    """Let a dataclass be a container, of this library and of those that backends have brought or will bring.

    Args:
        kind: the class. What it has beside the parts is a field `spec`, if anything.
        names: the fields that are parts.
    """
    static = tuple(field.name for field in dataclasses.fields(kind) if field.name not in names)
    RECORDS[kind] = Fields(names, static)
    for library in LIBRARIES.values():
        library.register(kind, names, static)


def register_static(kind: type) -> None:
    """Let a description, which is a part of records and can be hashed, be an argument of compiled functions too."""
    STATIC.append(kind)
    for library in LIBRARIES.values():
        library.register_static(kind)


def add_library(name: str, library: Library) -> None:
    """Have nests take containers of a library, and the library take records, those of today and of later."""
    LIBRARIES[name] = library
    for kind, fields in RECORDS.items():
        library.register(kind, fields.parts, fields.static)
    for described in STATIC:
        library.register_static(described)


@dataclass_transform(eq_default=False, frozen_default=True)
def record(kind: type[T]) -> type[T]:
    """Make a class of annotated fields a record: a frozen dataclass that is a pytree of arrays on both backends.

    Fields may be arrays, nests of arrays, further records, or None, which has no leaves. Records are items of buffers,
    cross between the backends, and are saved and loaded like any nest. They compare and hash by identity.

    Args:
        kind: a class at the top level of a module, so that files can name it.

    Raises:
        TypeError: if the class has `__post_init__`: `jit` and `vmap` make records of what stands for arrays, which
            would fail the checks of a constructor.

    Example:
        >>> import numpy as np
        >>> @record
        ... class Reply:
        ...     tokens: object
        ...     score: object = None
        >>> Reply(np.zeros((4, 8), np.int32))
        Reply(tokens=int32 [4, 8], score=None)
    """
    if hasattr(kind, "__post_init__"):
        raise TypeError(
            f"record: {kind.__name__} has __post_init__, which would be given what stands for arrays while they are "
            f"traced; check in a function that makes the record"
        )
    cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(kind)
    if "__repr__" not in vars(kind):
        cls.__repr__ = _shown_record  # type: ignore[method-assign]  # of any record
    names = tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]  # it is a dataclass
    register_record(cls, names)
    return cls


def _shown_record(self: Nest) -> str:
    fields = [f"{field.name}={_shown_part(getattr(self, field.name))}" for field in dataclasses.fields(self)]
    return f"{type(self).__name__}({', '.join(fields)})"


def _shown_part(field: object) -> str:
    if not (hasattr(field, "shape") and hasattr(field, "dtype")):
        return repr(field)
    return f"{str(field.dtype).removeprefix('torch.')} {list(field.shape)}"


class _Records:
    """The dataclasses of this library that hold arrays and a spec: the same, whatever backend is in use."""

    def apart(self, x: object) -> Apart | None:
        fields = RECORDS.get(type(x))
        return None if fields is None else Apart(fields.parts, *self.parts(x))

    def parts(self, x: Nest) -> tuple[Sequence[Nest], Static]:
        fields = RECORDS[type(x)]
        return [getattr(x, name) for name in fields.parts], x.spec if fields.static else None

    def together(self, kind: type, static: Static, names: tuple[str, ...], parts: Mapping[str, Nest]) -> Nest:
        return of_fields(kind, {**parts, "spec": static} if RECORDS[kind].static else parts)

    def register(self, kind: type, names: tuple[str, ...], static: tuple[str, ...]) -> None:
        """Nothing is left to do: `RECORDS` has them already."""

    def register_static(self, kind: type) -> None:
        """Nothing is to be done: descriptions have no parts."""


PYTHON = "python"
# The libraries by name; the backends add theirs, by `add_library`.
LIBRARIES: dict[str, Library] = {PYTHON: _Collections(), "functional_rb": _Records()}


@dataclasses.dataclass(frozen=True)
class Registered:
    """A kind of container, as somebody has registered it: together with its parts it makes up a value.

    Attributes:
        type: the class.
        static: what makes it up besides the parts, such as fields that are no leaves. It is part of a spec, and so it
            can be hashed.
        library: the name of the library that takes it apart and puts it together.
        names: the names of the parts, as the library has them.
    """

    type: type
    static: Static
    library: str
    names: tuple[str, ...] = dataclasses.field(compare=False)

    def __post_init__(self) -> None:
        try:
            hash(self.static)
        except TypeError:
            raise TypeError(
                f"{self.type.__name__}: expected static fields that can be hashed, as they are part of the spec, got "
                f"{self.static!r:.200}; make them tuples, say, or leaves"
            ) from None

    @property
    def __name__(self) -> str:
        """The name of the class, as specs show it."""
        return self.type.__name__

    def parts(self, x: Nest, path: str) -> dict[str, Nest] | None:
        """The parts of a value of this kind, by name; None if it is of another."""
        if type(x) is not self.type or self.library not in LIBRARIES or self.library == PYTHON:
            return None
        parts, static = LIBRARIES[self.library].parts(x)
        if len(parts) != len(self.names):
            return None
        if static != self.static:
            raise ValueError(
                f"leaf {path!r}: expected {self.type.__name__} with the static fields {self.static!r:.200}, got "
                f"{static!r:.200}; they are part of the spec: make a buffer for each, or leaves of what varies"
            )
        return dict(zip(self.names, parts, strict=True))

    def together(self, parts: Mapping[str, Nest]) -> Nest:
        """A value made of its parts; a dict of them where the library is not in use."""
        library = LIBRARIES.get(self.library)
        return dict(parts) if library is None else library.together(self.type, self.static, self.names, parts)


def apart(x: object) -> tuple[Registered, Sequence[Nest]] | None:
    """The kind of a container, and its parts; None for what no library has registered, or what needs no library.

    Dicts, tuples, lists, NamedTuples and the containers of tensordict need none.
    """
    kind = type(x)
    if kind in _OWN or (isinstance(x, tuple) and hasattr(x, "_fields")) or hasattr(kind, "_is_tensorclass"):
        return None
    if isinstance(x, Mapping) and hasattr(x, "batch_size"):
        return None
    for name, library in LIBRARIES.items():
        container = library.apart(x)
        if container is not None:
            return Registered(kind, container.static, name, tuple(container.names)), container.parts
    return None


_OWN = frozenset({dict, tuple, list})


def names_of(keys: Sequence[object]) -> tuple[str, ...]:
    """The names of parts, from their keys in jax or torch; their positions where the keys are not distinct."""
    names = tuple(map(_name_of, keys))
    return names if len(set(names)) == len(names) else tuple(str(k) for k in range(len(names)))


def _name_of(key: object) -> str:
    names = (getattr(key, attribute) for attribute in ("key", "name", "idx") if hasattr(key, attribute))
    return str(next(names, key))


def check_depth(depth: int) -> None:
    """Refuse containers so deep in each other that Python's stack would end somewhere in the middle of them."""
    if depth > DEEPEST:
        raise ValueError(
            f"expected containers at most {DEEPEST} deep in each other, got more; name the leaves of the inner ones "
            f"by their paths, in one dict"
        )


def of_fields(kind: type, fields: Mapping[str, object]) -> object:
    """A dataclass made of its fields as a copy or a pickle makes one, without a call of `__init__` or `__post_init__`.

    These expect the fields' own values, and would refuse or change specs, or a batch of items, in their place.
    """
    instance: object = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(instance, name, value)
    return instance
