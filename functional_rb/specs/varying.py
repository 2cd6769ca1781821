"""Values that vary in length or kind, as arrays of fixed shape: padded, with numbers that tell what is real."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import operator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from functional_rb.ops import Array
from functional_rb.specs import draws, host, rows
from functional_rb.specs.array import Bounded
from functional_rb.specs.base import Change, Spec, checked_shape, whole_number
from functional_rb.specs.composite import Composite, changed, checked
from functional_rb.specs.discrete import Categorical
from functional_rb.specs.non_tensor import NonTensor
from functional_rb.specs.ops import SpecOps


class Varying(Spec):
    """What is stored as several parts that belong together; `parts` says which.

    Attributes:
        batch_shape: leading axes, of each part.
        parts: the arrays that a value is stored as.
    """

    __slots__ = ()
    batch_shape: tuple[int, ...]
    parts: Composite

    @abc.abstractmethod
    def _parts(self) -> Composite:
        """What `parts` is, made once: it is asked for at every look at a value."""

    @property
    @abc.abstractmethod
    def nests(self) -> tuple[str, ...]:
        """The attributes that are nests of specs."""

    def __hash__(self) -> int:
        """By the specs inside, as what they are held in (a list) may have none."""
        return hash((type(self), self.parts))

    def _check(self, **counts: Any) -> None:
        """Bring nests, shape and numbers into their hashable form, and make the parts."""
        who = type(self).__name__
        for name in self.nests:
            nest = checked(getattr(self, name), f"{who}.{name}")
            if any(isinstance(unit, NonTensor) for unit in rows.units(nest)):
                raise TypeError(
                    f"{who}: expected specs of arrays, got NonTensor among them; "
                    f"one NonTensor leaf holds any object, those of varying length too"
                )
            object.__setattr__(self, name, nest)
        object.__setattr__(self, "batch_shape", checked_shape(self.batch_shape))
        for name, value in counts.items():
            count = whole_number(value, f"{who}: {name}")
            if count < 1:
                raise ValueError(f"{who}: expected {name} >= 1, got {count}")
            object.__setattr__(self, name, count)
        object.__setattr__(self, "parts", self._parts())

    @property
    def axes(self) -> tuple[int, ...]:
        """The batch axes."""
        return self.batch_shape

    def changed(self, k: int, change: Change) -> Any:
        """Other batch axes."""
        shape = change(np.broadcast_to(np.int8(0), self.batch_shape)).shape
        return dataclasses.replace(self, batch_shape=shape)  # type: ignore[type-var]  # each kind is a dataclass

    @property
    def shape(self) -> dict[str, Any]:
        """The shapes of the parts, by name."""
        return self.parts.shape

    @property
    def dtype(self) -> dict[str, Any]:
        """The dtypes of the parts, by name."""
        return self.parts.dtype

    @property
    def domain(self) -> dict[str, Any]:
        """The domains of the parts, by name."""
        return self.parts.domain

    @property
    @abc.abstractmethod
    def words(self) -> int:
        """Random words of 31 bits that `draw` takes for a value."""

    @abc.abstractmethod
    def draw(self, ops: SpecOps, words: Array) -> dict[str, Any]:
        """A value for each row of int32 [N, words]: the parts, with zeros for what is not real."""

    @abc.abstractmethod
    def inside(self, ops: SpecOps, x: Any) -> Array:
        """Whether what is real lies in its domain, bool [N]."""

    @abc.abstractmethod
    def nearest(self, ops: SpecOps, x: Any) -> dict[str, Any]:
        """The nearest values of the domain, with zeros for what is not real."""

    @abc.abstractmethod
    def from_host(self, value: Any, batch: tuple[int, ...]) -> dict[str, Any]:
        """The parts in NumPy for a value of Gymnasium's, or nested sequences [*batch, *batch_shape] of them."""

    @abc.abstractmethod
    def to_host(self, x: Any) -> Any:
        """The way back, from parts in NumPy: a value, or nested lists [*batch, *batch_shape] of them."""

    @property
    def _many(self) -> int:
        """How many values lie along the batch axes."""
        return math.prod(self.batch_shape)


@dataclasses.dataclass(frozen=True, repr=False)
class Sequence(Varying):
    """Up to max_length elements that are alike.

    Stored as `elements`, which have an axis [max_length] in front, and `length` int32. What lies behind the length is
    padding: it means nothing, whatever is in it.

    Attributes:
        element: the spec of one element, or a nest of them.
        max_length: how many there may be, at least 1.
        stack: whether Gymnasium has the elements as one array (or nest of arrays), not as a tuple.
        batch_shape: leading axes.

    Example:
        >>> from functional_rb import Unbounded
        >>> Sequence(Unbounded((2,)), 5).shape
        {'elements': (5, 2), 'length': ()}
    """

    arguments: ClassVar[tuple[str, ...]] = ("element", "max_length", "stack", "batch_shape")
    __hash__ = Varying.__hash__

    element: Any
    max_length: int
    stack: bool = False
    batch_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Freeze the element and check the numbers."""
        if not isinstance(self.stack, bool):
            raise TypeError(f"Sequence: expected stack as a truth value, got {self.stack!r}; write stack=True, say")
        self._check(max_length=self.max_length)

    @property
    def nests(self) -> tuple[str, ...]:
        """The element."""
        return ("element",)

    def _parts(self) -> Composite:
        """`elements` and `length`."""
        lead = (*self.batch_shape, self.max_length)
        length = Bounded(0, self.max_length, self.batch_shape, "int32")
        return Composite({"elements": in_front(self.element, lead), "length": length}, batch_shape=self.batch_shape)

    def defaults(self) -> dict[str, Any]:
        """A tuple, one of them."""
        return {"stack": False, "batch_shape": ()}

    @property
    def words(self) -> int:
        """Those of the length and of the elements."""
        return self._many * (_length_words(0, self.max_length) + self.max_length * rows.words(self.element))

    def draw(self, ops: SpecOps, words: Array) -> dict[str, Any]:
        """Sequences of lengths that are equally likely."""
        split = self._many * _length_words(0, self.max_length)
        length = _draw_length(ops, words[:, :split], self.batch_shape, 0, self.max_length)
        elements = _draw_padded(ops, self.element, words[:, split:], self.batch_shape, self.max_length)
        real = _real(ops, length, self.max_length)
        return {"elements": rows.cleared(ops, self.element, elements, real), "length": length}

    def inside(self, ops: SpecOps, x: Any) -> Array:
        """Whether length and elements are as they should be; what lies behind the length may be anything."""
        length = x["length"]
        found = _inside_padded(ops, self.element, x["elements"], length, self.max_length)
        return _all(ops, found & (length >= 0) & (length <= self.max_length), self._many)

    def nearest(self, ops: SpecOps, x: Any) -> dict[str, Any]:
        """The length clamped and each element projected; zeros behind the length."""
        length = ops.clamp(x["length"], 0, self.max_length)
        return {
            "elements": _nearest_padded(ops, self.element, x["elements"], length, self.max_length),
            "length": length,
        }

    def from_host(self, value: Any, batch: tuple[int, ...]) -> dict[str, Any]:
        """A tuple of elements; with `stack` one array, or nest of arrays, of them."""
        lead = (*batch, *self.batch_shape)
        values = rows.listed(value, lead)
        lengths = [self._length_of(one) for one in values]
        length, real = _lengths(lengths, 0, self.max_length, "elements", "max_length")
        if not self.stack:
            values = [element for one in values for element in one]
        padded = rows.scattered(self.element, rows.from_host(self.element, values, self.stack), real)
        elements = rows.regrouped(self.element, padded, 2, (*lead, self.max_length))
        return {"elements": elements, "length": length.reshape(lead)}

    def _length_of(self, value: Any) -> int:
        if self.stack:
            return rows.count(self.element, value)
        if not isinstance(value, tuple | list):
            raise TypeError(f"expected a tuple of elements, got {type(value).__name__}")
        return len(value)

    def to_host(self, x: Any) -> Any:
        """A tuple of elements; with `stack` one array, or nest of arrays, of them."""
        lead = x["length"].shape
        elements = rows.regrouped(self.element, x["elements"], len(lead) + 1, (x["length"].size, self.max_length))
        made = []
        length, _ = _lengths(x["length"].reshape(-1), 0, self.max_length, "elements", "max_length")
        for i, n in enumerate(length.tolist()):
            own = _first(self.element, elements, i, n)
            made.append(rows.to_host(self.element, own) if self.stack else tuple(rows.to_values(self.element, own, n)))
        return rows.nested(made, lead)


@dataclasses.dataclass(frozen=True, repr=False)
class Graph(Varying):
    """A graph with up to max_nodes nodes, at least one, and up to max_edges edges.

    Stored as `nodes` [max_nodes, *node.shape], `n_nodes` int32 and, where edges have features, `edges`
    [max_edges, *edge.shape], `edge_links` int32 [max_edges, 2] (the nodes that each edge goes from and to) and
    `n_edges` int32. What lies behind the numbers is padding.

    Attributes:
        node: the spec of one node's features.
        edge: the spec of one edge's features; None for graphs without edges, as Gymnasium has it.
        max_nodes: at least 1.
        max_edges: at least 1.
        batch_shape: leading axes.

    Example:
        >>> from functional_rb import Unbounded
        >>> Graph(Unbounded((3,)), Categorical(2), max_nodes=4, max_edges=6).shape["edge_links"]
        (6, 2)
    """

    arguments: ClassVar[tuple[str, ...]] = ("node", "edge", "max_nodes", "max_edges", "batch_shape")
    __hash__ = Varying.__hash__

    node: Any
    edge: Any
    max_nodes: int
    max_edges: int = 1
    batch_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Freeze the specs and check the numbers."""
        self._check(max_nodes=self.max_nodes, max_edges=self.max_edges)

    @property
    def nests(self) -> tuple[str, ...]:
        """The node, and the edge if there is one."""
        return ("node",) if self.edge is None else ("node", "edge")

    def _parts(self) -> Composite:
        """`nodes` and `n_nodes`, and what belongs to edges."""
        lead = self.batch_shape
        parts = {
            "nodes": in_front(self.node, (*lead, self.max_nodes)),
            "n_nodes": Bounded(1, self.max_nodes, lead, "int32"),
        }
        if self.edge is not None:
            parts |= {
                "edges": in_front(self.edge, (*lead, self.max_edges)),
                "edge_links": Categorical(self.max_nodes, shape=(*lead, self.max_edges, 2)),
                "n_edges": Bounded(0, self.max_edges, lead, "int32"),
            }
        return Composite(parts, batch_shape=lead)

    def defaults(self) -> dict[str, Any]:
        """One graph."""
        return {"max_edges": 1, "batch_shape": ()}

    @property
    def words(self) -> int:
        """Those of the nodes, and of the edges, with two for each end of an edge."""
        count = _length_words(1, self.max_nodes) + self.max_nodes * rows.words(self.node)
        if self.edge is not None:
            count += _length_words(0, self.max_edges) + self.max_edges * (4 + rows.words(self.edge))
        return self._many * count

    def draw(self, ops: SpecOps, words: Array) -> dict[str, Any]:
        """Graphs of as many nodes, edges, and edges between any two nodes, as are equally likely."""
        lead, many = self.batch_shape, self._many
        cut = _Cut(words)
        n_nodes = _draw_length(ops, cut(many * _length_words(1, self.max_nodes)), lead, 1, self.max_nodes)
        nodes = _draw_padded(ops, self.node, cut(many * self.max_nodes * rows.words(self.node)), lead, self.max_nodes)
        nodes = rows.cleared(ops, self.node, nodes, _real(ops, n_nodes, self.max_nodes))
        if self.edge is None:
            return {"nodes": nodes, "n_nodes": n_nodes}
        n_edges = _draw_length(ops, cut(many * _length_words(0, self.max_edges)), lead, 0, self.max_edges)
        edges = _draw_padded(ops, self.edge, cut(many * self.max_edges * rows.words(self.edge)), lead, self.max_edges)
        ends = cut(many * self.max_edges * 4).reshape(words.shape[0], *lead, self.max_edges, 2, 2)
        real = _real(ops, n_edges, self.max_edges)
        links = draws.below(ops, ends, n_nodes[..., None, None])
        return {
            "nodes": nodes,
            "n_nodes": n_nodes,
            "edges": rows.cleared(ops, self.edge, edges, real),
            "edge_links": ops.where(real[..., None], links, links * 0),
            "n_edges": n_edges,
        }

    def inside(self, ops: SpecOps, x: Any) -> Array:
        """Whether the numbers, the nodes and edges that are real, and their ends are as they should be."""
        n_nodes = x["n_nodes"]
        found = _inside_padded(ops, self.node, x["nodes"], n_nodes, self.max_nodes)
        found = found & (n_nodes >= 1) & (n_nodes <= self.max_nodes)
        if self.edge is not None:
            n_edges, links = x["n_edges"], x["edge_links"]
            ends = (links >= 0) & (links < n_nodes[..., None, None])
            ends = (ends[..., 0] & ends[..., 1]) | ~_real(ops, n_edges, self.max_edges)
            found = found & (n_edges >= 0) & (n_edges <= self.max_edges)
            found = found & _inside_padded(ops, self.edge, x["edges"], n_edges, self.max_edges)
            found = found & _all_last(ops, ends, self.max_edges)
        return _all(ops, found, self._many)

    def nearest(self, ops: SpecOps, x: Any) -> dict[str, Any]:
        """The numbers and the edges' ends clamped, nodes and edges projected; zeros behind the numbers."""
        n_nodes = ops.clamp(x["n_nodes"], 1, self.max_nodes)
        made = {"nodes": _nearest_padded(ops, self.node, x["nodes"], n_nodes, self.max_nodes), "n_nodes": n_nodes}
        if self.edge is not None:
            n_edges, links = ops.clamp(x["n_edges"], 0, self.max_edges), x["edge_links"]
            links = ops.clamp(links, 0, n_nodes[..., None, None] - 1)
            real = _real(ops, n_edges, self.max_edges)
            made |= {
                "edges": _nearest_padded(ops, self.edge, x["edges"], n_edges, self.max_edges),
                "edge_links": ops.where(real[..., None], links, links * 0),
                "n_edges": n_edges,
            }
        return made

    def from_host(self, value: Any, batch: tuple[int, ...]) -> dict[str, Any]:
        """Whatever has `nodes`, `edges` and `edge_links` as a `gymnasium.spaces.GraphInstance`."""
        lead = (*batch, *self.batch_shape)
        values = rows.listed(value, lead)
        for one in values:
            if not all(hasattr(one, name) for name in GraphInstance._fields):
                raise TypeError(f"expected a value with {GraphInstance._fields}, got {type(one).__name__}")
        nodes, n_nodes = _read_padded(self.node, [g.nodes for g in values], 1, self.max_nodes, "nodes", lead)
        made = {"nodes": nodes, "n_nodes": n_nodes}
        if self.edge is None:
            return made
        linked = [g for g in values if g.edges is not None]
        # A graph without edges may have None, which has no rows.
        own = np.asarray([g.edges is not None for g in values], bool)
        edges, n_edges = _read_padded(self.edge, [g.edges for g in linked], 0, self.max_edges, "edges", (len(linked),))
        links = [_links(g, int(n)) for g, n in zip(linked, n_edges, strict=True)]
        real = np.arange(self.max_edges) < n_edges[:, None]
        ends = rows.placed(np.concatenate([np.zeros((0, 2), np.int32), *links]), real)
        edges = rows.scattered(self.edge, edges, own)
        made |= {
            "edges": rows.regrouped(self.edge, edges, 1, lead),
            "edge_links": rows.placed(ends, own).reshape(*lead, self.max_edges, 2),
            "n_edges": rows.placed(n_edges, own).reshape(lead),
        }
        return made

    def to_host(self, x: Any) -> Any:
        """`gymnasium.spaces.GraphInstance`s where Gymnasium is installed, else NamedTuples with the same fields.

        What was never written has no node: that is no graph, but the others of a buffer's items are to be read.
        """
        lead = x["n_nodes"].shape
        count = x["n_nodes"].size
        make = graph_instance()
        nodes = rows.regrouped(self.node, x["nodes"], len(lead) + 1, (count, self.max_nodes))
        n_nodes = _lengths(x["n_nodes"].reshape(-1), 0, self.max_nodes, "nodes", "max_nodes")[0].tolist()
        made = [
            make(rows.to_host(self.node, _first(self.node, nodes, i, n)), None, None) for i, n in enumerate(n_nodes)
        ]
        if self.edge is not None:
            edges = rows.regrouped(self.edge, x["edges"], len(lead) + 1, (count, self.max_edges))
            links = x["edge_links"].reshape(count, self.max_edges, 2)
            n_edges, _ = _lengths(x["n_edges"].reshape(-1), 0, self.max_edges, "edges", "max_edges")
            for i, n in enumerate(n_edges.tolist()):
                own = rows.to_host(self.edge, _first(self.edge, edges, i, n))
                made[i] = made[i]._replace(edges=own, edge_links=links[i, :n])
        return rows.nested(made, lead)


@dataclasses.dataclass(frozen=True, repr=False)
class OneOf(Varying):
    """A value of one of several specs.

    Stored as `choice` int32 and `options`, a tuple with an entry for each spec, of which only the chosen one means
    anything.

    Attributes:
        options: the specs, at least one, or nests of them.
        batch_shape: leading axes.

    Example:
        >>> from functional_rb import Unbounded
        >>> OneOf([Unbounded((2,)), Categorical(3)]).dtype
        {'choice': 'int32', 'options': ('float32', 'int32')}
    """

    arguments: ClassVar[tuple[str, ...]] = ("options", "batch_shape")
    __hash__ = Varying.__hash__

    options: tuple[Any, ...]
    batch_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Freeze the options."""
        if not isinstance(self.options, tuple | list):
            raise TypeError(f"OneOf: expected options as a sequence of specs, got {self.options!r:.80}")
        object.__setattr__(self, "options", tuple(self.options))
        if not self.options:
            raise ValueError("OneOf: expected at least one option, got none")
        self._check()

    @property
    def nests(self) -> tuple[str, ...]:
        """The options."""
        return ("options",)

    def _parts(self) -> Composite:
        """`choice` and `options`."""
        lead = self.batch_shape
        options = tuple(in_front(option, lead) for option in self.options)
        return Composite({"choice": Categorical(len(options), shape=lead), "options": options}, batch_shape=lead)

    def defaults(self) -> dict[str, Any]:
        """One value."""
        return {"batch_shape": ()}

    @property
    def words(self) -> int:
        """Those of the choice, and of all options."""
        return self._many * (_length_words(1, len(self.options)) + sum(rows.words(option) for option in self.options))

    def draw(self, ops: SpecOps, words: Array) -> dict[str, Any]:
        """Each option equally likely."""
        cut = _Cut(words)
        some = cut(self._many * _length_words(1, len(self.options)))
        choice = _draw_length(ops, some, self.batch_shape, 0, len(self.options) - 1)
        options = []
        for i, option in enumerate(self.options):
            own = cut(self._many * rows.words(option)).reshape(words.shape[0] * self._many, rows.words(option))
            made = rows.regrouped(option, rows.draw(ops, option, own), 1, (words.shape[0], *self.batch_shape))
            options.append(rows.cleared(ops, option, made, choice == i))
        return {"choice": choice, "options": tuple(options)}

    def inside(self, ops: SpecOps, x: Any) -> Array:
        """Whether there is such a choice, and its value lies in its domain."""
        choice = x["choice"]
        found = (choice >= 0) & (choice < len(self.options))
        for i, (option, value) in enumerate(zip(self.options, x["options"], strict=True)):
            flat = rows.regrouped(option, value, 1 + len(self.batch_shape), (choice.shape[0] * self._many,))
            own = rows.inside(ops, option, flat, (choice == choice).reshape(choice.shape[0] * self._many))
            found = found & (own.reshape(choice.shape) | (choice != i))
        return _all(ops, found, self._many)

    def nearest(self, ops: SpecOps, x: Any) -> dict[str, Any]:
        """The choice clamped and its value projected; zeros for the other options."""
        choice = ops.clamp(x["choice"], 0, len(self.options) - 1)
        options = []
        for i, (option, value) in enumerate(zip(self.options, x["options"], strict=True)):
            near = _in_rows(lambda flat, option=option: rows.nearest(ops, option, flat), option, value, choice.shape)
            options.append(rows.cleared(ops, option, near, choice == i))
        return {"choice": choice, "options": tuple(options)}

    def from_host(self, value: Any, batch: tuple[int, ...]) -> dict[str, Any]:
        """A pair: the number of the option, and its value."""
        lead = (*batch, *self.batch_shape)
        values = rows.listed(value, lead)
        for one in values:
            if not isinstance(one, tuple | list) or len(one) != 2:
                raise TypeError(f"expected a pair (option, value), got {one!r:.80}")
        choice = np.asarray([operator.index(number) for number, _ in values], np.int32)
        self._check_choice(choice)
        options = []
        for i, option in enumerate(self.options):
            made = rows.from_host(option, [own for number, own in values if number == i])
            options.append(rows.regrouped(option, rows.scattered(option, made, choice == i), 1, lead))
        return {"choice": choice.reshape(lead), "options": tuple(options)}

    def to_host(self, x: Any) -> Any:
        """A pair: the number of the option, and its value."""
        lead = x["choice"].shape
        choice = x["choice"].reshape(-1)
        self._check_choice(choice)
        made: list[Any] = [None] * len(choice)
        for i, (option, value) in enumerate(zip(self.options, x["options"], strict=True)):
            own = np.flatnonzero(choice == i)
            flat = rows.regrouped(option, value, len(lead), (len(choice),))
            chosen = rows.each_array(lambda leaf, part, own=own: part[own], option, flat)
            for k, one in zip(own, rows.to_values(option, chosen, len(own)), strict=True):
                made[k] = (i, one)
        return rows.nested(made, lead)

    def _check_choice(self, choice: np.ndarray[Any, Any]) -> None:
        wrong = choice[(choice < 0) | (choice >= len(self.options))]
        if wrong.size:
            raise ValueError(f"expected the number of one of {len(self.options)} options, got {wrong[0]}")


class GraphInstance(NamedTuple):
    """What a `Graph` is decoded to where Gymnasium is not installed, with the fields of its class of this name.

    Attributes:
        nodes: an array, or nest of arrays, [n_nodes, ...].
        edges: likewise [n_edges, ...], or None.
        edge_links: int32 [n_edges, 2], or None.
    """

    nodes: Any
    edges: Any
    edge_links: Any


@functools.cache
def graph_instance() -> Any:
    """Gymnasium's class, which its spaces insist on, or ours."""
    try:
        from gymnasium.spaces import GraphInstance as Theirs
    except ImportError:
        return GraphInstance
    return Theirs


class _Cut:
    """Pieces of words [N, words], one after the other."""

    def __init__(self, words: Array) -> None:
        self.words, self.start = words, 0

    def __call__(self, count: int) -> Array:
        self.start += count
        return self.words[:, self.start - count : self.start]


def _length_words(low: int, high: int) -> int:
    return draws.whole_words(np.asarray(high - low + 1, object))


def _draw_length(ops: SpecOps, words: Array, lead: tuple[int, ...], low: int, high: int) -> Array:
    """Numbers int32 [N, *lead] from low to high."""
    of_each = words.reshape(words.shape[0], *lead, _length_words(low, high))
    return draws.whole(ops, of_each, np.asarray(low, object), np.asarray(high - low + 1, object), "int32")


def _draw_padded(ops: SpecOps, nest: Any, words: Array, lead: tuple[int, ...], size: int) -> Any:
    """Values [N, *lead, size, ...]."""
    count = words.shape[0] * math.prod(lead) * size
    made = rows.draw(ops, nest, words.reshape(count, rows.words(nest)))
    return rows.regrouped(nest, made, 1, (words.shape[0], *lead, size))


def _real(ops: SpecOps, length: Array, size: int) -> Array:
    """Which of `size` places are no padding, bool [*lead, size]."""
    return ops.table(np.arange(size, dtype=np.int32), "int32", length) < length[..., None]


def _inside_padded(ops: SpecOps, nest: Any, value: Any, length: Array, size: int) -> Array:
    """Whether all real ones of values [*lead, size, ...] lie in their domain, bool [*lead]."""
    padding = ~_real(ops, length, size)
    flat = rows.regrouped(nest, value, len(padding.shape), (math.prod(padding.shape),))
    found = rows.inside(ops, nest, flat, (padding == padding).reshape(math.prod(padding.shape)))
    return _all_last(ops, found.reshape(padding.shape) | padding, size)


def _nearest_padded(ops: SpecOps, nest: Any, value: Any, length: Array, size: int) -> Any:
    near = _in_rows(lambda flat: rows.nearest(ops, nest, flat), nest, value, (*length.shape, size))
    return rows.cleared(ops, nest, near, _real(ops, length, size))


def _in_rows(function: Any, nest: Any, value: Any, lead: tuple[int, ...]) -> Any:
    """What a function makes of values [*lead, ...] as rows."""
    made = function(rows.regrouped(nest, value, len(lead), (math.prod(lead),)))
    return rows.regrouped(nest, made, 1, lead)


def _all_last(ops: SpecOps, found: Array, size: int) -> Array:
    lead = found.shape[:-1]
    return ops.all_rows(found.reshape(math.prod(lead), size)).reshape(lead)


def _all(ops: SpecOps, found: Array, many: int) -> Array:
    return ops.all_rows(found.reshape(found.shape[0], many))


def _lengths(
    lengths: Any, low: int, high: int, what: str, remedy: str
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Lengths int32 [M] and what is real, bool [M, high]."""
    length = np.asarray(lengths, np.int32)
    wrong = length[(length < low) | (length > high)]
    if wrong.size:
        raise ValueError(f"expected {low} to {high} {what}, got {wrong[0]}; give the spec another {remedy}")
    return length, np.arange(high) < length[:, None]


def _read_padded(
    nest: Any, values: list[Any], low: int, high: int, what: str, lead: tuple[int, ...]
) -> tuple[Any, np.ndarray[Any, Any]]:
    """Stacked values as [*lead, high, ...] with zeros behind their numbers int32 [*lead]."""
    length, real = _lengths([rows.count(nest, one) for one in values], low, high, what, f"max_{what}")
    padded = rows.scattered(nest, rows.from_host(nest, values, stacked=True), real)
    return rows.regrouped(nest, padded, 2, (*lead, high)), length.reshape(lead)


def _links(graph: Any, count: int) -> np.ndarray[Any, Any]:
    """The ends of a graph's edges, int32 [count, 2]."""
    links = host.as_dtype(np.zeros((0, 2), int) if graph.edge_links is None else graph.edge_links, "int32")
    if links.shape != (count, 2):
        raise ValueError(f"expected edge_links of {count} edges, of shape {(count, 2)}, got shape {links.shape}")
    return links


def _first(nest: Any, value: Any, i: int, n: int) -> Any:
    """The first n rows of the i-th of values [M, size, ...]."""
    return rows.each_array(lambda leaf, x: x[i, :n], nest, value)


def in_front(nest: Any, lead: tuple[int, ...]) -> Any:
    """Every spec of a nest with further leading axes."""
    return changed(nest, 0, lambda x: np.broadcast_to(x, (*lead, *x.shape)))
