"""What the specs of values that vary in length or kind have in common; such values are arrays of fixed shape."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Self

from functional_rb.base.dtypes import whole_number
from functional_rb.base.nest import Structure
from functional_rb.specs import rows
from functional_rb.specs.base import Change, SpecNest, Unit, changed_shape, checked_shape
from functional_rb.specs.composite import Composite, PartFields, checked, consolidate
from functional_rb.specs.non_tensor import NonTensor


class Varying(Unit):
    """A spec whose values vary in length or kind, and are stored as several parts that belong together.

    Attributes:
        batch_shape: leading axes of each part.
        parts: the specs of the arrays that a value is stored as.
    """

    __slots__ = ()
    batch_shape: tuple[int, ...]
    parts: Composite

    @abc.abstractmethod
    def _parts(self) -> Composite:
        """Make `parts`, which every look at a value needs, once."""

    @property
    @abc.abstractmethod
    def nests(self) -> tuple[str, ...]:
        """The names of the attributes that are nests of specs."""

    def __hash__(self) -> int:
        # The containers of nests (a list) may have no hash.
        return hash((type(self), self.parts))

    @abc.abstractmethod
    def _cardinality_of_one(self) -> int | float:
        """How many values there are without batch axes."""

    def consolidate(self) -> Self:
        nests = {name: consolidate(getattr(self, name)) for name in self.nests}
        return dataclasses.replace(self, **nests)  # type: ignore[type-var]  # each kind is a dataclass

    def without_elements(self, batch_axes: int, batch_shape: tuple[int, ...]) -> Composite:
        return self.parts.without_elements(batch_axes, batch_shape)

    def cardinality(self) -> int | float:
        one = self._cardinality_of_one()
        return one**self._many if self._many else 1

    def _check(self, **counts: object) -> None:
        who = type(self).__name__
        for name in self.nests:
            nest = checked(getattr(self, name), f"{who}.{name}")
            if any(isinstance(unit, NonTensor) for unit in rows.units(nest)):
                raise TypeError(
                    f"{who}: expected specs of arrays, got NonTensor among them; "
                    f"one NonTensor leaf holds any object, those of varying length too"
                )
            object.__setattr__(self, name, nest)
        object.__setattr__(self, "batch_shape", checked_shape(self.batch_shape))
        for name, value in counts.items():
            count = whole_number(value, f"{who}: {name}")
            if count < 1:
                raise ValueError(f"{who}: expected {name} >= 1, got {count}")
            object.__setattr__(self, name, count)
        object.__setattr__(self, "parts", self._parts())

    @property
    def axes(self) -> tuple[int, ...]:
        return self.batch_shape

    def changed(self, k: int, change: Change) -> SpecNest:
        shape = changed_shape(self.batch_shape, change)
        return dataclasses.replace(self, batch_shape=shape)  # type: ignore[type-var]  # each kind is a dataclass

    def _nest_parts(self) -> tuple[Structure, list[object]]:
        return self.parts._nest_parts()

    @property
    def shape(self) -> PartFields:
        """The shapes of the parts, by name."""
        return self.parts.shape

    @property
    def dtype(self) -> PartFields:
        """The dtypes of the parts, by name."""
        return self.parts.dtype

    @property
    def domain(self) -> PartFields:
        """The domains of the parts, by name."""
        return self.parts.domain

    @property
    def _many(self) -> int:
        return math.prod(self.batch_shape)
