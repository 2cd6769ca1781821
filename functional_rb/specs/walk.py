"""Going through a nest of specs and values of it together, down to the units: arrays, objects, what varies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from functional_rb.base.containers import of_fields
from functional_rb.specs.array import ArraySpec
from functional_rb.specs.composite import Composite
from functional_rb.specs.non_tensor import NonTensor
from functional_rb.specs.stacked import Stacked


def is_unit(spec: Any) -> bool:
    """Whether a spec is dealt with as a whole, and no further taken apart."""
    from functional_rb.specs.varying import Varying  # which itself goes through its parts

    return isinstance(spec, (ArraySpec, NonTensor, Varying))


def each(function: Callable[..., Any], spec: Any, *values: Any) -> Any:
    """What a function makes of every unit of a nest of specs, with what values have in its place.

    Args:
        function: called with a unit and one part of each value.
        spec: a nest of specs.
        *values: nests with the same keys.

    Returns:
        The nest of results: dicts for composites, tuples for members side by side, the same containers else.
    """
    if is_unit(spec):
        return function(spec, *values)
    if isinstance(spec, Composite):
        return {name: each(function, part, *(value[name] for value in values)) for name, part in spec.items()}
    if isinstance(spec, Stacked):
        spec = spec.members
    if isinstance(spec, tuple | list):
        parts = [each(function, part, *(value[i] for value in values)) for i, part in enumerate(spec)]
        return type(spec)(*parts) if hasattr(spec, "_fields") else type(spec)(parts)
    if spec is None:
        return None
    if dataclasses.is_dataclass(spec) and not isinstance(spec, type):
        names = [field.name for field in dataclasses.fields(spec)]
        fields = {n: each(function, getattr(spec, n), *(getattr(value, n) for value in values)) for n in names}
        return of_fields(type(spec), fields)
    raise TypeError(f"expected a spec such as frb.Unbounded(shape), or a nest of them, got {spec!r:.80}")
