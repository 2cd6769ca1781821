"""A function of the leaves of some arguments, those of each state apart: what `rb.jit` has JAX compile."""

from __future__ import annotations

import inspect
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from functional_rb.base.arrays import BackendArray
from functional_rb.buffer.state import State
from jax_backend.compiling import copies

NOTHING_TWICE: Mapping[int, int] = MappingProxyType({})


class Named:
    """Leaves, each with the name that JAX shows in its errors."""

    __slots__ = ("leaves", "names")

    def __init__(self, names: tuple[str, ...], leaves: Sequence[object]) -> None:
        self.names, self.leaves = names, leaves


def _with_keys(x: Named) -> tuple[tuple[tuple[object, object], ...], tuple[str, ...]]:
    return tuple((jax.tree_util.GetAttrKey(name), leaf) for name, leaf in zip(x.names, x.leaves, strict=True)), x.names


jax.tree_util.register_pytree_with_keys(
    Named, _with_keys, lambda names, leaves: Named(names, tuple(leaves)), lambda x: (x.leaves, x.names)
)


class Leaf(NamedTuple):
    """A leaf of the arguments."""

    name: str  # as errors show it
    state: int | None  # the number of the state that it belongs to; None if to none
    donated: bool  # whether its argument is donated by `donate_argnums`


class _Taken:
    """Some of a sequence's elements, by their places."""

    __slots__ = ("_get", "places")

    def __init__(self, places: Iterable[int]) -> None:
        self.places = tuple(places)
        # Quicker than a loop, but of a single place it gives no tuple.
        self._get = operator.itemgetter(*self.places) if len(self.places) > 1 else None

    def __call__(self, of: Sequence[object]) -> tuple[object, ...]:
        return tuple(of[k] for k in self.places) if self._get is None else self._get(of)


class Plan(NamedTuple):
    """How the arguments of one structure are taken apart and put together."""

    leaves: Sequence[Leaf]  # in JAX's order
    states: Sequence[jax.tree_util.PyTreeDef]  # the outline of each state
    shardings: Sequence[object] | None  # of the leaves, if the user gave any; None for one that is left to JAX
    call: Callable[[list[object]], object]  # the user's function of these leaves
    function: Callable[[], Callable[..., object]]  # that function; only to be asked for while somebody calls it
    options: Mapping[str, Any]  # for `jax.jit`


def _operands(arguments: object, donated: object, *states: object) -> None:
    """By whose parameters JAX names the operands in its errors."""


class Regrouped:
    """A function of groups of leaves, those of each state one, to be jitted.

    Attributes:
        donatable: the leaves that may be donated.
        undonated: those that are not.
    """

    __signature__ = inspect.signature(_operands)

    def __init__(self, plan: Plan, same: Mapping[int, int] = NOTHING_TWICE) -> None:
        """Sort the leaves of a plan; some are the `same` array as one that is donated: XLA takes it once."""
        self._plan, self._same = plan, same
        distinct = [(k, leaf) for k, leaf in enumerate(plan.leaves) if k not in same]
        self.undonated = _Taken(k for k, leaf in distinct if leaf.state is None and not leaf.donated)
        self._groups = [_Taken(k for k, leaf in distinct if leaf.state is None and leaf.donated)]
        self._groups += [_Taken(k for k, leaf in distinct if leaf.state == n) for n in range(len(plan.states))]
        self.donatable = _Taken(k for group in self._groups for k in group.places)
        self._names = tuple(plan.leaves[k].name for k in self.undonated.places)
        self._compiled: Any = None
        function = plan.function()
        self.__name__ = self.__qualname__ = getattr(function, "__name__", type(function).__name__)

    # The user's function, whose place JAX names in its errors.
    @property
    def __wrapped__(self) -> object:
        return self._plan.function()

    def sharing(self, same: Mapping[int, int]) -> Regrouped:
        """The same function for arguments in which some arrays are there more than once."""
        return Regrouped(self._plan, same)

    def operands(self, leaves: Sequence[object]) -> tuple[object, ...]:
        """The leaves that may not be donated, and the groups of those that may."""
        return Named(self._names, self.undonated(leaves)), *[group(leaves) for group in self._groups]

    def __call__(self, arguments: Named, *groups: Sequence[object]) -> object:
        leaves: list[object] = [None] * len(self._plan.leaves)
        for taken, group in zip((self.undonated, *self._groups), (arguments.leaves, *groups), strict=True):
            for k, leaf in zip(taken.places, group, strict=True):
                leaves[k] = leaf
        for k, first in self._same.items():
            leaves[k] = leaves[first]
        return self._plan.call(leaves)

    def compiled(self, leaves: Sequence[BackendArray]) -> Any:
        """The jitted function of operands, to which the states are donated that it returns."""
        if self._compiled is None:
            options = dict(self._plan.options)
            if self._plan.shardings is not None:
                options["in_shardings"] = self.operands(self._plan.shardings)
            # JAX keeps the trace for the function and the shapes, and the call finds it there.
            result = jax.jit(self, **options).trace(*self.operands(leaves)).out_info
            donated = [2 + n for n in self._returned(leaves, result)]
            self._compiled = jax.jit(self, donate_argnums=(1, *donated), **options)
        return self._compiled

    # Which states come back, by number: only their memory is of use for the result; the others are not lost.
    def _returned(self, leaves: Sequence[BackendArray], result: object) -> list[int]:
        nodes = jax.tree.leaves(result, is_leaf=lambda x: isinstance(x, State))
        back = Counter(_kind(jax.tree.structure(x), jax.tree.leaves(x)) for x in nodes if isinstance(x, State))
        kinds = {}
        for n, outline in enumerate(self._plan.states):
            if self._groups[1 + n].places:  # else it is the same as another one
                arrays = [x for x, leaf in zip(leaves, self._plan.leaves, strict=True) if leaf.state == n]
                kinds[n] = _kind(outline, arrays)
        taken = Counter(kinds.values())
        for kind, count in taken.items():
            nbytes = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in kind[1])
            if 0 < back[kind] < count and nbytes > copies.LARGE:
                copies.warn(
                    "jit",
                    f"rb.jit: {self.__name__} is given {count} states of one spec and returns {back[kind]}, so that it "
                    f"cannot be told which go on: none is donated, and {nbytes / 1e6:.0f} MB are copied at each call; "
                    f"return them all (what is returned as it came costs nothing)",
                )
        return [n for n, kind in kinds.items() if back[kind] >= taken[kind]]


_Kind = tuple[jax.tree_util.PyTreeDef, tuple[tuple[tuple[int, ...], np.dtype[np.generic]], ...]]


# What of two states must be equal for the memory of one to serve the other.
def _kind(outline: jax.tree_util.PyTreeDef, leaves: Sequence[BackendArray]) -> _Kind:
    return outline, tuple((tuple(x.shape), jax.numpy.dtype(x.dtype)) for x in leaves)
