"""Functions that the conversions from and to other libraries share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

from functional_rb.base import dtypes
from functional_rb.base.arrays import NumpyArray

if TYPE_CHECKING:
    from functional_rb.specs import ArraySpec

Path = tuple[str | int, ...]

# The dtypes of 64 bits (of each part, if complex), and those of 32 bits in their place.
NARROWED = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}


def shown(path: Path) -> str:
    """A path in a nest, as errors name it."""
    return f"leaf {'/'.join(map(str, path))!r}" if path else "the whole"


@contextlib.contextmanager
def at(who: str, path: Path) -> Iterator[None]:
    """Raise the errors of a leaf's conversion with its path in front."""
    try:
        yield
    except (ValueError, TypeError, OverflowError, AssertionError) as error:
        if str(error).startswith(f"{who}: "):  # it names a part of this one
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{who}: {shown(path)}: {error}") from None


def stored_dtype(dtype: DTypeLike, narrow: bool) -> str:
    """The dtype that is stored for a dtype of another library."""
    name = dtypes.shown(np.dtype(dtype).name)
    return dtypes.name_of(NARROWED.get(name, name) if narrow else name)


def need_integers(spec: ArraySpec, where: str) -> None:
    """Refuse choices that are numbered by floats, which other libraries do not have."""
    if dtypes.kind_of(spec.dtype) != "int":
        raise TypeError(
            f"{where} has choices as {spec.dtype}; write {type(spec).__name__}(..., dtype='int32'), and convert its "
            f"values where floats are wanted"
        )


def narrowed_bounds(low: NumpyArray, high: NumpyArray, dtype: str) -> tuple[NumpyArray, NumpyArray]:
    """Bounds in a narrower dtype: floats are rounded; the limits of a wide integer dtype mean no bound."""
    if dtypes.shown(low.dtype) == dtype:
        return low, high
    if dtypes.kind_of(dtype) == "float":
        with np.errstate(over="ignore"):  # a bound that is too large becomes infinite
            return low.astype(dtype), high.astype(dtype)
    wide, least, most = np.iinfo(low.dtype), *dtypes.integer_limits(dtype)
    low, high = (np.where(low == wide.min, least, low), np.where(high == wide.max, most, high))
    if (low < least).any() or (high > most).any():
        raise ValueError(f"bounds {low.min()} to {high.max()} do not fit into {dtype}; leave narrow=True out")
    return low, high
