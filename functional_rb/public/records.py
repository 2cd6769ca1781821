"""Records, and any nest of arrays, along the leading axes that their leaves share: indexed, joined, taken apart, named.

`jax.tree.map`, or `torch.utils._pytree.tree_map`, does the same for a function of one's own: records are pytrees.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from functional_rb.base import dtypes, nest
from functional_rb.base.arrays import BackendArray, Nest
from functional_rb.base.description import Described
from functional_rb.base.errors import consumed
from functional_rb.base.nest import Structure
from functional_rb.buffer.spec import BufferSpec
from functional_rb.buffer.state import State, StateHolder
from functional_rb.lib import A, Lib
from functional_rb.mixture.value import Mixture
from functional_rb.ops.protocol import Array
from functional_rb.public.structures import called_on
from functional_rb.specs import Unbounded

T = TypeVar("T")
NAMES: Final = ("at", "batch_shape", "cat", "stack", "unbind")
"""The public functions."""


def batch_shape(data: Nest) -> tuple[int, ...]:
    """The leading axes that all leaves share.

    Args:
        data: a record, or any nest of arrays.

    Returns:
        Their sizes: as many as are the same in all leaves. Fields that are None do not count.

    Raises:
        TypeError: for a leaf that is no array, naming it, and for a nest without any.

    Example:
        >>> texts = frb.text.RewardData(np.zeros((2, 8), np.int32), np.ones((2, 8), bool), end_scores=np.zeros(2))
        >>> rb.records.batch_shape(texts)
        (2,)
    """
    return _shared(_apart(data, "batch_shape")[0])


def at(lib: Lib[A], data: T, index: object) -> T:
    """Some of a record's rows, of every leaf the same.

    Args:
        data: a record, or any nest of arrays.
        index: what stands between the brackets of an array, for the shared leading axes: a number, a slice, an array of
            whole numbers or truth values, or a tuple of these.

    Returns:
        The same nest of the leaves' rows; arrays index as those of the backend do.

    Raises:
        IndexError: for a number that no row has, naming the leaf.
        TypeError: for a leaf that is no array, naming it.

    Example:
        >>> pairs = {"tokens": np.arange(6).reshape(3, 2), "score": np.arange(3.0)}
        >>> rb.records.at(pairs, 1)["tokens"].tolist(), rb.records.at(pairs, slice(1, 3))["score"].tolist()
        ([2, 3], [1.0, 2.0])
    """
    leaves, structure = _apart(data, "at")
    parts = index if isinstance(index, tuple) else (index,)
    axes = sum(getattr(part, "ndim", 1) if str(getattr(part, "dtype", "")).endswith("bool") else 1 for part in parts)
    for name, leaf in zip(_names(structure), leaves, strict=True):
        numbers = [(k, part) for k, part in enumerate(parts) if type(part) is int]
        if axes > leaf.ndim or any(not -leaf.shape[k] <= part < leaf.shape[k] for k, part in numbers):
            raise IndexError(
                f"at: leaf {name!r}: {index!r:.80} is out of range for the shape {tuple(leaf.shape)}; index the "
                f"leading axes that all leaves share, {batch_shape(data)}"
            )
    return _together(lib, structure, [leaf[index] for leaf in leaves])


def cat(lib: Lib[A], many: Iterable[T], axis: int = 0) -> T:
    """Records joined along a leading axis.

    Args:
        many: records, or any nests of arrays, with the same leaves.
        axis: counted from the first.

    Returns:
        One nest, whose leaves are those of the given ones one after another.

    Raises:
        ValueError: if there is none, or if leaves or shapes differ, naming the leaf.
        TypeError: for dtypes that differ, naming the leaf.

    Example:
        >>> rb.records.cat([(np.zeros(2),), (np.ones(1),)])[0].tolist()
        [0.0, 0.0, 1.0]
    """
    structure, columns = _columns(lib, many, axis, "cat")
    return _together(lib, structure, [lib.ops.concat(column, axis) for column in columns])


def stack(lib: Lib[A], many: Iterable[T], axis: int = 0) -> T:
    """Records side by side along a new axis.

    Args:
        many: records, or any nests of arrays, with the same leaves and shapes.
        axis: where the new axis goes, counted from the first.

    Returns:
        One nest, leaves [..., n, ...].

    Raises:
        ValueError: if there is none, or if leaves or shapes differ, naming the leaf.
        TypeError: for dtypes that differ, naming the leaf.

    Example:
        >>> rb.records.stack([(np.zeros(2),), (np.ones(2),)])[0].tolist()
        [[0.0, 0.0], [1.0, 1.0]]
    """
    structure, columns = _columns(lib, many, axis, "stack")
    new = (*(slice(None),) * axis, None)
    return _together(lib, structure, [lib.ops.concat([x[new] for x in column], axis) for column in columns])


def unbind(lib: Lib[A], data: T, axis: int = 0) -> tuple[T, ...]:
    """The records along a leading axis, one by one: the inverse of `stack`.

    Args:
        data: a record, or any nest of arrays.
        axis: counted from the first; one that all leaves share.

    Returns:
        One nest for each, without that axis.

    Raises:
        ValueError: for an axis that the leaves do not share.
        TypeError: for a leaf that is no array, naming it.

    Example:
        >>> [one["x"].tolist() for one in rb.records.unbind({"x": np.arange(4).reshape(2, 2)}, axis=1)]
        [[0, 2], [1, 3]]
    """
    shared = batch_shape(data)
    if not 0 <= axis < len(shared):
        raise ValueError(
            f"unbind: expected axis as one of the {len(shared)} that all leaves share, {shared}, got {axis}"
        )
    return tuple(at(lib, data, (*(slice(None),) * axis, k)) for k in range(shared[axis]))


def is_record(data: object) -> bool:
    """Whether `rb.state_dict` names the leaves of what it was given, as it is no buffer, nor the spec of one."""
    return not isinstance(data, State | Mixture | BufferSpec | StateHolder) and nest.parts_of(data) is not None


def state_dict(lib: Lib[A], data: object) -> dict[str, BackendArray]:
    """What `rb.state_dict` makes of a record: its arrays by their paths, not copied."""
    for part in _described(data):
        called_on(part, "check")(lib, part, "state_dict")
    leaves, structure = _apart(data, "state_dict")
    return dict(zip(_names(structure), leaves, strict=True))


def load_state_dict(lib: Lib[A], like: T, given: object, device: object = None) -> T:
    """What `rb.load_state_dict` makes of a record's dict, and of a record of the same leaves, shapes and dtypes."""
    if device is not None:
        raise TypeError(
            "load_state_dict: device is for a buffer's spec; a record is loaded where its arrays are: leave it out"
        )
    for part in _described(like):  # whose leaves may tell shapes and dtypes alone, and be no arrays of the backend
        if any(getattr(part, field.name) is None for field in dataclasses.fields(cast("Any", part))):
            raise consumed()
    if not isinstance(given, Mapping):
        raise TypeError(f"load_state_dict: expected a dict from rb.state_dict, got {type(given).__name__}")
    leaves, structure = _apart(like, "load_state_dict")
    names = _names(structure)
    if set(names) != set(given):
        raise ValueError(
            f"load_state_dict: expected the names {names}, got {list(given)}; give a dict of the same record"
        )
    taken = []
    for name, leaf in zip(names, leaves, strict=True):
        array = lib.convert(given[name], _spec(leaf), name)
        if tuple(array.shape) != tuple(leaf.shape):
            raise ValueError(
                f"load_state_dict: leaf {name!r}: expected the shape {tuple(leaf.shape)}, got {tuple(array.shape)}; "
                f"give a dict of the same record"
            )
        taken.append(array)
    return _together(lib, structure, taken)


def _described(data: object) -> list[Described]:
    return [x for x in nest.flatten(data, lambda x: isinstance(x, Described))[0] if isinstance(x, Described)]


def _apart(data: object, who: str) -> tuple[list[Array], Structure]:
    leaves, structure = nest.flatten(data, lambda x: isinstance(x, State) or _is_array(x))
    if not leaves:
        raise TypeError(f"{who}: expected a record or a nest of arrays, got {type(data).__name__} without any array")
    for name, leaf in zip(_names(structure), leaves, strict=True):
        _check_array(leaf, name, who)
    return leaves, structure


def _check_array(leaf: object, name: str, who: str) -> None:
    if not _is_array(leaf) or isinstance(leaf, State):
        raise TypeError(f"{who}: leaf {name!r}: expected an array, got {type(leaf).__name__}")


def _is_array(x: object) -> bool:
    return hasattr(x, "dtype") and hasattr(x, "shape") and not hasattr(x, "keys")


def _names(structure: Structure) -> list[str]:
    return [nest.show(path) for path in structure.paths]


# The structure of several nests, and for each of its leaves those of all nests.
def _columns(lib: Lib[A], many: Iterable[object], axis: int, who: str) -> tuple[Structure, list[list[Array]]]:
    nests = list(many)
    if not nests:
        raise ValueError(f"{who}: expected one record or more, got none")
    first, structure = _apart(nests[0], who)
    columns = list(zip(first, *(nest.flatten_as(structure, other) for other in nests[1:]), strict=True))
    skip = None if who == "stack" else axis
    for name, column in zip(_names(structure), columns, strict=True):
        for x in column:
            _check_array(x, name, who)
        kinds = {dtypes.shown(x.dtype) for x in column}
        if len(kinds) > 1:
            raise TypeError(f"{who}: leaf {name!r}: expected one dtype, got {sorted(kinds)}; convert them first")
        shapes = {tuple(size for k, size in enumerate(x.shape) if k != skip) for x in column}
        if len(shapes) > 1 or len({x.ndim for x in column}) > 1:
            raise ValueError(
                f"{who}: leaf {name!r}: the shapes {[tuple(x.shape) for x in column]!r:.120} do not fit together along "
                f"axis {axis}; pad them to one length first"
            )
        if not 0 <= axis < column[0].ndim + (who == "stack"):
            raise ValueError(f"{who}: leaf {name!r} of shape {tuple(column[0].shape)} has no axis {axis}")
    # Arrays of NumPy become those of the backend, and those of the other backend are refused.
    named = zip(_names(structure), columns, strict=True)
    return structure, [[lib.convert(leaf, _spec(leaf), name) for leaf in column] for name, column in named]


def _spec(leaf: BackendArray) -> Unbounded:
    return Unbounded(tuple(leaf.shape), dtypes.shown(leaf.dtype))


# The sizes of the leading axes that are the same in all leaves.
def _shared(leaves: Sequence[Array]) -> tuple[int, ...]:
    together = zip(*(leaf.shape for leaf in leaves), strict=False)
    return tuple(int(sizes[0]) for sizes in itertools.takewhile(lambda sizes: len(set(sizes)) == 1, together))


def _together(lib: Lib[A], structure: Structure, leaves: Sequence[Array]) -> Nest:
    return nest.unflatten(structure, leaves, lib.build_mapping, _shared(leaves))
