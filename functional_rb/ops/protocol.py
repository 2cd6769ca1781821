"""The array operations that the algorithms are written in: what a backend must provide, and nothing else.

A backend's `ops` is a plain module of functions with these signatures; the type checker compares it with `Ops`.
Arrays also understand Python's arithmetic, comparison, bit and slicing operators and `reshape`. Integers are int32
throughout, because JAX has no others unless asked, and none of the algorithms lets one overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar

from functional_rb.base.arrays import DeviceLike, NumpyArray

# An array of the backend: `jax.Array` (or a tracer) on JAX, `torch.Tensor` on torch.
Array = Any
T = TypeVar("T")
# What goes from one turn of a loop to the next.
Carry = TypeVar("Carry", bound=tuple[Any, ...])


class CommonOps(Protocol):
    """The primitives that the algorithms of buffers and the values of specs have in common."""

    def zeros(self, shape: Sequence[int], dtype: str, device: DeviceLike = None) -> Array:
        """Zeros; pages that nobody wrote cost nothing where the system allows it."""

    def cast(self, x: Array, dtype: str) -> Array:
        """Convert values; floats go to integers by dropping the fraction."""

    def bitcast(self, x: Array, dtype: str) -> Array:
        """Read the same bytes as another dtype; the last axis grows or shrinks with the item size."""

    def take(self, x: Array, index: Array) -> Array:
        """`x[index]` along the first axis; every index is in bounds."""

    def where(self, condition: Array, x: Array, y: Array) -> Array:
        """`x` where the condition holds, `y` elsewhere."""

    def cumsum(self, x: Array) -> Array:
        """int32 running sums along the last axis."""

    def concat(self, arrays: Sequence[Array], axis: int) -> Array:
        """Arrays joined along an axis."""

    def all_rows(self, x: Array) -> Array:
        """Whether all of each row bool [n, m] are true, bool [n]."""

    def mul_wide(self, a: Array, b: Array) -> tuple[Array, Array]:
        """The 62-bit product of int32 that are not negative, as `high * 2^31 + low`."""


class Ops(CommonOps, Protocol):
    """The primitives of one backend."""

    def full_like(self, x: Array, value: int | float) -> Array:
        """An array of one value with the shape, dtype and device of another."""

    def arange(self, n: int, like: Array) -> Array:
        """int32 0, 1, ... n - 1, on the device of `like`."""

    def constant(self, name: str, like: Array) -> Array:
        """The table `fixed_point.TABLES[name]` as an array on the device of `like`."""

    def floats(self, values: Sequence[float], like: Array) -> Array:
        """float32 numbers known beforehand, on the device of `like`."""

    def integers(self, values: Sequence[int], like: Array) -> Array:
        """int32 numbers known beforehand, on the device of `like`."""
        ...

    def set_at(self, x: Array, index: Array, values: Array) -> Array:
        """`x` with `x[index] = values` along the first axis; equal indices come with equal values."""

    def set_flat(self, x: Array, index: Array, values: Array) -> Array:
        """`x` with elements set by their position in it as one vector, its shape kept."""

    def min_at(self, x: Array, index: Array, values: Array) -> Array:
        """A vector `x` where each value takes the place that its index names, if it is smaller than what is there."""
        ...

    def add_at(self, x: Array, index: Array, values: Array) -> Array:
        """A vector `x` where each value is added in the place that its index names; equal indices add up."""
        ...

    def minimum(self, x: Array, y: Array) -> Array:
        """The smaller of two, element by element."""

    def maximum(self, x: Array, y: Array) -> Array:
        """The larger of two, element by element."""

    def divide(self, x: Array, y: Array) -> Array:
        """`x / y` for floats, rounded to the nearest, as XLA for GPUs does not by itself: the same bits everywhere."""

    def settled(self, x: Array) -> Array:
        """`x`, computed before what is written next: XLA for GPUs would read what it is made of again, from a copy."""

    def cummax(self, x: Array) -> Array:
        """Running maxima along the last axis."""

    def count(self, mask: Array) -> Array:
        """How many elements of a boolean vector are true, as an int32 scalar."""

    def argsort(self, x: Array) -> Array:
        """The positions that sort each vector along the last axis, equal elements in their order (stable), int32."""

    def searchsorted(self, ascending: Array, values: Array, side: Literal["left", "right"]) -> Array:
        """Where each value belongs in an ascending vector, int32."""

    def stack(self, scalars: Sequence[Array]) -> Array:
        """Scalars joined to a vector."""

    def moveaxis(self, x: Array, source: int, destination: int) -> Array:
        """`x` with one axis moved elsewhere, the others in their order."""

    def call(self, function: Callable[..., Any], *arrays: Array) -> Any:
        """A function of the user's on arrays of the backend; what it gives is for the caller to check."""

    def while_loop(self, condition: Callable[..., Array], body: Callable[..., Carry], carry: Carry) -> Carry:
        """`carry = body(*carry)` for as long as `condition(*carry)`, a bool scalar; the carry is a tuple.

        Its arrays keep shape and dtype. What the body sets of them by `set_at` is set in place.
        """

    def repeat(self, n: int, body: Callable[..., T], carry: T) -> T:
        """`carry = body(i, carry)` for i from 0 to n - 1, a Python number or an int32 scalar; any nest is a carry."""


class TreeOps(Ops, Protocol):
    """The primitives with which trees are searched: those of one backend, and some on floats."""

    def table(self, values: NumpyArray, dtype: str, like: Array) -> Array:
        """NumPy's numbers as an array on the device of `like`; a single number may become a Python number."""

    def take_each(self, x: Array, index: Array) -> Array:
        """Of each row of `x` [B, n, ...] what an index int32 [B] or [B, m] names: [B, ...] or [B, m, ...].

        Rows stay apart, so that a batch that is divided between devices stays divided.
        """
        ...

    def set_each(self, x: Array, index: Array, live: Array | None, values: Array) -> Array:
        """`x` [B, n, ...] with one element of each row set to values [B, ...], where live bool [B] (None: everywhere).

        In place where the backend may.
        """
        ...

    def argmax(self, x: Array) -> Array:
        """The position int32 of the first largest number along the last axis."""

    def argmax_by(self, x: Array, order: Array) -> Array:
        """The position int32 of the largest float along the last axis; of equal ones that of the largest order int32.

        No number is NaN, and the orders are not negative where the number is to be found.
        """
        ...

    def largest(self, x: Array) -> Array:
        """The largest number along the last axis."""

    def total(self, x: Array) -> Array:
        """The sum along the last axis, in the dtype of the numbers; of booleans their count, int32."""

    def log(self, x: Array) -> Array:
        """Natural logarithms of floats."""

    def exp(self, x: Array) -> Array:
        """Exponentials of floats."""

    def cos(self, x: Array) -> Array:
        """Cosines of floats."""


class ItemOps(TreeOps, Protocol):
    """The primitives that functions of items are written in: those of trees, and two for the arithmetic of images."""

    def resampled(self, x: Array, weights: NumpyArray, axis: int) -> Array:
        """Lines of floats along an axis times `weights.T`, float32 [after, before] of NumPy, which may be sparse."""

    def rounded(self, x: Array) -> Array:
        """The nearest whole numbers, halves to the even one, as floats of the same dtype."""


class TextOps(TreeOps, Protocol):
    """The primitives with which tokens are drawn, and asked about: those of trees, and three more."""

    def take_along(self, x: Array, index: Array) -> Array:
        """`x[..., index]`: elements along the last axis at indices int32 [..., K], in bounds, of x [..., V]."""
        ...

    def by_places(
        self, function: Callable[[Array, Array], Array], slopes: Callable[[Array, Array], Array], x: Array, y: Array
    ) -> Array:
        """`function(x, y)`, float32 [N, S] of x [N, S, V] and y int32 [N, S], which looks at each place by itself.

        What it computes on the way is never there for all places at once, nor kept for gradients, for which torch
        takes `slopes(x, y)`, float32 [N, S, V].
        """
        ...

    def in_turn(self, function: Callable[..., tuple[T, Array]], carry: T, *arrays: Array) -> tuple[T, Array]:
        """The last carry, and the results together, of `function(carry, *parts) -> (carry, result)`, part by part.

        The parts are those along the first axis of arrays of equal length. What is computed on the way is computed
        again for gradients, not kept; on torch it is kept if there is a carry, into which the function may write.
        """
        ...
