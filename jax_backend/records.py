"""Records on JAX: `rb.records`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from functional_rb.buffer.binding import bound
from functional_rb.interop import records
from functional_rb.interop.records import batch_shape as batch_shape
from functional_rb.interop.records import state_dict as state_dict
from jax_backend import rules, values

P = ParamSpec("P")
A = TypeVar("A")


def _binds(core: Callable[Concatenate[Any, P], A]) -> Callable[P, A]:
    """Bind a function of the core."""
    return rules.transfers(bound(core, lambda _: values))


at = _binds(records.at)
cat = _binds(records.cat)
stack = _binds(records.stack)
unbind = _binds(records.unbind)
load_state_dict = _binds(records.load_state_dict)
