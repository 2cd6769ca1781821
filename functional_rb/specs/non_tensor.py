"""Specs of leaves that are Python objects."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from functional_rb.specs.base import Change, Spec, changed_shape, checked_shape


@dataclasses.dataclass(frozen=True, repr=False)
class NonTensor(Spec):
    """Any Python object: stored on torch and on NumPy hosts, refused where a function is compiled.

    Attributes:
        shape: the shape of one item's objects; () for one object.

    Example:
        >>> NonTensor().dtype, NonTensor((2,)).shape
        ('object', (2,))
    """

    arguments: ClassVar[tuple[str, ...]] = ("shape",)

    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", checked_shape(self.shape))

    @property
    def dtype(self) -> str:
        """NumPy's name for the dtype of objects."""
        return "object"

    @property
    def domain(self) -> None:
        """None: objects have no order."""

    @property
    def axes(self) -> tuple[int, ...]:
        return self.shape

    def without_elements(self, batch_axes: int, batch_shape: tuple[int, ...]) -> NonTensor:
        return NonTensor((*batch_shape, *(0,) * max(len(self.shape) - batch_axes, 1)))

    def cardinality(self) -> int | float:
        return math.inf if math.prod(self.shape) else 1

    def changed(self, k: int, change: Change) -> NonTensor:
        return NonTensor(changed_shape(self.shape, change))
