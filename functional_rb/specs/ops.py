"""The array operations with which specs draw, test and project values."""

from __future__ import annotations

from typing import Protocol

from functional_rb.base.arrays import NumpyArray
from functional_rb.ops.protocol import Array, CommonOps


class SpecOps(CommonOps, Protocol):
    """The primitives in common with `Ops`, and some for specs alone. Arrays also understand Python's operators."""

    def table(self, values: NumpyArray, dtype: str, like: Array) -> Array:
        """NumPy's numbers as an array on the device of `like`; those of bfloat16 come as float32.

        A single number may become a Python number, which takes the dtype of what it is combined with.
        """

    def clamp(self, x: Array, low: Array, high: Array) -> Array:
        """Numbers clamped between bounds, which may be Python numbers; NaN stays."""

    def without_nan(self, x: Array) -> Array:
        """Floats with 0 for NaN."""

    def scale(self, high: Array, low: Array, n: Array) -> Array:
        """`floor(n * u)`, int32, for `u = (high * 2^31 + low) / 2^62` and n from 0 to 2^31 - 1."""

    def argmax(self, x: Array) -> Array:
        """The position int32 of the first largest number along the last axis."""

    def log(self, x: Array) -> Array:
        """Natural logarithms of floats."""

    def cos(self, x: Array) -> Array:
        """Cosines of floats."""
