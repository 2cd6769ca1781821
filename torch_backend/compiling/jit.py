"""`rb.jit` on torch, where states are written in place without compiling anything."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, overload

import torch

from torch_backend.memory.state import State

P = ParamSpec("P")
R = TypeVar("R")
# Options of `jax.jit` that say how a function is traced, which have no effect here.
_OF_TRACING = ("donate_argnames", "donate_argnums", "inline", "keep_unused", "static_argnames", "static_argnums")


@overload
def jit(function: Callable[P, R], /, **options: object) -> Callable[P, R]: ...


@overload
def jit(function: None = None, /, **options: object) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def jit(function: Callable[P, R] | None = None, /, **options: object) -> Any:
    """A function that consumes the states which it is given and returns, as `jit` of `jax_backend` does.

    On JAX that compiles the function, and donates it the states among its arguments. On torch states are written in
    place as they are, and nothing is compiled; but a state is consumed as on JAX, so that a program for one backend
    runs on the other: using it again raises `RuntimeError`. (`torch.compile` is for you to use, with `add_`, `sample_`
    and `update_`.)

    Args:
        function: a function of tensors, states and nests of these (dicts, lists, tuples, dataclasses); left out for a
            decorator with options, `@rb.jit(...)`.
        options: the options of `jax.jit` about tracing, which have no effect here: static_argnums, static_argnames,
            donate_argnums, donate_argnames, inline, keep_unused.

    Returns:
        The function. A state that it does not return is not consumed, nor is one that it returns unchanged. (Of
        several states of one spec all must be returned, or none is consumed.)

    Raises:
        TypeError: for a value that is no function, or for an option about JAX's devices or compiler.

    Example:
        >>> spec = frb.BufferSpec({"x": frb.Unbounded(())}, capacity=8)
        >>> @rb.jit
        ... def step(run, key):
        ...     state = rb.add(run["buffer"], {"x": run["w"]})
        ...     state, sample = rb.sample(state, key, 4)
        ...     return {"buffer": state, "w": run["w"] + sample.items["x"].sum()}
        >>> run = {"buffer": rb.init(spec), "w": np.float32(1.0)}
        >>> for key in rb.split(rb.key(0), 3):
        ...     run = step(run, key)
        >>> int(rb.size(run["buffer"]))
        3
    """
    for name in options:
        if name not in _OF_TRACING:
            raise TypeError(f"jit: the option {name!r} has no meaning on torch; expected some of {list(_OF_TRACING)}")
    if function is None:
        return functools.partial(jit, **options)
    if not callable(function):
        raise TypeError(f"jit: expected a function, got {type(function).__name__}; write rb.jit(step), or @rb.jit")

    @functools.wraps(function)
    def consuming(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        given = {id(state): state for state in _states_in((args, kwargs))}
        for state in given.values():
            state.check_alive()
        result = function(*args, **kwargs)
        if given:
            _consume(given, list(_states_in(result)))
        return result

    return consuming


# Consume the given states in whose place others were returned.
def _consume(given: dict[int, State], returned: list[State]) -> None:
    back, needed = Counter(x.spec for x in returned), Counter(x.spec for x in given.values())
    alive = {id(x) for x in returned}
    for number, state in given.items():
        if number not in alive and back[state.spec] >= needed[state.spec]:
            state.consume()


# The states of a nest; a container that is met again is not searched again.
def _states_in(nest: object) -> Iterable[State]:
    todo, seen = [nest], set()
    while todo:
        x = todo.pop()
        if isinstance(x, State):
            yield x
        elif isinstance(x, torch.Tensor) or id(x) in seen:
            continue
        elif isinstance(x, dict):
            seen.add(id(x))
            todo += x.values()
        elif isinstance(x, (list, tuple)):
            seen.add(id(x))
            todo += x
        elif dataclasses.is_dataclass(x) and not isinstance(x, type):
            seen.add(id(x))
            todo += [getattr(x, field.name, None) for field in dataclasses.fields(x)]
