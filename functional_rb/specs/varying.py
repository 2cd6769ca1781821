"""Values that vary in length or kind, as arrays of fixed shape: padded, with numbers that tell what is real."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

import numpy as np

from functional_rb.specs.array import Bounded
from functional_rb.specs.base import Change, Spec, checked_shape, whole_number
from functional_rb.specs.composite import Composite, changed, checked
from functional_rb.specs.discrete import Categorical


class Varying(Spec):
    """What is stored as several parts that belong together; `parts` says which.

    Attributes:
        batch_shape: leading axes, of each part.
    """

    __slots__ = ()
    batch_shape: tuple[int, ...]

    @property
    @abc.abstractmethod
    def parts(self) -> Composite:
        """The arrays that a value is stored as."""

    @property
    @abc.abstractmethod
    def nests(self) -> tuple[str, ...]:
        """The attributes that are nests of specs."""

    def __hash__(self) -> int:
        """By the specs inside, as what they are held in (a list) may have none."""
        return hash((type(self), self.parts))

    def _check(self, **counts: Any) -> None:
        """Bring nests, shape and numbers into their hashable form."""
        who = type(self).__name__
        for name in self.nests:
            object.__setattr__(self, name, checked(getattr(self, name), f"{who}.{name}"))
        object.__setattr__(self, "batch_shape", checked_shape(self.batch_shape))
        for name, value in counts.items():
            count = whole_number(value, f"{who}: {name}")
            if count < 1:
                raise ValueError(f"{who}: expected {name} >= 1, got {count}")
            object.__setattr__(self, name, count)

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
        self._check(max_length=self.max_length)

    @property
    def nests(self) -> tuple[str, ...]:
        """The element."""
        return ("element",)

    @property
    def parts(self) -> Composite:
        """`elements` and `length`."""
        lead = (*self.batch_shape, self.max_length)
        length = Bounded(0, self.max_length, self.batch_shape, "int32")
        return Composite({"elements": in_front(self.element, lead), "length": length}, batch_shape=self.batch_shape)

    def defaults(self) -> dict[str, Any]:
        """A tuple, one of them."""
        return {"stack": False, "batch_shape": ()}


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

    @property
    def parts(self) -> Composite:
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

    @property
    def parts(self) -> Composite:
        """`choice` and `options`."""
        lead = self.batch_shape
        options = tuple(in_front(option, lead) for option in self.options)
        return Composite({"choice": Categorical(len(options), shape=lead), "options": options}, batch_shape=lead)

    def defaults(self) -> dict[str, Any]:
        """One value."""
        return {"batch_shape": ()}


def in_front(nest: Any, lead: tuple[int, ...]) -> Any:
    """Every spec of a nest with further leading axes."""
    return changed(nest, 0, lambda x: np.broadcast_to(x, (*lead, *x.shape)))
