"""dm_env's array specs, and nests of them, as specs and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

import numpy as np

from functional_rb.base import dtypes
from functional_rb.base.extras import imported
from functional_rb.convert.common import Path, at, narrowed_bounds, need_integers, shown, stored_dtype
from functional_rb.specs import (
    ArraySpec,
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Text,
    Unbounded,
)
from functional_rb.specs.base import SpecNest

FROM: Final = "from_library"
TO: Final = "to_library"


def from_dm_env(spec: object, narrow: bool = False) -> Any:
    """The spec of a nest of dm_env's specs."""
    return _read(imported("dm_env.specs", FROM), spec, narrow, ())


def to_dm_env(spec: object) -> Any:
    """A spec as a nest of dm_env's specs."""
    return _write(imported("dm_env.specs", TO), spec, ())


def _read(specs: ModuleType, spec: object, narrow: bool, path: Path) -> SpecNest:
    if isinstance(spec, Mapping):
        parts = {name: _read(specs, child, narrow, (*path, name)) for name, child in spec.items()}
        with at(FROM, path):
            return Composite(parts)
    if isinstance(spec, tuple | list):
        return _sequence(spec, lambda child, key: _read(specs, child, narrow, (*path, key)))
    if not isinstance(spec, specs.Array):
        raise TypeError(
            f"{FROM}: {shown(path)}: expected a spec of dm_env (Array, BoundedArray, DiscreteArray, StringArray), "
            f"got {spec!r:.80}"
        )
    with at(FROM, path):
        if spec.dtype == object:
            return NonTensor(spec.shape)
        dtype = stored_dtype(spec.dtype, narrow)
        if isinstance(spec, specs.DiscreteArray):
            return Categorical(spec.num_values, dtype=dtype)
        if isinstance(spec, specs.BoundedArray):
            if dtype == "bool":
                if spec.minimum.any() or not spec.maximum.all():
                    raise ValueError(f"truth values that are always the same have no spec, got {spec}; leave them out")
                return Binary(spec.shape)
            return Bounded(*narrowed_bounds(spec.minimum, spec.maximum, dtype), spec.shape, dtype)
        return Unbounded(spec.shape, dtype)


def _write(specs: ModuleType, spec: Any, path: Path) -> object:
    if isinstance(spec, Mapping) and getattr(spec, "_container", None) is None:
        return {name: _write(specs, child, (*path, name)) for name, child in spec.items()}
    if isinstance(spec, tuple | list):
        return _sequence(spec, lambda child, key: _write(specs, child, (*path, key)))
    with at(TO, path):
        if isinstance(spec, NonTensor):
            return specs.Array(spec.shape, object, _name(path))
        if type(spec) not in (ArraySpec, Unbounded, Bounded, Binary, Categorical, MultiCategorical):
            raise TypeError(f"no spec of dm_env has the values of {spec!r:.80}; {_remedy(spec)}")
        if getattr(spec, "mask", None) is not None:
            raise TypeError("specs of dm_env have no masks; leave it out")
        if spec.dtype == "bfloat16":
            raise TypeError("NumPy has no dtype bfloat16; change the spec's")
        return _array(specs, spec, _name(path))


def _array(specs: ModuleType, spec: ArraySpec, name: str | None) -> object:
    if type(spec) in (ArraySpec, Unbounded):
        return specs.Array(spec.shape, spec.dtype, name)
    if isinstance(spec, Categorical | MultiCategorical):
        need_integers(spec, "no spec of dm_env")
    # A DiscreteArray is a single number from 0 on.
    if isinstance(spec, Categorical) and not spec.shape and spec.start == 0:
        return specs.DiscreteArray(spec.n, spec.dtype, name)
    if isinstance(spec, Binary) and dtypes.kind_of(spec.dtype) not in ("bool", "int"):
        raise TypeError(f"no spec of dm_env has zeros and ones alone of dtype {spec.dtype}; write Binary({spec.shape})")
    # In the dtype: NumPy makes floats of a list of 0 and 2^64 - 1.
    low, high = (np.asarray(bound, spec.dtype) for bound in spec.domain[:2])
    return specs.BoundedArray(spec.shape, spec.dtype, low, high, name)


def _name(path: Path) -> str | None:
    return "/".join(map(str, path)) or None


def _remedy(spec: object) -> str:
    if isinstance(spec, OneHot | MultiOneHot):
        return "write spec.to_categorical(), and encode what the environment gives: rb.encode(spec, value)"
    if isinstance(spec, Text):
        return f"write NonTensor({spec.axes})"
    return "write a dict, a tuple or a list of its parts"


def _sequence(parts: Any, function: Callable[[object, str | int], object]) -> object:
    keys = getattr(parts, "_fields", range(len(parts)))
    converted = [function(child, key) for key, child in zip(keys, parts, strict=True)]
    return type(parts)(*converted) if hasattr(parts, "_fields") else type(parts)(converted)
