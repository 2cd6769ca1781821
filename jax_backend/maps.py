"""Maps on JAX: `rb.maps`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax

from functional_rb.buffer.binding import bound
from functional_rb.maps import functions
from jax_backend import carried, rules

P = ParamSpec("P")
A = TypeVar("A")


def _binds(core: Callable[Concatenate[Any, P], A]) -> Callable[P, A]:
    """Bind a function of the core."""
    return rules.transfers(bound(core, lambda _: carried))


def _reads(core: Callable[Concatenate[Any, P], Any]) -> Callable[P, jax.Array]:
    """Bind a function of the core that reads an array off a map."""
    return rules.transfers(bound(core, lambda _: carried, "jax.Array"))


init = _binds(functions.init)
insert = _binds(functions.insert)
insert_ = _binds(functions.insert_)
lookup = _reads(functions.lookup)
count = _reads(functions.count)
size = _reads(functions.size)
refused = _reads(functions.refused)
keys = _binds(functions.keys)
