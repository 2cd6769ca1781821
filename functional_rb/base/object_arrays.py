"""Leaves of Python objects as a caller gives them, made NumPy object arrays with the batch axes of the other leaves.

A buffer stores an integer token in place of each object; the backend keeps the objects that the tokens stand for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Objects = np.ndarray[tuple[int, ...], np.dtype[np.object_]]


def array_of(values: Sequence[object], shape: tuple[int, ...]) -> Objects:
    """Objects in an array, each as it is: NumPy's own constructor would take lists and arrays among them apart.

    Example:
        >>> array_of([[1], None], (2,))
        array([list([1]), None], dtype=object)
    """
    return np.fromiter(values, object, len(values)).reshape(shape)


def array_of_none(shape: tuple[int, ...]) -> Objects:
    """An object array of this shape, None everywhere."""
    return np.full(tuple(shape), None, object)


def is_object_array(value: object) -> bool:
    """Whether a value is an array of objects."""
    return isinstance(value, np.ndarray) and value.dtype == object


def is_non_tensor(value: object) -> bool:
    """Whether a value is what a TensorDict has its objects in: tensordict's NonTensorData, or a stack of them."""
    return bool(getattr(type(value), "_is_non_tensor", False))


def gather(value: Any, lead: tuple[int, ...], shape: tuple[int, ...], name: str) -> Objects:
    """The objects that a caller gives for a leaf, as an array [*lead, *shape].

    Args:
        value: an object array of that shape, or lists and tuples nested so deep; where that shape is (), the object.
        lead: the batch axes that the other leaves have.
        shape: the shape of one item's objects.
        name: the leaf's path, as errors show it.

    Raises:
        TypeError: if it is neither an object array nor a list or tuple.
        ValueError: if it has another shape.
    """
    wanted = (*lead, *shape)
    if is_non_tensor(value):
        value = value.tolist()
    if is_object_array(value) and value.shape == wanted:
        objects: Objects = value
        return objects
    if wanted == ():
        return array_of([value], ())
    if is_object_array(value):
        raise ValueError(f"leaf {name!r}: expected objects of shape {wanted}, got an array of shape {value.shape}")
    return array_of(list(_nested(value, wanted, wanted, name)), wanted)


def _nested(value: object, sizes: tuple[int, ...], wanted: tuple[int, ...], name: str) -> Iterator[object]:
    if not sizes:
        yield value
        return
    if not isinstance(value, list | tuple):
        raise TypeError(
            f"leaf {name!r}: expected objects of shape {wanted}, as a NumPy object array or nested lists, got "
            f"{type(value).__name__}; give numpy.asarray(x).astype(object), or a list"
        )
    if len(value) != sizes[0]:
        raise ValueError(
            f"leaf {name!r}: expected objects of shape {wanted}, got a {type(value).__name__} of {len(value)} "
            f"where {sizes[0]} belong; give one for each item"
        )
    for inner in value:
        yield from _nested(inner, sizes[1:], wanted, name)
