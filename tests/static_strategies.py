"""Specs, changes of shape and indices by chance, and the naive picture of a spec that they are tested against."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np

import functional_rb as frb
from functional_rb.specs.composite import members

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = ("bool", "complex64", *INTEGERS, *FLOATS)
NAMES = st.sampled_from(["a", "b", "shape", "parts", "items", "x/y", "é"])


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Data:
    x: Any
    y: Any


# --- the naive picture: one entry for each element ------------------------------------------------------------------


def elements(spec: Any) -> np.ndarray:
    """An object array of the spec's axes: what is said of each element, or of each piece of a batch."""
    if isinstance(spec, frb.Stacked):
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
    if isinstance(spec, frb.MultiCategorical):
        n, start = _number(spec.nvec, spec.axes, place), _number(spec.start, spec.axes, place)
        if spec.mask is None:
            return "choice", spec.dtype, n, start, (True,) * n
        row = [_number(spec.nvec, spec.axes, (*place[:-1], i)) for i in range(spec.axes[-1])]
        begin = sum(row[: place[-1]])
        return "choice", spec.dtype, n, start, _allowed(spec.mask, spec.axes[:-1], sum(row), place[:-1])[begin:][:n]
    if isinstance(spec, frb.OneHot):
        return kind, spec.dtype, spec.n, _allowed(spec.mask, spec.axes, spec.n, place)
    if isinstance(spec, frb.MultiOneHot):
        return kind, spec.dtype, spec.nvec, _allowed(spec.mask, spec.axes, sum(spec.nvec), place)
    if isinstance(spec, frb.Text):
        return kind, spec.max_length, spec.min_length, spec.charset
    if isinstance(spec, frb.ArraySpec | frb.NonTensor):
        return kind, spec.dtype
    return kind, *(getattr(spec, name) for name in spec.arguments[:-1])


def _number(table: Any, axes: tuple[int, ...], place: tuple[int, ...]) -> Any:
    return np.broadcast_to(np.asarray(table, object), axes)[place]


def _allowed(mask: Any, axes: tuple[int, ...], n: int, place: tuple[int, ...]) -> tuple[bool, ...]:
    return tuple(np.broadcast_to(True if mask is None else np.asarray(mask), (*axes, n))[place].tolist())


def piece(spec: Any, place: tuple[int, ...]) -> Any:
    """What there is of a spec at a place of its leading axes."""
    if isinstance(spec, frb.Stacked):
        return "side by side", spec.axis - len(place), [piece(member, place) for member in spec.members]
    if isinstance(spec, frb.Composite):
        parts = {path: piece(leaf, place) for path, leaf in members(dict(spec))}
        return "parts", spec.batch_shape[len(place) :], parts
    rest = elements(spec)[(*place, ...)]
    return "elements", rest.shape, rest.tolist()


# --- specs ----------------------------------------------------------------------------------------------------------


def shapes(least: int = 0, most: int = 3, smallest: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    return hnp.array_shapes(min_dims=least, max_dims=most, min_side=smallest, max_side=3)


def numbers(dtype: str) -> st.SearchStrategy[Any]:
    """A few numbers of a real dtype, its limits among them."""
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return st.sampled_from([int(info.min), 0, 1, 2, 7, int(info.max)])
    return st.sampled_from([-math.inf, -1.5, 0.0, -0.0, 0.1, 1 / 3, 1e-3, 255.0, math.inf])


def table_of(draw: Any, values: Any, shape: tuple[int, ...], kind: Any = object) -> np.ndarray:
    """An array that broadcasts to a shape."""
    given = draw(st.sampled_from([shape, shape[1:], (), tuple(1 for _ in shape)]))
    flat = [draw(values) for _ in range(math.prod(given))]
    return np.array(flat, kind).reshape(given)


@st.composite
def bounded(draw: Any, axes: tuple[int, ...], dtypes: tuple[str, ...] = (*INTEGERS, *FLOATS)) -> Any:
    dtype = draw(st.sampled_from(dtypes))
    tables = [np.broadcast_to(table_of(draw, numbers(dtype), axes), axes) for _ in range(2)]
    low, high = (np.asarray(f(*tables)).tolist() for f in (np.minimum, np.maximum))
    return frb.Bounded(low, high, axes, dtype) if math.prod(axes) else frb.Bounded(0, 1, axes, dtype)


def mask_of(draw: Any, axes: tuple[int, ...], counts: tuple[int, ...]) -> Any:
    """None, or a mask that allows the last of each choices."""
    if draw(st.booleans()):
        return None
    mask = table_of(draw, st.booleans(), (*axes, sum(counts)), bool)
    if mask.ndim and mask.shape[-1] == sum(counts):
        mask[..., np.cumsum(counts) - 1] = True
    else:
        mask[...] = True
    return mask


@st.composite
def choices(draw: Any, axes: tuple[int, ...]) -> Any:
    n, start = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    kind = draw(st.sampled_from(["categorical", "one_hot", "multi_one_hot"]))
    if kind == "categorical":
        return frb.Categorical(n, mask_of(draw, axes, (n,)), axes, draw(st.sampled_from(INTEGERS)), start)
    dtype = draw(st.sampled_from(["bool", "uint8", "float32"]))
    if kind == "one_hot":
        return frb.OneHot(n, mask_of(draw, axes, (n,)), (*axes, n), dtype)
    nvec = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    return frb.MultiOneHot(nvec, mask_of(draw, axes, nvec), (*axes, sum(nvec)), dtype)


@st.composite
def multi_categorical(draw: Any, axes: tuple[int, ...]) -> Any:
    nvec = table_of(draw, st.integers(1, 4), axes, int)
    start = table_of(draw, st.integers(0, 3), axes, int)
    mask = None
    if nvec.ndim < 2 and math.prod(axes):
        mask = mask_of(draw, axes[:-1], tuple(np.broadcast_to(nvec, axes[-1:]).tolist()))
    return frb.MultiCategorical(nvec, mask, axes, draw(st.sampled_from(INTEGERS)), start)


def leaves(axes: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Every kind of spec that is no nest, of given axes."""
    kinds = [
        st.builds(frb.ArraySpec, st.just(axes), st.sampled_from(DTYPES)),
        st.builds(frb.Unbounded, st.just(axes), st.sampled_from(DTYPES)),
        st.builds(frb.Binary, st.just(axes), st.sampled_from(["bool", "int8", "float32"])),
        st.builds(frb.NonTensor, st.just(axes)),
        st.builds(frb.Text, st.just(3), st.integers(0, 3), st.sampled_from(["ab", "\n'\"", "éß"]), st.just((*axes, 3))),
        bounded(axes),
        bounded(axes),
        choices(axes),
        choices(axes),
    ]
    return st.one_of(*kinds, *([multi_categorical(axes)] if axes else []))


def varying(axes: tuple[int, ...], inner: Any) -> st.SearchStrategy[Any]:
    """What varies in length or kind."""
    counts = st.integers(1, 3)
    inner = inner.filter(lambda nest: "NonTensor" not in repr(nest))  # these are of arrays alone
    return st.one_of(
        st.builds(frb.Sequence, inner, counts, st.booleans(), st.just(axes)),
        st.builds(frb.Graph, inner, st.none() | inner, counts, counts, st.just(axes)),
        st.builds(frb.OneOf, st.lists(inner, min_size=1, max_size=2), st.just(axes)),
    )


def specs(axes: tuple[int, ...], depth: int = 2) -> st.SearchStrategy[Any]:
    """A spec of given axes: a leaf, or what has parts."""
    if not depth:
        return leaves(axes)
    return st.one_of(leaves(axes), varying(axes, nests((), depth - 1)), composites(axes, depth))


@st.composite
def composites(draw: Any, batch: tuple[int, ...], depth: int = 2) -> Any:
    """Parts that lead with batch axes."""
    return frb.Composite(draw(st.dictionaries(NAMES, nests(batch, depth - 1), max_size=3)), batch_shape=batch)


@st.composite
def nests(draw: Any, batch: tuple[int, ...], depth: int) -> Any:
    """A spec whose axes begin with batch axes, or a container of such."""
    axes = (*batch, *draw(shapes(0, 1, 1)))
    kind = draw(st.sampled_from(["spec", "spec", "stacked", "tuple", "list", "pair", "data"]))
    if not depth or kind == "spec":
        return draw(specs(axes, depth))
    two = [draw(nests(batch, depth - 1)) for _ in range(2)]
    if kind == "stacked":
        return draw(stacked(batch, depth - 1))
    made = {"tuple": tuple, "list": list, "pair": lambda p: Pair(*p), "data": lambda p: Data(*p)}[kind]
    return made(two)


@st.composite
def stacked(draw: Any, batch: tuple[int, ...], depth: int = 1, inner: tuple[int, ...] | None = None) -> Any:
    """Members side by side, behind batch axes; of the same axes, if those are given."""
    count = draw(st.integers(0, 1))
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        axes = draw(shapes(count, count, 1)) if inner is None else inner
        parts.append(draw(specs((*batch, *axes), depth)))
    return frb.Stacked(parts, len(batch) + draw(st.integers(0, len(parts[0].axes) - len(batch))))


# --- changes of shape -----------------------------------------------------------------------------------------------


@st.composite
def expansions(draw: Any, axes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes to expand to, as given (with -1) and in full."""
    full = (*draw(shapes(0, 2)), *(draw(st.integers(0, 3)) if n == 1 else n for n in axes))
    new = len(full) - len(axes)
    given = tuple(-1 if i >= new and n == axes[i - new] and draw(st.booleans()) else n for i, n in enumerate(full))
    return given, full


@st.composite
def reshapes(draw: Any, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes to reshape to, most of them for as many elements."""
    if draw(st.integers(0, 4)) == 0:
        return tuple(draw(st.lists(st.integers(-2, 3), max_size=3)))
    sizes = []
    rest = math.prod(axes)
    for _ in range(draw(st.integers(0, 2))):
        sizes.append(draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0] or [0, 1, 2])))
        rest //= max(sizes[-1], 1)
    sizes.append(rest)
    at = draw(st.integers(-1, len(sizes) - 1))
    return tuple(-1 if i == at else n for i, n in enumerate(sizes))


@st.composite
def indices(draw: Any, axes: tuple[int, ...]) -> Any:
    """One of NumPy's indices, few of them out of bounds: what it consists of is drawn part by part."""
    parts: list[Any] = []
    at = 0
    while at < len(axes) and draw(st.integers(0, 5)):
        n = axes[at]
        kind = draw(st.sampled_from(["int", "slice", "slice", "array", "list", "bool", "bools"]))
        ints = st.integers(-n, n - 1) if n and draw(st.integers(0, 9)) else st.integers(-4, 3)
        if kind == "int":
            parts.append(draw(ints))
        elif kind == "slice":
            step = draw(st.sampled_from([None, 1, 2, -1, -2]))
            parts.append(slice(*(draw(st.none() | st.integers(-4, 4)) for _ in range(2)), step))
        elif kind in ("array", "list"):
            found = np.array([draw(ints), draw(ints)]).reshape(draw(st.sampled_from([(2,), (2, 1), (1, 2)])))
            parts.append(found if kind == "array" else found.tolist())
        else:
            over = axes[at : at + (1 if kind == "bool" else 2)]
            parts.append(draw(hnp.arrays(bool, over)))
            at += len(over) - 1
        at += 1
    for extra in draw(st.lists(st.sampled_from([None, Ellipsis, np.newaxis, True]), max_size=2)):
        parts.insert(draw(st.integers(0, len(parts))), extra)
    return parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)
