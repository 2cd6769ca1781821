"""Units of specs while torch.compile is at work.

What a spec's methods compute beforehand, in NumPy and with Python's own numbers, torch.compile would take for tensors.
So it sees each call of a method as one operation, whose own operations are only recorded later.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from functional_rb.base import nest
from functional_rb.base.arrays import BackendArray
from functional_rb.base.nest import Structure
from functional_rb.base.tracing import constant
from functional_rb.ops.protocol import Array
from functional_rb.specs import Categorical, NonTensor, OneHot
from functional_rb.specs.values import Outline, is_leaf
from torch_backend.arrays import ops as primitives

# Units by number: what is traced may carry a number as a constant, but no object.
_UNITS: list[Any] = []


def traceable(outline: Outline) -> Outline:
    """The same outline; while tracing one whose units can be called."""
    if not torch.compiler.is_compiling():
        return outline
    members = [
        member if isinstance(member.spec, NonTensor) else dataclasses.replace(member, spec=traceable_unit(member.spec))
        for member in outline.members
    ]
    return dataclasses.replace(outline, members=tuple(members))


def traceable_unit(unit: object) -> Any:
    """The same unit; while tracing one that can be called."""
    return Opaque(unit) if torch.compiler.is_compiling() else unit


class Opaque:
    """A unit of a spec whose methods take and return tensors while torch traces them."""

    def __init__(self, unit: object) -> None:
        self.number = _number(unit)
        self.words, self.words_among = _words(unit), _words_among(unit)
        self.structure: Structure = nest.flatten(unit, is_leaf)[1].sorted()

    def draw(self, ops: object, words: BackendArray) -> Any:
        return self._nested(_call(self.number, "draw", words))

    def draw_among(self, ops: object, words: BackendArray, mask: BackendArray) -> torch.Tensor:
        return _call(self.number, "draw_among", words, mask)[0]

    def inside(self, ops: object, x: object) -> Array:
        return _call(self.number, "inside", *nest.flatten_as(self.structure, x))[0]

    def nearest(self, ops: object, x: object) -> Any:
        return self._nested(_call(self.number, "nearest", *nest.flatten_as(self.structure, x)))

    def encoded(self, ops: object, value: BackendArray) -> BackendArray:
        return _call(self.number, "encoded", value)[0]

    def decoded(self, ops: object, x: BackendArray) -> BackendArray:
        return _call(self.number, "decoded", x)[0]

    def _nested(self, leaves: Any) -> Any:
        return nest.unflatten(self.structure, leaves)


@constant
def _number(unit: object) -> int:
    # Only here, where torch is compiling: it imports the compiler. Once is enough, and more do no harm.
    torch.compiler.allow_in_graph(_call)
    if unit not in _UNITS:
        _UNITS.append(unit)
    return _UNITS.index(unit)


@constant
def _words(unit: Any) -> int:
    return int(unit.words)


@constant
def _words_among(unit: object) -> int:
    return int(unit.words_among) if isinstance(unit, Categorical | OneHot) else 0  # `rand` has masks for these


# What a method makes of the leaves of its arguments, as leaves.
def _call(number: int, method: str, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    unit = _UNITS[number]
    structure = nest.flatten(unit, is_leaf)[1].sorted()
    arguments = (nest.unflatten(structure, tensors),) if method in ("inside", "nearest") else tensors
    result = getattr(unit, method)(primitives, *arguments)
    return tuple(nest.flatten_as(structure, result)) if method in ("draw", "nearest") else (result,)
