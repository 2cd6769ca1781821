"""The rules by which the library's own operations are traced and run, whatever the user has set.

Ranks are promoted, though `jax_numpy_rank_promotion` may forbid it to the user; the user's functions go by the user's
rule. What the public functions are given, and the library's own numbers, go between host and devices without being
implicit transfers to `jax.transfer_guard`. On a mesh with explicit axes XLA divides what is inside of a function, as on
automatic ones: a state keeps the sharding that it has, and what is read of it lies whole on each device.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import jax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from functional_rb.buffer.state import State
from jax_backend import compat

Given = ParamSpec("Given")
A = TypeVar("A")

# What the user has set, where the library's rules hold.
_users: ContextVar[str | None] = ContextVar("rank promotion of the user", default=None)


@contextlib.contextmanager
def promoting_ranks() -> Iterator[None]:
    """A context in which JAX promotes ranks by the library's rule."""
    if _users.get() is not None:
        yield
        return
    token = _users.set(_option("numpy_rank_promotion"))
    try:
        with jax.numpy_rank_promotion("allow"):
            yield
    finally:
        _users.reset(token)


@contextlib.contextmanager
def users() -> Iterator[None]:
    """A context in which JAX promotes ranks by the user's rule."""
    rule = _users.get()
    token = _users.set(None)
    try:
        with contextlib.nullcontext() if rule is None else jax.numpy_rank_promotion(rule):
            yield
    finally:
        _users.reset(token)


def _option(name: str) -> Any:
    return getattr(jax.config, f"jax_{name}")


# --- transfers ------------------------------------------------------------------------------------------------------

_DIRECTIONS = tuple(f"transfer_guard_{way}" for way in ("host_to_device", "device_to_device", "device_to_host"))


def transfers(function: Callable[Given, A]) -> Callable[Given, A]:
    """Let a public function move arrays: its caller has asked for that, as by `jax.device_put`."""

    @functools.wraps(function)
    def allowed(*args: Given.args, **others: Given.kwargs) -> A:
        # Where nobody guards transfers, the usual case, no mode of JAX need be entered.
        if all(_option(name) is None for name in ("transfer_guard", *_DIRECTIONS)):
            return function(*args, **others)
        with explicit_transfers():
            return function(*args, **others)

    return allowed


@contextlib.contextmanager
def explicit_transfers() -> Iterator[None]:
    """What is moved counts as explicit: it is allowed, unless the user has forbidden that or wants it to be logged."""
    with contextlib.ExitStack() as stack:
        for direction in _DIRECTIONS:
            if (_option(direction) or _option("transfer_guard")) in ("log", "disallow"):
                stack.enter_context(getattr(jax, direction)("allow"))
        yield


# --- meshes ---------------------------------------------------------------------------------------------------------


def in_automatic_mode(
    function: Callable[..., object], args: tuple[Any, ...], others: Mapping[str, object], by_row: bool
) -> Any:
    """What a function returns of arguments whose first may be a state.

    By row, if what it gives is divided along the first axis as the rows of the state are, or else as the first array
    that it is given.
    """
    mesh = _mesh((args, others))
    explicit = compat.explicit_axes(mesh)
    if not explicit:
        out = function(*args, **others)
        is_own = compat.IS_TOLD or by_row or not args or not isinstance(args[0], State)
        return out if is_own else _told(out, args[0])
    automatic = mesh.update_axis_types(dict.fromkeys(explicit, AxisType.Auto))
    with jax.sharding.use_abstract_mesh(automatic):
        args_on_all, others_on_all = jax.tree.map(lambda x: _placed(x, P()), (args, others))
        out = function(*args_on_all, **others_on_all)
    with jax.sharding.use_abstract_mesh(mesh):
        state = args[0] if args and isinstance(args[0], State) else None
        if by_row:
            return _by_row(out, jax.tree.leaves(args)[0] if state is None else state.rows)
        return _whole(out) if state is None else _like_state(out, state)


# On automatic axes XLA divides what comes out; an older JAX is to be able to name how.
def _told(out: object, state: State) -> Any:
    if isinstance(out, State | dict):
        return compat.told(out, state, is_state=True)
    if isinstance(out, tuple) and out and isinstance(out[0], dict):
        return compat.told(out[0], state, is_state=True), *compat.told(out[1:], state, is_state=False)
    return compat.told(out, state, is_state=False)


# The mesh that is set, or else that of the arrays.
def _mesh(arrays: object) -> jax.sharding.AbstractMesh:
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        meshes = [jax.typeof(x).sharding.mesh for x in jax.tree.leaves(arrays) if isinstance(x, jax.Array)]
        return next((other for other in meshes if not other.empty), mesh)
    return mesh


def _placed(x: object, spec: P) -> object:
    return jax.sharding.reshard(x, spec) if isinstance(x, jax.Array) else x


def _whole(tree: A) -> A:
    return jax.tree.map(lambda x: _placed(x, P()), tree)


def _by_row(tree: A, like: jax.Array) -> A:
    rows = jax.typeof(like).sharding.spec
    return jax.tree.map(lambda x: _placed(x, P(*rows[:1])), tree)


# A new state, or a tuple of what is new of it by field and others: with the shardings that it had.
def _like_state(out: object, state: State) -> Any:
    if isinstance(out, State):
        return jax.tree.map(_placed_like, out, state)
    if isinstance(out, tuple) and isinstance(out[0], dict):
        return _like_state(out[0], state), *_whole(out[1:])
    if isinstance(out, dict):
        auxiliary = {name: _like(array, state.auxiliary.get(name)) for name, array in out["auxiliary"].items()}
        fields = {name: _like(after, getattr(state, name)) for name, after in out.items() if name != "auxiliary"}
        return fields | {"auxiliary": auxiliary}
    return _whole(out)


# Arrays with the shardings of those before; whole, where there were none.
def _like(after: object, before: object) -> Any:
    structure: object = jax.tree.structure(after)
    same = structure == jax.tree.structure(before)
    return jax.tree.map(_placed_like, after, before) if same else _whole(after)


def _placed_like(x: jax.Array, before: jax.Array) -> object:
    return _placed(x, jax.typeof(before).sharding.spec)
