"""Public functions that do what functions of the core do, bound to what carries them out, and free to move arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax

from functional_rb.buffer.binding import as_it_is, bound
from jax_backend import rules

P = ParamSpec("P")
A = TypeVar("A")


class Binder:
    """Binds functions of the core to an engine.

    Args:
        engine_of: the engine for what a public function is given first; the public functions are of its module.
        as_array: makes JAX's array of one that an engine gives.
    """

    def __init__(self, engine_of: Callable[[Any], Any], as_array: Callable[[Any], Any] = as_it_is) -> None:
        self._engine_of, self._as_array = engine_of, as_array

    def __call__(self, core: Callable[Concatenate[Any, P], A]) -> Callable[P, A]:
        """Bind a function."""
        return rules.transfers(bound(core, self._engine_of))

    def array(self, core: Callable[Concatenate[Any, P], Any]) -> Callable[P, jax.Array]:
        """Bind a function that gives an array."""
        return rules.transfers(bound(core, self._engine_of, "jax.Array", self._as_array))
