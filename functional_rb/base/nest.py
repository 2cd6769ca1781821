"""Nested containers of leaves, taken apart and put together again.

The `Structure` of a nest is hashable and has everything but the leaves. Leaves are found by their path of keys, never
by their order, because JAX sorts the keys of a dict and torch does not.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from functional_rb.base.arrays import Nest
from functional_rb.base.containers import Registered, apart, check_depth, of_fields
from functional_rb.base.object_arrays import array_of_none, is_non_tensor

Path = tuple[str | int, ...]
# Makes a mapping of a type (None: a dict) from its parts and the batch shape they share.
BuildMapping = Callable[[Any, dict[str, Nest], tuple[int, ...]], Nest]


@dataclasses.dataclass(frozen=True)
class Structure:
    """Which containers a nest has, and under which keys.

    Attributes:
        kind: what sort of container this is, or "leaf".
        type: the class to build where the kind alone does not say, or a description of it (`specs.composite.Container`,
            `containers.Registered`); None for a dict, tuple, list or leaf.
        keys: names, field names or positions.
        children: the structures under those keys.
        batch_shape: of a `Composite`, the leading axes that its leaves share, behind those that come with a batch.
        given: the order in which names were given and come back, as positions among the keys; structures that differ
            in nothing else are equal.
        flat: whether all children are leaves, the usual case, which is read without recursion.
        named: the names with their positions among the keys, in the order in which they were given.
    """

    kind: Literal["leaf", "mapping", "sequence", "namedtuple", "dataclass"]
    type: Any = None
    keys: tuple[str | int, ...] = ()
    children: tuple[Structure, ...] = ()
    batch_shape: tuple[int, ...] = ()
    given: tuple[int, ...] | None = dataclasses.field(default=None, compare=False, repr=False)
    flat: bool = dataclasses.field(init=False, compare=False, repr=False)
    named: tuple[tuple[str, int], ...] = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "flat", all(child.kind == "leaf" for child in self.children))
        places = range(len(self.keys)) if self.given is None else self.given
        object.__setattr__(self, "named", tuple((str(self.keys[k]), k) for k in places))

    def sorted(self) -> Structure:
        """The same structure with its names sorted, as JAX sorts those of dicts: the order in which leaves are stored.

        What is planned for a nest then depends neither on the order in which its names were given, nor on the order of
        a class's fields, which may be another when a file is read.

        Example:
            >>> flatten({"b": 1, "a": 2}, lambda x: False)[1].sorted().keys
            ('a', 'b')
        """
        children = [child.sorted() for child in self.children]
        if self.kind in ("leaf", "sequence"):
            return dataclasses.replace(self, children=tuple(children))
        order = sorted(range(len(self.keys)), key=lambda k: str(self.keys[k]))
        keys, ordered = tuple(self.keys[k] for k in order), tuple(children[k] for k in order)
        names = [self.keys[k] for _, k in self.named]
        return dataclasses.replace(self, keys=keys, children=ordered, given=tuple(keys.index(name) for name in names))

    def as_given(self) -> Structure:
        """The same structure with its names in the order in which they were given: the inverse of `sorted`."""
        children = [child.as_given() for child in self.children]
        order = [k for _, k in self.named]
        keys, ordered = tuple(self.keys[k] for k in order), tuple(children[k] for k in order)
        return dataclasses.replace(self, keys=keys, children=ordered, given=None)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The path of every leaf, in the order of the keys."""
        return tuple(self._walk(()))

    def check_names(self, function: str) -> None:
        """Refuse mappings whose names are no strings: they would not come back as they were."""
        for key, child in zip(self.keys, self.children, strict=True):
            if self.kind == "mapping" and not isinstance(key, str):
                raise TypeError(f"{function}: expected names that are strings, got {key!r}; rename it to '{key}'")
            child.check_names(function)

    def _walk(self, prefix: Path) -> Iterator[Path]:
        if self.kind == "leaf":
            yield prefix
        for key, child in zip(self.keys, self.children, strict=True):
            yield from child._walk((*prefix, key))


LEAF = Structure("leaf")

# How users name a leaf: by its name, or by the names on the way to it.
Key = str | tuple[str | int, ...]


class Keys(tuple[Key, ...]):
    """Several keys of leaves: the list that users write, in a form that can be hashed."""

    __slots__ = ()

    def __repr__(self) -> str:
        # As users write it: a plain tuple of names would be one path.
        return repr(list(self))


# The arguments of samplers, transforms and functions of items that are several keys.
SEVERAL: Final = frozenset({"keys", "end_keys", "next_keys", "goal_keys"})


def show_key(key: Key) -> str:
    """A key as the names of leaves are shown.

    Example:
        >>> show_key(("next", "done")), show_key("done")
        ('next/done', 'done')

    Raises:
        TypeError: if it is neither a name nor a tuple of names.
    """
    if isinstance(key, str):
        return key
    untyped: Any = key  # users give anything
    if isinstance(untyped, tuple) and _are_names(untyped):
        return show(untyped)
    several = isinstance(untyped, list) and untyped and _are_names(untyped)
    remedy = f"; a list has several keys, so write {tuple(untyped)} for the path of one leaf" if several else ""
    raise TypeError(
        f"expected the key of a leaf as a name, or a tuple of the names on the way to it, got {key!r}{remedy}"
    )


def checked_keys(keys: object, field: str, who: str) -> Keys | None:
    """Keys as they are kept; a single one stands for a list of it, and None stays None.

    A tuple of names is the path of one leaf, as it is wherever one key is asked for, and a list has several keys. A
    tuple that holds tuples can be no path, and has several keys as well.

    Example:
        >>> checked_keys(("next", "done"), "keys", "me"), checked_keys(["next", "done"], "keys", "me")
        ([('next', 'done')], ['next', 'done'])

    Raises:
        TypeError: if one of them is neither a name nor a tuple of names.
        ValueError: if they are neither a key nor keys.
    """
    if keys is None or isinstance(keys, Keys):
        return keys
    if not isinstance(keys, str | tuple | list):
        raise ValueError(
            f"{who}: expected {field} as a leaf's name, the path of one as a tuple of names, or a list of such, "
            f"got {keys!r}"
        )
    one = isinstance(keys, str) or (isinstance(keys, tuple) and keys and _are_names(keys))
    try:
        return Keys(_checked_key(key) for key in ([keys] if one else keys))
    except TypeError as error:
        raise TypeError(f"{who}: {field}: {error}") from None


# A key; a path of a single name as that name.
def _checked_key(key: Any) -> Key:
    show_key(key)
    return key[0] if isinstance(key, tuple) and len(key) == 1 and isinstance(key[0], str) else key


def _are_names(parts: Sequence[object]) -> bool:
    return all(isinstance(name, str | int) for name in parts)


def position(names: tuple[str, ...], key: Key, who: str) -> int:
    """The position of the leaf that a key names, among all leaves' names."""
    name = show_key(key)
    if name not in names:
        raise ValueError(f"{who}: the item has no leaf {name!r}; name one of {names}{as_several(key, names)}")
    return names.index(name)


def positions_below(names: tuple[str, ...], key: Key) -> tuple[int, ...]:
    """The positions of the leaf that a key names, or of all leaves in the nest that it names; none if it names nothing.

    Example:
        >>> positions_below(("obs", "reward/left", "reward/right"), "reward")
        (1, 2)
    """
    name = show_key(key)
    return tuple(k for k, leaf in enumerate(names) if leaf == name or leaf.startswith(f"{name}/"))


def as_several(key: Key, names: Sequence[str]) -> str:
    """What errors add about a path that names no leaf, if each of its parts does: how to write several keys.

    Example:
        >>> as_several(("x", "y"), ("x", "y", "z"))
        "; a tuple is the path of one leaf, here 'x/y': for several leaves write the list ['x', 'y']"
    """
    starts = {name.split("/", 1)[0] for name in names} | {*names}
    if isinstance(key, str) or len(key) < 2 or not all(step in starts for step in key):
        return ""
    return f"; a tuple is the path of one leaf, here {show(key)!r}: for several leaves write the list {list(key)}"


def show(path: Path) -> str:
    """A path as errors print it.

    Example:
        >>> show(("obs", "camera", 0)), show(())
        ('obs/camera/0', 'the item')
    """
    return "/".join(str(key) for key in path) if path else "the item"


def parts_of(nest: Nest) -> tuple[Structure, list[Nest]] | None:
    """The structure of one container, without its children, and the parts that it holds; None for a leaf."""
    parts_of_spec = getattr(type(nest), "_nest_parts", None)  # specs say themselves which parts they have
    if parts_of_spec is not None:
        taken_apart: tuple[Structure, list[Nest]] | None = parts_of_spec(nest)
        return taken_apart
    if is_tensorclass(nest):
        return None if is_non_tensor(nest) else _parts_of_tensorclass(nest)
    taken = apart(nest)
    if taken is not None:
        return Structure("mapping", taken[0], taken[0].names), list(taken[1])
    # Asked before mappings: chex's dataclasses are those too.
    if dataclasses.is_dataclass(nest) and not isinstance(nest, type):
        names = tuple(field.name for field in dataclasses.fields(nest))
        return Structure("dataclass", type(nest), names), [getattr(nest, name) for name in names]
    if isinstance(nest, Mapping):
        foreign = None if type(nest) is dict or not hasattr(nest, "batch_size") else type(nest)
        # Iterating over a TensorDict goes along its batch, not its keys, and its brackets take NonTensorData apart.
        return Structure("mapping", foreign, tuple(nest.keys())), [nest.get(key) for key in nest.keys()]  # noqa: SIM118
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return Structure("namedtuple", type(nest), nest._fields), list(nest)
    if isinstance(nest, (tuple, list)):
        return Structure("sequence", type(nest), tuple(range(len(nest)))), list(nest)
    return None


def is_tensorclass(nest: Nest) -> bool:
    """Whether a value is of a tensorclass, which looks like a dataclass but has a batch shape and is built by torch."""
    return hasattr(type(nest), "_is_tensorclass")


# The fields that are set. They are read as items, because reading attributes takes NonTensorData apart.
def _parts_of_tensorclass(nest: Nest) -> tuple[Structure, list[object]]:
    values = dict(nest.items())
    names = tuple(field.name for field in dataclasses.fields(nest) if field.name in values)
    return Structure("mapping", type(nest), names), [values[name] for name in names]


def flatten(nest: Nest, is_leaf: Callable[[object], bool], depth: int = 0) -> tuple[list[Nest], Structure]:
    """Take a nest apart.

    Args:
        nest: any nest of dicts, tuples, lists, NamedTuples, dataclasses, `Composite`s, TensorDicts.
        is_leaf: says which values are leaves; asked first, because some leaves (specs) are dataclasses themselves.
        depth: how many containers the nest lies in.

    Returns:
        The leaves in the order of their keys, and the structure.

    Raises:
        ValueError: if containers lie too deep in each other.
    """
    check_depth(depth)
    parts = None if is_leaf(nest) else parts_of(nest)
    if parts is None:
        return [nest], LEAF
    structure, values = parts
    leaves = []
    children = []
    for value in values:
        below, child = flatten(value, is_leaf, depth + 1)
        leaves += below
        children.append(child)
    return leaves, dataclasses.replace(structure, children=tuple(children))


def flatten_as(structure: Structure, nest: Nest, path: Path = ()) -> list[Nest]:
    """The leaves of a nest in the order of a given structure, found by their keys.

    A dict may stand where the structure has a NamedTuple or a TensorDict, and the other way round: the keys decide.

    Raises:
        ValueError: if a key is missing or there is one too many, naming the path.
    """
    if structure.kind == "leaf":
        return [nest]
    values = _values_under(structure, nest, path)
    if structure.flat:
        return values
    leaves: list[Nest] = []
    for key, child, value in zip(structure.keys, structure.children, values, strict=True):
        if child.kind == "leaf":
            leaves.append(value)
        else:
            leaves += flatten_as(child, value, (*path, key))
    return leaves


def _values_under(structure: Structure, nest: Nest, path: Path) -> list[object]:
    keys = structure.keys
    if type(nest) is dict and len(nest) == len(keys):
        try:
            return [nest[key] for key in keys]
        except KeyError:
            pass  # the general way below finds what is missing and makes the message
    if type(nest) is structure.type and structure.kind in ("namedtuple", "dataclass"):  # at once, as is usual
        return [getattr(nest, str(key)) for key in keys]
    if isinstance(structure.type, Registered):
        registered = structure.type.parts(nest, show(path))
        if registered is not None:
            return [registered[str(key)] for key in keys]
    parts = parts_of(nest)
    got: Sequence[str | int] = () if parts is None else parts[0].keys
    by_key = {} if parts is None else dict(zip(got, parts[1], strict=True))
    if is_tensorclass(nest):
        # A field that holds objects may be unset in a batch: then each of the items has None.
        fields = {field.name for field in dataclasses.fields(nest)} - set(by_key)
        leaves = {key: child.kind == "leaf" for key, child in zip(keys, structure.children, strict=True)}
        by_key |= {key: array_of_none(nest.batch_size) if leaves[key] else None for key in keys if key in fields}
    if parts is None or set(by_key) != set(keys):
        shown = type(nest).__name__ if parts is None or nest is None else list(got)
        unset = "; a field that is None in an example is no leaf of its spec" if is_tensorclass(nest) else ""
        odd = [] if parts is None else [f"{key!r} is missing" for key in keys if key not in by_key]
        odd += [f"there is no {key!r}" for key in by_key if key not in keys]
        raise ValueError(
            f"leaf {show(path)!r}: expected the keys {list(keys)}, got {shown}; give exactly the leaves of the spec"
            f"{': ' if odd else ''}{', '.join(odd)}{unset}"
        )
    return [by_key[key] for key in keys]


def flatten_some(structure: Structure, nest: Nest) -> dict[int, object]:
    """The leaves that a nest has of those of a structure, by their position in the structure."""
    position = {path: i for i, path in enumerate(structure.paths)}
    leaves = {}
    waiting: deque[tuple[Path, Structure | None, object]] = deque([((), structure, nest)])
    while waiting:
        path, expected, value = waiting.popleft()
        if path in position:
            leaves[position[path]] = value
            continue
        parts = parts_of(value)
        if parts is None or expected is None:
            raise ValueError(
                f"leaf {show(path)!r}: no such leaf in BufferSpec.item; expected some of {[show(p) for p in position]}"
            )
        below = dict(zip(expected.keys, expected.children, strict=True))
        children = zip(parts[0].keys, parts[1], strict=True)
        waiting.extend(((*path, key), below.get(key), child) for key, child in children)
    return leaves


def plain_mapping(container: object, parts: dict[str, Nest], batch_shape: tuple[int, ...]) -> Nest:
    """What is registered is put together; other mappings, TensorDicts among them, are dicts."""
    return container.together(parts) if isinstance(container, Registered) else parts


def unflatten(
    structure: Structure,
    leaves: Sequence[Nest],
    build_mapping: BuildMapping | None = None,
    batch_shape: tuple[int, ...] = (),
) -> Nest:
    """Put leaves back into the containers of a structure.

    Args:
        structure: which containers to make.
        leaves: one for each leaf of the structure, in its order.
        build_mapping: how mappings are made, as the backend has it; None for dicts.
        batch_shape: leading axes that all the leaves share, which some mappings record.
    """
    return _build(structure, iter(leaves), build_mapping, batch_shape)


def nested(leaves: Mapping[Path, object]) -> Nest:
    """Nested dicts of what stands at each path; a single thing at () is itself.

    Example:
        >>> nested({("arm", "angle"): 1, ("arm", "speed"): 2, ("goal",): 3})
        {'arm': {'angle': 1, 'speed': 2}, 'goal': 3}
    """
    if () in leaves:
        return leaves[()]
    whole: dict[str | int, Nest] = {}
    for path, leaf in leaves.items():
        inner = whole
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = leaf
    return whole


# `unflatten`, recursively. A closure that calls itself would keep the leaves until the next garbage collection.
def _build(
    structure: Structure, remaining: Iterator[object], build_mapping: BuildMapping | None, batch_shape: tuple[int, ...]
) -> Nest:
    if structure.kind == "leaf":
        return next(remaining)
    parts = [_build(child, remaining, build_mapping, batch_shape) for child in structure.children]
    if structure.kind == "mapping":
        named = {name: parts[k] for name, k in structure.named}
        batch = (*batch_shape, *structure.batch_shape)
        return named if build_mapping is None else build_mapping(structure.type, named, batch)
    assert isinstance(structure.type, type)
    if structure.kind == "sequence":
        return structure.type(parts)
    named = {name: parts[k] for name, k in structure.named}
    return structure.type(**named) if structure.kind == "namedtuple" else of_fields(structure.type, named)
