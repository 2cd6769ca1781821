"""`rb.state_dict` and `rb.load_state_dict` of records, and of any nest of arrays: their arrays by their paths."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from functional_rb.base import dtypes, nest
from functional_rb.base.arrays import BackendArray
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


def is_record(data: object) -> bool:
    """Whether `rb.state_dict` names the leaves of what it was given, as it is no buffer, nor the spec of one."""
    return not isinstance(data, State | Mixture | BufferSpec | StateHolder) and nest.parts_of(data) is not None


def state_dict(lib: Lib[A], data: object) -> dict[str, BackendArray]:
    """What `rb.state_dict` makes of a record: its arrays by their paths, not copied."""
    for described in _described(data):
        called_on(described, "check")(lib, described, "state_dict")
    leaves, structure = _apart(data, "state_dict")
    return dict(zip(_names(structure), leaves, strict=True))


def load_state_dict(lib: Lib[A], like: T, arrays: object, device: object = None) -> T:
    """What `rb.load_state_dict` makes of a record's dict, and of a record of the same leaves, shapes and dtypes."""
    if device is not None:
        raise TypeError(
            "load_state_dict: device is for a buffer's spec; a record is loaded where its arrays are: leave it out"
        )
    for described in _described(like):  # whose leaves may tell shapes and dtypes alone, and be no arrays of the backend
        if any(getattr(described, field.name) is None for field in dataclasses.fields(cast("Any", described))):
            raise consumed()
    if not isinstance(arrays, Mapping):
        raise TypeError(f"load_state_dict: expected a dict from rb.state_dict, got {type(arrays).__name__}")
    leaves, structure = _apart(like, "load_state_dict")
    names = _names(structure)
    if set(names) != set(arrays):
        raise ValueError(
            f"load_state_dict: expected the names {names}, got {list(arrays)}; give a dict of the same record"
        )
    taken = []
    for name, leaf in zip(names, leaves, strict=True):
        array = lib.convert(arrays[name], Unbounded(tuple(leaf.shape), dtypes.shown(leaf.dtype)), name)
        if tuple(array.shape) != tuple(leaf.shape):
            raise ValueError(
                f"load_state_dict: leaf {name!r}: expected the shape {tuple(leaf.shape)}, got {tuple(array.shape)}; "
                f"give a dict of the same record"
            )
        taken.append(array)
    # A TensorDict in the nest has the leading axes that all leaves share.
    sizes = zip(*(leaf.shape for leaf in leaves), strict=False)
    shared = tuple(int(n[0]) for n in itertools.takewhile(lambda n: len(set(n)) == 1, sizes))
    return nest.unflatten(structure, taken, lib.build_mapping, shared)


def _described(data: object) -> list[Described]:
    return [x for x in nest.flatten(data, lambda x: isinstance(x, Described))[0] if isinstance(x, Described)]


def _apart(data: object, who: str) -> tuple[list[Array], Structure]:
    leaves, structure = nest.flatten(data, lambda x: isinstance(x, State) or _is_array(x))
    if not leaves:
        raise TypeError(f"{who}: expected a record or a nest of arrays, got {type(data).__name__} without any array")
    names = _names(structure)
    for name, leaf in zip(names, leaves, strict=True):
        if not _is_array(leaf) or isinstance(leaf, State):
            raise TypeError(f"{who}: leaf {name!r}: expected an array, got {type(leaf).__name__}")
        if dtypes.shown(leaf.dtype).startswith("key<"):  # which no other library's files, nor NumPy, have
            raise TypeError(
                f"{who}: leaf {name!r}: expected an array of numbers, got a key of JAX's, {leaf.dtype}; give "
                f"jax.random.key_data(key), and make a key of it again by jax.random.wrap_key_data"
            )
    for name, count in collections.Counter(names).items():
        if count > 1:  # keys such as "a/b" beside "a", or 1 beside "1": a dict would hold the last of them alone
            raise ValueError(
                f"{who}: expected a path of its own for each leaf, got {name!r} {count} times; rename a key"
            )
    return leaves, structure


def _is_array(x: object) -> bool:
    return hasattr(x, "dtype") and hasattr(x, "shape") and not hasattr(x, "keys")


def _names(structure: Structure) -> list[str]:
    return [nest.show(path) for path in structure.paths]
