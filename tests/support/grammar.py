"""Specs by chance, for every test that takes any spec: leaves of every kind, nests of them, and changes of their shape.

Functions of `draw` rather than strategies of strategies: hypothesis takes longer to build those than to draw.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import ml_dtypes
import numpy as np

import functional_rb as frb

Strategy = st.SearchStrategy[Any]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
REAL = (*INTEGERS, *FLOATS)
# What zeros and ones can be stored as.
NARROW = ("bool", *REAL, "bfloat16")
DTYPES = (*NARROW, "complex64")


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Data:
    x: Any
    y: Any


class Box:
    """Stands for a container of torch."""


# --- numbers --------------------------------------------------------------------------------------------------------

COUNTS = st.integers(0, 3)
CHOICES = st.integers(1, 5)
BOOLS = st.booleans()
NAMES = ("a", "b", "c", "shape", "parts", "items", "x/y", "x", "é", "_.")
CHARSETS = st.sampled_from(["a", "ab", "acz", "\x01\x7f", "\n'\"\\", "éß", "aé\U0001f600"]) | st.text(
    st.characters(min_codepoint=1, max_codepoint=300), min_size=1, max_size=5
)


def limits(dtype: str) -> tuple[Any, Any]:
    """The least and the greatest number of a dtype, as Python's."""
    if dtype in INTEGERS:
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return float(ml_dtypes.finfo(dtype).min), float(ml_dtypes.finfo(dtype).max)


def _numbers(dtype: str) -> Strategy:
    """Numbers of a dtype; those where something changes often."""
    low, high = limits(dtype)
    if dtype in INTEGERS:
        return st.sampled_from([low, low + 1, 0, 1, 2, 7, high - 1, high]) | st.integers(low, high)
    tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    some = [low, high, -math.inf, math.inf, 0.0, -0.0, tiny, -tiny, 1.0, -1.5, 0.1, 1 / 3, 1e-3, 255.0]
    return st.sampled_from(some) | st.floats(low, high, width={"float64": 64, "float16": 16}.get(dtype, 32))


NUMBERS = {dtype: _numbers(dtype) for dtype in (*REAL, "bfloat16")}
# Where numbers of choices begin: near zero, or at an end of the dtype.
STARTS = {
    dtype: st.sampled_from([0, 1, 2, max(low, -3), low, high - 8])
    for dtype, (low, high) in ((dtype, limits(dtype)) for dtype in INTEGERS)
}
SHAPES = {
    (least, most, smallest): hnp.array_shapes(min_dims=least, max_dims=most, min_side=smallest, max_side=3)
    for least in (0, 1)
    for most in (0, 1, 2, 3)
    for smallest in (0, 1)
    if least <= most
}
PICK: dict[tuple[Any, ...], Any] = {}
# For numbers of choices a bit for each that is forbidden, but never all.
MASKS = {n: st.integers(0, 2**n - 2) for n in range(1, 6)}


def shapes(least: int = 0, most: int = 3, smallest: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    return SHAPES[least, most, smallest]


def pick(draw: Any, *options: Any) -> Any:
    """One of some, by a strategy that is made once."""
    return draw(PICK.setdefault(options, st.sampled_from(options)))


def given_shape(draw: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to a shape."""
    return pick(draw, shape, shape[1:], (), tuple(1 for _ in shape)) if shape else ()


def table_of(draw: Any, values: Strategy, shape: tuple[int, ...], kind: Any = object) -> np.ndarray:
    """An array that broadcasts to a shape."""
    given = given_shape(draw, shape)
    return np.array([draw(values) for _ in range(math.prod(given))], kind).reshape(given)


# --- leaves ---------------------------------------------------------------------------------------------------------

# The kinds of leaves, and their dtypes.
LEAVES = {
    "any": DTYPES,
    "unbounded": DTYPES,
    "binary": NARROW,
    "bounded": (*REAL, "bfloat16"),
    "categorical": INTEGERS,
    "multi_categorical": INTEGERS,
    "one_hot": NARROW,
    "multi_one_hot": NARROW,
    "text": (),
    "object": (),
}


def leaves_of(dtypes: tuple[str, ...], *without: str) -> dict[str, tuple[str, ...]]:
    """The leaves that have some dtypes, without some kinds."""
    return {
        kind: tuple(dtype for dtype in known if dtype in dtypes)
        for kind, known in LEAVES.items()
        if kind not in without
    }


def bounded(draw: Any, axes: tuple[int, ...], dtype: str) -> Any:
    """Bounds for each element, or for several at once, finite or not."""
    tables = [np.broadcast_to(table_of(draw, NUMBERS[dtype], axes), axes) for _ in range(2)]
    low, high = (np.asarray(f(*tables)) for f in (np.minimum, np.maximum))
    if dtype not in INTEGERS:  # between two infinities of one sign there is no number
        low, high = np.where(low == math.inf, 0.0, low), np.where(high == -math.inf, 0.0, high)
    if not math.prod(axes):
        return frb.Bounded(0, 1, axes, dtype)
    return frb.Bounded(low.tolist(), high.tolist(), axes, dtype)


def mask_of(draw: Any, axes: tuple[int, ...], counts: tuple[int, ...]) -> Any:
    """None, or a mask that allows something of each choice: for all elements at once, or for each."""
    if draw(BOOLS):
        return None
    given = given_shape(draw, axes)
    mask = np.empty((math.prod(given), sum(counts)), bool)
    for row in mask:
        row[:] = [~bits >> k & 1 for n, bits in [(n, draw(MASKS[n])) for n in counts] for k in range(n)]
    return mask.reshape(*given, sum(counts))


def multi_categorical(draw: Any, axes: tuple[int, ...], dtype: str, masks: bool, starts: bool) -> Any:
    nvec, start = table_of(draw, COUNTS, axes, int) + 1, np.zeros((), dtype)
    if starts:
        start = table_of(draw, STARTS[dtype], axes, dtype)
    mask = None
    if masks and nvec.ndim < 2 and math.prod(axes):
        mask = mask_of(draw, axes[:-1], tuple(np.broadcast_to(nvec, axes[-1:]).tolist()))
    return frb.specs.MultiCategorical(nvec, mask, axes, dtype, start)


# --- nests ----------------------------------------------------------------------------------------------------------

# What has axes, and parts.
PARTED = ("composite", "box", "sequence", "graph", "one of")
CONTAINERS = ("stacked", "agents", "uneven", "dict", "tuple", "list", "pair", "data")


@dataclasses.dataclass(frozen=True)
class Grammar:
    """What may be drawn: specs of given axes, or nests whose axes begin with batch axes."""

    # Kinds of leaves, and dtypes of each.
    leaves: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=lambda: LEAVES)
    # What they may lie in; dicts, which have no hash, only where they are asked for.
    nests: tuple[str, ...] = tuple(kind for kind in (*PARTED, *CONTAINERS) if kind != "dict")
    # How many axes a spec has beside the batch's at least and at most, and how long they are at least.
    axes: tuple[int, int, int] = (0, 1, 1)
    # Kinds without axes of their own.
    single: tuple[str, ...] = ()
    masks: bool = True
    # Whether choices may begin elsewhere than at zero.
    starts: bool = True
    # The most elements of sequences, and whether those of a user are stacked.
    sequences: tuple[tuple[int, bool], ...] = tuple((n, stack) for n in (1, 2, 3) for stack in (False, True))
    names: tuple[str, ...] = NAMES
    # How many parts nests have at least.
    least: int = 0

    # Strategies.

    def nests_of(self, depth: int = 2) -> Strategy:
        return by(self.nest, (), depth)

    def specs(self, axes: tuple[int, ...], depth: int = 2) -> Strategy:
        """Specs of given axes."""
        return by(self.spec, axes, depth)

    def with_axes(self, least: int = 0) -> Strategy:
        """Specs of any axes, but for members side by side."""
        return by(lambda draw: self.spec(draw, draw(shapes(least, 3)), 2))

    def one_leaf(self) -> Strategy:
        return by(self.nest, (), 0)

    def stacked(self) -> Strategy:
        """Members of the same axes, so that a table shows them."""
        return by(lambda draw: self.side_by_side(draw, draw(shapes(0, 1, 1)), 1, draw(shapes(0, 2, 1))))

    # Functions of `draw`.

    def leaf(self, draw: Any, kind: str, axes: tuple[int, ...], objects: bool) -> Any:
        """Every kind of spec that is no nest, of given axes."""
        if kind == "object":
            return frb.specs.NonTensor(axes) if objects else frb.Binary(axes)
        if kind == "text":
            most = draw(COUNTS) + 1
            return frb.specs.Text(most, min(draw(COUNTS), most), draw(CHARSETS), (*axes, most))
        if kind == "multi_categorical" and not axes:
            kind = "categorical"
        dtype = pick(draw, *self.leaves[kind])
        if kind == "bounded":
            return bounded(draw, axes, dtype)
        if kind == "multi_categorical":
            return multi_categorical(draw, axes, dtype, self.masks, self.starts)
        if kind in ("any", "unbounded", "binary"):
            return {"any": frb.specs.ArraySpec, "unbounded": frb.Unbounded, "binary": frb.Binary}[kind](axes, dtype)
        counts = tuple(draw(CHOICES) for _ in range(draw(COUNTS) or 1 if kind == "multi_one_hot" else 1))
        mask = mask_of(draw, axes, counts) if self.masks else None
        if kind == "categorical":
            return frb.Categorical(counts[0], mask, axes, dtype, draw(STARTS[dtype]) if self.starts else 0)
        if kind == "one_hot":
            return frb.specs.OneHot(counts[0], mask, (*axes, counts[0]), dtype)
        return frb.specs.MultiOneHot(counts, mask, (*axes, sum(counts)), dtype)

    def parts(self, draw: Any) -> int:
        return max(draw(COUNTS), self.least)

    def kind(self, draw: Any, depth: int) -> str:
        parted = [kind for kind in PARTED if kind in self.nests] if depth else []
        kind = pick(draw, "leaf", "leaf", *parted) if parted else "leaf"
        return str(pick(draw, *self.leaves) if kind == "leaf" else kind)

    def make(self, draw: Any, kind: str, axes: tuple[int, ...], depth: int, objects: bool) -> Any:
        """A spec of given kind and axes: a leaf, or what has parts."""
        if kind in self.leaves:
            return self.leaf(draw, kind, axes, objects)
        if kind in ("composite", "box"):
            parts = {
                pick(draw, *self.names): self.nest(draw, axes, depth - 1, objects) for _ in range(self.parts(draw))
            }
            return frb.Composite.like(Box, parts, axes) if kind == "box" else frb.Composite(parts, batch_shape=axes)
        # What varies in length or kind is of arrays alone.
        inner = self.nest(draw, (), depth - 1, False)
        if kind == "sequence":
            return frb.specs.Sequence(inner, *pick(draw, *self.sequences), axes)
        other = self.nest(draw, (), depth - 1, False) if draw(BOOLS) else None
        if kind == "graph":
            return frb.specs.Graph(inner, other, draw(COUNTS) or 3, draw(COUNTS) or 3, axes)
        return frb.specs.OneOf([inner, other, inner][: draw(CHOICES)] if other else [inner], axes)

    def spec(self, draw: Any, axes: tuple[int, ...], depth: int, objects: bool = True) -> Any:
        return self.make(draw, self.kind(draw, depth), axes, depth, objects)

    def nest(self, draw: Any, batch: tuple[int, ...], depth: int, objects: bool = True) -> Any:
        """A spec whose axes begin with batch axes, or a container of such."""
        containers = [kind for kind in CONTAINERS if kind in self.nests] if depth else []
        kind = pick(draw, *["spec"] * len(containers), *containers) if containers else "spec"
        if kind == "spec":
            kind = self.kind(draw, depth)
            axes = () if kind in self.single else draw(shapes(*self.axes))
            return self.make(draw, kind, (*batch, *axes), depth, objects)
        if kind == "stacked":
            return self.side_by_side(draw, batch, depth - 1, None, objects)
        if kind == "uneven":
            size = (*batch, *draw(shapes(0, 2, 1)))
            axis = len(batch) + draw(COUNTS) % (len(size) - len(batch) + 1)
            return frb.specs.Stacked([frb.Unbounded((*size, n)) for n in (draw(CHOICES), 6)], axis)
        if kind == "dict":
            return {
                pick(draw, *self.names): self.nest(draw, batch, depth - 1, objects) for _ in range(self.parts(draw))
            }
        a, b = (self.nest(draw, batch, depth - 1, objects) for _ in range(2))
        if kind == "agents":
            members = [frb.Composite({name: x}, batch_shape=batch) for name, x in (("a", a), ("b", b))]
            return frb.specs.Stacked(members, len(batch))
        made: Any = {"pair": Pair, "data": Data}.get(kind)
        return made(a, b) if made else {"tuple": tuple, "list": list}[kind]([a, b][: self.parts(draw)])

    def side_by_side(self, draw: Any, batch: tuple[int, ...], depth: int, inner: Any, objects: bool = True) -> Any:
        """Members behind batch axes; of the same axes, if those are given."""
        count = draw(BOOLS)
        parts = []
        for _ in range(draw(COUNTS) or 1):
            axes = draw(shapes(int(count), int(count), 1)) if inner is None else inner
            parts.append(self.spec(draw, (*batch, *axes), depth, objects))
        return frb.specs.Stacked(parts, len(batch) + draw(COUNTS) % (len(parts[0].axes) - len(batch) + 1))


@st.composite
def by(draw: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of `draw` draws."""
    return function(draw, *arguments)


# Everything.
ALL = Grammar()


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
