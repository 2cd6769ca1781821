"""What environments give, as NumPy arrays of a spec's dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from functional_rb.base import dtypes


def as_dtype(value: Any, dtype: str) -> np.ndarray[Any, Any]:
    """An array or nested sequence of numbers in another dtype: floats are rounded, whole numbers must fit.

    Those of bfloat16, which NumPy lacks, are float32.

    Raises:
        TypeError: for what are no numbers, and where truth values and numbers would be mixed up.
        ValueError: for whole numbers that do not fit.

    Example:
        >>> as_dtype([1, 2], "uint8"), as_dtype(np.float64(0.1), "float32")
        (array([1, 2], dtype=uint8), array(0.1, dtype=float32))
    """
    array = np.asarray(value)
    if dtypes.shown(array.dtype) == dtype:
        return array
    kind, got = dtypes.kind_of(dtype), array.dtype.kind
    order = {"b": "bool", "i": "int", "u": "int", "f": "float", "c": "complex", "V": "float"}  # V: bfloat16
    allowed = {"bool": ("bool",), "int": ("int",), "float": ("int", "float"), "complex": ("int", "float", "complex")}
    if order.get(got) not in allowed[kind]:
        raise TypeError(f"expected numbers that dtype {dtype} has, got {array.dtype}; convert them")
    if kind == "int" and array.size:
        low, high = dtypes.integer_limits(dtype)
        if int(array.min()) < low or int(array.max()) > high:
            raise ValueError(
                f"numbers from {array.min()} to {array.max()} do not fit into {dtype} ({low} to {high}); "
                f"give the spec another dtype"
            )
    with np.errstate(over="ignore"):
        return dtypes.as_numpy(dtype, array) if dtype == "bfloat16" else array.astype(dtype)
