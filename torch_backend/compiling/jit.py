"""`rb.jit` on torch, where states are written in place without compiling anything."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar, overload

import torch

from functional_rb.lib import documented_by
from functional_rb.public import jit as public
from torch_backend.memory.state import State

P = ParamSpec("P")
R = TypeVar("R")
# Options of `jax.jit` that say how a function is traced, which have no effect here.
_OF_TRACING = ("donate_argnames", "donate_argnums", "inline", "keep_unused", "static_argnames", "static_argnums")


@overload
def jit(function: Callable[P, R], /, **options: object) -> Callable[P, R]: ...


@overload
def jit(function: None = None, /, **options: object) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


@documented_by(public.jit)
def jit(function: Callable[P, R] | None = None, /, **options: object) -> object:
    for name in options:
        if name not in _OF_TRACING:
            raise TypeError(f"jit: the option {name!r} has no meaning on torch; expected some of {list(_OF_TRACING)}")
    return public.jit(_consuming, function)


def _consuming(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def consuming(*args: P.args, **kwargs: P.kwargs) -> R:
        # A compiler that traces this knows nothing of who holds a state, and would be thrown back at each `id`.
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        states = {id(state): state for state in _states_in((args, kwargs))}
        for state in states.values():
            state.check_alive()
        result = function(*args, **kwargs)
        if states:
            _consume(states, list(_states_in(result)))
        return result

    return consuming


# Consume the states in whose place others were returned.
def _consume(states: dict[int, State], returned: list[State]) -> None:
    back, needed = Counter(x.spec for x in returned), Counter(x.spec for x in states.values())
    alive = {id(x) for x in returned}
    for number, state in states.items():
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
