"""Gymnasium's spaces as specs, and back. What has no exact counterpart is refused, with what to do instead."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

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
    Graph,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    OneOf,
    Sequence,
    Stacked,
    Text,
    Unbounded,
)
from functional_rb.specs.array import whole_domain
from functional_rb.specs.base import SpecNest

if TYPE_CHECKING:
    from gymnasium import spaces

    AnySpace: TypeAlias = spaces.Space[Any]

FROM: Final = "from_library"
TO: Final = "to_library"


def spec_of_space(
    space: AnySpace, narrow: bool, max_length: int | None, max_edges: int | None, who: str = FROM, path: Path = ()
) -> SpecNest:
    """The spec of a space of Gymnasium, which may lie at some path of a larger nest."""
    spaces = imported("gymnasium", who).spaces
    return _FromSpaces(spaces, narrow, max_length, max_edges, who).spec(space, path)


def space_of_spec(spec: SpecNest, who: str = TO, path: Path = ()) -> AnySpace:
    """A spec as a space of Gymnasium; it may lie at some path of a larger nest."""
    return _ToSpaces(imported("gymnasium", who).spaces, who).space(spec, path)


class _FromSpaces:
    """Reads spaces; `spaces` is Gymnasium's module."""

    def __init__(
        self, spaces: ModuleType, narrow: bool, max_length: int | None, max_edges: int | None, who: str
    ) -> None:
        self.narrow, self.max_length, self.max_edges, self.who = narrow, max_length, max_edges, who
        self.readers: tuple[tuple[type, Callable[[Any, Path], SpecNest]], ...] = (
            (spaces.Box, self._box),
            (spaces.Discrete, lambda x, path: Categorical(int(x.n), dtype=self._dtype(x), start=int(x.start))),
            (spaces.MultiDiscrete, lambda x, path: MultiCategorical(x.nvec, dtype=self._dtype(x), start=x.start)),
            (spaces.MultiBinary, lambda x, path: Binary(x.shape, "int8")),
            (spaces.Text, lambda x, path: Text(x.max_length, x.min_length, x.character_set)),
            (spaces.Dict, self._dict),
            (spaces.Tuple, self._tuple),
            (spaces.Sequence, self._sequence),
            (spaces.Graph, self._graph),
            (spaces.OneOf, lambda x, path: OneOf(self._tuple(x, path))),
        )

    def spec(self, space: AnySpace, path: Path) -> SpecNest:
        # By `isinstance`: users' own spaces extend those of Gymnasium.
        for kind, read in self.readers:
            if isinstance(space, kind):
                with at(self.who, path):
                    return read(space, path)
        kinds = ", ".join(kind.__name__ for kind, _ in self.readers)
        raise TypeError(
            f"{self.who}: {shown(path)}: expected a space of Gymnasium ({kinds}), got {space!r:.80}; "
            f"wrap the environment so that it has one"
        )

    def _dtype(self, space: AnySpace) -> str:
        return stored_dtype(np.dtype(space.dtype), self.narrow)

    def _box(self, space: spaces.Box, path: Path) -> SpecNest:
        dtype = self._dtype(space)
        if dtype == "bool":
            if space.low.any() or not space.high.all():
                raise ValueError(f"truth values that are always the same have no spec, got {space}; leave them out")
            return Binary(space.shape)
        low, high = narrowed_bounds(space.low, space.high, dtype)
        # A Box always has bounds; where they are those of the dtype they say nothing.
        whole = whole_domain(dtype)
        if (low == whole.low).all() and (high == whole.high).all():
            return Unbounded(space.shape, dtype)
        return Bounded(low, high, space.shape, dtype)

    def _dict(self, space: spaces.Dict, path: Path) -> SpecNest:
        for name in space.spaces:
            if not isinstance(name, str):
                raise TypeError(f"expected names that are strings, got {name!r}; rename it to '{name}'")
        return Composite({name: self.spec(child, (*path, name)) for name, child in space.spaces.items()})

    def _tuple(self, space: spaces.Tuple, path: Path) -> tuple[SpecNest, ...]:
        return tuple(self.spec(child, (*path, i)) for i, child in enumerate(space.spaces))

    def _sequence(self, space: spaces.Sequence, path: Path) -> SpecNest:
        element = self.spec(space.feature_space, (*path, "elements"))
        return Sequence(element, self._limit("max_length", self.max_length, "elements a Sequence"), space.stack)

    def _graph(self, space: spaces.Graph, path: Path) -> SpecNest:
        nodes = self._limit("max_length", self.max_length, "nodes a Graph")
        node = self.spec(space.node_space, (*path, "nodes"))
        if space.edge_space is None:
            return Graph(node, None, nodes)
        edges = self._limit("max_edges", self.max_edges, "edges a Graph")
        return Graph(node, self.spec(space.edge_space, (*path, "edges")), nodes, edges)

    def _limit(self, name: str, value: int | None, what: str) -> int:
        if value is None:
            raise ValueError(f"a buffer has to know how many {what} may have, as a space does not say; give {name}=...")
        return value


class _ToSpaces:
    """Makes spaces; `spaces` is Gymnasium's module."""

    def __init__(self, spaces: ModuleType, who: str) -> None:
        self.spaces, self.who = spaces, who
        self.makers: dict[type, Callable[[Any, Path], AnySpace]] = {
            ArraySpec: self._unbounded,
            Unbounded: self._unbounded,
            Bounded: self._bounded,
            Binary: self._binary,
            Categorical: self._choices,
            MultiCategorical: self._choices,
            Text: self._text,
            Composite: self._mapping,
            dict: self._mapping,
            tuple: lambda spec, path: spaces.Tuple(self._each(spec, path)),
            Stacked: lambda spec, path: spaces.Tuple(self._each(spec.members, path)),
            Sequence: lambda spec, path: spaces.Sequence(
                self.space(spec.element, (*path, "elements")), stack=spec.stack
            ),
            Graph: self._graph,
            OneOf: lambda spec, path: spaces.OneOf(self._each(spec.options, path)),
        }

    def space(self, spec: SpecNest, path: Path) -> AnySpace:
        with at(self.who, path):
            make = self.makers.get(type(spec))
            if make is None:
                raise TypeError(f"no space has the values of {spec!r:.80}; {_remedy(spec)}")
            if getattr(spec, "mask", None) is not None:
                raise TypeError("spaces have no masks; leave it out, and give it to space.sample(mask=...)")
            if isinstance(spec, Sequence | Graph | OneOf) and spec.batch_shape:
                raise TypeError(f"a space has one value, not {spec.batch_shape} of them; index the spec")
            return make(spec, path)

    def _unbounded(self, spec: ArraySpec, path: Path) -> AnySpace:
        kind = dtypes.kind_of(spec.dtype)
        if kind == "bool":
            return self.spaces.Box(0, 1, spec.shape, np.bool_)
        low, high = (-np.inf, np.inf) if np.dtype(_numpy(spec)).kind in "if" else dtypes.integer_limits(spec.dtype)
        return self.spaces.Box(low, high, spec.shape, _numpy(spec))

    def _bounded(self, spec: Bounded, path: Path) -> AnySpace:
        return self.spaces.Box(np.array(spec.table("low")), np.array(spec.table("high")), spec.shape, _numpy(spec))

    def _binary(self, spec: Binary, path: Path) -> AnySpace:
        if spec.dtype == "bool":
            return self.spaces.Box(0, 1, spec.shape, np.bool_)
        if spec.dtype == "int8":  # the only dtype that a MultiBinary has
            return self.spaces.MultiBinary(spec.shape[0] if len(spec.shape) == 1 else spec.shape)
        if dtypes.kind_of(spec.dtype) != "int":
            raise TypeError(f"no space has zeros and ones alone of dtype {spec.dtype}; write Binary({spec.shape})")
        return self.spaces.Box(0, 1, spec.shape, _numpy(spec))

    def _choices(self, spec: Categorical | MultiCategorical, path: Path) -> AnySpace:
        need_integers(spec, "no space")
        if isinstance(spec, MultiCategorical):
            nvec, start = spec.table("nvec"), spec.table("start")
        else:
            nvec, start = (np.full(spec.shape, n) for n in (spec.n, spec.start))
        # A NumPy before 2.0 would wrap a number around that the dtype does not hold.
        if nvec.size and nvec.max() > dtypes.integer_limits(spec.dtype)[1]:
            raise ValueError(f"Gymnasium keeps the {nvec.max()} choices as {spec.dtype}; give the spec a wider dtype")
        if isinstance(spec, Categorical) and not spec.shape:
            return self.spaces.Discrete(spec.n, start=spec.start, dtype=_numpy(spec))
        return self.spaces.MultiDiscrete(nvec, dtype=_numpy(spec), start=start)

    def _text(self, spec: Text, path: Path) -> AnySpace:
        if spec.axes:
            raise TypeError(f"a space has one text, not {spec.axes} of them; write a tuple of Text({spec.max_length})")
        return self.spaces.Text(spec.max_length, min_length=spec.min_length, charset=spec.charset)

    def _mapping(self, spec: Composite | dict[str, SpecNest], path: Path) -> AnySpace:
        if isinstance(spec, Composite) and spec._kind is not None:
            raise TypeError(f"a space has no {spec._kind.__name__}; write Composite(spec.parts)")
        # A plain dict would be sorted.
        return self.spaces.Dict(OrderedDict((name, self.space(child, (*path, name))) for name, child in spec.items()))

    def _each(self, specs: tuple[SpecNest, ...], path: Path) -> list[AnySpace]:
        return [self.space(spec, (*path, i)) for i, spec in enumerate(specs)]

    def _graph(self, spec: Graph, path: Path) -> AnySpace:
        edge = None if spec.edge is None else self.space(spec.edge, (*path, "edges"))
        return self.spaces.Graph(self.space(spec.node, (*path, "nodes")), edge)


def _numpy(spec: ArraySpec) -> type[np.generic]:
    if spec.dtype in ("bfloat16", "complex64"):
        raise TypeError(f"no space has the dtype {spec.dtype}; change the spec's")
    return np.dtype(spec.dtype).type


def _remedy(spec: object) -> str:
    if isinstance(spec, OneHot | MultiOneHot):
        return "write spec.to_categorical(), and encode what the environment gives: rb.encode(spec, value)"
    if isinstance(spec, NonTensor):
        return "leave it out"
    if isinstance(spec, list):
        return "write a tuple"
    return "write a dict or a tuple of its parts"
