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
# Functions of `draw` rather than strategies of strategies: hypothesis takes longer to build those than to draw.

COUNTS = st.integers(0, 3)
BOOLS = st.booleans()
NUMBERS = {
    **{kind: st.sampled_from([int(np.iinfo(kind).min), 0, 1, 2, 7, int(np.iinfo(kind).max)]) for kind in INTEGERS},
    **{kind: st.sampled_from([-math.inf, -1.5, 0.0, -0.0, 0.1, 1 / 3, 1e-3, 255.0, math.inf]) for kind in FLOATS},
}
SHAPES = {
    (least, most, smallest): hnp.array_shapes(min_dims=least, max_dims=most, min_side=smallest, max_side=3)
    for least in (0, 1)
    for most in (0, 1, 2, 3)
    for smallest in (0, 1)
    if least <= most
}
PICK: dict[tuple[Any, ...], Any] = {}
LEAVES = ("any", "unbounded", "binary", "object", "text", *["bounded"] * 3, "categorical", "one_hot", "multi_one_hot")
NESTS = ("spec", "spec", "stacked", "tuple", "list", "pair", "data")
NAMES = ("a", "b", "shape", "parts", "items", "x/y", "é")


def shapes(least: int = 0, most: int = 3, smallest: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    return SHAPES[least, most, smallest]


def pick(draw: Any, *options: Any) -> Any:
    """One of some, by a strategy that is made once."""
    return draw(PICK.setdefault(options, st.sampled_from(options)))


def table_of(draw: Any, values: Any, shape: tuple[int, ...], kind: Any = object) -> np.ndarray:
    """An array that broadcasts to a shape."""
    given = pick(draw, shape, shape[1:], (), tuple(1 for _ in shape))
    return np.array([draw(values) for _ in range(math.prod(given))], kind).reshape(given)


def bounded(draw: Any, axes: tuple[int, ...]) -> Any:
    dtype = pick(draw, *INTEGERS, *FLOATS)
    tables = [np.broadcast_to(table_of(draw, NUMBERS[dtype], axes), axes) for _ in range(2)]
    least, largest = (np.asarray(f(*tables)) for f in (np.minimum, np.maximum))
    # Between two infinities of one sign there is no number.
    low, high = np.where(least == math.inf, 0.0, least).tolist(), np.where(largest == -math.inf, 0.0, largest).tolist()
    if dtype in INTEGERS:
        low, high = least.tolist(), largest.tolist()
    return frb.Bounded(low, high, axes, dtype) if math.prod(axes) else frb.Bounded(0, 1, axes, dtype)


def mask_of(draw: Any, axes: tuple[int, ...], counts: tuple[int, ...]) -> Any:
    """None, or a mask that allows the last of each choices."""
    if draw(BOOLS):
        return None
    mask = table_of(draw, BOOLS, (*axes, sum(counts)), bool)
    if mask.ndim and mask.shape[-1] == sum(counts):
        mask[..., np.cumsum(counts) - 1] = True
    else:
        mask[...] = True
    return mask


def multi_categorical(draw: Any, axes: tuple[int, ...]) -> Any:
    nvec = table_of(draw, COUNTS, axes, int) + 1
    start = table_of(draw, COUNTS, axes, int)
    mask = None
    if nvec.ndim < 2 and math.prod(axes):
        mask = mask_of(draw, axes[:-1], tuple(np.broadcast_to(nvec, axes[-1:]).tolist()))
    return frb.MultiCategorical(nvec, mask, axes, pick(draw, *INTEGERS), start)


def leaf(draw: Any, axes: tuple[int, ...], objects: bool) -> Any:
    """Every kind of spec that is no nest, of given axes."""
    kind = pick(draw, *LEAVES, *(("multi", "multi") if axes else ()))
    n = draw(COUNTS) + 1
    if kind == "object":
        return frb.NonTensor(axes) if objects else frb.Binary(axes)
    if kind == "bounded":
        return bounded(draw, axes)
    if kind == "multi":
        return multi_categorical(draw, axes)
    if kind == "categorical":
        return frb.Categorical(n, mask_of(draw, axes, (n,)), axes, pick(draw, *INTEGERS), draw(COUNTS))
    if kind == "one_hot":
        return frb.OneHot(n, mask_of(draw, axes, (n,)), (*axes, n), pick(draw, "bool", "uint8", "float32"))
    if kind == "multi_one_hot":
        nvec = tuple(draw(COUNTS) + 1 for _ in range(n))
        return frb.MultiOneHot(nvec, mask_of(draw, axes, nvec), (*axes, sum(nvec)), pick(draw, "bool", "float32"))
    if kind == "text":
        return frb.Text(3, draw(COUNTS), pick(draw, "ab", "\n'\"", "éß"), (*axes, 3))
    if kind == "binary":
        return frb.Binary(axes, pick(draw, "bool", "int8", "float32"))
    return (frb.ArraySpec if kind == "any" else frb.Unbounded)(axes, pick(draw, *DTYPES))


def varying(draw: Any, axes: tuple[int, ...], depth: int) -> Any:
    """What varies in length or kind: of arrays alone."""
    kind = pick(draw, "sequence", "graph", "one of")
    count, inner = draw(COUNTS) + 1, nest(draw, (), depth, False)
    if kind == "sequence":
        return frb.Sequence(inner, count, draw(BOOLS), axes)
    if kind == "graph":
        return frb.Graph(inner, nest(draw, (), 0, False) if draw(BOOLS) else None, count, draw(COUNTS) + 1, axes)
    return frb.OneOf([inner, inner][: draw(COUNTS)] or [nest(draw, (), 0, False)], axes)


def spec(draw: Any, axes: tuple[int, ...], depth: int, objects: bool = True) -> Any:
    """A spec of given axes: a leaf, or what has parts."""
    kind = pick(draw, "leaf", "varying", "composite") if depth else "leaf"
    if kind == "leaf":
        return leaf(draw, axes, objects)
    if kind == "varying":
        return varying(draw, axes, depth - 1)
    parts = {pick(draw, *NAMES): nest(draw, axes, depth - 1, objects) for _ in range(draw(COUNTS))}
    return frb.Composite(parts, batch_shape=axes)


def nest(draw: Any, batch: tuple[int, ...], depth: int, objects: bool = True) -> Any:
    """A spec whose axes begin with batch axes, or a container of such."""
    kind = pick(draw, *NESTS) if depth else "spec"
    if kind == "spec":
        return spec(draw, (*batch, *draw(shapes(0, 1, 1))), depth, objects)
    if kind == "stacked":
        return side_by_side(draw, batch, depth - 1, None, objects)
    two = [nest(draw, batch, depth - 1, objects) for _ in range(2)]
    made: Any = {"tuple": tuple, "list": list, "pair": lambda p: Pair(*p), "data": lambda p: Data(*p)}[kind]
    return made(two)


def side_by_side(draw: Any, batch: tuple[int, ...], depth: int, inner: Any, objects: bool = True) -> Any:
    """Members behind batch axes; of the same axes, if those are given."""
    count = draw(BOOLS)
    parts = []
    for _ in range(draw(COUNTS) or 1):
        axes = draw(shapes(int(count), int(count), 1)) if inner is None else inner
        parts.append(spec(draw, (*batch, *axes), depth, objects))
    return frb.Stacked(parts, len(batch) + draw(COUNTS) % (len(parts[0].axes) - len(batch) + 1))


@st.composite
def specs(draw: Any, axes: tuple[int, ...]) -> Any:
    return spec(draw, axes, 2)


@st.composite
def nests(draw: Any) -> Any:
    return nest(draw, (), 2)


@st.composite
def stacked(draw: Any) -> Any:
    """Members of the same axes, so that a table shows them."""
    return side_by_side(draw, draw(shapes(0, 1, 1)), 1, draw(shapes(0, 2, 1)))


@st.composite
def with_axes(draw: Any, least: int = 0) -> Any:
    """Specs of any kind, but for members side by side."""
    return spec(draw, draw(shapes(least, 3)), 2)


# --- changes of shape -----------------------------------------------------------------------------------------------


@st.composite
def expansions(draw: Any, axes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes to expand to, as given (with -1) and in full."""
    full = (*draw(shapes(0, 2)), *(draw(COUNTS) if n == 1 else n for n in axes))
    new = len(full) - len(axes)
    given = tuple(-1 if i >= new and n == axes[i - new] and draw(BOOLS) else n for i, n in enumerate(full))
    return given, full


@st.composite
def reshapes(draw: Any, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes to reshape to, most of them for as many elements."""
    if draw(st.integers(0, 4)) == 0:
        return tuple(draw(st.lists(st.integers(-2, 3), max_size=3)))
    sizes = []
    rest = math.prod(axes)
    for _ in range(draw(st.integers(0, 2))):
        sizes.append(pick(draw, *[n for n in range(1, rest + 1) if rest % n == 0] or [0, 1, 2]))
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
        kind = pick(draw, "int", "slice", "slice", "array", "list", "bool", "bools")
        ints = st.integers(-n, n - 1) if n and draw(st.integers(0, 9)) else st.integers(-4, 3)
        if kind == "int":
            parts.append(draw(ints))
        elif kind == "slice":
            ends = (pick(draw, None, *range(-4, 5)) for _ in range(2))
            parts.append(slice(*ends, pick(draw, None, 1, 2, -1, -2)))
        elif kind in ("array", "list"):
            found = np.array([draw(ints), draw(ints)]).reshape(pick(draw, (2,), (2, 1), (1, 2)))
            parts.append(found if kind == "array" else found.tolist())
        else:
            over = axes[at : at + (1 if kind == "bool" else 2)]
            parts.append(np.array([draw(BOOLS) for _ in range(math.prod(over))], bool).reshape(over))
            at += len(over) - 1
        at += 1
    for _ in range(max(draw(COUNTS) - 1, 0)):
        parts.insert(draw(COUNTS), pick(draw, None, Ellipsis, True))
    return parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)
