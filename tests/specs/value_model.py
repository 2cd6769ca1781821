"""Values of specs, good and bad, and what specs say of values in plain Python.

The model looks at one element after the other and knows nothing of arrays' operations: `allows` says whether a value is
what a spec describes, `nearest` what projection has to make of it.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

import functional_rb as frb
from functional_rb.specs.rows import each
from tests.support.grammar import FLOATS, INTEGERS, limits

# --- values that need not be good -----------------------------------------------------------------------------------


def random_words(rng: np.random.Generator, n: int, words: int) -> np.ndarray:
    """int32 [n, words], some of them the least and the greatest there are."""
    drawn = rng.integers(0, 2**31, (n, words))
    edge = rng.choice([0, 2**31 - 1], (n, words))
    return np.where(rng.random((n, words)) < 0.2, edge, drawn).astype(np.int32)


def spoilt(rng: np.random.Generator, spec: Any, value: Any, share: float) -> Any:
    """A value of the same shape, in which a share of the numbers is something else."""

    def spoil(unit: Any, part: Any) -> Any:
        if isinstance(unit, frb.specs.ArraySpec):
            return np.where(rng.random(part.shape) < share, rng.choice(others(unit), part.shape), part)
        return spoilt(rng, unit.parts, part, share)

    return each(spoil, spec, value)


def others(spec: Any) -> np.ndarray:
    """Numbers of the dtype that are near the domain's ends, far away, or none."""
    dtype = spec.dtype
    if dtype == "bool":
        return np.array([False, True])
    if dtype == "complex64":
        return np.array([0, 1j, complex(math.nan, 1), complex(1, math.nan), math.inf], dtype)
    low, high = limits(dtype)
    ends = [int(x) if dtype in INTEGERS else float(x) for b in spec.domain[:2] for x in np.asarray(b, object).flat]
    found = {0, 1, 2, 3, low, high}
    for end in ends:
        if dtype in INTEGERS:
            found |= {end, end - 1, end + 1}
        else:
            with np.errstate(over="ignore"):
                beside = [float(np.nextafter(np.array(end, dtype), np.array(way, dtype))) for way in (-np.inf, np.inf)]
            found |= {end, *beside, 0.5, -math.inf, math.inf}
    auxiliary = [x for x in found if low <= x <= high or (dtype in FLOATS and math.isinf(x))]
    return np.array([*auxiliary, math.nan] if dtype in FLOATS else auxiliary, dtype)


# --- the model ------------------------------------------------------------------------------------------------------


def number(x: Any) -> Any:
    """A NumPy number as one of Python's, which compare exactly."""
    return x.item()


def table(x: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A number for each element, as Python's numbers."""
    return np.broadcast_to(np.asarray(x, object), shape)


def allowed_choices(spec: Any) -> dict[tuple[int, ...], list[int]]:
    """For each choice that a spec has what is allowed, counted from zero: one choice may lie behind another."""
    several = isinstance(spec, frb.specs.MultiCategorical | frb.specs.MultiOneHot)
    axes = spec.shape[:-1] if several else spec.axes
    found = {}
    for at in np.ndindex(axes):
        if isinstance(spec, frb.specs.MultiCategorical):  # perhaps other numbers of choices in each row
            counts = np.broadcast_to(spec.nvec, spec.shape)[at].tolist()
        else:
            counts = spec.nvec if isinstance(spec, frb.specs.MultiOneHot) else [spec.n]
        mask = np.broadcast_to(True if spec.mask is None else np.array(spec.mask), (*axes, sum(counts)))
        start = 0
        for i, n in enumerate(counts):
            found[(*at, i) if several else at] = [k for k in range(n) if mask[at][start + k]]
            start += n
    return found


def places(spec: Any) -> list[int]:
    """Where each choice of a vector begins."""
    counts = [spec.n] if isinstance(spec, frb.specs.OneHot) else spec.nvec
    return [sum(counts[:i]) for i in range(len(counts) + 1)]


def pieces(spec: Any, x: np.ndarray) -> dict[tuple[int, ...], list[Any]]:
    """The vector of each choice of a `OneHot` or `MultiOneHot`."""
    found = {}
    ends = places(spec)
    for at in np.ndindex(x.shape[:-1]):
        for i, (start, end) in enumerate(itertools.pairwise(ends)):
            key = at if isinstance(spec, frb.specs.OneHot) else (*at, i)
            found[key] = [number(v) for v in x[at][start:end]]
    return found


def allows(spec: Any, x: Any) -> bool:
    """Whether a value, of no batch axes, is what a spec describes."""
    return all(parts(_unit_allows, spec, x))


def parts(function: Any, spec: Any, *values: Any) -> list[Any]:
    """What a function makes of each unit."""
    found: list[Any] = []
    each(lambda *of_unit: found.append(function(*of_unit)), spec, *values)
    return found


def _unit_allows(spec: Any, x: Any) -> bool:
    if isinstance(spec, frb.specs.Sequence):
        return all(
            0 <= n <= spec.max_length
            and all(allows(spec.element, row(spec.element, x["elements"], (*at, i))) for i in range(n))
            for at, n in numbered(x["length"])
        )
    if isinstance(spec, frb.specs.Graph):
        return all(_graph_allows(spec, x, at) for at in np.ndindex(spec.batch_shape))
    if isinstance(spec, frb.specs.OneOf):
        return all(
            0 <= k < len(spec.options) and allows(spec.options[k], row(spec.options[k], x["options"][k], at))
            for at, k in numbered(x["choice"])
        )
    if isinstance(spec, frb.specs.Text):
        return all(_text_allows(spec, [number(c) for c in x[at]]) for at in np.ndindex(spec.axes))
    if isinstance(spec, frb.specs.OneHot | frb.specs.MultiOneHot):
        allowed = allowed_choices(spec)
        return all(
            sorted(v) == [0] * (len(v) - 1) + [1] and v.index(1) in allowed[at] for at, v in pieces(spec, x).items()
        )
    if isinstance(spec, frb.Categorical | frb.specs.MultiCategorical) and spec.mask is not None:
        allowed, start = allowed_choices(spec), table(spec.domain.low, spec.shape)
        return all(number(x[at]) - start[at] in allowed[at] for at in np.ndindex(x.shape))
    if spec.dtype == "complex64":
        return not any(math.isnan(v.real) or math.isnan(v.imag) for v in x.reshape(-1).tolist())
    if isinstance(spec, frb.Binary):
        return all(v in (0, 1) for v in x.reshape(-1).tolist())
    low, high = (
        (table(spec.table(name), x.shape) for name in ("low", "high"))
        if isinstance(spec, frb.Bounded)
        else (table(b, x.shape) for b in spec.domain[:2])
    )
    return all(low[at] <= number(x[at]) <= high[at] for at in np.ndindex(x.shape))


def numbered(x: np.ndarray) -> list[tuple[tuple[int, ...], int]]:
    return [(at, int(x[at])) for at in np.ndindex(x.shape)]


def row(spec: Any, x: Any, at: tuple[int, ...]) -> Any:
    """One of several values of a nest."""

    def one(unit: Any, part: Any) -> Any:
        if isinstance(unit, frb.specs.ArraySpec):
            return np.asarray(part[at])
        return row(unit.parts, part, at)

    return each(one, spec, x)


def _graph_allows(spec: Any, x: Any, at: tuple[int, ...]) -> bool:
    n = int(x["n_nodes"][at])
    if not (
        1 <= n <= spec.max_nodes and all(allows(spec.node, row(spec.node, x["nodes"], (*at, i))) for i in range(n))
    ):
        return False
    if spec.edge is None:
        return True
    edges = int(x["n_edges"][at])
    return 0 <= edges <= spec.max_edges and all(
        allows(spec.edge, row(spec.edge, x["edges"], (*at, i))) and all(0 <= int(v) < n for v in x["edge_links"][at][i])
        for i in range(edges)
    )


def _text_allows(spec: Any, points: list[int]) -> bool:
    length = points.index(0) if 0 in points else len(points)
    known = [ord(c) for c in spec.charset]
    return length >= spec.min_length and all(p in known for p in points[:length]) and not any(points[length:])


def nearest(spec: Any, x: Any) -> Any:
    """What is nearest to a value, of no batch axes; zeros for what is padding."""
    return each(_unit_nearest, spec, x)


def _unit_nearest(spec: Any, x: Any) -> Any:
    if isinstance(spec, frb.specs.Sequence):
        made = _zeros(spec.parts, x)
        for at, n in numbered(x["length"]):
            made["length"][at] = min(max(n, 0), spec.max_length)
            for i in range(made["length"][at]):
                _put(
                    spec.element,
                    made["elements"],
                    (*at, i),
                    nearest(spec.element, row(spec.element, x["elements"], (*at, i))),
                )
        return made
    if isinstance(spec, frb.specs.Graph):
        return _graph_nearest(spec, x)
    if isinstance(spec, frb.specs.OneOf):
        made = _zeros(spec.parts, x)
        for at, k in numbered(x["choice"]):
            made["choice"][at] = k = min(max(k, 0), len(spec.options) - 1)
            option = spec.options[k]
            _put(option, made["options"][k], at, nearest(option, row(option, x["options"][k], at)))
        return made
    made = np.array(x)
    if isinstance(spec, frb.specs.Text):
        for at in np.ndindex(spec.axes):
            made[at] = _text_nearest(spec, [number(c) for c in x[at]])
    elif isinstance(spec, frb.specs.OneHot | frb.specs.MultiOneHot):
        ends = places(spec)
        made[...] = 0
        for at, vector in pieces(spec, x).items():
            best = max(
                allowed_choices(spec)[at], key=lambda k: (-math.inf if vector[k] != vector[k] else vector[k], -k)
            )
            axes, i = (at, 0) if isinstance(spec, frb.specs.OneHot) else (at[:-1], at[-1])
            made[axes][ends[i] + best] = 1
    elif isinstance(spec, frb.Categorical | frb.specs.MultiCategorical):
        start = table(spec.domain.low, spec.shape)
        for at, choices in allowed_choices(spec).items():
            made[at] = min((start[at] + k for k in choices), key=lambda c: (abs(c - number(x[at])), c))
    elif spec.dtype == "complex64":
        made[np.isnan(x)] = 0
    elif isinstance(spec, frb.Binary):
        for at in np.ndindex(x.shape):
            made[at] = number(x[at]) > 0.5
    else:
        low, high = (table(b, x.shape) for b in spec.domain[:2])
        if isinstance(spec, frb.Bounded):
            low, high = spec.table("low"), spec.table("high")
        for at in np.ndindex(x.shape):
            value = 0 if number(x[at]) != number(x[at]) else number(x[at])
            made[at] = min(max(value, low[at]), high[at])
    return made


def _text_nearest(spec: Any, points: list[int]) -> list[int]:
    length = points.index(0) if 0 in points else len(points)
    known = [ord(c) for c in spec.charset]
    text = [min(known, key=lambda k: (abs(k - p), k)) for p in points[:length]]
    text += known[:1] * (spec.min_length - length)
    return text + [0] * (spec.max_length - len(text))


def _graph_nearest(spec: Any, x: Any) -> Any:
    made = _zeros(spec.parts, x)
    for at, given in numbered(x["n_nodes"]):
        made["n_nodes"][at] = n = min(max(given, 1), spec.max_nodes)
        for i in range(n):
            _put(spec.node, made["nodes"], (*at, i), nearest(spec.node, row(spec.node, x["nodes"], (*at, i))))
        if spec.edge is None:
            continue
        made["n_edges"][at] = edges = min(max(int(x["n_edges"][at]), 0), spec.max_edges)
        for i in range(edges):
            _put(spec.edge, made["edges"], (*at, i), nearest(spec.edge, row(spec.edge, x["edges"], (*at, i))))
            made["edge_links"][at][i] = [min(max(int(v), 0), n - 1) for v in x["edge_links"][at][i]]
    return made


def _zeros(spec: Any, x: Any) -> Any:
    return each(
        lambda unit, p: np.zeros_like(p) if isinstance(unit, frb.specs.ArraySpec) else _zeros(unit.parts, p), spec, x
    )


def _put(spec: Any, into: Any, at: tuple[int, ...], value: Any) -> None:
    def put(unit: Any, target: Any, part: Any) -> None:
        if isinstance(unit, frb.specs.ArraySpec):
            target[at] = part
        else:
            _put(unit.parts, target, at, part)

    each(put, spec, into, value)
