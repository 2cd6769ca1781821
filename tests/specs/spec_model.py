"""The naive picture of a spec: what it says of each element, in a table."""

from __future__ import annotations

from typing import Any

import numpy as np

import functional_rb as frb
from tests.support.grammar import Data


def elements(spec: Any) -> np.ndarray:
    """An object array of the spec's axes: what is said of each element, or of each piece of a batch."""
    if isinstance(spec, frb.specs.Stacked):
        return np.stack([elements(member) for member in spec.members], spec.axis)
    table = np.empty(spec.axes, object)
    for place in np.ndindex(*spec.axes):
        table[place] = _element(spec, place)
    return table


def _element(spec: Any, place: tuple[int, ...]) -> Any:
    kind = type(spec).__name__
    if isinstance(spec, frb.Composite):
        return piece(spec, place)
    if isinstance(spec, frb.Bounded):
        return kind, spec.dtype, _number(spec.low, spec.axes, place), _number(spec.high, spec.axes, place)
    if isinstance(spec, frb.Categorical):
        return "choice", spec.dtype, spec.n, spec.start, _allowed(spec.mask, spec.axes, spec.n, place)
    if isinstance(spec, frb.specs.MultiCategorical):
        n, start = _number(spec.nvec, spec.axes, place), _number(spec.start, spec.axes, place)
        if spec.mask is None:
            return "choice", spec.dtype, n, start, (True,) * n
        row = [_number(spec.nvec, spec.axes, (*place[:-1], i)) for i in range(spec.axes[-1])]
        begin = sum(row[: place[-1]])
        return "choice", spec.dtype, n, start, _allowed(spec.mask, spec.axes[:-1], sum(row), place[:-1])[begin:][:n]
    if isinstance(spec, frb.specs.OneHot):
        return kind, spec.dtype, spec.n, _allowed(spec.mask, spec.axes, spec.n, place)
    if isinstance(spec, frb.specs.MultiOneHot):
        return kind, spec.dtype, spec.nvec, _allowed(spec.mask, spec.axes, sum(spec.nvec), place)
    if isinstance(spec, frb.specs.Text):
        return kind, spec.max_length, spec.min_length, spec.charset
    if isinstance(spec, frb.specs.ArraySpec | frb.specs.NonTensor):
        return kind, spec.dtype
    return kind, *(getattr(spec, name) for name in spec.arguments[:-1])


def _number(table: Any, axes: tuple[int, ...], place: tuple[int, ...]) -> Any:
    return np.broadcast_to(np.asarray(table, object), axes)[place]


def _allowed(mask: Any, axes: tuple[int, ...], n: int, place: tuple[int, ...]) -> tuple[bool, ...]:
    return tuple(np.broadcast_to(True if mask is None else np.asarray(mask), (*axes, n))[place].tolist())


def piece(spec: Any, place: tuple[int, ...]) -> Any:
    """What there is of a spec at a place of its leading axes."""
    if isinstance(spec, frb.specs.Stacked):
        return "side by side", spec.axis - len(place), [piece(member, place) for member in spec.members]
    if isinstance(spec, frb.Composite):
        parts = {name: _inner(part, place) for name, part in spec.items()}
        return "parts", spec._container, spec.batch_shape[len(place) :], parts
    rest = elements(spec)[(*place, ...)]
    return "elements", rest.shape, rest.tolist()


def _inner(nest: Any, place: tuple[int, ...]) -> Any:
    if isinstance(nest, Data):
        return Data, _inner(nest.x, place), _inner(nest.y, place)
    if isinstance(nest, list | tuple):
        return type(nest), [_inner(part, place) for part in nest]
    return piece(nest, place)
