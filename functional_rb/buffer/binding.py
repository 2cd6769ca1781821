"""Public functions of a backend that do what a function of the core does, for the engine that an argument calls for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

P = ParamSpec("P")
A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])


def as_it_is(found: object) -> Any:
    """What the core gives."""
    return found


@overload
def bound(core: Callable[Concatenate[Any, P], A], engine_of: Callable[[Any], Any]) -> Callable[P, A]: ...


@overload
def bound(
    core: Callable[Concatenate[Any, P], Any],
    engine_of: Callable[[Any], Any],
    returns: str,
    finish: Callable[[Any], A] = as_it_is,
) -> Callable[P, A]: ...


def bound(
    core: Callable[..., Any],
    engine_of: Callable[[Any], Any],
    returns: str | None = None,
    finish: Callable[[Any], Any] = as_it_is,
) -> Callable[..., Any]:
    """A function of the core without its first argument, the engine, which is looked up by the second one.

    Args:
        core: takes an engine, then what the public function takes, and has its docstring.
        engine_of: the engine for a state, or a spec; the public function is of its module.
        returns: the type of what the public function returns, for `help`; by default that of the core.
        finish: what the public function returns of what the core does; by default that.
    """
    whole = inspect.signature(core)
    _, *parameters = whole.parameters.values()
    first = parameters[0].name

    def public(*args: Any, **named: Any) -> Any:
        engine = engine_of(args[0] if args else named.get(first))
        return finish(core(engine, *args, **named))

    public.__name__ = public.__qualname__ = core.__name__
    public.__module__ = engine_of.__module__
    public.__doc__ = core.__doc__
    returned = whole.return_annotation if returns is None else returns
    signature = inspect.Signature(parameters, return_annotation=returned)
    public.__signature__ = signature  # type: ignore[attr-defined]  # `inspect` reads it, typeshed does not know it
    return public


def documented_by(core: Callable[..., Any]) -> Callable[[F], F]:
    """Give a bound function the docstring of the core function that it binds."""

    def attach(public: F) -> F:
        public.__doc__ = core.__doc__
        return public

    return attach
