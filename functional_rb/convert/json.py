"""Specs as JSON texts. Reading a text neither imports nor runs anything that it names.

A value is written so that its type comes back:

    null, true, 3, 3.0, "text"                          as they are; infinities as {"type": "float", "value": "inf"}
    [...]                                               a tuple
    {"type": "list", "parts": [...]}                    a list
    {"type": "dict", "parts": {...}}                    a dict
    {"type": "Bounded", "low": -1.0, ...}               a class of this library, with the arguments that make it
    {"type": "namedtuple", "name": ..., "parts": {...}} a user's NamedTuple
    {"type": "dataclass", "name": ..., "parts": {...}}  a user's dataclass
    {"type": "function", "name": ...}                   a user's function
    {"type": "partial", "function": ..., ...}           a functools.partial of one, with its args and keywords

Users' types and functions are given by name, "module:qualname".
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from functional_rb.base import extras, functions, strict_json
from functional_rb.base.containers import RECORDS, Registered, apart, of_fields
from functional_rb.base.nest import SEVERAL, Keys
from functional_rb.base.strict_json import Json
from functional_rb.convert.json_names import CLASSES, class_named, container_named
from functional_rb.specs import Composite, Spec, freeze
from functional_rb.specs.base import SpecNest
from functional_rb.specs.values import Outline

FORMAT: Final = "functional_rb.spec"
VERSION: Final = 1

Path = tuple[str | int, ...]
T = TypeVar("T")


class KnownError(ValueError):
    """The things given as `known` are not those that a text names. The text may be sound."""


class OtherVersionError(ValueError):
    """A text is of another version of the library, or names something that only a newer one has."""


def to_json(spec: object) -> str:
    """A spec as JSON text.

    Equal specs whose names are in the same order give the same text, character by character.

    Args:
        spec: a `BufferSpec`, a spec of items, or a nest of these (dicts, tuples, lists, NamedTuples, dataclasses).

    Returns:
        Text of ASCII characters. Users' classes, and a reward function, are in it by name alone.

    Raises:
        TypeError: for a leaf that is no spec, naming its path.
        ValueError: for a class or function that has no name of its own (a lambda, say), naming its path.

    Example:
        >>> print(to_json(frb.Bounded(-1, 1, (2,))).partition('"spec": ')[2])
        {"type": "Bounded", "low": -1.0, "high": 1.0, "shape": [2], "dtype": "float32"}}
    """
    _check_leaves(spec, "to_json")
    try:
        return json.dumps({"format": FORMAT, "version": VERSION, "spec": _encoded(spec, ())}, allow_nan=False)
    except RecursionError:
        raise ValueError("to_json: the nest is too deep for JSON; flatten it") from None


def from_json(text: str | bytes, known: Iterable[object] = ()) -> SpecNest:
    """The spec of a JSON text.

    Nothing that the text names is imported, and nothing is run but the constructors of this library's classes and of
    those given as known: a text from anywhere may be read.

    Args:
        text: what `to_json` returned.
        known: the users' classes and functions that the text may name: NamedTuples, dataclasses, containers
            (`TensorDict`, tensorclasses), reward functions. Records (`frb.text.record`) are known anyway.

    Returns:
        A spec equal to the one that was written, of the same types throughout.

    Raises:
        ValueError: if the text is malformed, of another version, or names something that is not among `known`; it
            says which.

    Example:
        >>> from_json(to_json({"name": frb.specs.Text(8), "pair": (frb.Composite(), [frb.specs.Text(3)])}))
        {'name': Text(8), 'pair': (Composite({}), [Text(3)])}
    """
    by_name: dict[str, list[object]] = {}
    for thing in known:
        # A text names the function of a partial, and has its arguments.
        named = thing.func if isinstance(thing, functools.partial) else thing
        try:
            by_name.setdefault(_name_of(named, ("known",), "from_json"), []).append(named)
        except ValueError as error:
            raise KnownError(str(error)) from None
    try:
        spec = _Reader(by_name).read(_payload(text), ())
        _check_leaves(spec, "from_json")
        return spec
    except TypeError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("from_json: the text is nested too deeply for a spec") from None


def arguments_of(kind: type) -> tuple[str, ...]:
    """The names of the arguments that make an instance of a class of this library."""
    if issubclass(kind, Spec):
        return kind.arguments
    return tuple(field.name for field in dataclasses.fields(kind) if field.init)  # type: ignore[arg-type]  # all are


# Whether a text may leave an argument out, as those do that were written before there was such a one.
def _has_default(kind: type, name: str) -> bool:
    if issubclass(kind, Spec):
        return False
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # all are
    return fields[name].default is not dataclasses.MISSING or fields[name].default_factory is not dataclasses.MISSING


def _check_leaves(spec: object, who: str) -> None:
    name = type(spec).__name__
    if isinstance(spec, Spec) or class_named(name) is not type(spec):
        Outline.of(spec, who)
    elif name != "BufferSpec":
        raise TypeError(f"{who}: expected a spec such as frb.Unbounded(shape), got {spec!r:.80}")


def _encoded(value: object, path: Path) -> object:
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        value = value.item()
    # By exact types: an instance of a class that extends one of these would come back as a plain one.
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        if math.isnan(value):
            raise ValueError(f"to_json: {_shown(path)}: expected a number, got NaN")
        # Equal specs have equal texts, and -0.0 equals 0.0.
        return value + 0.0 if math.isfinite(value) else {"type": "float", "value": "inf" if value > 0 else "-inf"}
    # Specs mostly hold tuples, so these are JSON's own arrays, and a list is an object with a "type".
    if isinstance(value, tuple | list) and type(value) in (tuple, list, Keys):
        parts = [_encoded(child, (*path, i)) for i, child in enumerate(value)]
        return {"type": "list", "parts": parts} if type(value) is list else parts
    if type(value) is dict:
        return {"type": "dict", "parts": _encoded_parts(value, path)}
    if isinstance(value, Composite):
        return _encoded_composite(value, path)
    name = type(value).__name__
    if class_named(name) is type(value):
        arguments = {k: getattr(value, k) for k in arguments_of(type(value))}
        return {"type": name, **_encoded_parts(arguments, path)}
    return _encoded_foreign(value, path)


def _encoded_parts(parts: Mapping[Any, object], path: Path) -> dict[str, object]:
    for key in parts:
        if not isinstance(key, str):
            raise TypeError(f"to_json: {_shown(path)}: expected names that are strings, got {key!r}; rename it")
    return {key: _encoded(child, (*path, key)) for key, child in parts.items()}


def _encoded_composite(spec: Composite, path: Path) -> dict[str, object]:
    encoded: dict[str, object] = {"type": "Composite", "parts": _encoded_parts(spec.parts, path)}
    encoded["batch_shape"] = list(spec.batch_shape)
    kind, _, names, device = spec._like
    if isinstance(kind, Registered):
        name = _name_of(kind.type, path, "to_json")
        try:
            static = _encoded_static(kind.static, path)
        except (TypeError, ValueError) as error:
            what = f"it is a static field of {name}: make it a leaf, or of numbers and texts"
            raise type(error)(f"{error}; {what}") from None
        encoded["container"] = {"class": name, "library": kind.library, "names": list(kind.names), "static": static}
    elif kind is not None:
        encoded["container"] = _name_of(kind, path, "to_json")
    if names:
        encoded["names"] = list(names)
    if device:
        encoded["device"] = True
    return encoded


def _encoded_static(value: object, path: Path) -> object:
    """The static fields of a registered container, among which there may be classes."""
    if type(value) is tuple:
        return [_encoded_static(child, path) for child in value]
    return {"type": "function", "name": _name_of(value, path, "to_json")} if callable(value) else _encoded(value, path)


def _encoded_foreign(value: object, path: Path) -> dict[str, object]:
    if apart(value) is not None:
        return _encoded_composite(freeze(value), path)
    kind, names = "", tuple[str, ...]()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        kind, names = "namedtuple", value._fields
    elif dataclasses.is_dataclass(value) and not isinstance(value, Spec | type):
        kind, names = "dataclass", tuple(field.name for field in dataclasses.fields(value))
    if kind:
        parts = _encoded_parts({name: getattr(value, name) for name in names}, path)
        return {"type": kind, "name": _name_of(type(value), path, "to_json"), "parts": parts}
    if isinstance(value, functools.partial):
        call = {"function": value.func, "args": tuple(value.args), "keywords": dict(value.keywords)}
        return {"type": "partial", **_encoded_parts(call, path)}
    if callable(value) and not isinstance(value, type):
        return {"type": "function", "name": _name_of(value, path, "to_json")}
    raise TypeError(
        f"to_json: {_shown(path)}: {type(value).__name__} has no form in JSON, got {value!r:.80}; use classes of "
        f"functional_rb, NamedTuples, dataclasses and functions"
    )


def _name_of(thing: object, path: Path, who: str) -> str:
    """The name by which a text gives a user's class or function."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str) and callable(thing)) or "<lambda>" in name:
        raise ValueError(
            f"{who}: {_shown(path)}: expected a class or function with a name, as text can tell it by nothing else, "
            f"got {thing!r:.80}; {functions.REMEDY}"
        )
    return f"{module}:{name}"


def _payload(text: str | bytes) -> object:
    """The spec inside the envelope, after a check of format and version."""
    try:
        whole = strict_json.parse(text)
    except ValueError as error:
        raise ValueError(f"from_json: expected JSON text, as to_json writes it: {error}") from None
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise ValueError(f'from_json: expected {{"format": "{FORMAT}", ...}}, as to_json writes it, got {whole!r:.80}')
    version = whole.get("version")
    if version != VERSION or type(version) is not int:
        raise OtherVersionError(
            f"from_json: expected format version {VERSION}, got {version!r}; it was written by another version of "
            f"functional_rb, read it with that one"
        )
    if set(whole) != {"format", "version", "spec"}:
        raise ValueError(f"from_json: expected format, version and spec, got {list(whole)}")
    return whole["spec"]


class _Reader:
    """Makes values of parsed JSON, with the users' classes and functions at hand."""

    def __init__(self, known: dict[str, list[object]]) -> None:
        self.known = known
        # By the type of an object: what reads it, and the names that it has; after a "?" those that may be missing.
        self.kinds: dict[str, tuple[Callable[[Json, Path], object], str]] = {
            "float": (self._float, "value"),
            "list": (self._list, "parts"),
            "dict": (self._named, "parts"),
            "namedtuple": (self._namedtuple, "name parts"),
            "dataclass": (self._dataclass, "name parts"),
            "function": (lambda data, path: self._known(data["name"]), "name"),
            "partial": (self._partial, "function args keywords"),
            "Composite": (self._composite, "parts batch_shape ?container ?names ?device"),
        }

    def read(self, data: object, path: Path) -> Any:
        """The value that a text says at a path; errors name it, and those of its parts name theirs."""
        try:
            return self._value(data, path)
        except ValueError as error:
            if str(error).startswith("from_json: "):
                raise
            kind = type(error) if isinstance(error, KnownError | OtherVersionError) else ValueError
            raise kind(f"from_json: {_shown(path)}: {error}") from None

    def _value(self, data: object, path: Path) -> Any:
        if isinstance(data, list):
            return tuple(self.read(child, (*path, i)) for i, child in enumerate(data))
        if not isinstance(data, dict):
            return data
        kind = data.get("type")
        if not isinstance(kind, str):
            raise ValueError(f'expected an object with a "type", got the names {list(data)}')
        if kind in self.kinds:
            read, names = self.kinds[kind]
            self._check(data, names.split())
            return read(data, path)
        ours = class_named(kind)
        if ours is None:
            raise OtherVersionError(f"there is no type {kind!r}; expected one of {[*CLASSES]}")
        self._check(data, [f"?{name}" if _has_default(ours, name) else name for name in arguments_of(ours)])
        arguments = {name: self.read(child, (*path, name)) for name, child in data.items() if name != "type"}
        # Of several keys an array has one each; elsewhere it may be a path.
        several = [name for name in SEVERAL & arguments.keys() if isinstance(arguments[name], tuple)]
        arguments |= {name: list(arguments[name]) for name in several}
        return _made(ours, arguments)

    def _check(self, data: Json, names: Sequence[str]) -> None:
        needed = ["type", *(name for name in names if not name.startswith("?"))]
        if not set(needed) <= set(data) <= {"type", *(name.removeprefix("?") for name in names)}:
            raise ValueError(f"expected {data['type']} with {needed}, got the names {list(data)}")

    def _float(self, data: Json, path: Path) -> float:
        if data["value"] not in ("inf", "-inf"):
            raise ValueError(f"expected 'inf' or '-inf', got {data['value']!r:.80}")
        return float(data["value"])

    def _list(self, data: Json, path: Path) -> list[object]:
        return list(self.read(self._instance(data["parts"], list), path))

    def _named(self, data: Json, path: Path) -> dict[str, Any]:
        parts = self._instance(data["parts"], dict)
        return {name: self.read(child, (*path, name)) for name, child in parts.items()}

    def _composite(self, data: Json, path: Path) -> object:
        arguments = {"parts": self._named(data, path), "batch_shape": self.read(data["batch_shape"], path)}
        arguments |= {name: self.read(data[name], path) for name in ("names", "device") if name in data}
        if "container" not in data:
            # As `Composite` has parts by its own keywords, too.
            return _made(lambda parts, batch_shape: Composite(parts, batch_shape=batch_shape), arguments)
        if isinstance(data["container"], dict):
            container = self._registered(data["container"], path)
            if set(container.names) != set(arguments["parts"]):
                raise ValueError(f"expected the parts {container.names}, got {[*data['parts']]}")
            return _made(Composite.like, {"container": container, **arguments})
        kind = self._known_class(data["container"])
        return _made(Composite.like, {"container": kind, **arguments}, KnownError)

    def _registered(self, data: Json, path: Path) -> Registered:
        if set(data) != {"class", "library", "names", "static"}:
            raise ValueError(f"expected class, library, names and static of a container, got {data!r:.80}")
        kind, names = self._known_class(data["class"]), self.read(data["names"], path)
        if not isinstance(data["library"], str) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"expected names as texts, got {data!r:.80}")
        if kind in RECORDS:
            # Fields with defaults may have been added to the class since the text was written.
            fields = RECORDS[kind].parts
            if not {name for name in fields if not hasattr(kind, name)} <= set(names) <= set(fields):
                raise KnownError(
                    f"expected a record of the fields {list(names)}, got {kind!r:.80} of "
                    f"{list(fields)}; give fields that came later a default, and leave the others as they were"
                )
        static = self.read(data["static"], path)
        return _made(Registered, {"type": kind, "static": static, "library": data["library"], "names": names})

    def _namedtuple(self, data: Json, path: Path) -> object:
        kind, parts = self._known(data["name"]), self._named(data, path)
        if not (isinstance(kind, type) and issubclass(kind, tuple) and set(getattr(kind, "_fields", ())) == set(parts)):
            raise KnownError(f"expected a NamedTuple of {list(parts)}, got {kind!r:.80}")
        return _made(kind, parts, KnownError)

    def _dataclass(self, data: Json, path: Path) -> object:
        kind, parts = self._known(data["name"]), self._named(data, path)
        fields = dataclasses.fields(kind) if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None
        if fields is None or {field.name for field in fields} != set(parts):
            raise KnownError(f"expected a dataclass of {list(parts)}, got {kind!r:.80}")
        # Without a call of `__init__`, which may refuse specs in the place of its own values.
        return of_fields(kind, parts)

    def _partial(self, data: Json, path: Path) -> object:
        function, args, keywords = (self.read(data[name], (*path, name)) for name in ("function", "args", "keywords"))
        if not (callable(function) and isinstance(args, tuple) and isinstance(keywords, dict)):
            raise ValueError(f"expected a function and its arguments, got {data!r:.80}")
        return functools.partial(function, *args, **keywords)

    def _known(self, name: object) -> Any:
        things = self._things_named(name) if isinstance(name, str) else []
        # The same class may be given twice; two that have one name are a question of what was meant.
        if any(other is not things[0] for other in things[1:]):
            raise KnownError(f"known has several things named {name!r}; give the one meant")
        if not things:
            module, _, short = str(name).rpartition(":")
            raise KnownError(
                f"the text names {name!r}, which is not among those known, "
                f"{list(self.known)}; write from_json(text, known=({short},)){extras.needed_first(module)}"
            )
        return things[0]

    def _known_class(self, name: object) -> type:
        kind = self._known(name)
        if not isinstance(kind, type):
            raise KnownError(f"expected a class, got {kind!r:.80}")
        return kind

    def _things_named(self, name: str) -> Sequence[object]:
        ours = container_named(name)
        if ours is not None and name not in self.known:
            return [ours]
        # To be a record is to be known, as putting one together runs nothing; of those of a name the newest counts, as
        # where a class was written again in a notebook.
        records = [kind for kind in RECORDS if f"{kind.__module__}:{kind.__qualname__}" == name][-1:]
        return self.known.get(name, records)

    def _instance(self, value: object, kind: type) -> Any:
        if not isinstance(value, kind):
            raise ValueError(f"expected parts as {'an array' if kind is list else 'an object'}, got {value!r:.80}")
        return value


def _made(kind: Callable[..., T], arguments: dict[str, Any], wrong: type[ValueError] = ValueError) -> T:
    """Call a constructor with arguments of a text, which may be anything."""
    try:
        return kind(**arguments)
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        raise wrong(str(error)) from None


def _shown(path: Path) -> str:
    return "/".join(map(str, path)) if path else "the spec"
