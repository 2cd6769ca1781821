"""Sequences of bounded length, whose elements are of one spec."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from functional_rb.ops.protocol import Array, SpecOps
from functional_rb.specs import rows
from functional_rb.specs.array import Bounded
from functional_rb.specs.composite import Composite
from functional_rb.specs.padded import (
    all_of,
    draw_length,
    draw_padded,
    first,
    in_front,
    inside_padded,
    length_words,
    nearest_padded,
    read_lengths,
    real_rows,
)
from functional_rb.specs.varying import Varying


@dataclasses.dataclass(frozen=True, repr=False)
class Sequence(Varying):
    """Up to max_length elements of one spec.

    Stored as `elements`, which have an axis [max_length] in front, and `length` int32. What lies behind the length is
    padding, whose content has no meaning.

    Attributes:
        element: the spec of one element, or a nest of them.
        max_length: how many there may be, at least 1.
        stack: whether Gymnasium has the elements as one array (or nest of arrays), not as a tuple.
        batch_shape: leading axes.

    Example:
        >>> from functional_rb import Unbounded
        >>> Sequence(Unbounded((2,)), 5).shape
        {'elements': (5, 2), 'length': ()}
    """

    arguments: ClassVar[tuple[str, ...]] = ("element", "max_length", "stack", "batch_shape")
    __hash__ = Varying.__hash__

    element: Any
    max_length: int
    stack: bool = False
    batch_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.stack, bool):
            raise TypeError(f"Sequence: expected stack as a truth value, got {self.stack!r}; write stack=True, say")
        self._check(max_length=self.max_length)

    @property
    def nests(self) -> tuple[str, ...]:
        """The attribute `element`."""
        return ("element",)

    def _parts(self) -> Composite:
        lead = (*self.batch_shape, self.max_length)
        length = Bounded(0, self.max_length, self.batch_shape, "int32")
        return Composite({"elements": in_front(self.element, lead), "length": length}, batch_shape=self.batch_shape)

    @property
    def words(self) -> int:
        """Random words of 31 bits that `draw` takes: for the length and the elements."""
        return self._many * (length_words(0, self.max_length) + self.max_length * rows.words(self.element))

    def draw(self, ops: SpecOps, bits: Array) -> dict[str, Any]:
        """Sequences whose lengths are uniform."""
        split = self._many * length_words(0, self.max_length)
        length = draw_length(ops, bits[:, :split], self.batch_shape, 0, self.max_length)
        elements = draw_padded(ops, self.element, bits[:, split:], self.batch_shape, self.max_length)
        real = real_rows(ops, length, self.max_length)
        return {"elements": rows.cleared(ops, self.element, elements, real), "length": length}

    def inside(self, ops: SpecOps, x: Any) -> Array:
        """Whether the length is in range, and the elements up to it in their domain, bool [N]."""
        length = x["length"]
        found = inside_padded(ops, self.element, x["elements"], length, self.max_length)
        return all_of(ops, found & (length >= 0) & (length <= self.max_length), self._many)

    def nearest(self, ops: SpecOps, x: Any) -> dict[str, Any]:
        """The sequences with their length clamped and each element projected; zeros behind the length."""
        length = ops.clamp(x["length"], 0, self.max_length)
        return {"elements": nearest_padded(ops, self.element, x["elements"], length, self.max_length), "length": length}

    def from_host(self, value: object, batch: tuple[int, ...]) -> dict[str, Any]:
        """The parts of sequences: tuples of elements; with `stack` arrays, or nests of arrays, of them."""
        lead = (*batch, *self.batch_shape)
        values = rows.listed(value, lead)
        lengths = [self._length_of(one) for one in values]
        length, real = read_lengths(lengths, 0, self.max_length, "elements", "max_length")
        if not self.stack:
            values = [element for one in values for element in one]
        padded = rows.scattered(self.element, rows.from_host(self.element, values, self.stack), real)
        elements = rows.regrouped(self.element, padded, 2, (*lead, self.max_length))
        return {"elements": elements, "length": length.reshape(lead)}

    def _length_of(self, value: object) -> int:
        if self.stack:
            return rows.count(self.element, value)
        if not isinstance(value, tuple | list):
            raise TypeError(f"expected a tuple of elements, got {type(value).__name__}")
        return len(value)

    def to_host(self, x: Any) -> Any:
        """Sequences as tuples of elements; with `stack` as arrays, or nests of arrays, of them."""
        lead = x["length"].shape
        elements = rows.regrouped(self.element, x["elements"], len(lead) + 1, (x["length"].size, self.max_length))
        made = []
        length, _ = read_lengths(x["length"].reshape(-1), 0, self.max_length, "elements", "max_length")
        for i, n in enumerate(length.tolist()):
            own = first(self.element, elements, i, n)
            made.append(rows.to_host(self.element, own) if self.stack else tuple(rows.to_values(self.element, own, n)))
        return rows.nested(made, lead)
