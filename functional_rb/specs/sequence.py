"""Sequences of bounded length, whose elements are of one spec."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from functional_rb.base.arrays import Array, Nest
from functional_rb.ops.protocol import SpecOps
from functional_rb.specs import random_numbers, rows
from functional_rb.specs.array import Bounded
from functional_rb.specs.base import SpecNest
from functional_rb.specs.composite import Composite, cardinality
from functional_rb.specs.padded import Padded, all_of, in_front
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

    element: SpecNest
    max_length: int
    stack: bool = False
    batch_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.stack, bool):
            raise TypeError(f"Sequence: expected stack as a truth value, got {self.stack!r}; write stack=True, say")
        self._check(max_length=self.max_length)

    @property
    def nests(self) -> tuple[str, ...]:
        return ("element",)

    def _parts(self) -> Composite:
        lead = (*self.batch_shape, self.max_length)
        length = Bounded(0, self.max_length, self.batch_shape, "int32")
        return Composite({"elements": in_front(self.element, lead), "length": length}, batch_shape=self.batch_shape)

    @property
    def _padded(self) -> Padded:
        return Padded(self.element, 0, self.max_length, "elements", "max_length")

    def _cardinality_of_one(self) -> int | float:
        return self._padded.cardinality(cardinality(self.element))

    @property
    def words(self) -> int:
        return self._many * self._padded.words

    def draw(self, ops: SpecOps, bits: Array) -> dict[str, Nest]:
        elements, length = self._padded.draw(ops, random_numbers.Cut(bits), self.batch_shape)
        return {"elements": elements, "length": length}

    def inside(self, ops: SpecOps, x: Nest) -> Array:
        return all_of(ops, self._padded.inside(ops, x["elements"], x["length"]), self._many)

    def nearest(self, ops: SpecOps, x: Nest) -> dict[str, Nest]:
        elements, length = self._padded.nearest(ops, x["elements"], x["length"])
        return {"elements": elements, "length": length}

    def from_host(self, value: object, batch: tuple[int, ...]) -> dict[str, Nest]:
        lead = (*batch, *self.batch_shape)
        values = rows.listed(value, lead)
        if self.stack:
            elements, length = self._padded.from_stacked(values, lead)
        else:
            for one in values:
                if not isinstance(one, tuple | list):
                    raise TypeError(f"expected a tuple of elements, got {type(one).__name__}")
            lengths = self._padded.checked([len(one) for one in values], 0)
            flat = rows.from_host(self.element, [element for one in values for element in one])
            elements, length = self._padded.from_flat(flat, lengths, lead)
        return {"elements": elements, "length": length}

    def to_host(self, x: Nest) -> object:
        values = self._padded.real_rows(x["elements"], x["length"])
        if self.stack:
            return rows.nested([rows.to_host(self.element, elements) for elements in values], x["length"].shape)
        counts = x["length"].reshape(-1).tolist()
        tuples = [tuple(rows.to_values(self.element, elements, n)) for elements, n in zip(values, counts, strict=True)]
        return rows.nested(tuples, x["length"].shape)
