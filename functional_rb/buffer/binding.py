"""Public functions of a backend that do what a function of the core does, for the engine that an argument calls for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
A = TypeVar("A")


def bound(
    core: Callable[Concatenate[Any, P], Any],
    engine_of: Callable[[Any], Any],
    finish: Callable[[Any], A],
    returns: str,
) -> Callable[P, A]:
    """A function of the core without its first argument, the engine, which is looked up by the second one.

    Args:
        core: takes an engine, then what the public function takes, and has its docstring.
        engine_of: the engine for a state, or a spec.
        finish: what the public function returns of what the core does.
        returns: the type of that, for `help`.
    """
    _, *parameters = inspect.signature(core).parameters.values()
    first = parameters[0].name

    def public(*args: P.args, **named: P.kwargs) -> A:
        engine = engine_of(args[0] if args else named.get(first))
        return finish(core(engine, *args, **named))

    public.__name__ = public.__qualname__ = core.__name__
    public.__module__ = engine_of.__module__
    public.__doc__ = core.__doc__
    public.__signature__ = inspect.Signature(parameters, return_annotation=returns)  # type: ignore[attr-defined]
    return public
