"""Forests on JAX: `rb.forests`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax

from functional_rb.buffer.binding import bound
from functional_rb.trees import forest as functions
from functional_rb.trees import forest_tree
from functional_rb.trees.forest_spec import ForestSpec
from jax_backend import carried, rules

P = ParamSpec("P")
A = TypeVar("A")

jax.tree_util.register_static(ForestSpec)


def _binds(core: Callable[Concatenate[Any, P], A]) -> Callable[P, A]:
    """Bind a function of the core."""
    return rules.transfers(bound(core, lambda _: carried))


def _reads(core: Callable[Concatenate[Any, P], Any]) -> Callable[P, jax.Array]:
    """Bind a function of the core that reads an array off a forest."""
    return rules.transfers(bound(core, lambda _: carried, "jax.Array"))


init = _binds(functions.init)
extend = _binds(functions.extend)
extend_ = _binds(functions.extend_)
lookup = _reads(functions.lookup)
count = _reads(functions.count)
size = _reads(functions.size)
refused = _reads(functions.refused)
tree = _binds(forest_tree.tree)
