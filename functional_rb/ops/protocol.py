"""The array operations that the algorithms are written in: what a backend must provide, and nothing else.

A backend's `ops` is a plain module of functions with these signatures; the type checker compares it with `Ops`.
Arrays also understand Python's arithmetic, comparison, bit and slicing operators and `reshape`. Integers are int32
throughout, because JAX has no others unless asked, and none of the algorithms lets one overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from functional_rb.base.arrays import Array as Array
from functional_rb.base.arrays import DeviceLike, NumpyArray

# The arrays of one backend.
A = TypeVar("A", bound=Array)
T = TypeVar("T")
# What goes from one turn of a loop to the next.
Carry = TypeVar("Carry", bound=tuple[object, ...])


class CommonOpsOf(Protocol[A]):
    """The primitives that the algorithms of buffers and the values of specs have in common."""

    def zeros(self, shape: Sequence[int], dtype: str, device: DeviceLike = None) -> A:
        """Zeros; pages that nobody wrote cost nothing where the system allows it."""

    def cast(self, x: A, dtype: str) -> A:
        """Convert values; floats go to integers by dropping the fraction."""

    def bitcast(self, x: A, dtype: str) -> A:
        """Read the same bytes as another dtype; the last axis grows or shrinks with the item size."""

    def take(self, x: A, index: A) -> A:
        """`x[index]` along the first axis; every index is in bounds."""

    def where(self, condition: A, x: A, y: A) -> A:
        """`x` where the condition holds, `y` elsewhere."""

    def cumsum(self, x: A) -> A:
        """int32 running sums along the last axis."""

    def concat(self, arrays: Sequence[A], axis: int) -> A:
        """Arrays joined along an axis."""

    def all_rows(self, x: A) -> A:
        """Whether all of each row bool [n, m] are true, bool [n]."""

    def mul_wide(self, a: A, b: A) -> tuple[A, A]:
        """The 62-bit product of int32 that are not negative, as `high * 2^31 + low`."""


class OpsOf(CommonOpsOf[A], Protocol[A]):
    """The primitives of one backend."""

    def full_like(self, x: A, value: int | float) -> A:
        """An array of one value with the shape, dtype and device of another."""

    def arange(self, n: int, like: A) -> A:
        """int32 0, 1, ... n - 1, on the device of `like`."""

    def constant(self, name: str, like: A) -> A:
        """The table `fixed_point.TABLES[name]` as an array on the device of `like`."""

    def floats(self, values: Sequence[float], like: A) -> A:
        """float32 numbers known beforehand, on the device of `like`."""

    def integers(self, values: Sequence[int], like: A) -> A:
        """int32 numbers known beforehand, on the device of `like`."""
        ...

    def set_at(self, x: A, index: A, values: A) -> A:
        """`x` with `x[index] = values` along the first axis; equal indices come with equal values."""

    def set_flat(self, x: A, index: A, values: A) -> A:
        """`x` with elements set by their position in it as one vector, its shape kept."""

    def min_at(self, x: A, index: A, values: A) -> A:
        """A vector `x` where each value takes the place that its index names, if it is smaller than what is there."""
        ...

    def add_at(self, x: A, index: A, values: A) -> A:
        """A vector `x` where each value is added in the place that its index names; equal indices add up."""
        ...

    def minimum(self, x: A, y: A) -> A:
        """The smaller of two, element by element."""

    def maximum(self, x: A, y: A) -> A:
        """The larger of two, element by element."""

    def divide(self, x: A, y: A) -> A:
        """`x / y` for floats, rounded to the nearest, as XLA for GPUs does not by itself: the same bits everywhere."""

    def settled(self, x: A) -> A:
        """`x`, computed before what is written next: XLA for GPUs would read what it is made of again, from a copy."""

    def cummax(self, x: A) -> A:
        """Running maxima along the last axis."""

    def largest(self, x: A) -> A:
        """The largest number along the last axis."""

    def count(self, mask: A) -> A:
        """How many elements of a boolean vector are true, as an int32 scalar."""

    def argsort(self, x: A) -> A:
        """The positions that sort each vector along the last axis, equal elements in their order (stable), int32."""

    def searchsorted(self, ascending: A, values: A, side: Literal["left", "right"]) -> A:
        """Where each value belongs in an ascending vector, int32."""

    def stack(self, scalars: Sequence[A]) -> A:
        """Scalars joined to a vector."""

    def moveaxis(self, x: A, source: int, destination: int) -> A:
        """`x` with one axis moved elsewhere, the others in their order."""

    def call(self, function: Callable[..., object], *arrays: object) -> Any:
        """A function of the user's on arrays of the backend; what it gives is for the caller to check."""

    def while_loop(self, condition: Callable[..., A], body: Callable[..., Carry], carry: Carry) -> Carry:
        """`carry = body(*carry)` for as long as `condition(*carry)`, a bool scalar; the carry is a tuple.

        Its arrays keep shape and dtype. What the body sets of them by `set_at` is set in place.
        """

    def repeat(self, n: int, body: Callable[..., T], carry: T) -> T:
        """`carry = body(i, carry)` for i from 0 to n - 1, a Python number or an int32 scalar; any nest is a carry."""


class FloatOpsOf(OpsOf[A], Protocol[A]):
    """The primitives of one backend, and some on floats."""

    def table(self, values: NumpyArray, dtype: str, like: A) -> A:
        """NumPy's numbers as an array on the device of `like`; a single number may become a Python number."""

    def argmax(self, x: A) -> A:
        """The position int32 of the first largest number along the last axis."""

    def total(self, x: A) -> A:
        """The sum along the last axis, in the dtype of the numbers; of booleans their count, int32."""

    def log(self, x: A) -> A:
        """Natural logarithms of floats."""

    def exp(self, x: A) -> A:
        """Exponentials of floats."""

    def cos(self, x: A) -> A:
        """Cosines of floats."""


class TreeOpsOf(FloatOpsOf[A], Protocol[A]):
    """The primitives with which trees are searched: those on floats, and some on each row of a batch."""

    def take_each(self, x: A, index: A) -> A:
        """What an index int32 [B] or [B, m] names in each row of `x` [B, n, ...]: [B, ...] or [B, m, ...].

        Rows stay apart, so that a batch that is divided between devices stays divided.
        """
        ...

    def set_each(self, x: A, index: A, live: A | None, values: A) -> A:
        """`x` [B, n, ...] with one element of each row set to values [B, ...], where live bool [B] (None: everywhere).

        In place where the backend may.
        """
        ...

    def argmax_by(self, x: A, order: A) -> A:
        """The position int32 of the largest float along the last axis; of equal ones that of the largest order int32.

        No number is NaN, and the orders are not negative where the number is to be found.
        """
        ...


class ItemOpsOf(FloatOpsOf[A], Protocol[A]):
    """The primitives that functions of items are written in: those on floats, and two for the arithmetic of images."""

    def resampled(self, x: A, weights: NumpyArray, axis: int) -> A:
        """Lines of floats along an axis times `weights.T`, float32 [after, before] of NumPy, which may be sparse."""

    def rounded(self, x: A) -> A:
        """The nearest whole numbers, halves to the even one, as floats of the same dtype."""


class TextOpsOf(TreeOpsOf[A], Protocol[A]):
    """The primitives with which tokens are drawn, and asked about: those of trees, and three more."""

    def take_along(self, x: A, index: A) -> A:
        """`x[..., index]`: elements along the last axis at indices int32 [..., K], in bounds, of x [..., V]."""
        ...

    def by_places(self, function: Callable[[A, A], A], slopes: Callable[[A, A], A], x: A, y: A) -> A:
        """`function(x, y)`, float32 [N, S] of x [N, S, V] and y int32 [N, S], which looks at each place by itself.

        What it computes on the way is never there for all places at once, nor kept for gradients, for which torch
        takes `slopes(x, y)`, float32 [N, S, V].
        """
        ...

    def in_turn(self, function: Callable[..., tuple[T, A]], carry: T, *arrays: A) -> tuple[T, A]:
        """The last carry, and the results together, of `function(carry, *parts) -> (carry, result)`, part by part.

        The parts are those along the first axis of arrays of equal length. What is computed on the way is computed
        again for gradients, not kept; on torch it is kept if there is a carry, into which the function may write.
        """
        ...


class SpecOpsOf(CommonOpsOf[A], Protocol[A]):
    """The primitives with which specs draw, test and project values."""

    def table(self, values: NumpyArray, dtype: str, like: A) -> A:
        """NumPy's numbers as an array on the device of `like`; those of bfloat16 come as float32.

        A single number may become a Python number, which takes the dtype of what it is combined with.
        """

    def clamp(self, x: A, low: A | float, high: A | float) -> A:
        """Numbers clamped between bounds, which may be Python numbers; NaN stays."""

    def without_nan(self, x: A) -> A:
        """Floats with 0 for NaN."""

    def scale(self, high: A, low: A, n: A) -> A:
        """`floor(n * u)`, int32, for `u = (high * 2^31 + low) / 2^62` and n from 0 to 2^31 - 1."""

    def argmax(self, x: A) -> A:
        """The position int32 of the first largest number along the last axis."""

    def log(self, x: A) -> A:
        """Natural logarithms of floats."""

    def cos(self, x: A) -> A:
        """Cosines of floats."""


class BackendOpsOf(ItemOpsOf[A], TextOpsOf[A], SpecOpsOf[A], Protocol[A]):
    """All primitives: what JAX and torch have in their `ops`. NumPy has what buffers, trees and items need."""


# What the algorithms are written over: any backend's.
CommonOps: TypeAlias = CommonOpsOf[Array]
Ops: TypeAlias = OpsOf[Array]
FloatOps: TypeAlias = FloatOpsOf[Array]
TreeOps: TypeAlias = TreeOpsOf[Array]
ItemOps: TypeAlias = ItemOpsOf[Array]
TextOps: TypeAlias = TextOpsOf[Array]
SpecOps: TypeAlias = SpecOpsOf[Array]
BackendOps: TypeAlias = BackendOpsOf[Array]
