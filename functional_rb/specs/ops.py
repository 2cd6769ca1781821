"""The array operations with which specs draw, test and project values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from functional_rb.ops.protocol import Array


class SpecOps(Protocol):
    """Some operations of `ops.protocol.Ops`, and some for specs alone. Arrays also understand Python's operators."""

    def zeros(self, shape: Sequence[int], dtype: str, device: Any = None) -> Array:
        """Zeros."""
        ...

    def table(self, values: np.ndarray[Any, Any], dtype: str, like: Array) -> Array:
        """NumPy's numbers as an array on the device of `like`; those of bfloat16 come as float32.

        A single number may become a Python number, which takes the dtype of what it is combined with.
        """
        ...

    def cast(self, x: Array, dtype: str) -> Array:
        """Convert values; floats go to integers by dropping the fraction."""
        ...

    def bitcast(self, x: Array, dtype: str) -> Array:
        """Read the same bytes as another dtype; the last axis grows or shrinks with the item size."""
        ...

    def take(self, x: Array, index: Array) -> Array:
        """`x[index]` along the first axis; every index is in bounds."""
        ...

    def where(self, condition: Array, x: Array, y: Array) -> Array:
        """`x` where the condition holds, `y` elsewhere."""
        ...

    def concat(self, arrays: Sequence[Array], axis: int) -> Array:
        """Arrays joined along an axis."""
        ...

    def clamp(self, x: Array, low: Array, high: Array) -> Array:
        """Numbers clamped between bounds, which may be Python numbers; NaN stays."""
        ...

    def without_nan(self, x: Array) -> Array:
        """Floats with 0 for NaN."""
        ...

    def mul_wide(self, a: Array, b: Array) -> tuple[Array, Array]:
        """The 62-bit product of int32 that are not negative, as `high * 2^31 + low`."""
        ...

    def scale(self, high: Array, low: Array, n: Array) -> Array:
        """`floor(n * u)`, int32, for `u = (high * 2^31 + low) / 2^62` and n from 0 to 2^31 - 1."""
        ...

    def all_rows(self, x: Array) -> Array:
        """Whether all of each row bool [n, m] are true, bool [n]."""
        ...

    def cumsum(self, x: Array) -> Array:
        """int32 running sums along the last axis."""
        ...

    def argmax(self, x: Array) -> Array:
        """The position int32 of the first largest number along the last axis."""
        ...

    def log(self, x: Array) -> Array:
        """Natural logarithms of floats."""
        ...

    def cos(self, x: Array) -> Array:
        """Cosines of floats."""
        ...
