"""What the specs of values that vary in length or kind have in common; such values are arrays of fixed shape."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any

import numpy as np

from functional_rb.base.arrays import Nest
from functional_rb.base.dtypes import whole_number
from functional_rb.base.nest import Structure
from functional_rb.ops.protocol import Array, SpecOps
from functional_rb.specs import rows
from functional_rb.specs.base import Change, Spec, checked_shape
from functional_rb.specs.composite import Composite, checked
from functional_rb.specs.non_tensor import NonTensor


class Varying(Spec):
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
        """The hash of the parts, as the containers of nests (a list) may have none."""
        return hash((type(self), self.parts))

    def _check(self, **counts: object) -> None:
        """Check the nests, the shape and some counts, freeze them, and make the parts."""
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
        """The batch axes."""
        return self.batch_shape

    def changed(self, k: int, change: Change) -> Any:
        """The spec after a change of its batch axes."""
        shape = change(np.broadcast_to(np.int8(0), self.batch_shape)).shape
        return dataclasses.replace(self, batch_shape=shape)  # type: ignore[type-var]  # each kind is a dataclass

    def _nest_parts(self) -> tuple[Structure, list[object]]:
        """The parts, for `base.nest.parts_of`."""
        return self.parts._nest_parts()

    @property
    def shape(self) -> dict[str, Any]:
        """The shapes of the parts, by name."""
        return self.parts.shape

    @property
    def dtype(self) -> dict[str, Any]:
        """The dtypes of the parts, by name."""
        return self.parts.dtype

    @property
    def domain(self) -> dict[str, Any]:
        """The domains of the parts, by name."""
        return self.parts.domain

    @property
    @abc.abstractmethod
    def words(self) -> int:
        """Random words of 31 bits that `draw` takes for a value."""

    @abc.abstractmethod
    def draw(self, ops: SpecOps, bits: Array) -> dict[str, Any]:
        """A value for each row of random bits int32 [N, words]: the parts, with zeros in padding."""

    @abc.abstractmethod
    def inside(self, ops: SpecOps, x: Nest) -> Array:
        """Whether values, apart from padding, lie in their domain, bool [N]."""

    @abc.abstractmethod
    def nearest(self, ops: SpecOps, x: Nest) -> dict[str, Any]:
        """The nearest values of the domain, with zeros in padding."""

    @abc.abstractmethod
    def from_host(self, value: object, batch: tuple[int, ...]) -> dict[str, Any]:
        """The parts in NumPy for a value of Gymnasium, or for nested sequences [*batch, *batch_shape] of values."""

    @abc.abstractmethod
    def to_host(self, x: Nest) -> Any:
        """A value, or nested lists [*batch, *batch_shape] of values, of parts in NumPy: the inverse of `from_host`."""

    @property
    def _many(self) -> int:
        return math.prod(self.batch_shape)
