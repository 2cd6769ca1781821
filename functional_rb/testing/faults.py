"""What is said of a strategy that breaks the contract, and how arrays are compared and shown there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import numpy as np

from functional_rb.base.arrays import Nest, NumpyArray
from functional_rb.testing import carriers


class ConformanceError(AssertionError):
    """A strategy breaks the contract; the message says what was expected, what came, and the remedy."""


def expect(good: object, who: str, message: str) -> None:
    """Raise a `ConformanceError` of a strategy unless something is as it should be."""
    if not good:
        raise ConformanceError(f"{who}: {message}")


@contextlib.contextmanager
def no_error(who: str, what: str) -> Iterator[None]:
    """Tell of any error as one of the strategy's."""
    try:
        yield
    except ConformanceError:
        raise
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise ConformanceError(f"{who}: {what}: expected a result, got {got}; {remedy_of(error)}") from error


def differing(one: Nest, other: Nest, name: str) -> Iterator[tuple[str, NumpyArray | None, NumpyArray | None]]:
    """The arrays of two nests, by their names below the given one, that are not the same bits."""
    both = carriers.named(one, name), carriers.named(other, name)
    for path in both[0] | both[1]:
        a, b = (side.get(path) for side in both)
        if a is None or b is None or not same(a, b):
            yield path, a, b


def same(a: NumpyArray, b: NumpyArray) -> bool:
    """Whether two arrays are the same bits, of one dtype and shape."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def near(a: NumpyArray, b: NumpyArray, exact: bool) -> bool:
    """Whether two arrays are equal, or, of floats, nearly so."""
    if exact or a.dtype.kind not in "fc":
        return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    return np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


def alike(a: Mapping[str, NumpyArray], b: Mapping[str, NumpyArray]) -> bool:
    """Whether the leaves of an item are the same bits as those of another."""
    return all(np.asarray(leaf).tobytes() == np.asarray(b[path]).tobytes() for path, leaf in a.items())


def kind_of(array: NumpyArray) -> str:
    """Dtype and shape, as a message tells them."""
    return f"{array.dtype.name} {list(array.shape)}"


def shown(array: NumpyArray | None) -> str:
    """An array, as a message tells it."""
    return "nothing" if array is None else f"{kind_of(array)} {np.array2string(array, threshold=12, edgeitems=4)}"


def shown_item(leaves: Mapping[str, Nest]) -> str:
    """An item, by its number if it has one."""
    if "id" in leaves:
        return f"item {int(leaves['id'])}"
    return str({path: np.asarray(leaf).tolist() for path, leaf in leaves.items()})


def remedy_of(error: Exception) -> str:
    """What to do about an error that a hook raises."""
    name, text = type(error).__name__, str(error)
    if "Tracer" in name or "ConcretizationTypeError" in name:
        return "branch on no array, and turn none into a Python number: use `ops.where`"
    if "read-only" in text or "immutable" in text:
        return "write to no array: `ops.set_at` gives a new one, which the draft takes in place of the old"
    return "see the error that this one comes from"
