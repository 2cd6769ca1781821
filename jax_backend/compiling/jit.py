"""`rb.jit`: `jax.jit` that donates the states among the arguments, wherever they are, and nothing else.

JAX donates whole arguments, and a state often lies inside of one, beside parameters that are still needed. So the
leaves of the arguments are sorted, those of each state apart, and what is compiled is a function of these groups.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import jax
import numpy as np
from jax.tree_util import PyTreeDef

from functional_rb.base.arrays import BackendArray
from functional_rb.base.errors import consumed
from functional_rb.buffer.state import State
from functional_rb.lib import documented_by
from functional_rb.public import jit as public
from functional_rb.shared.state import SharedState
from functional_rb.storage.host_state import HostState
from jax_backend.arrays import lent, tracing
from jax_backend.compiling.arguments import Chosen, Given, parameters_of
from jax_backend.compiling.regroup import Leaf, Plan, Regrouped

P = ParamSpec("P")
R = TypeVar("R")
# How a function is called, by the structure of its arguments; None if no state is among them.
Calls = dict[Hashable, Regrouped | None]
# The calls of a function by options: as for `jax.jit`, `jit(function)` made anew traces nothing anew.
# With the function itself beside them, as the dictionary finds equal functions alike.
_Made = tuple[weakref.ref[Callable[..., object]], dict[Hashable, Calls]]
_shared: weakref.WeakKeyDictionary[Callable[..., object], _Made] = weakref.WeakKeyDictionary()
_SORTED_OUT = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames", "in_shardings")
_LEFT_TO_JAX = object()


@overload
def jit(function: Callable[P, R], /, **options: object) -> Jitted[P, R]: ...


@overload
def jit(function: None = None, /, **options: object) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...


@documented_by(public.jit)
def jit(function: Callable[P, R] | None = None, /, **options: object) -> object:
    return public.jit(lambda function: Jitted(function, options), function)


class Jitted(Generic[P, R]):
    """A function compiled by `jit`."""

    def __init__(self, function: Callable[P, R], options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._options = function, options
        self._plain: Any = jax.jit(function, **options)  # which checks the options
        self._parameters = parameters_of(function)
        self._static = Chosen.of(self._parameters, options.get("static_argnums"), options.get("static_argnames"))
        self._donated = Chosen.of(self._parameters, options.get("donate_argnums"), options.get("donate_argnames"))
        self._calls = _calls_of(function, options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        donating = self._donating(args, kwargs)
        if donating is None:
            return self._plain(*args, **kwargs)
        call, leaves = donating
        operands = call.operands(_lasting(leaves))
        result: R = lent.called(call.compiled(leaves), range(1, len(operands)), *operands)
        return result

    def __get__(self, instance: object, owner: type | None = None) -> object:
        return self if instance is None else types.MethodType(self, instance)

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """As `jax.jit(...).lower`; what it compiles to takes the same arguments, without the static ones."""
        return self._stage("lower", args, kwargs)

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """As `jax.jit(...).trace`; the inputs of its jaxpr have an order of their own."""
        return self._stage("trace", args, kwargs)

    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The shapes of the results, as `jax.jit(...).eval_shape` finds them."""
        return self._plain.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget everything that was compiled."""
        self._calls.clear()
        self._plain.clear_cache()

    def _stage(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        donating = self._donating(args, kwargs)
        if donating is None:
            return getattr(self._plain, name)(*args, **kwargs)
        call, leaves = donating
        stage = getattr(call.compiled(leaves), name)(*call.operands(leaves))
        return _Stage(stage, call, jax.tree.structure(self._static.sort(args, kwargs)[:2]))

    # How to call the function, and with which leaves; None where there is nothing to donate.
    def _donating(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[Regrouped, list[BackendArray]] | None:
        arguments = self._static.sort(args, kwargs)
        leaves, outline = jax.tree.flatten(arguments[:2])
        key = outline, arguments.static
        try:
            known = key in self._calls
        except TypeError:  # something static has no hash, of which JAX tells
            return None
        if not known:
            self._calls[key] = self._planned(arguments, outline)
        call = self._calls[key]
        # Under another transformation the arrays are tracers, whose memory is not ours to give away, or come from
        # outside of a program, which may run again.
        traced = any(issubclass(kind, jax.core.Tracer) for kind in set(map(type, leaves)))
        if call is None or traced or tracing.in_program():
            return None
        donatable = call.donatable(leaves)
        ids = set(map(id, donatable))
        # XLA refuses a buffer that is donated twice, or donated and read besides.
        if len(ids) != len(donatable) or not ids.isdisjoint(map(id, call.undonated(leaves))):
            call = self._without_duplicates(call, leaves, key)
        if any(isinstance(x, jax.Array) and x.is_deleted() for x in donatable):
            raise consumed()
        return call, leaves

    def _planned(self, arguments: Given, outline: PyTreeDef) -> Regrouped | None:
        count = len(arguments.places) + sum(isinstance(where, int) for where, *_ in arguments.static)
        leaves: list[Leaf] = []
        states: list[object] = []
        for path, node in jax.tree_util.tree_leaves_with_path(arguments[:2], is_leaf=lambda x: isinstance(x, State)):
            if path[0].idx == 0:
                place = arguments.places[path[1].idx]
                name, donated = self._name_of(place), self._donated.has(place, count)
            else:
                name, donated = path[1].key, path[1].key in self._donated.names
            leaf = Leaf(name + jax.tree_util.keystr(path[2:]), None, donated)
            if not isinstance(node, State):
                leaves.append(leaf)
                continue
            _check_traceable(node)
            leaves += [leaf._replace(state=len(states))] * len(jax.tree.leaves(node))
            states.append(jax.tree.structure(node))
        if not states:
            return None
        function = _weakly(self._function)

        def call(leaves: list[object]) -> object:
            args, kwargs = arguments.together(*jax.tree.unflatten(outline, leaves))
            return function()(*args, **kwargs)

        # The plan lives as long as the function: it must not keep the arrays of the call that it was made for.
        arguments = arguments._replace(args=(), kwargs={})
        options = {name: x for name, x in self._options.items() if name not in _SORTED_OUT}
        return Regrouped(Plan(leaves, states, self._shardings(outline), call, function, options))

    def _name_of(self, place: int) -> str:
        named = [p.name for p in self._parameters if p.kind < inspect.Parameter.VAR_POSITIONAL]
        return named[place] if place < len(named) else f"args[{place}]"

    # Those of the leaves, as `in_shardings` says.
    def _shardings(self, outline: PyTreeDef) -> list[object] | None:
        prefix = self._options.get("in_shardings")
        if prefix is None:
            return None
        args, _ = jax.tree.unflatten(outline, range(outline.num_leaves))
        if isinstance(prefix, list):
            prefix = tuple(prefix)
        # None is an empty pytree to JAX, and would vanish among the leaves.
        prefix = jax.tree.map(lambda x: _LEFT_TO_JAX if x is None else x, prefix, is_leaf=lambda x: x is None)
        spread = jax.tree.leaves(jax.tree.broadcast(prefix, args))
        return [None if x is _LEFT_TO_JAX else x for x in spread]

    # How to call it where an array that is donated comes again, in another state or beside it.
    def _without_duplicates(self, call: Regrouped, leaves: Sequence[object], key: Hashable) -> Regrouped:
        first = {id(leaves[k]): k for k in reversed(call.donatable.places) if isinstance(leaves[k], jax.Array)}
        same = {k: first[id(x)] for k, x in enumerate(leaves) if first.get(id(x), k) != k}
        if not same:
            return call
        sharing = self._calls.get((key, tuple(same.items())))
        if sharing is None:
            sharing = self._calls[key, tuple(same.items())] = call.sharing(same)
        return sharing


class _Stage:
    """What `lower`, `trace` and their `compile` give: JAX's, called with the arguments of the user's function."""

    def __init__(self, stage: Any, call: Regrouped, outline: PyTreeDef) -> None:
        self._stage, self._call, self._outline = stage, call, outline

    def lower(self, *args: object, **kwargs: object) -> _Stage:
        return _Stage(self._stage.lower(*args, **kwargs), self._call, self._outline)

    def compile(self, *args: object, **kwargs: object) -> _Stage:
        return _Stage(self._stage.compile(*args, **kwargs), self._call, self._outline)

    def __call__(self, *args: object, **kwargs: object) -> object:
        leaves, outline = jax.tree.flatten((args, kwargs))
        if outline != self._outline:
            raise TypeError(f"this was compiled for arguments of the structure {self._outline}, got {outline}")
        return self._stage(*self._call.operands(_lasting(leaves)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)


# Leaves with copies of NumPy's arrays, which JAX reads in the background, when the caller may have written to them.
def _lasting(leaves: Sequence[object]) -> list[object]:
    return [np.array(x) if isinstance(x, np.ndarray) else x for x in leaves]


# Refuse what lies on the host: whatever is done to it while tracing would be done once.
def _check_traceable(state: State) -> None:
    if isinstance(state, (HostState, SharedState)):
        raise TypeError(
            "rb.jit: this buffer lies in the memory of the host (BufferSpec.storage), out of the reach of compiled "
            "functions; call rb.add_, rb.sample_ and rb.update_ outside of them, or use storage=frb.Device()"
        )


# A way to a function that does not keep it: what was compiled of it is kept only for as long as it lives.
def _weakly(function: Callable[..., object]) -> Callable[[], Any]:
    try:
        return weakref.ref(function)
    except TypeError:
        return lambda: function


# Those of all `jit(function)` with the same options; of its own, where these cannot be compared, or where the calls of
# an equal function are kept, such as of a bound method: they call that one, and go with it.
def _calls_of(function: Callable[..., object], options: Mapping[str, object]) -> Calls:
    try:
        by_name = tuple(sorted((name, tuple(x) if isinstance(x, list) else x) for name, x in options.items()))
        owner, by_options = _shared.setdefault(function, (weakref.ref(function), {}))
        return by_options.setdefault(by_name, {}) if owner() is function else {}
    except TypeError:
        return {}
