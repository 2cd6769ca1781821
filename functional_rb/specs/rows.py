"""Functions of all units of a nest of specs and of its values; and values in rows [R, ...].

Values that vary in length or kind are made of rows: a value of `Sequence(element, 5)` for N items is drawn, tested and
projected as 5 N rows of the element.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence as Rows
from typing import TypeVar

import numpy as np

from functional_rb.base.arrays import Array, Nest, NumpyArray
from functional_rb.base.containers import of_fields
from functional_rb.ops.protocol import SpecOps
from functional_rb.specs import numpy_ops
from functional_rb.specs.array import ArraySpec
from functional_rb.specs.base import SpecNest, Unit
from functional_rb.specs.composite import Composite
from functional_rb.specs.non_tensor import NonTensor
from functional_rb.specs.stacked import Stacked

Row = TypeVar("Row")


def is_unit(spec: object) -> bool:
    """Whether a spec is dealt with as a whole: an array, objects, or parts that vary together."""
    return isinstance(spec, (Unit, NonTensor))  # no union, which torch.compile of torch 2.8 does not trace


def each(function: Callable[..., object], spec: SpecNest, *values: Nest) -> Nest:
    """Apply a function to every unit of a nest of specs, with what values of the same keys have in its place.

    The results come in dicts for composites, in tuples for stacked members, else in the same containers.
    """
    if is_unit(spec):
        return function(spec, *values)
    if isinstance(spec, Composite):
        return {name: each(function, child, *(value[name] for value in values)) for name, child in spec.items()}
    if isinstance(spec, Stacked):
        spec = spec.members
    if isinstance(spec, tuple | list):
        parts = [each(function, child, *(value[i] for value in values)) for i, child in enumerate(spec)]
        return type(spec)(*parts) if hasattr(spec, "_fields") else type(spec)(parts)
    if spec is None:
        return None
    if dataclasses.is_dataclass(spec) and not isinstance(spec, type):
        names = [field.name for field in dataclasses.fields(spec)]
        fields = {n: each(function, getattr(spec, n), *(getattr(value, n) for value in values)) for n in names}
        return of_fields(type(spec), fields)
    raise TypeError(f"expected a spec such as frb.Unbounded(shape), or a nest of them, got {spec!r:.80}")


def units(nest: SpecNest) -> list[Unit]:
    collected: list[Unit] = []
    each(collected.append, nest)
    return collected


def words(nest: SpecNest) -> int:
    """How many words of random bits one row takes."""
    return sum(unit.words for unit in units(nest))


def draw(ops: SpecOps, nest: SpecNest, bits: Array) -> Nest:
    """A random row for each row of random bits int32 [R, words]."""
    start = 0

    def drawn(unit: Unit) -> Nest:
        nonlocal start
        start += unit.words
        return unit.draw(ops, bits[:, start - unit.words : start])

    return each(drawn, nest)


def inside(ops: SpecOps, nest: SpecNest, value: Nest, all_true: Array) -> Array:
    """Whether rows lie in the domain, bool [R]; `all_true` bool [R] is the answer for a nest without units."""
    good = all_true

    def look(unit: Unit, unit_value: Nest) -> None:
        nonlocal good
        good = good & unit.inside(ops, unit_value)

    each(look, nest, value)
    return good


def nearest(ops: SpecOps, nest: SpecNest, value: Nest) -> Nest:
    return each(lambda unit, unit_value: unit.nearest(ops, unit_value), nest, value)


def each_array(function: Callable[..., object], nest: SpecNest, *values: Nest) -> Nest:
    """`each`, down to the arrays that units are stored as."""

    def below(unit: SpecNest, *parts: Nest) -> object:
        return function(unit, *parts) if isinstance(unit, ArraySpec) else each_array(function, unit.parts, *parts)

    return each(below, nest, *values)


def regrouped(nest: SpecNest, value: Nest, axes: int, lead: tuple[int, ...]) -> Nest:
    """A value whose first `axes` axes are reshaped to `lead`."""
    return each_array(lambda leaf, x: x.reshape((*lead, *x.shape[axes:])), nest, value)


def cleared(ops: SpecOps, nest: SpecNest, value: Nest, real: Array) -> Nest:
    """A value [*lead, ...] with zeros where bool [*lead] is False."""

    def clear(leaf: ArraySpec, x: Array) -> Array:
        marked = real.reshape(*real.shape, *(1 for _ in x.shape[len(real.shape) :]))
        return ops.where(marked, x, ops.table(np.zeros(()), leaf.dtype, x))

    return each_array(clear, nest, value)


def from_host(nest: SpecNest, values: Rows[Nest], stacked: bool = False) -> Nest:
    """Rows in NumPy for values of an environment: one row for each value; of stacked values, all rows of each."""

    def read(unit: Unit, *parts: Nest) -> Nest:
        rows = [row for unit_value in parts for row in unit_value] if stacked else list(parts)
        if not rows and isinstance(unit, ArraySpec):
            return numpy_ops.zeros((0, *unit.shape), unit.dtype)
        return unit.from_host(rows, (len(rows),))

    try:
        return each(read, nest, *values)
    except (LookupError, AttributeError) as error:
        raise ValueError(f"expected values with the keys of {nest!r:.80}, got one without {error}") from None


def count(nest: SpecNest, stacked: Nest) -> int:
    try:
        counts: set[int] = set()
        each(lambda unit, unit_rows: counts.add(len(unit_rows)), nest, stacked)
    except (LookupError, AttributeError, TypeError) as error:
        raise ValueError(f"expected stacked values of {nest!r:.80}, got {type(stacked).__name__}: {error}") from None
    if len(counts) != 1:
        raise ValueError(f"expected parts of one length, got {sorted(counts)}")
    return counts.pop()


def to_host(nest: SpecNest, rows: Nest) -> Nest:
    """Rows as an environment has them, in one stacked value."""
    return each(lambda unit, unit_rows: unit.to_host(unit_rows), nest, rows)


def to_values(nest: SpecNest, rows: Nest, count: int) -> list[Nest]:
    """Rows as an environment has them, in one value for each row."""
    stacked = to_host(nest, rows)

    def at(i: int) -> Nest:
        return each(lambda unit, x: x[i, ...] if isinstance(x, np.ndarray) else x[i], nest, stacked)

    return [at(i) for i in range(count)]


def scattered(nest: SpecNest, rows: Nest, real: NumpyArray) -> Nest:
    """Rows [R, ...] put one after the other where bool [*lead] is True, and zeros elsewhere."""
    return each_array(lambda leaf, x: placed(x, real), nest, rows)


def placed(x: NumpyArray, real: NumpyArray) -> NumpyArray:
    padded = np.zeros((*real.shape, *x.shape[1:]), x.dtype)
    padded[real] = x
    return padded


def listed(value: Nest, lead: tuple[int, ...]) -> list[Nest]:
    """The values in nested sequences, whose lengths are `lead`."""
    if not lead:
        return [value]
    if not isinstance(value, list | tuple | np.ndarray) or len(value) != lead[0]:
        got = f"{len(value)}" if isinstance(value, list | tuple | np.ndarray) else f"a {type(value).__name__}"
        raise ValueError(f"expected a sequence of {lead[0]} values, got {got}; tell the batch")
    return [one for inner in value for one in listed(inner, lead[1:])]


def nested(values: Rows[object], lead: tuple[int, ...]) -> object:
    """Values in nested lists of lengths `lead`, or the single value if there are none: the inverse of `listed`."""
    objects = np.empty(len(values), object)
    for i, value in enumerate(values):  # one by one, as NumPy would take sequences among them apart
        objects[i] = value
    return objects.reshape(lead).tolist() if lead else objects[0]
